"""The marks of metrics over time: lines, bands, limits, and the strip that tells their numbers."""

from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts.theme import (
    LINE_COLOURS,
    hover,
    inline,
)
from perfkit.format import Unit

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
