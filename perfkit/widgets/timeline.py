"""The timeline of an explorer: drag to zoom in, click a kernel for its dossier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from html import escape
from typing import Any, Protocol

import ipywidgets
import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Window
from perfkit.analysis.lanes import Lanes, Launching
from perfkit.charts.detail import BINS, CHOSEN, CLICKED, RESET, SPANS, canvas, timeline
from perfkit.charts.tables import card
from perfkit.charts.theme import FAMILY_COLOURS, devices
from perfkit.format import TIME, duration, elided, printable, size, unit
from perfkit.run import Run
from perfkit.selection import Selection, extent
from perfkit.tables import API_CALLS
from perfkit.widgets import timeline_data
from perfkit.widgets.live import Later
from perfkit.widgets.timeline_data import BINS_ACROSS, Dossiers, Part, Source, chosen, copied, empty, launched, part


class Chooser(Protocol):
    """What of `perfkit.widgets.choice.Explorer` the timeline uses."""

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
LONGEST_REASON = 400  # characters of a reason
MOST_STREAMS = 40
NONE = "no operation"
NO_CALL = Launching(API_CALLS.empty())
BESIDE: dict[str, tuple[Callable[[pd.DataFrame], Source], Callable[[Chooser], pd.DataFrame]]] = {
    "copies": (timeline_data.copies, lambda chooser: chooser.run.copies),
    "API calls": (timeline_data.calls, lambda chooser: chooser.run.api_calls),
    "NVTX ranges": (timeline_data.ranges, lambda chooser: chooser.run.ranges),
    "steps": (timeline_data.steps, lambda chooser: chooser.steps),
}


class Levels:
    """The parts of the picture of a run, sorted when first asked for; `is_lacking` until `changed` is called."""

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
        table = later.soon() if self._is_large else later.now()
        if later.failed:
            return printable(str(later.failed), LONGEST_REASON)
        if table is not None:
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
        note = "" if len(streams) == every else f"These are the busiest {len(streams)} of {every} streams."
        labels = devices(streams).tolist()
        if count > MOST:
            bins = self.lanes.busy(window=window, bins=BINS_ACROSS, ranks=ranks, gpus=gpus, names=names)
            return Part(labels, _in_lanes(bins, streams)[[*BINS]], empty(SPANS), count, counted, note)
        intervals = self.lanes.intervals(window=window, ranks=ranks, gpus=gpus, names=names, most=MOST)
        spans, why = self._described(_in_lanes(intervals, streams))
        return Part(labels, empty(BINS), spans, count, counted, " ".join(filter(None, (note, why))))

    def beside(self, name: str, seen: Selection, window: Window) -> Part:
        """Return the lanes of one of `BESIDE`; none, and why, while its table is being sorted."""
        why = self._lacking(self._sources[name], name[:1].upper() + name[1:])
        source = self._sources[name].made
        return part(source, seen, window) if source else Part([], empty(BINS), empty(SPANS), 0, "", why)

    def _worked(self, column: str, chosen: Sequence[int]) -> list[int] | None:
        """Return those chosen that have operations, not readings alone; None if none has."""
        every = self.lanes.devices[column].tolist()
        worked = [one for one in chosen if one in every]
        return None if not every or (chosen and not worked) else worked

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
        """Return intervals of the streams with name, kind, launching call and click id; say so without calls."""
        copied, row = (found["table"] == "COPIES").to_numpy(), found["row"].to_numpy()
        process = np.zeros(len(found), np.int64)
        for mine, table in ((~copied, self.run.kernels), (copied, self.run.copies)):
            process[mine] = table["process"].to_numpy()[row[mine]]
        name = found["name"].to_numpy(object, na_value="no name")
        kind = found["family"].to_numpy(object, na_value="other")
        kind[~np.isin(kind, [*FAMILY_COLOURS])] = "other"
        kind[copied] = np.where(name[copied] == "memset", "other", "copy")
        moved = self.run.copies["bytes"].to_numpy()[row[copied]]
        name[copied] = [f"{way} {size(count)}" for way, count in zip(name[copied], moved, strict=True)]
        columns = {column: found[column].to_numpy() for column in ("lane", "start_ns", "dur_ns", "correlation")}
        why = self._lacking(self._launching, "The calls that launched these operations")
        launch = (self._launching.made or NO_CALL).of(found["rank"].to_numpy(), process, columns["correlation"])
        lone = {"level": 0, "levels": 1, "id": np.where(copied, -1 - row, row)}
        return pd.DataFrame({**columns, "name": name, "kind": kind, **lone, **launch})[[*SPANS]], why


MOST_GPUS, LONGEST_PATTERN = 3, 40  # named in a title; characters of a pattern
HINT = "Drag across to look closer; double-click for the whole recording."
FILLED = "A lane is filled to the share of each bin's time that it was busy; grey is idle."
SINGLE = "One bar per operation: click it for what is known of it."
NOTHING = "No kernel or copy ran in this window. Choose a longer one, or the whole recording."
SOON = "The CUDA calls are still being read; what is known of this operation follows."
LONGEST = 60  # characters of a name in a caption
MOVES = {"whole recording": "home", "zoom out": "search-minus", "left": "arrow-left", "right": "arrow-right"}


class Zoomable:
    """The timeline of an explorer; `view` holds the buttons, the picture, and what was clicked."""

    def __init__(self, explorer: Chooser) -> None:
        self.explorer, self.levels = explorer, Levels(explorer, self._draw_again)
        self._awaited = ""  # the operation that was clicked before what is known of it was read
        self._drawn: tuple[Any, ...] = ()
        self._axis_ns = 1.0  # ns that one is on the axis that is seen
        self.picture = canvas()
        self.moves = {name: _button(ipywidgets.Button, name, icon=icon) for name, icon in MOVES.items()}
        self.beside = {name: _button(ipywidgets.ToggleButton, name) for name in BESIDE}
        self.said, self.known = ipywidgets.HTML(), ipywidgets.HTML()
        buttons = [*self.moves.values(), ipywidgets.Label("also show"), *self.beside.values()]
        row = ipywidgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        self.view = ipywidgets.VBox([row, self.said, self.picture, self.known])
        self._observe()
        self._draw()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _observe(self) -> None:
        self.explorer.observe(self._draw, ["selection", "problem"])
        for toggle in self.beside.values():
            toggle.observe(self._draw, "value")
        for button in self.moves.values():
            button.on_click(lambda pressed: self.go(pressed.description))
        self.picture.listen(CHOSEN, self._brushed)
        self.picture.listen(CLICKED, self._clicked)
        self.picture.listen(RESET, lambda _: self.go("whole recording"))

    @property
    def whole(self) -> Window:
        """From the first to the last operation, as the explorer's overview; the recording where there is none."""
        span = self.explorer.lanes.span
        first, last = span if span[1] > span[0] else extent(self.explorer.run)
        return first, max(last, first + 1)

    @property
    def window(self) -> Window:
        """What the picture spans."""
        seen = self.explorer.selection
        return seen.window if seen is not None and seen.window else self.whole

    def go(self, where: str) -> None:
        """Move the explorer's window: to the "whole recording", "zoom out", "left" or "right" by half its length."""
        first, last = self.window
        half = max((last - first) // 2, 1)
        if where == "whole recording":
            self.explorer.window = ()
        elif where == "zoom out":
            self._look(first - half, last + half)
        else:
            start, end = self.whole
            by = -half if where == "left" else half
            by = min(max(by, start - first), end - last)  # keeps its length at the ends
            self._look(first + by, last + by)

    def _look(self, first: int, last: int) -> None:
        """Set the explorer's window, as far as it lies in the recording."""
        start, end = self.whole
        first = min(max(first, start), end - 1)
        last = max(min(last, end), first + 1)
        self.explorer.window = () if (first, last) == (start, end) else (first, last)

    def _brushed(self, edges: list[float]) -> None:
        first, last = sorted(round(edge * self._axis_ns) for edge in edges)
        self._look(first, last)

    def _draw(self, _: Any = None) -> None:
        """Draw the choice, unless it is what is seen."""
        seen, problem = self.explorer.selection, self.explorer.problem
        state = (seen, problem, [name for name, toggle in self.beside.items() if toggle.value])
        if state == self._drawn:
            return
        self._drawn = state
        why = problem if seen is None else self._pictured(seen, state[-1])
        self.said.value = f"<p>{escape(why)}</p>" if why else ""
        self.picture.layout.display = "none" if why else None

    def _draw_again(self) -> None:
        """Draw what was drawn without a table that has been read since, and show what was clicked before."""
        if self.levels.is_lacking:
            self._drawn = ()
            self._draw()
        if self._awaited:
            self._clicked(self._awaited)

    def _pictured(self, seen: Selection, beside: list[str]) -> str:
        """Draw the lanes; return the sentence why there is nothing in them."""
        window = self.window
        self.levels.is_lacking = False
        operations = self.levels.operations(seen, window)
        parts = [operations, *(self.levels.beside(name, seen, window) for name in beside)]
        if not any(part.amount for part in parts):
            return NOTHING
        self._axis_ns = unit(window[1] - window[0], TIME).size
        labels, bins, spans = joined(parts)
        title = titled(operations, chosen(self.explorer.lanes.devices, seen), seen, window)
        self.picture.draw(timeline(labels, bins, spans, window=window, title=title, explanation=explained(parts)))
        return ""

    def _clicked(self, number: str) -> None:
        """Show the operation that was clicked: a row of KERNELS, or, counted down from -1, one of COPIES."""
        seen, row = self.explorer.selection, int(number)
        if seen is None:
            return
        launching = self.levels.launching
        self._awaited = "" if launching else number
        if launching is None:
            self.known.value = f"<p>{SOON}</p>"
            return
        run = self.explorer.run
        if row < 0:
            shown = {"This copy": copied(run, -1 - row, launching)}
        else:
            launch = launched(run, row, launching)
            name = str(launch["name"].iloc[0])
            every = f"All launches of {elided(name, LONGEST)} in these {duration(self.window[1] - self.window[0])}"
            shown = {"This launch": launch, every: self.levels.dossiers.of(name, seen, self.window)}
        cards = "".join(card(frame, caption=caption).html for caption, frame in shown.items())
        self.known.value = f'<div style="display:flex;flex-wrap:wrap;gap:0 3em">{cards}</div>'


def zoomable(explorer: Chooser) -> Zoomable:
    """Return the timeline of an explorer, which sets its window; many operations are drawn as busy shares of bins."""
    return Zoomable(explorer)


def _button(kind: Any, name: str, **more: Any) -> Any:
    return kind(description=name, layout={"width": "auto"}, **more)


def _in_lanes(found: pd.DataFrame, streams: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the streams shown, with the number of their lane."""
    lane = pd.MultiIndex.from_frame(streams).get_indexer(pd.MultiIndex.from_frame(found[STREAM]))
    return found.assign(lane=lane)[lane >= 0].reset_index(drop=True)


def joined(parts: Sequence[Part]) -> tuple[list[str], pd.DataFrame, pd.DataFrame]:
    """Return labels, bins and intervals of all parts, with the lanes numbered on."""
    labels: list[str] = []
    frames: dict[str, list[pd.DataFrame]] = {"bins": [], "spans": []}
    for lane_part in parts:
        for name, rows in frames.items():
            frame: pd.DataFrame = getattr(lane_part, name)
            rows += [frame.assign(lane=frame["lane"] + len(labels))] if len(frame) else []
        labels += lane_part.labels
    bins = pd.concat(frames["bins"], ignore_index=True) if frames["bins"] else parts[0].bins
    return labels, bins, pd.concat(frames["spans"], ignore_index=True) if frames["spans"] else parts[0].spans


def titled(part: Part, places: pd.DataFrame, seen: Selection, window: Window) -> str:
    """Return what is seen of the operations on the devices with these ranks and GPUs."""
    names = devices(places).tolist()
    gpus = ", ".join(names) if len(names) <= MOST_GPUS else f"{len(names)} GPUs"
    chosen = f", kernels matching “{printable(seen.pattern, LONGEST_PATTERN)}”" if seen.pattern else ""
    chosen += f", {', '.join(seen.families)} kernels" if seen.families else ""
    return f"{gpus or 'No GPU'}: {part.counted} in {duration(window[1] - window[0])}{chosen}"


def explained(parts: Sequence[Part]) -> list[str]:
    """Return lines on how many intervals lie in the lanes beside the streams, and how to read them."""
    first, *beside = parts
    counted = "; ".join(part.counted for part in beside if part.counted)
    notes = [part.said for part in parts if part.said]
    reading = [FILLED] if any(len(part.bins) for part in parts) else []
    reading += [SINGLE] if len(first.spans) else []
    return [line for line in (f"{counted}." if counted else "", *notes, " ".join(reading), HINT) if line]
