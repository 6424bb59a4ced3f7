"""Numbers and names as people read them."""

import math
from collections.abc import Callable

import pandas as pd
import pytest

from perfkit.diagnosis.finding import UNITS
from perfkit.format import (
    BYTES,
    TIME,
    duration,
    elided,
    fitted,
    number,
    operations,
    percent,
    printable,
    size,
    unit,
)

SHOWN: dict[Callable[[float], str], dict[float, str]] = {
    duration: {
        0: "0 ns",
        999: "999 ns",
        1_000: "1.00 µs",
        12_345: "12.3 µs",
        999_960: "1.00 ms",
        -1_234_567: "-1.23 ms",
        119_000_000_000: "119 s",
        120_000_000_000: "2 min 0 s",
        -7_265_000_000_000: "-2 h 1 min",
        math.nan: "n/a",
        pd.NA: "n/a",
    },
    size: {0: "0 B", 999: "999 B", 999_999: "1.00 MB", 16_384: "16.4 kB", 2.5e15: "2,500 TB"},
    operations: {512: "512 FLOP", 999_999: "1.00 MFLOP", 5_760_281_775_040: "5.76 TFLOP"},
    UNITS["FLOP/s"].spoken: {0.5645e12: "564 GFLOP/s", 50.67e12: "50.7 TFLOP/s"},
    percent: {
        0: "0 %",
        1e-9: "< 0.01 %",
        0.00891: "0.89 %",
        0.06: "6.0 %",
        0.98512: "98.5 %",
        0.9999: "> 99.9 %",
        1: "100 %",
        1.254: "125.4 %",
        -0.25: "-25.0 %",
        math.nan: "n/a",
    },
    number: {0: "0", 9.996: "10.0", 1_234.5: "1,234", 0.000123: "0.000123", math.inf: "inf"},
}


@pytest.mark.parametrize("shown", SHOWN)
def test_quantities(shown: Callable[[float], str]) -> None:
    assert SHOWN[shown] == {value: shown(value) for value in SHOWN[shown]}


def test_foreign_text_stays_on_one_line_and_in_order() -> None:
    # A direction override would turn the text around.
    assert "a b�c" == printable("a\n\tb\u202ec", 20)
    assert ("ns", "B") == (unit(0, TIME).symbol, unit(0, BYTES).symbol), "an axis on which all is 0"


def test_long_names_are_cut_to_the_limit() -> None:
    for cut in (printable, elided):
        shown = cut("x" * 1_000_000, 40)
        assert (40, True) == (len(shown), "…" in shown)
    name = "par_kernel<" + "a" * 100
    assert elided(name + "#1", 30) != elided(name + "#2", 30), (
        "two kernels may differ only at their end"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(20e9, "20.0"), (1e6, "0.00100"), (999_000, "999 kB"), (1_080, "1.08 kB"), (0, "0")],
)
def test_a_value_far_below_the_unit_of_its_column_has_its_own(value: float, shown: str) -> None:
    assert shown == fitted(value, BYTES[3], BYTES)
