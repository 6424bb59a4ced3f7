"""Tables for people: a frame as HTML that stands alone, with everything in it escaped.

A column's unit is the suffix of its name: the header shows the unit chosen for the largest value, the cells three
significant digits in it; fractions become percent; a missing value is n/a. A searchable table holds all rows and a link
with the CSV, for where no script runs; the script of DataTables, which needs no network, makes it searchable.
"""

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from gzip import compress
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit.charts.checks import need
from perfkit.format import (
    BYTES,
    CODE,
    FLOPS,
    MISSING,
    TIME,
    Shown,
    Unit,
    coded,
    elided,
    fitted,
    number,
    percent,
    printable,
    unit,
    visible,
)

SHORT, LONG = 70, 400  # characters of a name in its cell, and in the tooltip
NARROW = 24  # characters of a text that needs no second line
SENTENCE, PROSE = 44, 300  # characters of a sentence on one line, and on several
LONGEST_WORD = 40  # of a sentence; names of kernels have longer ones
HERTZ = (Unit("Hz", 1), Unit("kHz", 1e3), Unit("MHz", 1e6), Unit("GHz", 1e9))
# Longer suffixes first: _bytes_per_s ends in _per_s.
LADDERS: dict[str, tuple[Unit, ...]] = {
    "_bytes_per_s": tuple(Unit(f"{step.symbol}/s", step.size) for step in BYTES),
    "_flops_per_s": tuple(Unit(f"{step.symbol}/s", step.size) for step in FLOPS),
    "_per_s": (Unit("1/s", 1),),
    "_ns": TIME,
    "_bytes": BYTES,
    "_flops": FLOPS,
    "_hz": HERTZ,
    "_w": (Unit("W", 1),),
    "_c": (Unit("°C", 1),),
}
# Numbers that name something are shown as they are, without separators.
IDENTIFIERS = frozenset(
    ("rank", "gpu", "peer_gpu", "process", "thread", "stream", "correlation", "step")
)
IDENTIFIERS |= {"launch", "node", "parent", "line"}
MOMENTS = frozenset({"start_ns", "time_ns"})  # of which the difference matters
MOST_DIGITS = 6  # of a moment, behind the point
# Columns that are nothing but a unit.
BARE = {
    "ns": "duration_ns",
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


def _styles() -> list[str]:
    """Return the parts of `tables.css`, which blank lines separate: for all tables, and for those with a search."""
    parts = Path(__file__).with_name("tables.css").read_text(encoding="utf-8").split("\n\n")
    return [
        "".join(line for line in part.splitlines() if not line.startswith("/*")) for part in parts
    ]


STYLE, LOOKS = _styles()
PAGE = 10  # rows seen at once
MOST = 1_000  # rows: some 0.2 MB of HTML
CLASS = "perfkit-searchable"


@dataclass(frozen=True, repr=False)
class Searchable(Shown):
    """A table for which the page holds `library` and `script`; without them it is seen whole. `data` is its frame."""

    data: pd.DataFrame | None = field(default=None, compare=False)


def show(
    frame: pd.DataFrame,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    caption: str = "",
    rows: int = 50,
) -> Shown:
    """Format a frame for the notebook and the report.

    `frame`: any frame whose columns follow the naming of `perfkit.tables`. A `Shown` in it is put into its cell as it
    is, and all else is escaped. `columns`: those to show in this order, or a mapping from column to header; all when
    omitted. `caption`: what the table shows; also its name for screen readers. `rows`: most rows to show, at least 1; a
    line under the table says how many more there are.

    >>> show(pd.DataFrame({"name": ["<b>"], "total_ns": [2_500_000]}), caption="Kernels")
    Kernels: 1 row of name, total (ms)
    """
    _, made, text = _formatted(frame, columns, caption, rows, len(frame))
    return Shown(_html(made, caption, len(frame), rows), text, is_empty=frame.empty)


def card(frame: pd.DataFrame, *, caption: str = "") -> Shown:
    """Format the first row of a frame as a table of its own: what, and its value with unit.

    >>> card(pd.DataFrame({"name": ["gemm"], "total_ns": [2_500_000]}), caption="Kernel")
    Kernel: 2 rows of what, value
    """
    made = [column(frame[name].head(1), str(name), None) for name in frame]
    what = Cells("what", [escape(one.header) for one in made if one.cells], False)
    value = Cells("value", [cell for one in made for cell in one.cells], False)
    text = f"{caption or 'Table'}: {len(value.cells)} rows of what, value"
    return Shown(_html([what, value], caption, len(value.cells), len(value.cells)), text)


def _html(made: list[Cells], caption: str, total: int, rows: int) -> str:
    label = escape(printable(caption or "Table", LONG))
    if not total:
        return f"<p>{label}: no rows.</p>"
    head = "".join(f'<th scope="col"{align(c)}>{escape(c.header)}</th>' for c in made)
    names = [f'{align(c)} data-head="{escape(c.header)}"' for c in made]
    columns = [
        [f"<td{name}>{cell}</td>" for cell in c.cells] for c, name in zip(made, names, strict=True)
    ]
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns, strict=True))
    named = f"<caption>{label}</caption>" if caption else ""
    lines = _lines(made)
    note = f"<p>{total - rows:,} more rows are not shown.</p>" if total > rows else ""
    return (
        f'<div class="perfkit-table{lines}" role="region" aria-label="{label}" tabindex="0"><style>{STYLE}</style>'
        f"<table>{named}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}</div>"
    )


def _lines(made: Sequence[Cells]) -> str:
    """Return the class of a table of numbers; empty for one of sentences.

    Its names have at most two lines, its sentences five.
    """
    return " two" if any(one.numeric for one in made) else ""


def column(values: pd.Series, name: str, header: str | None) -> Cells:
    """Return the cells of a column under its header, which is made of its name unless one is given."""
    if name.endswith("_frac") and _numeric(values):
        shares = _each(values, lambda value: percent(value).removesuffix(" %"))
        return Cells(f"{header or _title(name, '_frac')} (%)", shares, True)
    name = BARE.get(name, name)
    suffix = next((s for s in LADDERS if name.endswith(s)), None)
    if suffix and _numeric(values):
        largest = float(values.abs().max()) if values.notna().any() else 0.0
        chosen = unit(largest, LADDERS[suffix])
        ladder = LADDERS[suffix]
        if name in MOMENTS:
            shown = _moment(values, chosen)
            cells = _each(values, lambda value: shown(value / chosen.size))
        else:
            cells = _each(values, lambda value: fitted(value, chosen, ladder))
        return Cells(f"{header or _title(name, suffix)} ({chosen.symbol})", cells, True)
    header = header or _title(name)
    if pd.api.types.is_bool_dtype(values):
        return Cells(header, _each(values, lambda value: "yes" if value else "no"), False)
    if pd.api.types.is_integer_dtype(values):
        named = name in IDENTIFIERS  # -1 where none was recorded
        return Cells(
            header,
            _each(values, lambda v: f"{v:,}" if not named else str(v) if v >= 0 else MISSING),
            True,
        )
    if _numeric(values):
        return Cells(header, _each(values, number), True)
    is_made = name in CODED and values.dropna().astype(str).str.fullmatch(r"[\w ]+").all()
    return Cells(
        header,
        _each(values, lambda value: _text(_title(value, "_frac") if is_made else value)),
        False,
    )


def _moment(values: pd.Series, chosen: Unit) -> Callable[[float], str]:
    """Return how to write moments, with enough digits that the moments of a column differ."""
    moments = np.unique(values.dropna())
    if len(moments) < 2:
        return number
    apart = float(np.diff(moments).min()) / chosen.size
    least = 2 - math.floor(math.log10(max(float(np.abs(moments).max()) / chosen.size, 1)))
    digits = min(max(math.ceil(-math.log10(apart)), least, 0), MOST_DIGITS)
    return lambda value: f"{value:,.{digits}f}"


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


# Columns whose values are names that perfkit has made.
CODED = {"bound", "cause", "check", "detail", "main_stall", "matched_by", "phase", "reason"}
# Words of column names that a reader would have to guess.
_WORDS = {word: word.upper() for word in ("dram", "sm", "mfu", "mpi", "gpu", "cpu", "l1", "l2")}
_WORDS |= {
    "dur": "duration",
    "src": "source",
    "dst": "destination",
    "api": "API call",
    "p5": "5th percentile",
}
_WORDS |= {
    "p50": "median",
    "p95": "95th percentile",
    "dtype": "number format",
    "gpus": "GPUs",
    "python": "Python",
}
_WORDS |= {
    "entry": "entry point",
    "how": "found by",
    "means": "what the warps wait for",
    "helps": "usual remedy",
}
_WORDS |= {"instead": "use instead", "detail": "cause in detail", "times_mean": "times the mean"}
_WORDS |= {"start_up": "start-up", "per_step_count": "count per step"}


def _title(name: str, suffix: str = "") -> str:
    name = name.removesuffix(suffix)
    words = _WORDS.get(name) or " ".join(_WORDS.get(word, word) for word in name.split("_"))
    return printable(words.strip(), SHORT)


def _each(values: pd.Series, shown: Callable[[Any], str]) -> list[str]:
    return [
        MISSING if lacks else shown(value)
        for value, lacks in zip(values, values.isna(), strict=True)
    ]


def _text(value: object) -> str:
    """Return the text for its cell, escaped: a sentence or name on several lines, the whole of it as tooltip."""
    return value.html if isinstance(value, Shown) else _written(str(value))


@lru_cache(4096)
def _written(value: str) -> str:
    long = printable(value, LONG)
    is_prose = long.count(" ") >= 6 and not re.search(r"\w[<(]|::", long)
    is_long = len(long) > (SENTENCE if long.endswith(".") or is_prose else SHORT)
    # A sentence rather than a name, whose words are longer.
    if CODE.search(long) or (is_long and max(map(len, long.split())) <= LONGEST_WORD):
        whole = f' title="{escape(long)}"' if len(long) > SHORT else ""
        return f'<div class="t"{whole}>{coded(printable(value, PROSE))}</div>'
    return _name(long, elided(value, SHORT))


def _name(long: str, short: str) -> str:
    """Return a name as HTML: a reader sees the short form, and hovers over and copies the long one."""
    if short != long:
        seen = f'title="{escape(long)}" data-short="{escape(short)}"'
        return f'<div class="w" {seen}><span>{escape(long)}</span></div>'
    return escape(long) if len(long) <= NARROW else f'<div class="w">{escape(long)}</div>'


def align(cells: Cells) -> str:
    """Return the class of a cell as an attribute."""
    return ' class="n"' if cells.numeric else ""


def searchable(
    frame: pd.DataFrame,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    caption: str = "",
    rows: int = MOST,
    total: int | None = None,
) -> Searchable:
    """Format a frame as a table that a reader searches, sorts and downloads.

    The search finds the whole of a name of which the cell shows a part. The CSV holds the same rows with the frame's
    column names and all digits; a text that a spreadsheet would take for a formula is preceded by an apostrophe.
    `frame`, `columns`, `caption`, `rows` as in `show`; `total`: how many rows there are, if `frame` holds only the
    first.
    """
    every = len(frame) if total is None else total
    seen, made, text = _formatted(frame, columns, caption, rows, every)
    html = _searchable_html(seen, made, caption, every)
    return Searchable(html, text, is_empty=not every, data=frame)


def _formatted(
    frame: pd.DataFrame,
    columns: Sequence[str] | Mapping[str, str] | None,
    caption: str,
    rows: int,
    total: int,
) -> tuple[pd.DataFrame, list[Cells], str]:
    """Return the rows and columns that are shown, their cells, and the table in words."""
    if rows < 1:
        raise ValueError(f"rows: {rows} is not at least 1")
    names = list(frame.columns) if columns is None else list(columns)
    need(frame, *names)
    given = columns if isinstance(columns, Mapping) else {}
    seen = frame[names].head(rows)
    made = [
        column(seen.iloc[:, place], str(name), given.get(name)) for place, name in enumerate(names)
    ]
    # A column that is n/a or empty in every row says nothing, and takes the room of others.
    known = [place for place, one in enumerate(made) if {*one.cells} - {MISSING, ""}]
    if known:
        made, seen = [made[place] for place in known], seen.iloc[:, known]
        names = [names[place] for place in known]
    if "metric" in names and "unit" not in names:
        made = _of_metrics(seen, made)
    count = f"{total:,} row" if total == 1 else f"{total:,} rows"
    return seen, made, f"{caption or 'Table'}: {count} of {', '.join(one.header for one in made)}"


def _of_metrics(seen: pd.DataFrame, made: Sequence[Cells]) -> list[Cells]:
    """Return cells in which each row's numbers have the unit that its metric's name ends in; a column has none."""
    kinds = enumerate(seen.dtypes.items())
    places = [
        at
        for at, (name, kind) in kinds
        if kind == "float64" and "_" not in str(name) and name != "ratio"
    ]
    for row, metric in enumerate(seen["metric"].astype(str)):
        if metric.endswith(("_frac", *LADDERS)):
            own = column(seen.iloc[row, places].astype(float), metric, None)
            for at, cell in zip(places, own.cells, strict=True):
                made[at].cells[row] = (
                    cell if cell == MISSING else f"{cell} {own.header.rpartition('(')[2][:-1]}"
                )
    return list(made)


@cache
def library() -> str:
    """Return the script of DataTables, 0.6 MB, that sets ``window.perfkitTables``."""
    return Path(__file__).with_name("datatables.js").read_text("utf-8")


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


def _searchable_html(seen: pd.DataFrame, made: Sequence[Cells], caption: str, total: int) -> str:
    label = escape(printable(caption or "Table", LONG))
    if not total:
        return f"<p>{label}: no rows.</p>"
    names = [
        escape(str(name)) for name in seen
    ]  # by which a click on a row finds the time that it leads to
    heads = (
        f'<th scope="col"{align(c)} data-column="{n}">{escape(c.header)}'
        for c, n in zip(made, names, strict=True)
    )
    head = "".join(f"{each}</th>" for each in heads)
    columns = [_cells(seen.iloc[:, place], cells) for place, cells in enumerate(made)]
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns, strict=True))
    named = f'<div class="perfkit-caption">{label}</div>' if caption else ""
    left_out = f"{total - len(seen):,} more rows are neither in the table nor in the CSV"
    # the dot goes where the link goes: a printed page has neither
    more = f'<span class="perfkit-dot"> · </span>{left_out}' if total > len(seen) else ""
    return (
        f'<div class="perfkit-table{_lines(made)} {CLASS}" role="region" aria-label="{label}" tabindex="0">'
        f'<style>{STYLE}{LOOKS}</style>{named}<table data-rows="{PAGE}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table><p>{_link(seen, caption)}{more}</p></div>"
    )


def _cells(values: pd.Series, made: Cells) -> list[str]:
    """Return the cells with what they are sorted by, or found by."""
    if made.numeric:
        keys = [
            "" if lacks else str(value) for value, lacks in zip(values, values.isna(), strict=True)
        ]
        return [
            f'<td class="n" data-order="{key}">{cell}</td>'
            for key, cell in zip(keys, made.cells, strict=True)
        ]
    if pd.api.types.is_bool_dtype(values):
        return [f"<td>{cell}</td>" for cell in made.cells]
    # DataTables reads what it searches as HTML once more, hence the second escape.
    texts = _each(values, lambda value: _found(str(value)))
    return [
        f'<td data-search="{key}">{cell}</td>' for key, cell in zip(texts, made.cells, strict=True)
    ]


@lru_cache(4096)
def _found(value: str) -> str:
    return escape(escape(printable(value, LONG)))


def _link(seen: pd.DataFrame, caption: str) -> str:
    name = "_".join(re.findall(r"[a-z0-9]+", caption.lower())[:6]) or "table"
    numbers = (pd.api.types.is_numeric_dtype, pd.api.types.is_bool_dtype)
    texts = {
        str(c): seen[c].astype(object).map(_harmless)
        for c in seen
        if not any(test(seen[c]) for test in numbers)
    }
    packed = b64encode(seen.assign(**texts).to_csv(index=False).encode("utf-8", "replace")).decode()
    return f'<a download="{name}.csv" href="data:text/csv;charset=utf-8;base64,{packed}">Download as CSV</a>'


def _harmless(value: object) -> object:
    """Return a text that no spreadsheet takes for a formula, and no terminal for a command."""
    if not isinstance(value, str):
        return value
    text = visible(value, keep="\t\r\n")
    return f"'{text}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else text
