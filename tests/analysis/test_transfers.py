"""Copies: statistics per direction and memory, copies that wait for pageable memory, small copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels

from perfkit.analysis.memory import COPY_KEYS, copied, pageable_async, small_copies
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES


def copy(start: int, dur: int, size: int, **more: Any) -> dict[str, Any]:
    """A copy of some bytes, times in ns."""
    return {"start_ns": start, "dur_ns": dur, "bytes": size, **more}


def random_copies(seed: int) -> pd.DataFrame:
    """Copies of all directions, some of no duration."""
    random = np.random.default_rng(seed)
    rows = [
        copy(start, dur, size, direction=("H2D", "D2H", "memset")[way], src_memory=(None, "pageable", "pinned")[memory])
        for start, dur, size, way, memory in random.integers(0, (900, 40, 100_000, 3, 3), (150, 5)).tolist()
    ]
    return copies(*rows)


def test_worked_by_hand() -> None:
    """Copies of 1000 bytes in 10 ns and 2000 in 30: 3000 bytes in 40 ns are 75 GB/s, not the mean of 100 and 66.7.

    Times: mean 20, standard deviation sqrt(100 + 100); sizes: mean 1500, sqrt(250000 + 250000).
    """
    row = copied(copies(copy(0, 10, 1000), copy(50, 30, 2000))).iloc[0]
    expected = {"direction": "H2D", "src_memory": "pinned", "dst_memory": "device", "count": 2, "bytes": 3000}
    expected |= {"total_ns": 40, "bytes_per_s": 75e9, "mean_ns": 20, "median_ns": 20, "min_ns": 10, "max_ns": 30}
    expected |= {"std_ns": 200**0.5, "mean_bytes": 1500, "median_bytes": 1500, "min_bytes": 1000, "max_bytes": 2000}
    assert {**expected, "std_bytes": 500_000**0.5} == row.to_dict()


def test_copy_of_no_duration_has_no_rate() -> None:
    """1000 bytes in 10 ns beside 500 in 0: the rate is 100 GB/s, though 1500 bytes were copied; alone it is NaN."""
    found = copied(copies(copy(0, 10, 1000), copy(50, 0, 500), copy(60, 0, 7, direction="D2H")))
    assert found.loc[0, ["bytes", "bytes_per_s"]].tolist() == [1500, 100e9]
    assert np.isnan(found.loc[1, "bytes_per_s"])


def test_memory_kinds_are_told_apart() -> None:
    """Pinned, pageable and, for a memset, no source make a row each, by falling time."""
    found = copied(
        copies(
            copy(0, 10, 1),
            copy(20, 30, 1, src_memory="pageable"),
            copy(60, 20, 1, direction="memset", src_memory=None),
        )
    )
    assert found["src_memory"].astype(object).where(found["src_memory"].notna(), "-").tolist() == [
        "pageable",
        "-",
        "pinned",
    ]


def test_window_cuts_bytes_in_proportion() -> None:
    """A quarter of a copy 0..40 lies in 30..100: a quarter of its 1000 bytes, at the same rate; one is outside."""
    found = copied(copies(copy(0, 40, 1000), copy(100, 10, 5)), window=(30, 100))
    assert found[["count", "bytes", "total_ns", "bytes_per_s"]].to_numpy().tolist() == [[1, 250, 10, 25e9]]


@pytest.mark.parametrize("by", [["direction"], list(COPY_KEYS)])
def test_empty(by: list[str]) -> None:
    """No copies, no rows, the same columns and types."""
    some = copied(copies(copy(0, 1, 1)), by=by)
    assert some.dtypes.astype(str).to_dict() == copied(COPIES.empty(), by=by).dtypes.astype(str).to_dict()
    assert copied(COPIES.empty(), by=by, window=(0, 1)).empty


def test_summary_by_a_loop() -> None:
    """Count, bytes, time and rate are those of a loop over the copies."""
    frame = random_copies(5)
    expected: dict[str, list[float]] = {}
    for row in frame.itertuples():
        figures = expected.setdefault(row.direction, [0, 0, 0, 0])
        figures[0] += 1
        figures[1] += row.bytes
        figures[2] += row.dur_ns
        figures[3] += row.bytes if row.dur_ns else 0
    for figures in expected.values():
        figures[3] *= 1e9 / figures[2]
    found = copied(frame, by=["direction"]).set_index("direction")[["count", "bytes", "total_ns", "bytes_per_s"]]
    assert set(expected) == set(found.index)
    for direction, figures in expected.items():
        assert figures == pytest.approx(found.loc[direction].tolist(), rel=1e-12)


def test_groupings_sum_to_the_same() -> None:
    """Whatever the keys, counts, bytes and times sum to those of the table."""
    frame = random_copies(6)
    total = [len(frame), frame["bytes"].sum(), frame["dur_ns"].sum()]
    for key in COPY_KEYS:
        assert total == copied(frame, by=[key])[["count", "bytes", "total_ns"]].sum().tolist()


def test_pageable_copies_of_asynchronous_calls() -> None:
    """Of five copies only those are listed whose memory is pageable and whose call is asynchronous."""
    frame = copies(
        copy(0, 1, 10, correlation=1, src_memory="pageable"),
        copy(10, 2, 20, correlation=2, src_memory="pageable"),
        copy(20, 3, 30, correlation=3),
        copy(30, 4, 40, correlation=4, direction="D2H", src_memory="device", dst_memory="pageable"),
        copy(40, 5, 50, src_memory="pageable"),
    )
    calls = api_calls(
        {"start_ns": 0, "dur_ns": 1, "name": "cudaMemcpyAsync", "correlation": 1},
        {"start_ns": 2, "dur_ns": 1, "name": "cudaMemcpy", "correlation": 2},
        {"start_ns": 4, "dur_ns": 1, "name": "cudaMemcpyAsync", "correlation": 3},
        {"start_ns": 6, "dur_ns": 1, "name": "cuMemcpyDtoHAsync", "correlation": 4},
    )
    found = pageable_async(frame, calls)
    assert found.drop(columns=["rank", "gpu"]).to_numpy().tolist() == [
        [0, 1, 10, "H2D", "cudaMemcpyAsync"],
        [30, 4, 40, "D2H", "cuMemcpyDtoHAsync"],
    ]


@pytest.mark.parametrize("other", [{"process": 2}, {"rank": 1}])
def test_correlations_of_another_process_do_not_join(other: dict[str, int]) -> None:
    """Ids are unique within a process only: the call of another process or rank started another copy."""
    frame = copies(copy(0, 1, 10, correlation=1, src_memory="pageable"))
    calls = api_calls({"start_ns": 0, "dur_ns": 1, "name": "cudaMemcpyAsync", "correlation": 1, **other})
    assert pageable_async(frame, calls).empty


def test_pageable_async_of_nothing() -> None:
    """Without copies or calls there is no row, and the columns and types are those of a result."""
    frame = copies(copy(0, 1, 10, correlation=1, src_memory="pageable"))
    calls = api_calls({"start_ns": 0, "dur_ns": 1, "name": "cudaMemcpyAsync", "correlation": 1})
    types = pageable_async(frame, calls).dtypes.astype(str).to_dict()
    assert types["api"] == "category"
    for nothing in (pageable_async(COPIES.empty(), calls), pageable_async(frame, API_CALLS.empty())):
        assert (0, types) == (len(nothing), nothing.dtypes.astype(str).to_dict())


def test_small_copies() -> None:
    """Two of three H2D copies are at most 64 KiB, the D2H copy is not; a memset is no copy."""
    found = small_copies(
        copies(
            copy(0, 1, 65_536),
            copy(10, 2, 65_537),
            copy(20, 4, 0),
            copy(30, 8, 1_000_000, direction="D2H"),
            copy(40, 16, 4, direction="memset", src_memory=None),
        )
    )
    assert found.to_numpy().tolist() == [["H2D", 2, 65_536, 5, 2 / 3], ["D2H", 0, 0, 0, 0.0]]


def test_small_copies_in_a_window() -> None:
    """Copies outside the window count neither as small nor as all; one cut by it keeps its size."""
    frame = copies(copy(0, 10, 100), copy(8, 10, 200), copy(50, 5, 10))
    found = small_copies(frame, at_most_bytes=150, window=(5, 20))
    assert found.to_numpy().tolist() == [["H2D", 1, 100, 5, 0.5]]


def test_no_small_copies() -> None:
    """No copies, no rows, the same columns and types."""
    some = small_copies(copies(copy(0, 1, 1)))
    none = small_copies(COPIES.empty())
    assert (0, some.dtypes.astype(str).to_dict()) == (len(none), none.dtypes.astype(str).to_dict())


@pytest.mark.parametrize("by", [[], ["direction", "name"]])
def test_wrong_keys(by: list[str]) -> None:
    """No key and unknown keys are refused with the legal ones."""
    with pytest.raises(ValueError, match=r"is not one or more of \['direction', 'src_memory'"):
        copied(COPIES.empty(), by=by)


def test_wrong_arguments() -> None:
    """A negative size and foreign tables are refused; the input is not changed."""
    frame = random_copies(8)
    before = frame.copy()
    foreign = kernels({"start_ns": 0, "dur_ns": 1})
    with pytest.raises(ValueError, match="at_most_bytes: -1 is not 0 or more"):
        small_copies(frame, at_most_bytes=-1)
    with pytest.raises(SchemaError, match="'COPIES' does not match"):
        copied(foreign)
    with pytest.raises(SchemaError, match="'COPIES' does not match"):
        small_copies(foreign)
    with pytest.raises(SchemaError, match="'API_CALLS' does not match"):
        pageable_async(frame, foreign)
    copied(frame, window=(100, 200))
    pd.testing.assert_frame_equal(before, frame)
