"""Kernels by time, number formats of matrix work, and which kernel of the timeline a measured launch is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call
from counted import launches
from frames import api_calls, kernels, tuples
from ops import op, ops

from perfkit import names
from perfkit.analysis.kernels import (
    FORMATS,
    KEYS,
    MATRIX_FAMILIES,
    PRECISION,
    Mixed,
    matched,
    mixed,
    precision,
    spelled,
    summary,
)
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, LAUNCHES, OPS


def kernel(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    """A kernel in ns."""
    return {"name": name, "start_ns": start, "dur_ns": dur, **more}


def test_worked_by_hand() -> None:
    """Kernels a 10, 30 and b 20 long in the span 0..100.

    a: total 40, mean 20, median 20, std sqrt((100 + 100) / 1), share 40/60, busy 40/100; b: share 20/60, busy 0.2.
    """
    found = summary(kernels(kernel("a", 0, 10), kernel("b", 20, 20), kernel("a", 70, 30)))
    assert found["name"].tolist() == ["a", "b"]
    expected = {"count": 2, "total_ns": 40, "mean_ns": 20, "median_ns": 20, "min_ns": 10, "max_ns": 30}
    expected |= {"std_ns": 200**0.5, "share_frac": 40 / 60, "gpu_busy_frac": 0.4}
    assert expected == pytest.approx(found.iloc[0].drop(["name", "family"]).to_dict(), rel=1e-15)
    assert found.loc[1, ["share_frac", "gpu_busy_frac"]].tolist() == [20 / 60, 0.2]
    assert np.isnan(found.loc[1, "std_ns"])


@pytest.mark.parametrize(
    ("rows", "window", "expected"),
    [
        # a runs 0..60 and 40..80 in a span of 0..100: its sum is 100, its busy time 80 of 100.
        (
            [kernel("a", 0, 60), kernel("a", 40, 40, stream=8), kernel("b", 90, 10)],
            None,
            [("a", 2, 100, 0.8), ("b", 1, 10, 0.1)],
        ),
        # On two devices a is busy 10 and 20 of the 60 in which one of them works: 30 of 120, at once or not.
        (
            [kernel("a", 0, 10), kernel("b", 30, 10), kernel("a", 0, 20, gpu=1), kernel("b", 50, 10, gpu=1)],
            None,
            [("a", 2, 30, 0.25), ("b", 2, 20, 20 / 120)],
        ),
        # In 50..150 a kernel 0..100 has 50 ns left and one outside none; busy is of the 100 ns of the window.
        (
            [kernel("a", 0, 100), kernel("a", 150, 10), kernel("b", 140, 10)],
            (50, 150),
            [("a", 1, 50, 0.5), ("b", 1, 10, 0.1)],
        ),
    ],
    ids=["concurrent", "two devices", "window"],
)
def test_busy_by_hand(rows: list[dict[str, Any]], window: Any, expected: list[tuple[Any, ...]]) -> None:
    """Sums and shares of busy time: in the comment of each case."""
    assert expected == tuples(summary(kernels(*rows), window=window), "name", "count", "total_ns", "gpu_busy_frac")


def test_kernels_of_no_duration() -> None:
    """Where nothing lasts, share and busy fraction are 0 of 0: NaN; so is the share of matrix work."""
    found = summary(kernels(kernel("a", 5, 0)))
    assert [("a", 1, 0)] == tuples(found, "name", "count", "total_ns")
    assert found[["share_frac", "gpu_busy_frac"]].isna().all(axis=None)
    assert np.isnan(precision(OPS.empty(), kernels(matrix(BF16, 0)), API_CALLS.empty())["share_frac"]).all()


def test_grid_tells_launches_of_a_name_apart() -> None:
    """One full name with two grids and two block sizes makes a row each; unknown sizes are a size of their own."""
    launches = [(4, 128), (4, 256), (8, 128), (4, 128), (None, None)]
    rows = [kernel("a", 10 * i, 1 + i, grid_blocks=g, block_threads=b) for i, (g, b) in enumerate(launches)]
    found = summary(kernels(*rows), by="grid").fillna({"grid_blocks": -1, "block_threads": -1})
    expected = [(5, 2, 4, 128), (5, 1, -1, -1), (3, 1, 8, 128), (2, 1, 4, 256)]
    assert expected == tuples(found, "total_ns", "count", "grid_blocks", "block_threads")


def test_families_of_names() -> None:
    """The family stands beside the name where all its kernels have it, and is missing where they differ.

    Grouped by family the family is the key, and there is no second column of it.
    """
    of_a = kernel("a", 0, 9, family="gemm"), kernel("a", 30, 9, family="gemm")
    found = summary(kernels(*of_a, kernel("b", 10, 5, family="gemm"), kernel("b", 20, 1, family="copy")))["family"]
    assert found.astype(object).where(found.notna(), "missing").tolist() == ["gemm", "missing"]
    found = summary(kernels(of_a[0], kernel("b", 10, 5, family="gemm")), by="family")
    assert found.columns[:2].tolist() == ["family", "count"]
    assert [("gemm", 2, 14)] == tuples(found, "family", "count", "total_ns")


def test_names_and_their_order() -> None:
    """Two full names with one short name are one row by name and two by full name.

    Of equal totals the one with more launches comes first, then the alphabet.
    """
    frame = kernels(kernel("Kernel", 0, 9, full_name="Kernel<int>"), kernel("Kernel", 10, 5, full_name="Kernel<long>"))
    assert (len(summary(frame)), len(summary(frame, by="full_name"))) == (1, 2)
    found = summary(kernels(kernel("c", 0, 4), kernel("b", 10, 4), kernel("a", 20, 2), kernel("a", 30, 2)))
    assert found["name"].tolist() == ["a", "b", "c"]


def test_no_kernels_and_unknown_groupings() -> None:
    """No kernels, no rows, the same columns and types; the groupings are named."""
    for by in KEYS:
        some = summary(kernels(kernel("a", 0, 1)), by=by)
        assert some.dtypes.astype(str).to_dict() == summary(KERNELS.empty(), by=by).dtypes.astype(str).to_dict()
        assert summary(KERNELS.empty(), by=by, window=(0, 5)).empty
    with pytest.raises(ValueError, match=r"by: 'stream' is not one of \['name', 'full_name', 'family', 'grid'\]"):
        summary(KERNELS.empty(), by="stream")


def random_kernels(seed: int) -> pd.DataFrame:
    """Overlapping kernels of few names on three devices."""
    random = np.random.default_rng(seed)
    rows = [
        kernel(f"k{name}", start, dur, gpu=gpu)
        for name, start, dur, gpu in random.integers(0, (5, 500, 30, 3), (120, 4)).tolist()
    ]
    return kernels(*rows)


def test_busy_fraction_by_counting_nanoseconds() -> None:
    """The busy fraction is what counting every ns of every device gives."""
    frame = random_kernels(11)
    busy: dict[str, set[tuple[int, int]]] = {}
    spans: dict[int, tuple[int, int]] = {}
    for row in frame.itertuples():
        end = row.start_ns + row.dur_ns
        busy.setdefault(row.name, set()).update((row.gpu, t) for t in range(row.start_ns, end))
        low, high = spans.get(row.gpu, (row.start_ns, end))
        spans[row.gpu] = min(low, row.start_ns), max(high, end)
    length = len(spans) * (max(high for _, high in spans.values()) - min(low for low, _ in spans.values()))
    found = summary(frame).set_index("name")["gpu_busy_frac"]
    assert {name: len(moments) / length for name, moments in busy.items()} == pytest.approx(found.to_dict(), rel=1e-15)


def test_rows_sum_to_the_table() -> None:
    """Counts and totals of all groupings sum to those of the kernels; shares sum to 1 and busy is at most 1."""
    frame = random_kernels(12)
    for by in KEYS:
        found = summary(frame, by=by)
        assert (len(frame), frame["dur_ns"].sum()) == (found["count"].sum(), found["total_ns"].sum())
        assert found["share_frac"].sum() == pytest.approx(1)
        assert found["gpu_busy_frac"].between(0, 1).all()


SGEMM = "ampere_sgemm_128x64_tn"
BF16 = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
TF32 = "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4"
NAMELESS = "my_gemm_kernel"


def matrix(full_name: str, dur: int, family: str = "gemm", **more: Any) -> dict[str, Any]:
    """A kernel of some duration and family."""
    return {"start_ns": 100, "dur_ns": dur, "full_name": full_name, "family": family, **more}


def found(*rows: dict[str, Any], dtypes: str | None = None, **more: Any) -> list[tuple[Any, ...]]:
    """Rows of the shares of kernels launched in one operator with inputs of these types."""
    table = kernels(*({"correlation": 1, **row} for row in rows))
    of_call = ops(op("aten::mm", 0, 9, dtypes=dtypes)), table, api_calls(call(5, 6, correlation=1))
    return list(precision(*of_call, **more).itertuples(index=False, name=None))


def test_precision_worked_by_hand() -> None:
    """60 ns in bf16 on tensor cores and 40 in fp32 without: shares 0.6 and 0.4, mixed precision is active.

    Of 80 ns 20 are in bf16 and 30 unknown: 0.25 and 0.375. Of a kernel 100..140 the window 110..120 holds 10 ns.
    """
    rows = matrix(BF16, 35), matrix(SGEMM, 40), matrix(BF16, 25)
    expected = [("gemm", "bf16", "yes", "name", 2, 60, 0.6), ("gemm", "fp32", "no", "name", 1, 40, 0.4)]
    assert expected == found(*rows)
    other = matrix(BF16, 20), matrix(NAMELESS, 30), matrix(SGEMM, 30)
    said = [mixed(precision(OPS.empty(), kernels(*some), API_CALLS.empty())) for some in (rows, other)]
    assert [Mixed(True, 0.6, 0.0, 100), Mixed(None, 0.25, 0.375, 80)] == said
    assert [10] == [row[5] for row in found(matrix(BF16, 40), window=(110, 120))]


def test_other_families_are_left_out() -> None:
    """Elementwise and communication kernels are no matrix work, attention and convolutions are."""
    rows = [matrix("f", 10, family) for family in ("elementwise", "communication", *MATRIX_FAMILIES)]
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
    row = "gemm", expected or "unknown", "unknown", source, 1, 10, 1.0
    assert [row] == found(matrix(NAMELESS, 10), dtypes=dtypes)


@pytest.mark.parametrize(
    ("name", "dtypes", "expected"),
    [
        (TF32, '["float","float"]', ("tf32", "yes", "name")),
        ("zgemm_kernel", None, ("fp64", "no", "name")),
        ("cgemm_kernel", None, ("fp32", "no", "name")),
        ("void gemm<long>(int)", None, ("unknown", "unknown", "none")),
    ],
)
def test_the_name_counts_before_the_operands(name: str, dtypes: str | None, expected: tuple[str, ...]) -> None:
    """float32 inputs of a TF32 kernel are multiplied in TF32.

    Complex numbers count as their parts, 64-bit integers as none of the formats.
    """
    assert [("gemm", *expected, 1, 10, 1.0)] == found(matrix(name, 10), dtypes=dtypes)


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
    table = kernels(*(matrix(name, dur) for name, dur in times.items()))
    assert active is mixed(precision(OPS.empty(), table, API_CALLS.empty())).active


def test_rows_add_up() -> None:
    """Kernels of all rows are those of the three families, times too, and shares add up to 1."""
    random = np.random.default_rng(1)
    names = [SGEMM, BF16, TF32, NAMELESS]
    rows = [
        matrix(names[which], dur, (*MATRIX_FAMILIES, "copy")[kind])
        for which, kind, dur in random.integers(0, (4, 4, 90), (200, 3)).tolist()
    ]
    table = kernels(*rows)
    there = table[table["family"].isin(MATRIX_FAMILIES)]
    split = precision(OPS.empty(), table, API_CALLS.empty())
    assert (len(there), there["dur_ns"].sum()) == (split["count"].sum(), split["total_ns"].sum())
    assert split["share_frac"].sum() == pytest.approx(1, rel=1e-12)


def test_no_matrix_work_has_no_answer() -> None:
    """An empty table of all formats, and no answer; another table is refused."""
    none = precision(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert PRECISION.check(none).empty
    assert set(FORMATS) == set(none["format"].cat.categories)
    answer = mixed(none)
    assert (None, 0) == (answer.active, answer.total_ns)
    assert np.isnan(answer.reduced_frac)
    with pytest.raises(SchemaError, match="'SHARES' does not match"):
        mixed(KERNELS.empty())


def timeline(*rows: tuple[str, int, int]) -> pd.DataFrame:
    """KERNELS of full name, grid and block, with the short names a reader would give."""
    return kernels(
        *(
            {"start_ns": i, "dur_ns": 1, "name": names.short(n), "full_name": n, "grid_blocks": g, "block_threads": b}
            for i, (n, g, b) in enumerate(rows)
        )
    )


def measured(*rows: tuple[str, int, int]) -> pd.DataFrame:
    """LAUNCHES of full name, grid and block, with the short names a reader would give."""
    return launches(
        *({"name": names.short(n), "full_name": n, "grid_blocks": g, "block_threads": b} for n, g, b in rows)
    )


@pytest.mark.parametrize(
    ("nsys", "ncu"),
    [
        ("void f<4, float>(int, T2)", "void f<(int)4, float>(int, T2)"),
        ("void f<-1, 0>(T2 *)", "void f<(long)-1, (bool)0>(T2 *)"),
        ("void f<1, 16>(const T1 *)", "void f<true, (unsigned long)16>(T1 const*)"),
        ("void <unnamed>::f<float>(T1 *)", "void (anonymous namespace)::f<float>(T1*)"),
        ("void <unnamed>::f(int)", "unnamed>::f(int)"),
    ],
)
def test_both_tools_spell_one_name(nsys: str, ncu: str) -> None:
    """Casts of numbers, words for bools, spaces and unnamed namespaces make no difference."""
    assert spelled(nsys).removeprefix("void") == spelled(ncu).removeprefix("void")


def test_other_numbers_are_other_kernels() -> None:
    """What differs in a template argument stays different."""
    assert spelled("void f<(int)4>(int)") != spelled("void f<(int)8>(int)")
    assert spelled("f<(Mode)4>(int)") == "f<(Mode)4>(int)"


@pytest.mark.parametrize(
    ("there", "here", "how"),
    [
        ("void f<4, float>(int)", "void f<(int)4, float>(int)", "full_name"),
        ("void at::native::f<4>(int, float)", "void at::native::f<4>(int, double)", "name"),
        ("void app::deep::f<4>(app::deep::T *)", "void f<4>(T *)", "base"),
        ("void f<4>(int)", "void g<4>(int)", "none"),
    ],
)
def test_how_by_hand(there: str, here: str, how: str) -> None:
    """Full name before short name (library kernels have no parameters there) before function name and grid."""
    found = matched(timeline((there, 8, 128)), measured((here, 8, 128))).iloc[0]
    assert (how, how != "none") == (found["matched_by"], found["counts"])
    assert pd.isna(found["name"]) if how == "none" else names.short(there) == found["name"]


def test_grid_and_block_choose_among_launches() -> None:
    """Without namespaces a launch of another grid, or one that fits two kernels, matches nothing; nor does nothing.

    Launches of a grid that the timeline has speak for the kernel; others only where there is none of them.
    """
    there = timeline(("a::f<T>(int)", 8, 128), ("b::f<T>(int)", 4, 64), ("c::f<T>(int)", 4, 64))
    found = matched(there, measured(("f<U>(int)", 8, 128), ("f<U>(int)", 9, 128), ("f<U>(int)", 4, 64)))
    assert ["base", "none", "none"] == found["matched_by"].tolist()
    there, here = timeline(("f", 8, 128), ("g", 8, 128)), [("f", 8, 128), ("f", 99, 128), ("f", 8, 64), ("g", 99, 128)]
    found = matched(there, measured(*here))
    assert [(True, True), (False, False), (False, False), (False, True)] == tuples(found, "same_grid", "counts")
    assert 0 == len(matched(KERNELS.empty(), LAUNCHES.empty())) == len(matched(there, LAUNCHES.empty()))
    assert ["none"] == matched(KERNELS.empty(), measured(("f", 1, 1)))["matched_by"].tolist()
