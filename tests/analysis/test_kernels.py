"""Kernels by time, number formats of matrix work, and which kernel of the timeline a measured launch is."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call
from counted import counters, launches
from frames import api_calls, kernels, known, lasting, tuples
from ops import op, ops

from perfkit import names
from perfkit.analysis.kernels import (
    FORMATS,
    PRECISION,
    Mixed,
    matched,
    mixed,
    precision,
    spelled,
    summary,
    wide,
)
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, LAUNCHES, OPS


def busy(*rows: dict[str, Any], **more: Any) -> list[float]:
    return summary(kernels(*rows), **more)["gpu_busy_frac"].tolist()


def test_worked_by_hand() -> None:
    found = summary(kernels(lasting(0, 10, "a"), lasting(20, 20, "b"), lasting(70, 30, "a")))
    assert found["name"].tolist() == ["a", "b"]
    expected = {"count": 2, "total_ns": 40, "mean_ns": 20, "median_ns": 20}
    expected |= {"min_ns": 10, "max_ns": 30, "std_ns": 200**0.5}
    expected |= {"share_frac": 40 / 60, "gpu_busy_frac": 0.4}
    assert expected == pytest.approx(found.iloc[0].drop(["name", "family"]).to_dict(), rel=1e-15)
    assert found.loc[1, ["share_frac", "gpu_busy_frac"]].tolist() == [20 / 60, 0.2]
    assert np.isnan(found.loc[1, "std_ns"])


def test_kernels_at_once_are_busy_once_and_the_span_is_that_of_all_devices() -> None:
    first = lasting(0, 10, "a"), lasting(5, 10, "a"), lasting(8, 9, "b"), lasting(20, 1, "c")
    second = lasting(10, 30, "a", gpu=1), lasting(3, 5, "b", gpu=1)
    assert [45 / 80, 14 / 80, 1 / 80] == busy(*first, *second)


def test_kernels_of_0_ns_have_no_share() -> None:
    found = summary(kernels(lasting(5, 0, "a")))
    columns = "name", "count", "total_ns", "share_frac", "gpu_busy_frac"
    assert [("a", 1, 0, None, None)] == known(found, *columns)
    shares = precision(OPS.empty(), kernels(matrix(BF16, 0)), API_CALLS.empty())
    assert [(None,)] == known(shares, "share_frac")


def test_busy_in_a_window_by_hand() -> None:
    # In 50..150 a kernel 0..100 has 50 ns left and one outside none; busy is of the 100 ns of the window.
    found = summary(
        kernels(lasting(0, 100, "a"), lasting(150, 10, "a"), lasting(140, 10, "b")),
        window=(50, 150),
    )
    assert [("a", 1, 50, 0.5), ("b", 1, 10, 0.1)] == tuples(
        found, "name", "count", "total_ns", "gpu_busy_frac"
    )


def test_launches_by_grid() -> None:
    launches = [(4, 128), (4, 256), (8, 128), (4, 128), (None, None)]
    rows = [
        lasting(10 * i, 1 + i, "a", grid_blocks=g, block_threads=b)
        for i, (g, b) in enumerate(launches)
    ]
    found = summary(kernels(*rows), by="grid")
    expected = [(5, 2, 4, 128), (5, 1, None, None), (3, 1, 8, 128), (2, 1, 4, 256)]
    assert expected == known(found, "total_ns", "count", "grid_blocks", "block_threads")


A_AND_B = lasting(0, 9, "a", family="gemm"), lasting(10, 5, "b", family="gemm")


def test_a_name_of_two_families_has_none() -> None:
    found = summary(kernels(*A_AND_B, lasting(20, 1, "b", family="copy")))
    assert [("gemm",), (None,)] == known(found, "family")


def test_kernels_by_family() -> None:
    found = summary(kernels(*A_AND_B), by="family")
    assert found.columns[:2].tolist() == ["family", "count"]
    assert [("gemm", 2, 14)] == tuples(found, "family", "count", "total_ns")


def test_full_names_tell_kernels_of_one_name_apart() -> None:
    frame = kernels(
        lasting(0, 9, "Kernel", full_name="Kernel<int>"),
        lasting(10, 5, "Kernel", full_name="Kernel<long>"),
    )
    assert (len(summary(frame)), len(summary(frame, by="full_name"))) == (1, 2)


def test_kernels_of_equal_time_are_in_the_order_of_their_names() -> None:
    found = summary(
        kernels(lasting(0, 4, "c"), lasting(10, 4, "b"), lasting(20, 2, "a"), lasting(30, 2, "a"))
    )
    assert found["name"].tolist() == ["a", "b", "c"]


SGEMM = "ampere_sgemm_128x64_tn"
BF16 = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
TF32 = "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4"
NAMELESS = "my_gemm_kernel"


def matrix(full_name: str, dur: int, family: str = "gemm", **more: Any) -> dict[str, Any]:
    return lasting(100, dur, full_name=full_name, family=family, **more)


def found(*rows: dict[str, Any], dtypes: str | None = None, **more: Any) -> list[tuple[Any, ...]]:
    table = kernels(*({"correlation": 1, **row} for row in rows))
    of_call = ops(op("aten::mm", 0, 9, dtypes=dtypes)), table, api_calls(call(5, 6, correlation=1))
    return list(precision(*of_call, **more).itertuples(index=False, name=None))


def test_precision_worked_by_hand() -> None:
    rows = matrix(BF16, 35), matrix(SGEMM, 40), matrix(BF16, 25)
    expected = [
        ("gemm", "bf16", "yes", "name", 2, 60, 0.6),
        ("gemm", "fp32", "no", "name", 1, 40, 0.4),
    ]
    assert expected == found(*rows)
    other = matrix(BF16, 20), matrix(NAMELESS, 30), matrix(SGEMM, 30)
    said = [
        mixed(precision(OPS.empty(), kernels(*some), API_CALLS.empty())) for some in (rows, other)
    ]
    assert [Mixed(True, 0.6, 0.0, 100), Mixed(None, 0.25, 0.375, 80)] == said
    assert [10] == [row[5] for row in found(matrix(BF16, 40), window=(110, 120))]


def test_operands_where_the_name_does_not_say() -> None:
    for dtypes, expected in (
        *(
            ('["float","float","Scalar"]', "fp32"),
            ('["","c10::Half","float"]', "fp16"),
            ('["double"]', "fp64"),
        ),
        *(('["c10::BFloat16","c10::BFloat16"]', "bf16"), ('["signed char","signed char"]', "int8")),
        ('["c10::Float8_e4m3fn","c10::Float8_e5m2","float"]', "fp8"),
        *((none, None) for none in ('["long int","Scalar","ScalarList"]', "[]", None)),
    ):
        source = "none" if expected is None else "operands"
        row = "gemm", expected or "unknown", "unknown", source, 1, 10, 1.0
        assert [row] == found(matrix(NAMELESS, 10), dtypes=dtypes)


def test_the_name_counts_before_the_operands() -> None:
    for name, dtypes, expected in (
        (TF32, '["float","float"]', ("tf32", "yes", "name")),
        ("zgemm_kernel", None, ("fp64", "no", "name")),
    ):
        assert [("gemm", *expected, 1, 10, 1.0)] == found(matrix(name, 10), dtypes=dtypes)


def test_mixed() -> None:
    for times, active in (
        *(({BF16: 50, SGEMM: 50}, True), ({BF16: 49, SGEMM: 51}, False), ({TF32: 100}, False)),
        *(
            ({BF16: 30, NAMELESS: 20, SGEMM: 50}, None),
            ({BF16: 30, NAMELESS: 19, SGEMM: 51}, False),
        ),
        *(({NAMELESS: 9}, None), ({NAMELESS: 0}, None)),
    ):
        table = kernels(*(matrix(name, dur) for name, dur in times.items()))
        assert active is mixed(precision(OPS.empty(), table, API_CALLS.empty())).active
    none = precision(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert PRECISION.check(none).empty
    assert set(FORMATS) == set(none["format"].cat.categories)
    answer = mixed(none)
    assert (None, 0) == (answer.active, answer.total_ns)
    assert np.isnan(answer.reduced_frac)
    with pytest.raises(SchemaError, match="'SHARES' does not match"):
        mixed(KERNELS.empty())


def named(*rows: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Rows of full name, grid and block, with the short names a reader would give."""
    return [
        {"name": names.short(n), "full_name": n, "grid_blocks": g, "block_threads": b}
        for n, g, b in rows
    ]


def timeline(*rows: tuple[str, int, int]) -> pd.DataFrame:
    return kernels(*(lasting(i, 1, **row) for i, row in enumerate(named(*rows))))


def measured(*rows: tuple[str, int, int]) -> pd.DataFrame:
    return launches(*named(*rows))


def test_both_tools_spell_one_name() -> None:
    for nsys, ncu in (
        ("void f<4, float>(int, T2)", "void f<(int)4, float>(int, T2)"),
        ("void f<-1, 0>(T2 *)", "void f<(long)-1, (bool)0>(T2 *)"),
        ("void f<1, 16>(const T1 *)", "void f<true, (unsigned long)16>(T1 const*)"),
        ("void <unnamed>::f<float>(T1 *)", "void (anonymous namespace)::f<float>(T1*)"),
        ("void <unnamed>::f(int)", "unnamed>::f(int)"),
    ):
        assert spelled(nsys).removeprefix("void") == spelled(ncu).removeprefix("void")
    assert spelled("void f<(int)4>(int)") != spelled("void f<(int)8>(int)")
    assert spelled("f<(Mode)4>(int)") == "f<(Mode)4>(int)"


def test_how_by_hand() -> None:
    for there, here, how in (
        ("void f<4, float>(int)", "void f<(int)4, float>(int)", "full_name"),
        ("void at::native::f<4>(int, float)", "void at::native::f<4>(int, double)", "name"),
        ("void app::deep::f<4>(app::deep::T *)", "void f<4>(T *)", "base"),
        ("void f<4>(int)", "void g<4>(int)", "none"),
    ):
        found = matched(timeline((there, 8, 128)), measured((here, 8, 128))).iloc[0]
        assert (how, how != "none") == (found["matched_by"], found["counts"])
        assert pd.isna(found["name"]) if how == "none" else names.short(there) == found["name"]


def test_grid_and_block_choose_among_launches() -> None:
    there = timeline(("a::f<T>(int)", 8, 128), ("b::f<T>(int)", 4, 64), ("c::f<T>(int)", 4, 64))
    found = matched(
        there, measured(("f<U>(int)", 8, 128), ("f<U>(int)", 9, 128), ("f<U>(int)", 4, 64))
    )
    assert ["base", "none", "none"] == found["matched_by"].tolist()
    there, here = (
        timeline(("f", 8, 128), ("g", 8, 128)),
        [("f", 8, 128), ("f", 99, 128), ("f", 8, 64), ("g", 99, 128)],
    )
    found = matched(there, measured(*here))
    assert [(True, True), (False, False), (False, False), (False, True)] == tuples(
        found, "same_grid", "counts"
    )
    assert (
        0
        == len(matched(KERNELS.empty(), LAUNCHES.empty()))
        == len(matched(there, LAUNCHES.empty()))
    )
    assert ["none"] == matched(KERNELS.empty(), measured(("f", 1, 1)))["matched_by"].tolist()


def test_counters_stand_beside_their_launch() -> None:
    table = pd.concat(
        [counters({"a": 1, "b": 2}, {"b": 3}), counters({"a": 9}, {}, {"a": 5})]
    )  # 9: measured twice
    table = table.astype({"metric": "category", "unit": "category"})
    found = wide(launches({"dur_ns": 1}, {"dur_ns": 1}), table, ["b", "c", "a", "b"])
    told = found.astype(object).where(found.notna(), None).to_dict("list")
    assert [("b", [2, 3]), ("c", [None, None]), ("a", [1, None])] == [*told.items()]
