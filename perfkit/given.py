"""Parts of a run as people write them: on the command line, in a parameter of papermill, or in a cell.

A list is [0, 2], "0,2", "[0, 2]" or 0 alone. A window is "5s:7s", or two times in ns or with a unit.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from perfkit.format import printable

UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1}
LAST = 2**63 - 1  # ns that a table can hold
LONGEST = 120  # characters of what is refused
Numbers = int | str | Sequence[int]
Window = str | Sequence[int]
Words = str | Sequence[str]


def numbers(given: Any) -> tuple[int, ...]:
    """Return ranks or GPUs; ValueError if one of them is no whole number.

    >>> numbers("0,2"), numbers("[1]"), numbers(1), numbers("")
    ((0, 2), (1,), (1,), ())
    """
    try:
        return tuple(int(str(part)) for part in _parts(given))
    except ValueError:
        raise ValueError(f"{_quoted(given)} is no list of numbers, for example 0,2") from None


def words(given: Any) -> tuple[str, ...]:
    """Return names such as families of kernels.

    >>> words("gemm,attention"), words("['gemm']")
    (('gemm', 'attention'), ('gemm',))
    """
    return tuple(str(part).strip("\"' ") for part in _parts(given))


def window(given: Any) -> tuple[int, ...]:
    """Return a start and an end in ns, nothing of an empty text; ValueError if it is neither.

    >>> window("5s:7.5s"), window("[10, 2000]"), window(["1ms", "2ms"]), window("")
    ((5000000000, 7500000000), (10, 2000), (1000000, 2000000), ())
    """
    is_span = isinstance(given, str) and ":" in given
    parts = given.split(":") if is_span else _parts(given)
    edges = [_edge(part, needs_unit=is_span) for part in parts]
    if not edges:
        return ()
    if len(edges) != 2:
        message = f"{_quoted(given)} is not a start and a later end, for example 5s:7s"
        raise ValueError(message)
    return edges[0], edges[1]


def duration(text: str) -> int:
    """Return a time with its unit, such as 5s or 200ms, in ns; ValueError if it is none."""
    text = text.strip()
    number = text.rstrip("nmuµs")
    try:
        return round(float(number) * UNITS[text[len(number) :]])
    except (KeyError, ValueError, OverflowError):
        units = ", ".join(UNITS)
        message = f"{_quoted(text)} is no time with a unit of {units}, for example 5s or 200ms"
        raise ValueError(message) from None


def _edge(given: Any, *, needs_unit: bool) -> int:
    """Return an end of a window: without a unit it is in ns, but not in a text such as 5:7."""
    if isinstance(given, str):
        text = given.strip("\"' ")
        is_number = text.lstrip("-").isdecimal()
        return int(text) if is_number and not needs_unit else duration(text)
    with suppress(TypeError, ValueError, OverflowError):
        if int(given) == given and abs(given) <= LAST:
            return int(given)
    message = f"{_quoted(given)} is no whole number of ns: write it so, or as 5s or 200ms"
    raise ValueError(message)


def _parts(given: Any) -> Sequence[Any]:
    """Return the parts of a list, of a list as text, or the one thing that is given."""
    if isinstance(given, str):
        inside = given.strip().removeprefix("[").removesuffix("]")
        return [part.strip() for part in inside.split(",") if part.strip()]
    return list(given) if hasattr(given, "__iter__") else [given]


def _quoted(given: Any) -> str:
    return printable(repr(given), LONGEST)
