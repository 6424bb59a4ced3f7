"""The picture of where the time of each rank goes; reached as `perfkit.charts.ranks.parts`.

Functions
---------
parts   the time of each rank, split into work and idleness
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import columns
from perfkit.charts.breakdown import NO_WORK, PART_OF
from perfkit.charts.data import inline, need
from perfkit.charts.theme import KIND_COLOURS, KIND_NAMES, colours, layered, nothing, register
from perfkit.format import TIME, Unit, duration, percent, unit


def parts(breakdown: pd.DataFrame, *, title: str = "") -> alt.LayerChart:
    """Draw how the time of each rank splits into work and idleness, in time.

    Parameters
    ----------
    breakdown
        Columns rank, gpu, span_ns, computation_ns, exposed_communication_ns, other_kernels_ns, exposed_copy_ns,
        idle_ns: one row per rank and GPU, the parts sum to the span; may be empty.
    title
        What is seen; the part that differs most when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If the parts of a row do not sum to its span.
    """
    need(breakdown, "rank", "gpu", "span_ns", *PART_OF)
    wrong = breakdown[breakdown[list(PART_OF)].sum(axis=1) != breakdown["span_ns"]]
    if len(wrong):
        raise ValueError(f"breakdown: the parts of {wrong.iloc[0].to_dict()} do not sum to span_ns")
    seen = columns.placed(breakdown[breakdown["span_ns"] > 0])
    if seen.empty:
        return nothing(title or "No activity", NO_WORK)
    register()
    scale = unit(float(seen["span_ns"].max()), TIME)
    drawn = _segments(seen, scale)
    shown = [
        alt.Tooltip("name:N", title="where"),
        alt.Tooltip("part:N"),
        alt.Tooltip("time:N"),
        alt.Tooltip("share:N", title="share of the span"),
    ]
    height = alt.Y("begin:Q", title=f"time ({scale.symbol})", axis=alt.Axis(tickCount=5))
    colour = alt.Color("part:N", scale=colours(KIND_COLOURS, KIND_NAMES, drawn["key"]), title=None)
    marks = alt.Chart(inline(drawn.drop(columns="key"))).mark_bar(width=alt.RelativeBandSize(band=0.85))
    return layered(
        [marks.encode(columns.across(seen), height, alt.Y2("end"), colour, shown)],
        title or _most_different(seen),
        "Communication and copies count only where no computation hides them.",
        picture=f"Stacked columns for {len(seen)} GPUs of {', '.join(drawn['part'].unique())}",
        size=(columns.width(seen), 240),
    )


def _segments(seen: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return one row per column and part that is not empty, one on the other."""
    ends = seen[list(PART_OF)].cumsum(axis=1)
    rows = [
        seen[["place", "name"]].assign(
            key=kind,
            part=KIND_NAMES[kind],
            begin=(ends[column] - seen[column]) / scale.size,
            end=ends[column] / scale.size,
            time=seen[column].map(duration),
            share=(seen[column] / seen["span_ns"]).map(percent),
        )[seen[column] > 0]
        for column, kind in PART_OF.items()
    ]
    return pd.concat(rows, ignore_index=True)


def _most_different(seen: pd.DataFrame) -> str:
    """Say in which part the rows differ most."""
    spread = seen[list(PART_OF)].max() - seen[list(PART_OF)].min()
    column = str(spread.idxmax())
    part = KIND_NAMES[PART_OF[column]]
    least, most = (seen.iloc[at] for at in (seen[column].argmin(), seen[column].argmax()))
    if not spread[column]:
        return (
            f"Where the time of {seen['name'].iloc[0]} goes" if len(seen) == 1 else "All ranks spend their time alike"
        )
    return (
        f"{part.capitalize()} time differs most: {duration(least[column])} on {least['name']}, "
        f"{duration(most[column])} on {most['name']}"
    )
