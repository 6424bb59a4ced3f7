"""Pictures of how fast the GPUs of a run communicate.

Conventions
-----------
Frames are those of `perfkit.analysis.communication`: the bus bandwidth is that of nccl-tests, which compares with the
speed of the links whatever the operation and the number of ranks; 1 GB/s is 1e9 bytes/s.

Functions
---------
bandwidth   bus bandwidth of each operation by message size
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import panels, roof_lines
from perfkit.charts.data import inline, known, need
from perfkit.charts.theme import WIDTH, colours, ink, nothing, register
from perfkit.format import Unit, percent, printable, size, unit

OPERATION_COLOURS = {
    "all_reduce": "#1F77D4",
    "all_gather": "#D55E00",
    "reduce_scatter": "#00B878",
    "all_to_all": "#744FEA",
    "broadcast": "#E0A010",
    "reduce": "#884421",
    "send_recv": "#CB8BC4",
    "gather": "#276B71",
    "scatter": "#394B74",
}
OPERATION_NAMES = {key: key.replace("_", "-") for key in OPERATION_COLOURS}
SHAPES = {
    "all_reduce": "circle",
    "all_gather": "square",
    "reduce_scatter": "diamond",
    "all_to_all": "triangle-up",
    "broadcast": "cross",
    "reduce": "triangle-down",
    "send_recv": "triangle-left",
    "gather": "triangle-right",
    "scatter": "arrow",
}
PICTURE = "Bus bandwidth over message size, a line for each operation, logarithmic in the size"
RATES = ("bus_bytes_per_s", "min_bus_bytes_per_s", "max_bus_bytes_per_s")
UNKNOWN = "unknown group"
LONGEST_GROUP = 40  # characters
FADED = 0.08  # opacity of what is not chosen in the legend
MOST_DASHES = 8  # process groups that dashes can tell apart
TICK = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, ',') + ' GB' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',') + ' MB' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, ',') + ' kB' : format(datum.value, ',') + ' B'"
)
NO_COLLECTIVE = (
    "No collective with a known message size and duration. PyTorch traces have the sizes since 2024; "
    "nccl-tests measures over all sizes."
)


def bandwidth(
    summary: pd.DataFrame, *, line_rate_bytes_per_s: float | None = None, title: str = ""
) -> alt.LayerChart | alt.VConcatChart:
    """Draw the median bus bandwidth of each operation against the message size, and how far single ones lie apart.

    Parameters
    ----------
    summary
        Columns operation, group, ranks, placement, bytes, count, bus_bytes_per_s, min_bus_bytes_per_s,
        max_bus_bytes_per_s: one row per operation, process group, placement and message size. Rows without a bandwidth
        or a size are left out, which the chart says; may be empty.
    line_rate_bytes_per_s
        What the links of a GPU carry in one direction, bytes/s: a line to compare with; none when omitted.
    title
        What is seen; the highest bandwidth when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If an operation with a bandwidth has no colour, or the line rate is not above 0.
    """
    need(summary, "operation", "group", "ranks", "placement", "bytes", "count", *RATES)
    if line_rate_bytes_per_s is not None and not line_rate_bytes_per_s > 0:
        raise ValueError(f"line_rate_bytes_per_s: {line_rate_bytes_per_s} is not above 0")
    rows = summary[summary["bus_bytes_per_s"].notna() & (summary["bytes"] > 0)]
    known(rows, "operation", OPERATION_COLOURS)
    if rows.empty:
        return nothing(title or "No bandwidth", NO_COLLECTIVE)
    register()
    top = max(float(rows["max_bus_bytes_per_s"].max()), line_rate_bytes_per_s or 0.0)
    scale = unit(top, roof_lines.BYTES)
    drawn = _rows(rows, scale)
    axes = _axes(drawn, 1.15 * top / scale.size or 1.0, scale)
    layers = [*_line_rate(line_rate_bytes_per_s, axes[1], scale), *_points(drawn, axes, scale)]
    picture = panels.panel(layers, "", picture=PICTURE, size=(WIDTH, 300))
    said = title or _title(rows, line_rate_bytes_per_s)
    limit = (line_rate_bytes_per_s or float("inf")) / scale.size
    return panels.together([picture], said, _explained(drawn, len(summary) - len(rows), limit), picture=PICTURE)


def _title(rows: pd.DataFrame, line_rate: float | None) -> str:
    best = rows.iloc[rows["bus_bytes_per_s"].argmax()]
    fastest = float(best["bus_bytes_per_s"])
    said = f"{OPERATION_NAMES[best['operation']]} reaches {roof_lines.rate(fastest, roof_lines.BYTES)}"
    beside = f", {percent(fastest / line_rate)} of the line rate" if line_rate else ""
    return f"{said[:1].upper()}{said[1:]} at {size(best['bytes'])}{beside}"


def _explained(drawn: pd.DataFrame, left_out: int, limit: float) -> list[str]:
    kinds = drawn["kind"].unique()
    of_kind = f", {kinds[0]}" if len(kinds) == 1 and kinds[0] != UNKNOWN else ""
    bars = "; bars: from the least to the most of a size" if (drawn["count"] > 1).any() else ""
    said = [f"Points: {'median ' if bars else ''}bus bandwidth{of_kind}{bars}."]
    if not drawn["benchmark"].all():
        said += ["From a timeline these are lower bounds: a kernel's duration includes the wait for the slowest rank."]
    if (drawn["rate"] > limit).any():
        said += ["Above the line rate switches do the reduction (NVLS, SHARP), or the links are faster than that."]
    if len(set(drawn["operation"])) > 1:
        said += ["Click an operation in the legend to see it alone, with shift several; double click to see all."]
    return [*said, f"Not drawn: {left_out} without size or bandwidth."] if left_out else said


def _rows(rows: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return the points; `kind` says process group, ranks and placement, as far as they are known."""
    group = rows["group"].astype("string").map(lambda name: printable(name, LONGEST_GROUP), na_action="ignore")
    placement = rows["placement"].astype("string").str.replace("_", " ")
    told = ("group " + group, rows["ranks"].astype("string") + " ranks", placement)
    kinds = [", ".join(part for part in parts if pd.notna(part)) for parts in zip(*told, strict=True)]
    return pd.DataFrame(
        {
            "operation": rows["operation"].astype(str).map(OPERATION_NAMES),
            "key": rows["operation"].astype(str),
            "kind": [kind or UNKNOWN for kind in kinds],
            "benchmark": placement.notna(),
            "bytes": rows["bytes"],
            "size": rows["bytes"].map(size),
            "count": rows["count"],
            "rate": rows["bus_bytes_per_s"] / scale.size,
            "least": rows["min_bus_bytes_per_s"] / scale.size,
            "most": rows["max_bus_bytes_per_s"] / scale.size,
        }
    )


def _axes(drawn: pd.DataFrame, top: float, scale: Unit) -> tuple[alt.X, alt.Y]:
    low, high = int(drawn["bytes"].min()) / 2, int(drawn["bytes"].max()) * 2
    steps = [1, 2, 5] if high / low < 1e3 else [1]
    ticks = [step * 10**power for power in range(19) for step in steps if low <= step * 10**power <= high]
    x = alt.X(
        "bytes:Q",
        title="message size (logarithmic, unit at each tick)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(labelExpr=TICK, values=ticks),
    )
    room = alt.Scale(domain=[0, top], nice=False)
    return x, alt.Y("rate:Q", title=f"bus bandwidth ({scale.symbol})", scale=room)


def _points(drawn: pd.DataFrame, axes: tuple[alt.X, alt.Y], scale: Unit) -> list[alt.Chart]:
    """Return lines, bars from least to most, and points; dashes tell a few process groups apart."""
    data, (x, y) = inline(drawn.drop(columns=["key", "benchmark"])), axes
    present = [key for key in OPERATION_COLOURS if key in set(drawn["key"])]
    shapes = alt.Scale(domain=[OPERATION_NAMES[key] for key in present], range=[SHAPES[key] for key in present])
    shades, legend = colours(OPERATION_COLOURS, OPERATION_NAMES, present), alt.Legend(symbolOpacity=1)
    colour = alt.Color("operation:N", scale=shades, title=None, legend=legend)
    apart = alt.StrokeDash("kind:N", title=None, legend=alt.Legend(orient="bottom", symbolType="stroke", columns=4))
    series = apart if 1 < len(drawn["kind"].unique()) <= MOST_DASHES else alt.Detail("kind:N")
    shown = [
        alt.Tooltip("operation:N"),
        alt.Tooltip("kind:N", title="between"),
        alt.Tooltip("size:N", title="message size"),
        alt.Tooltip("count:Q", title="collectives", format=","),
        alt.Tooltip("rate:Q", title=f"median ({scale.symbol})", format=",.4~g"),
        alt.Tooltip("least:Q", title=f"least ({scale.symbol})", format=",.4~g"),
        alt.Tooltip("most:Q", title=f"most ({scale.symbol})", format=",.4~g"),
    ]
    chosen = alt.selection_point(name="operations", fields=["operation"], bind="legend")
    strong, weak = (alt.condition(chosen, alt.value(high), alt.value(FADED)) for high in (1, 0.6))
    line = alt.Chart(data).mark_line(strokeWidth=1.5, tooltip=False)
    span = alt.Chart(data).mark_rule(strokeWidth=1.5, tooltip=False)
    point = alt.Chart(data).mark_point(filled=True, size=70)
    shape = alt.Shape("operation:N", scale=shapes, title=None)
    return [
        line.encode(x, y, colour, series, opacity=strong),
        span.encode(x, alt.Y("least:Q"), alt.Y2("most"), colour, opacity=weak),
        point.encode(x, y, colour, shape, shown, opacity=strong).add_params(chosen),
    ]


def _line_rate(line_rate: float | None, y: alt.Y, scale: Unit) -> list[alt.Chart]:
    if line_rate is None:
        return []
    said = f"line rate {roof_lines.rate(line_rate, roof_lines.BYTES)}"
    data = inline(pd.DataFrame({"rate": [line_rate / scale.size], "said": [said]}))
    rule = alt.Chart(data).mark_rule(color="#808080", strokeDash=[5, 4], strokeWidth=1.5, tooltip=False)
    words: alt.Chart = ink(data, dx=4)
    words.mark.dy = -8
    return [rule.encode(y), words.encode(y, alt.Text("said:N"), x=alt.value(0))]
