"""Sets of time intervals, per group: union, intersection, difference and total length.

An interval is half open, [start, end), in int64 nanoseconds. A *set* (`Intervals`) is sorted by
(group, start) and holds no overlapping, touching or empty intervals within a group. Groups are
small integers (a device, a stream); one pass handles all of them. Groups that do not fit into int64
when laid end to end raise PerfkitError. Starts and ends are sorted each on their own: at any time
the number of starts so far minus the number of ends so far says how many intervals are open,
whichever end belongs to whichever start. A stable sort costs next to nothing on what is in order
already, or made of a few ordered runs.

A window is (start_ns, end_ns), half open, two integers; `bounds` raises ValueError for anything
else. Intervals are cut at its edges. Without a window all devices of a rank are seen from the start
of the first to the end of the last operation of any of them: one that has nothing to do while
another one works is idle.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.errors import PerfkitError
from perfkit.schema import stretches

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Float = NDArray[np.float64]
BLOCK = 1 << 20  # intervals at once, so that what is made of each in between takes little memory


class Intervals(NamedTuple):
    """A set of disjoint intervals: three int64 arrays of one length."""

    start: Int
    end: Int
    group: Int


class Axis(NamedTuple):
    """One axis on which the stretches [low, low + span) of all groups (threads, devices) lie end to end."""

    low: int
    span: int

    @classmethod
    def over(cls, groups: int, *times: Int) -> "Axis":
        """Return the axis that holds the times of groups 0 .. groups-1, or raise PerfkitError if int64 cannot.

        >>> Axis.over(2, np.array([100, 140]), np.array([190]))
        Axis(low=100, span=91)
        """
        low = min((int(t.min()) for t in times if len(t)), default=0)
        span = max((int(t.max()) for t in times if len(t)), default=0) - low + 1
        if span * groups + abs(low) > np.iinfo(np.int64).max:
            raise PerfkitError(
                f"intervals: {groups} groups of {span} ns each do not fit into int64. Number the "
                "groups from 0, and count times from the start of the capture."
            )
        return cls(low, span)

    def at(self, group: Int, time: Int) -> Int:
        """Return the position of each time, all of which must be on the axis, in the stretch of its group."""
        place = np.multiply(group, self.span, dtype=np.int64)
        place -= self.low  # in place: pages of memory cost more than the sums
        place += time
        return place

    def placed(self, a: Intervals) -> tuple[Int, Int]:
        """Return the positions of the starts and of the ends."""
        return self.at(a.group, a.start), self.at(a.group, a.end)

    def intervals(self, begin: Int, finish: Int) -> Intervals:
        """Return intervals, in the arrays of their ascending places; to divide each takes longer than to search."""
        low, high = (
            int(place) // self.span for place in (begin[[0, -1]] if len(begin) else (0, 0))
        )
        if high - low > len(begin):
            group = begin // self.span
        else:
            groups = np.arange(low, high + 1)
            group = np.repeat(
                groups, np.diff(np.searchsorted(begin, groups * self.span), append=len(begin))
            )
        offset = group * self.span
        offset -= self.low
        begin -= offset
        finish -= offset
        return Intervals(begin, finish, group)


Window = tuple[int, int]
# One window, or one of each rank: a rank's holds all of its operations, so that nothing is cut.
Windows = Window | Mapping[int, Window]


def union(start: Int, end: Int, group: Int | None = None) -> Intervals:
    """Return the set covered by the intervals [start, end), int64 ns, which may overlap and be in any order.

    An interval with ``end <= start`` covers nothing. All are in group 0 when `group` is omitted.

    >>> covered = union(np.array([10, 20, 45]), np.array([30, 40, 60]))
    >>> covered.start.tolist(), covered.end.tolist()
    ([10, 45], [40, 60])
    """
    keep = end > start
    if not keep.all():
        start, end, group = start[keep], end[keep], None if group is None else group[keep]
    if group is None:
        begin, finish = _covered(np.sort(start, kind="stable"), np.sort(end, kind="stable"))
        return Intervals(begin, finish, np.zeros(len(begin), np.int64))
    sets = [Intervals(start, end, group.astype(np.int64, copy=False))]
    del start, end, group
    return _joined(sets)


def _covered(begin: Int, finish: Int) -> tuple[Int, Int]:
    """Return the starts and the ends, ascending, of what intervals cover that have these sorted starts and ends.

    Where all earlier intervals have ended before a start, nothing is open, and a new one begins.
    """
    new = np.ones(len(begin) + 1, bool)
    np.greater(begin[1:], finish[:-1], out=new[1:-1])
    return begin[new[:-1]], finish[new[1:]]


def merge(a: Intervals, *others: Intervals) -> Intervals:
    """Return the time that lies in any of the sets, group by group."""
    filled = [s for s in (a, *others) if len(s.start)]
    if len(filled) < 2:
        return filled[0] if filled else a
    return _joined(filled)


def _joined(sets: list[Intervals]) -> Intervals:
    """Return the time that lies in any of the intervals, which may overlap but are not empty; lets go of the sets."""
    axis = _axis(*sets)
    order: Int | slice = slice(None)
    group = sets[0].group
    # Interleaved groups sort slowly with their times; 16-bit integers are sorted by radix.
    if (
        len(sets) == 1
        and (group[1:] < group[:-1]).any()
        and group.max() - (low := group.min()) < 2**16
    ):
        order = np.argsort((group - low).astype(np.uint16), kind="stable")
    begin, finish = (
        of[0] if len(of) == 1 else np.concatenate(of)
        for of in zip(*map(axis.placed, sets), strict=True)
    )
    sets.clear()
    begin = begin[order]
    finish = finish[order]
    del order  # and whatever else memory need not hold meanwhile
    begin.sort(kind="stable")
    finish.sort(kind="stable")
    begin, finish = _covered(begin, finish)
    return axis.intervals(begin, finish)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that lies in both sets, group by group."""
    axis = _axis(a, b)
    (a_begin, a_finish), (b_begin, b_finish) = axis.placed(a), axis.placed(b)
    return axis.intervals(
        *_twice(np.concatenate([a_begin, b_begin]), np.concatenate([a_finish, b_finish]))
    )


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that lies in `a` and not in `b`, group by group."""
    axis = _axis(a, b)
    (begin, finish), (b_begin, b_finish) = axis.placed(a), axis.placed(b)
    ever = np.iinfo(np.int64)
    # The complement of b starts where b ends, and the other way round.
    return axis.intervals(
        *_twice(np.r_[begin, ever.min, b_finish], np.r_[finish, b_begin, ever.max])
    )


def _twice(begin: Int, finish: Int) -> tuple[Int, Int]:
    """Return the time covered twice by intervals of which at most two overlap anywhere; sorts the arrays in place."""
    begin.sort(kind="stable")
    finish.sort(kind="stable")
    begin, finish = begin[1:], finish[:-1]
    keep = begin < finish
    return begin[keep], finish[keep]


def _axis(*sets: Intervals) -> Axis:
    """Return an axis on which the groups of all sets neither overlap nor touch."""
    groups = 1 + max(
        (max(int(s.group.max()), -int(s.group.min())) for s in sets if len(s.group)), default=0
    )
    return Axis.over(groups, *(times for s in sets for times in (s.start, s.end)))


def total(a: Intervals, groups: int) -> Int:
    """Return the length of the set in each of the groups 0 .. groups-1, ns, exact int64.

    >>> total(union(np.array([0, 5]), np.array([4, 9]), np.array([0, 2])), groups=3).tolist()
    [4, 0, 4]
    """
    running = np.r_[0, np.cumsum(a.end - a.start)]
    first = np.searchsorted(a.group, np.arange(groups), side="left")
    return np.asarray(
        running[np.searchsorted(a.group, np.arange(groups), side="right")] - running[first],
        np.int64,
    )


def binned(a: Intervals, edges: Int) -> tuple[Int, Int, Int]:
    """Return group, bin and length (ns, above 0) wherever the set has time in a bin, in that order.

    Bin i is [edges[i], edges[i + 1]); the edges ascend and enclose the set. Costs one step per
    interval and per row of the answer, however many bins there are.

    >>> group, at, length = binned(union(np.array([5]), np.array([25])), np.array([0, 10, 20, 30]))
    >>> at.tolist(), length.tolist()
    ([0, 1, 2], [5, 10, 5])
    """
    parts = []
    for low in range(0, max(len(a.start), 1), BLOCK):
        start, end, group = (column[low : low + BLOCK] for column in a)
        first = np.searchsorted(edges, start, side="right") - 1
        count = np.searchsorted(edges, end, side="left") - first
        of = np.repeat(np.arange(len(count)), count)
        at = np.arange(len(of)) - np.repeat(np.cumsum(count) - count - first, count)
        parts.append(
            _summed(
                group[of], at, np.minimum(end[of], edges[1:][at]) - np.maximum(start[of], edges[at])
            )
        )
    return _summed(*map(np.concatenate, zip(*parts, strict=True)))


def _summed(group: Int, at: Int, length: Int) -> tuple[Int, Int, Int]:
    """Return the sum of the lengths wherever group and bin change."""
    if not len(at):
        return group, at, length
    new = np.flatnonzero(np.diff(group, prepend=-1) | np.diff(at, prepend=-1))
    return group[new], at[new], np.add.reduceat(length, new)


def share(part: Int, whole: Int) -> Float:
    """Return `part` as a fraction of `whole`, element by element: float64 in 0..1, NaN where `whole` is 0.

    A part that is negative or exceeds its whole raises PerfkitError: the numbers contradict each
    other.

    >>> share(np.array([60, 0]), np.array([100, 0])).tolist()
    [0.6, nan]
    """
    wrong = np.flatnonzero((part < 0) | (part > whole))
    if len(wrong):
        at = wrong[0]
        raise PerfkitError(
            f"share: {part[at]} ns of {whole[at]} ns is not in 0..1. Check the times of the "
            "capture."
        )
    fraction = np.full(len(part), np.nan)
    np.divide(part, whole, out=fraction, where=whole != 0)
    return fraction


def bounds(window: Window) -> Window:
    """Return the window if it is one, else raise ValueError."""
    first, last = window
    if not all(isinstance(edge, int | np.integer) for edge in window):
        raise ValueError(f"window: {window} is not two integers, ns since the start of the capture")
    if last <= first:
        raise ValueError(f"window: {window} does not end after it starts")
    return first, last


def cut(frame: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Return the rows that overlap the window, cut at its edges; an empty one is kept where it starts in the window."""
    if window is None:
        return frame
    (first, last), (start, end) = bounds(window), ends(frame)
    inside = (start < last) & ((end > first) | ((start == end) & (start >= first)))
    if inside.all() and (len(start) == 0 or (start.min() >= first and end.max() <= last)):
        return frame
    begin, finish = np.maximum(start[inside], first), np.minimum(end[inside], last)
    kept: pd.DataFrame = frame[inside].assign(start_ns=begin, dur_ns=finish - begin)
    return kept.reset_index(drop=True)


def ends(frame: pd.DataFrame, window: Windows | None = None) -> tuple[Int, Int]:
    """Return start and end of every row, int64 ns, cut at the window's edges; ``end <= start`` outside of it."""
    start = frame["start_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    if window is None or isinstance(window, Mapping):
        return start, end
    first, last = bounds(window)
    return np.maximum(start, first), np.minimum(end, last)


def devices(*frames: pd.DataFrame) -> tuple[pd.DataFrame, list[Int]]:
    """Number the (rank, gpu) pairs of several tables: pairs, ascending, and the number of each row of each frame."""
    pairs = [(f["rank"].to_numpy(), f["gpu"].to_numpy()) for f in frames]
    heads = [stretches(pair, len(f)) for pair, f in zip(pairs, frames, strict=True)]
    keys = [device_key(rank[at], gpu[at]) for (rank, gpu), at in zip(pairs, heads, strict=True)]
    distinct = np.unique(np.concatenate(keys))
    index = pd.DataFrame(
        {"rank": distinct >> 32, "gpu": (distinct & 0xFFFFFFFF) - 2**31}, dtype="int32"
    )
    lengths = [np.diff(at, append=len(f)) for at, f in zip(heads, frames, strict=True)]
    return index, [
        np.repeat(np.searchsorted(distinct, k), n) for k, n in zip(keys, lengths, strict=True)
    ]


def device_key(rank: NDArray[np.integer], gpu: NDArray[np.integer]) -> Int:
    """Return one integer per pair that sorts like the pair, gpu -1 before gpu 0."""
    return (rank.astype(np.int64) << 32) | (gpu.astype(np.int64) + 2**31)


def spans(
    frames: list[pd.DataFrame],
    groups: list[Int],
    count: int,
    window: Windows | None,
    *,
    own: bool = False,
) -> tuple[Int, Int]:
    """Return the start and end (int64 ns) of each device's window: the given one, else its rank's, or its `own`."""
    if window is not None and not isinstance(window, Mapping):
        first, last = bounds(window)
        return np.full(count, first, np.int64), np.full(count, last, np.int64)
    start = np.full(count, np.iinfo(np.int64).max)
    end, rank = np.full(count, np.iinfo(np.int64).min), np.zeros(count, np.int64)
    for frame, group in zip(frames, groups, strict=True):
        begin, finish = ends(frame, None)
        rank[group] = frame["rank"].to_numpy()
        np.minimum.at(start, group, begin)
        np.maximum.at(end, group, finish)
    if own:
        return start, end
    for one in np.unique(rank).tolist():
        mine = rank == one
        whole = int(start[mine].min()), int(end[mine].max())
        start[mine], end[mine] = (window or {}).get(one, whole)
    return start, end


def tiles(window: Window, bins: int) -> Int:
    """Return the edges (int64 ns) of equal bins that tile a window, one more than there are bins.

    Widths differ by at most 1 ns. There are `bins`, at least 1, and no more than the window has
    nanoseconds.

    >>> tiles((10, 20), 4).tolist(), tiles((0, 2), 9).tolist()
    ([10, 12, 15, 17, 20], [0, 1, 2])
    """
    first, last = window
    count = max(min(bins, last - first), 1)
    width, rest = divmod(last - first, count)
    number = np.arange(count + 1)
    return first + width * number + rest * number // count


def maxima(ends: Int) -> list[Int]:
    """Return the values, the greater of each pair of them, the greater of each pair of these, ... up to one."""
    levels, most = [], ends
    while len(most) > 1:
        most = np.append(most, np.iinfo(np.int64).min) if len(most) % 2 else most
        levels.append(most)
        most = np.maximum(most[::2], most[1::2])
    return [*levels, most]


def last_open(levels: list[Int], before: Int, moment: Int) -> Int:
    """Return the last place below each of `before` whose end lies after the moment; -1 where there is none.

    The `maxima` of the ends are climbed to where one exceeds the moment, then descended: O(log n)
    per question, whether intervals nest or not.

    >>> last_open(maxima(np.array([9, 4, 8])), np.array([3, 2, 1]), np.array([5, 5, 9])).tolist()
    [2, 0, -1]
    """
    place = np.full(len(before), -1, np.int64)
    found: list[tuple[Int, Int]] = []
    asked = np.flatnonzero(before > 0)
    if len(asked) > len(levels[0]) // 4:  # many have no answer: they need not climb
        latest = np.maximum.accumulate(levels[0])
        asked = asked[latest[before[asked] - 1] > moment[asked]]
    at = before[asked].astype(np.int64)
    for most in levels:
        asked, at = asked[at > 0], at[at > 0]
        if not len(asked):
            break
        odd = np.flatnonzero(at & 1)
        hit = odd[most[at[odd] - 1] > moment[asked[odd]]]
        found.append((asked[hit], at[hit] - 1))
        left = np.ones(len(asked), bool)
        left[hit] = False
        asked, at = asked[left], at[left] >> 1
    who, node = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for level in range(len(found) - 1, -1, -1):
        if len(who):  # the later of a pair comes first
            node = 2 * node + 1
            node -= levels[level][node] <= moment[who]
        who, node = np.append(who, found[level][0]), np.append(node, found[level][1])
    place[who] = node
    return place
