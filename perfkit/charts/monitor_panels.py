"""The panels of `perfkit.charts.monitor`: a quantity over time, a line for each GPU.

Conventions
-----------
Rows are those of `perfkit.analysis.sampling.bins` with `label`, the name of the GPU. All panels share the axis of time,
whose ends are the parameters `left` and `right` that the overview sets.

Functions
---------
across     the axis of time
panel      one quantity over time
framed     layers as a picture among others
overview   the whole time in a strip, a part of which can be chosen
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts import monitor_lines, panels, ranks
from perfkit.charts.data import inline
from perfkit.charts.monitor_lines import GREY, Axes, Frame
from perfkit.charts.theme import WIDTH
from perfkit.format import Unit, number, unit
from perfkit.metrics import METRICS

LADDERS = {**ranks.LADDERS, "_hz": (Unit("MHz", 1e6),)}
HEIGHT, STRIP = 64, 26  # pixels
PICTURE = "Lines over time, one for each GPU"
WHOLE = "The whole time: drag here to zoom into a part of it, click to see all again"


class Quantity(NamedTuple):
    """What a panel shows; the limit is a metric or, where that was not recorded, one of `monitoring.at_limit`."""

    name: str  # said before the meaning of a single metric, or instead of those of several
    metrics: tuple[str, ...]
    limit: str = ""
    limited: str = ""


QUANTITIES = (
    Quantity("GPU busy", ("gpu_busy_frac",)),
    Quantity("Engine active", ("graphics_active_frac",)),
    Quantity("SMs active", ("sm_active_frac",)),
    Quantity("SM occupancy", ("sm_occupancy_frac",)),
    Quantity("Tensor pipes active", ("tensor_active_frac",)),
    Quantity("Memory active", ("dram_active_frac",)),
    Quantity("Memory busy", ("memory_busy_frac",)),
    Quantity("", ("memory_used_bytes",), "memory_total_bytes", "memory"),
    Quantity("", ("power_w",), "power_limit_w", "power"),
    Quantity("", ("temperature_c",), "temperature_slowdown_c", "temperature"),
    Quantity("", ("sm_clock_hz",), "sm_max_clock_hz"),
    Quantity("PCIe traffic", ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")),
    Quantity("NVLink traffic", ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_bytes_per_s")),
)


class Panel(NamedTuple):
    """A quantity, its rows (one at least), and its limit over time (label, start_ns, dur_ns, mean; may be empty)."""

    quantity: Quantity
    rows: pd.DataFrame
    limit: pd.DataFrame

    @property
    def top(self) -> float:
        """What the axis must reach."""
        return float(pd.concat([self.rows["max"], self.limit["mean"]]).max())

    @property
    def scale(self) -> Unit:
        """The unit of the axis."""
        metric = str(self.rows["metric"].iloc[0])
        return unit(self.top, next(ladder for suffix, ladder in LADDERS.items() if metric.endswith(suffix)))

    def up(self, axis: alt.Axis | None) -> alt.Y:
        """Return the upward axis, for a share to 100 % or to what cannot be."""
        top = 100 if self.scale.symbol == "%" and self.top <= 1 else 1.05 * self.top / self.scale.size
        room = alt.Scale(domain=[0, top or 1], nice=False)
        return alt.Y("value:Q", title=f"({self.scale.symbol})", scale=room, axis=axis)


def across(frame: Frame, *, labels: bool) -> alt.X:
    """Return the axis of time of a panel, with labels or without."""
    return alt.X(
        "time:Q",
        title=f"time since the start of the capture ({frame.time.symbol})",
        scale=alt.Scale(domainMin=alt.ExprRef("left"), domainMax=alt.ExprRef("right"), nice=False, zero=False),
        axis=alt.Axis(tickCount=8) if labels else alt.Axis(labels=False, ticks=False, title=None),
    )


def panel(shown: Panel, frame: Frame, x: alt.X, *, behind: Iterable[alt.Chart] = ()) -> alt.LayerChart:
    """Return one quantity over time with its limit, in front of the marks `behind`."""
    axes, scale = Axes(x, shown.up(alt.Axis(tickCount=3))), shown.scale
    drawn = monitor_lines.levels(shown.rows, scale, frame)
    layers = [
        *behind,
        *monitor_lines.limits(shown.limit, scale, frame, axes),
        *monitor_lines.lines(drawn, frame.gpus, axes),
        monitor_lines.numbers(drawn, scale, frame, x),
    ]
    return framed(layers, _said(shown), HEIGHT)


def framed(layers: Iterable[alt.Chart], name: str, height: int) -> alt.LayerChart:
    """Return layers as a picture among others, its name above the left end of its axis of time."""
    chart = panels.panel(layers, name, picture=PICTURE, size=(WIDTH, height))
    chart.title = alt.TitleParams(text=name, fontSize=12, fontWeight="normal", frame="group", offset=4)
    return chart


def _said(shown: Panel) -> str:
    """Return what a panel shows, and how high its limit is."""
    name, present = shown.quantity.name, shown.rows["metric"].unique()
    meaning = METRICS[present[0]] if len(present) == 1 else ""
    meaning = f"{name}: {meaning}" if name and meaning else name or meaning[:1].upper() + meaning[1:]
    if shown.limit.empty:
        return meaning
    low, high = (number(value / shown.scale.size) for value in shown.limit["mean"].agg(["min", "max"]))
    return f"{meaning}; dashed: limit {low if low == high else f'{low} to {high}'} {shown.scale.symbol}"


def overview(shown: Panel, frame: Frame) -> alt.LayerChart:
    """Return the whole time of a panel in a strip; the part that is chosen in it is what all panels show."""
    ends = [frame.first / frame.time.size, frame.last / frame.time.size]
    x = alt.X(
        "time:Q",
        title=f"time since the start of the capture ({frame.time.symbol})",
        scale=alt.Scale(domain=ends, nice=False, zero=False),
        axis=alt.Axis(title=None, tickCount=8),
    )
    # What lies between the lines must be hit too.
    ground = alt.Chart(inline(pd.DataFrame({"time": ends[:1], "end": ends[1:]}))).mark_rect(
        color=GREY, opacity=0.08, cursor="crosshair", tooltip=False
    )
    ground = ground.encode(x, alt.X2("end"), y=alt.value(0), y2=alt.value("height")).properties(name="whole")
    chosen = ground.add_params(
        alt.selection_interval(name="zoom", encodings=["x"], zoom=False),
        alt.param(name="left", expr=f"zoom.time ? zoom.time[0] : {ends[0]!r}"),
        alt.param(name="right", expr=f"zoom.time ? zoom.time[1] : {ends[1]!r}"),
    )
    drawn = monitor_lines.levels(shown.rows, shown.scale, frame)
    return framed([chosen, *monitor_lines.lines(drawn, frame.gpus, Axes(x, shown.up(None)))], WHOLE, STRIP)
