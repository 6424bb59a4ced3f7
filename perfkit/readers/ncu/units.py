"""Which base unit and factor does a printed unit stand for, and which number a printed text?

Conventions
-----------
Base units are those of `ncu --print-units base`: ns for durations, byte, hz, % and plain counts; a rate is
per second ("byte/s", "sector/s"), or per cycle. Prefixes are decimal: 1 Kbyte is 1000 bytes.
What is no number ("n/a", "no data", "CachePreferNone", an empty cell) is NaN.

Functions
---------
base                 base unit and factor of a printed unit
numbers              values of printed texts
has_decimal_commas   whether a page was printed where 1.5 is written 1,5
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
_SPACES = ". \u00a0\u202f"  # between thousands where the comma is the decimal point
_DECIMAL_COMMA = re.compile(rf"-?(?:\d+,(?:\d\d?|\d{{4,}})|\d{{1,3}}(?:[{_SPACES}]\d{{3}})+,\d+)")


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


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Say whether a page writes 1.5 as 1,5; by default a comma separates thousands.

    Examples
    --------
    >>> has_decimal_commas(["54,207,744", "(1, 2, 3)"]), has_decimal_commas(["54,207", "5,40"])
    (False, True)
    """
    return any("," in cell and _DECIMAL_COMMA.fullmatch(cell) for cell in cells)


def numbers(texts: Sequence[str], decimal_commas: bool = False) -> NDArray[np.float64]:
    """Return the values of printed texts.

    Parameters
    ----------
    texts
        Cells of a page: "54,207,744", "0.28", "791 (50; 50; ...)", "n/a", "".
    decimal_commas
        Whether commas are decimal points, as `has_decimal_commas` says of the whole page.

    Returns
    -------
    numpy.ndarray
        float64; NaN where there is no finite number.

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
        values = np.fromiter((_number(text, decimal_commas) for text in texts), np.float64, len(texts))
    values[np.isinf(values)] = np.nan
    return values


def _number(text: str, decimal_commas: bool) -> float:
    plain = text.partition(" (")[0]
    if decimal_commas:
        plain = "".join(c for c in plain if c not in _SPACES).replace(",", ".")
    else:
        plain = plain.replace(",", "")
    try:
        return float(plain)
    except ValueError:
        return float("nan")
