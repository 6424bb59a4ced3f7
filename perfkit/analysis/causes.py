"""What was a device waiting for when it did nothing?

The *launch call* of a gap is that of the operation which ends it. A gap is divided by what the
thread of that call did, moment by moment; the parts add up to the gap, and the largest one names
its cause and detail.

    host_wait     until the launch call returns, by detail; in that call launch, but cuda_call if it copies; before
                  it, of several at a moment the first:
        sync          inside a call that waits for the GPU
        launch        inside another launch call
        memory        inside a call that reserves or releases memory
        cuda_call     inside another CUDA call
        data_loading  in a range whose name matches DATA_LOADING
        mpi           in a recorded call of MPI
        system        in a recorded call of the operating system
        host_code     in none of these: code of the program itself
    kernel_wait   after the launch call returned, if that is shorter than 30 us
    other         after it returned, if that is longer: another stream, device or process held the operation up; waits
                  near the usual one of their device and launch call have its cause, so that 30 us part no such kind
    unattributed  no launch call is recorded
    edge          before the first or after the last operation of the window

All threads lie end to end on one `Axis`, so that one sorted array answers for all of them. Runtime
(cuda), driver (cu) and HIP (hip) calls count alike. A correlation id is unique within a (rank,
process) only; -1 never matches.

Source: Holistic Trace Analysis, ``get_idle_time_breakdown``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Axis, Bool, Int, Intervals, ends, union
from perfkit.schema import stretches, unique
from perfkit.tables import API_CALLS, COPIES, KERNELS

GRAPH_LAUNCH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
COOPERATIVE = ("LaunchCooperativeKernel", "LaunchCooperativeKernelMultiDevice")
# Runtime, driver and HIP functions that put kernels on the GPU; COPY_CALL matches memory copies and
# memsets.
LAUNCH_CALLS = GRAPH_LAUNCH_CALLS.union(
    (f"cuda{call}" for call in ("Launch", "LaunchKernel", "LaunchKernelExC", *COOPERATIVE)),
    (
        f"cu{call}"
        for call in (
            "Launch",
            "LaunchGrid",
            "LaunchGridAsync",
            "LaunchKernel",
            "LaunchKernelEx",
            *COOPERATIVE,
        )
    ),
    (
        f"hip{call}"
        for call in (
            "LaunchByPtr",
            "LaunchKernel",
            "LaunchKernelExC",
            "DrvLaunchKernelEx",
            *COOPERATIVE,
        )
    ),
    (f"hip{kind}LaunchKernel" for kind in ("Ext", "Module", "ExtModule", "HccModule")),
    ("hipExtLaunchMultiKernelMultiDevice", "hipModuleLaunchCooperativeKernel"),
)
COPY_CALL = re.compile(r"(?:cuda|cu|hip)Mem(?:cpy|set)")
SYNC_CALL = re.compile(
    r"(?:cuda|cu|hip)(?:(?:Device|Thread|Ctx|Stream|Event)Synchronize$|Memcpy(?!.*Async))"
)
MEMORY_CALL = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
    r"|(?:cu|hip)Mem(?:Alloc|Free|Create|Release|Map|Unmap|Address|SetAccess|Host(?:Alloc|Register"
    r"|Unregister))"
)
VARIANT = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


class Placed(NamedTuple):
    """Intervals on an axis with their table row, by start; of equal starts the longest comes first."""

    start: Int
    end: Int
    row: Int


CAUSES = ("host_wait", "kernel_wait", "other", "unattributed", "edge")
DETAILS = ("sync", "launch", "memory", "cuda_call", "data_loading", "mpi", "system", "host_code")
PARTS = (
    *(f"{detail}_ns" for detail in DETAILS),
    "kernel_wait_ns",
    "other_ns",
)  # of a gap with a launch call
KERNEL_WAIT_NS = 30_000  # HTA's consecutive_kernel_delay, 30; its text says ns, its data are us
LACKING_LIMIT_FRAC = 0.2
DENSE = 4  # keys up to so many times their number are looked up, not searched for
THREAD = ["rank", "process", "thread"]
# "enumerate(DataLoader)#..." of PyTorch, "Data loading", "data_loading", "next batch", "get_batch",
# "batch-generator"
DATA_LOADING = re.compile(
    r"data[ _-]?load|(?:next|get|load|fetch)[ _-]?batch|batch[ _-]?generator", re.IGNORECASE
)

MPI = re.compile(r"P?MPI_[A-Z]")


@dataclass(frozen=True)
class Determinable:
    """Whether a capture can say what its gaps wait for; if not, `why` says what it lacks."""

    yes: bool
    why: str = ""


def migrated(copies: pd.DataFrame) -> pd.Series:
    """Tell which COPIES are pages of unified memory that the driver moved."""
    inside = copies["src_memory"].eq("managed") & copies["dst_memory"].eq("managed")
    return inside & (copies["correlation"] <= 0)


def determinable(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, *, pages: bool = False
) -> Determinable:
    """Return whether enough operations have their launch call to know the causes of gaps; `why` says what is missing.

    Not so if more than a fifth of the operations have no launch call, or more than a fifth of the
    graph launches no operation: then gaps are an artefact of what was not recorded. Pages of
    unified memory, which no call launches, count only with `pages`.
    """
    copies = copies if pages else copies[~migrated(COPIES.check(copies))]
    tables = KERNELS.check(kernels), COPIES.check(copies)
    call = np.concatenate([started_by(each, API_CALLS.check(api_calls)) for each in tables])
    graphs = np.flatnonzero(where(api_calls["name"], is_graph_launch))
    return judged(
        len(call), int((call < 0).sum()), len(graphs), int((~np.isin(graphs, call)).sum())
    )


def judged(operations: int, without_call: int, graphs: int, without_operation: int) -> Determinable:
    """Return the answer of `determinable` for counts of operations and graph launches, and of launches without a part.

    >>> judged(10, 3, 0, 0).why
    '3 of 10 operations have no launch call'
    """
    if not operations:
        return Determinable(False, "the capture holds no operation of a GPU")
    for what, lacking, of in (
        ("operations have no launch call", without_call, operations),
        ("graph launches have no operation", without_operation, graphs),
    ):
        if lacking > LACKING_LIMIT_FRAC * of:
            return Determinable(False, f"{lacking:,} of {of:,} {what}")
    return Determinable(True)


def placed(start: Int, end: Int) -> Placed:
    """Return the intervals of rows on an axis that are not empty, in order."""
    row = np.flatnonzero(end > start)
    if len(row) < len(start):
        start, end = start[row], end[row]
    step = np.diff(start)
    close = np.flatnonzero(step <= 0)
    if not ((step[close] == 0) & (end[close + 1] <= end[close])).all():
        order = np.lexsort((-end, start))
        row, start, end = row[order], start[order], end[order]
    return Placed(start, end, row)


def on_one_axis(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> list[tuple[Int, Int]]:
    """Return start and end of the rows of several tables on an axis of the groups that `columns` tell apart."""
    groups, times = numbered_together(frames, columns), [ends(frame) for frame in frames]
    axis = Axis.over(1 + int(max(group.max(initial=0) for group in groups)), *chain(*times))
    for group, (start, end) in zip(groups, times, strict=True):
        group *= axis.span  # in place: each copy of a long column costs more than the sum
        group -= axis.low
        end += group
        group += start
    return [(start, end) for start, (_, end) in zip(groups, times, strict=True)]


def covered_by(
    stretches: pd.DataFrame, spans: pd.DataFrame, columns: Sequence[str] = ("rank",)
) -> Int:
    """Return how much of each stretch the spans of its group cover, ns."""
    (first, last), (start, end) = on_one_axis([stretches, spans], columns)
    return covered(union(start, end), first, last)


def covered(cover: Intervals, first: Int, last: Int) -> Int:
    """Return how much of each wait the disjoint intervals cover, ns.

    >>> cover = Intervals(np.array([10, 40]), np.array([20, 60]), np.array([0, 0]))
    >>> covered(cover, np.array([0, 15]), np.array([50, 40])).tolist()
    [20, 5]
    """
    return _covered_before(cover, last) - _covered_before(cover, first)


def stopped(cover: Intervals, time: Int) -> Int:
    """Return each time, ns, on a clock that stands still during disjoint intervals.

    >>> stopped(Intervals(np.array([10]), np.array([40]), np.array([0])), np.array([5, 20, 50])).tolist()
    [5, 10, 20]
    """
    return time - _covered_before(cover, time)


def _covered_before(cover: Intervals, time: Int) -> Int:
    begun = np.searchsorted(cover.start, time, side="right")
    # Nothing before the first start
    beyond = np.maximum(np.r_[time.min(initial=0), cover.end][begun] - time, 0)
    return np.asarray(np.r_[0, np.cumsum(cover.end - cover.start)][begun] - beyond, np.int64)


def longest(intervals: Placed, first: Int, last: Int) -> Int:
    """Return the table row of the interval that covers most of each wait, the first of equals; -1 where there is none.

    >>> calls = Placed(np.array([0, 30]), np.array([20, 90]), np.array([7, 8]))
    >>> longest(calls, np.array([10, 5, 20]), np.array([50, 33, 30])).tolist()
    [8, 7, -1]
    """
    # An interval inside an earlier one never covers more than that; without such, the ends ascend
    # too.
    outer = np.flatnonzero(intervals.end > np.r_[-1, np.maximum.accumulate(intervals.end)[:-1]])
    start, end = intervals.start[outer], intervals.end[outer]
    lowest = np.searchsorted(end, first, side="right")
    count = np.maximum(np.searchsorted(start, last, side="left") - lowest, 0)
    wait, candidate = members(lowest, count)
    overlap = np.minimum(end[candidate], last[wait]) - np.maximum(start[candidate], first[wait])
    most = np.zeros(len(count), np.int64)
    np.maximum.at(most, wait, overlap)
    hit = np.flatnonzero(overlap == most[wait])[::-1]
    best = np.full(len(count), -1, np.int64)
    best[wait[hit]] = intervals.row[outer[candidate[hit]]]
    return best


def members(first: Int, count: Int) -> tuple[Int, Int]:
    """Return the run and the row of each member of runs of `count` consecutive rows that begin at `first`.

    >>> [a.tolist() for a in members(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    run = np.repeat(np.arange(len(count)), count)
    return run, np.arange(len(run)) + np.repeat(first - np.cumsum(count) + count, count)


def innermost(intervals: Placed, first: Int, last: Int) -> Int:
    """Return the table row of the innermost interval that covers at least half of each wait, -1 where none does.

    Intervals of a thread are expected to nest; where two overlap in part, the later is taken for
    the inner one.

    >>> ranges = Placed(np.array([0, 10]), np.array([100, 40]), np.array([3, 4]))
    >>> innermost(ranges, np.array([12, 30]), np.array([60, 60])).tolist()
    [4, 3]
    """
    # The place of the enclosing interval of each interval, -1 at the top.
    places = np.arange(len(intervals.start))
    level = places - np.searchsorted(np.sort(intervals.end), intervals.start, side="right")
    order = np.argsort(level, kind="stable")
    bounds = np.searchsorted(level[order], np.arange(int(level.max(initial=-1)) + 2))
    parent = np.full(len(places), -1, np.int64)
    for below, above, beyond in zip(bounds, bounds[1:], bounds[2:], strict=False):
        inner = order[above:beyond]
        parent[inner] = order[below + np.searchsorted(order[below:above], inner) - 1]
    rows = np.full(len(first), -1, np.int64)
    wait = np.arange(len(first))
    # What covers more than half of a wait contains its middle: climb from the last interval begun
    # by then.
    place = np.searchsorted(intervals.start, first + (last - first) // 2, side="right") - 1
    while len(wait := wait[place >= 0]):
        place = place[place >= 0]
        overlap = np.minimum(intervals.end[place], last[wait]) - np.maximum(
            intervals.start[place], first[wait]
        )
        enough = 2 * overlap >= last[wait] - first[wait]
        rows[wait[enough]] = intervals.row[place[enough]]
        wait, place = wait[~enough], parent[place[~enough]]
    return rows


def is_launch(name: str) -> bool:
    """Tell whether a call puts a kernel, graph, copy or memset on the GPU."""
    return is_kernel_launch(name) or COPY_CALL.match(name) is not None


def is_kernel_launch(name: str) -> bool:
    """Tell whether a call puts a kernel or a graph on the GPU."""
    return VARIANT.sub("", name) in LAUNCH_CALLS


def is_graph_launch(name: str) -> bool:
    """Tell whether a call launches a graph, which starts many operations at once."""
    return VARIANT.sub("", name) in GRAPH_LAUNCH_CALLS


def is_sync(name: str) -> bool:
    """Tell whether a call waits for the GPU: a synchronisation or a copy that is not asynchronous.

    >>> [is_sync(name) for name in ("cuCtxSynchronize", "cudaMemcpy", "cudaMemcpyAsync", "cudaEventQuery")]
    [True, True, False, False]
    """
    return SYNC_CALL.match(VARIANT.sub("", name)) is not None


def is_memory(name: str) -> bool:
    """Tell whether a call reserves, maps or releases device or pinned memory."""
    return MEMORY_CALL.match(name) is not None


def where(names: pd.Series, fulfils: Callable[[str], object]) -> Bool:
    """Return which rows of a category column fulfil a condition, asked once per category."""
    return np.asarray(answered(names, fulfils)[names.cat.codes.to_numpy()], np.bool_)


def answered(names: pd.Series, fulfils: Callable[[str], object]) -> Bool:
    """Return which categories fulfil a condition; the last answer is that of a missing name, no."""
    return np.array([bool(fulfils(str(name))) for name in names.cat.categories] + [False])


# What each detail of a wait is called in API_CALLS (0), RANGES (1) or OS_CALLS (2), in the order in
# which they count.
CONDITIONS: tuple[tuple[int, Callable[[str], object]], ...] = (
    *((0, fulfils) for fulfils in (is_sync, is_launch, is_memory, bool)),
    *((1, fulfils) for fulfils in (DATA_LOADING.search, MPI.match)),
    (2, bool),
)


def numbered_together(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> list[Int]:
    """Number the combinations of integer columns in several frames, ascending from 0: an int64 array per frame."""
    keys = [[frame[column].to_numpy() for column in columns] for frame in frames]
    heads = [stretches(of_frame, len(frame)) for of_frame, frame in zip(keys, frames, strict=True)]
    codes = [np.zeros(len(head), np.int64) for head in heads]
    for number in range(len(columns)):
        values = [
            of_frame[number][head].astype(np.int64)
            for of_frame, head in zip(keys, heads, strict=True)
        ]
        distinct = _distinct(values)
        if len(distinct) > 1:
            places = (np.searchsorted(distinct, v) for v in values)
            codes = [
                code * len(distinct) + place for code, place in zip(codes, places, strict=True)
            ]
    present = _distinct(codes)
    lengths = (np.diff(head, append=len(frame)) for head, frame in zip(heads, frames, strict=True))
    return [
        np.repeat(np.searchsorted(present, code), length)
        for code, length in zip(codes, lengths, strict=True)
    ]


def _distinct(arrays: Sequence[Int]) -> Int:
    return unique(np.concatenate(list(map(pd.unique, arrays))))


def started_by(operations: pd.DataFrame, api_calls: pd.DataFrame) -> Int:
    """Return the row (int64 position) of the call that started each operation, -1 where none is recorded.

    Joined on (rank, process, correlation). Many operations may share a call, as the nodes of a
    graph do. Of several calls with one id the first row counts.
    """
    ids = operations["correlation"].to_numpy(), api_calls["correlation"].to_numpy()
    if not len(ids[0]) or not len(ids[1]):
        return np.full(len(ids[0]), -1, np.int64)
    groups = numbered_together([operations, api_calls], ["rank", "process"])
    span = int(max(i.max() for i in ids)) + 2
    if span * (int(max(g.max() for g in groups)) + 1) >= 2**62:  # the product would not fit int64
        return _places(
            numbered_together([operations, api_calls], ["rank", "process", "correlation"]), ids
        )
    for group, number in zip(groups, ids, strict=True):
        group *= span
        group += number
    return _places(groups, ids)


def _places(keyed: list[Int], ids: tuple[Int, Int]) -> Int:
    """Return the first row of each of the first keys among the second; rows whose id is negative have none."""
    rows = np.flatnonzero(ids[1] >= 0)
    wanted, keys = keyed[0], keyed[1] if len(rows) == len(keyed[1]) else keyed[1][rows]
    most = int(max(keys.max(initial=-1), wanted.max()))
    if most < DENSE * (
        len(keys) + len(wanted)
    ):  # a table of all keys; the first row is written last
        row_of = np.full(most + 2, -1, np.int32 if len(ids[1]) < 2**31 else np.int64)
        row_of[keys[::-1]] = rows[::-1]
        return np.where(ids[0] >= 0, row_of[wanted], np.int64(-1))
    if not (keys[1:] >= keys[:-1]).all():
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    place = np.searchsorted(keys, wanted)
    present = (np.append(keys, -1)[place] == wanted) & (ids[0] >= 0)
    return np.where(present, np.append(rows, -1)[place], -1).astype(np.int64)
