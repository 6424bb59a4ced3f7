"""What ran where in any window, answered at once: kernels and copies sorted and summed once, asked many times.

As in `perfkit.analysis.timeline`: times are int64 ns, intervals half open, operations are cut at the window's edges,
and a lane is the operations of one kind (computation, communication, copy) of one stream. A window that is omitted is
the span of the whole run, whatever else is chosen, so that all pictures share an axis. A choice by name is of kernels:
copies and memsets stay. An operation that lasts 0 ns has time in no window. Tables may be in any order and empty;
another table raises SchemaError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.grouping import ranked
from perfkit.analysis.intervals import Int, Window, bounds, devices, share, tiles
from perfkit.analysis.intervals import spans as spans_of  # lanes.spans is a module
from perfkit.analysis.lanes.lane import Bool, Columns, Key, Lane, Works, lanes
from perfkit.analysis.lanes.spans import Idle, Spans
from perfkit.analysis.timeline import KINDS
from perfkit.tables import COPIES, KERNELS

__all__ = [
    "Idle",
    "Lanes",
    "Launching",
    "Spans",
]
TABLES = pd.Index(["KERNELS", "COPIES"])


class Lanes:
    """Kernels and copies, sorted and summed once, so that any window of them is answered at once.

    About 22 bytes per row are kept beside the tables. `span` is the start of the first and the end of the last
    operation, ns, (0, 0) without any; `devices` has columns rank, gpu (int32), ascending; `names` has name, family,
    count and total_ns as in `totals` of the whole run.
    """

    def __init__(self, kernels: pd.DataFrame, copies: pd.DataFrame) -> None:
        frames = KERNELS.check(kernels), COPIES.check(copies)
        self.devices, groups = devices(*frames)
        start, end = spans_of([*frames], groups, len(self.devices), None)
        self.span = (int(start.min()), int(end.max())) if len(self.devices) else (0, 0)
        self._works = Works(*frames)
        self._lanes = lanes(frames, groups, self._works)
        self._correlation = [frame["correlation"].to_numpy() for frame in frames]
        self.names = self.totals().drop(columns="share_frac")

    def matching(self, pattern: str, families: Sequence[str] = ()) -> Bool:
        """Say which kernels a pattern and families choose, to be given as `names`; empty ones choose all.

        A pattern chooses kernels whose short or full name contains this text, or matches it where it holds ``*`` or
        ``?``; upper and lower case are alike. A family that does not exist raises ValueError. The answer is bool, one
        per category of the column `name` of KERNELS; where kernels of one name have several full names or families, or
        none, more follow.
        """
        return self._works.matching(pattern, families)

    def busy(
        self,
        *,
        window: Window | None = None,
        bins: int = 320,
        ranks: Sequence[int] = (),
        gpus: Sequence[int] = (),
        names: NDArray[np.bool_] | None = None,
    ) -> pd.DataFrame:
        """Return the busy time of each stream in equal bins of one time axis, kind by kind.

        Parameters
        ----------
        window
            (start_ns, end_ns), half open; the span of the run when omitted.
        bins
            Number of bins, at least 1; no more are made than the window has nanoseconds.
        ranks, gpus
            Ranks and CUDA ordinals to keep; empty keeps all.
        names
            Kernels to keep: bool for each category of the column `name`, or what `matching` returns; all when
            omitted. Copies are kept whatever it says.

        Returns
        -------
        pandas.DataFrame
            As `perfkit.analysis.timeline.bins` of the operations kept, with the same window.

        Raises
        ------
        ValueError
            If `bins` is below 1, the window does not end after it starts, a rank or GPU has no operation in the
            run, or `names` is of another dtype or length.
        """
        if bins < 1:
            raise ValueError(f"bins: {bins} is not at least 1")
        edges, mask, chosen = tiles(self._window(window), bins), self._works.mask(names), self._chosen(ranks, gpus)
        keys = sorted({lane.key for lane in chosen})
        number = {key: place for place, key in enumerate(keys)}
        busy = np.zeros((len(keys), len(edges) - 1), np.int64)
        for lane in chosen:
            busy[number[lane.key]] += lane.busy(edges, mask)
        which, at = np.nonzero(busy)
        busy_ns, dur_ns = busy[which, at], np.diff(edges)[at]
        table = self._places(np.array(keys, np.int64).reshape(-1, len(Key._fields))[which])
        return table.assign(start_ns=edges[at], dur_ns=dur_ns, busy_ns=busy_ns, busy_frac=share(busy_ns, dur_ns))

    def totals(
        self,
        *,
        window: Window | None = None,
        ranks: Sequence[int] = (),
        gpus: Sequence[int] = (),
        names: NDArray[np.bool_] | None = None,
    ) -> pd.DataFrame:
        """Return the time of the kernels with time in the window, per name; arguments and ValueError as in `busy`.

        Durations are cut at the window's edges and add up, also where kernels run at once.

        Returns
        -------
        pandas.DataFrame
            By falling total_ns, ties by falling count, then name: name (category), family (category, missing where
            kernels of several families share the name), count (int64, at least 1), total_ns (int64, ns, at least 1),
            share_frac (float64, above 0, at most 1, total_ns over the sum of this table).
        """
        counts, totals = map(self._works.by_name, self._sums(window, ranks, gpus, names))
        seen = np.flatnonzero(counts)
        table = self._works.names(seen).assign(count=counts[seen], total_ns=totals[seen])
        return ranked(table.assign(share_frac=table["total_ns"] / table["total_ns"].sum()), "total_ns", ["name"])

    def count(
        self,
        *,
        window: Window | None = None,
        ranks: Sequence[int] = (),
        gpus: Sequence[int] = (),
        names: NDArray[np.bool_] | None = None,
    ) -> int:
        """Return the number of kernels and copies with time in the window; arguments and ValueError as in `busy`."""
        return int(self._sums(window, ranks, gpus, names)[0].sum())

    def intervals(
        self,
        *,
        window: Window | None = None,
        ranks: Sequence[int] = (),
        gpus: Sequence[int] = (),
        names: NDArray[np.bool_] | None = None,
        most: int = 2000,
    ) -> pd.DataFrame:
        """Return the kernels and copies with time in the window one by one, whole: they are not cut at its edges.

        Arguments as in `busy`; ValueError also where there are more than `most`: ask `count` first.

        Returns
        -------
        pandas.DataFrame
            Sorted by rank, gpu (int32), stream (int64), kind (category, as in `busy`) and start_ns: these, dur_ns
            (int64, ns), name (category; of a copy its direction), family (category, missing for a copy), correlation
            (int64), row (int64, position in its table), table (category: KERNELS or COPIES).
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
        table = self._places(keys).assign(start_ns=start, dur_ns=dur).join(self._works.described(work))
        in_table = pd.Categorical.from_codes(copied.astype(np.int8), TABLES)
        return table.assign(correlation=correlation, row=row, table=in_table)

    def _sums(
        self, window: Window | None, ranks: Sequence[int], gpus: Sequence[int], names: NDArray[np.bool_] | None
    ) -> Int:
        """Return count and time of each work, 0 where it is not kept."""
        edges, mask = self._window(window), self._works.mask(names)
        sums = np.zeros((2, self._works.count), np.int64)
        for lane in self._chosen(ranks, gpus):
            lane.add_totals(sums, *edges)
        return sums if mask is None else np.asarray(sums * mask, np.int64)

    def _window(self, window: Window | None) -> Window:
        return self.span if window is None else bounds(window)

    def _chosen(self, ranks: Sequence[int], gpus: Sequence[int]) -> list[Lane]:
        """Return the lanes of the devices kept."""
        kept = np.ones(len(self.devices), bool)
        for name, column, wanted in (("ranks", "rank", ranks), ("gpus", "gpu", gpus)):
            known = self.devices[column].to_numpy()
            unknown = [one for one in wanted if one not in known]
            if unknown:
                raise ValueError(f"{name}: {', '.join(map(str, unknown))} is not one of {np.unique(known).tolist()}")
            kept &= np.isin(known, np.asarray(wanted)) if len(wanted) else True
        return [lane for lane in self._lanes if kept[lane.key.device]]

    def _places(self, keys: Int) -> pd.DataFrame:
        """Return rank, gpu, stream and kind of keys of lanes."""
        device, stream, kind = keys.T
        table = self.devices.take(device).reset_index(drop=True)
        return table.assign(stream=stream, kind=pd.Categorical.from_codes(kind, KINDS))


class Launching:
    """API_CALLS by correlation: the call that launched an operation, found at once in a table of any length.

    They are joined as `perfkit.analysis.causes.started_by` does it: on (rank, process, correlation), of several calls
    with one id the first row, and never on an id of -1. Sorted by rank and process most of the table is used as it
    lies.
    """

    def __init__(self, api_calls: pd.DataFrame) -> None:
        self._calls = api_calls
        pairs = [api_calls[column].to_numpy() for column in ("rank", "process")]
        changed = np.logical_or(*(column[1:] != column[:-1] for column in pairs))
        first = np.flatnonzero(np.append(True, changed)[: len(api_calls)])
        ids = api_calls["correlation"].to_numpy()
        self._ids: dict[tuple[int, int], tuple[Int, Int | None, int]] = {}
        for begin, end in zip(first, np.append(first, len(ids))[1:], strict=True):
            of_process = ids[begin:end]
            order = None if (of_process[1:] >= of_process[:-1]).all() else np.argsort(of_process, kind="stable")
            key = int(pairs[0][begin]), int(pairs[1][begin])
            self._ids[key] = (of_process if order is None else of_process[order], order, int(begin))

    def rows(self, rank: NDArray[np.integer], process: NDArray[np.integer], correlation: Int) -> Int:
        """Return the position in API_CALLS of the call that launched each operation, -1 where none is recorded."""
        found = np.full(len(correlation), -1, np.int64)
        for key, (ids, order, first) in self._ids.items():
            at = np.flatnonzero((rank == key[0]) & (process == key[1]) & (correlation >= 0))
            place = np.searchsorted(ids, correlation[at])
            place, is_known = np.minimum(place, len(ids) - 1), place < len(ids)
            known = is_known & (ids[place] == correlation[at])
            row = place[known] if order is None else order[place[known]]
            found[at[known]] = row + first
        return found

    def of(self, rank: NDArray[np.integer], process: NDArray[np.integer], correlation: Int) -> dict[str, Any]:
        """Return name, start and duration of the calls that `rows` finds.

        Columns call (text, None where no call is recorded), call_start_ns, call_dur_ns (Int64, ns, NA there).
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


def listed(lanes: Sequence[Lane], window: Window, mask: Bool | None) -> tuple[Int, Columns]:
    """Return the keys (one row each) and columns of the operations with time in the window, by key and start."""
    found = [_of(lane, window, mask) for lane in lanes]
    none = np.zeros((0, len(Key._fields) + len(Columns._fields)), np.int64)
    table = np.concatenate([none, *found])
    *keys, start, _, _, row = table.T
    table = table[np.lexsort([row, start, *reversed(keys)])]
    return table[:, : len(Key._fields)], Columns(*table[:, len(Key._fields) :].T)


def _of(lane: Lane, window: Window, mask: Bool | None) -> Int:
    rows = lane.within(*window)
    if mask is not None:
        rows = rows[mask.take(lane.operations.work[rows])]
    columns = [column.astype(np.int64) for column in lane.operations.taken(rows)]
    return np.stack([*(np.full(len(rows), part) for part in lane.key), *columns], axis=1)
