"""What did the program do: which calls did its threads make in order, and what did they start?

Calls made inside another call (the driver's inside the runtime's) are part of it: only the
outermost are kept, and what a nested call started or waited for is theirs. Queries of events in a
row, at most `POLL_NS` apart and together longer than the GPU's own delay, are one call that waits.
Operations (kernels, copies, memsets) are in the order of their streams, calls in that of their
threads; times are int64 ns. Streams, threads and processes are numbered from 0 over all ranks.

Threads of a process pass a baton: PyTorch's main thread waits while another runs the backward pass. A thread goes on
*after* another when it had been silent for at least `RUN` calls of other threads in a row, makes at least `RUN` calls
in a row itself, and began once the last of these had returned; so does, whatever their number, a thread that makes its
first call. A thread that launches nothing, such as one that pins memory, takes no part. What lies between the two calls
is the CPU's work. An operation is *released* by its call when that has begun and the launch latency has passed, and by
its stream when the predecessor has ended and the distance between two operations has passed. The typical latency of a
kind (call and sort of operation) is the median over calls that found the stream empty; where the stream was empty when
the call returned and the call was longer, it is the time in the call. The typical distance is the median on the device
over operations whose stream released them last, a small one the first tenth of these: a device needs some time from one
operation to the next. Where nothing shows them the latency is 0, and the distance `USUAL_GAP_NS`.

What happens up to `SLACK_NS` after the last release is the GPU's own delay. What is longer is
*unexplained*: something not recorded held the operation up. The first operation of a stream starts
as it did, and so, after its predecessor, does a copy that its call waits for: the CPU stages it.

What a synchronisation waits for is not recorded. It is taken to be the operation that ended last
before it returned, of those its process had launched before. If that ended before the call began,
there was nothing to wait for; a synchronisation of a stream would have waited for the last
operation that its thread launched. One of the device, and a call that releases memory, waits for
the last operation of every stream of the process. A copy that ended before its own call returned,
is not asynchronous, or whose memory is pageable, is waited for by its own call. A launch that takes
long while `QUEUE` operations have not started waits until one has. What is left of a call after its
wait is its own cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    KERNEL_WAIT_NS,
    is_launch,
    is_memory,
    is_sync,
    numbered_together,
    started_by,
)
from perfkit.analysis.grouping import grouped
from perfkit.analysis.intervals import Axis, Bool, Int, Window, bounds, ends

# What a call does, by rising weight: of a call and those nested in it the greatest counts.
OTHER, QUERY, LAUNCH, BLOCKING_COPY, MEMORY, FREE, EVENT_SYNC, STREAM_SYNC, DEVICE_SYNC = range(9)
POLL_NS = 100_000
RUN = 3


class Operations(NamedTuple):
    """Operations by stream and start.

    `call` is that of Calls, -1 where not recorded; `row` counts through KERNELS, then COPIES;
    `name` is the code of a kernel's full name, -1 of a copy.
    """

    start: Int
    end: Int
    rank: Int
    process: Int
    device: Int
    stream: Int
    call: Int
    row: Int
    name: Int

    @property
    def is_copy(self) -> Bool:
        """Whether it is a copy or memset."""
        return self.name < 0


class Calls(NamedTuple):
    """Outermost calls by thread and start; `row` is that of API_CALLS, `kind` one of the constants above."""

    start: Int
    end: Int
    rank: Int
    process: Int
    thread: Int
    row: Int
    kind: Int


class Program(NamedTuple):
    """Operations and the calls that started them."""

    ops: Operations
    calls: Calls

    @property
    def launched(self) -> Int:
        """When the call of each operation began; its own start where the call was not recorded."""
        return np.where(
            self.ops.call >= 0, np.append(self.calls.start, 0)[self.ops.call], self.ops.start
        )


class Handovers(NamedTuple):
    """A `call` begins `lag` ns after the call `after` of another thread has returned."""

    call: Int
    after: Int
    lag: Int


# The least delays and no inferred dependence; the model; and every unexplained delay kept.
LOW, MID, HIGH = VIEWS = (0, 1, 2)
SLACK_NS = KERNEL_WAIT_NS  # what HTA counts as the GPU's own delay
NONE = -(2**60)  # the lag of a dependence that does not hold
# Between two queued kernels of a device that shows none: in five captures by Nsight Systems and
# PyTorch's profiler a tenth of these distances is below 0.7 to 1.2 µs, and their medians are 0.8 to
# 2.0 µs.
USUAL_GAP_NS = 1_000
SMALL = 10  # per cent of the distances of a device are smaller than a small one
QUEUE = 1000  # of the 1,022 to 1,024 that HTA sees in a full queue
_LOOK_BACK = 8


class Lags(NamedTuple):
    """Per operation, ns, up to its start: `launch` from the start of its call, `space` from the end of its predecessor.

    `launch` and `space` have a row per view and are NONE without a call or predecessor; the typical
    ones are never longer than measured. `released` is when all that is known would have let it
    start. `held` is the first of a stream if it starts long after its call has returned: the GPU
    was at work before the recording began.
    """

    launch: Int
    space: Int
    typical_launch: Int
    typical_space: Int
    released: Int
    held: Bool


class HostWaits(NamedTuple):
    """A call returns `lag` ns after the end, or if `starts` the start, of an operation.

    `own`: the operation is the call's own copy. `sure`: the call waited, or does so by its nature.
    """

    call: Int
    op: Int
    lag: Int
    own: Bool
    starts: Bool
    sure: Bool

    def only(self, kept: Bool) -> HostWaits:
        """Return the waits that are kept."""
        return HostWaits._make(column[kept] for column in self)


def recorded(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
) -> Program:
    """Return the program of KERNELS, COPIES and API_CALLS.

    With a window these are the operations that start in it, and the calls from the first that
    launched one of them, or the start of the window, to its end.
    """
    process = numbered_together([kernels, copies, api_calls], ["rank", "process"])
    calls, outer = _outermost(api_calls, process[2])
    call = np.concatenate([started_by(table, api_calls) for table in (kernels, copies)])
    program = Program(_operations(kernels, copies, np.concatenate(process[:2]), outer[call]), calls)
    if window is None:
        return program
    # What belongs to the operations that start in the window.
    begin, end = bounds(window)
    ops, calls = program
    keep = (ops.start >= begin) & (ops.start < end)
    first = min(begin, int(program.launched[keep].min(initial=begin)))
    kept = (calls.start >= first) & (calls.start < end)
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
    ops = Operations(*(column[keep] for column in ops))
    return Program(ops._replace(call=number[ops.call]), Calls(*(column[kept] for column in calls)))


def _outermost(api_calls: pd.DataFrame, process: Int) -> tuple[Calls, Int]:
    """Return the outermost calls, and for each row of API_CALLS, and last for row -1, the number of its own."""
    (thread,) = numbered_together([api_calls], ["rank", "process", "thread"])
    start, end = ends(api_calls)
    order = np.lexsort((-end, start, thread))
    start, end, thread, kind = (
        start[order],
        end[order],
        thread[order],
        _kinds(api_calls["name"])[order],
    )
    axis = Axis.over(1 + int(thread.max(initial=0)), start, end)
    begin, finish = axis.at(thread, start), axis.at(thread, end)
    before = np.r_[-1, np.maximum.accumulate(finish)][: len(order)]
    polls = np.r_[
        False, (kind[1:] == QUERY) & (kind[:-1] == QUERY) & (begin[1:] - before[1:] <= POLL_NS)
    ][: len(order)]
    first = np.flatnonzero(((finish > before) | (begin >= before)) & ~polls)
    outer = np.full(len(order) + 1, -1, np.int64)
    outer[order] = np.cumsum(np.isin(np.arange(len(order)), first)) - 1
    if not len(first):
        return Calls(*[np.zeros(0, np.int64)] * 7), outer
    start, end, kind = (
        start[first],
        np.maximum.reduceat(end, first),
        np.maximum.reduceat(kind, first),
    )
    kind[
        (kind == QUERY) & (end - start > KERNEL_WAIT_NS) & np.logical_or.reduceat(polls, first)
    ] = EVENT_SYNC
    row = order[first]
    return Calls(
        start,
        end,
        api_calls["rank"].to_numpy(np.int64)[row],
        process[row],
        thread[first],
        row,
        kind,
    ), outer


def _kinds(names: pd.Series) -> Int:
    """Return what each call does by itself."""

    def kind(name: str) -> int:
        if is_sync(name):
            words = (
                ("EventSync", EVENT_SYNC),
                ("StreamSync", STREAM_SYNC),
                ("Sync", DEVICE_SYNC),
                ("", BLOCKING_COPY),
            )
            return next(kind for word, kind in words if word in name)
        if is_memory(name):
            return FREE if "Free" in name else MEMORY
        if is_launch(name):
            return LAUNCH
        return QUERY if "EventQuery" in name or "StreamQuery" in name else OTHER

    kinds = np.array([kind(str(name)) for name in names.cat.categories] + [OTHER], np.int64)
    return kinds[names.cat.codes.to_numpy()]


def _operations(kernels: pd.DataFrame, copies: pd.DataFrame, process: Int, call: Int) -> Operations:
    """Return the operations of both tables by stream and start."""
    rank, start, dur = (
        np.concatenate([table[column].to_numpy(np.int64) for table in (kernels, copies)])
        for column in ("rank", "start_ns", "dur_ns")
    )
    device, stream = (
        np.concatenate(numbered_together([kernels, copies], keys))
        for keys in (["rank", "gpu"], ["rank", "process", "gpu", "stream"])
    )
    name = np.r_[kernels["full_name"].cat.codes.to_numpy(np.int64), np.full(len(copies), -1)]
    order = np.lexsort((start + dur, start, stream))
    columns = (start, start + dur, rank, process, device, stream, call, np.arange(len(start)), name)
    return Operations(*(column[order] for column in columns))


def handovers(calls: Calls) -> Handovers:
    """Return the calls with which a thread goes on after another of its process; both launch work."""
    working = np.flatnonzero(np.isin(calls.thread, calls.thread[calls.kind == LAUNCH]))
    order = working[np.lexsort((calls.start[working], calls.process[working]))]
    thread, process = calls.thread[order], calls.process[order]
    begins = np.flatnonzero(np.diff(thread, prepend=-1))
    many = np.diff(begins, append=len(order)) >= RUN
    begins, many, before_many = begins[1:], many[1:], many[:-1]
    call, after = order[begins], order[begins - 1]
    first_of_thread = np.diff(calls.thread, prepend=-1)[call] != 0
    passed = first_of_thread | (many & before_many)
    passed &= (process[begins] == process[begins - 1]) & (calls.end[after] <= calls.start[call])
    return Handovers(call[passed], after[passed], (calls.start[call] - calls.end[after])[passed])


def launch_lags(program: Program, names: pd.Series, blocking: Bool) -> Lags:
    """Return the lags of each operation; `names` are those of API_CALLS.

    `blocking` tells copies their own call waits for: that call's length says nothing about the
    launch.
    """
    ops, calls = program
    before = predecessor(ops.stream)
    called, returned = (np.append(t, NONE)[ops.call] for t in (calls.start, calls.end))
    ended = np.append(ops.end, NONE)[before]
    has_call, has_before = ops.call >= 0, before >= 0
    offset = np.where(has_call, ops.start - called, NONE)
    gap = np.where(has_before, ops.start - ended, NONE)
    order = np.lexsort((ops.start, ops.call))
    first = np.zeros(len(order), bool)
    first[order] = np.diff(ops.call[order], prepend=-2) != 0
    alone = has_call & first & (ended <= called) & (ops.start <= returned + SLACK_NS)
    code = np.append(names.cat.codes.to_numpy(np.int64)[calls.row], -1)[ops.call]
    kind = pd.factorize((ops.rank * (len(names.cat.categories) + 1) + code + 1) * 2 + ops.is_copy)[
        0
    ]
    least_offset, usual = _of_kind(offset, kind, alone)
    slow = np.where(blocking, ended <= called, ended <= returned)
    launch = np.minimum(offset, np.where(slow, np.maximum(usual, returned - called), usual))
    queued = ~has_call | (ended >= called + launch)
    behind = queued & has_before & (gap <= SLACK_NS)
    small_gap, usual_gap = _gaps(gap, ops.device, behind)
    space = np.minimum(gap, usual_gap)
    released = np.where(has_call, np.maximum(called + launch, ended + space), ops.start)
    staged = blocking & has_before
    own = (ops.start - released <= SLACK_NS) | ~has_before | staged
    launches = (
        np.where(has_before, np.minimum(offset, least_offset), offset),
        np.where(own & ~queued, offset, launch),
        np.where(queued, launch, offset),
    )
    spaces = (
        np.where(has_call & ~staged, np.minimum(gap, small_gap), gap),
        np.where(own & queued, gap, space),
        np.where(queued, gap, space),
    )
    held = ~has_before & (ops.start > returned + SLACK_NS)
    return Lags(np.array(launches), np.array(spaces), launch, space, released, held)


def predecessor(stream: Int, among: Bool | None = None) -> Int:
    """Return for each row, in order of streams, the row before it (of those `among`) in its stream; else -1.

    >>> predecessor(np.array([0, 0, 0, 1])).tolist()
    [-1, 0, 1, -1]
    >>> predecessor(np.array([0, 0, 0, 1]), np.array([True, False, True, True])).tolist()
    [-1, 0, 0, -1]
    """
    row = np.arange(len(stream)) if among is None else np.where(among, np.arange(len(stream)), -1)
    latest = np.r_[-1, np.maximum.accumulate(row)][: len(row)]
    same = (latest >= 0) & (np.append(stream, -1)[latest] == stream)
    return np.where(same, latest, -1)


def _of_kind(values: Int, kind: Int, counted: Bool) -> tuple[Int, Int]:
    """Return least and median, at least 0, over the rows of each row's kind that count; 0 where none does."""
    statistics = grouped(values[counted], kind[counted], int(kind.max(initial=-1)) + 1)
    least, median = (
        np.maximum(np.nan_to_num(statistics[s].to_numpy("float64")), 0) for s in ("min", "median")
    )
    return np.rint(least).astype(np.int64)[kind], np.rint(median).astype(np.int64)[kind]


def _gaps(gap: Int, device: Int, counted: Bool) -> tuple[Int, Int]:
    """Return a small and the median distance on the device of each row, at least 0, over the rows that count."""
    shape = 1 + int(device.max(initial=-1))
    small = np.full(shape, USUAL_GAP_NS, np.int64)
    usual = small.copy()
    for number in np.unique(device[counted]).tolist():
        mine = gap[counted & (device == number)].clip(0)
        small[number], usual[number] = np.rint(np.percentile(mine, (SMALL, 50)))
    return small[device], usual[device]


def joined(sets: Sequence[HostWaits]) -> HostWaits:
    """Return the waits of several sets."""
    return HostWaits._make(map(np.concatenate, zip(*sets, strict=True)))


def host_waits(program: Program, own: HostWaits, latency: Int) -> tuple[HostWaits, Int]:
    """Return the waits, and the cost of each call, ns.

    `own` are the waits from `own_copies`; `latency` is the time from the start of its call until
    each operation could start, ns.
    """
    ops, calls = program
    cost = calls.end - calls.start
    queue = _full_queue(program)
    sync = np.flatnonzero(calls.kind >= FREE)
    last = _ended_last(program, sync)
    ended = np.append(ops.end, NONE)[last]
    waited = ended > calls.start[sync]
    cost[sync] = calls.end[sync] - np.maximum(ended, calls.start[sync])
    cost[own.call] = np.minimum(cost[own.call], np.maximum(latency[own.op], 0))
    cost[queue.call] = np.minimum(cost[queue.call], usual_launch(program))
    kind = calls.kind[sync]
    of_one, of_all = (
        np.isin(kind, (EVENT_SYNC, STREAM_SYNC)),
        (kind == DEVICE_SYNC) | ((kind == FREE) & waited),
    )
    idle = sync[of_one & ~waited]
    sets = [
        own,
        queue,
        _waits(sync[of_one & waited], last[of_one & waited], cost, True),
        _waits(idle, _launched_last(program, idle), cost, calls.kind[idle] == STREAM_SYNC),
        _waits(*_of_every_stream(program, sync[of_all]), cost, True),
    ]
    waits = joined(sets)
    # What ended only after the call had returned was not waited for, whatever the rule says.
    kept = (waits.op >= 0) & (
        waits.own | waits.starts | (np.append(ops.end, 0)[waits.op] <= calls.end[waits.call])
    )
    return waits.only(kept), cost


def usual_launch(program: Program) -> int:
    """Return the median time in a launch call, ns; 0 without any."""
    taken = (program.calls.end - program.calls.start)[program.calls.kind == LAUNCH]
    return int(np.median(taken)) if len(taken) else 0


def _waits(call: Int, op: Int, cost: Int, sure: Bool | bool) -> HostWaits:
    no = np.zeros(len(call), bool)
    return HostWaits(call, op, cost[call], no, no, no | sure)


def own_copies(program: Program, pageable: Bool) -> HostWaits:
    """Return the waits of calls for the copies they started; `pageable` tells those from or to pageable memory."""
    ops, calls = program
    blocking = calls.kind == BLOCKING_COPY
    op = np.flatnonzero(ops.is_copy & (ops.call >= 0))
    call = ops.call[op]
    begun = ops.start[op] < calls.end[call]
    waits = begun & (blocking[call] | pageable[op] | (ops.end[op] <= calls.end[call]))
    op, call = op[waits], call[waits]
    yes = np.ones(len(op), bool)
    return HostWaits(call, op, calls.end[call] - ops.end[op], yes, ~yes, yes)


def _full_queue(program: Program) -> HostWaits:
    """Return the waits of launches for the operation that started last before they returned."""
    ops, calls = program
    axis = Axis.over(1 + int(calls.process.max(initial=0)), calls.start, calls.end, ops.start)
    launched = np.sort(axis.at(ops.process, program.launched), kind="stable")
    starts = axis.at(ops.process, ops.start)
    order = np.argsort(starts, kind="stable")
    call = np.flatnonzero((calls.kind == LAUNCH) & (calls.end - calls.start > SLACK_NS))
    at = axis.at(calls.process[call], calls.start[call])
    call = call[np.searchsorted(launched, at) - np.searchsorted(starts[order], at) >= QUEUE]
    op = order[
        np.searchsorted(starts[order], axis.at(calls.process[call], calls.end[call]), side="right")
        - 1
    ]
    same = ops.process[op] == calls.process[call]
    call, op = call[same], op[same]
    yes = np.ones(len(call), bool)
    return HostWaits(call, op, calls.end[call] - ops.start[op], ~yes, yes, yes)


def _ended_last(program: Program, call: Int) -> Int:
    """Return the operation of the process that ended last before each call returned, launched before it; else -1."""
    ops, calls = program
    axis = Axis.over(1 + int(calls.process.max(initial=0)), ops.end, calls.end)
    ends, launched = axis.at(ops.process, ops.end), program.launched
    order = np.argsort(ends, kind="stable")
    place = (
        np.searchsorted(ends[order], axis.at(calls.process[call], calls.end[call]), side="right")
        - 1
    )
    last = np.full(len(call), -1, np.int64)
    left = np.arange(len(call))
    for _ in range(_LOOK_BACK):
        left = left[place[left] >= 0]
        op = order[place[left]]
        fits = (launched[op] < calls.start[call[left]]) & (
            ops.process[op] == calls.process[call[left]]
        )
        last[left[fits]] = op[fits]
        left = left[~fits]
        place[left] -= 1
    return last


def _launched_last(program: Program, call: Int) -> Int:
    """Return the operation that the thread of each call launched last before it; else -1."""
    ops, calls = program
    op = np.flatnonzero(ops.call >= 0)
    op = np.append(op[np.lexsort((ops.start[op], ops.call[op]))], -1)
    last = op[np.searchsorted(ops.call[op[:-1]], call) - 1]
    same = (last >= 0) & (
        np.append(calls.thread, -1)[np.append(ops.call, -1)[last]] == calls.thread[call]
    )
    return np.where(same, last, -1)


def _of_every_stream(program: Program, call: Int) -> tuple[Int, Int]:
    """Return each call and the last operation of every stream before it that its thread has not waited for yet."""
    ops, calls = program
    launched = program.launched
    bound = np.flatnonzero(np.diff(ops.stream, prepend=-1, append=-1))
    found = [(call[:0], call[:0])]
    for first, stop in pairwise(bound.tolist()):
        mine = call[calls.process[call] == ops.process[first]]
        latest = np.maximum.accumulate(launched[first:stop])
        op = first - 1 + np.searchsorted(latest, calls.start[mine])
        new = (np.diff(op, prepend=-1) != 0) | (np.diff(calls.thread[mine], prepend=-1) != 0)
        new &= op >= first
        found.append((mine[new], op[new]))
    calls_, ops_ = (np.concatenate(column) for column in zip(*found, strict=True))
    return calls_, ops_
