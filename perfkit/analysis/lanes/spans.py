"""Intervals that may nest and overlap, such as those of threads, in groups that are numbered from 0."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.window import Window


class Spans:
    """Rows of a table with a start and a duration, sorted and summed once per group.

    Unlike the operations of `Lanes` they may nest, and one that lasts 0 ns is in the window in which it starts.

    Parameters
    ----------
    frame
        Columns start_ns and dur_ns (int64, ns), in any order, may be empty. About 32 bytes per row are kept beside it.
    group
        int64, the group of each row, 0 .. groups-1.
    groups
        How many groups there are; some may be empty.

    Attributes
    ----------
    total
        int64, ns, per group: the time in which any of its rows ran; 0 for an empty group.

    Examples
    --------
    >>> calls = pd.DataFrame({"start_ns": [0, 10, 50], "dur_ns": [30, 10, 20]})
    >>> spans = Spans(calls, np.array([0, 0, 1]), 2)
    >>> spans.total.tolist(), spans.count((5, 10)).tolist()
    ([30, 20], [1, 0])
    """

    def __init__(self, frame: pd.DataFrame, group: Int, groups: int) -> None:
        start, dur = frame["start_ns"].to_numpy(), frame["dur_ns"].to_numpy()
        self._order = _order(group, start)
        if self._order is not None:
            start, dur, group = start[self._order], dur[self._order], group[self._order]
        self._edges = np.searchsorted(group, np.arange(groups + 1))
        self._start, self._end = start, start + dur
        self._reach, self._busy = self._end.copy(), np.empty(len(start), np.int64)
        for first, last in zip(self._edges[:-1], self._edges[1:], strict=True):
            self._sum(slice(first, last))
        ends = zip(self._edges[:-1], self._edges[1:], strict=True)
        self.total = np.array([self._busy[last - 1] if last > first else 0 for first, last in ends], np.int64)

    def _sum(self, rows: slice) -> None:
        """Fill in the latest end so far of each row, and the time in which any row so far ran."""
        reach = self._reach[rows]
        np.maximum.accumulate(reach, out=reach)
        if len(reach):
            begin = np.maximum(self._start[rows], np.append(self._start[rows][0], reach[:-1]))
            np.cumsum(reach - begin, out=self._busy[rows])

    def _inside(self, group: int, window: Window) -> tuple[int, int, int]:
        """Return the first row that may be in the window, the first that starts in it, the first that starts later."""
        low, high = int(self._edges[group]), int(self._edges[group + 1])
        start = self._start[low:high]
        candidate = int(np.searchsorted(self._reach[low:high], window[0], side="right"))
        first, last = (int(place) for place in np.searchsorted(start, window))
        return low + min(candidate, first), low + first, low + last

    def count(self, window: Window) -> Int:
        """Return how many rows of each group (int64) have time, or start, in the window (start_ns, end_ns)."""
        counts = []
        for group in range(len(self._edges) - 1):
            candidate, first, last = self._inside(group, window)
            counts.append(last - first + np.count_nonzero(self._end[candidate:first] > window[0]))
        return np.array(counts, np.int64)

    def rows(self, window: Window, groups: NDArray[np.bool_], *, at_least: int = 0) -> tuple[Int, Int]:
        """Return the rows of some groups in the window, whole: they are not cut at its edges.

        Parameters
        ----------
        window
            (start_ns, end_ns), half open.
        groups
            bool, one per group: those to look at.
        at_least
            Shortest row to return, ns.

        Returns
        -------
        rows, group
            int64: positions in the table, by group and start, and the group of each.
        """
        found = [np.zeros(0, np.int64)]
        for group in np.flatnonzero(groups):
            candidate, first, last = self._inside(int(group), window)
            keep = self._end[candidate:last] - self._start[candidate:last] >= at_least
            keep[: first - candidate] &= self._end[candidate:first] > window[0]
            found.append(candidate + np.flatnonzero(keep))
        places = np.concatenate(found)
        of = np.searchsorted(self._edges, places, side="right").astype(np.int64) - 1
        return places if self._order is None else self._order[places].astype(np.int64), of

    def busy(self, edges: Int) -> Int:
        """Return the time, ns, of each group (row) and bin (column) in which any of its rows ran.

        `edges` (int64, ns) ascend; bin i is [edges[i], edges[i + 1]). Time in which several ran counts once.
        """
        times = np.empty((len(self._edges) - 1, len(edges)), np.int64)
        for group, (low, high) in enumerate(zip(self._edges[:-1], self._edges[1:], strict=True)):
            times[group] = self._until(slice(low, high), edges)
        return np.diff(times, axis=1)

    def _until(self, rows: slice, times: Int) -> Int:
        """Return the time before each of `times` in which any of the rows ran."""
        reach, busy = self._reach[rows], self._busy[rows]
        if not len(reach):
            return np.zeros(len(times), np.int64)
        place = np.searchsorted(reach, times, side="right")
        before = np.where(place > 0, busy[place - 1], 0)
        running = np.minimum(place, len(reach) - 1)
        begin = reach[running] - (busy[running] - before)
        return np.asarray(before + np.where(place < len(reach), np.maximum(times - begin, 0), 0), np.int64)


def _order(group: Int, start: Int) -> NDArray[np.integer] | None:
    """Return the order by group and start; None where the rows are in it."""
    if _ordered(group, start):
        return None
    # numpy sorts 16-bit integers by radix; within a group, tables are mostly in order.
    order = np.argsort(group.astype(np.uint16), kind="stable") if group.max() < 2**16 else np.argsort(group)
    return order if _ordered(group[order], start[order]) else np.lexsort([start, group])


def _ordered(group: Int, start: Int) -> bool:
    step = np.diff(group)
    return bool(((step > 0) | ((step == 0) & (np.diff(start) >= 0))).all())
