"""The widget: buttons, the picture, and below it what was clicked."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets
import pandas as pd

from perfkit.analysis.lanes import Launching
from perfkit.analysis.window import Window
from perfkit.charts.detail import CHOSEN, CLICKED, RESET, canvas, timeline
from perfkit.charts.tables import card
from perfkit.choice import extent
from perfkit.format import TIME, duration, elided, unit
from perfkit.selection import Selection
from perfkit.widgets.timeline.clicked import chosen, copied, launched
from perfkit.widgets.timeline.levels import BESIDE, Chooser, Levels
from perfkit.widgets.timeline.titles import explained, joined, titled

NOTHING = "No kernel or copy ran in this window. Choose a longer one, or the whole recording."
SOON = "The CUDA calls are still being read; what is known of this operation follows."
LONGEST = 60  # characters of a name in a caption
MOVES = {"whole recording": "home", "zoom out": "search-minus", "left": "arrow-left", "right": "arrow-right"}


def zoomable(explorer: Chooser) -> Zoomable:
    """Return the timeline of an explorer: it follows the explorer's choice, and sets its window.

    Many operations are drawn as the busy share of bins, 2,000 and less one by one.

    Parameters
    ----------
    explorer
        An Explorer.

    Returns
    -------
    Zoomable
        Displays itself; `view` is the box to put into another.
    """
    return Zoomable(explorer)


class Zoomable:
    """The timeline of an explorer; `view` holds the buttons, the picture, and what was clicked.

    `moves` are the buttons that move the window and `beside` those of lanes that can be switched on, by name; `said` is
    the sentence where there is nothing to draw, `known` what is known of the operation clicked last.
    """

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
        said = problem if seen is None else self._pictured(seen, state[-1])
        self.said.value = f"<p>{escape(said)}</p>" if said else ""
        self.picture.layout.display = "none" if said else None

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
        shown = self._of_copy(-1 - row, launching) if row < 0 else self._of_kernel(row, seen, launching)
        cards = "".join(card(frame, caption=caption).html for caption, frame in shown.items())
        self.known.value = f'<div style="display:flex;flex-wrap:wrap;gap:0 3em">{cards}</div>'

    def _of_copy(self, row: int, launching: Launching) -> dict[str, pd.DataFrame]:
        return {"This copy": copied(self.explorer.run, row, launching)}

    def _of_kernel(self, row: int, seen: Selection, launching: Launching) -> dict[str, pd.DataFrame]:
        launch = launched(self.explorer.run, row, launching)
        name = str(launch["name"].iloc[0])
        span = duration(self.window[1] - self.window[0])
        dossier = self.levels.dossiers.of(name, seen, self.window)
        return {"This launch": launch, f"All launches of {elided(name, LONGEST)} in these {span}": dossier}


def _button(kind: Any, name: str, **more: Any) -> Any:
    return kind(description=name, layout={"width": "auto"}, **more)
