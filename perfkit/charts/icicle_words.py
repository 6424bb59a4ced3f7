"""What an icicle says: names, values and places of its bars, and the sentences over it.

Functions
---------
spent         the metric
axis          the title of the axis
scale         the unit of the axis
amount        a value with its unit
drawn         what each bar and its tooltip say
title         the bar with the largest value of its own
explanation   the whole, what was searched, what is not drawn
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from perfkit.charts.icicle_layout import outermost
from perfkit.format import BYTES, TIME, Unit, duration, elided, number, percent, printable, size, unit
from perfkit.names import short

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


def spent(metric: str) -> str:
    """Return the metric for people."""
    return SPENT.get(metric, printable(metric, LONGEST_TITLE))


def axis(metric: str, unit: str) -> str:
    """Return the title of the axis."""
    return f"{spent(metric)}{', summed over threads' * (metric in THREADS)} ({unit})"


def scale(total: float, symbol: str) -> Unit:
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
    step = scale(value, symbol)
    return f"{number(value / step.size)} {step.symbol}"


def drawn(bars: pd.DataFrame, calltree: pd.DataFrame, total: float, symbol: str) -> pd.DataFrame:
    """Return the place of each bar in the unit of the axis, what it is called, and what its tooltip says."""
    size = scale(total, symbol).size
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
            "called": _called(bars, calltree),
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


def _called(bars: pd.DataFrame, calltree: pd.DataFrame) -> list[str]:
    """Return the line that calls each bar's largest context; empty where unknown."""
    lines = calltree["name"].iloc[bars["site"].clip(lower=0)].astype(str)
    known = zip(lines, bars["site"], bars["sites"], strict=True)
    return ["" if row < 0 else printable(line, LONGEST_PLACE) + " and other lines" * (n > 1) for line, row, n in known]


def _places(bars: pd.DataFrame, context: pd.DataFrame) -> list[str]:
    """Return the file and line of each bar's context; empty where unknown."""
    line = ":" + context["line"].astype("string")
    place = context["file"].astype("string") + line.where(context["line"].gt(0), "")
    return [elided(text, LONGEST_PLACE) for text in place.where(bars["context"].ge(0).to_numpy()).fillna("")]


def title(bars: pd.DataFrame, drawn: pd.DataFrame, metric: str, total: float) -> str:
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
