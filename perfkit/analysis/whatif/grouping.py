"""Which launches become one when they are fused or put in a graph?

Functions
---------
alter_launches    make one launch of those that follow each other
launching         calls that launch some operations and no others
"""

from __future__ import annotations

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.changes import Launches
from perfkit.analysis.whatif.lags import NONE
from perfkit.analysis.whatif.plan import STAYS, Plan
from perfkit.analysis.whatif.program import LAUNCH, MEMORY, Bool


def alter_launches(plan: Plan, change: Launches, kernels: Bool) -> int:
    """Let one call launch what a group of calls did; return how many calls are saved.

    `kernels` tells the operations that may be in a group; a graph takes all copies and memsets nobody waits for, too.
    """
    calls, waits = plan.program.calls, plan.host_waits
    members = launching(plan, kernels | (plan.program.ops.is_copy & (change.measure == "graph")))
    members &= calls.kind == LAUNCH
    members[waits.call[waits.own]] = False
    call, first = _groups(plan, change, members)
    follows = np.flatnonzero(first != call)
    leader = np.arange(len(members) + 1)
    leader[call[follows]] = first[follows]
    between = np.zeros(len(members) + 1, np.int64)
    np.add.at(between, call[follows - 1] + 1, 1)
    np.add.at(between, call[follows] + 1, -1)
    gone = np.cumsum(between)[:-1] > 0
    if change.measure == "fused":
        plan.doubtful_gap[gone] += plan.gap[gone]
    plan.gap[gone] = plan.cost[gone] = 0
    plan.host_waits = waits.only(~gone[waits.call])  # of a full queue
    _relaunch(plan, np.append(leader[:-1], -1), fused=change.measure == "fused")
    return len(follows)


def launching(plan: Plan, ops: Bool) -> Bool:
    """Tell the calls that launch such operations and no others."""
    called = plan.call >= 0
    calls = len(plan.program.calls.start)
    launched, meant = (np.bincount(plan.call[rows], minlength=calls) for rows in (called, ops & called))
    return np.asarray((launched > 0) & (launched == meant), np.bool_)


def _groups(plan: Plan, change: Launches, members: Bool) -> tuple[Int, Int]:
    """Return the calls that are members, in order, and the first of the group of each."""
    calls = plan.program.calls
    ends_group = ((calls.kind >= LAUNCH) & ~members) | (calls.kind >= MEMORY)
    ends_group[plan.handovers.call] = True
    call = np.flatnonzero(members)
    broken, worked = np.cumsum(ends_group)[call], np.cumsum(plan.gap)[call]
    new = np.diff(calls.thread[call], prepend=-1) != 0
    new[1:] |= (np.diff(broken) != 0) | (np.diff(worked) > change.at_most_gap_ns)
    place = np.arange(len(call))
    if change.at_most:
        new |= (place - np.maximum.accumulate(np.where(new, place, 0))) % change.at_most == 0
    return call, call[np.maximum.accumulate(np.where(new, place, 0))]


def _relaunch(plan: Plan, leader: Int, *, fused: bool) -> None:
    """Launch operations by the leaders of their calls, and keep no more than the usual distance between them."""
    ops = plan.program.ops
    op = np.flatnonzero((plan.call >= 0) & (leader[plan.call] != plan.call) & (plan.moved == STAYS))
    plan.call[op] = leader[plan.call[op]]
    held = ops.start[op] - plan.program.calls.start[plan.call[op]]
    for view in range(len(plan.launch)):
        led = np.flatnonzero((ops.call >= 0) & ~plan.lags.held & (plan.launch[view] > NONE))
        latency = np.full(len(leader), np.iinfo(np.int64).max)
        np.minimum.at(latency, ops.call[led], plan.launch[view, led])
        latency[latency == np.iinfo(np.int64).max] = 0
        plan.launch[view, op] = np.where(plan.lags.held[op], held, latency[plan.call[op]])
        plan.space[view, op] = np.minimum(plan.space[view, op], 0 if fused else plan.lags.typical_space[op])
