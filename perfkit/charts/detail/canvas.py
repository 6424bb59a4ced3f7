"""A chart in a notebook whose gestures reach Python: one widget, given a new specification each time.

Vega-Lite reports a brush while it is still being drawn; a picture that is replaced then would take it out of the hand.
Signals of Vega, patched in, report it when it is let go. What is in the picture comes from a specification; that it is
a widget of Altair, with the browser's part of it, does not show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt

BRUSH, CHOSEN, CLICKED, RESET = "brush", "chosen", "clicked", "reset"
SIGNALS: dict[str, tuple[str, str]] = {
    CHOSEN: ("window:pointerup", f"{BRUSH}_start ? [{BRUSH}_start[0], {BRUSH}_start[1]] : {CHOSEN}"),
    CLICKED: ("click", f"datum && isValid(datum.id) ? datum.id : {CLICKED}"),
    RESET: ("dblclick", "now()"),
}


class Canvas(alt.JupyterChart):
    """Shows a specification, `draw`, and calls who `listen`s.

    The signals: `CHOSEN`, the ends of the brush on the axis when it is let go; `CLICKED`, the ``id`` of the row that is
    clicked; `RESET`, a double click. The brush is an interval named `BRUSH` along ``x``, of the field ``start``.
    """

    def draw(self, spec: dict[str, Any]) -> None:
        """Show a specification; gestures made in the one before are forgotten."""
        self.spec = spec

    def listen(self, signal: str, heard: Callable[[Any], None]) -> None:
        """Call `heard` with the value of a signal each time that a person changes it."""
        self.params.observe(lambda change: None if change["new"] is None else heard(change["new"]), [signal])


def canvas() -> Canvas:
    """Return a canvas that needs no network; the first of a process takes seconds, which its script is bundled in."""
    alt.JupyterChart.enable_offline()
    blank = alt.Chart(alt.InlineData(values=[])).mark_point(tooltip=False)
    drawn = Canvas(
        blank.add_params(*(alt.param(name=signal, value=None) for signal in SIGNALS)),
        embed_options={
            "actions": False,
            "renderer": "svg",  # takes the colour of its text from the page
            "patch": [{"op": "add", "path": "/signals/-", "value": _signal(name)} for name in SIGNALS],
        },
    )
    drawn.draw({})
    return drawn


def _signal(name: str) -> dict[str, Any]:
    events, update = SIGNALS[name]
    return {"name": name, "value": None, "on": [{"events": events, "update": update}]}
