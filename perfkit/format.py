"""Numbers and names as people read them.

Three significant digits; a missing value is n/a. Units are decimal (1 GB = 1e9 B). A ladder is the units of one
quantity from small to large; a value is shown in the largest unit it fills.
"""

import codecs
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

MISSING = "n/a"
EMPTY = "perfkit-empty"  # metadata of an output that shows a table without rows, or a chart without marks
LEAST_SHOWN = 0.001  # of a unit: a smaller value has more zeros than digits
CODE = re.compile(
    "`((?:[^`']|'[^`']*')+)`"
)  # a command in a sentence; compilers write `anonymous namespace'


class Unit(NamedTuple):
    """A unit and how many of the smallest unit of its ladder it holds."""

    symbol: str
    size: float


TIME = (Unit("ns", 1), Unit("µs", 1e3), Unit("ms", 1e6), Unit("s", 1e9))
BYTES = (Unit("B", 1), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12))
FLOPS = (
    Unit("FLOP", 1),
    Unit("kFLOP", 1e3),
    Unit("MFLOP", 1e6),
    Unit("GFLOP", 1e9),
    Unit("TFLOP", 1e12),
    Unit("PFLOP", 1e15),
)


def unit(largest: float, ladder: tuple[Unit, ...]) -> Unit:
    """Return the largest unit of `ladder` that `largest`, given in the first unit and rounded, fills.

    >>> unit(2_500_000, TIME).symbol
    'ms'
    """
    rounded = _rounded(abs(largest))
    return next((step for step in reversed(ladder) if rounded >= step.size), ladder[0])


def number(value: float) -> str:
    """Return `value` with three significant digits and separated thousands; n/a if missing.

    >>> number(0.012345), number(1234.5), number(float("nan"))
    ('0.0123', '1,234', 'n/a')
    """
    if _is_missing(value):
        return MISSING
    rounded = _rounded(abs(value))
    digits = 2 - math.floor(math.log10(rounded)) if 0 < rounded < math.inf else 0
    return f"{value:,.{max(digits, 0)}f}"


def _is_missing(value: object) -> bool:
    import pandas as pd  # which the command needs for no message

    return bool(pd.isna(value))  # type: ignore[call-overload]


def duration(ns: float) -> str:
    """Return a time given in ns in the unit people would use; minutes and hours from 2 min on.

    >>> duration(999), duration(1_234_567), duration(150_000_000_000)
    ('999 ns', '1.23 ms', '2 min 30 s')
    """
    if _is_missing(ns) or abs(ns) < 120e9:
        return _in_ladder(ns, TIME)
    minutes, seconds = divmod(round(abs(ns) / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
    return f"-{text}" if ns < 0 else text


def size(count: float) -> str:
    """Return a number of bytes in decimal units.

    >>> size(512), size(1_500_000)
    ('512 B', '1.50 MB')
    """
    return _in_ladder(count, BYTES)


def operations(count: float) -> str:
    """Return a number of floating-point operations.

    >>> operations(512), operations(5_760_281_775_040)
    ('512 FLOP', '5.76 TFLOP')
    """
    return _in_ladder(count, FLOPS)


def fitted(value: float, chosen: Unit, ladder: tuple[Unit, ...]) -> str:
    """Return a value in the unit of its column, without the unit; with one of its own where it is too small for that.

    >>> fitted(20e9, BYTES[3], BYTES), fitted(1080, BYTES[3], BYTES)
    ('20.0', '1.08 kB')
    """
    is_tiny = 0 < _rounded(abs(value)) < LEAST_SHOWN * chosen.size
    own = unit(value, ladder)
    if is_tiny and own != chosen:
        return f"{number(value / own.size)} {own.symbol}"
    return number(value / chosen.size)


def percent(frac: float) -> str:
    """Return a fraction in percent; never rounded to 0 % or 100 % unless it is exactly that.

    >>> percent(0.1234), percent(0.00001), percent(0.99999), percent(1)
    ('12.3 %', '< 0.01 %', '> 99.9 %', '100 %')
    """
    if _is_missing(frac):
        return MISSING
    if frac in (0, 1):
        return f"{frac:.0%}".replace("%", " %")
    if 0 < frac < 0.0001:
        return "< 0.01 %"
    if 0.9995 <= frac < 1:
        return "> 99.9 %"
    return f"{100 * frac:,.{1 if abs(frac) >= 0.01 else 2}f} %"


def utf8(data: bytes) -> bytes:
    """Return text as UTF-8 without a byte order mark; PowerShell writes UTF-16."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data[: len(data) // 2 * 2].decode("utf-16", errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def visible(text: str, keep: str = "") -> str:
    """Return text with � for each character that a terminal would obey, but for those to keep.

    >>> visible("a\x1b[2Jb\u202e")
    'a�[2Jb�'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "�" for c in text)


def printable(text: object, limit: int) -> str:
    """Return foreign text on one line of at most `limit` characters; what rearranges or breaks text becomes �."""
    head = " ".join(str(text)[: 4 * limit].split())
    shown = visible(head)
    return (
        shown if len(shown) <= limit and len(str(text)) <= 4 * limit else f"{shown[: limit - 1]}…"
    )


def elided(text: object, limit: int) -> str:
    """Return `printable` text of at most `limit` characters that keeps both ends: kernels often differ in the last.

    >>> elided("par_kernel<advec_mom#1(int, int)>", 21)
    'par_kernel<ad…, int)>'
    >>> elided("par_kernel<adv…mom#1(int, int)>", 24)  # elided before
    'par_kernel<adv…t, int)>'
    """
    whole = str(text)
    if len(whole) <= limit:
        return printable(whole, limit)
    tail = limit // 3
    head = printable(whole[: limit - tail - 1], limit).rstrip("…")
    end = printable(whole[-tail:], limit).lstrip("…")
    return f"{head}…{end}"


def spoken_ends(low: float, high: float) -> str:
    """Return an interval of ratios as text.

    >>> spoken_ends(0.5, float("inf"))
    '0.500 to ∞'
    """
    return f"{number(low)} to {'∞' if math.isinf(high) else number(high)}"


def _rounded(value: float) -> float:
    """`value` as it will be shown, so that 999,960 ns becomes 1.00 ms and not 1,000 µs."""
    return float(f"{value:.2e}")


def _in_ladder(value: float, ladder: tuple[Unit, ...]) -> str:
    if _is_missing(value):
        return MISSING
    chosen = unit(value, ladder)
    shown = f"{value:,.0f}" if chosen is ladder[0] else number(value / chosen.size)
    return f"{shown} {chosen.symbol}"


@dataclass(frozen=True)
class Shown:
    """HTML that a notebook and the report show, and the same in plain text; whether it is a table without rows."""

    html: str
    text: str
    is_empty: bool = False

    def _repr_html_(self) -> str:
        return verbatim(self.html)

    def __repr__(self) -> str:
        return self.text


def verbatim(html: str) -> str:
    """Return HTML in which JupyterLab sets no mathematics: a kernel's name or a command may hold two `$`."""
    return f'<div class="mathjax_ignore">{html}</div>'


def coded(text: str) -> str:
    """Return text as HTML, with commands between backquotes as code.

    >>> coded("run `ncu -k 'regex:a'` on f(`anonymous namespace'::g)")
    'run <code>ncu -k &#x27;regex:a&#x27;</code> on f(`anonymous namespace&#x27;::g)'
    """
    parts = map(escape, CODE.split(text))
    return "".join(
        f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)
    )


def several(texts: Iterable[str], most: int = 16) -> str:
    """Return texts side by side, of many the first and how many more there are.

    >>> several(map(str, range(4)), most=2)
    '0, 1 and 2 more'
    """
    every = list(texts)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
