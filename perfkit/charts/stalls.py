"""Pictures of what warps wait for.

Conventions
-----------
Frames are those of `perfkit.analysis.stalls`. A share is of the launch's warp time as the tool counts it,
not of the wall clock: warps that wait cost nothing while another can issue.

Functions
---------
bars   the stall reasons of the longest launches
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import fraction, inline, need
from perfkit.charts.theme import WIDTH, layered, nothing, register
from perfkit.format import elided, percent

# Okabe and Ito's colours, told apart by colour-blind readers; grey for the rest, as idle elsewhere.
SHADES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]
ISSUING, OTHERS = "selected", "other reasons"
LONGEST_LABEL = 46


def bars(shares: pd.DataFrame, launches: pd.DataFrame, *, top: int = 8, title: str = "") -> alt.LayerChart:
    """Draw the stall reasons of the launches that took longest, one bar each.

    Parameters
    ----------
    shares
        Columns rank, launch, reason, share_frac (0..1), as from `analysis.stalls.shares`; may be empty.
    launches
        LAUNCHES: their names and durations.
    top
        Number of launches with a bar, at least 1.
    title
        What is seen; the largest stall of the longest launch when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If `top` is below 1 or a share is no fraction.
    """
    need(shares, "rank", "launch", "reason", "share_frac")
    need(launches, "rank", "launch", "name", "dur_ns")
    fraction(shares, "share_frac")
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    known = shares[shares["share_frac"] > 0]
    longest = launches.merge(known[["rank", "launch"]].drop_duplicates(), on=["rank", "launch"])
    longest = longest.sort_values("dur_ns", ascending=False, kind="stable").head(top)
    if longest.empty:
        return nothing(title or "No stall reasons", "No launch was measured with --section WarpStateStats.")
    register()
    drawn = _segments(longest, known)
    first = drawn[(drawn["label"] == drawn["label"].iloc[0]) & (drawn["reason"] != ISSUING)]
    worst = first.loc[first["end"].sub(first["begin"]).idxmax()]
    return layered(
        [_bars(drawn)],
        title or f"{worst['label']}: {worst['reason']} is {worst['share']} of warp time",
        "The longest launches first; waiting warps cost nothing while another one can issue.",
        picture=f"Stacked bars of stall reasons, {len(longest)} launches",
        size=(WIDTH - 120, alt.Step(26)),
    )


def _segments(longest: pd.DataFrame, shares: pd.DataFrame) -> pd.DataFrame:
    """Return one row per launch and reason, placed end to end from 0 to 1; rare reasons are drawn as one."""
    names = [f"{number}. {elided(name, LONGEST_LABEL)}" for number, name in enumerate(longest["name"], start=1)]
    rows = longest[["rank", "launch"]].assign(label=names).merge(shares, on=["rank", "launch"])
    rows["reason"] = rows["reason"].astype(str).str.replace("_", " ")
    totals = rows[rows["reason"] != ISSUING].groupby("reason")["share_frac"].sum().sort_values(ascending=False)
    kept = [*totals.index[: len(SHADES) - 2], ISSUING]
    rows["reason"] = rows["reason"].where(rows["reason"].isin(kept), OTHERS)
    rows["place"] = rows["reason"].map([*kept, OTHERS].index)
    summed = rows.groupby(["label", "place", "reason"], sort=False, as_index=False)["share_frac"].sum()
    summed = summed.assign(order=summed["label"].map(names.index)).sort_values(["order", "place"], kind="stable")
    end = summed.groupby("order")["share_frac"].cumsum()
    drawn: pd.DataFrame = summed.assign(
        begin=end - summed["share_frac"], end=end, share=summed["share_frac"].map(percent)
    )
    return drawn.drop(columns=["order", "share_frac"]).reset_index(drop=True)


def _bars(drawn: pd.DataFrame) -> alt.Chart:
    reasons = drawn.drop_duplicates("reason").sort_values("place")["reason"].tolist()
    shades = alt.Scale(domain=reasons, range=[*SHADES[: len(reasons)]])
    marks: alt.Chart = (
        alt.Chart(inline(drawn.drop(columns="place")))
        .mark_bar(height=alt.RelativeBandSize(band=0.76))
        .encode(
            alt.X("begin:Q", title="share of warp time (%)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            alt.X2("end:Q"),
            alt.Y("label:N", title=None, sort=drawn["label"].drop_duplicates().tolist(), axis=alt.Axis(labelLimit=320)),
            alt.Color("reason:N", scale=shades, title=None),
            [alt.Tooltip("label:N", title="launch"), alt.Tooltip("reason:N"), alt.Tooltip("share:N")],
        )
    )
    return marks
