"""When did GPUs do nothing in any window, answered at once: the gaps are found once and asked many times."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    CAUSES,
    PARTS,
    Determinable,
    is_graph_launch,
    judged,
    migrated,
    started_by,
    where,
)
from perfkit.analysis.gap_parts import Host, cut_off
from perfkit.analysis.gaps import GAPS, idle_gaps
from perfkit.analysis.intervals import Bool, Int, Window, Windows, bounds, device_key, devices
from perfkit.analysis.intervals import spans as spans_of
from perfkit.schema import unique
from perfkit.tables import API_CALLS, COPIES, KERNELS, OS_CALLS, RANGES

EDGE = CAUSES.index("edge")
TEXTS = ("detail", "api", "range", "launch")
Ids = Sequence[int]


class _Inside(NamedTuple):
    """Device, times and row of whole gaps in a window; the row is -1 where a device has not begun, or has ended."""

    device: Int
    start: Int
    end: Int
    row: Int


_NO_GAPS = _Inside(*[np.zeros(0, np.int64)] * 4)


class Idle:
    """What `perfkit.analysis.gaps.idle_gaps` says of any window and devices, kept with about 140 bytes per gap."""

    def __init__(
        self,
        kernels: pd.DataFrame,
        copies: pd.DataFrame,
        api_calls: pd.DataFrame,
        *,
        ranges: pd.DataFrame | None = None,
        os_calls: pd.DataFrame | None = None,
        stepped: Mapping[int, Window] = MappingProxyType({}),
    ) -> None:
        frames = [KERNELS.check(kernels), COPIES.check(copies)]
        self._devices, groups = devices(*frames)
        self._first, self._last = spans_of(frames, groups, len(self._devices), None, own=True)
        worked = spans_of(frames, groups, len(self._devices), stepped)
        is_stepped = np.isin(self._devices["rank"].to_numpy(), list(stepped))
        # From when to when the gaps of each device have causes: the steps hold all operations.
        self._known = (
            np.where(is_stepped, worked[0], self._first),
            np.where(is_stepped, worked[1], self._last),
        )
        gaps = idle_gaps(
            *(kernels, copies, api_calls),
            ranges=ranges,
            os_calls=os_calls,
            window=stepped or None,
            stepped=stepped,
        )
        ranges = RANGES.given(ranges)
        self._host = Host(api_calls, ranges, OS_CALLS.given(os_calls))
        # What lies before and after all work of a device depends on which others are chosen with
        # it.
        self._gaps = gaps[gaps["cause"] != "edge"].reset_index(drop=True)
        self._start = self._gaps["start_ns"].to_numpy()
        gap, device = (
            device_key(f["rank"].to_numpy(), f["gpu"].to_numpy())
            for f in (self._gaps, self._devices)
        )
        self._bounds = np.searchsorted(gap, np.append(device, np.iinfo(np.int64).max))
        self._count_calls(frames, groups, API_CALLS.check(api_calls))

    def _count_calls(
        self, frames: list[pd.DataFrame], groups: list[Int], api_calls: pd.DataFrame
    ) -> None:
        """Count the operations of each device and those without a call; note where those of graph launches ran."""
        call = np.concatenate([started_by(frame, api_calls) for frame in frames])
        device, count = np.concatenate(groups), len(self._devices)
        kernels, copies = frames
        launched = ~np.r_[np.zeros(len(kernels), bool), migrated(copies).to_numpy(bool)]
        self._operations = np.bincount(device[launched], minlength=count)
        self._lacking = np.bincount(device[launched & (call < 0)], minlength=count)
        graphs = where(api_calls["name"], is_graph_launch)
        self._graph_ranks = api_calls["rank"].to_numpy()[graphs]
        number = np.where(graphs, np.cumsum(graphs) - 1, -1)
        of_graph = np.append(number, -1)[call]
        ran = unique(of_graph[of_graph >= 0] * max(count, 1) + device[of_graph >= 0])
        self._graph, self._graph_device = np.divmod(ran, max(count, 1))

    def gaps(
        self, *, window: Windows | None = None, ranks: Ids = (), gpus: Ids = ()
    ) -> pd.DataFrame:
        """Return the times at which a device does nothing, with what it was waiting for.

        A window that is omitted, or that of a rank which is not listed in several, is the span of
        the operations of all these devices of the rank; empty `ranks` and `gpus` keep all. The
        table GAPS is that of `idle_gaps` for the operations of these devices, and the calls and
        ranges of these ranks. What lies before and after all work of a `stepped` rank has a cause
        in windows of ranks, and is an edge in one window.
        """
        kept = np.flatnonzero(self._chosen(ranks, gpus))
        first, last = self._windows(kept, window)
        worked = self._first, self._last
        if window is not None and isinstance(window, Mapping):
            worked = self._known
        elif (
            window is None
            and len(kept) == len(self._devices)
            and (self._known[0] == first).all()
            and (self._known[1] == last).all()
        ):
            return self._gaps
        parts = [
            _NO_GAPS,
            *(
                self._inside(
                    device,
                    (int(first[device]), int(last[device])),
                    (int(worked[0][device]), int(worked[1][device])),
                )
                for device in kept.tolist()
            ),
        ]
        every = _Inside(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        return self._cut(every, first, last)

    def determinable(self, *, ranks: Ids = (), gpus: Ids = ()) -> Determinable:
        """Return whether enough operations have their launch call to speak of causes; arguments as in `gaps`.

        As `perfkit.analysis.causes.determinable` says of the operations of these devices and the
        calls of these ranks.
        """
        kept = self._chosen(ranks, gpus)
        there = (
            np.isin(self._graph_ranks, np.asarray(ranks))
            if len(ranks)
            else np.ones(len(self._graph_ranks), bool)
        )
        filled = np.zeros(len(there), bool)
        filled[self._graph[kept[self._graph_device]]] = True
        operations, lacking = (
            int(counts[kept].sum()) for counts in (self._operations, self._lacking)
        )
        return judged(operations, lacking, int(there.sum()), int((there & ~filled).sum()))

    def _chosen(self, ranks: Ids, gpus: Ids) -> Bool:
        kept = np.ones(len(self._devices), bool)
        for column, wanted in (("rank", ranks), ("gpu", gpus)):
            kept &= (
                np.isin(self._devices[column].to_numpy(), np.asarray(wanted))
                if len(wanted)
                else True
            )
        return kept

    def _windows(self, kept: Int, window: Windows | None) -> tuple[Int, Int]:
        """Return from when to when each device that is `kept` is looked at."""
        if window is not None and not isinstance(window, Mapping):
            edges = bounds(window)
            count = len(self._devices)
            return np.full(count, edges[0], np.int64), np.full(count, edges[1], np.int64)
        first, last = self._first.copy(), self._last.copy()
        rank = self._devices["rank"].to_numpy()[kept]
        for one in np.unique(rank).tolist():
            mine = kept[rank == one]
            whole = int(first[mine].min()), int(last[mine].max())
            first[mine], last[mine] = (window or {}).get(one, whole)
        return first, last

    def _inside(self, device: int, window: Window, worked: Window) -> _Inside:
        """Return the gaps of a device that overlap a window, with the time before and after it `worked`."""
        low, high = self._bounds[device], self._bounds[device + 1]
        starts = self._start[low:high]
        stops = starts + self._gaps["dur_ns"].to_numpy()[low:high]
        since, until = max(window[0], worked[0]), min(window[1], worked[1])
        row = np.arange(
            *(np.searchsorted(stops, since, side="right"), np.searchsorted(starts, until))
        )
        start, end, row = starts[row], stops[row], row + low
        if window[0] < worked[0]:
            until = min(worked[0], window[1])
            start, end, row = np.r_[window[0], start], np.r_[until, end], np.r_[-1, row]
        if window[1] > worked[1]:
            since = max(worked[1], window[0])
            start, end, row = np.r_[start, since], np.r_[end, window[1]], np.r_[row, -1]
        return _Inside(np.full(len(row), device), start, end, row)

    def _cut(self, gaps: _Inside, first: Int, last: Int) -> pd.DataFrame:
        """Return the gaps as a table, cut at the edges of their device's window."""
        row = gaps.row
        columns: dict[str, Any] = {"start_ns": gaps.start, "dur_ns": gaps.end - gaps.start}
        for name, missing in (("cause", EDGE), *((text, -1) for text in TEXTS)):
            column = self._gaps[name].cat
            codes = np.append(column.codes.to_numpy(), np.int8(missing))
            columns[name] = pd.Categorical.from_codes(codes[row], column.categories)
        columns |= {
            name: np.append(self._gaps[name].to_numpy(), -1)[row] for name in ("process", "thread")
        }
        columns |= {
            name: np.append(self._gaps[name].to_numpy(), 0)[row] for name in ("inside_ns", *PARTS)
        }
        before = np.append(self._gaps["before_ns"].to_numpy(), 0)[row]
        columns["before_ns"] = np.where(row < 0, gaps.end - gaps.start, before)
        places = self._devices.take(gaps.device).reset_index(drop=True)
        columns |= {str(name): places[name].array for name in places}
        whole = pd.DataFrame({name: columns[name] for name in GAPS.column_names}, copy=False)
        return cut_off(whole, first[gaps.device], last[gaps.device], self._host)
