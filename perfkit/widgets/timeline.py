"""The timeline of an explorer: gestures become its window, a click shows what is known, a search marks and jumps."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np
import pandas as pd

from perfkit import diagnosis
from perfkit.analysis.intervals import Window
from perfkit.analysis.lanes import Launching
from perfkit.analysis.stacks import strip
from perfkit.charts import detail
from perfkit.charts.detail import BINS, FLAME, GPU, GROUP, SPANS, Canvas
from perfkit.charts.tables import card
from perfkit.charts.theme import FAMILY_COLOURS, MOST_ROWS
from perfkit.format import duration, elided, printable, size
from perfkit.selection import Selection, extent, select
from perfkit.tables import API_CALLS
from perfkit.widgets import timeline_data, timeline_search
from perfkit.widgets.live import Later
from perfkit.widgets.timeline_data import (
    LINED,
    ON_GPU,
    STREAM,
    THREAD,
    Part,
    Source,
    empty,
    fitting,
)
from perfkit.widgets.timeline_search import Dossiers, copied, launched

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer


MOST = 2_000  # operations drawn one by one
MANY = 1_000_000  # kernels up to which tables are sorted while a person waits
LONGEST_REASON = 400  # characters of a reason
MOST_GROUPS = 80  # GPUs
SHARED = "A lane of several streams shows computation, and above it what works beyond it. Click ▸ to see each stream."
NONE = "no operation"
PROJECTED = ("RANGES", "KERNELS", "API_CALLS")
NO_CALL = Launching(API_CALLS.empty())
BESIDE: dict[
    str, tuple[Callable[[pd.DataFrame], Source], str]
] = {  # how lanes are made, and of which table
    ON_GPU: (timeline_data.on_gpus, "RANGES"),
    "copies": (timeline_data.copies, "COPIES"),
    "API calls": (timeline_data.calls, "API_CALLS"),
    "NVTX ranges": (timeline_data.ranges, "RANGES"),
    "operators": (timeline_data.operators, "OPS"),
    "Python": (timeline_data.python_calls, "PYTHON_CALLS"),
    "OS calls": (timeline_data.os_calls, "OS_CALLS"),
    "CPU samples": (timeline_data.sampled, "STACKS"),
    "collectives": (timeline_data.collectives, "COLLECTIVES"),
    "steps": (timeline_data.steps, "KERNELS"),
    "phases": (timeline_data.phases, "KERNELS"),
    "scheduling": (timeline_data.scheduled, "SCHEDULE"),
    "profiler": (timeline_data.profiled, "OVERHEAD"),
    "unknown time": (timeline_data.unknown, "KERNELS"),
}
ABOVE = ("phases", ON_GPU)  # the streams
# Lanes at the start: what the threads do that launch work, and where the recording says nothing.
AT_START = ("phases", "API calls", "CPU samples", "NVTX ranges", "profiler", "unknown time")
# The table of the run without which nothing can be switched on.
NEEDED = {name: table for name, (_, table) in BESIDE.items()} | dict.fromkeys(LINED, "SAMPLES")


class Levels:
    """The parts of the picture of a run, sorted when first asked for; `is_lacking` until `changed` is called."""

    def __init__(self, explorer: Explorer, changed: Callable[[], None]) -> None:
        self._explorer, self.run, self.lanes, self._changed = (
            explorer,
            explorer.run,
            explorer.lanes,
            changed,
        )
        self.is_large = len(self.run.kernels) > MANY
        self._launching = Later(lambda: Launching(self.run.api_calls))
        self._sources = {name: Later(partial(self._sorted, name)) for name in BESIDE}
        self._streams: dict[tuple[tuple[int, ...], ...], tuple[pd.DataFrame, int]] = {}
        self._lanes: dict[tuple[tuple[Any, ...], ...], pd.DataFrame] = {}  # those drawn last
        self.opened: tuple[
            str, ...
        ] = ()  # labels of lanes of several streams that are seen one by one, too
        self.is_lacking = False
        if self.is_large:
            self._launching.soon()  # the first close look asks for it

    @cached_property
    def _busy(self) -> pd.DataFrame:
        return self.lanes.busy(bins=1)

    def _sorted(self, name: str) -> Source:
        lanes_of, table = BESIDE[name]
        if name == ON_GPU:
            return lanes_of(timeline_data.projected(*map(self.run.table, PROJECTED)))
        if name == "steps":
            return lanes_of(self._explorer.steps)
        if name == "phases":
            return lanes_of(diagnosis.repeating.phases(select(self.run)))
        if name == "CPU samples":
            return lanes_of(self._sampled())
        if name == "unknown time":
            return lanes_of(diagnosis.recording.unknown(select(self.run)))
        return lanes_of(self.run.table(table))

    def _sampled(self) -> pd.DataFrame:
        """Return what the samples met of the threads that call CUDA; of all where none is known to."""
        samples, calls = self.run.stacks, self.run.api_calls
        threads = pd.MultiIndex.from_frame(calls[THREAD].drop_duplicates())
        is_launching = pd.MultiIndex.from_frame(samples[THREAD]).isin(threads)
        chosen = samples[is_launching] if is_launching.any() else samples
        return strip(chosen, self.run.frames)

    def _lacking(self, later: Later[Any], what: str) -> str:
        """Have a table sorted if it is not; return the sentence why it is not there, empty if it is."""
        table = later.soon() if self.is_large else later.now()
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

    def operations(self, seen: Selection, window: Window, *, most: int = MOST_ROWS) -> Part:
        """Return the streams: all that the chosen GPUs have, also where they rest, so that lanes keep their place.

        `most`: the rows that a picture has room for; many lanes are divided into fewer bins.
        """
        asked = self.lanes.asked(seen.ranks, seen.gpus, seen.pattern, seen.families)
        if asked is None:
            return Part([], empty(BINS), empty(SPANS), 0, NONE)
        count = self.lanes.count(window=window, **asked)
        counted = f"{count:,} operation{'s' if count > 1 else ''}" if count else NONE
        streams, every = self._streams_of(asked["ranks"], asked["gpus"])
        key = asked["ranks"], asked["gpus"], self.opened
        if key not in self._lanes:
            self._lanes = {key: timeline_data.arranged(streams, self.opened)}
        lanes = self._lanes[key]
        labels = lanes.drop_duplicates("lane")["label"].tolist()
        note = (
            ""
            if len(streams) == every
            else f"These are the busiest {len(streams)} of {every} streams."
        )
        shared = frozenset(lanes.loc[lanes["levels"] > 1, "label"])
        if shared:
            note = f"{note} {SHARED}".strip()
        if count > MOST:

            def binned(across: int) -> pd.DataFrame:
                bins = self.lanes.busy(window=window, bins=across, **asked)
                return timeline_data.together(bins.merge(lanes, on=STREAM))[[*BINS]]

            return Part(
                labels, fitting(binned, most), empty(SPANS), count, counted, note, shared=shared
            )
        intervals = self.lanes.intervals(window=window, most=MOST, **asked)
        spans, why = self._described(intervals.merge(lanes, on=STREAM))
        note = " ".join(filter(None, (note, why)))
        return Part(labels, empty(BINS), spans, count, counted, note, "OPERATIONS", shared)

    def beside(self, name: str, seen: Selection, window: Window, *, most: int = MOST_ROWS) -> Part:
        """Return the lanes of one of `BESIDE`; none, and why, while its table is being sorted."""
        why = self._lacking(self._sources[name], name[:1].upper() + name[1:])
        source = self._sources[name].made
        if source is None:
            return Part([], empty(BINS), empty(SPANS), 0, "", why)
        return timeline_data.part(source, seen, window, most=most)

    def lane_of(self, name: str, row: pd.Series) -> str:
        """Return the label of the lane of one of `BESIDE` with a row of a thread; empty while it is not read."""
        source = self._sources[name].made
        if source is None:
            return ""
        lanes = source.lanes
        is_it = np.logical_and.reduce([lanes[column] == row[column] for column in THREAD])
        return str(lanes.loc[is_it, "label"].iloc[0]) if is_it.any() else ""

    def _streams_of(
        self, ranks: tuple[int, ...], gpus: tuple[int, ...]
    ) -> tuple[pd.DataFrame, int]:
        """Return rank, gpu and stream of the streams of the busiest GPUs, sorted by these, and how many there are."""
        if (ranks, gpus) not in self._streams:
            kept = self._busy
            for column, chosen in (("rank", ranks), ("gpu", gpus)):
                kept = kept[kept[column].isin(chosen)] if chosen else kept
            every = kept.groupby(STREAM, as_index=False)["busy_ns"].sum()
            work = every.groupby(STREAM[:2])["busy_ns"].transform("sum")
            busiest = work.drop_duplicates().nlargest(MOST_GROUPS).min() if len(work) else 0
            shown = every[work >= busiest].sort_values(STREAM, ignore_index=True)
            self._streams[ranks, gpus] = shown[STREAM], len(every)
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
        name[copied] = [
            f"{way} {size(count)}" for way, count in zip(name[copied], moved, strict=True)
        ]
        columns = {
            column: found[column].to_numpy()
            for column in ("lane", "start_ns", "dur_ns", "correlation")
        }
        why = self._lacking(self._launching, "The calls that launched these operations")
        launch = (self._launching.made or NO_CALL).of(
            found["rank"].to_numpy(), process, columns["correlation"]
        )
        lone = {
            "level": found["level"],
            "levels": found["levels"],
            "id": np.where(copied, -1 - row, row),
        }
        return pd.DataFrame({**columns, "name": name, "kind": kind, **lone, **launch})[
            [*SPANS]
        ], why


NOTHING = "No kernel or copy ran in this window. Choose a longer one, or the whole recording."
SOON = "The CUDA calls are still being read; what is known of this operation follows."
MOST_OWNED = 20_000  # operations of one range that are marked one by one
LONGEST = 60  # characters of a name in a caption


class Zoomable:
    """The timeline of an explorer, which sets its window; many operations are drawn as busy shares of bins.

    `view` holds the switches of lanes, the picture, and what was clicked.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.levels = explorer, Levels(explorer, self._draw_again)
        self._dossier: Later[pd.DataFrame] | None = None  # of the kernel clicked last
        self._awaited: dict[str, Any] = {}  # what was clicked before what is known of it was read
        self._drawn: tuple[Any, ...] = ()
        self._answers = 0  # the number of the page's last look
        self._spans, self._tables = (
            empty(SPANS),
            np.zeros(0, object),
        )  # what is drawn one by one, and the table of each
        self._found: timeline_search.Matches | None = None
        self._asked, self._place = (
            "",
            0,
        )  # what is searched, and the middle of the match that was jumped to
        self.picture = Canvas(layout={"width": "100%"})
        self.beside = {
            name: ipywidgets.ToggleButton(description=name, layout={"width": "auto"})
            for name in NEEDED
        }
        present = {name for profile in explorer.run.profiles for name in profile.loaders}
        for name, toggle in self.beside.items():
            toggle.layout.display = None if NEEDED[name] in present else "none"
            shown = explorer.arranged.get("shown", () if self.levels.is_large else AT_START)
            toggle.value = NEEDED[name] in present and name in shown
        self.picture.arranged = explorer.arranged
        self.said, self.known = ipywidgets.HTML(), ipywidgets.HTML()
        buttons = [ipywidgets.Label("also show"), *self.beside.values()]
        row = ipywidgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        self.view = ipywidgets.VBox([row, self.said, self.picture, self.known])
        self.explorer.observe(self._draw, ["selection", "problem"])
        for toggle in self.beside.values():
            toggle.observe(self._draw, "value")
            toggle.observe(self._arranged, "value")
        self.picture.observe(self._arranged, "arranged")
        self.picture.listen(self.heard)
        self._draw()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    @property
    def whole(self) -> Window:
        """The time of all operations and marked steps; the recording where there is none."""
        span = self.explorer.lanes.span
        first, last = span if span[1] > span[0] else extent(self.explorer.run)
        return first, max(last, first + 1)

    @property
    def window(self) -> Window:
        """What the picture spans."""
        seen = self.explorer.selection
        return seen.window if seen is not None and seen.window else self.whole

    def heard(self, gesture: dict[str, Any]) -> None:
        """Answer a gesture of `perfkit.charts.detail.Canvas`."""
        kind, start = gesture.get("kind"), self.whole[0]
        if kind == detail.LOOKED:
            self._answers = int(gesture.get("number", 0))
            self._look(start + int(gesture["first"]), start + int(gesture["last"]))
        elif kind == detail.CLICKED:
            self._clicked(gesture)
        elif kind == detail.SEARCH:
            self._search(str(gesture["text"]))
        elif kind == detail.FIND:
            self._step(start + int(gesture["at"]), int(gesture["step"]))
        elif kind == detail.FILTER:
            self.explorer.kernels = str(
                gesture["text"]
            )  # what nothing matches is the explorer's `problem`

    def _arranged(self, _: Any) -> None:
        """Keep which lanes are switched on, hidden, closed, pinned and opened, and draw the opened ones."""
        shown = [name for name, toggle in self.beside.items() if toggle.value]
        self.explorer.arranged = {**self.picture.arranged, "shown": shown}
        self._draw()

    def _look(self, first: int, last: int) -> None:
        """Set the explorer's window, as far as it lies in the recording."""
        start, end = self.whole
        first = min(max(first, start), end - 1)
        last = max(min(last, end), first + 1)
        self.explorer.window = () if (first, last) == (start, end) else (first, last)

    def _draw(self, _: Any = None) -> None:
        """Draw the choice, unless it is what is seen."""
        seen, problem = self.explorer.selection, self.explorer.problem
        opened = [*self.picture.arranged.get("opened", ())]
        state = (
            seen,
            problem,
            opened,
            [name for name, toggle in self.beside.items() if toggle.value],
        )
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
        self.levels.is_lacking, self.levels.opened = (
            False,
            tuple(self.picture.arranged.get("opened", ())),
        )
        most = MOST_ROWS // (1 + len(beside))
        operations = self.levels.operations(seen, window, most=most)
        named = {
            name: self.levels.beside(name, seen, window, most=most)
            for name in beside
            if name in BESIDE
        }
        above = [named.pop(name) for name in ABOVE if name in named]
        parts = [*above, operations, *named.values()]
        of = dict.fromkeys(operations.shared, GROUP)
        types = [
            of.get(label, GPU) if one is operations else FLAME
            for one in parts
            for label in one.labels
        ]
        lines, lined = (
            [pd.DataFrame(columns=[*detail.LINES])],
            sum(len(part.labels) for part in parts),
        )
        for name in beside:
            if name in LINED:
                made, drawn = timeline_data.metrics(
                    self.explorer.run.samples, seen, window, LINED[name]
                )
                if len(drawn):
                    lines.append(drawn.assign(lane=drawn["lane"] + lined))
                lined += len(made.labels)
                types += [detail.LINE] * len(made.labels)
                parts.append(made)
        if not any(part.amount for part in parts):
            return NOTHING
        labels, bins, spans = timeline_data.joined(parts)
        self._spans = spans
        self._tables = np.concatenate(
            [np.full(len(part.spans), part.table, object) for part in parts]
        )
        places = timeline_data.chosen(self.explorer.lanes.devices, seen)
        beside_streams = [one for one in parts if one is not operations]
        self.picture.drawing = detail.timeline(
            *(labels, bins, spans),
            window=window,
            whole=self.whole,
            title=timeline_data.titled(operations, places, seen, window),
            explanation=timeline_data.explained([operations, *beside_streams]),
            lines=pd.concat(lines[1:] or lines, ignore_index=True),
            types=types,
            answers=self._answers,
        )
        self._mark()
        return ""

    def _clicked(self, gesture: dict[str, Any]) -> None:
        """Show what was clicked: an operation of a GPU, or what a call, range or operator launched."""
        drawing, seen = self.picture.drawing, self.explorer.selection
        labels, number = [lane["label"] for lane in drawing["lanes"]], int(gesture["id"])
        if seen is None or gesture["lane"] not in labels:
            return
        is_it = (
            (self._spans["lane"] == labels.index(gesture["lane"])) & (self._spans["id"] == number)
        ).to_numpy(bool)
        if not is_it.any():
            return
        at = int(np.flatnonzero(is_it)[0])
        launching = self.levels.launching
        self._awaited = {} if launching else gesture
        if launching is None:
            self.known.value = f"<p>{SOON}</p>"
            return
        span, table = self._spans.iloc[at], str(self._tables[at])
        start, took = int(span["start_ns"]) - self.whole[0], int(span["dur_ns"])
        picked: dict[str, Any] = {"start": start, "took": took, "id": number}
        picked |= {"label": gesture["lane"], "name": elided(str(span["name"]), LONGEST)}
        if table == "OPERATIONS":
            shown, picked["arrow"] = self._operation(number, launching)
        elif table:
            shown, picked["owned"] = self._owner(table, number, span, seen)
        else:
            shown = {}
        self._tell(shown)
        self.picture.chosen, self._dossier = picked, None
        if table == "OPERATIONS" and number >= 0:  # which takes seconds of millions of launches
            name = str(self.explorer.run.kernels["name"].iloc[number])
            window, dossiers = self.window, self.levels.dossiers
            every = f"All launches of {elided(name, LONGEST)} in these {duration(window[1] - window[0])}"
            self._dossier = later = Later(lambda: dossiers.of(name, seen, window))
            tell = partial(self._tell_all, later, shown, every)
            if not (
                self.levels.is_large and later.soon() is None and later.then(tell)
            ):  # gestures do not wait for it
                later.now()
                tell()

    def _tell_all(
        self, later: Later[pd.DataFrame], shown: dict[str, pd.DataFrame], every: str
    ) -> None:
        """Add the launches of a kernel to what is shown, unless something else was clicked since."""
        if self._dossier is later and later.made is not None:
            self._tell({**shown, every: later.made})

    def _tell(self, shown: dict[str, pd.DataFrame]) -> None:
        cards = "".join(card(frame, caption=caption).html for caption, frame in shown.items())
        self.known.value = f'<div style="display:flex;flex-wrap:wrap;gap:0 3em">{cards}</div>'

    def _operation(self, row: int, launching: Launching) -> tuple[dict[str, pd.DataFrame], Any]:
        """Return what is known of a row of KERNELS, or, from -1 down, of COPIES, and the line to its call."""
        run, is_copy = self.explorer.run, row < 0
        frame = (run.copies if is_copy else run.kernels).iloc[[-1 - row if is_copy else row]]
        (call,) = launching.rows(
            *(frame[column].to_numpy() for column in ("rank", "process", "correlation"))
        )
        arrow = None
        if call >= 0:
            one = run.api_calls.iloc[call]
            queue = int(frame["start_ns"].iloc[0]) - int(one["start_ns"]) - int(one["dur_ns"])
            text = (
                f"queued {duration(queue)}"
                if queue >= 0
                else f"started {duration(-queue)} before the call ended"
            )
            arrow = {
                "start": int(one["start_ns"]) - self.whole[0],
                "took": int(one["dur_ns"]),
                "text": text,
            }
            arrow["lane"] = self.levels.lane_of("API calls", one)
        if is_copy:
            return {"This copy": copied(run, -1 - row, launching)}, arrow
        return {"This launch": launched(run, row, launching)}, arrow

    def _owner(
        self, table: str, row: int, span: pd.Series, seen: Selection
    ) -> tuple[dict[str, pd.DataFrame], list[int]]:
        """Return what a row of a table of the CPU launched, as a card and as ids of operations."""
        run = self.explorer.run
        if table == "COPIES":
            return {"This copy": copied(run, row, self.levels.launching or NO_CALL)}, []
        kernels, moved = timeline_search.launched_in(run, table, row, seen)
        own = run.kernels.take(kernels)
        facts: dict[str, Any] = {
            "name": elided(str(span["name"]), LONGEST),
            "dur_ns": span["dur_ns"],
        }
        facts |= {"kernels": len(own), "copies": len(moved), "total_ns": own["dur_ns"].sum()}
        if len(own):
            facts["starts_at"] = f"{own['start_ns'].min() / 1e9:.9f} s"
            facts["span_ns"] = (own["start_ns"] + own["dur_ns"]).max() - own["start_ns"].min()
        ids = [*kernels.tolist(), *(-1 - moved).tolist()]
        return {"What it launched on the GPU": pd.DataFrame([facts])}, ids[:MOST_OWNED]

    def _search(self, text: str) -> None:
        """Find a text in the whole run; empty ends the search."""
        self._asked, self._found, self._place, problem = text, None, 0, ""
        seen = self.explorer.selection
        if text.strip() and seen is not None:
            self.picture.found = {
                "said": "searching …",
                "text": text,
            }  # of millions of rows it takes seconds
            try:
                asked = timeline_search.query(text)
                self._found = timeline_search.matches(
                    self.explorer.run, asked, seen, self.levels.launching
                )
            except re.error as e:
                problem = f"{e}: no regular expression"
        self._mark(problem or (timeline_search.counted(self._found) if self._found else ""))

    def _mark(self, said: str | None = None) -> None:
        told = {
            "said": self.picture.found.get("said", "") if said is None else said,
            "text": self._asked,
        }
        if self._found:
            ids, hit = (
                self._spans["id"].fillna(-(2**40)).to_numpy(np.int64),
                np.zeros(len(self._spans), bool),
            )
            of_gpu = self._tables == "OPERATIONS"
            for table in timeline_search.TABLES:
                mine = (self._tables == table) | (
                    of_gpu & ((ids < 0) if table == "COPIES" else table == "KERNELS")
                )
                rows = np.where(of_gpu & (table == "COPIES"), -1 - ids, ids)
                hit[mine] |= self._found.says(table, rows[mine])
            ticks = timeline_search.ticks(self._found, self.window) - self.whole[0]
            told |= {"hit": np.flatnonzero(hit).tolist(), "ticks": ticks.tolist()}
        self.picture.found = told

    def _step(self, at: int, by: int) -> None:
        """Move to the next match (the one before, if `by` is below 0), keeping the length of the window if it fits."""
        if self._place and self.window[0] <= self._place < self.window[1]:
            at = (
                self._place
            )  # not the middle of what is seen, where the recording ends near the match
        step = self._found.step(at, by) if self._found else None
        if self._found is None or step is None:
            return
        place, (first, last) = step
        half = (
            max((self.window[1] - self.window[0]) // 2, 2 * (last - first))
            if self.explorer.window
            else 0
        )
        half = half or max(20 * (last - first), (self.whole[1] - self.whole[0]) // 200)
        self._place = middle = first + (last - first) // 2
        self._look(middle - half, middle + half)
        self._mark(f"match {place + 1:,} of {timeline_search.counted(self._found)}")
        self.picture.chosen = {
            "start": first - self.whole[0],
            "took": last - first,
            "name": "match",
            "id": None,
        }
