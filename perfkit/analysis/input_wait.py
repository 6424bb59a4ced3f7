"""How much of each step does the training thread wait for its next batch?

Conventions
-----------
The wait is the time in the loader's ``__next__``, which PyTorch records as
a range ``enumerate(DataLoader)#...__next__``; ranges a person named for data loading
(`perfkit.analysis.causes.DATA_LOADING`) count too. It is that of the thread of the rank that spends most time in such
ranges; time that several of them cover counts once. A rank without any says nothing about its input: NaN.

Functions
---------
summary    waiting time and its share of each step
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import numbered_together, where
from perfkit.analysis.causes import DATA_LOADING
from perfkit.analysis.intervals import Intervals, total, union
from perfkit.analysis.statistics import numbered
from perfkit.analysis.steps import STEPS
from perfkit.analysis.waits import Axis, covered
from perfkit.tables import RANGES


def summary(ranges: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return how long the training thread of each step waits for data.

    Parameters
    ----------
    ranges
        RANGES; may be empty.
    steps
        What `perfkit.analysis.steps.detect` returned; may be empty. The share of a run is the sum of wait_ns over the
        sum of dur_ns, best of the steady steps.

    Returns
    -------
    pandas.DataFrame
        A row per step, in their order: `rank` int32; `step`, `start_ns`, `dur_ns` int64; `wait_ns` Int64, within the
        step; `wait_frac` float64, 0..1, wait_ns over dur_ns. NA and NaN where the rank records no data loading at all,
        wait_frac also where dur_ns is 0.

    Raises
    ------
    SchemaError
        If a table does not match its schema.

    Examples
    --------
    >>> summary(RANGES.empty(), STEPS.empty()).columns.tolist()
    ['rank', 'step', 'start_ns', 'dur_ns', 'wait_ns', 'wait_frac']
    """
    spans = _of_one_thread(ranges[where(RANGES.check(ranges)["name"], DATA_LOADING.search)])
    found = STEPS.check(steps)[["rank", "step", "start_ns", "dur_ns"]].reset_index(drop=True)
    of_span, of_step = numbered_together([spans, found], ["rank"])
    wait = _covered(spans, of_span, found, of_step)
    unknown = ~np.isin(of_step, of_span)
    found["wait_ns"] = pd.arrays.IntegerArray(wait, unknown)
    length = found["dur_ns"].to_numpy()
    share = np.full(len(found), np.nan)
    found["wait_frac"] = np.divide(wait, length, out=share, where=~unknown & (length > 0))
    return found


def _of_one_thread(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the spans of the thread of each rank that spends most time in them."""
    threads, thread = numbered(spans, ["rank", "process", "thread"])
    start = spans["start_ns"].to_numpy()
    threads["time"] = total(union(start, start + spans["dur_ns"].to_numpy(), thread), len(threads))
    most = threads.sort_values("time", ascending=False, kind="stable").drop_duplicates("rank").index
    return spans[np.isin(thread, most)].reset_index(drop=True)


def _covered(spans: pd.DataFrame, of_span: np.ndarray, steps: pd.DataFrame, of_step: np.ndarray) -> np.ndarray:
    """Return how much of each step the spans of its rank cover, ns."""
    edges = [(frame["start_ns"].to_numpy(), frame["dur_ns"].to_numpy()) for frame in (spans, steps)]
    (begin, end), (first, last) = ((start, start + dur) for start, dur in edges)
    axis = Axis.over(1 + int(max(of_span.max(initial=0), of_step.max(initial=0))), begin, end, first, last)
    waiting: Intervals = union(axis.at(of_span, begin), axis.at(of_span, end))
    return covered(waiting, axis.at(of_step, first), axis.at(of_step, last))
