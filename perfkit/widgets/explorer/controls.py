"""The pickers: each shows a choice of the explorer, and sets it.

Conventions
-----------
A picker of which nothing can be chosen is not shown. In a list nothing marked means all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets

from perfkit.format import percent
from perfkit.widgets.explorer.axis import Axis
from perfkit.widgets.explorer.storage import CHOICES

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choosing import Explorer
    from perfkit.widgets.explorer.offer import Offer

MOST_NAMES = 1000  # completions, those with the most time on the GPU
LONGEST_NAME = 300
ROWS = 4
SEVERAL = "Ctrl-click or shift-arrow marks several; none marked is all"


class Controls:
    """`ranks`, `gpus`, `families`, `kernels` and `window` are the pickers, `rows` the boxes that hold them."""

    def __init__(self, explorer: Explorer, axis: Axis | None) -> None:
        self.explorer, self.axis, self._is_showing = explorer, axis, False
        offer = explorer.offer
        self.ranks = _list(
            "ranks", [(str(rank), rank) for rank in offer.ranks], f"Ranks to look at. {SEVERAL}", least=2
        )
        self.gpus = _list(
            "GPUs", [(str(gpu), gpu) for gpu in offer.gpus if gpu >= 0], f"GPUs to look at. {SEVERAL}", least=2
        )
        about = f"Kinds of kernels to look at, with their share of the time on the GPU. {SEVERAL}"
        self.families = _list("families", _families(offer), about, least=2)
        self.kernels = _search(offer)
        self.window = _slider(axis)
        lists = ipywidgets.HBox([self.ranks, self.gpus, self.families], layout={"flex_flow": "row wrap"})
        self.rows = [lists, ipywidgets.HBox([self.kernels, self.window], layout={"flex_flow": "row wrap"})]
        self._observe()
        self._show()

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the run can be chosen: no picker is shown."""
        pickers = (self.ranks, self.gpus, self.families, self.kernels, self.window)
        return all(picker.layout.display == "none" for picker in pickers)

    def _observe(self) -> None:
        for name in ("ranks", "gpus", "families", "kernels"):
            getattr(self, name).observe(self._picked(name), "value")
        self.window.observe(self._slid, "value")
        self.explorer.observe(self._show, CHOICES)

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
        explorer = self.explorer
        with self._showing():
            # -1 is a GPU that was not recorded: code can choose it, a person would not know what it is.
            self.ranks.value, self.gpus.value = explorer.ranks, tuple(gpu for gpu in explorer.gpus if gpu >= 0)
            self.families.value, self.kernels.value = explorer.families, explorer.kernels
            if self.axis:
                self.window.value = self.axis.shown(explorer.window)

    @contextmanager
    def _showing(self) -> Iterator[None]:
        self._is_showing = True
        try:
            yield
        finally:
            self._is_showing = False


def _list(description: str, options: list[tuple[str, Any]], tooltip: str, *, least: int) -> Any:
    hidden = {"display": "none"} if len(options) < least else {}
    return ipywidgets.SelectMultiple(
        options=options,
        description=description,
        tooltip=tooltip,
        rows=ROWS,
        layout={"width": "auto", "min_width": "180px", **hidden},
    )


def _families(offer: Offer) -> list[tuple[str, str]]:
    """Return the families with their share of all kernels' time."""
    times = offer.names.groupby("family", observed=True)["total_ns"].sum() / (offer.names["total_ns"].sum() or 1)
    return [(f"{one} ({percent(float(times[one]))})" if one in times else one, one) for one in offer.families]


def _search(offer: Offer) -> Any:
    """Return the search box; of thousands of names it completes those that take most time."""
    names = (str(name) for name in offer.names["name"].dropna().head(MOST_NAMES))
    return ipywidgets.Combobox(
        options=[_as_pattern(name) for name in names if len(name) <= LONGEST_NAME and name.isprintable()],
        description="kernels",
        placeholder="part of a name, or a pattern with * and ?",
        tooltip="Kernels to look at: part of their name, or a pattern with * and ?; empty is all. Enter sets it",
        continuous_update=False,
        layout={"flex": "1 1 320px", **({} if len(offer.names) else {"display": "none"})},
    )


def _as_pattern(name: str) -> str:
    """Return the text that finds a name: a bracket in a pattern would stand for one of several characters."""
    return name.replace("[", "?") if any(sign in name for sign in "*?") else name


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
        readout_format=".3f",
        style={"description_width": "initial"},
        layout={"flex": "2 1 380px", **({} if axis else {"display": "none"})},
    )
