"""The picture of how each device's time splits up; reached as `perfkit.charts.timeline.parts`.

Functions
---------
parts   how each device's time splits up
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import inline, need
from perfkit.charts.labels import devices
from perfkit.charts.theme import KIND_COLOURS, KIND_NAMES, WIDTH, colours, layered, nothing, register
from perfkit.format import duration, percent

PART_OF = {
    "computation_ns": "computation",
    "exposed_communication_ns": "communication",
    "other_kernels_ns": "other_kernels",
    "exposed_copy_ns": "copy",
    "idle_ns": "idle",
}
NO_WORK = "No kernel or copy ran in this window."
SMALLEST_LABEL = 0.055  # of the span: a narrower part has no room for its figure


def parts(breakdown: pd.DataFrame, *, title: str = "") -> alt.LayerChart:
    """Draw how the time of each device splits into work and idleness.

    Parameters
    ----------
    breakdown
        Columns rank, gpu, span_ns, computation_ns, exposed_communication_ns, other_kernels_ns,
        exposed_copy_ns, idle_ns: one row per device, the parts sum to the span; may be empty.
    title
        What is seen; the devices' idle share when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If the parts of a device do not sum to its span.
    """
    need(breakdown, "rank", "gpu", "span_ns", *PART_OF)
    wrong = breakdown[breakdown[list(PART_OF)].sum(axis=1) != breakdown["span_ns"]]
    if len(wrong):
        raise ValueError(f"breakdown: the parts of {wrong.iloc[0].to_dict()} do not sum to span_ns")
    seen = breakdown[breakdown["span_ns"] > 0]
    if seen.empty:
        return nothing(title or "No activity", NO_WORK)
    register()
    drawn = _segments(seen)
    return layered(
        [_bars(drawn), _figures(drawn)],
        title or _idle_title(seen),
        "Communication and copies count only where no computation hides them.",
        picture=f"Stacked bar per GPU of {', '.join(drawn['part'].unique())}",
        size=(WIDTH, alt.Step(34)),
    )


def _segments(breakdown: pd.DataFrame) -> pd.DataFrame:
    """Return one row per device and part that is not empty, placed end to end from 0 to 1."""
    shares = breakdown[list(PART_OF)].div(breakdown["span_ns"], axis=0)
    ends = shares.cumsum(axis=1)
    rows = [
        pd.DataFrame(
            {
                "device": devices(breakdown),
                "key": kind,
                "part": KIND_NAMES[kind],
                "begin": ends[column] - shares[column],
                "end": ends[column],
                "middle": ends[column] - shares[column] / 2,
                "share": shares[column].map(percent),
                "figure": shares[column].map(percent).where(shares[column] >= SMALLEST_LABEL, ""),
                "time": breakdown[column].map(duration),
            }
        )[breakdown[column] > 0]
        for column, kind in PART_OF.items()
    ]
    return pd.concat(rows, ignore_index=True)


def _idle_title(breakdown: pd.DataFrame) -> str:
    idle = breakdown["idle_ns"] / breakdown["span_ns"]
    if len(idle) == 1:
        return f"The GPU is idle {percent(idle.iloc[0])} of {duration(breakdown['span_ns'].iloc[0])}"
    return f"The {len(idle)} GPUs are idle {percent(idle.min())} to {percent(idle.max())} of the time"


def _bars(drawn: pd.DataFrame) -> alt.Chart:
    shades = colours(KIND_COLOURS, KIND_NAMES, drawn["key"])
    share = alt.X("begin:Q", title="share of the span (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    shown = [alt.Tooltip("device:N"), alt.Tooltip("part:N"), alt.Tooltip("share:N"), alt.Tooltip("time:N")]
    place = alt.Y("device:N", title=None, sort=None)
    marks: alt.Chart = (
        alt.Chart(inline(drawn.drop(columns="key")))
        .mark_bar(height=alt.RelativeBandSize(band=0.72))
        .encode(share, alt.X2("end"), place, alt.Color("part:N", scale=shades, title=None), shown)
    )
    return marks


def _figures(drawn: pd.DataFrame) -> alt.Chart:
    """Figures in white on the dark colours, in black on the others."""
    dark = alt.FieldOneOfPredicate(field="part", oneOf=[KIND_NAMES["computation"], KIND_NAMES["other_kernels"]])
    ink = alt.condition(dark, alt.value("#FFFFFF"), alt.value("#000000"))
    marks: alt.Chart = (
        alt.Chart(inline(drawn.drop(columns="key")))
        .mark_text(fontSize=11, tooltip=False)
        .encode(alt.X("middle:Q"), alt.Y("device:N", sort=None), alt.Text("figure:N"), color=ink)
    )
    return marks
