"""When could an operation start after its launch and its predecessor, and what did each call wait for?

Conventions
-----------
An operation is *released* by its call when that has begun and the launch latency has passed, and by its stream when the
predecessor has ended and the distance between two operations has passed. The typical latency of a kind (call and sort
of operation) is the median over calls that found the stream empty; where the stream was empty when the call returned
and the call was longer, it is the time in the call. The typical distance is the median on the device over operations
whose stream released them last. Both are 0 where nothing shows them.

What happens up to `SLACK_NS` after the last release is the GPU's own delay. What is longer is *unexplained*: something
not recorded held the operation up. The first operation of a stream starts as it did, and so, after its predecessor,
does a copy that its call waits for: the CPU stages it.

What a synchronisation waits for is not recorded. It is taken to be the operation that ended last before it returned, of
those its process had launched before. If that ended before the call began, there was nothing to wait for; a
synchronisation of a stream would have waited for the last operation that its thread launched. One of the device, and a
call that releases memory, waits for the last operation of every stream of the process. A copy that ended before its own
call returned, is not asynchronous, or whose memory is pageable, is waited for by its own call. A launch that takes long
while `QUEUE` operations have not started waits until one has. What is left of a call after its wait is its own cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import KERNEL_WAIT_NS, Axis
from perfkit.analysis.grouping import grouped
from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.program import (
    BLOCKING_COPY,
    DEVICE_SYNC,
    EVENT_SYNC,
    FREE,
    LAUNCH,
    STREAM_SYNC,
    Bool,
    Operations,
    Program,
)

# The least delays and no inferred dependence; the model; and every unexplained delay kept.
LOW, MID, HIGH = VIEWS = (0, 1, 2)
SLACK_NS = KERNEL_WAIT_NS  # what HTA counts as the GPU's own delay
NONE = -(2**60)  # the lag of a dependence that does not hold
QUEUE = 1000  # of the 1,022 to 1,024 that HTA sees in a full queue
_LOOK_BACK = 8


class Lags(NamedTuple):
    """Per operation, ns, up to its start: `launch` from the start of its call, `space` from the end of its predecessor.

    `launch` and `space` have a row per view and are NONE without a call or predecessor; the typical ones are never
    longer than measured. `released` is when all that is known would have let it start. `held` is the first of a stream
    if it starts long after its call has returned: the GPU was at work before the recording began.
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
        call, op, lag, own, starts, sure = self
        return HostWaits(call[kept], op[kept], lag[kept], own[kept], starts[kept], sure[kept])


def launch_lags(program: Program, names: pd.Series, blocking: Bool) -> Lags:
    """Return the lags of each operation; `names` are those of API_CALLS.

    `blocking` tells copies their own call waits for: that call's length says nothing about the launch.
    """
    ops, calls = program
    before = predecessor(ops.stream)
    called, returned = (np.append(t, NONE)[ops.call] for t in (calls.start, calls.end))
    ended = np.append(ops.end, NONE)[before]
    has_call, has_before = ops.call >= 0, before >= 0
    offset = np.where(has_call, ops.start - called, NONE)
    gap = np.where(has_before, ops.start - ended, NONE)
    alone = has_call & _first_of_call(ops) & (ended <= called) & (ops.start <= returned + SLACK_NS)
    least_offset, usual = _of_kind(offset, _kinds(program, names), alone)
    slow = np.where(blocking, ended <= called, ended <= returned)
    launch = np.minimum(offset, np.where(slow, np.maximum(usual, returned - called), usual))
    queued = ~has_call | (ended >= called + launch)
    least_gap, usual_gap = _of_kind(gap, ops.device, queued & has_before & (gap <= SLACK_NS))
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
        np.where(has_call & ~staged, np.minimum(gap, least_gap), gap),
        np.where(own & queued, gap, space),
        np.where(queued, gap, space),
    )
    held = ~has_before & (ops.start > returned + SLACK_NS)
    return Lags(np.array(launches), np.array(spaces), launch, space, released, held)


def predecessor(stream: Int, among: Bool | None = None) -> Int:
    """Return for each row, in order of streams, the row before it (of those `among`) in its stream; else -1.

    Examples
    --------
    >>> predecessor(np.array([0, 0, 0, 1])).tolist()
    [-1, 0, 1, -1]
    >>> predecessor(np.array([0, 0, 0, 1]), np.array([True, False, True, True])).tolist()
    [-1, 0, 0, -1]
    """
    row = np.arange(len(stream)) if among is None else np.where(among, np.arange(len(stream)), -1)
    latest = np.r_[-1, np.maximum.accumulate(row)][: len(row)]
    same = (latest >= 0) & (np.append(stream, -1)[latest] == stream)
    return np.where(same, latest, -1)


def _kinds(program: Program, names: pd.Series) -> Int:
    """Number the combinations of rank, call and sort of operation."""
    ops, calls = program
    code = np.append(names.cat.codes.to_numpy(np.int64)[calls.row], -1)[ops.call]
    key = (ops.rank * (len(names.cat.categories) + 1) + code + 1) * 2 + ops.is_copy
    return np.asarray(pd.factorize(key)[0], np.int64)


def _first_of_call(ops: Operations) -> Bool:
    """Tell the operations that are the first of their call to start."""
    order = np.lexsort((ops.start, ops.call))
    first = np.zeros(len(order), bool)
    first[order] = np.diff(ops.call[order], prepend=-2) != 0
    return first


def _of_kind(values: Int, kind: Int, counted: Bool) -> tuple[Int, Int]:
    """Return least and median, at least 0, over the rows of each row's kind that count; 0 where none does."""
    found = grouped(values[counted], kind[counted], int(kind.max(initial=-1)) + 1)
    least, median = (np.maximum(np.nan_to_num(found[s].to_numpy("float64")), 0) for s in ("min", "median"))
    return np.rint(least).astype(np.int64)[kind], np.rint(median).astype(np.int64)[kind]


def joined(sets: Sequence[HostWaits]) -> HostWaits:
    """Return the waits of several sets."""
    call, op, lag, own, starts, sure = (np.concatenate(columns) for columns in zip(*sets, strict=True))
    return HostWaits(call, op, lag, own, starts, sure)


def host_waits(program: Program, own: HostWaits, latency: Int) -> tuple[HostWaits, Int]:
    """Return the waits, and the cost of each call, ns.

    `own` are the waits from `own_copies`; `latency` is the time from the start of its call until each operation could
    start, ns.
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
    of_one, of_all = np.isin(kind, (EVENT_SYNC, STREAM_SYNC)), (kind == DEVICE_SYNC) | ((kind == FREE) & waited)
    idle = sync[of_one & ~waited]
    sets = [
        own,
        queue,
        _waits(sync[of_one & waited], last[of_one & waited], cost, True),
        _waits(idle, _launched_last(program, idle), cost, calls.kind[idle] == STREAM_SYNC),
        _waits(*_of_every_stream(program, sync[of_all]), cost, True),
    ]
    found = joined(sets)
    # What ended only after the call had returned was not waited for, whatever the rule says.
    kept = (found.op >= 0) & (found.own | found.starts | (np.append(ops.end, 0)[found.op] <= calls.end[found.call]))
    return found.only(kept), cost


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
    op = order[np.searchsorted(starts[order], axis.at(calls.process[call], calls.end[call]), side="right") - 1]
    call, op = call[(same := ops.process[op] == calls.process[call])], op[same]
    yes = np.ones(len(call), bool)
    return HostWaits(call, op, calls.end[call] - ops.start[op], ~yes, yes, yes)


def _ended_last(program: Program, call: Int) -> Int:
    """Return the operation of the process that ended last before each call returned, launched before it; else -1."""
    ops, calls = program
    axis = Axis.over(1 + int(calls.process.max(initial=0)), ops.end, calls.end)
    ends, launched = axis.at(ops.process, ops.end), program.launched
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], axis.at(calls.process[call], calls.end[call]), side="right") - 1
    found = np.full(len(call), -1, np.int64)
    left = np.arange(len(call))
    for _ in range(_LOOK_BACK):
        left = left[place[left] >= 0]
        op = order[place[left]]
        fits = (launched[op] < calls.start[call[left]]) & (ops.process[op] == calls.process[call[left]])
        found[left[fits]] = op[fits]
        left = left[~fits]
        place[left] -= 1
    return found


def _launched_last(program: Program, call: Int) -> Int:
    """Return the operation that the thread of each call launched last before it; else -1."""
    ops, calls = program
    op = np.flatnonzero(ops.call >= 0)
    op = np.append(op[np.lexsort((ops.start[op], ops.call[op]))], -1)
    found = op[np.searchsorted(ops.call[op[:-1]], call) - 1]
    same = (found >= 0) & (np.append(calls.thread, -1)[np.append(ops.call, -1)[found]] == calls.thread[call])
    return np.where(same, found, -1)


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
