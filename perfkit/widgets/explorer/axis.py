"""The axis of time of slider and overview: numbers that people read, and the exact ns behind them."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.format import TIME, unit

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
