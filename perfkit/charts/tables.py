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

from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from perfkit.charts.cells import LONG, Cells, align, column
from perfkit.charts.data import need
from perfkit.format import Shown, printable

STYLE = (
    ".perfkit-table{overflow-x:auto;max-width:100%}"
    ".perfkit-table table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:0}"
    ".perfkit-table caption{text-align:left;caption-side:top;font-weight:600;padding:.3em 0;white-space:nowrap}"
    # the class stands twice to outweigh JupyterLab's own rules for cells
    ".perfkit-table.perfkit-table th,.perfkit-table.perfkit-table td{"
    "padding:.25em .8em .25em 0;text-align:left;white-space:nowrap;"
    "border-bottom:1px solid rgba(128,128,128,.35);background:none}"
    ".perfkit-table.perfkit-table :is(th,td):last-child{padding-right:0}"
    ".perfkit-table.perfkit-table .n{text-align:right}"
    ".perfkit-table.perfkit-table .t{white-space:normal;overflow-wrap:anywhere;min-width:14em;max-width:36em}"
    ".perfkit-table p{margin:.4em 0;opacity:.75}"
)


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
        Any frame whose columns follow the naming of `perfkit.tables`; may be empty. A `Shown` in it is put into its
        cell as it is, and all else is escaped.
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
    made = [column(frame[name].head(rows), str(name), given.get(name)) for name in names]
    count = f"{len(frame):,} row" if len(frame) == 1 else f"{len(frame):,} rows"
    text = f"{caption or 'Table'}: {count} of {', '.join(one.header for one in made)}"
    return Shown(_html(made, caption, len(frame), rows), text)


def card(frame: pd.DataFrame, *, caption: str = "") -> Shown:
    """Format the first row of a frame as a table of its own: what, and its value with unit.

    Examples
    --------
    >>> card(pd.DataFrame({"name": ["gemm"], "total_ns": [2_500_000]}), caption="Kernel")
    Kernel: 2 rows of what, value
    """
    made = [column(frame[name].head(1), str(name), None) for name in frame]
    what = Cells("what", [escape(one.header) for one in made if one.cells], False)
    value = Cells("value", [cell for one in made for cell in one.cells], False)
    text = f"{caption or 'Table'}: {len(value.cells)} rows of what, value"
    return Shown(_html([what, value], caption, len(value.cells), len(value.cells)), text)


def _html(made: list[Cells], caption: str, total: int, rows: int) -> str:
    head = "".join(f'<th scope="col"{align(c)}>{escape(c.header)}</th>' for c in made)
    body = "".join(
        "<tr>" + "".join(f"<td{align(c)}>{cell}</td>" for c, cell in zip(made, cells, strict=True)) + "</tr>"
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
