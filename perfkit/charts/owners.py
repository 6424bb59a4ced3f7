"""Where the time of the GPUs went, and below it whose time the clicked part is."""

from typing import Any

import altair as alt
import pandas as pd

from perfkit.charts import shares, theme
from perfkit.charts.checks import need
from perfkit.format import duration, elided, percent
from perfkit.names import parts as names

MOST_OWNERS = 6  # of a part; the others are one bar
LONGEST_OWNER = 60  # characters
ROOM = (
    theme.LABEL_WIDTH + 20
)  # pixels for the names of every part, so that nothing moves at a click
NO_OWNER, OTHERS = "not recorded", "all others"
HOW = "Click a part of the bars to see below whose time it is."


def by_owner(ledger: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw `shares.time`, and the owners of one part of it: of that with most idle time until another is clicked.

    `ledger`: as for `shares.time`. Shares of owners are of the time of all GPUs.
    """
    need(ledger, "rank", "gpu", "kind", "cause", "owner", "ns")
    above = shares.time(ledger)
    rows = _owners(ledger)
    if rows.empty:
        return above
    chosen = alt.selection_point(
        name="part",
        fields=["part"],
        value=[{"part": _first(rows)}],
        toggle=False,
        clear=False,
        empty=False,
    )
    above.layer[0] = above.layer[0].add_params(chosen)
    above.layer[0].mark.cursor = "pointer"
    below = _bars(rows, chosen)
    description = f"{above.description} Below it bars of the owners of a part."
    notes = [*_lines(above.title.subtitle), HOW]
    headed = alt.TitleParams(text=above.title.text, subtitle=notes)
    above.title = alt.Undefined
    whole: alt.VConcatChart = alt.VConcatChart(vconcat=[above, below], spacing=16)
    return whole.properties(title=headed, description=description)


def _lines(subtitle: Any) -> list[str]:
    return [subtitle] if isinstance(subtitle, str) else list(subtitle)


def _owners(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return part, key, owner, share_frac, ns of each owner of a part, the longest first; of many the rest as one."""
    whole = float(ledger["ns"].sum())
    if not whole:
        return pd.DataFrame(columns=["part", "owner", "ns"])
    owner = ledger["owner"].astype(object).fillna(NO_OWNER).map(str)
    lines = pd.DataFrame({"key": names.keys(ledger), "owner": owner, "ns": ledger["ns"]})
    of_part = lines.groupby("key")["ns"].transform("sum") / whole
    lines = lines.assign(key=lines["key"].where(of_part >= names.SMALL, "small"))
    summed = lines.groupby(["key", "owner"], observed=True)["ns"].sum().reset_index()
    summed = summed.sort_values("ns", ascending=False, kind="stable")
    place = summed.groupby("key").cumcount()
    summed["owner"] = summed["owner"].where(place < MOST_OWNERS, OTHERS)
    joined = summed.groupby(["key", "owner"], sort=False)["ns"].sum().reset_index()
    part = joined["key"].map(shares.TIME_NAMES)
    told: pd.DataFrame = joined.assign(part=part, share_frac=joined["ns"] / whole)
    return told[told["ns"] > 0]


def _first(rows: pd.DataFrame) -> str:
    """Return the largest part that is not computation; computation where there is no other."""
    of_part = rows.groupby("part", sort=False)["ns"].sum()
    others = of_part.drop(shares.TIME_NAMES["computation_ns"], errors="ignore")
    return str((others if len(others) else of_part).idxmax())


def _bars(rows: pd.DataFrame, chosen: alt.Parameter) -> alt.LayerChart:
    """Return the bars of the owners of the chosen part."""
    drawn = pd.DataFrame(
        {
            "part": rows["part"],
            "owner": rows["owner"],
            "name": rows["owner"].map(lambda name: elided(name, LONGEST_OWNER)),
            "share": rows["share_frac"],
            "told": rows["share_frac"].map(percent),
            "time": rows["ns"].map(duration),
        }
    )
    place = alt.Y(
        "name:N",
        title=None,
        sort=alt.EncodingSortField("share", op="max", order="descending"),
        axis=alt.Axis(minExtent=ROOM),
    )
    length = alt.X(
        "share:Q",
        title="share of the time of all GPUs (%)",
        axis=alt.Axis(format=".3~p", tickCount=5),
        scale=alt.Scale(domain=[0, 1.15 * float(rows["share_frac"].max())], nice=False),
    )
    colour = alt.Color("part:N", scale=shares.time_shades(rows["key"]), title=None)
    tips = theme.hover("part", "owner", ("told", "share"), "time")
    bars = theme.marked(drawn, "bar", length, place, colour, tips)
    words = theme.words(drawn, alt.X("share:Q"), place, alt.Text("told:N"), dx=4)
    layers = [layer.transform_filter(chosen) for layer in (bars, words)]
    size = (theme.WIDTH, alt.Step(22))
    return theme.panel(layers, "Whose time it is", picture="Bars of owners", size=size)
