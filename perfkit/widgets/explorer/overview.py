"""The overview of the run, with a brush that is the window: both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from perfkit.charts import overview
from perfkit.widgets.explorer import storage
from perfkit.widgets.explorer.axis import Axis

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choosing import Explorer

BINS, LEAST = 320, 40
MOST_ROWS = 4000  # rows of all GPUs together: what the page draws without delay


class Overview:
    """One chart for as long as the explorer lives: `chart` is drawn again when something else than its brush chose."""

    def __init__(self, explorer: Explorer, axis: Axis) -> None:
        self.explorer, self.axis = explorer, axis
        storage.enable_brush()
        self._brush: tuple[int, ...] = explorer.window
        self._of: Any = self._choice()
        self._bins = self._busy()
        self.chart = overview.brushed(self._drawn())
        self._watch()
        explorer.observe(self._changed, storage.CHOICES)

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
        return overview.activity(self._bins, span=(axis.start, axis.end), shown=shown)

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
