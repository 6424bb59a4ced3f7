"""Picture of how long a batch takes, by its size.

Conventions
-----------
Both axes begin at 0, so that a time in proportion to the batch is a line through the corner, and what a batch costs
whatever its size is the height at which the line begins.

Functions
---------
latency   times by batch size, and a line through them
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import inline, need
from perfkit.charts.theme import KIND_COLOURS, WIDTH, ink, layered, nothing, register
from perfkit.format import duration, number

MEASURED, GREY = KIND_COLOURS["computation"], "#808080"
HEIGHT = 300
ROOM = 1.18  # beyond the largest batch and the longest time, for the words
PICTURE = "Points, one for each batch size, beside a straight line"
TOO_FEW = "A line needs two batch sizes. Time the same model on at least two, better on four."


def latency(times: pd.DataFrame, *, intercept_ns: float, slope_ns: float, title: str = "") -> alt.LayerChart:
    """Draw latencies against the batch size, and the line intercept + slope x batch.

    Parameters
    ----------
    times
        Columns batch_count and latency_ns: one row per batch size, above 0; may be empty.
    intercept_ns, slope_ns
        The line: ns at batch 0, and ns more for each sample.
    title
        What is seen; the line in words when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    need(times, "batch_count", "latency_ns")
    if times["batch_count"].nunique() < 2:
        return nothing(title or "No line to draw", TOO_FEW)
    register()
    drawn, line = _rows(times, intercept_ns, slope_ns), _line(times, intercept_ns, slope_ns)
    said = title or f"A batch takes {duration(intercept_ns)} and {duration(slope_ns)} for each sample"
    told = "Line: intercept and slope; dots: measured, with their distance from the line in the tooltip."
    return layered(_layers(drawn, line), said, told, picture=PICTURE, size=(WIDTH, HEIGHT))


def _rows(times: pd.DataFrame, intercept: float, slope: float) -> pd.DataFrame:
    rows = times.sort_values("batch_count", ignore_index=True)
    off = rows["latency_ns"] - (intercept + slope * rows["batch_count"])
    return pd.DataFrame(
        {
            "batch": rows["batch_count"].astype(int),
            "ms": rows["latency_ns"] / 1e6,
            "words": rows["latency_ns"].map(duration),
            "off": [f"{'above' if each > 0 else 'below'} by {duration(abs(each))}" for each in off],
            "rate": [number(b / (t / 1e9)) for b, t in zip(rows["batch_count"], rows["latency_ns"], strict=True)],
        }
    )


def _line(times: pd.DataFrame, intercept: float, slope: float) -> pd.DataFrame:
    ends = [0.0, ROOM * float(times["batch_count"].max())]
    return pd.DataFrame({"batch": ends, "ms": [(intercept + slope * end) / 1e6 for end in ends]})


def _layers(drawn: pd.DataFrame, line: pd.DataFrame) -> list[alt.Chart]:
    right, top = float(line["batch"].max()), ROOM * max(float(drawn["ms"].max()), float(line["ms"].max()) / ROOM)
    x = alt.X(
        "batch:Q",
        title="batch size (count)",
        scale=alt.Scale(domain=[0, right], nice=False),
        axis=alt.Axis(values=sorted(set(drawn["batch"])), gridOpacity=0.2),
    )
    low = min(0.0, float(line["ms"].min()))
    scale = alt.Scale(domain=[low, top], nice=False)
    y = alt.Y("ms:Q", title="latency of a batch (ms)", scale=scale, axis=alt.Axis(gridOpacity=0.2))
    shown = [
        alt.Tooltip("batch:Q", title="batch size"),
        alt.Tooltip("words:N", title="latency"),
        alt.Tooltip("rate:N", title="samples/s"),
        alt.Tooltip("off:N", title="from the line"),
    ]
    data = inline(drawn)
    straight = alt.Chart(inline(line)).mark_line(color=GREY, strokeDash=[5, 4], tooltip=False).encode(x=x, y=y)
    points = alt.Chart(data).mark_point(color=MEASURED, filled=True, size=80, opacity=1).encode(x=x, y=y, tooltip=shown)
    text: alt.Chart = ink(data, dx=9)
    text.mark.dy = 9
    return [straight, points, text.encode(x, y, alt.Text("words:N"))]
