"""Pictures of how the ranks of a run differ.

Conventions
-----------
Frames are those of `perfkit.analysis`, one row per rank and GPU. Ranks stand side by side, so that 64 of them still
have a column each; where a rank has several GPUs there is a column for each GPU.

Functions
---------
bars     one figure per rank, and its mean
parts    where the time of each rank goes, from `perfkit.charts.rank_parts`
waits    who comes last to collectives, and how long each rank waits for the others
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import columns, panels, roof_lines
from perfkit.charts.data import fraction, inline, need
from perfkit.charts.rank_parts import parts
from perfkit.charts.theme import KIND_COLOURS, ink, layered, nothing, register
from perfkit.format import BYTES, TIME, Unit, duration, number, percent, unit

__all__ = ["bars", "parts", "waits"]

# By the suffix of a column; one that ends in another stands before it.
LADDERS: dict[str, tuple[Unit, ...]] = {
    "_bytes_per_s": roof_lines.BYTES,
    "_flops_per_s": roof_lines.FLOPS,
    "_bytes": BYTES,
    "_frac": (Unit("%", 0.01),),
    "_count": (Unit("count", 1),),
    "_ns": TIME,
    "_w": (Unit("W", 1),),
    "_c": (Unit("°C", 1),),
}
MOST_FIGURES = 10  # more would touch each other
FIGURE, LATE = KIND_COLOURS["computation"], KIND_COLOURS["communication"]
NO_MEETING = "It takes collectives of several ranks, recorded over the same steps with their message sizes."


def bars(frame: pd.DataFrame, *, value: str, title: str = "") -> alt.LayerChart:
    """Draw one figure of each rank, and the mean of all.

    Parameters
    ----------
    frame
        Columns rank, gpu and `value`: one row per rank and GPU; rows without a value are left out; may be empty.
    value
        A column of numbers whose name ends in its unit: _ns, _bytes, _bytes_per_s, _flops_per_s, _frac, _count, _w, _c.
    title
        What is seen; the smallest and the largest figure when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If the name of `value` ends in none of these units.
    """
    suffix = next((suffix for suffix in LADDERS if value.endswith(suffix)), None)
    if suffix is None:
        raise ValueError(f"value: {value!r} does not end in one of {list(LADDERS)}")
    need(frame, "rank", "gpu", value)
    what = value.removesuffix(suffix).replace("_", " ")
    known = columns.placed(frame[frame[value].notna()])
    if known.empty:
        return nothing(title or f"No {what}", "No rank has this figure.")
    register()
    scale = unit(float(known[value].abs().max()), LADDERS[suffix])
    known = known.assign(figure=known[value] / scale.size)
    known = known.assign(said=[f"{number(figure)} {scale.symbol}" for figure in known["figure"]])
    left_out = len(frame) - len(known)
    return layered(
        _figures(known, f"{what} ({scale.symbol})", FIGURE) + _mean(known, scale),
        title or f"{what[:1].upper()}{what[1:]} {_range(known)}",
        f"Not drawn: {left_out} without a value." if left_out else "",
        picture=f"Columns of {what} for {len(known)} GPUs, and their mean as a line",
        size=(columns.width(known), 220),
    )


def _range(known: pd.DataFrame) -> str:
    """Say between which figures the rows lie, and whose the largest is."""
    low, high = known.iloc[known["figure"].argmin()], known.iloc[known["figure"].argmax()]
    if low["said"] == high["said"]:
        return f"is {high['said']}" + (" on every rank" if len(known) > 1 else "")
    return f"is {low['said']} to {high['said']}, most on {high['name']}"


def _figures(known: pd.DataFrame, axis: str, colour: str) -> list[alt.Chart]:
    """Return a column for each row, and its figure above it where there is room."""
    drawn = inline(known[["place", "name", "figure", "said"]])
    height = alt.Y("figure:Q", title=axis, axis=alt.Axis(tickCount=5))
    shown = [alt.Tooltip("name:N", title="where"), alt.Tooltip("said:N", title=axis.split(" (")[0])]
    bar = alt.Chart(drawn).mark_bar(width=alt.RelativeBandSize(band=0.8), color=colour)
    layers: list[alt.Chart] = [bar.encode(columns.across(known), height, shown)]
    if len(known) <= MOST_FIGURES:
        marks: alt.Chart = ink(drawn).encode(columns.across(known), alt.Y("figure:Q"), alt.Text("said:N"))
        marks.mark.align, marks.mark.dy = "center", -7
        layers.append(marks)
    return layers


def _mean(known: pd.DataFrame, scale: Unit) -> list[alt.Chart]:
    """Return the mean beside the columns, and a line at it where no figures stand in its way."""
    if len(known) == 1:
        return []
    mean = float(known["figure"].mean())
    drawn = inline(pd.DataFrame({"figure": [mean], "said": [f"← mean {number(mean)} {scale.symbol}"]}))
    rule = alt.Chart(drawn).mark_rule(color="#808080", strokeDash=[4, 3], strokeWidth=1.5, tooltip=False)
    words = ink(drawn, dx=3).encode(alt.Y("figure:Q"), alt.Text("said:N"), x=alt.value("width"))
    return [rule.encode(alt.Y("figure:Q")), words] if len(known) > MOST_FIGURES else [words]


def waits(stragglers: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw how often each rank comes last to collectives, and below how long it waits for the others.

    Parameters
    ----------
    stragglers
        Columns rank, gpu, count, last_count, last_frac (0..1), wait_ns, apart_count, unmatched_count: one row per
        rank and GPU; may be empty.
    title
        What is seen; who comes last most often when empty.

    Returns
    -------
    altair.LayerChart or altair.VConcatChart
        The former where there is nothing to draw.

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a share is no fraction.
    """
    need(stragglers, "rank", "gpu", "count", "last_count", "last_frac", "wait_ns", "apart_count", "unmatched_count")
    fraction(stragglers, "last_frac")
    known = columns.placed(stragglers[stragglers["count"] > 0])
    if known.empty:
        return nothing(title or "No collective says who was late", NO_MEETING)
    register()
    scale = unit(float(known["wait_ns"].max()), TIME)
    last = known.assign(figure=100 * known["last_frac"], said=known["last_frac"].map(percent))
    wait = known.assign(figure=known["wait_ns"] / scale.size, said=known["wait_ns"].map(duration))
    size = (columns.width(known), 120)
    pictures = [
        panels.panel(_figures(rows, axis, shade), name, picture=axis, size=size)
        for rows, axis, shade, name in (
            (last, "came last (%)", LATE, "Came last, share of the collectives"),
            (wait, f"waited ({scale.symbol})", "#9A9A9A", "Waited for the others"),
        )
    ]
    left_out = int(stragglers[["apart_count", "unmatched_count"]].sum().sum())
    said = ["Counted are collectives in which all ranks were at one moment; who comes last waits least."]
    said += (
        [f"Left out: {left_out:,} kernels of collectives that do not match or never held all ranks at once."]
        if left_out
        else []
    )
    return panels.together(pictures, title or _latest(known), said, picture="Columns for each rank")


def _latest(known: pd.DataFrame) -> str:
    """Say who comes last most often."""
    if not known["last_count"].any():
        return "All ranks come to every collective at once"
    row = known.iloc[known["last_frac"].argmax()]
    who = row["name"][:1].upper() + row["name"][1:]
    return f"{who} comes last to {percent(row['last_frac'])} of {row['count']:,} collectives"
