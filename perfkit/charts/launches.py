"""The picture of how efficient launches are; reached as `perfkit.charts.launches.launch_efficiency`."""

from __future__ import annotations

from math import pi

import altair as alt
import pandas as pd

from perfkit.charts.gaps import TICK
from perfkit.charts.theme import (
    FAMILY_COLOURS,
    WIDTH,
    colours,
    hover,
    ink,
    inline,
    known,
    layered,
    marked,
    need,
    nothing,
    words,
)
from perfkit.format import duration, elided, percent, printable

# Host time of one launch, ns: a range of what NVIDIA's guide and measurements of cudaLaunchKernel name, 2 to 20 µs.
COST = (5_000, 10_000)
MOST_LABELS = 4
AREA = (14, 1_400)  # square pixels
LONGEST_BAR_LABEL, LONGEST_NAME = 34, 400  # characters


def launch_efficiency(kernels: pd.DataFrame, *, title: str = "") -> alt.LayerChart:
    """Draw the mean duration of kernels against the number of their launches, as large as their time.

    `kernels`: columns name, family, launch_count, total_ns, mean_ns: one row per kernel; NaN where not recorded; rows
    without launches or time are left out; may be empty. Raises ValueError if a family has no colour.
    """
    need(kernels, "name", "family", "launch_count", "total_ns", "mean_ns")
    known(kernels, "family", FAMILY_COLOURS)
    seen = kernels[(kernels["launch_count"] > 0) & (kernels["mean_ns"] > 0)]
    if seen.empty:
        return nothing(
            title or "No kernels", "No launch was recorded. Record with `hpcrun -e gpu=nvidia` (amd, level0)."
        )
    drawn = _rows(seen.sort_values("total_ns", ascending=False, kind="stable"))
    across = (min(drawn["mean"].min(), COST[0]) / 2, max(drawn["mean"].max(), COST[1]) * 2)
    x, y = _axes(across, (drawn["count"].min() / 2, drawn["count"].max() * 3))
    return layered(
        [*_band(x), _points(drawn, x, y), _names(drawn.head(MOST_LABELS), x, y, middle=(across[0] * across[1]) ** 0.5)],
        title or _title(seen),
        "A launch costs the host 5 to 10 µs (an order of magnitude; measured calls say it exactly): the GPU may "
        "wait for shorter kernels.",
        picture=f"Points on logarithmic axes, one for each of {len(drawn)} kernels, their area the kernel's time",
        size=(WIDTH, 340),
    )


def _title(seen: pd.DataFrame) -> str:
    """Say how many launches are of kernels shorter than what a launch costs at most."""
    launches = float(seen["launch_count"].sum())
    short = float(seen.loc[seen["mean_ns"] < COST[1], "launch_count"].sum())
    limit = duration(COST[1]).replace(".0", "")
    if not short:
        return f"All {launches:,.0f} launches are of kernels that run {limit} or longer on average"
    share = percent(short / launches)
    return f"{short:,.0f} of {launches:,.0f} launches ({share}) are of kernels shorter than {limit} on average"


def _rows(kernels: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "label": [elided(name, LONGEST_BAR_LABEL) for name in kernels["name"]],
            "name": [printable(name, LONGEST_NAME) for name in kernels["name"]],
            "family": kernels["family"].astype("string").fillna("other"),
            "count": kernels["launch_count"],
            "mean": kernels["mean_ns"],
            "time": kernels["total_ns"].fillna(0),
            "length": kernels["mean_ns"].map(duration),
            "told": kernels["total_ns"].map(duration),
        }
    )


def _axes(across: tuple[float, float], up: tuple[float, float]) -> tuple[alt.X, alt.Y]:
    """Return logarithmic axes with a label at every power of ten."""
    x = alt.X(
        "mean:Q",
        title="mean duration (logarithmic, unit at each tick)",
        scale=alt.Scale(type="log", domain=list(across), nice=False),
        axis=alt.Axis(labelExpr=TICK, values=_round(*across), gridOpacity=0.2),
    )
    y = alt.Y(
        "count:Q",
        title="launches (count, logarithmic)",
        scale=alt.Scale(type="log", domain=list(up), nice=False),
        axis=alt.Axis(values=_round(*up), format="~s", gridOpacity=0.2),
    )
    return x, y


def _round(low: float, high: float) -> list[int]:
    """Return the powers of ten within an axis, with their double and their half if they are few."""
    several = [1, 2, 5] if high / low < 1e4 else [1]
    return [step * 10**power for power in range(19) for step in several if low <= step * 10**power <= high]


def _band(x: alt.X) -> list[alt.Chart]:
    """Return the range of what a launch costs the host, over the full height."""
    rows = inline(pd.DataFrame({"mean": [COST[0]], "end": [COST[1]], "label": ["cost of a launch"]}))
    strip = alt.Chart(rows).mark_rect(color="#808080", opacity=0.18, tooltip=False)
    text = ink(rows, dx=3).encode(x, alt.Text("label:N"), y=alt.value(10))
    return [strip.encode(x, alt.X2("end"), y=alt.value(0), y2=alt.value("height")), text]


def _points(drawn: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    colour = alt.Color("family:N", scale=colours(FAMILY_COLOURS, {}, drawn["family"]), title=None)
    largest = float(drawn["time"].max()) or 1.0
    area = alt.Size("time:Q", scale=alt.Scale(domain=[0, largest], range=list(AREA)), legend=None)
    shown = hover(
        ("name", "kernel"),
        "family",
        ("count", "launches", ","),
        ("length", "mean duration"),
        ("told", "time of all launches"),
    )
    return marked(drawn, "circle", x, y, colour, area, shown, opacity=0.85)


def _names(drawn: pd.DataFrame, x: alt.X, y: alt.Y, *, middle: float) -> alt.Chart:
    """Return the names of the kernels with most time, above their points, towards the `middle` of the picture."""
    area = AREA[0] + (AREA[1] - AREA[0]) * drawn["time"] / (drawn["time"].max() or 1.0)
    rows = drawn.assign(
        lift=-((area / pi) ** 0.5 + 6).round(1), side=drawn["mean"].lt(middle).map({True: "left", False: "right"})
    )
    return words(rows, x, y, alt.Text("label:N"), dy=alt.ExprRef("datum.lift"), align=alt.ExprRef("datum.side"))
