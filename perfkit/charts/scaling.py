"""Pictures of how a training scales with the number of GPUs.

Conventions
-----------
Frames are those of `perfkit.analysis.efficiency`. Both axes are logarithmic, the number of GPUs in steps of two, so
that the ideal is a straight line and the way down to a run is its efficiency.

Functions
---------
efficiency   throughput by the number of GPUs, beside the ideal
"""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from perfkit.charts import panels
from perfkit.charts.data import inline, need
from perfkit.charts.theme import KIND_COLOURS, WIDTH, ink, nothing, register
from perfkit.format import number, percent, printable

MEASURED, GREY = KIND_COLOURS["computation"], "#808080"
LONGEST_WORK = 30  # characters
MOST_TICKS = 12
PICTURE = "Points on logarithmic axes, one for each run, beside the ideal line"
FIGURES = ["gpus", "throughput_per_s", "baseline_gpus", "efficiency_frac"]
ONE_SIZE = "Scaling compares runs on different numbers of GPUs. Measure the same training on at least two."


def efficiency(scaling: pd.DataFrame, *, work: str = "work", title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw the throughput against the number of GPUs, the ideal, and what share of it each run reaches.

    Parameters
    ----------
    scaling
        Columns gpus, throughput_per_s, baseline_gpus, efficiency_frac: one row per run, as from
        `analysis.efficiency.scaling`; all above 0; may be empty. More than one run on a number of GPUs is possible.
    work
        What the throughput counts: tokens, samples, steps.
    title
        What is seen; the efficiency on most GPUs when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a number is not above 0, which a logarithmic axis cannot show.
    """
    need(scaling, *FIGURES)
    for column in FIGURES:
        if not (scaling[column] > 0).all():
            raise ValueError(f"{column}: {scaling[column].min()} is not above 0")
    if scaling["gpus"].nunique() < 2:
        return nothing(title or "Nothing to compare", ONE_SIZE)
    register()
    runs = scaling.sort_values(["gpus", "throughput_per_s"], kind="stable", ignore_index=True)
    drawn, what = _rows(runs), f"{printable(work, LONGEST_WORK)}/s"
    picture = panels.panel(_layers(drawn, what), "", picture=PICTURE, size=(WIDTH, 320))
    return panels.together([picture], title or _title(runs), _explained(runs, what), picture=PICTURE)


def _title(runs: pd.DataFrame) -> str:
    """Say what share of the ideal the most GPUs reach."""
    most = runs["gpus"].max()
    return f"{most:,} GPUs reach {_shares(runs.loc[runs['gpus'] == most, 'efficiency_frac'])} of the ideal throughput"


def _shares(efficiency: pd.Series) -> str:
    low, high = percent(efficiency.min()), percent(efficiency.max())
    return low if low == high else f"{low} to {high}"


def _explained(runs: pd.DataFrame, what: str) -> list[str]:
    first = runs.iloc[0]
    base, each = first["baseline_gpus"], first["throughput_per_s"] / first["efficiency_frac"] / first["gpus"]
    smallest = f"{base:,} GPUs" if base > 1 else "1 GPU"
    said = f"Dashed: the ideal, {number(each)} {what} for each GPU as on {smallest}; figures: share of the ideal."
    above = "Above 100 %: check that all runs do the same work per step, and that nothing slowed the smallest."
    return [said, above] if (runs["efficiency_frac"] > 1).any() else [said]


def _rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs; `words` stand at the slowest on each number of GPUs, which is the first of them."""
    ideal = runs["throughput_per_s"] / runs["efficiency_frac"]
    words = runs["gpus"].map(runs.groupby("gpus")["efficiency_frac"].agg(_shares))
    return pd.DataFrame(
        {
            "gpus": runs["gpus"],
            "throughput": runs["throughput_per_s"],
            "ideal": ideal,
            "share": runs["efficiency_frac"].map(percent),
            "told": runs["throughput_per_s"].map(number),
            "best": ideal.map(number),
            "words": words.mask(runs["gpus"].duplicated(), ""),
        }
    )


def _axes(drawn: pd.DataFrame, what: str) -> tuple[alt.X, alt.Y]:
    few, most = int(drawn["gpus"].min()), int(drawn["gpus"].max())
    x = alt.X(
        "gpus:Q",
        title="GPUs (count, logarithmic)",
        scale=alt.Scale(type="log", base=2, domain=[few / 1.2, most * (most / few) ** 0.12], nice=False),
        axis=alt.Axis(values=_ticks(sorted(set(drawn["gpus"]))), format=",", gridOpacity=0.2),
    )
    ends = drawn[["throughput", "ideal"]].agg(["min", "max"]).agg({"throughput": "min", "ideal": "max"})
    room = alt.Scale(type="log", domain=[ends["throughput"] / 1.4, ends["ideal"] * 1.2], nice=False)
    y = alt.Y(
        "throughput:Q",
        title=f"throughput ({what}, logarithmic)",
        scale=room,
        axis=alt.Axis(format="~s", tickCount=6, gridOpacity=0.2),
    )
    return x, y


def _ticks(gpus: list[int]) -> list[int]:
    """Return the numbers of GPUs, of many the smallest, its doubles and the largest."""
    if len(gpus) <= MOST_TICKS:
        return gpus
    steps = int(math.log2(gpus[-1] / gpus[0]))
    return sorted({*(gpus[0] * 2**step for step in range(steps + 1)), gpus[-1]})


def _layers(drawn: pd.DataFrame, what: str) -> list[alt.Chart]:
    """Return the ideal, what is lost, the runs, and their figures."""
    data, (x, y) = inline(drawn), _axes(drawn, what)
    ideal = y.copy()
    ideal.shorthand = "ideal:Q"
    shown = [
        alt.Tooltip("gpus:Q", title="GPUs", format=","),
        alt.Tooltip("told:N", title=f"throughput ({what})"),
        alt.Tooltip("best:N", title=f"ideal ({what})"),
        alt.Tooltip("share:N", title="share of the ideal"),
    ]
    rows = alt.Chart(data)
    text: alt.Chart = ink(data, dx=9)
    text.mark.dy = 9
    return [
        rows.mark_line(color=GREY, strokeDash=[5, 4], strokeWidth=1.5, tooltip=False).encode(x, ideal),
        rows.mark_rule(color=MEASURED, opacity=0.35, tooltip=False).encode(x, y, alt.Y2("ideal")),
        rows.mark_line(color=MEASURED, strokeWidth=1.5, tooltip=False).encode(x, y),
        rows.mark_point(color=MEASURED, filled=True, size=70, opacity=1).encode(x, y, shown),
        text.encode(x, y, alt.Text("words:N")),
    ]
