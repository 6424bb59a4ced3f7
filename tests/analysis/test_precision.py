"""Number formats of the matrix work, and whether mixed precision is active."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges
from ops import op, ops

from perfkit.analysis.kernels import FORMATS, MATRIX_FAMILIES, PRECISION, Mixed, mixed, precision
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS

SGEMM = "ampere_sgemm_128x64_tn"
BF16 = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
TF32 = "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4"
NAMELESS = "my_gemm_kernel"


def kernel(full_name: str, dur: int, family: str = "gemm", **more: Any) -> dict[str, Any]:
    """A kernel of some duration and family."""
    return {"start_ns": 100, "dur_ns": dur, "full_name": full_name, "family": family, **more}


def found(*rows: dict[str, Any], dtypes: str | None = None, **more: Any) -> list[tuple[Any, ...]]:
    """Rows of the shares of kernels launched in one operator with inputs of these types."""
    table = kernels(*({"correlation": 1, **row} for row in rows))
    frame, call = ops(op("aten::mm", 0, 9, dtypes=dtypes)), api_calls({"start_ns": 5, "dur_ns": 1, "correlation": 1})
    return list(precision(frame, table, call, **more).itertuples(index=False, name=None))


def test_worked_by_hand() -> None:
    """60 ns in bf16 on tensor cores and 40 in fp32 without: shares 0.6 and 0.4, mixed precision is active."""
    rows = kernel(BF16, 35), kernel(SGEMM, 40), kernel(BF16, 25)
    expected = [("gemm", "bf16", "yes", "name", 2, 60, 0.6), ("gemm", "fp32", "no", "name", 1, 40, 0.4)]
    assert expected == found(*rows)
    assert Mixed(True, 0.6, 0.0, 100) == mixed(precision(OPS.empty(), kernels(*rows), API_CALLS.empty()))


def test_other_families_are_left_out() -> None:
    """Elementwise and communication kernels are no matrix work, attention and convolutions are."""
    rows = [kernel("f", 10, family) for family in ("elementwise", "communication", *MATRIX_FAMILIES)]
    assert sorted(MATRIX_FAMILIES) == sorted(row[0] for row in found(*rows))


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ('["float","float","Scalar"]', "fp32"),
        ('["","c10::Half","float"]', "fp16"),
        ('["c10::BFloat16","c10::BFloat16"]', "bf16"),
        ('["c10::Float8_e4m3fn","c10::Float8_e5m2","float"]', "fp8"),
        ('["signed char","signed char"]', "int8"),
        ('["double"]', "fp64"),
        ('["long int","Scalar","ScalarList"]', None),
        ("[]", None),
        (None, None),
    ],
)
def test_operands_where_the_name_does_not_say(dtypes: str | None, expected: str | None) -> None:
    """The first input with a number format gives that of a kernel whose name has none."""
    source = "none" if expected is None else "operands"
    assert [("gemm", expected or "unknown", "unknown", source, 1, 10, 1.0)] == found(
        kernel(NAMELESS, 10), dtypes=dtypes
    )


def test_the_name_counts_before_the_operands() -> None:
    """float32 inputs of a TF32 kernel are multiplied in TF32."""
    assert [("gemm", "tf32", "yes", "name", 1, 10, 1.0)] == found(kernel(TF32, 10), dtypes='["float","float"]')


@pytest.mark.parametrize(
    ("name", "expected"), [("zgemm_kernel", "fp64"), ("cgemm_kernel", "fp32"), ("void gemm<long>(int)", "unknown")]
)
def test_complex_and_integer_names(name: str, expected: str) -> None:
    """Complex numbers count as their parts, 64-bit integers as none of the formats."""
    assert [expected] == [row[1] for row in found(kernel(name, 10))]


@pytest.mark.parametrize(
    ("times", "active"),
    [
        ({BF16: 50, SGEMM: 50}, True),
        ({BF16: 49, SGEMM: 51}, False),
        ({TF32: 100}, False),
        ({BF16: 30, NAMELESS: 20, SGEMM: 50}, None),
        ({BF16: 30, NAMELESS: 19, SGEMM: 51}, False),
        ({NAMELESS: 9}, None),
        ({NAMELESS: 0}, None),
    ],
)
def test_mixed(times: dict[str, int], active: bool | None) -> None:
    """At least half in 8 or 16 bits is yes; TF32 is not; no answer where what is unknown would decide."""
    table = kernels(*(kernel(name, dur) for name, dur in times.items()))
    assert active is mixed(precision(OPS.empty(), table, API_CALLS.empty())).active


def test_mixed_says_of_what() -> None:
    """Of 80 ns 20 are in bf16 and 30 unknown: 0.25 and 0.375."""
    table = kernels(kernel(BF16, 20), kernel(NAMELESS, 30), kernel(SGEMM, 30))
    assert Mixed(None, 0.25, 0.375, 80) == mixed(precision(OPS.empty(), table, API_CALLS.empty()))


def test_window_cuts_kernels() -> None:
    """Of a kernel 100..140 the window 110..120 holds 10 ns."""
    assert [10] == [row[5] for row in found(kernel(BF16, 40), window=(110, 120))]


def test_rows_add_up() -> None:
    """Kernels of all rows are those of the three families, times too, and shares add up to 1."""
    random = np.random.default_rng(1)
    names = [SGEMM, BF16, TF32, NAMELESS]
    rows = [
        kernel(names[which], dur, (*MATRIX_FAMILIES, "copy")[kind])
        for which, kind, dur in random.integers(0, (4, 4, 90), (200, 3)).tolist()
    ]
    table = kernels(*rows)
    there = table[table["family"].isin(MATRIX_FAMILIES)]
    split = precision(OPS.empty(), table, API_CALLS.empty())
    assert (len(there), there["dur_ns"].sum()) == (split["count"].sum(), split["total_ns"].sum())
    assert split["share_frac"].sum() == pytest.approx(1, rel=1e-12)


def test_empty() -> None:
    """No matrix work: an empty table of the same kinds, and no answer."""
    none = precision(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert PRECISION.check(none).empty
    assert set(FORMATS) == set(none["format"].cat.categories)
    answer = mixed(none)
    assert (None, 0) == (answer.active, answer.total_ns)
    assert np.isnan(answer.reduced_frac)


def test_kernels_of_no_duration() -> None:
    """Where matrix work takes no time its share is 0 of 0: NaN."""
    assert np.isnan(found(kernel(BF16, 0))[0][-1])


def test_wrong_arguments() -> None:
    """Foreign tables and a backward window are refused; the input is not changed."""
    table = kernels(kernel(BF16, 1))
    before = table.copy()
    with pytest.raises(SchemaError, match="'KERNELS' does not match"):
        precision(OPS.empty(), copies(), API_CALLS.empty())
    with pytest.raises(SchemaError, match="'SHARES' does not match"):
        mixed(ranges())
    with pytest.raises(ValueError, match="does not end after it starts"):
        precision(OPS.empty(), table, API_CALLS.empty(), window=(5, 5))
    pd.testing.assert_frame_equal(before, table)
