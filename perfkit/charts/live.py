"""The picture of a log that grows: metrics of the GPUs over a window of time, drawn again every second.

Conventions
-----------
A chart of `perfkit.charts.monitor` takes seconds to make, so this one is written as Vega-Lite itself, and shows
one metric of each kind with the axes as they are for the whole log: nothing jumps while it grows.

Functions
---------
strips   a strip for each metric, a line for each GPU
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts.data import MOST_ROWS, need
from perfkit.charts.labels import devices
from perfkit.charts.monitor_lines import COLOURS
from perfkit.charts.ranks import LADDERS
from perfkit.charts.theme import WIDTH, nothing, register
from perfkit.format import TIME, Unit, duration, unit

Still = alt.VConcatChart | alt.LayerChart  # what stands in for it where nothing moves
NAMES = {
    "gpu_busy_frac": "GPU busy",
    "graphics_active_frac": "engine active",
    "sm_active_frac": "SMs active",
    "tensor_active_frac": "tensor pipes active",
    "dram_active_frac": "memory active",
    "memory_used_bytes": "memory used",
    "power_w": "power",
    "temperature_c": "temperature",
    "sm_clock_hz": "SM clock",
    "pcie_rx_bytes_per_s": "PCIe to the GPU",
    "pcie_tx_bytes_per_s": "PCIe from the GPU",
}
UNITS = {**LADDERS, "_hz": (Unit("MHz", 1e6),)}
HEIGHT = 56  # pixels
DIGITS = 4  # more than a screen can show
NO_READINGS = "No metric of a GPU was read until here."


class Channels(NamedTuple):
    """The encodings of a strip, and how many ns and how much of its metric are one on its axes."""

    x: dict[str, Any]
    y: dict[str, Any]
    color: dict[str, Any]
    time_size: float
    value_size: float


def strips(bins: pd.DataFrame, *, window: tuple[int, int], tops: Mapping[str, float]) -> dict[str, Any]:
    """Return a Vega-Lite specification of the metrics over a window, a strip for each with a line for each GPU.

    Of more than 8 GPUs the first 8 are drawn, which the title says.

    Parameters
    ----------
    bins
        Columns rank, gpu, metric, start_ns, dur_ns, mean: as from `analysis.sampling.bins`; may be empty. Metrics other
        than those of `NAMES` are not drawn.
    window
        (start_ns, end_ns) of the axis of time.
    tops
        The highest value of each metric that is drawn, in its unit; fractions reach up to 100 %.

    Returns
    -------
    dict
        The specification, with its data.

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If there are more rows than a browser draws.
    """
    need(bins, "rank", "gpu", "metric", "start_ns", "dur_ns", "mean")
    register()
    rows = bins[bins["metric"].isin(list(NAMES))]
    if rows.empty:
        return dict(nothing("No readings", NO_READINGS).to_dict())
    if len(rows) > MOST_ROWS:
        raise ValueError(f"chart data: {len(rows)} rows are more than {MOST_ROWS}. Use fewer bins.")
    rows = rows.assign(label=devices(rows)).sort_values(["rank", "gpu", "start_ns"])
    all_gpus = rows["label"].unique().tolist()
    gpus = all_gpus[: len(COLOURS)]
    title = ", ".join(gpus) + (f" of {len(all_gpus)} GPUs" if len(gpus) < len(all_gpus) else "")
    time = unit(window[1] - window[0], TIME)
    drawn = rows[rows["label"].isin(gpus)]
    present = [metric for metric in NAMES if (drawn["metric"] == metric).any()]
    channels = {metric: _channels(metric, gpus, window, time, tops[metric]) for metric in present}
    channels[present[-1]].x["axis"] = {}
    said = f"{duration(window[1] - window[0])} of the log"
    return {
        "$schema": alt.SCHEMA_URL,
        "config": _config(),
        "title": {"text": title, "subtitle": said},
        "description": f"{title}. Metrics of the GPUs over time, {len(present)} panels. {said}.",
        "spacing": 8,
        "datasets": {metric: _values(drawn[drawn["metric"] == metric], channels[metric]) for metric in present},
        "vconcat": [_strip(metric, channels[metric]) for metric in present],
    }


def _config() -> dict[str, Any]:
    theme = alt.theme.get()
    return dict(theme()["config"]) if theme else {}


def _channels(metric: str, gpus: list[str], window: tuple[int, int], time: Unit, top: float) -> Channels:
    scale = unit(top, next(ladder for suffix, ladder in UNITS.items() if metric.endswith(suffix)))
    highest = 100 if scale.symbol == "%" else 1.05 * top / scale.size or 1
    ends = [edge / time.size for edge in window]
    across = {"labels": False, "title": None}
    x = {"title": f"time since the start of the capture ({time.symbol})", "axis": across, "scale": {"domain": ends}}
    y = {"title": f"({scale.symbol})", "axis": {"tickCount": 3, "minExtent": 48}, "scale": {"domain": [0, highest]}}
    shades = {"domain": gpus, "range": list(COLOURS[: len(gpus)])}
    legend = None if len(gpus) == 1 else {"title": None}
    return Channels(
        {"field": "time", "type": "quantitative", **x},
        {"field": "value", "type": "quantitative", **y},
        {"field": "gpu", "type": "nominal", "legend": legend, "scale": shades},
        time.size,
        scale.size,
    )


def _strip(metric: str, channels: Channels) -> dict[str, Any]:
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "title": {"text": NAMES[metric], "fontSize": 12, "frame": "group"},
        "data": {"name": metric},
        "mark": {"type": "line", "interpolate": "step-after", "clip": True, "strokeWidth": 1.5, "tooltip": False},
        "encoding": {"x": channels.x, "y": channels.y, "color": channels.color},
    }


def _values(rows: pd.DataFrame, channels: Channels) -> list[dict[str, Any]]:
    """Return the levels in the units of the axes; a last row of each GPU ends its last bin."""
    time, value = rows["start_ns"] / channels.time_size, rows["mean"] / channels.value_size
    drawn = pd.DataFrame({"time": time, "value": value, "gpu": rows["label"].astype(object)})
    last = rows.groupby("label", sort=False).tail(1)
    ends = drawn.loc[last.index].assign(time=(last["start_ns"] + last["dur_ns"]) / channels.time_size)
    closed = pd.concat([drawn, ends]).round(DIGITS)
    return [{str(name): value for name, value in row.items()} for row in closed.to_dict("records")]
