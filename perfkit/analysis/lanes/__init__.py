"""What ran where in any window, answered at once: kernels and copies sorted and summed once, asked many times.

As in `perfkit.analysis.timeline`: times are int64 ns, intervals half open, operations are cut at
the window's edges, and a lane is the operations of one kind (computation, communication, copy) of
one stream. A window that is omitted is the span of the whole run, whatever else is chosen, so that
all pictures share an axis. A choice by name is of kernels: copies and memsets stay. An operation
that lasts 0 ns has time in no window. Tables may be in any order and empty; another table raises
SchemaError.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.grouping import ranked
from perfkit.analysis.intervals import (
    Bool,
    Int,
    Window,
    bounds,
    devices,
    share,
    tiles,
)
from perfkit.analysis.intervals import spans as spans_of
from perfkit.analysis.lanes.lane import Columns, Key, Lane, Works, lanes
from perfkit.analysis.timeline import KINDS
from perfkit.schema import stretches
from perfkit.tables import COPIES, KERNELS

__all__ = ["Lanes", "Launching", "Spans"]
TABLES = pd.Index(["KERNELS", "COPIES"])
Ids = Sequence[int]


class Lanes:
    """Kernels and copies, sorted and summed once, so that any window of them is answered at once.

    About 22 bytes per row are kept beside the tables. `span` is the start of the first and the end
    of the last operation, or of the steps of `stepped` ranks, ns, (0, 0) without any; `devices` has
    columns rank, gpu (int32), ascending; `names` has name, family, count and total_ns as in
    `totals` of the whole run.
    """

    def __init__(
        self,
        kernels: pd.DataFrame,
        copies: pd.DataFrame,
        stepped: Mapping[int, Window] = MappingProxyType({}),
    ) -> None:
        frames = KERNELS.check(kernels), COPIES.check(copies)
        self.devices, groups = devices(*frames)
        start, end = spans_of([*frames], groups, len(self.devices), stepped)
        self.span = (int(start.min()), int(end.max())) if len(self.devices) else (0, 0)
        self._works = Works(*frames)
        self._lanes = lanes(frames, groups, self._works)
        self._correlation = [frame["correlation"].to_numpy() for frame in frames]
        self._last: tuple[Any, Int] = None, np.zeros(0, np.int64)
        self.names = self.totals().drop(columns="share_frac")

    def matching(self, pattern: str, families: Sequence[str] = ()) -> Bool:
        """Say which kernels a pattern and families choose, to be given as `names`; empty ones choose all.

        A pattern chooses kernels whose short or full name contains this text, or matches it where
        it holds ``*`` or ``?``; upper and lower case are alike. A family that does not exist raises
        ValueError.
        """
        return self._works.matching(pattern, families)

    def asked(
        self, ranks: Ids, gpus: Ids, pattern: str, families: Sequence[str]
    ) -> dict[str, Any] | None:
        """Return a choice as `ranks`, `gpus` and `names` of `busy`; None if it leaves no device with operations.

        Ranks and GPUs without operations, such as those with readings alone, are left out; empty
        ones choose all.
        """
        chosen: dict[str, Any] = {
            "names": self.matching(pattern, families) if pattern or families else None
        }
        for name, column, wanted in (("ranks", "rank", ranks), ("gpus", "gpu", gpus)):
            worked = {*self.devices[column]}
            chosen[name] = tuple(one for one in wanted if one in worked)
            if not worked or (wanted and not chosen[name]):
                return None
        return chosen

    def busy(
        self,
        *,
        window: Window | None = None,
        bins: int = 320,
        ranks: Ids = (),
        gpus: Ids = (),
        names: Bool | None = None,
    ) -> pd.DataFrame:
        """Return the busy time of each stream in equal bins of one time axis, kind by kind.

        `bins` is at least 1; no more are made than the window has nanoseconds. Empty `ranks` and
        `gpus` keep all. `names` chooses kernels: what `matching` returns; all when omitted. The
        answer is that of `perfkit.analysis.timeline.bins` of the operations kept, with the same
        window.

        ValueError if `bins` is below 1, the window does not end after it starts, a rank or GPU has
        no operation in the run, or `names` is of another dtype or length.
        """
        if bins < 1:
            raise ValueError(f"bins: {bins} is not at least 1")
        edges, mask, chosen = (
            tiles(self._window(window), bins),
            self._works.mask(names),
            self._chosen(ranks, gpus),
        )
        keys = sorted({lane.key for lane in chosen})
        number = {key: place for place, key in enumerate(keys)}
        busy = np.zeros((len(keys), len(edges) - 1), np.int64)
        for lane in chosen:
            busy[number[lane.key]] += lane.busy(edges, mask)
        which, at = np.nonzero(busy)
        busy_ns, dur_ns = busy[which, at], np.diff(edges)[at]
        table = self._places(np.array(keys, np.int64).reshape(-1, len(Key._fields))[which])
        return table.assign(
            start_ns=edges[at], dur_ns=dur_ns, busy_ns=busy_ns, busy_frac=share(busy_ns, dur_ns)
        )

    def totals(
        self,
        *,
        window: Window | None = None,
        ranks: Ids = (),
        gpus: Ids = (),
        names: Bool | None = None,
    ) -> pd.DataFrame:
        """Return the time of the kernels with time in the window, per name; arguments and ValueError as in `busy`.

        Durations are cut at the window's edges and add up, also where kernels run at once. By
        falling total_ns, ties by falling count, then name: name, family (category, missing where
        kernels of several families share the name), count (int64, at least 1), total_ns (int64, ns,
        at least 1), share_frac (float64, total_ns over the sum of this table).
        """
        counts, totals = map(self._works.by_name, self._sums(window, ranks, gpus, names))
        seen = np.flatnonzero(counts)
        table = self._works.names(seen).assign(count=counts[seen], total_ns=totals[seen])
        return ranked(
            table.assign(share_frac=table["total_ns"] / table["total_ns"].sum()),
            "total_ns",
            ["name"],
        )

    def count(
        self,
        *,
        window: Window | None = None,
        ranks: Ids = (),
        gpus: Ids = (),
        names: Bool | None = None,
    ) -> int:
        """Return the number of kernels and copies with time in the window; arguments and ValueError as in `busy`."""
        return int(self._sums(window, ranks, gpus, names)[0].sum())

    def intervals(
        self,
        *,
        window: Window | None = None,
        ranks: Ids = (),
        gpus: Ids = (),
        names: Bool | None = None,
        most: int = 2000,
    ) -> pd.DataFrame:
        """Return the kernels and copies with time in the window one by one, whole: they are not cut at its edges.

        Arguments as in `busy`; ValueError also where there are more than `most`: ask `count` first.
        Sorted by rank, gpu, stream (int64), kind (category, as in `busy`) and start_ns: these,
        dur_ns, name (category; of a copy its direction), family (category, missing for a copy),
        correlation (int64), row (int64, position in its table), table (category: KERNELS or
        COPIES).
        """
        count = self.count(window=window, ranks=ranks, gpus=gpus, names=names)
        if count > most:
            raise ValueError(f"most: {count} operations have time in the window, more than {most}")
        edges, mask = self._window(window), self._works.mask(names)
        keys, (start, dur, work, row) = listed(self._chosen(ranks, gpus), edges, mask)
        copied = work >= self._works.kernels
        correlation = np.empty(len(row), np.int64)
        for of_table, mine in zip(self._correlation, (~copied, copied), strict=True):
            correlation[mine] = of_table[row[mine]]
        table = (
            self._places(keys).assign(start_ns=start, dur_ns=dur).join(self._works.described(work))
        )
        in_table = pd.Categorical.from_codes(copied.astype(np.int8), TABLES)
        return table.assign(correlation=correlation, row=row, table=in_table)

    def _sums(self, window: Window | None, ranks: Ids, gpus: Ids, names: Bool | None) -> Int:
        """Return count and time of each work, 0 where it is not kept."""
        edges, mask = self._window(window), self._works.mask(names)
        asked = edges, tuple(ranks), tuple(gpus)
        of, sums = self._last  # at once: a dossier asks from a thread of its own
        if of != asked:  # a picture asks for number and times of the same window
            sums = np.zeros((2, self._works.count), np.int64)
            for lane in self._chosen(ranks, gpus):
                lane.add_totals(sums, *edges)
            self._last = asked, sums
        return sums if mask is None else np.asarray(sums * mask, np.int64)

    def _window(self, window: Window | None) -> Window:
        return self.span if window is None else bounds(window)

    def _chosen(self, ranks: Ids, gpus: Ids) -> list[Lane]:
        """Return the lanes of the devices kept."""
        kept = np.ones(len(self.devices), bool)
        for name, column, wanted in (("ranks", "rank", ranks), ("gpus", "gpu", gpus)):
            numbers = self.devices[column].to_numpy()
            unknown = [one for one in wanted if one not in numbers]
            if unknown:
                raise ValueError(
                    f"{name}: {', '.join(map(str, unknown))} is not one of "
                    f"{np.unique(numbers).tolist()}"
                )
            kept &= np.isin(numbers, np.asarray(wanted)) if len(wanted) else True
        return [lane for lane in self._lanes if kept[lane.key.device]]

    def _places(self, keys: Int) -> pd.DataFrame:
        """Return rank, gpu, stream and kind of keys of lanes."""
        device, stream, kind = keys.T
        table = self.devices.take(device).reset_index(drop=True)
        return table.assign(stream=stream, kind=pd.Categorical.from_codes(kind, KINDS))


class Launching:
    """API_CALLS by correlation: the call that launched an operation, found at once in a table of any length.

    They are joined as `perfkit.analysis.causes.started_by` does it: on (rank, process,
    correlation), of several calls with one id the first row, and never on an id of -1. Sorted by
    rank and process most of the table is used as it lies.
    """

    def __init__(self, api_calls: pd.DataFrame) -> None:
        self._calls = api_calls
        pairs = [api_calls[column].to_numpy() for column in ("rank", "process")]
        first = stretches(pairs, len(api_calls))
        ids = api_calls["correlation"].to_numpy()
        self._ids: dict[tuple[int, int], tuple[Int, Int | None, int]] = {}
        for begin, end in zip(first, np.append(first, len(ids))[1:], strict=True):
            of_process = ids[begin:end]
            order = (
                None
                if (of_process[1:] >= of_process[:-1]).all()
                else np.argsort(of_process, kind="stable")
            )
            key = int(pairs[0][begin]), int(pairs[1][begin])
            self._ids[key] = (of_process if order is None else of_process[order], order, int(begin))
        self._found: dict[int, tuple[pd.DataFrame, Int]] = {}

    def rows_of(self, operations: pd.DataFrame) -> Int:
        """Return `rows` of a whole table, which is kept with them: eight bytes a row."""
        kept = self._found.get(id(operations))
        if kept is None:
            columns = (
                operations[column].to_numpy() for column in ("rank", "process", "correlation")
            )
            kept = self._found[id(operations)] = operations, self.rows(*columns)
        return kept[1]

    def rows(
        self, rank: NDArray[np.integer], process: NDArray[np.integer], correlation: Int
    ) -> Int:
        """Return the position in API_CALLS of the call that launched each operation, -1 where none is recorded."""
        found = np.full(len(correlation), -1, np.int64)
        for key, (ids, order, first) in self._ids.items():
            at = np.flatnonzero((rank == key[0]) & (process == key[1]) & (correlation >= 0))
            place = np.searchsorted(ids, correlation[at])
            place, is_known = np.minimum(place, len(ids) - 1), place < len(ids)
            launched = is_known & (ids[place] == correlation[at])
            row = place[launched] if order is None else order[place[launched]]
            found[at[launched]] = row + first
        return found

    def of(
        self, rank: NDArray[np.integer], process: NDArray[np.integer], correlation: Int
    ) -> dict[str, Any]:
        """Return name, start and duration of the calls that `rows` finds.

        Columns call (text, None where no call is recorded), call_start_ns, call_dur_ns (Int64, ns,
        NA there).
        """
        row = self.rows(rank, process, correlation)
        call = self._calls.take(row[row >= 0])
        text = np.full(len(row), None, object)
        text[row >= 0] = call["name"].to_numpy(object)
        columns: dict[str, Any] = {"call": text}
        for column in ("start_ns", "dur_ns"):
            values = np.zeros(len(row), np.int64)
            values[row >= 0] = call[column]
            columns[f"call_{column}"] = pd.arrays.IntegerArray(values, row < 0)
        return columns


class Spans:
    """Rows of a table with a start and a duration, sorted and summed once per group.

    Unlike the operations of `Lanes` they may nest, and one that lasts 0 ns is in the window in
    which it starts. `group` is the group of each row, 0 .. groups-1; some may be empty. `total` is,
    per group, the time in which any of its rows ran, int64 ns. About 32 bytes per row are kept
    beside the table.
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
        self.total = np.array(
            [self._busy[last - 1] if last > first else 0 for first, last in ends], np.int64
        )

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

    def rows(self, window: Window, groups: Bool, *, at_least: int = 0) -> tuple[Int, Int]:
        """Return the rows of some `groups` (bool, one per group) in the window, whole: they are not cut at its edges.

        Positions in the table of rows that last `at_least` this long, ns, by group and start, and
        the group of each.
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

        `edges` (int64, ns) ascend; bin i is [edges[i], edges[i + 1]). Time in which several ran
        counts once.
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
        return np.asarray(
            before + np.where(place < len(reach), np.maximum(times - begin, 0), 0), np.int64
        )


def listed(lanes: Sequence[Lane], window: Window, mask: Bool | None) -> tuple[Int, Columns]:
    """Return the keys (one row each) and columns of the operations with time in the window, by key and start."""
    tables = [_of(lane, window, mask) for lane in lanes]
    none = np.zeros((0, len(Key._fields) + len(Columns._fields)), np.int64)
    table = np.concatenate([none, *tables])
    *keys, start, _, _, row = table.T
    table = table[np.lexsort([row, start, *reversed(keys)])]
    return table[:, : len(Key._fields)], Columns(*table[:, len(Key._fields) :].T)


def _of(lane: Lane, window: Window, mask: Bool | None) -> Int:
    rows = lane.within(*window)
    if mask is not None:
        rows = rows[mask.take(lane.operations.work[rows])]
    columns = [column.astype(np.int64) for column in lane.operations.taken(rows)]
    return np.stack([*(np.full(len(rows), part) for part in lane.key), *columns], axis=1)


def _order(group: Int, start: Int) -> NDArray[np.integer] | None:
    """Return the order by group and start; None where the rows are in it."""
    if _ordered(group, start):
        return None
    order = np.argsort(group, kind="stable")  # within a group, tables are mostly in order
    return order if _ordered(group[order], start[order]) else np.lexsort([start, group])


def _ordered(group: Int, start: Int) -> bool:
    step = np.diff(group)
    return bool(((step > 0) | ((step == 0) & (np.diff(start) >= 0))).all())
