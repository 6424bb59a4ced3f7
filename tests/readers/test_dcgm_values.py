"""Blank values and scales: what is no measurement never becomes a number."""

from __future__ import annotations

import numpy as np
import pytest

from perfkit.readers.dcgm import scaled, without_blanks
from perfkit.readers.dcgm.fields import DCGM, Field

FIELD = {field.number: field for field in DCGM}


@pytest.mark.parametrize(
    "blank",
    [
        *range(2147483632, 2147483636),
        *range(140737488355328, 140737488355332),
        *range(9223372036854775792, 9223372036854775796),
        float("inf"),
    ],
)
def test_blank_values_are_missing(blank: float) -> None:
    """Every blank of dcgm_structs.h: not found, not supported and no permission lie just above it."""
    assert np.isnan(without_blanks(np.array([float(blank)]))).all()


def test_numbers_beside_blanks_are_numbers() -> None:
    """2,147,483,636 mJ is energy; only the four blanks of 32 bits are none."""
    values = np.array([0.0, 2147483631.0, 2147483636.0, 140737488355332.0])
    assert values.tolist() == without_blanks(values).tolist()


@pytest.mark.parametrize(
    ("number", "values", "expected", "note"),
    [
        (1004, [0, 0.5, 1], [0, 0.5, 1], ""),
        (1004, [0, 85.5, 12], [0, 0.855, 0.12], "tensor_active_frac: written as percent (up to 85.5)"),
        (1004, [0.5, 0.4, 1.05], [0.5, 0.4, None], "values that cannot be are left out (1, such as 1.05)"),
        (1004, [0.5, 0.4, 50], [None] * 3, "left out, it should be at most 1 and is up to 50.0"),
        (1004, [0.5, 0.4, 5e9], [0.5, 0.4, None], "values that cannot be are left out (1, such as 5,000,000,000)"),
        (203, [0, 99, 100], [0, 0.99, 1], ""),
        (203, [50, 4294967295], [0.5, None], "values that cannot be are left out (1"),
        (191, [110], [1.1], ""),
        (155, [651.3], [651.3], ""),
    ],
)
def test_scale(number: int, values: list[float], expected: list[float | None], note: str) -> None:
    """Ratios stay, percentages become fractions, what is impossible becomes missing, and every change is said."""
    made, said = scaled(np.array(values, dtype=float), FIELD[number])
    assert np.array(expected, dtype=float) == pytest.approx(made, nan_ok=True)
    assert note in said
    assert bool(note) == bool(said)


def test_no_value_is_no_change() -> None:
    """Without values, or with missing ones only, there is nothing to say."""
    for values in (np.zeros(0), np.full(3, np.nan)):
        assert ("", len(values)) == (scaled(values, FIELD[1002])[1], len(scaled(values, FIELD[1002])[0]))


def test_unknown_numbers_are_not_rescaled() -> None:
    """Only DCGM's ratios are checked for percent: another exporter's ratio above 1 stays as it is."""
    made, said = scaled(np.array([1.5]), Field(0, "", ("fan_speed_ratio",), "fan_frac"))
    assert ([1.5], "") == (made.tolist(), said)
