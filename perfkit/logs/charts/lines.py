"""The picture of a log that grows, drawn again every second: Vega-Lite itself, since Altair takes seconds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.checks import need
from perfkit.charts.ranks import STRIP_UNITS
from perfkit.charts.theme import (
    LINE_COLOURS,
    MOST_ROWS,
    STRIP_NAMES,
    WIDTH,
    devices,
    hover,
    inline,
    nothing,
)
from perfkit.format import TIME, Unit, duration, unit

GREY = "#808080"
WAYS = {"rx": "to the GPU", "tx": "from the GPU"}
DASHES = {"to the GPU": [1, 0], "from the GPU": [4, 3], "both ways": [1, 3]}
DIGITS = 5  # of the largest figure, more than a screen can show
ENDS = {"value": "mean", "least": "min", "most": "max"}
STEPS: dict[str, Any] = {"interpolate": "step-after", "clip": True, "tooltip": False}


class Frame(NamedTuple):
    """What all panels have in common: first and last time, ns, its unit, and the names of the GPUs."""

    first: int
    last: int
    time: Unit
    gpus: list[str]


class Axes(NamedTuple):
    """The axes of a panel."""

    x: alt.X
    y: alt.Y

    def of(self, field: str) -> alt.Y:
        """Return the same upward axis for another field."""
        axis: alt.Y = self.y.copy()
        axis.shorthand = field
        return axis


Still = alt.VConcatChart | alt.LayerChart  # what stands in for it where nothing moves
STRIP_HEIGHT, STRIP_DIGITS = 56, 4  # pixels; more digits than a screen can show


class Channels(NamedTuple):
    """The encodings of a strip, and how many ns and how much of its metric are one on its axes."""

    x: dict[str, Any]
    y: dict[str, Any]
    color: dict[str, Any]
    time_size: float
    value_size: float


def strips(
    bins: pd.DataFrame, *, window: tuple[int, int], tops: Mapping[str, float]
) -> dict[str, Any]:
    """Return a Vega-Lite specification of the metrics over a window, a strip for each with a line for each GPU.

    `bins`: columns rank, gpu, metric (others than `STRIP_NAMES` are not drawn), start_ns, dur_ns, mean; of more
    than 8 GPUs the first 8 are drawn, which the title says. `window`: (start_ns, end_ns) of the axis. `tops`: the
    highest value of each metric, in its unit; fractions reach up to 100 %. Raises ValueError if there are more rows
    than a browser draws.
    """
    need(bins, "rank", "gpu", "metric", "start_ns", "dur_ns", "mean")
    rows = bins[bins["metric"].isin(list(STRIP_NAMES))]
    if rows.empty:
        return dict(nothing("No readings", "No metric of a GPU was read until here.").to_dict())
    if len(rows) > MOST_ROWS:
        raise ValueError(f"chart data: {len(rows)} rows are more than {MOST_ROWS}. Use fewer bins.")
    rows = rows.assign(label=devices(rows)).sort_values(["rank", "gpu", "start_ns"])
    all_gpus = rows["label"].unique().tolist()
    gpus = all_gpus[: len(LINE_COLOURS)]
    title = ", ".join(gpus) + (f" of {len(all_gpus)} GPUs" if len(gpus) < len(all_gpus) else "")
    time = unit(window[1] - window[0], TIME)
    drawn = rows[rows["label"].isin(gpus)]
    present = [metric for metric in STRIP_NAMES if (drawn["metric"] == metric).any()]
    channels = {metric: _channels(metric, gpus, window, time, tops[metric]) for metric in present}
    channels[present[-1]].x["axis"] = {"tickCount": 8}
    length = f"{duration(window[1] - window[0])} of the log"
    return {
        "$schema": alt.SCHEMA_URL,
        "config": theme.config(),
        "title": {"text": title, "subtitle": length},
        "description": f"{title}. Metrics of the GPUs over time, {len(present)} panels. {length}.",
        "spacing": 8,
        "datasets": {
            metric: _values(drawn[drawn["metric"] == metric], channels[metric])
            for metric in present
        },
        "vconcat": [_strip(metric, channels[metric]) for metric in present],
    }


def _channels(
    metric: str, gpus: list[str], window: tuple[int, int], time: Unit, top: float
) -> Channels:
    scale = unit(
        top, next(ladder for suffix, ladder in STRIP_UNITS.items() if metric.endswith(suffix))
    )
    highest = 100 if scale.symbol == "%" else 1.05 * top / scale.size or 1
    ends = [edge / time.size for edge in window]
    across = {"labels": False, "title": None, "tickCount": 8}
    since = f"time since the start of the capture ({time.symbol})"
    up = {"tickCount": 3, "minExtent": 48}
    shades = {"domain": gpus, "range": list(LINE_COLOURS[: len(gpus)])}
    legend = None if len(gpus) == 1 else {"title": None}
    x = {
        "field": "time",
        "type": "quantitative",
        "title": since,
        "axis": across,
        "scale": {"domain": ends},
    }
    y = {"field": "value", "type": "quantitative", "title": f"({scale.symbol})", "axis": up}
    colour = {"field": "gpu", "type": "nominal", "legend": legend, "scale": shades}
    return Channels(x, {**y, "scale": {"domain": [0, highest]}}, colour, time.size, scale.size)


def _strip(metric: str, channels: Channels) -> dict[str, Any]:
    return {
        "width": WIDTH,
        "height": STRIP_HEIGHT,
        "title": {"text": STRIP_NAMES[metric], "fontSize": 12, "frame": "group"},
        "data": {"name": metric},
        "mark": {
            "type": "line",
            "interpolate": "step-after",
            "clip": True,
            "strokeWidth": 1.5,
            "tooltip": False,
        },
        "encoding": {"x": channels.x, "y": channels.y, "color": channels.color},
    }


def _values(rows: pd.DataFrame, channels: Channels) -> list[dict[str, Any]]:
    """Return the levels in the units of the axes; a last row of each GPU ends its last bin."""
    time, value = rows["start_ns"] / channels.time_size, rows["mean"] / channels.value_size
    drawn = pd.DataFrame({"time": time, "value": value, "gpu": rows["label"].astype(object)})
    last = rows.groupby("label", sort=False).tail(1)
    ends = drawn.loc[last.index].assign(
        time=(last["start_ns"] + last["dur_ns"]) / channels.time_size
    )
    closed = pd.concat([drawn, ends]).round(STRIP_DIGITS)
    return [{str(name): value for name, value in row.items()} for row in closed.to_dict("records")]


def when(rows: pd.DataFrame, frame: Frame) -> pd.DataFrame:
    """Return `time` and `end` of rows in the unit of the axis."""
    end = rows["start_ns"] + rows["dur_ns"]
    return pd.DataFrame(
        {"time": rows["start_ns"] / frame.time.size, "end": end / frame.time.size}
    ).round(DIGITS)


def levels(rows: pd.DataFrame, scale: Unit, frame: Frame) -> pd.DataFrame:
    """Return rows in the units of the axes: time, end, gpu, way (of traffic), value, least, most."""
    way = (
        rows["metric"]
        .astype("string")
        .str.extract("_(rx|tx)_", expand=False)
        .map(WAYS)
        .fillna("both ways")
    )
    digits = DIGITS - len(f"{rows['max'].max() / scale.size:.0f}")
    figures = {name: (rows[column] / scale.size).round(digits) for name, column in ENDS.items()}
    return when(rows, frame).assign(gpu=rows["label"], way=way, **figures)


def limits(limit: pd.DataFrame, scale: Unit, frame: Frame, axes: Axes) -> list[alt.Chart]:
    """Return a dashed line for each limit."""
    if limit.empty:
        return []
    drawn = when(limit, frame).assign(gpu=limit["label"], way="", value=limit["mean"] / scale.size)
    distinct = _closed(drawn).drop(columns="way").drop_duplicates(["time", "value"])
    line = alt.Chart(inline(distinct)).mark_line(
        **STEPS, color=GREY, strokeDash=[5, 4], strokeWidth=1.5
    )
    return [line.encode(axes.x, axes.y, alt.Detail("gpu:N"))]


def lines(drawn: pd.DataFrame, gpus: list[str], axes: Axes) -> list[alt.Chart]:
    """Return a line for each GPU in its colour, of many faint ones; a band around one GPU's, or around many."""
    way = ["way"] if len(drawn["way"].unique()) > 1 else []
    figures = ["value", "least", "most"] if len(gpus) == 1 else ["value"]
    data = inline(_closed(drawn)[["time", "gpu", *way, *figures]])
    ways = [name for name in DASHES if (drawn["way"] == name).any()]
    dashes, legend = (
        alt.Scale(domain=ways, range=[DASHES[name] for name in ways]),
        alt.Legend(symbolType="stroke"),
    )
    dash = [alt.StrokeDash("way:N", title=None, scale=dashes, legend=legend)] if way else []
    if len(gpus) == 1:
        return [
            _band(data, axes, ("least:Q", "most"), way),
            _steps(data, axes, width=1.5).encode(*dash),
        ]
    if len(gpus) > len(LINE_COLOURS):
        faint = _steps(data, axes, width=1).encode(
            *dash, alt.Detail("gpu:N"), opacity=alt.value(0.4)
        )
        return [_band(data, axes, ("min(value):Q", "max(value)"), way), faint]
    shades = alt.Scale(domain=gpus, range=list(LINE_COLOURS[: len(gpus)]))
    return [
        _steps(data, axes, width=1.5).encode(
            *dash, alt.Color("gpu:N", scale=shades, title=None, legend=legend)
        )
    ]


def _steps(data: alt.InlineData, axes: Axes, *, width: float) -> alt.Chart:
    line = alt.Chart(data).mark_line(**STEPS, strokeWidth=width, color=LINE_COLOURS[0])
    marks: alt.Chart = line.encode(axes.x, axes.y)
    return marks


def _band(data: alt.InlineData, axes: Axes, ends: tuple[str, str], way: list[str]) -> alt.Chart:
    """Return the range of the readings of one GPU, or that of the levels of several."""
    area = alt.Chart(data).mark_area(**STEPS, line=False, color=LINE_COLOURS[0], opacity=0.25)
    marks: alt.Chart = area.encode(
        axes.x, axes.of(ends[0]), alt.Y2(ends[1]), detail=[f"{name}:N" for name in way]
    )
    return marks


def _closed(drawn: pd.DataFrame) -> pd.DataFrame:
    """Return the levels with a last row for each line, where its last bin ends."""
    last = drawn.groupby(["gpu", "way"], sort=False).tail(1)
    return pd.concat([drawn, last.assign(time=last["end"])], ignore_index=True).drop(columns="end")


def numbers(drawn: pd.DataFrame, scale: Unit, frame: Frame, x: alt.X) -> alt.Chart:
    """Return an invisible strip over each bin that tells the numbers of all lines."""
    of_line, several = drawn.groupby(["gpu", "way"], sort=False), len(drawn["way"].unique()) > 1
    figures = (
        {"value": "", "least": ", least", "most": ", most"}
        if of_line.ngroups == 1
        else {"value": ""}
    )
    shown = hover(("time", f"bin starts at ({frame.time.symbol})", ",.6~g"))
    bins = drawn[["time", "end"]].drop_duplicates("time").set_index("time")
    for place, ((gpu, way), rows) in enumerate(of_line):
        line = f"{gpu}, {way}" if several else gpu
        for figure, words in figures.items():
            bins[f"{figure}{place}"] = rows.set_index("time")[figure]
            shown += hover((f"{figure}{place}", f"{line}{words} ({scale.symbol})", ",.4~g"))
    strips = alt.Chart(inline(bins.reset_index())).mark_rect(opacity=0, clip=True)
    marks: alt.Chart = strips.encode(
        x, alt.X2("end"), shown, y=alt.value(0), y2=alt.value("height")
    )
    return marks
