"""What do operations wait for that a change takes out of their stream, and who waits for them?

Conventions
-----------
Moved operations of one sort follow each other on a stream of their own per device. What comes after a moved operation
in its old stream waits for it no longer, except in the view HIGH, in which it is needed at once. A call
that waited for a moved copy waits for what came before it.

Functions
---------
moved_edges    what moved operations wait for, and what still waits for them
waits_under    the host's waits under a view
"""

from __future__ import annotations

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.lags import HIGH, predecessor
from perfkit.analysis.whatif.moments import Edges
from perfkit.analysis.whatif.plan import GONE, SENT, Plan
from perfkit.analysis.whatif.waits import HostWaits, joined


def moved_edges(plan: Plan, view: int, before: Int) -> list[Edges]:
    """Return the edges from and to moved operations, without their own time.

    `before` is the last operation that stays, before each one in its old stream; -1 without any.
    """
    ops, moved = plan.program.ops, plan.moved
    apart = np.flatnonzero(moved > GONE)
    line = (ops.device[apart] * 2 + ops.is_copy[apart]) * 4 + moved[apart]
    order = np.lexsort((ops.start[apart], line))
    line, apart = line[order], apart[order]
    behind = np.flatnonzero(np.diff(line, prepend=-1) == 0)
    follows = apart[(before[apart] >= 0) & ((moved[apart] == SENT) | (view == HIGH))]
    needs = np.flatnonzero((moved <= GONE) & (view == HIGH))
    needed = predecessor(ops.stream)[needs]
    needs = needs[(needed >= 0) & (np.append(moved, GONE)[needed] > GONE)]
    return [
        Edges(apart[behind], apart[behind - 1], np.zeros(len(behind), np.int64)),
        Edges(follows, before[follows], np.maximum(plan.lags.typical_space[follows], 0)),
        Edges(needs, needs - 1, plan.lags.typical_space[needs]),
        _held(plan, before),
    ]


def _held(plan: Plan, before: Int) -> Edges:
    """Keep what is first now from starting before what was first, where that found the stream at work."""
    ops, moved = plan.program.ops, plan.moved
    was = np.flatnonzero(plan.lags.held & (moved > GONE))
    now = np.flatnonzero((moved <= GONE) & (before < 0) & np.isin(ops.stream, ops.stream[was]))
    was = was[np.searchsorted(ops.stream[was], ops.stream[now])]
    return Edges(now, was, -plan.dur[was])


def waits_under(plan: Plan, view: int) -> HostWaits:
    """Return the waits that hold under a view: those that are not sure only in HIGH."""
    ops = plan.program.ops
    waits = plan.host_waits.only(plan.host_waits.sure | (view == HIGH))
    moved = plan.moved[waits.op]
    instead = waits._replace(op=predecessor(ops.stream, plan.moved <= GONE)[waits.op])
    replaced = (moved > GONE) & ~waits.own & (instead.op >= 0)
    kept = (moved <= GONE) | ~ops.is_copy[waits.op] | (view == HIGH)
    return joined([waits.only(kept), instead.only(replaced)])
