"""What a program does and waits for, in a form that changes can be made to.

Events between streams are not recorded. An operation that starts within `RIGHT_AFTER_NS` after one of another stream of
its rank has ended, and later than all that is known to have released it, is taken to have waited for that one. It
surely has if both are copies of one device: they share an engine. Of the communication kernels with the same name the
k-th on each device belong together, if several devices have a k-th and all are in it at one moment: none can leave it
before all have come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import Axis
from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.program import (
    MID,
    NONE,
    Bool,
    Handovers,
    HostWaits,
    Lags,
    Operations,
    Program,
    handovers,
    host_waits,
    launch_lags,
    own_copies,
)

STAYS, GONE, FETCHED, SENT = range(4)
RIGHT_AFTER_NS = 10_000  # the length of a small gap
_LOOK_BACK = 8
_SLICE = 200_000  # edges as Python integers at a time: they take ten times the memory


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

    Per call: `gap`, the CPU's work before it; `doubtful_gap`, more of it, if a change saves less than it promises;
    `cost`, its own time; `ready`, the earliest time at which background work allows it, NONE without any. Per
    operation: `dur`; the `call` that launches it; lags `launch` and `space` as in `Lags`, a row per view; `moved`: it
    STAYS in its stream; or is GONE, which leaves a moment without length there; or has a stream of its own, FETCHED
    without waiting for what was before it, or SENT after it.
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


def as_recorded(program: Program, api_names: pd.Series, *, pageable: Bool, communicates: Bool) -> Plan:
    """Return the plan of a program as recorded; the flags tell copies of pageable memory, and communication kernels."""
    ops, calls = program
    own = own_copies(program, pageable)
    lags = launch_lags(program, api_names, np.isin(np.arange(len(ops.start)), own.op))
    waits, cost = host_waits(program, own, lags.typical_launch)
    between, passed = stream_waits(ops, lags), handovers(calls)
    gap = np.zeros(len(calls.start), np.int64)
    gap[1:] = np.where(calls.thread[1:] == calls.thread[:-1], calls.start[1:] - calls.end[:-1], 0)
    gap[passed.call] = passed.lag
    launch, space = lags.launch.copy(), lags.space.copy()
    # What another stream explains is neither latency nor distance.
    launch[MID:, between.op] = lags.typical_launch[between.op]
    space[MID:, between.op] = lags.typical_space[between.op]
    return Plan(
        program=program,
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
    _, number, size = np.unique(ops.name[op] * (len(op) + 1) + turn, return_inverse=True, return_counts=True)
    last_start, first_end = np.zeros(len(size), np.int64), np.full(len(size), np.iinfo(np.int64).max)
    np.maximum.at(last_start, number, ops.start[op])
    np.minimum.at(first_end, number, ops.end[op])
    together = ((size > 1) & (last_start < first_end))[number]
    return Meetings(op[together], np.unique(number[together], return_inverse=True)[1])


def moments(measured: Int, sort: Int, edges: Iterable[Edges]) -> Int:
    """Return the earliest time of each node that satisfies all edges, ns.

    Edges point forward in the order in which the nodes were `measured`, at the same time in that of `sort`; those that
    do not, and those of lag NONE, are left out. A node without any edge stays where it was.
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
        for at, before, after in zip(to[part].tolist(), source[part].tolist(), lag[part].tolist(), strict=True):
            if (reached := time[before] + after) > time[at]:
                time[at] = reached
    times = measured.copy()
    times[node] = time
    return times
