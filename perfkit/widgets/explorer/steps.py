"""Jump to a step: the window becomes one iteration of the program."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choosing import Explorer

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
