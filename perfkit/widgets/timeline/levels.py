"""What of a choice is drawn in which lane: bins where there is much, intervals one by one where there is little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock, Thread
from typing import Any, Protocol

import numpy as np
import pandas as pd

from perfkit.analysis.lanes import Lanes, Launching
from perfkit.analysis.window import Window
from perfkit.charts.detail import BINS, SPANS
from perfkit.charts.labels import devices
from perfkit.charts.theme import FAMILY_COLOURS
from perfkit.errors import PerfkitError
from perfkit.format import size
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.timeline import sources
from perfkit.widgets.timeline.beside import BINS_ACROSS, Part, empty, part
from perfkit.widgets.timeline.clicked import Dossiers
from perfkit.widgets.timeline.sources import Source


class Chooser(Protocol):
    """What of `perfkit.widgets.explorer.Explorer` the timeline uses."""

    run: Run
    lanes: Lanes
    window: tuple[int, ...]
    selection: Selection | None
    problem: str

    @property
    def steps(self) -> pd.DataFrame:
        """The iterations."""

    def observe(self, handler: Callable[[Any], None], names: Sequence[str]) -> None:
        """Call the handler when one of the traits changes."""


STREAM = ["rank", "gpu", "stream"]
MOST = 2_000  # operations drawn one by one
MOST_STREAMS = 40
NONE = "no operation"
BESIDE: dict[str, tuple[Callable[[pd.DataFrame], Source], Callable[[Chooser], pd.DataFrame]]] = {
    "copies": (sources.copies, lambda chooser: chooser.run.copies),
    "API calls": (sources.calls, lambda chooser: chooser.run.api_calls),
    "NVTX ranges": (sources.ranges, lambda chooser: chooser.run.ranges),
    "steps": (sources.steps, lambda chooser: chooser.steps),
}


class Levels:
    """The parts of the picture of a run; tables are sorted when first asked for."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser, self.run, self.lanes = chooser, chooser.run, chooser.lanes
        self._sources: dict[str, Source] = {}
        self._sorting = Lock()
        self._launching: Launching | None = None
        self._streams: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[pd.DataFrame, int]] = {}

    @cached_property
    def _busy(self) -> pd.DataFrame:
        """The busy time of each stream and kind."""
        return self.lanes.busy(bins=1)

    @property
    def launching(self) -> Launching:
        """The calls of the run by correlation."""
        with self._sorting:
            if self._launching is None:
                self._launching = Launching(self.run.api_calls)
            return self._launching

    def prepare(self) -> None:
        """Begin to sort the calls that a first close look asks for, of millions a second's work, beside all else."""
        Thread(target=self._prepared, daemon=True).start()

    def _prepared(self) -> None:
        with suppress(PerfkitError):  # who asks for the calls is told
            _ = self.launching

    @cached_property
    def dossiers(self) -> Dossiers:
        """The dossiers of the run's kernels."""
        return Dossiers(self.run, self.lanes, self.launching)

    def operations(self, seen: Selection, window: Window) -> Part:
        """Return the streams: all that the chosen GPUs have, also where they rest, so that lanes keep their place."""
        ranks, gpus = self._worked("rank", seen.ranks), self._worked("gpu", seen.gpus)
        if ranks is None or gpus is None:
            return Part([], empty(BINS), empty(SPANS), 0, NONE)
        names = self.lanes.matching(seen.pattern, seen.families) if seen.filtered else None
        count = self.lanes.count(window=window, ranks=ranks, gpus=gpus, names=names)
        counted = f"{count:,} operation{'s' if count > 1 else ''}" if count else NONE
        streams, every = self._shown(tuple(ranks), tuple(gpus))
        said = "" if len(streams) == every else f"These are the busiest {len(streams)} of {every} streams."
        labels = devices(streams).tolist()
        if count > MOST:
            bins = self.lanes.busy(window=window, bins=BINS_ACROSS, ranks=ranks, gpus=gpus, names=names)
            return Part(labels, _in_lanes(bins, streams)[[*BINS]], empty(SPANS), count, counted, said)
        found = self.lanes.intervals(window=window, ranks=ranks, gpus=gpus, names=names, most=MOST)
        return Part(labels, empty(BINS), self._described(_in_lanes(found, streams)), count, counted, said)

    def beside(self, name: str, seen: Selection, window: Window) -> Part:
        """Return the lanes of one of `BESIDE`."""
        if name not in self._sources:
            lanes_of, table = BESIDE[name]
            self._sources[name] = lanes_of(table(self._chooser))
        return part(self._sources[name], seen, window)

    def _worked(self, column: str, chosen: Sequence[int]) -> list[int] | None:
        """Return those chosen that have operations, not readings alone; None if none has."""
        known = self.lanes.devices[column].tolist()
        kept = [one for one in chosen if one in known]
        return None if not known or (chosen and not kept) else kept

    def _shown(self, ranks: tuple[int, ...], gpus: tuple[int, ...]) -> tuple[pd.DataFrame, int]:
        """Return rank, gpu and stream of the busiest streams, sorted by these, and how many there are."""
        if (ranks, gpus) not in self._streams:
            kept = self._busy
            for column, chosen in (("rank", ranks), ("gpu", gpus)):
                kept = kept[kept[column].isin(chosen)] if chosen else kept
            every = kept.groupby(STREAM)["busy_ns"].sum().sort_values(ascending=False, kind="stable")
            shown = every.head(MOST_STREAMS).index.to_frame(index=False).sort_values(STREAM, ignore_index=True)
            self._streams[ranks, gpus] = shown, len(every)
        return self._streams[ranks, gpus]

    def _described(self, found: pd.DataFrame) -> pd.DataFrame:
        """Return intervals of the streams with name, kind, launching call, and what a click on them reports."""
        copied, row = (found["table"] == "COPIES").to_numpy(), found["row"].to_numpy()
        process = np.zeros(len(found), np.int64)
        for mine, table in ((~copied, self.run.kernels), (copied, self.run.copies)):
            process[mine] = table["process"].to_numpy()[row[mine]]
        name, kind = (
            found["name"].to_numpy(object, na_value="no name"),
            found["family"].to_numpy(object, na_value="other"),
        )
        kind[~np.isin(kind, [*FAMILY_COLOURS])] = "other"
        kind[copied] = np.where(name[copied] == "memset", "other", "copy")
        moved = self.run.copies["bytes"].to_numpy()[row[copied]]
        name[copied] = [f"{way} {size(count)}" for way, count in zip(name[copied], moved, strict=True)]
        columns = {column: found[column].to_numpy() for column in ("lane", "start_ns", "dur_ns", "correlation")}
        launch = self.launching.of(found["rank"].to_numpy(), process, columns["correlation"])
        lone = {"level": 0, "levels": 1, "id": np.where(copied, -1 - row, row)}
        return pd.DataFrame({**columns, "name": name, "kind": kind, **lone, **launch})[[*SPANS]]


def _in_lanes(found: pd.DataFrame, streams: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the streams shown, with the number of their lane."""
    lane = pd.MultiIndex.from_frame(streams).get_indexer(pd.MultiIndex.from_frame(found[STREAM]))
    return found.assign(lane=lane)[lane >= 0].reset_index(drop=True)
