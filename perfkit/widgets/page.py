"""The explorer as a page: pickers that have a choice, overview, buttons, and the view of the notebook's step."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anywidget
import ipywidgets
import traitlets

from perfkit.charts import timeline
from perfkit.charts.theme import follow_cells, measured
from perfkit.charts.vega import library
from perfkit.format import TIME, duration, percent, printable, unit
from perfkit.widgets.parameters import CHOICES, arguments, place, texts

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer, Offer


STEPS = 1000  # positions of an edge: finer than the pixels of an overview
Shown = tuple[float, float]
Window = tuple[int, ...]


class Axis:
    """From `start` to `end` (ns), in one unit; an edge moved by less than half a step of its control keeps its ns."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.unit = unit(end - start, TIME)
        self.step = (end - start) / STEPS / self.unit.size

    @property
    def ends(self) -> Shown:
        """Both ends of the axis, as shown."""
        return self.start / self.unit.size, self.end / self.unit.size

    def shown(self, window: Window) -> Shown:
        """Return what a control shows of a window (empty: all), as far as it is on the axis, one step at least."""
        if not window:
            return self.ends
        low, high = self.ends
        first, last = (min(max(edge / self.unit.size, low), high) for edge in window)
        first = min(first, high - self.step)
        return first, max(last, first + self.step)

    def chosen(self, moved: Sequence[float], window: Window) -> Window:
        """Return the window after a control that showed `window` says that its edges are at `moved`.

        >>> Axis(0, 2_000_000).chosen((0.5, 1.9999), (123_456, 1_999_999)), Axis(0, 2_000_000).chosen((0, 2), (5, 9))
        ((500000, 1999999), ())
        """
        before, exact = self.shown(window), window or (self.start, self.end)
        stayed = [abs(new - old) < self.step / 2 for new, old in zip(moved, before, strict=True)]
        if all(stayed):
            return window
        if all(abs(new - end) < self.step / 2 for new, end in zip(moved, self.ends, strict=True)):
            return ()
        first, last = (
            edge if same else min(max(round(new * self.unit.size), self.start), self.end)
            for new, same, edge in zip(moved, stayed, exact, strict=True)
        )
        least = max(round(self.step * self.unit.size), 1)
        return (
            (first, last)
            if last > first
            else (min(first, self.end - least), min(first, self.end - least) + least)
        )


MOST_NAMES = 1000  # completions, those with the most time on the GPU
LONGEST_NAME, ROWS = 300, 4  # characters, and names seen at once
SEVERAL = "Ctrl-click or shift-arrow marks several; none marked is all"


class Controls:
    """`ranks`, `gpus`, `families`, `kernels` and `window` are the pickers, `rows` the boxes that hold them."""

    def __init__(self, explorer: Explorer, axis: Axis | None) -> None:
        self.explorer, self.axis, self._is_showing = explorer, axis, False
        offer = explorer.offer
        self.ranks = _list(
            "ranks", [(str(rank), rank) for rank in offer.ranks], f"Ranks to look at. {SEVERAL}"
        )
        self.gpus = _list(
            "GPUs",
            [(str(gpu), gpu) for gpu in offer.gpus if gpu >= 0],
            f"GPUs to look at. {SEVERAL}",
        )
        about = f"Kinds of kernels to look at, with their share of the time on the GPU. {SEVERAL}"
        times = offer.names.groupby("family", observed=True)["total_ns"].sum() / (
            offer.names["total_ns"].sum() or 1
        )
        shares = [
            f"{one} ({percent(float(times[one]))})" if one in times else one
            for one in offer.families
        ]
        self.families = _list("families", list(zip(shares, offer.families, strict=True)), about)
        self.kernels = _search(offer)
        self.window = _slider(axis)
        lists = ipywidgets.HBox(
            [self.ranks, self.gpus, self.families], layout={"flex_flow": "row wrap"}
        )
        self.rows = [
            lists,
            ipywidgets.HBox([self.kernels, self.window], layout={"flex_flow": "row wrap"}),
        ]
        for name in ("ranks", "gpus", "families", "kernels"):
            getattr(self, name).observe(self._picked(name), "value")
        self.window.observe(self._slid, "value")
        explorer.observe(self._show, CHOICES)
        self._show()

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the run can be chosen: no picker is shown."""
        pickers = (self.ranks, self.gpus, self.families, self.kernels, self.window)
        return all(picker.layout.display == "none" for picker in pickers)

    def _picked(self, name: str) -> Any:
        return lambda change: self._set(**{name: change["new"]})

    def _slid(self, change: Any) -> None:
        if self.axis:
            self._set(window=self.axis.chosen(change["new"], self.explorer.window))

    def _set(self, **choices: Any) -> None:
        """Make a choice; one that does not fit is shown as it was."""
        if self._is_showing:
            return
        try:
            self.explorer.choose(**choices)
        except traitlets.TraitError:
            self._show()

    def _show(self, _: Any = None) -> None:
        """Show the present choice; that is not a choice of its own."""
        explorer, self._is_showing = self.explorer, True
        try:
            # -1 is a GPU that was not recorded: code can choose it, a person would not know what it is.
            self.ranks.value, self.gpus.value = (
                explorer.ranks,
                tuple(gpu for gpu in explorer.gpus if gpu >= 0),
            )
            self.families.value, self.kernels.value = explorer.families, explorer.kernels
            if self.axis:
                self.window.value = self.axis.shown(explorer.window)
        finally:
            self._is_showing = False


EAGER = 1_000_000  # kernels up to which steps are found before anyone asks: about 0.2 s


class Steps:
    """`number` and `button` jump; in a large run the first press finds the steps."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.number = ipywidgets.BoundedIntText(
            description="step", tooltip="Number of the iteration, from 0", layout={"width": "170px"}
        )
        about = "Find the iterations of the program"
        self.button = _button(
            "Find steps", about, "", lambda _: self._jump() if self._is_known else self._find()
        )
        self.said = ipywidgets.HTML()
        self.view = ipywidgets.HBox(
            [self.number, self.button, self.said], layout={"flex_flow": "row wrap"}
        )
        self._is_known = False
        self.number.observe(lambda _: self._jump(), "value")
        run = explorer.run
        if run.kernels.empty and run.ranges.empty:
            self.view.layout.display = "none"
        elif len(run.kernels) <= EAGER:
            self._find()
        else:
            self.number.disabled = True

    def _find(self) -> None:
        steps, self._is_known = self.explorer.steps, True
        if steps.empty:
            self.view.layout.display = "none"
            return
        self.number.max, self.number.disabled = int(steps["step"].max()), False
        self.button.description, self.button.tooltip = (
            "Jump to step",
            "Set the window to this iteration",
        )
        how = ", ".join(sorted({str(one) for one in steps["how"]}))
        self.said.value = escape(f"0 to {self.number.max}, found by {how}")

    def _jump(self) -> None:
        try:
            self.explorer.jump(self.number.value)
        except ValueError as e:
            self.said.value = escape(str(e))


class Brushed(anywidget.AnyWidget):
    """A chart with a selection `brush` whose `edges` page and Python set, in the axis' unit; none is empty.

    Altair's own widget makes the chart anew to move its brush, and a page keeps each chart that it made.
    """

    _esm = f"{library()}\n{Path(__file__).with_name('brush.js').read_text('utf-8')}"
    spec: Any = traitlets.Dict().tag(sync=True)
    edges: Any = traitlets.List().tag(sync=True)


BINS, LEAST = 320, 40
MOST_ROWS = 4000  # rows of all GPUs together: what the page draws without delay


class Overview:
    """One chart for as long as the explorer lives: `chart` is drawn again when something else than a window is chosen.

    `is_told`: whether the page tells it of a new width; otherwise it looks for one.
    """

    def __init__(self, explorer: Explorer, axis: Axis, is_told: bool) -> None:
        self.explorer, self.axis = explorer, axis
        self._of: Any = None
        self.chart, self._looks = Brushed(), not is_told
        self._changed()
        self.chart.observe(self._brushed, "edges")
        explorer.observe(self._changed, CHOICES)

    def _drawn(self) -> dict[str, Any]:
        """Return the specification of what is chosen, over the whole axis."""
        lanes, asked = self.explorer.lanes, self.explorer.on_lanes
        many = max(LEAST, min(BINS, MOST_ROWS // len(lanes.devices)))
        bins = lanes.busy(bins=1).iloc[:0] if asked is None else lanes.busy(bins=many, **asked)
        span = (self.axis.start, self.axis.end)
        # Not checked against Altair's schema, which takes longer than all else: it is drawn again at every choice.
        spec: dict[str, Any] = timeline.activity(bins, span=span, width="container").to_dict(
            validate=False
        )
        lines = dict.fromkeys(
            ("domainColor", "tickColor"), "#888888"
        )  # on the canvas: the page's colour may change
        ink = dict.fromkeys(("labelColor", "titleColor"), "currentColor") | lines
        title = {"color": "currentColor", "subtitleColor": "currentColor"}
        # Text as SVG, marks on a canvas: as SVG, a browser paints thousands of them anew at each move of the brush.
        look = {
            "actions": False,
            "renderer": "hybrid",
            "config": {"axis": ink, "title": title, "background": None},
        }
        patch = {"patch": measured(self._looks)} if spec.get("width") == "container" else {}
        return {**spec, "usermeta": {"embedOptions": look | patch}}

    def _brushed(self, change: Any) -> None:
        edges, window = change["new"], self.explorer.window
        self.explorer.window = self.axis.chosen(edges, window) if edges else ()

    def _changed(self, _: Any = None) -> None:
        """Show the present choice."""
        chosen, window = self.explorer.parameters, self.explorer.window
        of = [chosen[name] for name in ("ranks", "gpus", "kernels", "families")]
        if of != self._of:
            self._of, self.chart.spec = of, self._drawn()
        if window and self.chart.edges and self.axis.chosen(self.chart.edges, window) == window:
            return  # it is the brush, to less than half a step
        self.chart.edges = [*self.axis.shown(window)] if window else []


LONGEST_FAILURE = 600  # characters of what went wrong
TICK = 1.0  # s between two looks at the process
COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "perfkit",
    "report",
)  # -P: a folder called perfkit beside the notebook is not it
NO_PATH = (
    "This run was not read from one file or folder of its own, so no command can read it again."
)


class Reporting:
    """`button` starts a report beside the notebook, `status` says how it goes, `link` leads to its page."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        about = "Run all notebooks on the present choice and write one page, in the background"
        self.button = _button("Report this window", about, "file-text", self.start)
        self.status, self.link = ipywidgets.HTML(), ipywidgets.Output()
        self.view = ipywidgets.VBox([self.status, self.link])
        self.thread: Thread | None = None
        explorer.observe(self._allow, "selection")
        self._allow()

    def start(self, _: Any = None) -> None:
        """Start a report of the present choice, unless one is being made."""
        if self.button.disabled:
            return
        path = place(self.explorer.run)
        if path is None:
            self._say(NO_PATH)
            return
        chosen = {**self.explorer.parameters, **self.explorer.files}
        name = hashlib.sha256(repr((str(path), chosen)).encode()).hexdigest()[:8]
        out = Path.cwd() / f"report-{name}"
        self.thread = Thread(
            target=self._make, args=([str(path), "--out", str(out), *arguments(chosen)], out)
        )
        self.thread.daemon = True
        self.button.disabled, self.link.outputs = True, ()
        self.thread.start()

    def _allow(self, _: Any = None) -> None:
        """Offer the button where there is something to report, and no report is being made."""
        if self.thread is None:
            self.button.disabled = self.explorer.selection is None

    def _make(self, options: list[str], out: Path) -> None:
        try:
            problem = self._run([*COMMAND, *options])
        except (OSError, ValueError) as e:
            problem = str(e)
        if problem:
            self._say(f"The report could not be made: {printable(problem, LONGEST_FAILURE)}")
        else:
            self._say(
                "The report is ready. JupyterLab draws its charts once `Trust HTML` above the page is pressed."
            )
            self.link.outputs = (_link(out / "index.html"),)
        self.thread = None
        self._allow()

    def _run(self, command: list[str]) -> str:
        """Wait for the process and return what it said went wrong, empty if nothing did."""
        began = time.monotonic()
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )
        while True:
            self._say(f"The report is being made ({time.monotonic() - began:.0f} s).")
            try:
                _, said = process.communicate(timeout=TICK)
            except subprocess.TimeoutExpired:
                continue
            lines = said.strip().splitlines()
            return (
                ""
                if process.returncode == 0
                else (lines or [f"it ended with status {process.returncode}"])[-1]
            )

    def _say(self, text: str) -> None:
        self.status.value = f'<span role="status">{escape(text)}</span>'


LONGEST, SHORT = 600, 80  # characters of a sentence, and of a button
VIEWS = "perfkit.widgets.views"
NOTHING_TO_CHOOSE = (
    "Nothing can be chosen: this run has one rank, no GPUs to tell apart, and no course over time."
)


# The window to the nanosecond is longer than the place that a slider gives it. An explorer without a
# view below it stays at the top of a notebook while the rest is scrolled: its overview (brush.js), and
# all of it under the pointer.
STYLE = """<style>
.perfkit-explorer .widget-slider .widget-readout{max-width:none;min-width:fit-content}
.jp-RenderedMarkdown pre{white-space:pre-wrap;overflow-wrap:anywhere}
.jp-Cell:has(.perfkit-stays){position:sticky;top:-1px;z-index:4;background:var(--jp-layout-color0)}
.jp-Cell.perfkit-less:not(:hover,:focus-within){margin-bottom:var(--perfkit-less)}
.jp-Cell.perfkit-less:not(:hover,:focus-within) :is(.perfkit-more,.jp-Cell-inputWrapper){display:none}
@media print{.jp-Cell:has(.perfkit-stays){position:static}}
</style>"""


class Page(ipywidgets.VBox):  # type: ignore[misc]
    """Pickers, overview, buttons and the view of the name `show` from top to bottom; each is an attribute."""

    def __init__(self, explorer: Explorer, show: str) -> None:
        super().__init__()
        self.add_class("perfkit-explorer")
        self.explorer, self._style = explorer, follow_cells() + STYLE
        axis = Axis(*explorer.offer.span) if explorer.offer.span else None
        self.controls, self.steps = Controls(explorer, axis), Steps(explorer)
        is_told = show == "timeline"  # of a new size, by the timeline
        self.overview = (
            Overview(explorer, axis, is_told) if axis and len(explorer.lanes.devices) else None
        )
        self.status, self.reporting = ipywidgets.HTML(), Reporting(explorer)
        self.reset = _button("Reset", "Choose everything again", "undo", lambda _: explorer.reset())
        last = explorer.last
        about = f"Choose what was chosen last in this run: {_words(last, LONGEST)}" if last else ""
        self.last = _button(
            f"Last choice: {_words(last, SHORT)}",
            about,
            "history",
            lambda _: explorer.choose(**last),
        )
        about = "Show the choice as text to copy: for the command line, a notebook, and papermill"
        self.copy = _button("Copy as parameters", about, "copy", self._copied)
        self.parameters = ipywidgets.Textarea(
            description="parameters",
            tooltip="The present choice, to copy: click into it, then Ctrl-A and Ctrl-C",
            rows=18,
            layout={"width": "auto", "display": "none"},
        )
        buttons = [self.copy, self.reporting.button]
        if not self.controls.is_empty:
            buttons.insert(0, self.reset)
        if explorer.last:
            buttons.insert(0, self.last)
        row = ipywidgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        upper = [*self.controls.rows, self.steps.view]
        if self.overview:
            upper.append(self.overview.chart)
        upper += [self.status, row, self.parameters, self.reporting.view]
        for box in (*self.controls.rows, self.steps.view, row):
            box.add_class("perfkit-more")
        make = maker(show)
        shown = [make(explorer)] if make else []
        if make is None and not self.controls.is_empty:
            self.add_class("perfkit-stays")
        self.children = [*upper, *(getattr(one, "view", one) for one in shown)]
        explorer.observe(self._say, CHOICES)
        self._say()

    def _copied(self, _: Any) -> None:
        self.parameters.layout.display = (
            "flex" if self.parameters.layout.display == "none" else "none"
        )
        self._say()

    def _say(self, _: Any = None) -> None:
        """Say what is chosen, or why nothing is left; text to copy that is seen follows the choice."""
        self.last.disabled = self.explorer.parameters == self.explorer.last
        is_fixed = self.controls.is_empty and not any(self.explorer.parameters.values())
        said = self.explorer.problem or (NOTHING_TO_CHOOSE if is_fixed else _summary(self.explorer))
        self.status.value = (
            f'{self._style}<span role="status">{escape(printable(said, LONGEST))}</span>'
        )
        if self.parameters.layout.display != "none":
            self.parameters.value = texts(
                {**self.explorer.parameters, **self.explorer.files}, place(self.explorer.run)
            )


def maker(show: str) -> Callable[[Explorer], Any] | None:
    """Return the view of this name, None if it is empty; ValueError if `perfkit.widgets.views` has none of it."""
    views = importlib.import_module(VIEWS)
    if not show:
        return None
    if show not in views.__all__:
        raise ValueError(f"show: {show!r} is no view. Choose from {', '.join(views.__all__)}.")
    view: Callable[[Explorer], Any] = getattr(views, show)
    return view


def _summary(explorer: Explorer) -> str:
    """Return the choice in words, and how much of the kernels' work it is."""
    chosen, totals = explorer.selection.description, explorer.totals
    if totals.empty:
        return f"Chosen: {chosen}."
    time = duration(float(totals["total_ns"].sum()))
    counts = f"Kernel names: {len(totals):,}; launches: {totals['count'].sum():,}; their time, added up: {time}."
    return f"Chosen: {chosen}. {counts}"


def _words(chosen: dict[str, Any], longest: int) -> str:
    """Return what a choice leaves out of all, in a few words."""
    if not any(chosen.values()):
        return "everything"
    named = {"ranks": "rank", "gpus": "GPU", "families": "families"}
    lists = (
        f"{word} {', '.join(map(str, chosen[name]))}"
        for name, word in named.items()
        if chosen[name]
    )
    window = (
        [" to ".join(f"{edge / 1e9:.6g}" for edge in chosen["window"]) + " s"]
        if chosen["window"]
        else []
    )
    kernels = [f"kernels matching {chosen['kernels']!r}"] if chosen["kernels"] else []
    return printable(", ".join([*window, *lists, *kernels]), longest)


def _button(description: str, tooltip: str, icon: str, pressed: Callable[[Any], None]) -> Any:
    button = ipywidgets.Button(
        description=description, tooltip=tooltip, icon=icon, layout={"width": "auto"}
    )
    button.on_click(pressed)
    return button


def _link(page: Path) -> dict[str, Any]:
    """Return an output that leads to the page: JupyterLab takes the path as one beside the notebook."""
    target = quote(f"{page.parent.name}/{page.name}")
    html = f'<a href="{target}" target="_blank">{escape(page.parent.name)}/{page.name}</a> ({escape(str(page))})'
    return {
        "output_type": "display_data",
        "data": {"text/html": html, "text/plain": str(page)},
        "metadata": {},
    }


def _list(description: str, options: list[tuple[str, Any]], tooltip: str) -> Any:
    hidden = {"display": "none"} if len(options) < 2 else {}
    return ipywidgets.SelectMultiple(
        options=options,
        description=description,
        tooltip=tooltip,
        rows=ROWS,
        layout={"width": "auto", "min_width": "180px", **hidden},
    )


def _search(offer: Offer) -> Any:
    """Return the search box; of thousands of names it completes the names that take most time."""
    names = [str(name) for name in offer.names["name"].dropna().head(MOST_NAMES)]
    names = [name for name in names if len(name) <= LONGEST_NAME and name.isprintable()]
    return ipywidgets.Combobox(
        # A bracket in a pattern would stand for one of several characters.
        options=[
            name.replace("[", "?") if any(sign in name for sign in "*?") else name for name in names
        ],
        description="kernels",
        placeholder="part of a name, or a pattern with * and ?",
        tooltip="Kernels to look at: part of their name, or a pattern with * and ?; empty is all. Enter sets it",
        continuous_update=False,
        layout={"flex": "1 1 320px", **({} if len(offer.names) else {"display": "none"})},
    )


def _slider(axis: Axis | None) -> Any:
    low, high = axis.ends if axis else (0.0, 1.0)
    return ipywidgets.FloatRangeSlider(
        value=(low, high),
        min=low,
        max=high,
        step=axis.step if axis else 1.0,
        description=f"window ({axis.unit.symbol})" if axis else "window",
        tooltip="Part of the recording to look at; its edges can be typed at the right",
        continuous_update=False,
        readout_format=f".{len(f'{axis.unit.size:.0f}') - 1 if axis else 3}f",  # to the nanosecond
        style={"description_width": "initial"},
        layout={"flex": "2 1 380px", **({} if axis else {"display": "none"})},
    )
