"""Bars that split a whole into shares, one below the other.

Conventions
-----------
A row of the frame is a segment: `label` (its bar), `begin` and `end` in 0..1, and columns that tooltips show. Bars
stand in the order of the rows.

Functions
---------
ends      where segments begin and end
bars      the segments
figures   the shares written into the segments that have room for them
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import altair as alt
import pandas as pd

from perfkit.charts.data import inline

LABEL_WIDTH = 320  # pixels
SMALLEST_LABEL = 0.055  # of the whole: a narrower segment has no room for its figure


def ends(shares: pd.Series, label: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return begin and end of segments that lie end to end within each label, in the order of the rows."""
    end = shares.groupby(label, sort=False).cumsum()
    return end - shares, end


def bars(
    drawn: pd.DataFrame, part: str, shades: alt.Scale, *, axis: str, shown: Sequence[alt.Tooltip], columns: int = 5
) -> alt.Chart:
    """Return the segments, coloured by `part`; `axis` names the whole, `columns` are those of the legend."""
    share = alt.X("begin:Q", title=f"{axis} (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    colour = alt.Color(f"{part}:N", scale=shades, title=None, legend=alt.Legend(columns=columns))
    marks: alt.Chart = (
        alt.Chart(inline(drawn))
        .mark_bar(height=alt.RelativeBandSize(band=0.76))
        .encode(share, alt.X2("end:Q"), _place(drawn), colour, list(shown))
    )
    return marks


def figures(drawn: pd.DataFrame, part: str, dark: Collection[str]) -> alt.Chart:
    """Return the column `share` as text: white on the `dark` parts, black on the others, none where it is narrow."""
    width = drawn["end"] - drawn["begin"]
    wide = drawn.assign(middle=drawn["begin"] + width / 2)[width >= SMALLEST_LABEL]
    on_dark = alt.FieldOneOfPredicate(field=part, oneOf=list(dark))
    marks: alt.Chart = (
        alt.Chart(inline(wide))
        .mark_text(fontSize=11, tooltip=False)
        .encode(
            alt.X("middle:Q"),
            _place(drawn),
            alt.Text("share:N"),
            color=alt.condition(on_dark, alt.value("#FFFFFF"), alt.value("#000000")),
        )
    )
    return marks


def _place(drawn: pd.DataFrame) -> alt.Y:
    labels = drawn["label"].drop_duplicates().tolist()
    return alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=LABEL_WIDTH))
