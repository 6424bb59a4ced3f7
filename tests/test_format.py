"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from perfkit.format import BYTES, TIME, duration, elided, number, percent, printable, size, unit


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_960, "1.00 ms"),
        (-1_234_567, "-1.23 ms"),
        (119_000_000_000, "119 s"),
        (120_000_000_000, "2 min 0 s"),
        (-7_265_000_000_000, "-2 h 1 min"),
        (math.nan, "n/a"),
        (pd.NA, "n/a"),
    ],
)
def test_duration(ns: float, expected: str) -> None:
    """A time is shown in the largest unit that it fills once rounded to three digits."""
    assert expected == duration(ns)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 B"), (999, "999 B"), (999_999, "1.00 MB"), (16_384, "16.4 kB"), (2.5e15, "2,500 TB")]
)
def test_size(count: float, expected: str) -> None:
    """Bytes are decimal: 16,384 B are 16.4 kB; above the last unit the number grows."""
    assert expected == size(count)


@pytest.mark.parametrize(
    ("frac", "expected"),
    [
        (0, "0 %"),
        (1e-9, "< 0.01 %"),
        (0.00891, "0.89 %"),
        (0.06, "6.0 %"),
        (0.98512, "98.5 %"),
        (0.9999, "> 99.9 %"),
        (1, "100 %"),
        (1.254, "125.4 %"),
        (-0.25, "-25.0 %"),
        (math.nan, "n/a"),
    ],
)
def test_percent(frac: float, expected: str) -> None:
    """Only nothing is 0 % and only everything is 100 %; shares above 1 are not cut."""
    assert expected == percent(frac)


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (9.996, "10.0"), (1_234.5, "1,234"), (0.000123, "0.000123"), (math.inf, "inf")]
)
def test_number(value: float, expected: str) -> None:
    """Three significant digits, also where rounding adds a digit."""
    assert expected == number(value)


def test_unit_of_nothing_is_the_smallest() -> None:
    """An axis on which all is 0 counts in the smallest unit."""
    assert ("ns", "B") == (unit(0, TIME).symbol, unit(0, BYTES).symbol)


def test_foreign_text_stays_on_one_line_and_in_order() -> None:
    """Line breaks become blanks; a direction override, which would turn the text around, is replaced."""
    assert "a b�c" == printable("a\n\tb\u202ec", 20)


@pytest.mark.parametrize("cut", [printable, elided])
def test_long_names_are_cut_to_the_limit(cut: object) -> None:
    """A name of a million characters has the length asked for, and says by an ellipsis that it was longer."""
    shown = cut("x" * 1_000_000, 40)  # type: ignore[operator]
    assert (40, True) == (len(shown), "…" in shown)


def test_elided_names_keep_both_ends() -> None:
    """Two kernels that differ only at their end stay different."""
    name = "par_kernel<" + "a" * 100
    assert elided(name + "#1", 30) != elided(name + "#2", 30)
