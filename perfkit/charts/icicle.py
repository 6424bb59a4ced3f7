"""Picture of where in the program a metric was spent: call paths as an icicle.

A bar is a calling context, as wide as its inclusive value; what it calls lies under it, side by side, the largest
first; what stays empty under a bar is its own. Lines, loops and instructions count in their function, and equal
functions under one caller are one bar, because stacks of Python programs are hundreds of levels deep.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts.icicle_layout import (
    KERNEL,
    NATIVE,
    OPERATION,
    OTHER,
    PYTHON,
    Values,
    folded,
    levels,
    outermost,
    placed,
    told,
)
from perfkit.charts.theme import KIND_COLOURS, LABEL_WIDTH, WIDTH, colours, hover, inline, layered, need, nothing
from perfkit.format import BYTES, TIME, Unit, duration, elided, number, percent, printable, size, unit
from perfkit.names.shortening import short

SPENT = {  # HPCToolkit's metrics; others are called by their names
    "CPUTIME": "CPU time",
    "REALTIME": "real time",
    "CYCLES": "CPU cycles",
    "GPUOP": "GPU time",
    "GKER": "kernel time",
    "GXCOPY": "copy time",
    "GINS": "GPU instructions",
    "GCYCLES": "GPU cycles",
}
THREADS = ("CPUTIME", "REALTIME", "CYCLES")  # they pass in many threads at once
LONGEST_NAME, LONGEST_PLACE, LONGEST_LABEL, LONGEST_TITLE = 300, 120, 90, 64  # characters
LIBRARY = re.compile(r" \[[^\]]*\]$")  # HPCToolkit writes it behind the name of a function
SCOPES = re.compile(r"^(?:\w+::)+(?=\w+::)")  # all but the last two names
PYTHON_LINE = re.compile(r"\.py:\d")
COUNTS = (Unit("", 1), Unit("thousand", 1e3), Unit("million", 1e6), Unit("billion", 1e9))
COLOURS = {PYTHON: "#E9B62F", NATIVE: "#9CB0CE", OPERATION: KIND_COLOURS["copy"], KERNEL: "#4A93E6", OTHER: "#C8C8C8"}
INK = "#101418"  # on the bars, which are light on every page
KINDS = ("function", "loop", "line", "instruction", "gpu_operation")
ROW = 20  # pixels
NARROWEST_TEXT = 30  # pixels
MOST_BARS = 1_500
NO_PATHS = "No call path holds this metric. Record with `hpcrun -e CPUTIME -e gpu=nvidia`."
# All text that the field is compared with is data; the expressions themselves hold none of it.
_FOUND = "!search || indexof(lower(datum.name + ' ' + datum.hidden), lower(search)) >= 0"
_PIXELS = "width * (min(datum.end, right) - max(datum.begin, left)) / (right - left) - 6"
_WORDS: dict[str, Any] = {
    "align": "left",
    "clip": True,
    "color": INK,
    "fontSize": 11,
    "tooltip": False,
    "dx": alt.ExprRef("4 + width * max(0, left - datum.begin) / (right - left)"),
    "limit": alt.ExprRef(f"max(1, {_PIXELS})"),
    "opacity": alt.ExprRef(f"{_PIXELS} < {NARROWEST_TEXT} ? 0 : 1"),
}


def tree(
    calltree: pd.DataFrame,
    call_metrics: pd.DataFrame,
    *,
    metric: str = "",
    search: str = "",
    entry: str = "",
    depth: int = 24,
    at_least_frac: float = 0.002,
    fold: Collection[str] = ("line", "loop", "instruction"),
    title: str = "",
) -> alt.LayerChart:
    """Draw the call paths that a metric was spent on.

    A click on a bar spreads it over the whole width, one beside the bars or a double click brings all back.
    The field under the picture finds names: all bars without the text turn grey.
    Raises ValueError if an argument is outside its range, or contexts hold more than their caller.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.
    metric
        One of CALL_METRICS; when empty the time with the largest sum, without one the first metric.
    search
        Text that the field under the picture holds at first; case does not matter.
    entry
        The entry point to draw; all when empty.
    depth
        Most rows, at least 2. Of a deeper tree the middle functions of chains are left out, each the only
        one its caller calls; what then lies below the last row is not drawn.
    at_least_frac
        Between 0 and 1: narrower contexts under one caller become one grey bar.
    fold
        Kinds of context that count in what encloses them, as in CALLTREE.
    """
    need(calltree, "rank", "node", "parent", "entry", "kind", "name", "file", "line", "module")
    need(call_metrics, "rank", "node", "metric", "unit", "inclusive")
    _legal(depth, at_least_frac, fold)
    if calltree.empty or not (call_metrics["inclusive"] > 0).any():
        return nothing(title or "No call paths", NO_PATHS)
    metric, symbol = _metric(calltree, call_metrics, metric)
    shown = _entry(calltree, entry)
    value = _values(shown, call_metrics[call_metrics["metric"] == metric])
    total = float(value[shown["parent"].isna()].sum())
    if not total > 0:
        return nothing(title or f"No call paths with {spent(metric)}", NO_PATHS)
    bars, below = _bars(shown, value, depth, at_least_frac * total, fold)
    scale, drawn = unit_of(total, symbol), labels_of(bars, shown, total, symbol)
    whole = f"{amount(total, symbol)} {f'below {printable(entry, 60)}' if entry else 'in all'}"
    return layered(
        _layers(drawn, total / scale.size, axis(metric, scale.symbol), search),
        title or title_of(bars, drawn, metric, total),
        explanation(bars, drawn, search, whole, total, below),
        picture=f"Icicle of {len(drawn)} calling contexts, callers above what they call",
        size=(WIDTH + LABEL_WIDTH, int(drawn["row"].max() + 1) * ROW),
    )


def _legal(depth: int, at_least_frac: float, fold: Collection[str]) -> None:
    if depth < 2:
        raise ValueError(f"depth: {depth} is not at least 2")
    if not 0 < at_least_frac < 1:
        raise ValueError(f"at_least_frac: {at_least_frac} is not between 0 and 1")
    if isinstance(fold, str) or not set(fold) <= set(KINDS):
        raise ValueError(f"fold: {fold!r} is not a collection of {list(KINDS)}")


def _metric(calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str) -> tuple[str, str]:
    """Return the metric to draw and its unit: as asked, else the time with the largest sum, else the first."""
    roots = calltree.loc[calltree["parent"].isna(), ["rank", "node"]]
    sums = call_metrics.merge(roots, on=["rank", "node"]).assign(metric=lambda rows: rows["metric"].astype(str))
    sums = sums.groupby(["metric", sums["unit"].astype(str)])["inclusive"].sum().reset_index()
    if metric and metric not in (legal := sorted(sums["metric"])):
        raise ValueError(f"metric: {metric!r} is not one of {legal}")
    asked = sums[sums["metric"] == metric] if metric else sums
    first = asked.assign(time=asked["unit"].eq("s")).sort_values(["time", "inclusive"], ascending=False).iloc[0]
    return str(first["metric"]), str(first["unit"])


def _entry(calltree: pd.DataFrame, entry: str) -> pd.DataFrame:
    """Return the contexts of the entry point, of all if none is named."""
    if not entry:
        return calltree
    shown = calltree[calltree["entry"] == entry].reset_index(drop=True)
    if shown.empty:
        raise ValueError(f"entry: {entry!r} is not one of {sorted(calltree['entry'].astype(str).unique())}")
    return shown


def _values(calltree: pd.DataFrame, rows: pd.DataFrame) -> Values:
    """Return each context's inclusive value, 0 where the metric was not measured."""
    held = calltree[["rank", "node"]].merge(rows[["rank", "node", "inclusive"]], how="left", on=["rank", "node"])
    return held["inclusive"].fillna(0).to_numpy(float)


def _bars(
    calltree: pd.DataFrame, value: Values, depth: int, least: float, fold: Collection[str]
) -> tuple[pd.DataFrame, int]:
    """Return the bars that fit into `depth` rows, and how many rows lie below; of too many bars the widest."""
    while True:
        paths = told(folded(calltree, value, fold, least), calltree, depth, least)
        bars = placed(paths, least, depth)
        if len(bars) <= MOST_BARS or least > value.max():
            return bars, max(levels(paths) - depth, 0)
        least *= 2


def _layers(drawn: pd.DataFrame, total: float, axis: str, search: str) -> list[alt.Chart]:
    """Return grey bars, above them in colour those that are not searched away, and names as far as they fit."""
    span = alt.Scale(domainMin=alt.ExprRef("left"), domainMax=alt.ExprRef("right"), nice=False, zero=False)
    x = alt.X("begin:Q", title=axis, scale=span, axis=alt.Axis(grid=False))
    y = alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=0.06, paddingOuter=0))
    grey: dict[str, Any] = {"clip": True, "x2Offset": -1, "tooltip": False}
    rows = alt.Chart(inline(drawn))
    return [
        rows.mark_rect(color=COLOURS[OTHER], **grey).encode(x, alt.X2("end"), y),
        _coloured(rows, drawn, (x, alt.X2("end"), y)).add_params(*_params(total, search)),
        rows.mark_text(**_WORDS).encode(x, y, alt.Text("label:N")),
    ]


def _params(total: float, search: str) -> list[alt.Parameter]:
    """Return the bar that was clicked, the ends of the axis that follow from it, and the text searched for."""
    field = alt.binding(input="text", name="find ", placeholder="part of a name", autocomplete="off")
    return [
        alt.selection_point(name="clicked", fields=["begin", "end"], toggle=False, clear="dblclick"),
        alt.param(name="left", expr="clicked.begin ? clicked.begin[0] : 0"),
        alt.param(name="right", expr=f"clicked.end ? clicked.end[0] : {total!r}"),
        alt.param(name="search", value=search, bind=field),
    ]


def _coloured(rows: alt.Chart, drawn: pd.DataFrame, places: tuple[alt.X, alt.X2, alt.Y]) -> alt.Chart:
    colour = alt.Color("kind:N", scale=colours(COLOURS, {}, drawn["kind"]), title=None)
    shown = hover(
        "name",
        ("value", "with what it calls"),
        ("share", "share of the whole"),
        "kind",
        ("called", "called from"),
        ("place", "defined in"),
        ("hidden", "also stands for"),
    )
    marks: alt.Chart = rows.mark_rect(
        clip=True, x2Offset=-1, cursor="pointer", fillOpacity=alt.ExprRef(f"{_FOUND} ? 1 : 0")
    ).encode(*places, colour, shown)
    return marks


def spent(metric: str) -> str:
    """Return the metric for people."""
    return SPENT.get(metric, printable(metric, LONGEST_TITLE))


def axis(metric: str, unit: str) -> str:
    """Return the title of the axis."""
    return f"{spent(metric)}{', summed over threads' * (metric in THREADS)} ({unit})"


def unit_of(total: float, symbol: str) -> Unit:
    """Return the unit of the axis, and how much of the metric's own unit `symbol` it holds."""
    if symbol == "s":
        step = unit(1e9 * total, TIME)
        return Unit(step.symbol, step.size / 1e9)
    if symbol == "bytes":
        return unit(total, BYTES)
    step = unit(total, COUNTS)
    return Unit(f"{step.symbol} {symbol}".strip(), step.size)


def amount(value: float, symbol: str) -> str:
    """Return a value, given in the metric's own unit `symbol`, as people read it."""
    if symbol in ("s", "bytes"):
        return duration(1e9 * value) if symbol == "s" else size(value)
    step = unit_of(value, symbol)
    return f"{number(value / step.size)} {step.symbol}"


def labels_of(bars: pd.DataFrame, calltree: pd.DataFrame, total: float, symbol: str) -> pd.DataFrame:
    """Return the place of each bar in the unit of the axis, what it is called, and what its tooltip says."""
    size = unit_of(total, symbol).size
    context = calltree.iloc[bars["context"].clip(lower=0)]
    name = _names(bars, context, several=len(calltree["rank"].unique()) > 1)
    hidden = [", ".join(_label(calltree["name"].iloc[row], "function") for row in rows) for rows in bars["hidden"]]
    label = [_label(text, kind) for text, kind in zip(name, context["kind"], strict=True)]
    return pd.DataFrame(
        {
            "row": bars["row"],
            "begin": (bars["begin"] / size).round(6),
            "end": (bars["end"] / size).round(6),
            "label": [f"… {own}" if others else own for own, others in zip(label, hidden, strict=True)],
            "name": [elided(text, LONGEST_NAME) for text in name],
            "kind": bars["what"],
            "value": [amount(value, symbol) for value in bars["value"]],
            "share": (bars["value"] / total).map(percent),
            "called": _calling_lines(bars, calltree),
            "place": _places(bars, context),
            "hidden": [elided(text, LONGEST_NAME) for text in hidden],
        }
    )


def _names(bars: pd.DataFrame, context: pd.DataFrame, *, several: bool) -> list[str]:
    """Return full names; roots with their rank where there are several."""
    names = context["name"].astype(str).tolist()
    rows = zip(names, context["kind"], context["rank"], bars["context"], bars["contexts"], strict=True)
    return [
        f"{count} smaller" if row < 0 else f"rank {rank} · {name}" if several and kind == "entry" else name
        for name, kind, rank, row, count in rows
    ]


def _label(name: str, kind: str) -> str:
    """Return the name for people: of a function without its library, outer scopes and parameters."""
    if kind != "function" or name.startswith("<"):
        return printable(name, LONGEST_LABEL)
    return printable(SCOPES.sub("", short(LIBRARY.sub("", name))), LONGEST_LABEL)


def _calling_lines(bars: pd.DataFrame, calltree: pd.DataFrame) -> list[str]:
    """Return the line that calls each bar's largest context; empty where unknown."""
    lines = calltree["name"].iloc[bars["site"].clip(lower=0)].astype(str)
    known = zip(lines, bars["site"], bars["sites"], strict=True)
    return ["" if row < 0 else printable(line, LONGEST_PLACE) + " and other lines" * (n > 1) for line, row, n in known]


def _places(bars: pd.DataFrame, context: pd.DataFrame) -> list[str]:
    """Return the file and line of each bar's context; empty where unknown."""
    line = ":" + context["line"].astype("string")
    place = context["file"].astype("string") + line.where(context["line"].gt(0), "")
    return [elided(text, LONGEST_PLACE) for text in place.where(bars["context"].ge(0).to_numpy()).fillna("")]


def title_of(bars: pd.DataFrame, drawn: pd.DataFrame, metric: str, total: float) -> str:
    """Name the bar with the largest value of its own, and the closest line of Python that led to it."""
    own, up = bars["own"].where(bars["context"] >= 0).to_numpy(float), bars["up"].to_numpy()
    label, called = drawn["label"].tolist(), drawn["called"].tolist()
    largest = at = int(np.nanargmax(own))
    of = f"the {spent(metric)}" if metric in SPENT else spent(metric)
    said = f"{elided(label[largest], LONGEST_TITLE)} takes {percent(own[largest] / total)} of {of}"
    while at >= 0 and not PYTHON_LINE.search(called[at]):
        at = int(up[at])
    return said if at < 0 else f"{said}, called from {printable(called[at], LONGEST_TITLE)}"


def explanation(bars: pd.DataFrame, drawn: pd.DataFrame, search: str, whole: str, total: float, below: int) -> str:
    """Say what the bars with `search` in their names hold, how much the whole is, and what is not drawn."""
    said = [f"{whole}, each bar with what it calls.", "Click: wider; double click: back."]
    if search:
        text = (drawn["name"] + " " + drawn["hidden"]).str.lower()
        found = outermost(bars, text.str.contains(search.lower(), regex=False).to_numpy(bool))
        held = percent(bars["value"].to_numpy()[found].sum() / total)
        said.insert(0, f"Names with “{printable(search, LONGEST_TITLE)}” hold {held}.")
    return " ".join([*said, *([f"{below} rows below are not drawn."] if below else [])])
