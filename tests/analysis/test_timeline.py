"""Busy time, its split, bins and sampled metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.timeline import KINDS, PARTS, bins, breakdown, busy
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import COPIES, KERNELS

LENGTH = 300
DEVICES = [(0, 0), (0, 1), (1, 0)]
ALL = [busy, breakdown, bins]


def us(start: int, end: int, **other: Any) -> dict[str, Any]:
    """An operation from `start` to `end` microseconds."""
    return {"start_ns": start * 1000, "dur_ns": (end - start) * 1000, **other}


K1, K2, C = us(10, 30), us(20, 40, stream=8), us(35, 60, stream=9, family="communication")
TOY = kernels(K1, K2, C)
COPY = copies(us(55, 70))
WINDOW = (0, 100_000)


def made(builder: Callable[..., pd.DataFrame], seed: int, column: str, values: list[str]) -> pd.DataFrame:
    """Random operations on three devices, three streams and two processes, some of them empty."""
    random = np.random.default_rng(seed)
    drawn = zip(*(random.integers(0, high, 60).tolist() for high in (3, 3, 2, LENGTH - 25, 25, 2)), strict=True)
    return builder(
        *(
            {"rank": DEVICES[d][0], "gpu": DEVICES[d][1], "stream": s, "process": p, "start_ns": at, "dur_ns": dur}
            | {column: values[v]}
            for d, s, p, at, dur, v in drawn
        )
    )


def some(seed: int) -> list[pd.DataFrame]:
    """Random kernels, copies and other kernels."""
    families, directions = ["gemm", "communication"], ["H2D", "memset"]
    drawn = (made(kernels, seed, "family", families), made(copies, seed + 1, "direction", directions))
    return [*drawn, made(kernels, seed + 2, "family", families)]


def marked(frame: pd.DataFrame) -> np.ndarray:
    """One cell per nanosecond."""
    cells = np.zeros(LENGTH, bool)
    for row in frame.itertuples():
        cells[row.start_ns : row.start_ns + row.dur_ns] = True
    return cells


def numbers(frame: pd.DataFrame) -> list[list[float]]:
    """The rows as lists."""
    return frame.to_numpy().tolist()


def test_busy_of_the_toy_timeline() -> None:
    """Kernels cover [10,60) = 50 us and with the copy [10,70) = 60 us: 0.5 and 0.6 of 100 us."""
    assert numbers(busy(TOY, COPY, window=WINDOW)) == [[0, 0, 0, 100_000, 50_000, 60_000, 0.5, 0.6]]


def test_busy_without_window_is_of_the_span() -> None:
    """First start 10 us, last end 70 us: kernels 50/60, everything 60/60."""
    assert numbers(busy(TOY, COPY)) == [[0, 0, 10_000, 60_000, 50_000, 60_000, 50 / 60, 1.0]]


def test_busy_counts_others_for_the_device_only() -> None:
    """Of K1 alone [10,30) kernels are busy 20 us, but the device with all others still 60 us of 60."""
    found = busy(kernels(K1), COPY, others=kernels(K2, C))
    assert numbers(found) == [[0, 0, 10_000, 60_000, 20_000, 60_000, 20 / 60, 1.0]]


def test_busy_of_empty_operations_is_missing() -> None:
    """One kernel of 0 ns: span 0, and 0 of 0 is NaN."""
    found = busy(kernels({"start_ns": 5, "dur_ns": 0}), COPIES.empty())
    assert found["span_ns"].tolist() == [0]
    assert found[["kernel_busy_frac", "device_busy_frac"]].isna().all(axis=None)


def test_breakdown_of_the_toy_timeline() -> None:
    """Computation [10,40), communication alone [40,60), copy alone [60,70), idle 10 + 30 us."""
    assert numbers(breakdown(TOY, COPY, window=WINDOW)) == [[0, 0, 100_000, 30_000, 20_000, 0, 10_000, 40_000]]


def test_a_memset_is_computation() -> None:
    """A memset [65,75) makes computation 30 + 10 and leaves the copy [60,65) exposed."""
    both = copies(us(55, 70), us(65, 75, direction="memset"))
    assert numbers(breakdown(TOY, both, window=WINDOW)) == [[0, 0, 100_000, 40_000, 20_000, 0, 5_000, 35_000]]


def test_kernels_not_selected_are_a_part_of_their_own() -> None:
    """K1 selected: computation [10,30), others alone [30,60), copy alone [60,70); their kind does not matter."""
    found = breakdown(kernels(K1), COPY, others=kernels(K2, C), window=WINDOW)
    assert numbers(found) == [[0, 0, 100_000, 20_000, 0, 30_000, 10_000, 40_000]]


def test_a_device_without_operation_in_the_window_is_idle() -> None:
    """GPU 1 works from 200 us on: in the window 0..100 us it is there, and idle for all of it."""
    both = kernels(K1, us(200, 210, gpu=1))
    found = breakdown(both, COPIES.empty(), window=WINDOW)
    assert found["idle_ns"].tolist() == [80_000, 100_000]
    assert busy(both, COPIES.empty(), window=WINDOW)["device_busy_frac"].tolist() == [0.2, 0.0]


def test_a_span_beyond_int64_is_reported() -> None:
    """A window of 1.8e19 ns wraps around: the idle part comes out negative and is not shown as a result."""
    with pytest.raises(PerfkitError, match=r"breakdown: .*'idle_ns': -\d+.* has a part below 0"):
        breakdown(TOY, COPY, window=(-9 * 10**18, 9 * 10**18))
    with pytest.raises(PerfkitError, match=r"share: .* is not in 0..1"):
        busy(TOY, COPY, window=(-9 * 10**18, 9 * 10**18))


@pytest.mark.parametrize("window", [None, (40, 210)])
@pytest.mark.parametrize("seed", range(4))
def test_parts_against_marked_nanoseconds(seed: int, window: tuple[int, int] | None) -> None:
    """Every nanosecond of a device belongs to exactly one part, the first that claims it."""
    frames = some(seed)
    found, of_busy = breakdown(*frames[:2], others=frames[2], window=window), busy(*frames[:2], others=frames[2])
    for number, (rank, gpu) in enumerate(DEVICES):
        kernel, copy, other = (f[(f["rank"] == rank) & (f["gpu"] == gpu)] for f in frames)
        compute, set_ = kernel["family"] != "communication", copy["direction"] == "memset"
        claims = [marked(pd.concat([kernel[compute], copy[set_]])), marked(kernel[~compute]), marked(other)]
        claims += [marked(copy[~set_]), np.ones(LENGTH, bool)]
        start, span = of_busy.loc[number, ["start_ns", "span_ns"]].astype(int)
        seen = slice(*(window or (start, start + span)))
        expected = np.bincount(np.argmax(claims, axis=0)[seen], minlength=5).tolist()
        assert found.loc[number, PARTS].tolist() == expected
        assert found.loc[number, "span_ns"] == sum(expected)
        assert of_busy.loc[number, "kernel_busy_ns"] == marked(kernel).sum()
        assert of_busy.loc[number, "device_busy_ns"] == np.any(claims[:4], axis=0).sum()


def expected_bins(kernel: pd.DataFrame, copy: pd.DataFrame, edges: np.ndarray) -> list[list[Any]]:
    """Rows of `bins` from marked nanoseconds, one stream and kind after the other."""
    kernel = kernel.assign(kind=np.where(kernel["family"] == "communication", KINDS[1], KINDS[0]))
    copy = copy.assign(kind=np.where(copy["direction"] == "memset", KINDS[0], KINDS[2]))
    both, rows = pd.concat([kernel, copy]), []
    for key in sorted(set(zip(*(both[c] for c in ["rank", "gpu", "stream", "kind"]), strict=True)), key=_by_kind):
        cells = marked(both[(both[["rank", "gpu", "stream", "kind"]] == key).all(axis=1)])
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            length = int(cells[first:last].sum())
            rows += [[*key, first, last - first, length, length / (last - first)]] if length else []
    return rows


def _by_kind(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key[:3], KINDS.get_loc(key[3]))


@pytest.mark.parametrize("count", [1, 7, 64, 170])
@pytest.mark.parametrize("seed", range(2))
def test_bins_against_marked_nanoseconds(seed: int, count: int) -> None:
    """Edges at 40 + 170 i / n rounded down; every busy_ns is the count of marked nanoseconds in its bin."""
    kernel, copy, _ = some(seed)
    edges = 40 + 170 * np.arange(count + 1) // count
    assert numbers(bins(kernel, copy, bins=count, window=(40, 210))) == expected_bins(kernel, copy, edges)


def test_bins_of_the_toy_timeline() -> None:
    """Six bins of 10 us on [10,70): the copy [55,70) fills half of the fifth and all of the sixth."""
    found = bins(TOY, COPY, bins=6)
    copied = found[found["kind"] == "copy"]
    assert copied["start_ns"].tolist() == [50_000, 60_000]
    assert copied["busy_ns"].tolist() == [5_000, 10_000]
    assert copied["busy_frac"].tolist() == [0.5, 1.0]


def test_bins_share_one_axis() -> None:
    """GPU 1 starts at 0, GPU 0 at 50, GPU 2 ends at 100: two bins of 50 ns for all, and 10 ns of work in one each."""
    work = [(0, 50), (1, 0), (2, 90)]
    found = bins(kernels(*({"gpu": gpu, "start_ns": at, "dur_ns": 10} for gpu, at in work)), COPIES.empty(), bins=2)
    assert numbers(found[["gpu", "start_ns", "dur_ns", "busy_ns"]]) == [
        [0, 50, 50, 10],
        [1, 0, 50, 10],
        [2, 50, 50, 10],
    ]


def test_no_more_bins_than_nanoseconds() -> None:
    """3 ns asked for in 1000 bins come in 3 bins of 1 ns; 0 ns in none."""
    found = bins(kernels({"start_ns": 4, "dur_ns": 3}), COPIES.empty())
    assert numbers(found[["start_ns", "dur_ns", "busy_ns"]]) == [[4, 1, 1], [5, 1, 1], [6, 1, 1]]
    assert len(bins(kernels({"start_ns": 4, "dur_ns": 0}), COPIES.empty())) == 0


def test_fewer_than_one_bin() -> None:
    """There is no timeline of 0 bins."""
    with pytest.raises(ValueError, match=r"bins: 0 is not at least 1"):
        bins(TOY, COPY, bins=0)


@pytest.mark.parametrize("function", ALL)
def test_order_of_rows_does_not_matter(function: Callable[..., pd.DataFrame]) -> None:
    """Shuffled tables give the same answer, and are left as they were."""
    kernel, copy, _ = some(3)
    mixed = [frame.sample(frac=1, random_state=1) for frame in (kernel, copy)]
    before = [frame.copy() for frame in mixed]
    pd.testing.assert_frame_equal(function(kernel, copy, window=(20, 250)), function(*mixed, window=(20, 250)))
    for frame, copied in zip(mixed, before, strict=True):
        pd.testing.assert_frame_equal(frame, copied)


@pytest.mark.parametrize("window", [None, (0, 10)])
@pytest.mark.parametrize("function", ALL)
def test_empty_tables(function: Callable[..., pd.DataFrame], window: tuple[int, int] | None) -> None:
    """Without operations there is no device and no row; columns and dtypes are those of a full answer."""
    found = function(KERNELS.empty(), COPIES.empty(), window=window)
    assert len(found) == 0
    assert found.dtypes.tolist() == function(TOY, COPY).dtypes.tolist()


@pytest.mark.parametrize("function", ALL)
def test_wrong_tables(function: Callable[..., pd.DataFrame]) -> None:
    """Kernels and copies in each other's place are refused."""
    with pytest.raises(SchemaError, match=r"table 'KERNELS' does not match"):
        function(COPY, TOY)
    with pytest.raises(ValueError, match=r"window: \(9, 9\) does not end after it starts"):
        function(TOY, COPY, window=(9, 9))
