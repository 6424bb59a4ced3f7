"""The cells of tables: values as people read them, in a unit chosen for their column, escaped.

Functions
---------
column   the header and cells of a column
align    the attribute of a cell that puts numbers to the right
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from perfkit.format import BYTES, MISSING, TIME, Shown, Unit, elided, number, percent, printable, unit

SHORT = 70  # characters of a name in its cell
SENTENCE = 44  # characters of a sentence on one line
PROSE = 300  # characters of a sentence, which may take several lines
LONGEST_WORD = 30  # of a sentence; names of kernels have longer ones
LONG = 400  # characters of it in the tooltip
_COMMAND = re.compile("`[^`]+`")  # in a sentence that says what to record

_COUNTS = (Unit("", 1), Unit("k", 1e3), Unit("M", 1e6), Unit("G", 1e9), Unit("T", 1e12), Unit("P", 1e15))


def _with(symbol: str) -> tuple[Unit, ...]:
    return tuple(Unit(step.symbol + symbol, step.size) for step in _COUNTS)


# Longer suffixes first: _bytes_per_s ends in _per_s.
LADDERS: dict[str, tuple[Unit, ...]] = {
    "_bytes_per_s": tuple(Unit(f"{step.symbol}/s", step.size) for step in BYTES),
    "_flops_per_s": _with("FLOP/s"),
    "_per_s": (Unit("1/s", 1),),
    "_ns": TIME,
    "_bytes": BYTES,
    "_flops": _with("FLOP"),
    "_hz": _with("Hz"),
    "_w": (Unit("W", 1),),
    "_c": (Unit("°C", 1),),
}
# Numbers that name something are shown as they are, without separators.
IDENTIFIERS = frozenset(
    {
        "rank",
        "gpu",
        "peer_gpu",
        "process",
        "thread",
        "stream",
        "correlation",
        "step",
        "launch",
        "node",
        "parent",
        "line",
    }
)
MOMENTS = frozenset({"start_ns", "time_ns"})  # of which the difference matters
MOST_DIGITS = 6  # of a moment, behind the point
# Columns that are nothing but a unit.
BARE = {
    "bytes": "size_bytes",
    "bytes_per_s": "bandwidth_bytes_per_s",
    "flops": "work_flops",
    "flops_per_s": "performance_flops_per_s",
}


@dataclass(frozen=True)
class Cells:
    """A formatted column: its header, cells and whether they are numbers."""

    header: str
    cells: list[str]
    numeric: bool


def column(values: pd.Series, name: str, header: str | None) -> Cells:
    """Return the cells of a column under its header, which is made of its name unless one is given."""
    if name.endswith("_frac") and _numeric(values):
        return Cells(f"{header or _title(name, '_frac')} (%)", _each(values, _percent), True)
    name = BARE.get(name, name)
    suffix = next((s for s in LADDERS if name.endswith(s)), None)
    if suffix and _numeric(values):
        largest = float(values.abs().max()) if values.notna().any() else 0.0
        chosen = unit(largest, LADDERS[suffix])
        shown = _moment(values, chosen) if name in MOMENTS else number
        cells = _each(values, lambda value: shown(value / chosen.size))
        return Cells(f"{header or _title(name, suffix)} ({chosen.symbol})", cells, True)
    if pd.api.types.is_bool_dtype(values):
        return Cells(header or _title(name), _each(values, lambda value: "yes" if value else "no"), False)
    if name in IDENTIFIERS and pd.api.types.is_integer_dtype(values):
        return Cells(header or _title(name), _each(values, str), True)
    if pd.api.types.is_integer_dtype(values):
        return Cells(header or _title(name), _each(values, lambda value: f"{value:,}"), True)
    if _numeric(values):
        return Cells(header or _title(name), _each(values, number), True)
    return Cells(header or _title(name), _each(values, _text), False)


def _moment(values: pd.Series, chosen: Unit) -> Callable[[float], str]:
    """Return how to write moments, so that those of a column can be told apart wherever they lie."""
    apart = np.diff(np.unique(values.dropna()))
    if not len(apart):
        return number
    digits = min(max(math.ceil(-math.log10(float(apart.min()) / chosen.size)), 0), MOST_DIGITS)
    return lambda value: f"{value:,.{digits}f}"


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _title(name: str, suffix: str = "") -> str:
    return printable(name.removesuffix(suffix).replace("_", " ").strip(), SHORT)


def _each(values: pd.Series, shown: Callable[[Any], str]) -> list[str]:
    return [MISSING if pd.isna(value) else shown(value) for value in values]


def _percent(value: float) -> str:
    return percent(value).removesuffix(" %")


def _text(value: object) -> str:
    """Return the text for its cell, escaped: a sentence wrapped, a name cut with a longer piece of it as tooltip.

    What is `Shown` is HTML already.
    """
    if isinstance(value, Shown):
        return value.html
    long = printable(value, LONG)
    if _is_prose(long):
        return f'<div class="t">{escape(printable(value, PROSE))}</div>'
    short = elided(value, SHORT)
    return escape(short) if short == long else f'<span title="{escape(long)}">{escape(short)}</span>'


def _is_prose(text: str) -> bool:
    """Say whether a text is a sentence too long for a line, rather than a name, whose words are longer."""
    if len(text) <= (SENTENCE if text.endswith(".") else SHORT):
        return False
    return bool(_COMMAND.search(text)) or max(map(len, text.split())) <= LONGEST_WORD


def align(cells: Cells) -> str:
    """Return the class of a cell as an attribute."""
    return ' class="n"' if cells.numeric else ""
