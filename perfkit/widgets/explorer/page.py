"""The explorer as a page: pickers, overview, buttons, and the view of the notebook's step.

Functions
---------
page     the widget
maker    the view of a name
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from perfkit.format import duration, printable
from perfkit.widgets.explorer.axis import Axis
from perfkit.widgets.explorer.controls import Controls
from perfkit.widgets.explorer.overview import Overview
from perfkit.widgets.explorer.parameters import place, texts
from perfkit.widgets.explorer.reporting import Reporting
from perfkit.widgets.explorer.steps import Steps
from perfkit.widgets.explorer.storage import CHOICES

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choosing import Explorer

LONGEST, SHORT = 600, 80  # characters of a sentence, and of a button
VIEWS = "perfkit.widgets.views"
NOTHING_TO_CHOOSE = "Nothing can be chosen: this run has one rank, no GPUs to tell apart, and no course over time."


def maker(show: str) -> Callable[[Explorer], Any] | None:
    """Return the view of this name, None if it is empty.

    Raises
    ------
    ValueError
        If `perfkit.widgets.views` has none of this name.
    """
    views = importlib.import_module(VIEWS)
    if not show:
        return None
    if show not in views.__all__:
        raise ValueError(f"show: {show!r} is no view. Choose from {', '.join(views.__all__)}.")
    found: Callable[[Explorer], Any] = getattr(views, show)
    return found


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
