"""The controls of the explorer: pickers, steps, and the axis of time that people read, with the exact ns behind it.

A picker of which nothing can be chosen is not shown. In a list nothing marked means all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets

from perfkit.format import TIME, percent, unit
from perfkit.widgets.explorer.choice import CHOICES

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choice import Explorer, Offer


STEPS = 1000  # positions of an edge: finer than the pixels of an overview
Shown = tuple[float, float]
Window = tuple[int, ...]


class Axis:
    """From `start` to `end` (ns), shown in one unit.

    A control sends back what it was shown, rounded to its own steps: an edge that was moved by less than half a step
    was not moved by a person and keeps its ns.
    """

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

        Examples
        --------
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
        return (first, last) if last > first else (min(first, self.end - least), min(first, self.end - least) + least)


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


EAGER = 1_000_000  # kernels up to which steps are found before anyone asks: about 0.2 s


class Steps:
    """`number` and `button` jump; in a large run the first press finds the steps."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.number = ipywidgets.BoundedIntText(
            description="step", tooltip="Number of the iteration, from 0", layout={"width": "170px"}
        )
        self.button = ipywidgets.Button(
            description="Find steps", tooltip="Find the iterations of the program", layout={"width": "auto"}
        )
        self.said = ipywidgets.HTML()
        self.view = ipywidgets.HBox([self.number, self.button, self.said], layout={"flex_flow": "row wrap"})
        self._is_known = False
        self.button.on_click(self._pressed)
        self.number.observe(self._moved, "value")
        self._begin()

    def _begin(self) -> None:
        run = self.explorer.run
        if run.kernels.empty and run.ranges.empty:
            self.view.layout.display = "none"
        elif len(run.kernels) <= EAGER:
            self._find()
        else:
            self.number.disabled = True

    def _find(self) -> None:
        found, self._is_known = self.explorer.steps, True
        if found.empty:
            self.view.layout.display = "none"
            return
        self.number.max, self.number.disabled = int(found["step"].max()), False
        self.button.description, self.button.tooltip = "Jump to step", "Set the window to this iteration"
        how = ", ".join(sorted({str(one) for one in found["how"]}))
        self.said.value = escape(f"0 to {self.number.max}, found by {how}")

    def _pressed(self, _: Any) -> None:
        if self._is_known:
            self._jump()
        else:
            self._find()

    def _moved(self, _: Any) -> None:
        self._jump()

    def _jump(self) -> None:
        try:
            self.explorer.jump(self.number.value)
        except ValueError as e:
            self.said.value = escape(str(e))


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
