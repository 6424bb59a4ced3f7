"""Long tables for people: searched, sorted by their exact values, turned page by page, downloaded as CSV.

Conventions
-----------
Cells and headers read as in `perfkit.charts.tables`, and everything is escaped. The HTML holds the whole table and a
link with the CSV, so that it can be read where no script runs; scripts, which are not in it, make it searchable. They
are those of itables (DataTables) and need no network.

Functions
---------
show      format a frame
library   the script that a page needs once, before the others
script    the script that makes the tables of a page searchable
loader    both scripts as an element of a notebook's output
again     the element for what is shown after `loader`
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from gzip import compress
from html import escape
from pathlib import Path

import pandas as pd

from perfkit.charts.cells import LONG, Cells, align, column
from perfkit.charts.data import need
from perfkit.charts.tables import STYLE
from perfkit.format import MISSING, Shown, printable

PAGE = 10  # rows seen at once
MOST = 1_000  # rows: some 0.2 MB of HTML
CLASS = "perfkit-searchable"
LOOKS = (
    ".perfkit-searchable:not([data-ready]){max-height:27em;overflow-y:auto}"
    ".perfkit-searchable .perfkit-caption{font-weight:600;padding:.3em 0}"
    ".perfkit-searchable .dt-layout-row{display:flex;flex-wrap:wrap;align-items:center;gap:.3em 1.5em;margin:.4em 0}"
    ".perfkit-searchable .dt-layout-table{display:block}"
    ".perfkit-searchable .dt-layout-row:empty,.perfkit-searchable colgroup{display:none}"
    ".perfkit-searchable nav{background:none;border:0;padding:0}"  # the report has a nav of its own, with a frame
    ".perfkit-searchable input,.perfkit-searchable button{font:inherit;color:inherit;background:none;"
    "border:1px solid rgba(128,128,128,.5);border-radius:4px;padding:.15em .6em}"
    ".perfkit-searchable input{width:18em}.perfkit-searchable button{cursor:pointer;margin-left:.2em}"
    ".perfkit-searchable button.current{font-weight:600;border-color:currentColor}"
    ".perfkit-searchable button.disabled{opacity:.4;cursor:default}"
    ".perfkit-searchable .dt-column-header{display:inline-flex;gap:.3em}"
    ".perfkit-searchable th .dt-column-title{cursor:pointer}"
    ".perfkit-searchable .dt-ordering-asc .dt-column-order::after{content:'▲'}"
    ".perfkit-searchable .dt-ordering-desc .dt-column-order::after{content:'▼'}"
    "@media print{.perfkit-searchable .dt-search,.perfkit-searchable .dt-paging,.perfkit-searchable a,"
    ".perfkit-searchable .perfkit-dot{display:none}}"
)


@dataclass(frozen=True, repr=False)
class Searchable(Shown):
    """A table for which the page holds `library` and `script`; without them it is seen whole."""


def show(
    frame: pd.DataFrame,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    caption: str = "",
    rows: int = MOST,
    total: int | None = None,
) -> Searchable:
    """Format a frame as a table that a reader searches, sorts and downloads.

    The search finds the whole of a name of which the cell shows a part. The CSV holds the same rows with the frame's
    column names, which end in their units, and all digits; a text in it that a spreadsheet would take for a formula
    is preceded by an apostrophe.

    Parameters
    ----------
    frame, columns, caption
        As in `perfkit.charts.tables.show`.
    rows
        Most rows, at least 1; a line under the table says how many more there are.
    total
        How many rows there are, if the frame holds only the first of them.

    Returns
    -------
    Searchable
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
    seen = frame[names].head(rows)
    made = [column(seen[name], str(name), given.get(name)) for name in names]
    every = len(frame) if total is None else total
    count = f"{every:,} row" if every == 1 else f"{every:,} rows"
    text = f"{caption or 'Table'}: {count} of {', '.join(column.header for column in made)}"
    return Searchable(_html(seen, made, caption, every), text)


@cache
def library() -> str:
    """Return the script of itables, 0.6 MB, that sets ``window.perfkitTables``; it leaves nothing else behind."""
    from itables.utils import read_package_file

    source = str(read_package_file("html/dt_bundle.js"))
    exported = re.search(r"\bexport\s*\{([^}]*)\};?", source)
    name = re.search(r"([\w$]+) as ITable\b", exported[1]) if exported else None
    if exported is None or name is None:
        raise RuntimeError("itables: its bundle exports no ITable. Install a version from 2.9 on, below 3.")
    body = f"{source[: exported.start()]};window.perfkitTables={name[1]};"
    # Inside a script element neither may stand as it is; in JavaScript's strings and patterns both spellings are one.
    safe = re.sub("</(script)", r"<\\/\1", body, flags=re.IGNORECASE).replace("<!--", r"<\!--")
    return "(()=>{" + safe + "})();"


def script() -> str:
    """Return the script that makes the tables of a page searchable, to be run after `library`."""
    return Path(__file__).with_suffix(".js").read_text("utf-8")


@cache
def loader() -> str:
    """Return an element, 0.2 MB, for a notebook's output that loads the library unless the page has it."""
    packed = b64encode(compress(library().encode(), mtime=0)).decode()
    return (
        "<script>window.perfkitTables??=(async()=>{"
        f'const packed=Uint8Array.from(atob("{packed}"),c=>c.charCodeAt(0));'
        'const plain=new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));'
        'const type={type:"text/javascript"};'
        "const url=URL.createObjectURL(new Blob([await new Response(plain).arrayBuffer()],type));"
        "await import(url);URL.revokeObjectURL(url);return window.perfkitTables;"
        f"}})();{script()}</script>"
    )


def again() -> str:
    """Return the element after a table that makes it searchable as soon as the library is there."""
    return "<script>window.perfkitSearchable?.();</script>"


def _html(seen: pd.DataFrame, made: Sequence[Cells], caption: str, total: int) -> str:
    head = "".join(f'<th scope="col"{align(c)}>{escape(c.header)}</th>' for c in made)
    columns = [_cells(seen.iloc[:, place], cells) for place, cells in enumerate(made)]
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns, strict=True))
    label = escape(printable(caption or "Table", LONG))
    named = f'<div class="perfkit-caption">{label}</div>' if caption else ""
    left_out = f"{total - len(seen):,} more rows are neither in the table nor in the CSV"
    # the dot goes where the link goes: a printed page has neither
    more = f'<span class="perfkit-dot"> · </span>{left_out}' if total > len(seen) else ""
    return (
        f'<div class="perfkit-table {CLASS}" role="region" aria-label="{label}" tabindex="0">'
        f'<style>{STYLE}{LOOKS}</style>{named}<table data-rows="{PAGE}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table><p>{_link(seen, caption)}{more}</p></div>"
    )


def _cells(values: pd.Series, made: Cells) -> list[str]:
    """Return the cells with what they are sorted by, or found by."""
    if made.numeric:
        keys = ["" if pd.isna(value) else str(value) for value in values]
        return [f'<td class="n" data-order="{key}">{cell}</td>' for key, cell in zip(keys, made.cells, strict=True)]
    if pd.api.types.is_bool_dtype(values):
        return [f"<td>{cell}</td>" for cell in made.cells]
    # DataTables reads what it searches as HTML once more, hence the second escape.
    found = [escape(escape(MISSING if pd.isna(value) else printable(value, LONG))) for value in values]
    return [f'<td data-search="{key}">{cell}</td>' for key, cell in zip(found, made.cells, strict=True)]


def _link(seen: pd.DataFrame, caption: str) -> str:
    name = "_".join(re.findall(r"[a-z0-9]+", caption.lower())[:6]) or "table"
    texts = {str(c): seen[c].astype(object).map(_harmless) for c in seen if _is_text(seen[c])}
    text = seen.assign(**texts).to_csv(index=False)
    packed = b64encode(text.encode("utf-8", "replace")).decode()
    return f'<a download="{name}.csv" href="data:text/csv;charset=utf-8;base64,{packed}">Download as CSV</a>'


def _is_text(values: pd.Series) -> bool:
    return not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values))


def _harmless(value: object) -> object:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
