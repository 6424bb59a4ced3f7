"""Which calls waited for which operations?

Conventions
-----------
What a synchronisation waits for is not recorded. It is taken to be the operation that ended last before it returned,
of those its process had launched before. If that ended before the call began, there was nothing to wait for; a
synchronisation of a stream would have waited for the last operation that its thread launched. One of the device, and
a call that releases memory, waits for the last operation of every stream of the process. A copy that ended
before its own call returned, is not asynchronous, or whose memory is pageable, is waited for by its own
call. A launch that takes long while `QUEUE` operations have not started waits until one has. What is left of a call
after its wait is its own cost.

Functions
---------
own_copies      calls that waited for their own copy
host_waits      calls that waited, or would have, for operations, and what calls cost by themselves
usual_launch    what a launch costs
joined          several sets of waits as one
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.waits import Axis
from perfkit.analysis.whatif.lags import NONE, SLACK_NS
from perfkit.analysis.whatif.program import (
    BLOCKING_COPY,
    DEVICE_SYNC,
    EVENT_SYNC,
    FREE,
    LAUNCH,
    STREAM_SYNC,
    Bool,
    Program,
)

QUEUE = 1000  # of the 1,022 to 1,024 that HTA sees in a full queue
_LOOK_BACK = 8


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


def joined(sets: Sequence[HostWaits]) -> HostWaits:
    """Return the waits of several sets."""
    call, op, lag, own, starts, sure = (np.concatenate(columns) for columns in zip(*sets, strict=True))
    return HostWaits(call, op, lag, own, starts, sure)


def host_waits(program: Program, own: HostWaits, latency: Int) -> tuple[HostWaits, Int]:
    """Return the waits, and the cost of each call, ns.

    Parameters
    ----------
    program
        What was recorded.
    own
        What `own_copies` returned.
    latency
        Time from the start of its call until each operation could start, ns.
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
    calls = program.calls
    taken = (calls.end - calls.start)[calls.kind == LAUNCH]
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
    """Return for each call the last operation of each stream of its process that was launched before it.

    One for which an earlier of these calls of the same thread has waited already is left out.
    """
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
