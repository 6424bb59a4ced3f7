"""Pictures of what warps wait for.

Conventions
-----------
Frames are those of `perfkit.analysis.stalls` and `perfkit.analysis.calltree`. A share is of the launch's warp time
as the tool counts it, or of a kernel's stall samples, not of the wall clock: warps that wait cost nothing
while another can issue.

Functions
---------
bars      the stall reasons of the longest launches
kernels   the stall reasons of the kernels with most samples, and of all together
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import stacked
from perfkit.charts.data import fraction, need
from perfkit.charts.theme import WIDTH, layered, nothing, register
from perfkit.format import elided, percent, printable

# Okabe and Ito's colours, told apart by colour-blind readers; grey for the rest, as idle elsewhere.
SHADES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]
ISSUING, OTHERS = "selected", "other reasons"
LONGEST_LABEL, LONGEST_LEGEND = 46, 20  # characters
# HPCToolkit's reasons for people, after the descriptions in a database's metrics/default.yaml.
MEANINGS = {
    "cmem": "constant memory",
    "gmem": "global memory",
    "hid": "hidden by other warps",
    "idep": "input dependence",
    "ifet": "next instruction",
    "inv": "invalid",
    "mem": "memory",
    "mthr": "memory queue full",
    "nsel": "not selected",
    "othr": "other",
    "pipe": "compute unit busy",
    "slp": "sleep",
    "sync": "synchronisation",
    "tmem": "texture queue full",
}


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
    names = [f"{number}. {elided(name, LONGEST_LABEL)}" for number, name in enumerate(longest["name"], start=1)]
    rows = longest[["rank", "launch"]].assign(label=names).merge(known, on=["rank", "launch"])
    return _drawn(
        _segments(rows),
        title,
        "The longest launches first; waiting warps cost nothing while another one can issue.",
        whole="warp time",
        what="launch",
    )


def kernels(shares: pd.DataFrame, *, top: int = 8, title: str = "") -> alt.LayerChart:
    """Draw the stall reasons of all kernels together, and of those with most stall samples, one bar each.

    Parameters
    ----------
    shares
        Columns name, reason, share_frac (0..1, of the kernel's stalls) and value (of the reason in the kernel: samples
        or cycles, not negative): one row per kernel and reason; may be empty.
    top
        Number of kernels with a bar, at least 1.
    title
        What is seen; the largest stall of all kernels when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If `top` is below 1, a share is no fraction or a value negative.
    """
    need(shares, "name", "reason", "share_frac", "value")
    fraction(shares, "share_frac")
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    if (shares["value"] < 0).any():
        raise ValueError(f"value: {shares['value'].min()} is negative")
    known = shares[shares["value"] > 0].astype({"name": str, "reason": str})
    if known.empty:
        return nothing(title or "No stall reasons", "No kernel was sampled. Record with `hpcrun -e gpu=nvidia,pc`.")
    sums = known.groupby("name")["value"].sum().sort_values(ascending=False, kind="stable")
    labels = {name: f"{number}. {elided(name, LONGEST_LABEL)}" for number, name in enumerate(sums.index[:top], start=1)}
    rows = known[known["name"].isin(labels)]
    rows = rows.assign(label=rows["name"].map(labels), order=rows["name"].map(list(labels).index))
    together = [_together(known, len(sums))] if len(sums) > 1 else []
    rows = pd.concat([*together, rows.sort_values("order", kind="stable")], ignore_index=True)
    return _drawn(
        _segments(rows.assign(reason=rows["reason"].map(_meaning))),
        title,
        "Shares of stall samples, not of time: waiting warps cost nothing while another one can issue.",
        whole="stalls",
        what="kernel",
    )


def _meaning(reason: str) -> str:
    return f"{MEANINGS[reason]} ({reason})" if reason in MEANINGS else printable(reason, LONGEST_LABEL)


def _together(shares: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the reasons of all kernels as one bar."""
    value = shares.groupby("reason")["value"].sum()
    return pd.DataFrame({"label": f"All {count} kernels", "share_frac": value / value.sum()}).reset_index()


def _drawn(drawn: pd.DataFrame, title: str, explanation: str, *, whole: str, what: str) -> alt.LayerChart:
    """Return the picture of the segments; its title is the largest stall of the first bar."""
    register()
    first = drawn[drawn["label"] == drawn["label"].iloc[0]]
    stalls = first[first["reason"] != ISSUING]
    worst = first.loc[(first if stalls.empty else stalls).eval("end - begin").idxmax()]
    reasons = drawn.drop_duplicates("reason").sort_values("place", kind="stable")["reason"].tolist()
    shown = [alt.Tooltip("label:N", title=what), alt.Tooltip("reason:N"), alt.Tooltip("share:N")]
    segments = stacked.bars(
        drawn.drop(columns="place"),
        "reason",
        alt.Scale(domain=reasons, range=SHADES[: len(reasons)]),
        axis=f"share of {whole}",
        shown=shown,
        columns=5 if drawn["reason"].str.len().max() < LONGEST_LEGEND else 3,
    )
    return layered(
        [segments],
        title or f"{worst['label']}: {worst['reason']} is {worst['share']} of {whole}",
        explanation,
        picture=f"Stacked bars of stall reasons, {len(drawn['label'].unique())} bars",
        size=(WIDTH - 120, alt.Step(26)),
    )


def _segments(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per label and reason, placed end to end from 0 to 1; rare reasons are drawn as one."""
    labels = rows["label"].drop_duplicates().tolist()
    rows = rows.assign(reason=rows["reason"].astype(str).str.replace("_", " "))
    totals = rows[rows["reason"] != ISSUING].groupby("reason")["share_frac"].sum()
    totals = totals.sort_values(ascending=False, kind="stable")
    kept = [*totals.index[: len(SHADES) - 2], ISSUING]
    rows["reason"] = rows["reason"].where(rows["reason"].isin(kept), OTHERS)
    rows["place"] = rows["reason"].map([*kept, OTHERS].index)
    summed = rows.groupby(["label", "place", "reason"], sort=False, as_index=False)["share_frac"].sum()
    summed = summed.assign(order=summed["label"].map(labels.index)).sort_values(["order", "place"], kind="stable")
    begin, end = stacked.ends(summed["share_frac"], summed["order"])
    drawn: pd.DataFrame = summed.assign(begin=begin, end=end, share=summed["share_frac"].map(percent))
    return drawn.drop(columns=["order", "share_frac"]).reset_index(drop=True)
