"""Pictures of where the time of each GPU goes: when its streams were busy, and why it was idle.

Time runs from left to right in the unit that the axis names; lanes are sorted by rank, GPU and stream. The selection
`brush` is a window of the field `start`, in that unit.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.charts import checks, theme
from perfkit.charts.shares import NO_WORK
from perfkit.charts.theme import KIND_COLOURS, WIDTH, devices, hover, inline, layered, nothing
from perfkit.format import TIME, Unit, duration, elided, percent, unit

NO_GAP = "No device was idle in this window."
# The axis spans ns to s, so that each tick says its own unit.
TICK = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, ',') + ' s' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',') + ' ms' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, ',') + ' µs' : format(datum.value, ',') + ' ns'"
)
DEVICE, STREAM = ["rank", "gpu"], ["rank", "gpu", "stream"]
MOST_GPUS, MOST_LANES, MOST_PANELS = 24, 24, 8
TALL = 40  # pixels of a single lane
LONGEST_NAME = 120  # characters
MOST_TICKS = 10  # so that labels of seven digits stay apart
FILL = 0.86  # of a lane's height, so that neighbours stay apart
MOST_STEPS, STEP_PIXELS = 100, 48  # more rules would hide what they divide; room of a label
GESTURES = "Drag to choose a window, double-click to choose all."


def lanes(
    bins: pd.DataFrame,
    *,
    steps: pd.DataFrame | None = None,
    window: tuple[int, int] | None = None,
) -> alt.LayerChart:
    """Draw when each stream was busy, and with what.

    Each bin is filled from the bottom of its lane to the share of its time that the stream was busy. Of more streams
    than 40, or than a browser can draw, the busiest are shown, which the chart says; about 320 bins are what the width
    can show.
    `bins`: columns rank, gpu, stream, kind (computation, communication, copy or other_kernels), start_ns, dur_ns,
    busy_ns, busy_frac (0..1); one row per bin with busy time. `steps`: columns step, start_ns: a rule at the start of
    each step; none above 100 of them. `window`: (start_ns, end_ns) of the axis; from the first to the last busy bin
    when omitted.
    """
    checks.need(bins, "rank", "gpu", "stream", "kind", "start_ns", "dur_ns", "busy_ns", "busy_frac")
    checks.known(bins, "kind", [kind for kind in KIND_COLOURS if kind != "idle"])
    checks.fraction(bins, "busy_frac")
    if bins.empty:
        return nothing("No activity", NO_WORK)
    first, last = window or (
        int(bins["start_ns"].min()),
        int((bins["start_ns"] + bins["dur_ns"]).max()),
    )
    scale = unit(last - first, TIME)
    shown, limit = _busiest_streams(bins)
    labels, drawn, full = _stacked(shown, scale)
    streams = f"{len(labels)} streams" if len(labels) > 1 else labels[0]
    time = f"time since the start of the capture ({scale.symbol})"
    across = alt.Scale(domain=[first / scale.size, last / scale.size], nice=False, zero=False)
    ticks = alt.Axis(tickCount=MOST_TICKS)
    axis = alt.X("start:Q", title=time, scale=across, axis=ticks)
    place = _lane_axis(labels)
    edge = (1 - FILL) / 2
    rows = pd.DataFrame(
        [{"low": number + 1 - edge, "high": number + edge} for number in range(len(labels))]
    )
    ground = theme.marked(
        rows, "rect", place, alt.Y2("high"), color="#808080", opacity=0.12, tooltip=False
    )
    return theme.layered(
        [
            ground.encode(x=alt.value(0), x2=alt.value("width")),
            _fills(drawn, axis, place),
            *_rules(steps, axis, first, last, scale),
        ],
        f"Activity of {streams} over {duration(last - first)}",
        f"A lane filled to the top was busy {percent(full)} of the bin's time; grey is idle.{limit}",
        picture=f"Timeline of {', '.join(labels[:8])}{' and more' if len(labels) > 8 else ''}",
        size=(WIDTH, int(min(max(320 / len(labels), 14), 40) * len(labels))),
    )


def _busiest_streams(bins: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the bins of the streams that can be drawn, busiest first, and a sentence if some are left out."""
    streams = (
        bins.groupby(STREAM)["busy_ns"]
        .agg(["sum", "size"])
        .sort_values("sum", ascending=False, kind="stable")
    )
    fits = int((streams["size"].cumsum() <= theme.MOST_ROWS).sum())
    busiest = streams.index[: max(min(fits, MOST_LANES), 1)]
    if len(busiest) == len(streams):
        return bins, ""
    place = pd.MultiIndex.from_frame(bins[STREAM])
    return bins[
        place.isin(busiest)
    ], f" These are the busiest {len(busiest)} of {len(streams)} streams."


def _stacked(bins: pd.DataFrame, scale: Unit) -> tuple[list[str], pd.DataFrame, float]:
    """Return the lanes' labels, the rectangles, and the busy share that fills a lane: above 1 where kernels overlap."""
    order = bins.assign(
        key=bins["kind"].astype(str), place=bins["kind"].astype(str).map(list(KIND_COLOURS).index)
    )
    order = order.sort_values([*STREAM, "start_ns", "place"], kind="stable")
    labels = devices(order[STREAM].drop_duplicates()).tolist()
    lane = order.groupby(STREAM, sort=True).ngroup()
    top = order.groupby([lane, order["start_ns"]])["busy_frac"].cumsum()
    full = max(1.0, float(top.max()))
    bottom = lane + 1 - (1 - FILL) / 2
    columns = {
        "start": order["start_ns"] / scale.size,
        "end": (order["start_ns"] + order["dur_ns"]) / scale.size,
        "low": (bottom - FILL * (top - order["busy_frac"]) / full).round(4),
        "high": (bottom - FILL * top / full).round(4),
        "key": order["key"],
        "kind": order["key"].map(theme.KIND_NAMES),
        "lane": lane.map(dict(enumerate(labels))),
        "busy": order["busy_frac"].round(6),
    }
    drawn = pd.DataFrame(columns)
    return labels, drawn, full


def _lane_axis(labels: list[str]) -> alt.Y:
    """An axis from lane 0 at the top down; its labels are numbers alone, never names from a profile."""
    ticks = [number + 0.5 for number in range(len(labels))]
    look: dict[str, Any] = {
        "labelOverlap": False,
        "labelFontSize": 11,
        "labelPadding": 6,
        "grid": False,
        "ticks": False,
    }
    axis = alt.Axis(
        values=ticks, labelExpr=f"{json.dumps(labels)}[floor(datum.value)]", domain=False, **look
    )
    return alt.Y(
        "low:Q", title=None, axis=axis, scale=alt.Scale(domain=[len(labels), 0], nice=False)
    )


def _fills(drawn: pd.DataFrame, axis: alt.X, place: alt.Y) -> alt.Chart:
    """The outline keeps a bin visible that was busy for less than a pixel's worth."""
    shades = theme.colours(KIND_COLOURS, theme.KIND_NAMES, drawn["key"])
    shown = hover(
        "lane",
        "kind",
        ("start", "bin starts at", ",.6~f"),
        ("busy", "busy share of the bin (%)", ".2%"),
    )
    fill, stroke = (kind("kind:N", scale=shades, title=None) for kind in (alt.Fill, alt.Stroke))
    channels = (axis, alt.X2("end"), place, alt.Y2("high"), fill, stroke, shown)
    return theme.marked(drawn.drop(columns="key"), "rect", *channels, strokeWidth=0.7, clip=True)


def _rules(
    steps: pd.DataFrame | None, axis: alt.X, first: int, last: int, scale: Unit
) -> list[alt.Chart]:
    if steps is None:
        return []
    checks.need(steps, "step", "start_ns")
    inside = steps[(steps["start_ns"] >= first) & (steps["start_ns"] < last)]
    if inside.empty or len(inside) > MOST_STEPS:
        return []
    marks = pd.DataFrame(
        {"start": inside["start_ns"] / scale.size, "step": "step " + inside["step"].astype(str)}
    )
    marks["room"] = _room((inside["start_ns"].to_numpy() - first) / (last - first))
    rule = alt.Chart(inline(marks)).mark_rule(color="#808080", strokeDash=[3, 3])
    fits = alt.ExprRef(f"datum.room * width < {STEP_PIXELS} ? 0 : 1")
    text = theme.ink(inline(marks[marks["room"] > 0]), dx=1, opacity=fits)
    starts = rule.encode(axis, alt.Tooltip("step:N", title="step that starts here"))
    return [starts, text.encode(axis, alt.Text("step:N"), y=alt.value(-7))]


def _room(places: NDArray[np.float64]) -> list[float]:
    """Return how far each label is from those with as much room or more, a share of the width; 0 for labels left out.

    >>> _room(np.array([0.0, 0.1, 0.5, 0.51]))
    [0.5, 0.0625, 0.5, 0.0]
    """
    room = dict.fromkeys(range(len(places)), 0.0)
    for least in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32):
        for number, place in enumerate(places):
            if not room[number] and all(
                abs(place - places[other]) >= least for other in room if room[other]
            ):
                room[number] = least
    return list(room.values())


def activity(
    bins: pd.DataFrame, *, span: tuple[int, int], width: float | str = WIDTH
) -> alt.Chart | alt.LayerChart:
    """Draw when each GPU was busy: one strip per GPU, the stronger in colour the busier, full at 100 %.

    Busy is the share of a bin in which the stream of the GPU that worked most of it worked. Of more than 24 GPUs the
    busiest are shown, which the chart says. `bins`: columns rank, gpu, stream, start_ns, dur_ns, busy_ns, busy_frac
    (0..1), as of `analysis.timeline.bins`. `span`: (start_ns, end_ns) of the axis. `width`: pixels, or "container",
    which something on the page must tell of its size.
    """
    checks.need(bins, "rank", "gpu", "stream", "start_ns", "dur_ns", "busy_ns", "busy_frac")
    checks.fraction(bins, "busy_frac")
    if bins.empty:
        return nothing(
            f"No activity in {duration(span[1] - span[0])}", "Nothing of the choice ran."
        )
    theme.register()
    scale = unit(span[1] - span[0], TIME)
    work = bins.groupby(DEVICE)["busy_ns"].sum().sort_values(ascending=False, kind="stable")
    is_drawn = pd.MultiIndex.from_frame(bins[DEVICE]).isin(work.index[:MOST_GPUS])
    busiest = bins[is_drawn].sort_values([*DEVICE, "start_ns"], kind="stable")
    streams = (
        busiest.groupby([*DEVICE, "start_ns", "dur_ns", "stream"], sort=False)["busy_frac"]
        .sum()
        .clip(upper=1)
    )
    of_gpu = streams.groupby(level=[*DEVICE, "start_ns", "dur_ns"], sort=False).max().reset_index()
    start, end = (
        of_gpu["start_ns"] / scale.size,
        (of_gpu["start_ns"] + of_gpu["dur_ns"]) / scale.size,
    )
    drawn = pd.DataFrame(
        {"gpu": devices(of_gpu), "start": start, "end": end, "busy": of_gpu["busy_frac"].round(4)}
    )
    count, whole = len(busiest[DEVICE].drop_duplicates()), len(bins[DEVICE].drop_duplicates())
    gpus = f"{whole} GPUs" if whole > 1 else str(drawn["gpu"].iloc[0])
    limit = f" These are the busiest {count} of {whole} GPUs." if count < whole else ""
    text = f"When {gpus} worked, over {duration(span[1] - span[0])}"
    explained = f"Full colour: busy 100 % of the time. Any colour: something ran. {GESTURES}{limit}"
    return _chart(drawn, span, scale, count).properties(
        width=width,
        title=alt.TitleParams(text=text, subtitle=[explained]),
        description=f"{text}. Strip per GPU. {explained}",
    )


def _chart(drawn: pd.DataFrame, span: tuple[int, int], scale: Unit, count: int) -> alt.Chart:
    ends = [edge / scale.size for edge in span]
    look = alt.BrushConfig(fill="#808080", fillOpacity=0.3, stroke="#808080", strokeWidth=2)
    brush = alt.selection_interval(name="brush", encodings=["x"], mark=look)
    axis = alt.Axis(grid=False, tickCount=MOST_TICKS)
    time = f"time since the start of the recording ({scale.symbol})"
    begins = f"bin starts at ({scale.symbol})"
    tips = hover(
        ("gpu", "GPU"), ("start", begins, ",.6~f"), ("busy", "busy share of the bin (%)", ".2%")
    )
    # A bin with one short kernel is seen, too: the eye takes half of the opacity for a tenth of the time.
    shares = alt.Scale(type="pow", exponent=0.3, domain=[0, 1], range=[0.2, 1])
    strength = alt.Opacity("busy:Q", scale=shares, legend=None)
    x = alt.X("start:Q", title=time, axis=axis, scale=alt.Scale(domain=ends, nice=False))
    y = alt.Y("gpu:N", title=None, sort=None, scale=alt.Scale(paddingInner=0.15))
    chart = alt.Chart(inline(drawn)).mark_rect(color=KIND_COLOURS["computation"], clip=True)
    chart = chart.encode(x, alt.X2("end"), y, strength, tips).add_params(brush)
    strips: alt.Chart = chart.properties(height=max(TALL, min(count * 18, 240)))
    return strips


def phases(found: pd.DataFrame) -> alt.LayerChart:
    """Draw which part of each rank's time is start-up, loop, pause or end.

    Of more phases than a browser can draw, or ranks than have room, the longest and the first are shown.
    `found`: columns rank, phase, start_ns, dur_ns, repetitions (Int64), kind, name, busy_ns: one row per phase.
    """
    checks.need(
        found, "rank", "phase", "start_ns", "dur_ns", "repetitions", "kind", "name", "busy_ns"
    )
    checks.known(found, "phase", theme.PHASE_COLOURS)
    if found.empty:
        return nothing("No phases", NO_WORK)
    ranks = found["rank"].drop_duplicates()
    shown = found[found["rank"].isin(ranks.iloc[:MOST_LANES])].nlargest(theme.MOST_ROWS, "dur_ns")
    few = (
        f" These are the first {MOST_LANES} of {len(ranks):,} ranks."
        if len(ranks) > MOST_LANES
        else ""
    )
    first, last = int(shown["start_ns"].min()), int((shown["start_ns"] + shown["dur_ns"]).max())
    scale = unit(last - first, TIME)
    across = alt.Scale(domain=[first / scale.size, last / scale.size], nice=False, zero=False)
    axis = alt.X(
        "start:Q",
        title=f"time since the start of the capture ({scale.symbol})",
        scale=across,
        axis=alt.Axis(tickCount=MOST_TICKS),
    )
    named = _phase_names(found)
    drawn = _phase_rows(shown, scale, named)
    shades = theme.colours(theme.PHASE_COLOURS, named, shown["phase"].astype(str))
    colour = alt.Color("phase:N", scale=shades, title=None)
    lane = alt.Y(
        "rank:N",
        title=None,
        sort=drawn["rank"].drop_duplicates().tolist(),
        axis=alt.Axis(ticks=False, labelPadding=6),
    )
    tips = (
        "phase",
        "kind",
        "starts",
        "lasts",
        "repetitions",
        ("busy", "GPU time"),
        "name",
    )
    longest = (
        found.groupby("phase", observed=True)["dur_ns"]
        .sum()
        .sort_values(ascending=False, kind="stable")
    )
    part = percent(float(longest.iloc[0] / found["dur_ns"].sum()))
    lanes = min(len(ranks), MOST_LANES)
    return layered(
        [theme.marked(drawn, "rect", axis, alt.X2("end:Q"), lane, colour, hover(*tips))],
        f"{named[str(longest.index[0])].capitalize()}: {part} of the time",
        f"What is start-up, pause or end happens once; perfkit judges the rest.{few}",
        picture="Strip of the phases of each rank over time",
        size=(WIDTH, TALL if lanes == 1 else 18 * lanes),
    )


def _phase_names(found: pd.DataFrame) -> dict[str, str]:
    """Return what the phases are called: what no rank repeats is one step, and no loop."""
    loops = found[found["phase"].eq("loop")]
    repeats = loops["repetitions"].groupby(loops["rank"]).sum().gt(1).any()
    return theme.PHASE_NAMES if repeats else theme.PHASE_NAMES | {"loop": "one step"}


def _phase_rows(shown: pd.DataFrame, scale: Unit, named: Mapping[str, str]) -> pd.DataFrame:
    columns = {
        "rank": "rank " + shown["rank"].astype(str),
        "phase": shown["phase"].astype(str).map(named),
        "kind": shown["kind"].astype(object),
        "name": shown["name"]
        .astype(object)
        .map(lambda name: elided(name, LONGEST_NAME), na_action="ignore"),
        "start": shown["start_ns"] / scale.size,
        "end": (shown["start_ns"] + shown["dur_ns"]) / scale.size,
        "starts": shown["start_ns"].map(duration),
        "lasts": shown["dur_ns"].map(duration),
        "busy": shown["busy_ns"].map(duration),
        "repetitions": shown["repetitions"].astype("string"),
    }
    order = shown.assign(row=np.arange(len(shown))).sort_values(
        ["rank", "start_ns"], kind="stable"
    )["row"]
    return pd.DataFrame(columns).iloc[order.to_numpy()]


def histogram(hist: pd.DataFrame) -> alt.LayerChart:
    """Draw how much idle time lies in gaps of which length, stacked by cause.

    `hist`: columns lower_ns (above 0), upper_ns, cause, count, total_ns: one row per bin and cause.
    """
    checks.need(hist, "lower_ns", "upper_ns", "cause", "count", "total_ns")
    checks.known(hist, "cause", theme.CAUSE_COLOURS)
    if (hist["lower_ns"] <= 0).any():
        raise ValueError(f"lower_ns: {hist['lower_ns'].min()} is not above 0")
    filled = hist[hist["total_ns"] > 0]
    if filled.empty:
        return nothing("No idle time", NO_GAP)
    per_bin = filled.groupby(["lower_ns", "upper_ns"], as_index=False)["total_ns"].sum()
    first = per_bin.loc[per_bin["total_ns"].idxmax()]
    part = percent(float(first["total_ns"] / per_bin["total_ns"].sum()))
    scale = unit(float(filled.groupby("lower_ns")["total_ns"].sum().max()), TIME)
    return layered(
        [_columns(_stacked_causes(filled, scale), scale)],
        f"Gaps of {_edge(first['lower_ns'])} to {_edge(first['upper_ns'])} hold {part} of the idle time",
        f"All devices together: {duration(float(hist['total_ns'].sum()))} in {int(hist['count'].sum()):,} gaps.",
        picture="Histogram of gap lengths on a logarithmic axis, stacked by cause",
        size=(WIDTH, 260),
    )


def _edge(ns: float) -> str:
    """Return a round edge: 5 µs reads better than 5.00 µs."""
    return re.sub(r"\.0+ ", " ", duration(ns))


def _stacked_causes(filled: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return the rectangles: causes that share a bin stand on one another, in the palette's order."""
    order = filled.assign(key=filled["cause"].astype(str))
    order = order.assign(place=order["key"].map(list(theme.CAUSE_COLOURS).index))
    order = order.sort_values(["lower_ns", "place"], kind="stable")
    top = order.groupby("lower_ns")["total_ns"].cumsum()
    columns = {
        "lower": order["lower_ns"],
        "upper": order["upper_ns"],
        "bottom": (top - order["total_ns"]) / scale.size,
        "top": top / scale.size,
        "key": order["key"],
        "cause": order["key"].map(theme.CAUSE_NAMES),
        "count": order["count"],
        "time": order["total_ns"].map(duration),
        "length": order["lower_ns"].map(_edge) + " to " + order["upper_ns"].map(_edge),
    }
    return pd.DataFrame(columns)


def _columns(drawn: pd.DataFrame, scale: Unit) -> alt.Chart:
    room = alt.Scale(
        type="log", domain=[int(drawn["lower"].min()), int(drawn["upper"].max())], nice=False
    )
    axis = alt.Axis(labelExpr=TICK, values=[10**power for power in range(19)], grid=False)
    length = alt.X(
        "lower:Q", title="length of the gap (logarithmic, unit at each tick)", scale=room, axis=axis
    )
    shades = theme.colours(theme.CAUSE_COLOURS, theme.CAUSE_NAMES, drawn["key"])
    shown = hover(
        ("length", "length of the gap"), "cause", ("count", "gaps", ","), ("time", "idle time")
    )
    colour = alt.Color("cause:N", scale=shades, title=None, legend=alt.Legend(columns=2))
    height = alt.Y("bottom:Q", title=f"idle time ({scale.symbol})")
    channels = (length, alt.X2("upper"), height, alt.Y2("top"), colour, shown)
    return theme.marked(
        drawn.drop(columns="key"), "rect", *channels, stroke="#808080", strokeWidth=0.4
    )


def causes(by_cause: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw what each device's idle time was spent waiting for, longest first; one panel per device.

    Of many devices the MOST_PANELS that are idle longest are drawn, which the chart says.

    `by_cause`: columns rank, gpu, cause, detail (missing unless cause is host_wait), count, total_ns, share_frac (0..1,
    of the device's idle time): one row per device, cause and detail.
    """
    checks.need(by_cause, "rank", "gpu", "cause", "detail", "count", "total_ns", "share_frac")
    checks.known(by_cause, "cause", theme.CAUSE_COLOURS)
    checks.known(by_cause, "detail", theme.DETAIL_COLOURS)
    checks.fraction(by_cause, "share_frac")
    filled = by_cause[by_cause["total_ns"] > 0]
    if filled.empty:
        return nothing("No idle time", NO_GAP)
    idle = filled.groupby(DEVICE)["total_ns"].sum().sort_values(ascending=False, kind="stable")
    few = (
        f"The {MOST_PANELS} of {len(idle):,} GPUs that are idle longest."
        if len(idle) > MOST_PANELS
        else ""
    )
    filled = filled[pd.MultiIndex.from_frame(filled[DEVICE]).isin(idle.index[:MOST_PANELS])]
    scale = unit(float(filled["total_ns"].max()), TIME)
    drawn = _longest_first(filled, scale)
    first = drawn.iloc[drawn["time"].argmax()]
    title = f"{first['share']} of {first['device']}'s idle time is {first['cause']}"
    # All panels share the length of their axes, and that of causes is equally wide in all.
    time, room = (
        f"idle time ({scale.symbol})",
        alt.Scale(domain=[0, 1.2 * drawn["time"].max()], nice=False),
    )
    length = alt.X("time:Q", title=time, axis=alt.Axis(tickCount=6), scale=room)
    shown = hover(
        "device",
        "cause",
        ("count", "gaps", ","),
        ("time", time, ",.4~g"),
        ("share", "share of idle time"),
    )
    colour = alt.Color("colour:N", scale=None)
    panels, size = [], (WIDTH - 160, alt.Step(26))
    for device, rows in drawn.groupby("device", sort=False):
        place = alt.Y(
            "cause:N",
            title=None,
            sort=rows["cause"].tolist(),
            axis=alt.Axis(minExtent=theme.LABEL_WIDTH),
        )
        bars = theme.marked(
            rows, "bar", length, place, colour, shown, height=alt.RelativeBandSize(band=0.76)
        )
        layers = [bars, theme.words(rows, alt.X("time:Q"), place, alt.Text("share:N"), dx=4)]
        panels.append(
            theme.panel(layers, str(device), picture="Bars of idle time by cause", size=size)
        )
    notes = [few] if few else []
    return theme.together(panels, title, notes, picture="Bars of idle time by cause")


def _longest_first(filled: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return one row per bar, longest first within a device."""
    order = filled.sort_values(
        ["rank", "gpu", "total_ns"], ascending=[True, True, False], kind="stable"
    )
    detail, cause = order["detail"].astype("string"), order["cause"].astype("string")
    columns = {
        "device": theme.devices(order),
        "cause": detail.map(theme.DETAIL_NAMES).fillna(cause.map(theme.CAUSE_NAMES)),
        "colour": detail.map(theme.DETAIL_COLOURS).fillna(cause.map(theme.CAUSE_COLOURS)),
        "time": order["total_ns"] / scale.size,
        "count": order["count"],
        "share": order["share_frac"].map(percent),
    }
    return pd.DataFrame(columns)
