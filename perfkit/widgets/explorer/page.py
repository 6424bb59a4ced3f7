"""The explorer as a page: pickers, overview, buttons, and the view of the notebook's step."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import ipywidgets
import pandas as pd

from perfkit.charts import timeline
from perfkit.format import duration, printable
from perfkit.widgets.explorer import choice
from perfkit.widgets.explorer.choice import CHOICES, arguments, place, texts
from perfkit.widgets.explorer.controls import Axis, Controls, Steps

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choice import Explorer


BINS, LEAST = 320, 40
MOST_ROWS = 4000  # rows of all GPUs together: what the page draws without delay


class Overview:
    """One chart for as long as the explorer lives: `chart` is drawn again when something else than its brush chose."""

    def __init__(self, explorer: Explorer, axis: Axis) -> None:
        self.explorer, self.axis = explorer, axis
        choice.enable_brush()
        self._brush: tuple[int, ...] = explorer.window
        self._of: Any = self._choice()
        self._bins = self._busy()
        self.chart = timeline.brushed(self._drawn())
        self._watch()
        explorer.observe(self._changed, choice.CHOICES)

    def _choice(self) -> Any:
        """What the strips depend on."""
        chosen = self.explorer.parameters
        return [chosen[name] for name in ("ranks", "gpus", "kernels", "families")]

    def _busy(self) -> pd.DataFrame:
        """Return the bins of what is chosen, over the whole axis."""
        lanes, asked = self.explorer.lanes, self.explorer.on_lanes
        if asked is None:
            return lanes.busy(bins=1).iloc[:0]
        return lanes.busy(bins=max(LEAST, min(BINS, MOST_ROWS // len(lanes.devices))), **asked)

    def _drawn(self) -> Any:
        axis, window = self.axis, self.explorer.window
        shown = axis.shown(window) if window else None
        return timeline.activity(self._bins, span=(axis.start, axis.end), shown=shown)

    def _watch(self) -> None:
        """Follow the brush: a chart that is drawn anew has a new one."""
        if hasattr(self.chart.selections, "brush"):
            self.chart.selections.observe(self._brushed, ["brush"])

    def _brushed(self, change: Any) -> None:
        """Set the window to the brush; the page repeats what it was told to show, which moves nothing."""
        edges = change["new"].value.get("start")
        self._brush = self.axis.chosen(edges, self.explorer.window) if edges else ()
        self.explorer.window = self._brush

    def _changed(self, _: Any) -> None:
        """Draw again unless only the window changed, and that by the brush."""
        of = self._choice()
        if of != self._of:
            self._of, self._bins = of, self._busy()
        elif self.explorer.window == self._brush:
            return
        self._brush = self.explorer.window
        self.chart.chart = self._drawn()
        self._watch()


LONGEST_FAILURE = 600  # characters of what went wrong
TICK = 1.0  # s between two looks at the process
COMMAND = (sys.executable, "-P", "-m", "perfkit", "report")  # -P: a folder called perfkit beside the notebook is not it
NO_PATH = "This run was not read from one file or folder of its own, so no command can read it again."


class Reporting:
    """`button` starts a report, `status` says how it goes, and `link` leads to its page.

    The report goes to a folder beside the notebook that is named after the choice: the same choice again replaces it.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.button = ipywidgets.Button(
            description="Report this window",
            tooltip="Run all notebooks on the present choice and write one page, in the background",
            icon="file-text",
            layout={"width": "auto"},
        )
        self.status, self.link = ipywidgets.HTML(), ipywidgets.Output()
        self.view = ipywidgets.VBox([self.status, self.link])
        self.thread: Thread | None = None
        self.button.on_click(self.start)
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
        self.thread = Thread(target=self._make, args=([str(path), "--out", str(out), *arguments(chosen)], out))
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
            self._say("The report is ready. JupyterLab draws its charts once `Trust HTML` above the page is pressed.")
            self.link.outputs = (_link(out / "index.html"),)
        self.thread = None
        self._allow()

    def _run(self, command: list[str]) -> str:
        """Wait for the process and return what it said went wrong, empty if nothing did."""
        began = time.monotonic()
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        while True:
            self._say(f"The report is being made ({time.monotonic() - began:.0f} s).")
            try:
                _, said = process.communicate(timeout=TICK)
            except subprocess.TimeoutExpired:
                continue
            lines = said.strip().splitlines()
            return "" if process.returncode == 0 else (lines or [f"it ended with status {process.returncode}"])[-1]

    def _say(self, text: str) -> None:
        self.status.value = f'<span role="status">{escape(text)}</span>'


LONGEST, SHORT = 600, 80  # characters of a sentence, and of a button
VIEWS = "perfkit.widgets.views"
NOTHING_TO_CHOOSE = "Nothing can be chosen: this run has one rank, no GPUs to tell apart, and no course over time."


class Page(ipywidgets.VBox):  # type: ignore[misc]
    """Pickers, overview, buttons and view from top to bottom; each is an attribute."""

    def __init__(self, explorer: Explorer, show: str) -> None:
        super().__init__()
        self.add_class("perfkit-explorer")
        self.explorer = explorer
        axis = Axis(*explorer.offer.span) if explorer.offer.span else None
        self.controls, self.steps = Controls(explorer, axis), Steps(explorer)
        self.overview = Overview(explorer, axis) if axis and len(explorer.lanes.devices) else None
        self.status, self.reporting = ipywidgets.HTML(), Reporting(explorer)
        self.reset = _button("Reset", "Choose everything again", "undo", lambda _: explorer.reset())
        self.last = _last(explorer)
        about = "Show the choice as text to copy: for the command line, a notebook, and papermill"
        self.copy = _button("Copy as parameters", about, "copy", self._copied)
        self.parameters = ipywidgets.Textarea(
            description="parameters",
            tooltip="The present choice, to copy: click into it, then Ctrl-A and Ctrl-C",
            rows=18,
            layout={"width": "auto", "display": "none"},
        )
        choosing = [*([self.last] if explorer.last else []), *([] if self.controls.is_empty else [self.reset])]
        buttons = [*choosing, self.copy, self.reporting.button]
        row = ipywidgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        drawn = [self.overview.chart] if self.overview else []
        upper = [*self.controls.rows, self.steps.view, *drawn, self.status, row, self.parameters, self.reporting.view]
        make = maker(show)
        shown = [make(explorer)] if make else []
        self.children = [*upper, *(getattr(one, "view", one) for one in shown)]
        explorer.observe(self._say, CHOICES)
        self._say()

    def _copied(self, _: Any) -> None:
        """Show or hide the text."""
        is_hidden = self.parameters.layout.display == "none"
        self.parameters.layout.display = "flex" if is_hidden else "none"
        self._say()

    def _say(self, _: Any = None) -> None:
        """Say what is chosen, or why nothing is left; text to copy that is seen follows the choice."""
        self.last.disabled = self.explorer.parameters == self.explorer.last
        is_fixed = self.controls.is_empty and not any(self.explorer.parameters.values())
        said = self.explorer.problem or (NOTHING_TO_CHOOSE if is_fixed else _summary(self.explorer))
        self.status.value = f'<span role="status">{escape(printable(said, LONGEST))}</span>'
        if self.parameters.layout.display != "none":
            chosen = {**self.explorer.parameters, **self.explorer.files}
            self.parameters.value = texts(chosen, place(self.explorer.run))


def maker(show: str) -> Callable[[Explorer], Any] | None:
    """Return the view of this name, None if it is empty.

    Raises ValueError if `perfkit.widgets.views` has none of this name.
    """
    views = importlib.import_module(VIEWS)
    if not show:
        return None
    if show not in views.__all__:
        raise ValueError(f"show: {show!r} is no view. Choose from {', '.join(views.__all__)}.")
    view: Callable[[Explorer], Any] = getattr(views, show)
    return view


def page(explorer: Explorer, show: str) -> Page:
    """Return the widget of an explorer with the view of this name below; of none if it is empty."""
    return Page(explorer, show)


def _summary(explorer: Explorer) -> str:
    """Return the choice in words, and how much of the kernels' work it is."""
    chosen, totals = explorer.selection.description, explorer.totals
    if totals.empty:
        return f"Chosen: {chosen}."
    time = duration(float(totals["total_ns"].sum()))
    counts = f"Kernel names: {len(totals):,}; launches: {totals['count'].sum():,}; their time, added up: {time}."
    return f"Chosen: {chosen}. {counts}"


def _last(explorer: Explorer) -> Any:
    """Return the button that makes the last choice of an earlier session again."""
    last = explorer.last
    about = f"Choose what was chosen last in this run: {_words(last, LONGEST)}" if last else ""
    return _button(f"Last choice: {_words(last, SHORT)}", about, "history", lambda _: explorer.choose(**last))


def _words(chosen: dict[str, Any], longest: int) -> str:
    """Return what a choice leaves out of all, in a few words.

    Examples
    --------
    >>> chosen = {"ranks": [], "gpus": [0, 1], "window": [5_760_000_000, 5_910_000_000], "kernels": "", "families": []}
    >>> _words(chosen, 99)
    '5.76 to 5.91 s, GPU 0, 1'
    """
    if not any(chosen.values()):
        return "everything"
    named = {"ranks": "rank", "gpus": "GPU", "families": "families"}
    lists = (f"{word} {', '.join(map(str, chosen[name]))}" for name, word in named.items() if chosen[name])
    window = [" to ".join(f"{edge / 1e9:.6g}" for edge in chosen["window"]) + " s"] if chosen["window"] else []
    kernels = [f"kernels matching {chosen['kernels']!r}"] if chosen["kernels"] else []
    return printable(", ".join([*window, *lists, *kernels]), longest)


def _button(description: str, tooltip: str, icon: str, pressed: Callable[[Any], None]) -> Any:
    button = ipywidgets.Button(description=description, tooltip=tooltip, icon=icon, layout={"width": "auto"})
    button.on_click(pressed)
    return button


def _link(page: Path) -> dict[str, Any]:
    """Return an output that leads to the page: JupyterLab takes the path as one beside the notebook."""
    target = quote(f"{page.parent.name}/{page.name}")
    html = f'<a href="{target}" target="_blank">{escape(page.parent.name)}/{page.name}</a> ({escape(str(page))})'
    return {"output_type": "display_data", "data": {"text/html": html, "text/plain": str(page)}, "metadata": {}}
