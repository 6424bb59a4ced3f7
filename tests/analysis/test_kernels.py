"""Kernel summary: statistics per name, full name, family and grid, shares and busy fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.kernels import KEYS, summary
from perfkit.errors import SchemaError
from perfkit.tables import KERNELS


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


def test_concurrent_kernels_of_a_name_are_busy_once() -> None:
    """a runs 0..60 and 40..80 in a span of 0..100: its sum is 100, its busy time 80 of 100."""
    found = summary(kernels(kernel("a", 0, 60), kernel("a", 40, 40, stream=8), kernel("b", 90, 10)))
    assert found.loc[0, ["total_ns", "gpu_busy_frac"]].tolist() == [100, 0.8]


def test_devices_are_pooled() -> None:
    """On two devices a is busy 10 of 40 and 20 of 60: 30 of 100, at once or not."""
    found = summary(
        kernels(kernel("a", 0, 10), kernel("b", 30, 10), kernel("a", 0, 20, gpu=1), kernel("b", 50, 10, gpu=1))
    )
    assert found.loc[0, ["name", "count", "gpu_busy_frac"]].tolist() == ["a", 2, 0.3]


def test_window_cuts_kernels() -> None:
    """In 50..150 a kernel 0..100 has 50 ns left and one outside none; busy is of the 100 ns of the window."""
    found = summary(kernels(kernel("a", 0, 100), kernel("a", 150, 10), kernel("b", 140, 10)), window=(50, 150))
    assert found[["count", "total_ns", "gpu_busy_frac"]].to_numpy().tolist() == [[1, 50, 0.5], [1, 10, 0.1]]


def test_grid_tells_launches_of_a_name_apart() -> None:
    """One full name with two grids and two block sizes makes a row each; unknown sizes are a size of their own."""
    launches = [(4, 128), (4, 256), (8, 128), (4, 128), (None, None)]
    rows = [kernel("a", 10 * i, 1 + i, grid_blocks=g, block_threads=b) for i, (g, b) in enumerate(launches)]
    found = summary(kernels(*rows), by="grid")
    assert found["total_ns"].tolist() == [5, 5, 3, 2]
    assert found["count"].tolist() == [2, 1, 1, 1]
    assert found["grid_blocks"].fillna(-1).tolist() == [4, -1, 8, 4]
    assert found["block_threads"].fillna(-1).tolist() == [128, -1, 128, 256]


def test_family_of_a_name() -> None:
    """The family stands beside the name where all its kernels have it, and is missing where they differ."""
    found = summary(
        kernels(
            kernel("a", 0, 9, family="gemm"),
            kernel("b", 10, 5, family="gemm"),
            kernel("b", 20, 1, family="copy"),
            kernel("a", 30, 9, family="gemm"),
        )
    )
    assert found["family"].astype(object).where(found["family"].notna(), "missing").tolist() == ["gemm", "missing"]


def test_by_family() -> None:
    """Grouped by family the family is the key, and there is no second column of it."""
    found = summary(kernels(kernel("a", 0, 9, family="gemm"), kernel("b", 10, 5, family="gemm")), by="family")
    assert found.columns[:2].tolist() == ["family", "count"]
    assert found[["family", "count", "total_ns"]].to_numpy().tolist() == [["gemm", 2, 14]]


def test_short_names_do_not_group_full_names() -> None:
    """Two full names with one short name are one row by name and two by full name."""
    frame = kernels(kernel("Kernel", 0, 9, full_name="Kernel<int>"), kernel("Kernel", 10, 5, full_name="Kernel<long>"))
    assert (len(summary(frame)), len(summary(frame, by="full_name"))) == (1, 2)


def test_ties_are_in_the_order_of_count_and_name() -> None:
    """Of equal totals the one with more launches comes first, then the alphabet."""
    found = summary(kernels(kernel("c", 0, 4), kernel("b", 10, 4), kernel("a", 20, 2), kernel("a", 30, 2)))
    assert found["name"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("by", KEYS)
def test_empty(by: str) -> None:
    """No kernels, no rows, the same columns and types."""
    some = summary(kernels(kernel("a", 0, 1)), by=by)
    assert some.dtypes.astype(str).to_dict() == summary(KERNELS.empty(), by=by).dtypes.astype(str).to_dict()
    assert summary(KERNELS.empty(), by=by, window=(0, 5)).empty


def test_kernels_of_no_duration() -> None:
    """Where nothing lasts, share and busy fraction are 0 of 0: NaN."""
    found = summary(kernels(kernel("a", 5, 0)))
    assert found.loc[0, ["count", "total_ns"]].tolist() == [1, 0]
    assert found[["share_frac", "gpu_busy_frac"]].isna().all(axis=None)


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
    length = sum(high - low for low, high in spans.values())
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


def test_shift_and_order_of_names_change_nothing() -> None:
    """Starting a million ns later leaves every figure as it is."""
    frame = random_kernels(13)
    later = frame.assign(start_ns=frame["start_ns"] + 1_000_000)
    pd.testing.assert_frame_equal(summary(frame), summary(later))


def test_wrong_arguments() -> None:
    """An unknown grouping, a backward window and a foreign table are refused; the input is not changed."""
    frame = random_kernels(14)
    before = frame.copy()
    with pytest.raises(ValueError, match=r"by: 'stream' is not one of \['name', 'full_name', 'family', 'grid'\]"):
        summary(frame, by="stream")
    with pytest.raises(ValueError, match="does not end after it starts"):
        summary(frame, window=(5, 5))
    with pytest.raises(SchemaError, match="'KERNELS' does not match"):
        summary(copies({"start_ns": 0, "dur_ns": 1}))
    summary(frame, window=(100, 300))
    pd.testing.assert_frame_equal(before, frame)
