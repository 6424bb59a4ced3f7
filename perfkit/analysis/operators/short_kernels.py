"""Which operators launch many short kernels, so that launching costs more than computing?

Conventions
-----------
Launching takes the CPU about 5 to 10 us, so a kernel is short when it runs for less than `SHORT_NS`. That constant only
selects: whether launching holds the GPU up is for the measured `interval_ns` to say, the time from one launch call
of a thread to its next. Where it exceeds the kernels' time, the GPU waits for the CPU. Nodes of a graph are launched
together: they have no interval.

Functions
---------
many_small    operators whose kernels are short
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.calls import is_graph_launch, numbered_together, where
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import THREAD_KEYS, launching, named, parents, starts_inside
from perfkit.analysis.statistics import grouped, numbered, ranked
from perfkit.analysis.steps import STEPS
from perfkit.analysis.waits import Axis
from perfkit.analysis.window import Window
from perfkit.tables import API_CALLS, KERNELS, OPS

SHORT_NS = 10_000


def many_small(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    below_ns: int = SHORT_NS,
    steps: pd.DataFrame | None = None,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the operators whose kernels have a median duration below `below_ns`, by falling number of launches.

    Parameters
    ----------
    ops, kernels, api_calls
        OPS, KERNELS and API_CALLS of one execution; may be empty.
    below_ns
        Median from which on an operator's kernels are not short, ns.
    steps
        What `perfkit.analysis.steps.detect` returned, for launches per step.
    window
        (start_ns, end_ns): only kernels that start in it; none is cut. Everything when omitted.

    Returns
    -------
    pandas.DataFrame
        By falling `count`, ties by name: `name` category, of the operator that launches, missing for kernels without
        one; `count` int64, kernels; `total_ns` int64, `mean_ns`, `median_ns` float64, of their durations;
        `count_frac`, `share_frac` float64, 0..1, count and total_ns over those of all kernels (share_frac NaN where
        these take no time); `interval_ns` float64, median time from the operator's launch calls to the next of the
        same thread, NaN where there is none; `per_step_count` float64, kernels that start in a step over the number
        of steps of all ranks, NaN without steps.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If `below_ns` is not positive or the window does not end after it starts.

    Examples
    --------
    >>> many_small(OPS.empty(), KERNELS.empty(), API_CALLS.empty()).columns.tolist()[:3]
    ['name', 'count', 'total_ns']
    """
    if below_ns <= 0:
        raise ValueError(f"below_ns: {below_ns} is not positive. Give a duration in ns, such as {SHORT_NS}.")
    steps = STEPS.empty() if steps is None else STEPS.check(steps)
    parent = parents(OPS.check(ops))
    call, op = launching(ops, parent, KERNELS.check(kernels), API_CALLS.check(api_calls))
    found = kernels[["rank", "start_ns", "dur_ns"]].assign(name=named(ops, op), interval=_intervals(api_calls, call))
    found = found[starts_inside(found, window)]
    table, group = numbered(found, ["name"])
    figures = grouped(found["dur_ns"].to_numpy(), group, len(table))
    table["count"], table["total_ns"] = figures["count"], figures["total"]
    table["mean_ns"], table["median_ns"] = figures["mean"], figures["median"]
    table["count_frac"] = table["count"] / (len(found) or np.nan)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    waits = found["interval"].to_numpy()
    table["interval_ns"] = grouped(waits[waits >= 0], group[waits >= 0], len(table))["median"]
    inside = np.bincount(group[_in_a_step(found, steps)], minlength=len(table))
    table["per_step_count"] = inside / (len(steps) or np.nan)
    return ranked(table[table["median_ns"] < below_ns], "count", ["name"])


def _intervals(api_calls: pd.DataFrame, call: Int) -> Int:
    """Return the time from the launch call of each kernel to the thread's next one, ns, -1 where there is none."""
    launches = np.flatnonzero(np.bincount(call[call >= 0], minlength=len(api_calls)))
    there = api_calls.take(launches)
    (thread,) = numbered_together([there], THREAD_KEYS)
    step, same = np.diff(there["start_ns"].to_numpy()), np.diff(thread) == 0
    alone = ~where(there["name"], is_graph_launch)
    found = np.full(len(api_calls) + 1, -1, np.int64)
    found[launches[:-1]] = np.where(same & alone[:-1], step, -1)
    return found[call]


def _in_a_step(kernels: pd.DataFrame, steps: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which kernels start in one of the steps, which do not overlap within a rank."""
    rank, of_step = numbered_together([kernels, steps], ["rank"])
    start, begin = kernels["start_ns"].to_numpy(), steps["start_ns"].to_numpy()
    axis = Axis.over(1 + int(max(rank.max(initial=0), of_step.max(initial=0))), start, begin)
    at = np.searchsorted(axis.at(of_step, begin), axis.at(rank, start), side="right") - 1
    end = np.append(begin + steps["dur_ns"].to_numpy(), np.iinfo(np.int64).min)
    return np.asarray((np.append(of_step, -1)[at] == rank) & (start < end[at]))
