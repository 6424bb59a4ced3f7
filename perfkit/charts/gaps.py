"""Pictures of why GPUs do nothing: frames of `perfkit.analysis.gaps`, causes in the names and colours of the theme."""

from __future__ import annotations

import re

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.theme import CAUSE_COLOURS, CAUSE_NAMES, WIDTH, hover, known, layered, need, nothing
from perfkit.format import TIME, Unit, duration, percent, unit

NO_GAP = "No device was idle in this window."
# The axis spans ns to s, so that each tick says its own unit.
TICK = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, ',') + ' s' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',') + ' ms' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, ',') + ' µs' : format(datum.value, ',') + ' ns'"
)


def histogram(hist: pd.DataFrame, *, title: str = "") -> alt.LayerChart:
    """Draw how much idle time lies in gaps of which length, stacked by cause.

    `hist`: columns lower_ns (above 0), upper_ns, cause, count, total_ns: one row per bin and cause; may be empty.
    Raises ValueError if a cause is unknown or a bin begins at 0 or below, which a logarithmic axis cannot show.
    """
    need(hist, "lower_ns", "upper_ns", "cause", "count", "total_ns")
    known(hist, "cause", CAUSE_COLOURS)
    if (hist["lower_ns"] <= 0).any():
        raise ValueError(f"lower_ns: {hist['lower_ns'].min()} is not above 0")
    filled = hist[hist["total_ns"] > 0]
    if filled.empty:
        return nothing(title or "No idle time", NO_GAP)
    scale = unit(float(filled.groupby("lower_ns")["total_ns"].sum().max()), TIME)
    return layered(
        [_columns(_stacked(filled, scale), scale)],
        title or _longest(filled),
        f"All devices together: {duration(float(hist['total_ns'].sum()))} in {int(hist['count'].sum()):,} gaps.",
        picture="Histogram of gap lengths on a logarithmic axis, stacked by cause",
        size=(WIDTH, 260),
    )


def _longest(filled: pd.DataFrame) -> str:
    per_bin = filled.groupby(["lower_ns", "upper_ns"], as_index=False)["total_ns"].sum()
    first = per_bin.loc[per_bin["total_ns"].idxmax()]
    part = percent(float(first["total_ns"] / per_bin["total_ns"].sum()))
    return f"Gaps of {_edge(first['lower_ns'])} to {_edge(first['upper_ns'])} hold {part} of the idle time"


def _edge(ns: float) -> str:
    """Edges are round: 5 µs reads better than 5.00 µs."""
    return re.sub(r"\.0+ ", " ", duration(ns))


def _stacked(filled: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return the rectangles: causes that share a bin stand on one another, in the palette's order."""
    order = filled.assign(key=filled["cause"].astype(str))
    order = order.assign(place=order["key"].map(list(CAUSE_COLOURS).index))
    order = order.sort_values(["lower_ns", "place"], kind="stable")
    top = order.groupby("lower_ns")["total_ns"].cumsum()
    return pd.DataFrame(
        {
            "lower": order["lower_ns"],
            "upper": order["upper_ns"],
            "bottom": (top - order["total_ns"]) / scale.size,
            "top": top / scale.size,
            "key": order["key"],
            "cause": order["key"].map(CAUSE_NAMES),
            "count": order["count"],
            "time": order["total_ns"].map(duration),
            "length": order["lower_ns"].map(_edge) + " to " + order["upper_ns"].map(_edge),
        }
    )


def _columns(drawn: pd.DataFrame, scale: Unit) -> alt.Chart:
    length = alt.X(
        "lower:Q",
        title="length of the gap (logarithmic, unit at each tick)",
        scale=alt.Scale(type="log", domain=[int(drawn["lower"].min()), int(drawn["upper"].max())], nice=False),
        axis=alt.Axis(labelExpr=TICK, values=[10**power for power in range(19)], grid=False),
    )
    shades = theme.colours(CAUSE_COLOURS, CAUSE_NAMES, drawn["key"])
    shown = hover(("length", "length of the gap"), "cause", ("count", "gaps", ","), ("time", "idle time"))
    colour = alt.Color("cause:N", scale=shades, title=None, legend=alt.Legend(columns=2))
    height = alt.Y("bottom:Q", title=f"idle time ({scale.symbol})")
    channels = (length, alt.X2("upper"), height, alt.Y2("top"), colour, shown)
    return theme.marked(drawn.drop(columns="key"), "rect", *channels, stroke="#808080", strokeWidth=0.4)


def causes(by_cause: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw what each device's idle time was spent waiting for, longest first; one panel per device.

    `by_cause`: columns rank, gpu, cause, detail (missing unless cause is host_wait), count, total_ns, share_frac (0..1,
    of the device's idle time): one row per device, cause and detail; may be empty. Raises ValueError if a cause or
    detail is unknown, or a share outside 0..1.
    """
    need(by_cause, "rank", "gpu", "cause", "detail", "count", "total_ns", "share_frac")
    known(by_cause, "cause", CAUSE_COLOURS)
    known(by_cause, "detail", theme.DETAIL_COLOURS)
    theme.fraction(by_cause, "share_frac")
    filled = by_cause[by_cause["total_ns"] > 0]
    if filled.empty:
        return nothing(title or "No idle time", NO_GAP)
    scale = unit(float(filled["total_ns"].max()), TIME)
    drawn = _ranked(filled, scale)
    title = title or _first(drawn)
    panels = [_panel(rows, device, scale, drawn["time"].max()) for device, rows in drawn.groupby("device", sort=False)]
    if len(panels) == 1:
        return panels[0].properties(title=title, description=f"{title}. {panels[0].description}")
    whole: alt.VConcatChart = alt.VConcatChart(vconcat=panels, spacing=14).properties(
        title=title, description=f"{title}. Bars of idle time by cause, one panel per GPU."
    )
    return whole


def _panel(rows: pd.DataFrame, device: object, scale: Unit, largest: float) -> alt.LayerChart:
    """Return one device's bars; all panels share the length of their axes."""
    layers, size = _bars(rows, largest, scale.symbol), (WIDTH - 160, alt.Step(26))
    return theme.panel(layers, str(device), picture="Bars of idle time by cause", size=size)


def _ranked(filled: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return one row per bar, longest first within a device."""
    order = filled.sort_values(["rank", "gpu", "total_ns"], ascending=[True, True, False], kind="stable")
    detail, cause = order["detail"].astype("string"), order["cause"].astype("string")
    return pd.DataFrame(
        {
            "device": theme.devices(order),
            "cause": detail.map(theme.DETAIL_NAMES).fillna(cause.map(CAUSE_NAMES)),
            "colour": detail.map(theme.DETAIL_COLOURS).fillna(cause.map(CAUSE_COLOURS)),
            "time": order["total_ns"] / scale.size,
            "count": order["count"],
            "share": order["share_frac"].map(percent),
        }
    )


def _first(drawn: pd.DataFrame) -> str:
    longest = drawn.iloc[drawn["time"].argmax()]
    return f"{longest['share']} of {longest['device']}'s idle time is {longest['cause']}"


def _bars(rows: pd.DataFrame, largest: float, symbol: str) -> list[alt.Chart]:
    """Return the bars and their shares; the axis of causes is equally wide in all panels."""
    labels = alt.Axis(minExtent=theme.LABEL_WIDTH)
    place = alt.Y("cause:N", title=None, sort=rows["cause"].tolist(), axis=labels)
    length = alt.X("time:Q", title=f"idle time ({symbol})", scale=alt.Scale(domain=[0, 1.2 * largest], nice=False))
    shown = hover(
        "device",
        "cause",
        ("count", "gaps", ","),
        ("time", f"idle time ({symbol})", ",.4~g"),
        ("share", "share of idle time"),
    )
    channels = (length, place, alt.Color("colour:N", scale=None), shown)
    bars = theme.marked(rows, "bar", *channels, height=alt.RelativeBandSize(band=0.76))
    return [bars, theme.words(rows, alt.X("time:Q"), place, alt.Text("share:N"), dx=4)]
