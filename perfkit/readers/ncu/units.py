"""Which base unit and factor does a printed unit stand for, and which number a printed text?

Conventions
-----------
Base units are those of `ncu --print-units base`: ns for durations, byte, hz, % and plain counts; a rate is
per second ("byte/s", "sector/s"), or per cycle. Prefixes are decimal: 1 Kbyte is 1000 bytes.
What is no number ("n/a", "no data", "CachePreferNone", an empty cell) is NaN.

Functions
---------
base        base unit and factor of a printed unit
notation    whether a page writes 1.5 or 1,5
numbers     values of printed texts
misprints   where a number should stand and none does
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_PER_SECOND |= {f"{name[:-1]}second": factor for name, factor in _PER_SECOND.items()}  # up to 2024
_AMOUNTS: dict[str, tuple[str, float]] = {
    **{prefix + name: ("byte", factor) for prefix, factor in _PREFIXES.items() for name in ("byte", "B")},
    **{prefix + name: ("hz", factor) for prefix, factor in _PREFIXES.items() for name in ("hz", "Hz")},
    **{name: ("ns", 1e9 / factor) for name, factor in _PER_SECOND.items()},
}
_SPACES = " \u00a0\u202f"  # between thousands, in any notation
_NO_SPACES = dict.fromkeys(map(ord, _SPACES))
_EXPONENT = r"(?:[eE][-+]?\d+)?"
_NOTHING = {"", "n/a", "no data", "nan", "-nan", "nan(ind)", "-nan(ind)", "inf", "-inf", "infinity", "-infinity"}
_MISPRINT = re.compile(r"[-+]?[.,]?[0-9]")
# Metrics that are whole numbers: a separator in them stands between thousands.
_WHOLE = re.compile(
    r"device__attribute_\w+|launch__(?:grid|block)_size|launch__thread_count|(?:Grid|Block) Size|Threads"
)
_THREE_DIGITS = re.compile(r"[-+]?[1-9][0-9]{0,2}[.,][0-9]{3}")


def _number(point: str, comma: str) -> re.Pattern[str]:
    """Return what a number looks like that is written with this point, and this comma between thousands."""
    grouped = rf"\d{{1,3}}(?:[{comma}{_SPACES}]\d{{3}})+"
    return re.compile(rf"[-+]?(?=[{point}]?\d)(?:\d+|{grouped})?(?:[{point}]\d*)?{_EXPONENT}", re.ASCII)


def _decisive(point: str, comma: str) -> re.Pattern[str]:
    """Return what a number looks like that cannot be written in the other notation.

    Thousands are groups of three digits after one to three, the first of which is no zero.
    """
    forms = (
        rf"\d{{1,3}}(?:[{comma}{_SPACES}]\d{{3}})+[{point}]\d*",
        rf"\d{{1,3}}(?:[{comma}]\d{{3}}){{2,}}",
        rf"\d*[{point}](?:\d{{0,2}}|\d{{4,}})",
        rf"(?:0|\d{{4,}})[{point}]\d{{3}}",
    )
    either = rf"(?:{'|'.join(forms)}){_EXPONENT}|\d*[{point}]\d*[eE][-+]?\d+"
    return re.compile(rf"[-+]?(?=[{point}]?\d)(?:{either})", re.ASCII)


_NUMBERS = {False: _number(".", ","), True: _number(",", ".")}
_DECISIVE = {False: _decisive(".", ","), True: _decisive(",", ".")}


@dataclass(frozen=True)
class Notation:
    """How a page writes its numbers, by the first cell of each kind, as (metric, text); None where there is none.

    ``point`` is a number that only a page with decimal points can hold, ``comma`` one that only a page with decimal
    commas can hold. ``point_or_thousands`` (1.234) and ``comma_or_thousands`` (1,234) fit both.
    """

    point: tuple[str, str] | None = None
    comma: tuple[str, str] | None = None
    point_or_thousands: tuple[str, str] | None = None
    comma_or_thousands: tuple[str, str] | None = None


@cache
def base(unit: str) -> tuple[str, float]:
    """Return the base unit of a unit as any version prints it, and how many of it one is.

    Examples
    --------
    >>> base("usecond"), base("Kbyte/block"), base("cycle/nsecond"), base("sector/us"), base("%")
    (('ns', 1000.0), ('byte/block', 1000.0), ('hz', 1000000000.0), ('sector/s', 1000000.0), ('%', 1.0))
    """
    amount, slash, per = unit.strip().partition("/")
    name, factor = _AMOUNTS.get(amount, (amount, 1.0))
    if not slash:
        return name, factor
    if per in _PER_SECOND:
        return ("hz" if name == "cycle" else f"{name}/s"), factor * _PER_SECOND[per]
    # ncu scales the number and writes the prefix where the byte stands, also below the line: 2234 %/byte
    # becomes 2.234 %/Kbyte.
    below, prefix = _AMOUNTS.get(per, (per, 1.0))
    return f"{name}/{below}", factor * prefix


def notation(columns: Iterable[tuple[str, Iterable[str]]]) -> Notation:
    """Return how the values of metrics are written.

    ncu writes fractions with two or six digits and never with three: 5.40 tells, and so do 0.123, 1,234.5, 12345.678
    and 1,234,567. 1,234 alone does not, except in a metric that is a whole number, where it is 1234.

    Examples
    --------
    >>> notation([("a", ["54,207", "5,40"])]).comma, notation([("launch__grid_size", ["54,207"])]).point
    (('a', '5,40'), ('launch__grid_size', '54,207'))
    """
    first: dict[str, tuple[str, str]] = {}
    kinds: dict[str, str] = {}
    for metric, cells in columns:
        for cell in cells:
            if "." not in cell and "," not in cell:
                continue
            kind = kinds.get(cell)
            if kind is None:
                kind = kinds[cell] = _kind(cell)
            if kind.endswith("thousands") and _WHOLE.fullmatch(metric):
                kind = "point" if "," in cell else "comma"
            first.setdefault(kind, (metric, cell))
    first.pop("", None)
    return Notation(**first)


def _kind(cell: str) -> str:
    """Return the field of `Notation` that a cell belongs to, or "" for what is no number."""
    text = _amount(cell)
    if _DECISIVE[False].fullmatch(text):
        return "point"
    if _DECISIVE[True].fullmatch(text):
        return "comma"
    if not _THREE_DIGITS.fullmatch(text):
        return ""
    return "point_or_thousands" if "." in text else "comma_or_thousands"


def _amount(cell: str) -> str:
    """Return the value of a cell without its instances in brackets."""
    return cell.partition(" (")[0]


def numbers(texts: Sequence[str], decimal_commas: bool = False) -> NDArray[np.float64]:
    """Return the values of printed texts.

    Parameters
    ----------
    texts
        Cells of a page: "54,207,744", "0.28", "791 (50; 50; ...)", "n/a", "".
    decimal_commas
        Whether commas are decimal points, as `notation` shows of the whole page.

    Returns
    -------
    numpy.ndarray
        float64; NaN where there is no number, infinite where a number is too large.

    Examples
    --------
    >>> numbers(["54,207,744", "0.28", "791 (50; 50)", "n/a", ""])
    array([5.4207744e+07, 2.8000000e-01, 7.9100000e+02,           nan,
                     nan])
    """
    try:
        values = np.array([] if decimal_commas else texts, dtype=np.float64)
    except ValueError:
        values = np.array([])
    if len(values) != len(texts):
        values = np.fromiter((_value(text, decimal_commas) for text in texts), np.float64, len(texts))
    for i in np.flatnonzero(np.isinf(values)).tolist():
        if not any(c.isdigit() for c in texts[i]):
            values[i] = np.nan  # "inf": the quotient of a counter and zero
    return values


def misprints(texts: Sequence[str], values: NDArray[np.float64], units: Sequence[str]) -> list[int]:
    """Return where a number should stand and none does, given what `numbers` made of the texts.

    A text that begins as a number should be one, and so should all that has a unit, except words for nothing.

    Examples
    --------
    >>> texts = ["8x6", "1,23,4", "n/a", "all", "x7", "7"]
    >>> misprints(texts, numbers(texts), ["", "", "%", "", "%", "%"])
    [0, 1, 4]
    """
    return [
        i
        for i in np.flatnonzero(np.isnan(values)).tolist()
        if _MISPRINT.match(texts[i]) or (units[i] and texts[i].strip().lower() not in _NOTHING)
    ]


def _value(text: str, decimal_commas: bool) -> float:
    plain = _amount(text)
    if not _NUMBERS[decimal_commas].fullmatch(plain):
        return float("nan")
    plain = plain.replace(".", "").replace(",", ".") if decimal_commas else plain.replace(",", "")
    return float(plain if plain.isascii() and " " not in plain else plain.translate(_NO_SPACES))
