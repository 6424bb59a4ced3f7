"""Pictures of where the time of each GPU goes.

Conventions
-----------
Frames are those of `perfkit.analysis.timeline`. Time runs from left to right, in one unit per chart that
the axis names. One lane or bar per device and stream, sorted by rank, GPU and stream.

Functions
---------
lanes   what each stream did when
parts   how each device's time splits up
"""

from __future__ import annotations

import json

import altair as alt
import pandas as pd

from perfkit.charts.breakdown import NO_WORK, parts
from perfkit.charts.data import MOST_ROWS, fraction, inline, known, need
from perfkit.charts.labels import devices
from perfkit.charts.theme import KIND_COLOURS, KIND_NAMES, WIDTH, colours, ink, layered, nothing, register
from perfkit.format import TIME, Unit, duration, percent, unit

__all__ = ["lanes", "parts"]

STREAM = ["rank", "gpu", "stream"]
FILL = 0.86  # of a lane's height, so that neighbours stay apart
MOST_LANES = 40
MOST_STEPS = 100  # more rules than this would hide what they divide
MOST_STEP_LABELS = 8


def lanes(
    bins: pd.DataFrame,
    *,
    title: str = "",
    steps: pd.DataFrame | None = None,
    window: tuple[int, int] | None = None,
) -> alt.LayerChart:
    """Draw when each stream was busy, and with what.

    Each bin is filled from the bottom of its lane to the share of its time that the stream was busy. Of more
    streams than 40, or than a browser can draw, the busiest are shown, which the chart says; about 320 bins are
    what the width can show.

    Parameters
    ----------
    bins
        Columns rank, gpu, stream, kind (computation, communication, copy or other_kernels), start_ns,
        dur_ns, busy_ns, busy_frac (0..1); one row per bin with busy time; may be empty.
    title
        What is seen; the number of streams and the span when empty.
    steps
        Columns step, start_ns: a rule at the start of each step in the picture; none above 100 of them.
    window
        (start_ns, end_ns) the axis spans; from the first to the last bin with busy time when omitted.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a kind is unknown or a fraction outside 0..1.

    Examples
    --------
    >>> columns = ["rank", "gpu", "stream", "kind", "start_ns", "dur_ns", "busy_ns", "busy_frac"]
    >>> lanes(pd.DataFrame({c: [] for c in columns}), title="Empty window").title.text
    'Empty window'
    """
    need(bins, "rank", "gpu", "stream", "kind", "start_ns", "dur_ns", "busy_ns", "busy_frac")
    known(bins, "kind", [kind for kind in KIND_COLOURS if kind != "idle"])
    fraction(bins, "busy_frac")
    if bins.empty:
        return nothing(title or "No activity", NO_WORK)
    register()
    first, last = window or (int(bins["start_ns"].min()), int((bins["start_ns"] + bins["dur_ns"]).max()))
    scale = unit(last - first, TIME)
    shown, limit = _busiest(bins)
    labels, drawn, full = _stacked(shown, scale)
    streams = f"{len(labels)} streams" if len(labels) > 1 else labels[0]
    axis, place = _time_axis(first, last, scale), _lane_axis(labels)
    return layered(
        [_backdrop(place, len(labels)), _fills(drawn, axis, place), *_rules(steps, axis, first, last, scale)],
        title or f"Activity of {streams} over {duration(last - first)}",
        f"A lane filled to the top was busy {percent(full)} of the bin's time; grey is idle.{limit}",
        picture=f"Timeline of {', '.join(labels[:8])}{' and more' if len(labels) > 8 else ''}",
        size=(WIDTH, int(min(max(320 / len(labels), 14), 40) * len(labels))),
    )


def _busiest(bins: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the bins of the streams that can be drawn, busiest first, and a sentence if some are left out."""
    streams = bins.groupby(STREAM)["busy_ns"].agg(["sum", "size"]).sort_values("sum", ascending=False, kind="stable")
    fits = int((streams["size"].cumsum() <= MOST_ROWS).sum())
    kept = streams.index[: max(min(fits, MOST_LANES), 1)]
    if len(kept) == len(streams):
        return bins, ""
    place = pd.MultiIndex.from_frame(bins[STREAM])
    return bins[place.isin(kept)], f" These are the busiest {len(kept)} of {len(streams)} streams."


def _time_axis(first: int, last: int, scale: Unit) -> alt.X:
    return alt.X(
        "start:Q",
        title=f"time since the start of the capture ({scale.symbol})",
        scale=alt.Scale(domain=[first / scale.size, last / scale.size], nice=False, zero=False),
    )


def _stacked(bins: pd.DataFrame, scale: Unit) -> tuple[list[str], pd.DataFrame, float]:
    """Return the lanes' labels, the rectangles, and the busy share that fills a lane.

    A lane is one unit high; kinds that share a bin stand on one another. They can add up to more than
    1 only where kernels of one stream overlap (programmatic dependent launch, graphs).
    """
    order = bins.assign(key=bins["kind"].astype(str), place=bins["kind"].astype(str).map(list(KIND_COLOURS).index))
    order = order.sort_values([*STREAM, "start_ns", "place"], kind="stable")
    labels = devices(order[STREAM].drop_duplicates()).tolist()
    lane = order.groupby(STREAM, sort=True).ngroup()
    top = order.groupby([lane, order["start_ns"]])["busy_frac"].cumsum()
    full = max(1.0, float(top.max()))
    bottom = lane + 1 - (1 - FILL) / 2
    drawn = pd.DataFrame(
        {
            "start": order["start_ns"] / scale.size,
            "end": (order["start_ns"] + order["dur_ns"]) / scale.size,
            "low": (bottom - FILL * (top - order["busy_frac"]) / full).round(4),
            "high": (bottom - FILL * top / full).round(4),
            "key": order["key"],
            "kind": order["key"].map(KIND_NAMES),
            "lane": lane.map(dict(enumerate(labels))),
            "busy": order["busy_frac"].round(6),
        }
    )
    return labels, drawn, full


def _lane_axis(labels: list[str]) -> alt.Y:
    """An axis from lane 0 at the top down; ticks in the middle of the lanes bear their labels.

    The labels stand inside an expression: they are made of numbers alone, never of names from a profile.
    """
    middles = [number + 0.5 for number in range(len(labels))]
    axis = alt.Axis(
        values=middles,
        labelExpr=f"{json.dumps(labels)}[floor(datum.value)]",
        labelOverlap=False,
        labelFontSize=11,
        labelPadding=6,
        grid=False,
        ticks=False,
        domain=False,
    )
    scale = alt.Scale(domain=[len(labels), 0], nice=False)
    return alt.Y("low:Q", title=None, axis=axis, scale=scale)


def _backdrop(place: alt.Y, count: int) -> alt.Chart:
    edge = (1 - FILL) / 2
    rows = [{"low": number + 1 - edge, "high": number + edge} for number in range(count)]
    marks: alt.Chart = (
        alt.Chart(inline(pd.DataFrame(rows)))
        .mark_rect(color="#808080", opacity=0.12, tooltip=False)
        .encode(place, alt.Y2("high"), x=alt.value(0), x2=alt.value("width"))
    )
    return marks


def _fills(drawn: pd.DataFrame, axis: alt.X, place: alt.Y) -> alt.Chart:
    """The outline keeps a bin visible that was busy for less than a pixel's worth."""
    shades = colours(KIND_COLOURS, KIND_NAMES, drawn["key"])
    shown = [
        alt.Tooltip("lane:N"),
        alt.Tooltip("kind:N"),
        alt.Tooltip("start:Q", title="bin starts at", format=",.6~f"),
        alt.Tooltip("busy:Q", title="busy share of the bin (%)", format=".2%"),
    ]
    fill, stroke = alt.Fill("kind:N", scale=shades, title=None), alt.Stroke("kind:N", scale=shades, title=None)
    marks: alt.Chart = (
        alt.Chart(inline(drawn.drop(columns="key")))
        .mark_rect(strokeWidth=0.7, clip=True)
        .encode(axis, alt.X2("end"), place, alt.Y2("high"), fill, stroke, shown)
    )
    return marks


def _rules(steps: pd.DataFrame | None, axis: alt.X, first: int, last: int, scale: Unit) -> list[alt.Chart]:
    if steps is None:
        return []
    need(steps, "step", "start_ns")
    inside = steps[(steps["start_ns"] >= first) & (steps["start_ns"] < last)]
    if inside.empty or len(inside) > MOST_STEPS:
        return []
    every = -(-len(inside) // MOST_STEP_LABELS)
    marks = pd.DataFrame({"start": inside["start_ns"] / scale.size, "step": "step " + inside["step"].astype(str)})
    rule = alt.Chart(inline(marks)).mark_rule(color="#808080", strokeDash=[3, 3])
    text = ink(inline(marks.iloc[::every]), dx=1)
    return [
        rule.encode(axis, alt.Tooltip("step:N", title="starts")),
        text.encode(axis, alt.Text("step:N"), y=alt.value(-7)),
    ]
