"""Which stretch of a long run stands for all of it, so that its replay does too?

A stretch is steady steps (`perfkit.analysis.steps`) in a row, on all ranks. It stands for all steady steps if its mean
step is like theirs: its length, the number of its kernels, the time of its kernels of each family and that of its
copies of each direction, per rank, differ by at most `LIKE_FRAC` (of the length of a step, or of the number). And the
steady steps stand for the run if they are at least `LEAST_FRAC` of its time. At its ends up to a step of a stretch is
cut off otherwise than the whole would be: of n steps a replay may be wrong by 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import started_by
from perfkit.analysis.intervals import Int, Window, bounds
from perfkit.errors import PerfkitError
from perfkit.format import percent

LIKE_FRAC = 0.02
LEAST_FRAC = 0.8
LEAST_STEPS = 10
CANDIDATES = 64
BY_HAND = "Choose a window of some steps."
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    """Steps in a row that stand for a run.

    `window` is (start_ns, end_ns) from the start of the first to the end of the last on any rank; `first` and `last`
    are their numbers, as `perfkit.analysis.steps.detect` counts; `steps` of all the steady `of_steps`. `share_frac` is
    the steady steps' part of the time looked at, 0.8 to 1; `apart_frac`, 0 to 0.02, by how much its mean step differs
    from that of all steady steps where it differs most.
    """

    window: Window
    first: int
    last: int
    steps: int
    of_steps: int
    share_frac: float
    apart_frac: float

    @property
    def doubt_frac(self) -> float:
        """By how much its replay may differ from that of the whole: `apart_frac`, and one step of it."""
        return self.apart_frac + 1 / self.steps


def stretch(
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    *,
    aim: int,
    most: int,
    window: Window | None = None,
) -> Stretch:
    """Return the stretch whose mean step is likest to that of all steady steps.

    `steps` is what `perfkit.analysis.steps.detect` returned for the run, or for the window to stay in. The stretch
    should have as many kernels as `aim`, and may have `most` if 10 steps have more.

    PerfkitError if there are too few steady steps, they are too small a part of the time, 10 of them have too many
    kernels, or no stretch is like all.
    """
    start, end, number = _on_all_ranks(steps, window)
    span = _span(kernels, copies, steps) if window is None else bounds(window)
    whole_frac = float((end - start).sum() / (span[1] - span[0])) if len(start) else 0.0
    if len(start) < LEAST_STEPS:
        raise PerfkitError(f"steps: {len(start)} steady ones are too few to stand for a run. {BY_HAND}")
    if whole_frac < LEAST_FRAC:
        raise PerfkitError(
            f"steps: the steady ones are {percent(whole_frac)} of the time, less than {percent(LEAST_FRAC)}. {BY_HAND}"
        )
    names, parts = _parts(kernels, copies, start, end)
    count = min(max(round(aim / max(parts[:, 1].mean(), 1)), LEAST_STEPS), len(start))
    first, apart = _likest(parts, count)
    worst = int(apart.argmax())
    if apart[worst] > LIKE_FRAC:
        raise PerfkitError(
            f"steps: they are unlike: in {count:,} of them in a row {names[worst]} differs from that of all by "
            f"{percent(float(apart[worst]))}, more than {percent(LIKE_FRAC)}. {BY_HAND}"
        )
    held = int(parts[first : first + count, 1].sum())
    if held > most:
        raise PerfkitError(
            f"steps: {count} of them have {held:,} kernels, more than {most:,}. Choose a window by hand."
        )
    return Stretch(
        window=(int(start[first]), int(end[first + count - 1])),
        first=int(number[first]),
        last=int(number[first + count - 1]),
        steps=count,
        of_steps=len(start),
        share_frac=min(whole_frac, 1.0),
        apart_frac=float(apart[worst]),
    )


def around(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, ranges: pd.DataFrame, window: Window
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the rows of four tables that a replay of the window looks at: with these it is the same, and faster.

    These are the operations that start in it, and what is on the CPU from the first call that launched one of them on.
    """
    first, last = bounds(window)
    work = [_starting(frame, first, last) for frame in (kernels, copies)]
    call = np.concatenate([started_by(frame, api_calls) for frame in work])
    since = int(api_calls["start_ns"].to_numpy()[call[call >= 0]].min(initial=first))
    begun = [_starting(frame, None, last) for frame in (api_calls, ranges)]
    ends = [(frame["start_ns"] + frame["dur_ns"]).to_numpy() for frame in begun]
    on_cpu = [frame.take(np.flatnonzero(end >= since)) for frame, end in zip(begun, ends, strict=True)]
    return work[0], work[1], on_cpu[0], on_cpu[1]


def _starting(frame: pd.DataFrame, first: int | None, last: int) -> pd.DataFrame:
    """Return the rows that start before `last`, and not before `first` if it is given."""
    start = frame["start_ns"].to_numpy()
    return frame.take(np.flatnonzero((start < last) & (first is None or start >= first)))


def _span(*frames: pd.DataFrame) -> Window:
    filled = [frame for frame in frames if len(frame)]
    starts = [int(frame["start_ns"].min()) for frame in filled]
    ends = [int((frame["start_ns"] + frame["dur_ns"]).max()) for frame in filled]
    return min(starts, default=0), max(ends, default=1)


def _on_all_ranks(steps: pd.DataFrame, window: Window | None) -> tuple[Int, Int, Int]:
    """Return start, end and number of the steps that are steady on all ranks, none beyond the window, in a row."""
    ranks = steps["rank"].nunique()
    whole = steps.assign(end_ns=steps["start_ns"] + steps["dur_ns"])[steps["steady"]]
    by_number = whole.groupby("step").agg(start=("start_ns", "min"), end=("end_ns", "max"), ranks=("rank", "nunique"))
    first, last = bounds(window) if window else (by_number["start"].min(), by_number["end"].max())
    kept = by_number[(by_number["ranks"] == ranks) & (by_number["start"] >= first) & (by_number["end"] <= last)]
    start, number = kept["start"].to_numpy(np.int64), kept.index.to_numpy(np.int64)
    end = kept["end"].to_numpy(np.int64)
    # Ranks that are apart overlap the next step: what starts in it is counted there.
    return start, np.minimum(end, np.append(start[1:], end[-1:])), number


def _parts(kernels: pd.DataFrame, copies: pd.DataFrame, start: Int, end: Int) -> tuple[list[str], Values]:
    """Return what is compared of each step (row), and its names: length, kernels, time per rank and sort of work."""
    step = _steps_of(kernels, start, end)
    columns: list[NDArray[Any]] = [end - start, np.bincount(step[step >= 0], minlength=len(start))]
    names = ["their length", "the number of kernels"]
    for frame, column, what in ((kernels, "family", "kernels"), (copies, "direction", "copies")):
        step = _steps_of(frame, start, end)
        code, rank, dur = frame[column].cat.codes.to_numpy(), frame["rank"].to_numpy(), frame["dur_ns"].to_numpy()
        inside = np.flatnonzero(step >= 0)
        step, code, rank, dur = step[inside], code[inside], rank[inside], dur[inside]
        for of_rank in np.unique(rank):
            for value, text in enumerate(frame[column].cat.categories):
                mine = (code == value) & (rank == of_rank)
                if mine.any():
                    names.append(f"the time of {text} {what} on rank {of_rank}")
                    columns.append(np.bincount(step[mine], dur[mine], minlength=len(start)))
    return names, np.column_stack(columns).astype(np.float64)


def _steps_of(frame: pd.DataFrame, start: Int, end: Int) -> Int:
    """Return the step (its place) in which each row starts, -1 outside of all."""
    at = frame["start_ns"].to_numpy()
    step = np.searchsorted(start, at, side="right") - 1
    return np.where((step >= 0) & (at < np.append(end, 0)[step]), step, -1)


def _likest(parts: Values, count: int) -> tuple[int, Values]:
    """Return the first step of the stretch of so many steps that is likest to all, and how far each part is apart."""
    mean = parts.mean(axis=0)
    scale = np.full(len(mean), max(mean[0], 1.0))
    scale[1] = max(mean[1], 1.0)
    first = np.unique(np.linspace(0, len(parts) - count, CANDIDATES).astype(np.int64))
    passed = np.concatenate([np.zeros((1, parts.shape[1])), np.cumsum(parts, axis=0)])
    apart = np.abs((passed[first + count] - passed[first]) / count - mean) / scale
    best = int(apart.max(axis=1).argmin())
    return int(first[best]), apart[best]
