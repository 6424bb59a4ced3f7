"""The picture of how long the steps wait for data; reached as `perfkit.charts.operators.steps`.

Functions
---------
steps   the time of each step, split into waiting for data and the rest
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import panels
from perfkit.charts.data import fraction, inline, need
from perfkit.charts.theme import DETAIL_COLOURS, WIDTH, colours, ink, nothing, register
from perfkit.format import TIME, Unit, duration, percent, unit

MOST_STEPS, MOST_PANELS = 200, 8
PICTURE = "Columns of step time with the wait for data at the bottom and its share above"
WIDEST_STEP = 50  # pixels; the share stands above columns of this width
PARTS = {"waiting for data": DETAIL_COLOURS["data_loading"], "the rest of the step": "#9A9A9A"}
NO_LOADER = (
    "No data loading was recorded. PyTorch records the loader of `torch.utils.data`; name another one with "
    '`torch.profiler.record_function("dataloader")`.'
)


def steps(input_wait: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw the time of each step and how much of it the training thread waits for data.

    The first 200 steps are drawn, and of more than 8 ranks those that wait most, which the chart says.

    Parameters
    ----------
    input_wait
        Columns rank, step, dur_ns, wait_ns, wait_frac (0..1): one row per step; the last two are missing where the
        rank records no data loading, and such rows are left out; may be empty.
    title
        What is seen; the share of all steps when empty.

    Returns
    -------
    altair.LayerChart or altair.VConcatChart
        The latter for several ranks, one panel each.

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a share is no fraction.
    """
    need(input_wait, "rank", "step", "dur_ns", "wait_ns", "wait_frac")
    fraction(input_wait, "wait_frac")
    known = input_wait[input_wait["wait_frac"].notna()]
    if known.empty:
        return nothing(title or "No wait for data was recorded", NO_LOADER)
    register()
    waiting = known.groupby("rank")["wait_ns"].sum().sort_values(ascending=False, kind="stable")
    ranks = sorted(waiting.index[:MOST_PANELS])
    drawn = known[known["rank"].isin(ranks)].sort_values("step", kind="stable").groupby("rank").head(MOST_STEPS)
    scale = unit(float(drawn["dur_ns"].max()), TIME)
    longest, height = float(drawn["dur_ns"].max()), 150 if len(ranks) == 1 else 90
    pictures = [_panel(drawn[drawn["rank"] == rank], rank, scale, longest, height) for rank in ranks]
    said = [
        f"Time of the training thread in the data loader, in % of each step; {_counted(known)}.",
        *_limits(drawn, known),
    ]
    return panels.together(pictures, title or _title(known), said, picture=PICTURE)


def _title(known: pd.DataFrame) -> str:
    """Say what share of the time of all steps is spent waiting."""
    total = float(known["dur_ns"].sum())
    return (
        f"Waiting for data takes {percent(float(known['wait_ns'].sum()) / total if total else 0.0)} of the steps' time"
    )


def _counted(known: pd.DataFrame) -> str:
    ranks = known["rank"].nunique()
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    return f"{duration(float(known['dur_ns'].sum()))} in {len(known):,} step{'s' * (len(known) > 1)}{of_ranks}"


def _limits(drawn: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    """Say what is not drawn."""
    ranks = drawn["rank"].nunique()
    said = [f"the {ranks} ranks that wait most"] if ranks < known["rank"].nunique() else []
    if known.groupby("rank").size().max() > MOST_STEPS:
        said = [f"the first {MOST_STEPS} steps", *said]
    return [f"Drawn are {' of '.join(said)}."] if said else []


def _panel(rows: pd.DataFrame, rank: int, scale: Unit, longest: float, height: int) -> alt.LayerChart:
    width = WIDEST_STEP * len(rows)
    layers = [_columns(rows, scale, longest), *([_shares(rows, scale)] if width <= WIDTH else [])]
    return panels.panel(layers, f"rank {rank}", picture=PICTURE, size=(min(width, WIDTH), height))


def _columns(rows: pd.DataFrame, scale: Unit, longest: float) -> alt.Chart:
    """Return two rectangles per step, the wait below."""
    drawn = pd.DataFrame({"step": rows["step"], "share": rows["wait_frac"].map(percent)})
    wait, whole = rows["wait_ns"], rows["dur_ns"]
    parts = [(0 * wait, wait), (wait, whole)]
    ends = [
        drawn.assign(part=part, begin=begin / scale.size, end=end / scale.size, time=(end - begin).map(duration))
        for part, (begin, end) in zip(PARTS, parts, strict=True)
    ]
    shown = [
        alt.Tooltip("step:O"),
        alt.Tooltip("part:N"),
        alt.Tooltip("time:N"),
        alt.Tooltip("share:N", title="share waiting"),
    ]
    room = alt.Scale(domain=[0, 1.2 * longest / scale.size], nice=False)
    marks: alt.Chart = (
        alt.Chart(inline(pd.concat(ends)))
        .mark_bar(width=alt.RelativeBandSize(band=0.8))
        .encode(
            _place(),
            alt.Y("begin:Q", title=f"time ({scale.symbol})", scale=room, axis=alt.Axis(tickCount=4)),
            alt.Y2("end"),
            alt.Color("part:N", scale=colours(PARTS, {}, PARTS), title=None),
            shown,
        )
    )
    return marks


def _shares(rows: pd.DataFrame, scale: Unit) -> alt.Chart:
    """Return the waiting share of each step above its column."""
    drawn = pd.DataFrame(
        {"step": rows["step"], "end": rows["dur_ns"] / scale.size, "share": rows["wait_frac"].map(percent)}
    )
    marks: alt.Chart = ink(inline(drawn)).encode(_place(), alt.Y("end:Q"), alt.Text("share:N"))
    marks.mark.align, marks.mark.dy = "center", -7
    return marks


def _place() -> alt.X:
    return alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False))
