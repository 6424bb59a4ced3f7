"""What of a choice is drawn in which lane: bins where there is much, intervals one by one where there is little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import pandas as pd

from perfkit.analysis.lanes import Lanes, Launching
from perfkit.analysis.window import Window
from perfkit.charts.detail import BINS, SPANS
from perfkit.charts.labels import devices
from perfkit.charts.theme import FAMILY_COLOURS
from perfkit.format import printable, size
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.tables import API_CALLS
from perfkit.widgets.later import Later
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
MANY = 1_000_000  # kernels up to which tables are sorted while a person waits
LONGEST = 400  # characters of a reason
MOST_STREAMS = 40
NONE = "no operation"
NO_CALL = Launching(API_CALLS.empty())
BESIDE: dict[str, tuple[Callable[[pd.DataFrame], Source], Callable[[Chooser], pd.DataFrame]]] = {
    "copies": (sources.copies, lambda chooser: chooser.run.copies),
    "API calls": (sources.calls, lambda chooser: chooser.run.api_calls),
    "NVTX ranges": (sources.ranges, lambda chooser: chooser.run.ranges),
    "steps": (sources.steps, lambda chooser: chooser.steps),
}


class Levels:
    """The parts of the picture of a run; tables are sorted when first asked for.

    Those of a large run are sorted beside all else. A part is then drawn without them at first, `is_lacking` says so,
    and `changed` is called when they are there.
    """

    def __init__(self, chooser: Chooser, changed: Callable[[], None]) -> None:
        self._chooser, self.run, self.lanes, self._changed = chooser, chooser.run, chooser.lanes, changed
        self._is_large = len(self.run.kernels) > MANY
        self._launching = Later(lambda: Launching(self.run.api_calls))
        self._sources = {name: Later(partial(self._sorted, name)) for name in BESIDE}
        self._streams: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[pd.DataFrame, int]] = {}
        self.is_lacking = False
        if self._is_large:
            self._launching.soon()  # the first close look asks for it

    @cached_property
    def _busy(self) -> pd.DataFrame:
        """The busy time of each stream and kind."""
        return self.lanes.busy(bins=1)

    def _sorted(self, name: str) -> Source:
        lanes_of, table = BESIDE[name]
        return lanes_of(table(self._chooser))

    def _lacking(self, later: Later[Any], what: str) -> str:
        """Have a table sorted if it is not; return the sentence why it is not there, empty if it is."""
        found = later.soon() if self._is_large else later.now()
        if later.failed:
            return printable(str(later.failed), LONGEST)
        if found is not None:
            return ""
        self.is_lacking = True
        later.then(self._changed)
        return f"{what} are still being read."

    @property
    def launching(self) -> Launching | None:
        """The calls of the run by correlation; None while they are being sorted, without any if they cannot be read."""
        self._lacking(self._launching, "CUDA calls")
        return NO_CALL if self._launching.failed else self._launching.made

    @cached_property
    def dossiers(self) -> Dossiers:
        """The dossiers of the run's kernels; waits for its calls."""
        self._launching.now()
        return Dossiers(self.run, self.lanes, self._launching.made or NO_CALL)

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
        spans, why = self._described(_in_lanes(found, streams))
        return Part(labels, empty(BINS), spans, count, counted, " ".join(filter(None, (said, why))))

    def beside(self, name: str, seen: Selection, window: Window) -> Part:
        """Return the lanes of one of `BESIDE`; none, and why, while its table is being sorted."""
        why = self._lacking(self._sources[name], name[:1].upper() + name[1:])
        source = self._sources[name].made
        return part(source, seen, window) if source else Part([], empty(BINS), empty(SPANS), 0, "", why)

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

    def _described(self, found: pd.DataFrame) -> tuple[pd.DataFrame, str]:
        """Return intervals of the streams with name, kind, launching call, and what a click on them reports.

        Where the calls are not known yet the sentence that follows says so.
        """
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
        why = self._lacking(self._launching, "The calls that launched these operations")
        launch = (self._launching.made or NO_CALL).of(found["rank"].to_numpy(), process, columns["correlation"])
        lone = {"level": 0, "levels": 1, "id": np.where(copied, -1 - row, row)}
        return pd.DataFrame({**columns, "name": name, "kind": kind, **lone, **launch})[[*SPANS]], why


def _in_lanes(found: pd.DataFrame, streams: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the streams shown, with the number of their lane."""
    lane = pd.MultiIndex.from_frame(streams).get_indexer(pd.MultiIndex.from_frame(found[STREAM]))
    return found.assign(lane=lane)[lane >= 0].reset_index(drop=True)
