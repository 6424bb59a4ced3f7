"""Which operations wait for those of other streams, or of other ranks?

Conventions
-----------
Events between streams are not recorded. An operation that starts within `RIGHT_AFTER_NS` after one of another stream
of its rank has ended, and later than all that is known to have released it, is taken to have waited for that one. It
surely has if both are copies of one device: they share an engine.

Of the communication kernels with the same name the k-th on each device belong together, if several devices have a k-th
and all are in it at one moment: none can leave it before all have come.

Functions
---------
stream_waits    operations that start when one of another stream has ended
meetings        communication kernels of several devices that wait for each other
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.waits import Axis
from perfkit.analysis.whatif.lags import Lags
from perfkit.analysis.whatif.program import Bool, Operations

RIGHT_AFTER_NS = 10_000  # the length of a small gap
_LOOK_BACK = 8


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
