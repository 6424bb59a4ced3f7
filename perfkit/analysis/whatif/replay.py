"""What a replay runs: the plan of a program, in a form that changes can be made to, and the steps that stand for a run.

Events between streams are not recorded. An operation that starts within `RIGHT_AFTER_NS` after one
of another stream of its rank has ended, and later than all that is known to have released it, is
taken to have waited for that one. It surely has if both are copies of one device: they share an
engine. Of the communication kernels with the same name the k-th on each device belong together, if
several devices have a k-th and all are in it at one moment: none can leave it before all have come.

Of a long run a *stretch* is replayed: steady steps (`perfkit.analysis.steps`) in a row, on all
ranks. It stands for all steady steps if its mean step is like theirs: its length, the number of its
kernels, the time of its kernels of each family and that of its copies of each direction, per rank,
differ by at most `LIKE_FRAC` (of the length of a step, or of the number). And the steady steps
stand for the run if they are at least `LEAST_FRAC` of its time. At its ends up to a step of a
stretch is cut off otherwise than the whole would be: of n steps a replay may be wrong by 1/n.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import started_by
from perfkit.analysis.intervals import Axis, Bool, Float, Int, Window, bounds
from perfkit.analysis.whatif import program
from perfkit.analysis.whatif.program import (
    MID,
    NONE,
    Handovers,
    HostWaits,
    Lags,
    Operations,
    Program,
)
from perfkit.errors import PerfkitError
from perfkit.format import percent

STAYS, GONE, FETCHED, SENT = range(4)
RIGHT_AFTER_NS = 10_000  # the length of a small gap
_LOOK_BACK = 8
_SLICE = 200_000  # edges as Python integers at a time: they take ten times the memory
LIKE_FRAC = 0.02
LEAST_FRAC = 0.8
LEAST_STEPS = 10
CANDIDATES = 64
BY_HAND = "Choose a window of some steps."


class Edges(NamedTuple):
    """Node `to` is at least `lag` ns after node `source`."""

    to: Int
    source: Int
    lag: Int


class StreamWaits(NamedTuple):
    """Operation `op` starts `lag` ns after operation `after` of another stream has ended; `sure`: both are copies."""

    op: Int
    after: Int
    lag: Int
    sure: Bool


class Meetings(NamedTuple):
    """Operation `op` takes part in the meeting with this number; numbers count from 0."""

    op: Int
    meeting: Int


@dataclass
class Plan:
    """What each call and operation of a program takes and waits for, ns.

    Per call: `gap`, the CPU's work before it; `doubtful_gap`, more of it, if a change saves less
    than it promises; `cost`, its own time; `ready`, the earliest time at which background work
    allows it, NONE without any. Per operation: `dur`; the `call` that launches it; lags `launch`
    and `space` as in `Lags`, a row per view; `moved`: it STAYS in its stream; or is GONE, which
    leaves a moment without length there; or has a stream of its own, FETCHED without waiting for
    what was before it, or SENT after it.
    """

    program: Program
    lags: Lags
    host_waits: HostWaits
    stream_waits: StreamWaits
    handovers: Handovers
    meetings: Meetings
    gap: Int
    doubtful_gap: Int
    cost: Int
    ready: Int
    dur: Int
    call: Int
    launch: Int
    space: Int
    moved: Int


def as_recorded(
    recording: Program, kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> Plan:
    """Return the plan of a program as recorded; it is that of KERNELS, COPIES and API_CALLS."""
    ops, calls = recording
    pageable = copies["src_memory"].eq("pageable") | copies["dst_memory"].eq("pageable")
    communicates = np.r_[kernels["family"].eq("communication"), np.zeros(len(copies), bool)][
        ops.row
    ]
    own = program.own_copies(recording, np.r_[np.zeros(len(kernels), bool), pageable][ops.row])
    lags = program.launch_lags(
        recording, api_calls["name"], np.isin(np.arange(len(ops.start)), own.op)
    )
    waits, cost = program.host_waits(recording, own, lags.typical_launch)
    between, passed = stream_waits(ops, lags), program.handovers(calls)
    gap = np.zeros(len(calls.start), np.int64)
    gap[1:] = np.where(calls.thread[1:] == calls.thread[:-1], calls.start[1:] - calls.end[:-1], 0)
    gap[passed.call] = passed.lag
    launch, space = lags.launch.copy(), lags.space.copy()
    # What another stream explains is neither latency nor distance.
    launch[MID:, between.op] = lags.typical_launch[between.op]
    space[MID:, between.op] = lags.typical_space[between.op]
    return Plan(
        program=recording,
        lags=lags,
        host_waits=waits,
        stream_waits=between,
        handovers=passed,
        meetings=meetings(ops, communicates),
        gap=gap,
        doubtful_gap=np.zeros_like(gap),
        cost=cost,
        ready=np.full_like(gap, NONE),
        dur=ops.end - ops.start,
        call=ops.call.copy(),
        launch=launch,
        space=space,
        moved=np.full(len(ops.start), STAYS),
    )


def stream_waits(ops: Operations, lags: Lags) -> StreamWaits:
    """Return the operations that waited for another stream of their rank."""
    axis = Axis.over(1 + int(ops.rank.max(initial=0)), ops.start, ops.end)
    ends = axis.at(ops.rank, ops.end)
    order = np.argsort(ends, kind="stable")
    op = np.flatnonzero(ops.start > lags.released)
    place = np.searchsorted(ends[order], axis.at(ops.rank[op], ops.start[op]), side="right") - 1
    since = np.maximum(lags.released, ops.start - RIGHT_AFTER_NS)[op]
    after = np.full(len(op), -1, np.int64)
    left = np.arange(len(op))
    for _ in range(_LOOK_BACK):
        left = left[place[left] >= 0]
        mine, other = op[left], order[place[left]]
        near = (ops.end[other] > since[left]) & (ops.rank[other] == ops.rank[mine])
        fits = near & (ops.stream[other] != ops.stream[mine]) & (ops.start[other] < ops.start[mine])
        after[left[fits]] = other[fits]
        left = left[near & ~fits]
        place[left] -= 1
    op, after = op[after >= 0], after[after >= 0]
    sure = ops.is_copy[op] & ops.is_copy[after] & (ops.device[op] == ops.device[after])
    return StreamWaits(op, after, ops.start[op] - ops.end[after], sure)


def meetings(ops: Operations, communicates: Bool) -> Meetings:
    """Return the operations that meet; `communicates` tells the communication kernels."""
    op = np.flatnonzero(communicates)
    op = op[np.lexsort((ops.start[op], ops.device[op], ops.name[op]))]
    place = np.arange(len(op))
    new = (np.diff(ops.name[op], prepend=-1) != 0) | (np.diff(ops.device[op], prepend=-1) != 0)
    turn = place - np.maximum.accumulate(np.where(new, place, 0))
    _, number, size = np.unique(
        ops.name[op] * (len(op) + 1) + turn, return_inverse=True, return_counts=True
    )
    last_start, first_end = (
        np.zeros(len(size), np.int64),
        np.full(len(size), np.iinfo(np.int64).max),
    )
    np.maximum.at(last_start, number, ops.start[op])
    np.minimum.at(first_end, number, ops.end[op])
    together = ((size > 1) & (last_start < first_end))[number]
    return Meetings(op[together], np.unique(number[together], return_inverse=True)[1])


def moments(measured: Int, sort: Int, edges: Iterable[Edges]) -> Int:
    """Return the earliest time of each node that satisfies all edges, ns.

    Edges point forward in the order in which the nodes were `measured`, at the same time in that of
    `sort`; other edges, and edges with lag NONE, are left out. A node without any edge stays where
    it was.
    """
    to, source, lag = (np.concatenate(columns) for columns in zip(*edges, strict=True))
    used = np.zeros(len(measured), bool)
    used[to] = used[source] = True
    node = np.flatnonzero(used)
    node = node[np.lexsort((sort[node], measured[node]))]
    position = np.zeros(len(measured), np.int64)
    position[node] = np.arange(len(node))
    to, source = position[to], position[source]
    kept = np.flatnonzero((source < to) & (lag > NONE // 2))
    kept = kept[np.argsort(to[kept], kind="stable")]
    to, source, lag = to[kept], source[kept], lag[kept]
    free = np.ones(len(node), bool)
    free[to] = False
    time = np.where(free, measured[node], NONE).tolist()
    for first in range(0, len(to), _SLICE):
        part = slice(first, first + _SLICE)
        for at, before, after in zip(
            to[part].tolist(), source[part].tolist(), lag[part].tolist(), strict=True
        ):
            if (reached := time[before] + after) > time[at]:
                time[at] = reached
    times = measured.copy()
    times[node] = time
    return times


@dataclass(frozen=True)
class Stretch:
    """Steps in a row that stand for a run.

    `window` is (start_ns, end_ns) from the start of the first to the end of the last on any rank;
    `first` and `last` are their numbers, as `perfkit.analysis.steps.detect` counts; `steps` of all
    the steady `of_steps`. `share_frac` is the steady steps' part of the time looked at, 0.8 to 1;
    `apart_frac`, 0 to 0.02, by how much its mean step differs from that of all steady steps where
    it differs most.
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

    `steps` is what `perfkit.analysis.steps.detect` returned for the run, or for the window to stay
    in. The stretch should have as many kernels as `aim`, and may have `most` if 10 steps have more.

    PerfkitError if there are too few steady steps, they are too small a part of the time, 10 of
    them have too many kernels, or no stretch is like all.
    """
    start, end, number = _on_all_ranks(steps, window)
    filled = [frame for frame in (kernels, copies, steps) if len(frame)]
    begun = min((int(frame["start_ns"].min()) for frame in filled), default=0)
    ended = max((int((frame["start_ns"] + frame["dur_ns"]).max()) for frame in filled), default=1)
    span = (begun, ended) if window is None else bounds(window)
    whole_frac = float((end - start).sum() / (span[1] - span[0])) if len(start) else 0.0
    if len(start) < LEAST_STEPS:
        raise PerfkitError(
            f"steps: {len(start)} steady ones are too few to stand for a run. {BY_HAND}"
        )
    if whole_frac < LEAST_FRAC:
        raise PerfkitError(
            f"steps: the steady ones are {percent(whole_frac)} of the time, less than "
            f"{percent(LEAST_FRAC)}. {BY_HAND}"
        )
    names, parts = _parts(kernels, copies, start, end)
    count = min(max(round(aim / max(parts[:, 1].mean(), 1)), LEAST_STEPS), len(start))
    first, apart = _likest(parts, count)
    worst = int(apart.argmax())
    if apart[worst] > LIKE_FRAC:
        raise PerfkitError(
            f"steps: they are unlike: in {count:,} of them in a row {names[worst]} differs from "
            f"that of all by {percent(float(apart[worst]))}, more than {percent(LIKE_FRAC)}. "
            f"{BY_HAND}"
        )
    held = int(parts[first : first + count, 1].sum())
    if held > most:
        raise PerfkitError(
            f"steps: {count} of them have {held:,} kernels, more than {most:,}. {BY_HAND}"
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


def _likest(parts: Float, count: int) -> tuple[int, Float]:
    """Return the first step of the stretch that is likest to all, and how far each part is apart."""
    mean = parts.mean(axis=0)
    scale = np.full(len(mean), max(mean[0], 1.0))
    scale[1] = max(mean[1], 1.0)
    begins = np.unique(np.linspace(0, len(parts) - count, CANDIDATES).astype(np.int64))
    passed = np.concatenate([np.zeros((1, parts.shape[1])), np.cumsum(parts, axis=0)])
    each = np.abs((passed[begins + count] - passed[begins]) / count - mean) / scale
    best = int(each.max(axis=1).argmin())
    return int(begins[best]), each[best]


def around(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    ranges: pd.DataFrame,
    window: Window,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the rows of four tables that a replay of the window looks at: with these it is the same, and faster.

    These are the operations that start in it, and what is on the CPU from the first call that
    launched one of them on.
    """
    first, last = bounds(window)
    work = [_starting(frame, first, last) for frame in (kernels, copies)]
    call = np.concatenate([started_by(frame, api_calls) for frame in work])
    since = int(api_calls["start_ns"].to_numpy()[call[call >= 0]].min(initial=first))
    begun = [_starting(frame, None, last) for frame in (api_calls, ranges)]
    ends = [(frame["start_ns"] + frame["dur_ns"]).to_numpy() for frame in begun]
    on_cpu = [
        frame.take(np.flatnonzero(end >= since)) for frame, end in zip(begun, ends, strict=True)
    ]
    return work[0], work[1], on_cpu[0], on_cpu[1]


def _starting(frame: pd.DataFrame, first: int | None, last: int) -> pd.DataFrame:
    """Return the rows that start before `last`, and not before `first` if it is given."""
    start = frame["start_ns"].to_numpy()
    return frame.take(np.flatnonzero((start < last) & (first is None or start >= first)))


def _on_all_ranks(steps: pd.DataFrame, window: Window | None) -> tuple[Int, Int, Int]:
    """Return start, end and number of the steps that are steady on all ranks, none beyond the window, in a row."""
    ranks = steps["rank"].nunique()
    whole = steps.assign(end_ns=steps["start_ns"] + steps["dur_ns"])[steps["steady"]]
    by_number = whole.groupby("step").agg(
        start=("start_ns", "min"), end=("end_ns", "max"), ranks=("rank", "nunique")
    )
    first, last = bounds(window) if window else (by_number["start"].min(), by_number["end"].max())
    kept = by_number[
        (by_number["ranks"] == ranks) & (by_number["start"] >= first) & (by_number["end"] <= last)
    ]
    start, number = kept["start"].to_numpy(np.int64), kept.index.to_numpy(np.int64)
    end = kept["end"].to_numpy(np.int64)
    # Ranks that are apart overlap the next step: what starts in it is counted there.
    return start, np.minimum(end, np.append(start[1:], end[-1:])), number


def _parts(
    kernels: pd.DataFrame, copies: pd.DataFrame, start: Int, end: Int
) -> tuple[list[str], Float]:
    """Return what is compared of each step (row), and its names: length, kernels, time per rank and sort of work."""
    step = _steps_of(kernels, start, end)
    columns: list[NDArray[Any]] = [end - start, np.bincount(step[step >= 0], minlength=len(start))]
    names = ["their length", "the number of kernels"]
    for frame, column, what in ((kernels, "family", "kernels"), (copies, "direction", "copies")):
        step = _steps_of(frame, start, end)
        code, rank, dur = (
            frame[column].cat.codes.to_numpy(),
            frame["rank"].to_numpy(),
            frame["dur_ns"].to_numpy(),
        )
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
