"""Sets of time intervals, per group: union, intersection, difference and total length.

Conventions
-----------
An interval is half open, [start, end), in int64 nanoseconds. A *set* (`Intervals`) is sorted by
(group, start) and holds no overlapping, touching or empty intervals within a group. Groups are
small integers (a device, a stream); one pass handles all of them.

Functions
---------
union       merge intervals that overlap or touch
intersect   time in both sets
subtract    time in the first set and not in the second
clip        the part of a set inside a window
total       length of a set per group
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


class Intervals(NamedTuple):
    """A set of disjoint intervals: three int64 arrays of one length."""

    start: Int
    end: Int
    group: Int


def union(start: Int, end: Int, group: Int | None = None) -> Intervals:
    """Return the set covered by the intervals [start, end), which may overlap and be in any order.

    Parameters
    ----------
    start, end
        int64 ns; an interval with ``end <= start`` covers nothing.
    group
        int64, one per interval; all 0 when omitted.

    Examples
    --------
    >>> covered = union(np.array([10, 20, 45]), np.array([30, 40, 60]))
    >>> covered.start.tolist(), covered.end.tolist()
    ([10, 45], [40, 60])
    """
    group = np.zeros(len(start), np.int64) if group is None else group.astype(np.int64, copy=False)
    keep = end > start
    if not keep.all():
        start, end, group = start[keep], end[keep], group[keep]
    if not len(start):
        return Intervals(*(np.zeros(0, np.int64) for _ in range(3)))
    if not _ordered(start, group):
        order = np.lexsort((start, group))
        start, end, group = start[order], end[order], group[order]
    reach = _running_end(end, group)
    first = np.flatnonzero((start[1:] > reach[:-1]) | (group[1:] != group[:-1])) + 1
    return Intervals(start[np.r_[0, first]], reach[np.r_[first - 1, len(reach) - 1]], group[np.r_[0, first]])


def _ordered(start: Int, group: Int) -> bool:
    step = np.diff(group)
    return bool(((step > 0) | ((step == 0) & (start[1:] >= start[:-1]))).all())


def _running_end(end: Int, group: Int) -> Int:
    """Running maximum of `end` that starts anew in each group (groups must be ascending)."""
    if group[0] == group[-1]:
        return np.maximum.accumulate(end)
    number = np.r_[0, np.cumsum(np.diff(group) != 0)]
    span = int(end.max() - end.min()) + 1
    shift = number * span - int(end.min())
    return np.maximum.accumulate(end + shift) - shift


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that lies in both sets, group by group.

    Examples
    --------
    >>> both = intersect(union(np.array([0]), np.array([50])), union(np.array([40]), np.array([90])))
    >>> both.start.tolist(), both.end.tolist()
    ([40], [50])
    """
    low, span = _axis(a, b)
    return _common(a, _shifted(a, low, span), _shifted(b, low, span), low, span)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that lies in `a` and not in `b`, group by group.

    Examples
    --------
    >>> rest = subtract(union(np.array([0]), np.array([50])), union(np.array([10]), np.array([20])))
    >>> rest.start.tolist(), rest.end.tolist()
    ([0, 20], [10, 50])
    """
    low, span = _axis(a, b)
    start, end = _shifted(b, low, span)
    edge = span * (1 + int(max(a.group.max(initial=0), b.group.max(initial=0))))
    return _common(a, _shifted(a, low, span), (np.r_[0, end], np.r_[start, edge]), low, span)


def _axis(a: Intervals, b: Intervals) -> tuple[int, int]:
    """Return origin and length of one group's stretch when all groups are laid end to end."""
    low = min(int(s.start.min(initial=0)) for s in (a, b))
    return low, max(int(s.end.max(initial=0)) for s in (a, b)) - low + 1


def _shifted(a: Intervals, low: int, span: int) -> tuple[Int, Int]:
    offset = a.group * span - low
    return a.start + offset, a.end + offset


def _common(a: Intervals, on_axis: tuple[Int, Int], other: tuple[Int, Int], low: int, span: int) -> Intervals:
    """Cut the intervals of `a`, given again on the common axis, with the sorted intervals `other`."""
    first = np.searchsorted(other[1], on_axis[0], side="right")
    count = np.maximum(np.searchsorted(other[0], on_axis[1], side="left") - first, 0)
    of_a = np.repeat(np.arange(len(count)), count)
    of_other = np.arange(len(of_a)) - np.repeat(np.cumsum(count) - count, count) + first[of_a]
    group = a.group[of_a]
    offset = group * span - low
    start = np.maximum(on_axis[0][of_a], other[0][of_other]) - offset
    end = np.minimum(on_axis[1][of_a], other[1][of_other]) - offset
    keep = end > start
    return Intervals(start[keep], end[keep], group[keep])


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the part of the set inside [start, end)."""
    return union(np.maximum(a.start, start), np.minimum(a.end, end), a.group)


def total(a: Intervals, groups: int) -> Int:
    """Return the length of the set in each of the groups 0 .. groups-1, ns, exact int64.

    Examples
    --------
    >>> total(union(np.array([0, 5]), np.array([4, 9]), np.array([0, 2])), groups=3).tolist()
    [4, 0, 4]
    """
    running = np.r_[0, np.cumsum(a.end - a.start)]
    first = np.searchsorted(a.group, np.arange(groups), side="left")
    last = np.searchsorted(a.group, np.arange(groups), side="right")
    return np.asarray(running[last] - running[first], np.int64)
