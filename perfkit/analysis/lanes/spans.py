"""Intervals that may nest and overlap, such as those of threads, in groups that are numbered from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import CAUSES, Determinable, is_graph_launch, judged, started_by, where
from perfkit.analysis.gaps import GAPS, idle_gaps
from perfkit.analysis.intervals import Int, Window, bounds, devices, spans
from perfkit.tables import API_CALLS, COPIES, KERNELS

EDGE = CAUSES.index("edge")
TEXTS = ("detail", "api", "range")


class _Inside(NamedTuple):
    """Device, times and row of gaps inside a window; the row is -1 where a device has not begun, or has ended."""

    device: Int
    start: Int
    end: Int
    row: Int


_NO_GAPS = _Inside(*[np.zeros(0, np.int64)] * 4)


class Idle:
    """What `perfkit.analysis.gaps.idle_gaps` says of any window and devices, kept with about 50 bytes per gap."""

    def __init__(
        self,
        kernels: pd.DataFrame,
        copies: pd.DataFrame,
        api_calls: pd.DataFrame,
        *,
        ranges: pd.DataFrame | None = None,
    ) -> None:
        frames = [KERNELS.check(kernels), COPIES.check(copies)]
        self._devices, groups = devices(*frames)
        self._first, self._last = spans(frames, groups, len(self._devices), None)
        self._gaps = idle_gaps(kernels, copies, api_calls, ranges=ranges)
        self._start = self._gaps["start_ns"].to_numpy()
        self._bounds = np.searchsorted(_pairs(self._gaps), np.append(_pairs(self._devices), np.iinfo(np.int64).max))
        self._count_calls(frames, groups, API_CALLS.check(api_calls))

    def _count_calls(self, frames: list[pd.DataFrame], groups: list[Int], api_calls: pd.DataFrame) -> None:
        """Count the operations of each device and those without a call; note where those of graph launches ran."""
        call = np.concatenate([started_by(frame, api_calls) for frame in frames])
        device, count = np.concatenate(groups), len(self._devices)
        self._operations = np.bincount(device, minlength=count)
        self._lacking = np.bincount(device[call < 0], minlength=count)
        graphs = where(api_calls["name"], is_graph_launch)
        self._graph_ranks = api_calls["rank"].to_numpy()[graphs]
        number = np.where(graphs, np.cumsum(graphs) - 1, -1)
        of_graph = np.append(number, -1)[call]
        ran = np.unique(of_graph[of_graph >= 0] * max(count, 1) + device[of_graph >= 0])
        self._graph, self._graph_device = np.divmod(ran, max(count, 1))

    def gaps(
        self, *, window: Window | None = None, ranks: Sequence[int] = (), gpus: Sequence[int] = ()
    ) -> pd.DataFrame:
        """Return the times at which a device does nothing, with what it was waiting for.

        A window that is omitted is the span of each device's operations; empty `ranks` and `gpus` keep all. The table
        GAPS is that of `idle_gaps` for the operations of these devices, and the calls and ranges of these ranks.
        """
        kept = np.flatnonzero(self._chosen(ranks, gpus))
        if window is not None:
            parts = [_NO_GAPS, *(self._inside(device, bounds(window)) for device in kept.tolist())]
            return self._cut(_Inside(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), window)
        if len(kept) == len(self._devices):
            return self._gaps
        rows = [np.arange(self._bounds[device], self._bounds[device + 1]) for device in kept.tolist()]
        return self._gaps.take(np.concatenate([np.zeros(0, np.int64), *rows])).reset_index(drop=True)

    def determinable(self, *, ranks: Sequence[int] = (), gpus: Sequence[int] = ()) -> Determinable:
        """Return whether enough operations have their launch call to speak of causes; arguments as in `gaps`.

        As `perfkit.analysis.causes.determinable` says of the operations of these devices and the calls of these ranks.
        """
        kept = self._chosen(ranks, gpus)
        there = np.isin(self._graph_ranks, np.asarray(ranks)) if len(ranks) else np.ones(len(self._graph_ranks), bool)
        filled = np.zeros(len(there), bool)
        filled[self._graph[kept[self._graph_device]]] = True
        operations, lacking = (int(counts[kept].sum()) for counts in (self._operations, self._lacking))
        return judged(operations, lacking, int(there.sum()), int((there & ~filled).sum()))

    def _chosen(self, ranks: Sequence[int], gpus: Sequence[int]) -> NDArray[np.bool_]:
        kept = np.ones(len(self._devices), bool)
        for column, wanted in (("rank", ranks), ("gpu", gpus)):
            kept &= np.isin(self._devices[column].to_numpy(), np.asarray(wanted)) if len(wanted) else True
        return kept

    def _inside(self, device: int, window: Window) -> _Inside:
        """Return the gaps of a device cut at the edges of a window, with those before and after all of its work."""
        low, high = self._bounds[device], self._bounds[device + 1]
        first, last = np.searchsorted(self._start[low:high], window) + low
        if first > low and self._start[first - 1] + self._gaps["dur_ns"].to_numpy()[first - 1] > window[0]:
            first -= 1
        row = np.arange(first, last)
        start, end = self._start[row], self._start[row] + self._gaps["dur_ns"].to_numpy()[row]
        if window[0] < self._first[device]:
            start, end, row = np.r_[window[0], start], np.r_[self._first[device], end], np.r_[-1, row]
        if window[1] > self._last[device]:
            start, end, row = np.r_[start, self._last[device]], np.r_[end, window[1]], np.r_[row, -1]
        return _Inside(np.full(len(row), device), np.maximum(start, window[0]), np.minimum(end, window[1]), row)

    def _cut(self, found: _Inside, window: Window) -> pd.DataFrame:
        """Return the gaps as a table: what reaches an edge of the window is an edge, whatever ended it."""
        edge = (found.start == window[0]) | (found.end == window[1])
        row = np.where(edge, -1, found.row)
        columns: dict[str, Any] = {"start_ns": found.start, "dur_ns": found.end - found.start}
        for name, missing in (("cause", EDGE), *((text, -1) for text in TEXTS)):
            column = self._gaps[name].cat
            codes = np.append(column.codes.to_numpy(), np.int8(missing))
            columns[name] = pd.Categorical.from_codes(codes[row], column.categories)
        columns |= {name: np.append(self._gaps[name].to_numpy(), -1)[row] for name in ("process", "thread")}
        places = self._devices.take(found.device).reset_index(drop=True)
        return places.assign(**columns)[[*GAPS.column_names]]


class Spans:
    """Rows of a table with a start and a duration, sorted and summed once per group.

    Unlike the operations of `Lanes` they may nest, and one that lasts 0 ns is in the window in which it starts. `group`
    is the group of each row, 0 .. groups-1; some may be empty. `total` is, per group, the time in which any of its rows
    ran, int64 ns. About 32 bytes per row are kept beside the table.

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
        """Return the rows of some `groups` (bool, one per group) in the window, whole: they are not cut at its edges.

        The positions in the table of those that last `at_least` so long, ns, by group and start, and the group of each.
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


def _pairs(frame: pd.DataFrame) -> Int:
    """Return one integer per rank and GPU that sorts like the pair."""
    rank, gpu = (frame[column].to_numpy(np.int64) for column in ("rank", "gpu"))
    return np.asarray(rank * 2**32 + gpu, np.int64)
