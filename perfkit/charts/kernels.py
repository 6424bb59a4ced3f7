"""Pictures of which kernels take the time.

Conventions
-----------
Frames are those of `perfkit.analysis.kernels`. A share is of the sum over all kernels of the frame, as in
the vendors' tables, not of the wall clock.

Functions
---------
bars   the kernels that take most GPU time
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import inline, known, need
from perfkit.charts.theme import FAMILY_COLOURS, WIDTH, colours, ink, layered, nothing, register
from perfkit.format import TIME, duration, elided, percent, printable, unit

LONGEST_LABEL = 62  # characters in front of a bar; wide ones are cut at LABEL_WIDTH pixels
LABEL_WIDTH = 360
LONGEST_NAME = 400  # characters in a tooltip
OTHERS = "other"


def bars(summary: pd.DataFrame, *, top: int = 15, title: str = "") -> alt.LayerChart:
    """Draw the GPU time of the kernels that take most of it, and of all others together.

    Parameters
    ----------
    summary
        Columns name, family, count, total_ns, share_frac (0..1, of the frame's total): one row per
        kernel, in any order; may be empty.
    top
        Number of kernels with a bar of their own, at least 1.
    title
        What is seen; the share of the first kernel when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If `top` is below 1 or a family has no colour.
    """
    need(summary, "name", "family", "count", "total_ns", "share_frac")
    known(summary, "family", FAMILY_COLOURS)
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    if summary.empty:
        return nothing(title or "No kernels", "No kernel ran in this window.")
    register()
    ordered = summary.sort_values("total_ns", ascending=False, kind="stable")
    drawn = _rows(ordered, top)
    scale = unit(float(drawn["total_ns"].max()), TIME)
    drawn = drawn.assign(time=drawn["total_ns"] / scale.size).drop(columns="total_ns")
    title = title or f"{drawn['label'].iloc[0]} takes {drawn['share'].iloc[0]} of GPU kernel time"
    return layered(
        [_bars(drawn, scale.symbol), _figures(drawn)],
        title,
        f"{len(summary):,} kernels, {duration(float(summary['total_ns'].sum()))} in all; what overlaps counts in full.",
        picture=f"Bars of GPU time, {len(drawn)} rows, coloured by kind of kernel",
        size=(WIDTH - 180, alt.Step(22)),
    )


def _rows(ordered: pd.DataFrame, top: int) -> pd.DataFrame:
    """Return what is drawn: the first `top` kernels, and one row that sums the rest."""
    shown, rest = ordered.head(top), ordered.iloc[top:]
    rows = pd.DataFrame(
        {
            "label": _unique([elided(name, LONGEST_LABEL) for name in shown["name"]]),
            "name": [printable(name, LONGEST_NAME) for name in shown["name"]],
            "family": shown["family"].astype("string").fillna("other"),
            "count": shown["count"],
            "total_ns": shown["total_ns"],
            "share": shown["share_frac"].map(percent),
        }
    )
    if rest.empty:
        return rows
    label = f"{len(rest)} other kernels" if len(rest) > 1 else "1 other kernel"
    others = {
        "label": label,
        "name": label,
        "family": OTHERS,
        "count": rest["count"].sum(),
        "total_ns": rest["total_ns"].sum(),
        "share": percent(rest["share_frac"].sum()),
    }
    return pd.concat([rows, pd.DataFrame([others])], ignore_index=True)


def _unique(labels: list[str]) -> list[str]:
    """Number labels that became equal by shortening: equal labels would share one bar."""
    seen: dict[str, int] = {}
    numbered = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        numbered.append(label if seen[label] == 1 else f"({seen[label]}) {label}")
    return numbered


def _place(drawn: pd.DataFrame) -> alt.Y:
    return alt.Y(
        "label:N", title=None, sort=drawn["label"].tolist(), axis=alt.Axis(labelLimit=LABEL_WIDTH, labelFontSize=11)
    )


def _bars(drawn: pd.DataFrame, symbol: str) -> alt.Chart:
    room = alt.Scale(domain=[0, 1.28 * float(drawn["time"].max()) or 1], nice=False)
    shown = [
        alt.Tooltip("name:N", title="kernel"),
        alt.Tooltip("family:N"),
        alt.Tooltip("count:Q", title="launches", format=","),
        alt.Tooltip("time:Q", title=f"GPU time ({symbol})", format=",.4~g"),
        alt.Tooltip("share:N"),
    ]
    colour = alt.Color("family:N", scale=colours(FAMILY_COLOURS, {}, drawn["family"]), title=None)
    marks: alt.Chart = (
        alt.Chart(inline(drawn))
        .mark_bar(height=alt.RelativeBandSize(band=0.76))
        .encode(alt.X("time:Q", title=f"GPU time ({symbol})", scale=room), _place(drawn), colour, shown)
    )
    return marks


def _figures(drawn: pd.DataFrame) -> alt.Chart:
    marks: alt.Chart = ink(inline(drawn), dx=4).encode(alt.X("time:Q"), _place(drawn), alt.Text("share:N"))
    return marks
