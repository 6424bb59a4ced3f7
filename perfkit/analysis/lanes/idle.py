"""The idle times of a run's devices, found once, so that those of any window are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.calls import is_graph_launch, started_by, where
from perfkit.analysis.causes import CAUSES, Determinable, judged
from perfkit.analysis.gaps import GAPS, idle_gaps
from perfkit.analysis.intervals import Int
from perfkit.analysis.window import Window, bounds, devices, spans
from perfkit.tables import API_CALLS, COPIES, KERNELS

EDGE = CAUSES.index("edge")
TEXTS = ("detail", "api", "range")


class _Inside(NamedTuple):
    """Device, times and row of gaps inside a window; the row is -1 where a device has not begun, or has ended."""

    device: Int
    start: Int
    end: Int
    row: Int


class Idle:
    """What `perfkit.analysis.gaps.idle_gaps` says of any window and choice of devices, without looking for gaps again.

    Parameters
    ----------
    kernels, copies, api_calls, ranges
        KERNELS, COPIES, API_CALLS and RANGES of a run; may be empty. About 50 bytes per gap are kept.

    Raises
    ------
    SchemaError
        If a table does not match its schema.

    Examples
    --------
    >>> Idle(KERNELS.empty(), COPIES.empty(), API_CALLS.empty()).gaps(window=(0, 9)).empty
    True
    """

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
        self,
        *,
        window: Window | None = None,
        ranks: Sequence[int] = (),
        gpus: Sequence[int] = (),
    ) -> pd.DataFrame:
        """Return the times at which a device does nothing, with what it was waiting for.

        Parameters
        ----------
        window
            (start_ns, end_ns), half open; the span of each device's operations when omitted.
        ranks, gpus
            Ranks and CUDA ordinals to keep; empty keeps all. One without operations has no gaps.

        Returns
        -------
        pandas.DataFrame
            Table `GAPS`, as `idle_gaps` returns it for the operations of these devices, and the calls and ranges of
            these ranks.

        Raises
        ------
        ValueError
            If the window does not end after it starts.
        """
        kept = np.flatnonzero(self._chosen(ranks, gpus))
        if window is not None:
            return self._cut(_joined([self._inside(device, bounds(window)) for device in kept.tolist()]), window)
        if len(kept) == len(self._devices):
            return self._gaps
        rows = [np.arange(self._bounds[device], self._bounds[device + 1]) for device in kept.tolist()]
        return self._gaps.take(np.concatenate([np.zeros(0, np.int64), *rows])).reset_index(drop=True)

    def determinable(self, *, ranks: Sequence[int] = (), gpus: Sequence[int] = ()) -> Determinable:
        """Return whether enough operations have their launch call to speak of causes; arguments as in `gaps`.

        As `perfkit.analysis.gaps.determinable` says of the operations of these devices and the calls of these ranks.
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


def _pairs(frame: pd.DataFrame) -> Int:
    """Return one integer per rank and GPU that sorts like the pair."""
    rank, gpu = (frame[column].to_numpy(np.int64) for column in ("rank", "gpu"))
    return np.asarray(rank * 2**32 + gpu, np.int64)


def _joined(parts: Sequence[_Inside]) -> _Inside:
    none = _Inside(*[np.zeros(0, np.int64)] * 4)
    return _Inside(*(np.concatenate(columns) for columns in zip(none, *parts, strict=True)))
