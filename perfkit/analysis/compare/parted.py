"""From which parts of the steps did time move: computing, communication, copies, or idleness?

Functions
---------
in_parts    the parts of each steady step
parts       the parts of the steps of two runs
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.compare.resampling import CONFIDENCE, RESAMPLES, Resampling, ratio
from perfkit.analysis.compare.stepping import HIGH, LOW, RATIO, VERDICT, Frames, compared
from perfkit.analysis.compare.verdicts import MATTERS, UNSEEN
from perfkit.analysis.intervals import Int, Intervals, merge, union
from perfkit.analysis.steps import STEPS
from perfkit.analysis.window import devices, ends
from perfkit.schema import Column, Table
from perfkit.tables import COPIES, KERNELS

NAMES = ("computation", "exposed_communication", "other_kernels", "exposed_copy", "idle")
STEP_PARTS = Table(
    "STEP_PARTS",
    "a steady step, split into parts that sum to its time",
    (
        Column("step", "int64", "number of the step"),
        *(Column(f"{name}_ns", "float64", f"{name.replace('_', ' ')}, ns of a GPU") for name in NAMES),
    ),
    ("step",),
)
PARTS = Table(
    "PARTS",
    "a part of the steps' time in two runs",
    (
        Column("part", "category", "computation, exposed communication, other kernels, exposed copy or idle"),
        Column("before_ns", "float64", "time before, ns of a GPU per step"),
        Column("after_ns", "float64", "time after, ns of a GPU per step"),
        Column("difference_ns", "float64", "after less before, ns: the time that moved"),
        RATIO,
        LOW,
        HIGH,
        VERDICT,
    ),
    (),  # in the order of `NAMES`
)


def in_parts(
    kernels: pd.DataFrame, copies: pd.DataFrame, steps: pd.DataFrame, *, others: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return what the GPUs did in each steady step, in parts that sum to the step's time.

    The parts are those of `timeline.breakdown`, between the start and the end of each step: the GPU may then still
    work on the step before, which evens out over the steps.

    Parameters
    ----------
    kernels, copies, others
        As in `timeline.breakdown`; may be empty.
    steps
        What `analysis.steps.detect` returned; may be empty.

    Returns
    -------
    pandas.DataFrame
        STEP_PARTS: a row per steady step that a rank with a GPU takes; float64, ns, the mean over the GPUs of all ranks
        that take it, at least 0.

    Raises
    ------
    SchemaError
        If a table is not what it should be.

    Examples
    --------
    >>> in_parts(KERNELS.empty(), COPIES.empty(), STEPS.empty()).columns.tolist()[:2]
    ['step', 'computation_ns']
    """
    steady = STEPS.check(steps)[steps["steady"]]
    others = kernels.iloc[:0] if others is None else others
    frames = [KERNELS.check(kernels), COPIES.check(copies), KERNELS.check(others)]
    index, groups = devices(*frames)
    layers = list(accumulate(_layers(frames, groups), merge))
    of_rank = dict(iter(steady.groupby("rank")))
    made = [_device(layers, place, of_rank[rank]) for place, rank in enumerate(index["rank"]) if rank in of_rank]
    if not made:
        return STEP_PARTS.empty()
    return STEP_PARTS.make(pd.concat(made).groupby("step", as_index=False).mean())


def _layers(frames: Sequence[pd.DataFrame], groups: Sequence[Int]) -> list[Intervals]:
    """Return computing, communication, other kernels and copies: each counts where none before it does."""
    kernels, copies, others = ((*ends(f, None), group) for f, group in zip(frames, groups, strict=True))
    talks = (frames[0]["family"] == "communication").to_numpy()
    sets = (frames[1]["direction"] == "memset").to_numpy()
    computing = merge(_where(kernels, ~talks), _where(copies, sets))
    return [computing, _where(kernels, talks), union(*others), _where(copies, ~sets)]


def _where(operations: tuple[Int, Int, Int], rows: NDArray[np.bool_]) -> Intervals:
    start, end, group = (column[rows] for column in operations)
    return union(start, end, group)


def _device(layers: Sequence[Intervals], place: int, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the steps on one device."""
    start, end = ends(steps, None)
    reach = [_until(covered, place, end) - _until(covered, place, start) for covered in layers]
    parts = np.diff(np.stack([np.zeros_like(start), *reach, end - start]), axis=0)
    return pd.DataFrame({"step": steps["step"].to_numpy(), **{f"{n}_ns": p for n, p in zip(NAMES, parts, strict=True)}})


def _until(covered: Intervals, place: int, time: Int) -> Int:
    """Return how much of a device's time before each of these times is covered."""
    mine = slice(*np.searchsorted(covered.group, [place, place + 1]))
    start, end = covered.start[mine], covered.end[mine]
    whole, at = np.append(0, np.cumsum(end - start)), np.searchsorted(start, time, side="right")
    last = np.append(time.min(initial=0), end)[at]  # before the first start nothing is covered
    return np.asarray(whole[at] - np.maximum(last - time, 0), np.int64)


def parts(
    before: Frames,
    after: Frames,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return the parts of the steps' time before and after, with an interval for the ratio.

    Less of any part is better: shares cannot tell that, for a share falls as well where another part grows. Means add
    up: the differences of all parts sum to that of the mean step of a GPU.

    Parameters
    ----------
    before, after
        What `in_parts` returned, or a sequence of such frames, one per repeat; may be empty.
    confidence, resamples, seed
        As in `compare.steps`.
    matters
        As in `compare.steps`; a part must also move by this share of the step before, since less hardly moves the step.

    Returns
    -------
    pandas.DataFrame
        PARTS: a row per part that either run has; float64 ns, means over the steps; `ratio` NaN for what was 0 before,
        its interval NaN too where there are too few steps. Empty where a side has no steps.

    Raises
    ------
    SchemaError
        If a frame is not STEP_PARTS.

    Examples
    --------
    >>> len(parts(STEP_PARTS.empty(), STEP_PARTS.empty()))
    0
    """
    old, new = _stepped(before), _stepped(after)
    how = Resampling("mean", confidence, resamples, seed).checked()
    if not old or not new:
        return PARTS.empty()
    step_ns = float(np.mean([frame.drop(columns="step").sum(axis=1).mean() for frame in old]))
    rows = []
    for name in NAMES:
        was, now = ([frame[f"{name}_ns"].to_numpy(np.float64) for frame in side] for side in (old, new))
        row = compared(ratio(was, now, how), "_ns", matters)
        if abs(row["difference_ns"]) < matters * step_ns:
            row["verdict"] = UNSEEN
        rows += [{"part": name.replace("_", " "), **row}] if row["before_ns"] or row["after_ns"] else []
    return PARTS.make(pd.DataFrame(rows, columns=PARTS.column_names))


def _stepped(given: Frames) -> list[pd.DataFrame]:
    frames = [given] if isinstance(given, pd.DataFrame) else list(given)
    return [frame for frame in frames if len(STEP_PARTS.check(frame))]
