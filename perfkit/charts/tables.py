"""Tables for people: a frame as HTML that stands alone.

Conventions
-----------
A column's unit is the suffix of its name. The header shows the unit chosen for the column's largest
value, the cells three significant digits in it; fractions become percent. Everything is escaped: names in
a profile come from outside. A missing value is n/a.

Functions
---------
show   format a frame
card   format the first row of a frame, one line per column
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from perfkit.charts.data import need
from perfkit.format import BYTES, MISSING, TIME, Shown, Unit, elided, number, percent, printable, unit

SHORT = 70  # characters of a name in its cell
PROSE = 300  # characters of a sentence, which may take several lines
LONGEST_WORD = 30  # of a sentence; names of kernels have longer ones
LONG = 400  # characters of it in the tooltip

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
# Columns that are nothing but a unit.
BARE = {
    "bytes": "size_bytes",
    "bytes_per_s": "bandwidth_bytes_per_s",
    "flops": "work_flops",
    "flops_per_s": "performance_flops_per_s",
}
STYLE = (
    ".perfkit-table{overflow-x:auto;max-width:100%}"
    ".perfkit-table table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:0}"
    ".perfkit-table caption{text-align:left;caption-side:top;font-weight:600;padding:.3em 0;white-space:nowrap}"
    # the class stands twice to outweigh JupyterLab's own rules for cells
    ".perfkit-table.perfkit-table th,.perfkit-table.perfkit-table td{"
    "padding:.25em .8em .25em 0;text-align:left;white-space:nowrap;"
    "border-bottom:1px solid rgba(128,128,128,.35);background:none}"
    ".perfkit-table.perfkit-table .n{text-align:right}"
    ".perfkit-table.perfkit-table .t{white-space:normal;min-width:18em;max-width:36em}"
    ".perfkit-table p{margin:.4em 0;opacity:.75}"
)


@dataclass(frozen=True)
class _Cells:
    """A formatted column: its header, cells and whether they are numbers."""

    header: str
    cells: list[str]
    numeric: bool


def show(
    frame: pd.DataFrame,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    caption: str = "",
    rows: int = 50,
) -> Shown:
    """Format a frame for the notebook and the report.

    Parameters
    ----------
    frame
        Any frame whose columns follow the naming of `perfkit.tables`; may be empty.
    columns
        The columns to show in this order, or a mapping from column to header; all when omitted.
    caption
        What the table shows; also its name for screen readers.
    rows
        Most rows to show, at least 1; a line under the table says how many more there are.

    Returns
    -------
    Shown
        Displays itself as HTML.

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If `rows` is below 1.

    Examples
    --------
    >>> show(pd.DataFrame({"name": ["<b>"], "total_ns": [2_500_000]}), caption="Kernels")
    Kernels: 1 row of name, total (ms)
    """
    if rows < 1:
        raise ValueError(f"rows: {rows} is not at least 1")
    names = list(frame.columns) if columns is None else list(columns)
    need(frame, *names)
    given = columns if isinstance(columns, Mapping) else {}
    made = [_column(frame[name].head(rows), str(name), given.get(name)) for name in names]
    count = f"{len(frame):,} row" if len(frame) == 1 else f"{len(frame):,} rows"
    text = f"{caption or 'Table'}: {count} of {', '.join(column.header for column in made)}"
    return Shown(_html(made, caption, len(frame), rows), text)


def card(frame: pd.DataFrame, *, caption: str = "") -> Shown:
    """Format the first row of a frame as a table of its own: what, and its value with unit.

    Examples
    --------
    >>> card(pd.DataFrame({"name": ["gemm"], "total_ns": [2_500_000]}), caption="Kernel")
    Kernel: 2 rows of what, value
    """
    made = [_column(frame[name].head(1), str(name), None) for name in frame]
    what = _Cells("what", [escape(column.header) for column in made if column.cells], False)
    value = _Cells("value", [cell for column in made for cell in column.cells], False)
    text = f"{caption or 'Table'}: {len(value.cells)} rows of what, value"
    return Shown(_html([what, value], caption, len(value.cells), len(value.cells)), text)


def _column(values: pd.Series, name: str, header: str | None) -> _Cells:
    if name.endswith("_frac") and _numeric(values):
        return _Cells(f"{header or _title(name, '_frac')} (%)", _each(values, _percent), True)
    name = BARE.get(name, name)
    suffix = next((s for s in LADDERS if name.endswith(s)), None)
    if suffix and _numeric(values):
        largest = float(values.abs().max()) if values.notna().any() else 0.0
        chosen = unit(largest, LADDERS[suffix])
        cells = _each(values, lambda value: number(value / chosen.size))
        return _Cells(f"{header or _title(name, suffix)} ({chosen.symbol})", cells, True)
    if pd.api.types.is_bool_dtype(values):
        return _Cells(header or _title(name), _each(values, lambda value: "yes" if value else "no"), False)
    if name in IDENTIFIERS and pd.api.types.is_integer_dtype(values):
        return _Cells(header or _title(name), _each(values, str), True)
    if pd.api.types.is_integer_dtype(values):
        return _Cells(header or _title(name), _each(values, lambda value: f"{value:,}"), True)
    if _numeric(values):
        return _Cells(header or _title(name), _each(values, number), True)
    return _Cells(header or _title(name), _each(values, _text), False)


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _title(name: str, suffix: str = "") -> str:
    return printable(name.removesuffix(suffix).replace("_", " ").strip(), SHORT)


def _each(values: pd.Series, shown: Callable[[Any], str]) -> list[str]:
    return [MISSING if pd.isna(value) else shown(value) for value in values]


def _percent(value: float) -> str:
    return percent(value).removesuffix(" %")


def _text(value: object) -> str:
    """Return the text for its cell, escaped: a sentence wrapped, a name cut with a longer piece of it as tooltip."""
    long = printable(value, LONG)
    if len(long) > SHORT and max(map(len, long.split())) <= LONGEST_WORD:
        return f'<div class="t">{escape(printable(value, PROSE))}</div>'
    short = elided(value, SHORT)
    return escape(short) if short == long else f'<span title="{escape(long)}">{escape(short)}</span>'


def _html(made: list[_Cells], caption: str, total: int, rows: int) -> str:
    head = "".join(f'<th scope="col"{_align(c)}>{escape(c.header)}</th>' for c in made)
    body = "".join(
        "<tr>" + "".join(f"<td{_align(c)}>{cell}</td>" for c, cell in zip(made, cells, strict=True)) + "</tr>"
        for cells in zip(*(c.cells for c in made), strict=True)
    )
    label = escape(printable(caption or "Table", LONG))
    named = f"<caption>{label}</caption>" if caption else ""
    note = f"<p>{total - rows:,} more rows are not shown.</p>" if total > rows else ""
    return (
        f'<div class="perfkit-table" role="region" aria-label="{label}" tabindex="0"><style>{STYLE}</style>'
        f"<table>{named}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note or _empty(total)}</div>"
    )


def _empty(total: int) -> str:
    return "" if total else "<p>No rows.</p>"


def _align(column: _Cells) -> str:
    return ' class="n"' if column.numeric else ""
