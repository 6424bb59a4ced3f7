"""What did a CPU thread do while somebody waited for it?

Conventions
-----------
A *wait* is a stretch [first, last) of one thread. All threads lie end to end on one `Axis`, so that
a single sorted array answers for all of them; first and last are positions on it (0 and up), last > first.

Functions
---------
placed      the rows of a table as intervals on the axis
covered     how much of each wait a set of intervals covers
longest     the interval that covers most of each wait
innermost   the innermost interval that covers at least half of each wait
members     the rows of several runs of consecutive rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int, Intervals
from perfkit.errors import PerfkitError


@dataclass(frozen=True)
class Axis:
    """One axis on which the stretches [low, low + span) of all groups (threads, devices) lie end to end."""

    low: int
    span: int

    @classmethod
    def over(cls, groups: int, *times: Int) -> Axis:
        """Return the axis that holds the times of groups 0 .. groups-1.

        Raises
        ------
        PerfkitError
            If the groups laid end to end do not fit into int64.

        Examples
        --------
        >>> Axis.over(2, np.array([100, 140]), np.array([190]))
        Axis(low=100, span=91)
        """
        low = min((int(t.min()) for t in times if len(t)), default=0)
        span = max((int(t.max()) for t in times if len(t)), default=0) - low + 1
        if groups * span > np.iinfo(np.int64).max:
            raise PerfkitError(
                f"times: {groups} threads or devices of {span} ns each do not fit into int64. "
                "Count times from the start of the capture."
            )
        return cls(low, span)

    def at(self, group: Int, time: Int) -> Int:
        """Return the position of each time, all of which must be on the axis, in the stretch of its group."""
        return np.asarray(group * self.span + (time - self.low), np.int64)


class Placed(NamedTuple):
    """Intervals on an axis, by start, the longest first of those that start together, with their table row."""

    start: Int
    end: Int
    row: Int


def placed(frame: pd.DataFrame, group: Int, axis: Axis) -> Placed:
    """Return the rows of a table with start_ns and dur_ns that are not empty as intervals on the axis."""
    row = np.flatnonzero(frame["dur_ns"].to_numpy() > 0)
    start = axis.at(group, frame["start_ns"].to_numpy())[row]
    end = start + frame["dur_ns"].to_numpy()[row]
    step = np.diff(start)
    if not ((step > 0) | ((step == 0) & (end[1:] <= end[:-1]))).all():
        order = np.lexsort((-end, start))
        row, start, end = row[order], start[order], end[order]
    return Placed(start, end, row)


def covered(cover: Intervals, first: Int, last: Int) -> Int:
    """Return how much of each wait the disjoint intervals cover, ns.

    Examples
    --------
    >>> cover = Intervals(np.array([10, 40]), np.array([20, 60]), np.array([0, 0]))
    >>> covered(cover, np.array([0, 15]), np.array([50, 40])).tolist()
    [20, 5]
    """
    return _covered_before(cover, last) - _covered_before(cover, first)


def _covered_before(cover: Intervals, time: Int) -> Int:
    begun = np.searchsorted(cover.start, time, side="right")
    beyond = np.maximum(np.r_[0, cover.end][begun] - time, 0)
    return np.asarray(np.r_[0, np.cumsum(cover.end - cover.start)][begun] - beyond, np.int64)


def longest(intervals: Placed, first: Int, last: Int) -> Int:
    """Return the table row of the interval that covers most of each wait, -1 where none covers any.

    Of several that cover as much, the one that starts first counts.

    Examples
    --------
    >>> calls = Placed(np.array([0, 30]), np.array([20, 90]), np.array([7, 8]))
    >>> longest(calls, np.array([10, 5, 20]), np.array([50, 33, 30])).tolist()
    [8, 7, -1]
    """
    # An interval inside an earlier one never covers more than that; without such, the ends ascend too.
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

    Examples
    --------
    >>> [a.tolist() for a in members(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    run = np.repeat(np.arange(len(count)), count)
    return run, np.arange(len(run)) + np.repeat(first - np.cumsum(count) + count, count)


def innermost(intervals: Placed, first: Int, last: Int) -> Int:
    """Return the table row of the innermost interval that covers at least half of each wait, -1 where none does.

    Intervals of a thread are expected to nest; where two overlap in part, the later is taken for the inner one.

    Examples
    --------
    >>> ranges = Placed(np.array([0, 10]), np.array([100, 40]), np.array([3, 4]))
    >>> innermost(ranges, np.array([12, 30]), np.array([60, 60])).tolist()
    [4, 3]
    """
    parent = _parents(intervals)
    found = np.full(len(first), -1, np.int64)
    wait = np.arange(len(first))
    # What covers more than half of a wait contains its middle: climb from the last interval begun by then.
    place = np.searchsorted(intervals.start, first + (last - first) // 2, side="right") - 1
    while len(wait := wait[place >= 0]):
        place = place[place >= 0]
        overlap = np.minimum(intervals.end[place], last[wait]) - np.maximum(intervals.start[place], first[wait])
        enough = 2 * overlap >= last[wait] - first[wait]
        found[wait[enough]] = intervals.row[place[enough]]
        wait, place = wait[~enough], parent[place[~enough]]
    return found


def _parents(intervals: Placed) -> Int:
    """Return the place of the enclosing interval of each interval, -1 at the top."""
    places = np.arange(len(intervals.start))
    level = places - np.searchsorted(np.sort(intervals.end), intervals.start, side="right")
    order = np.argsort(level, kind="stable")
    bounds = np.searchsorted(level[order], np.arange(int(level.max(initial=-1)) + 2))
    parent = np.full(len(places), -1, np.int64)
    for below, above, beyond in zip(bounds, bounds[1:], bounds[2:], strict=False):
        inner = order[above:beyond]
        parent[inner] = order[below + np.searchsorted(order[below:above], inner) - 1]
    return parent
