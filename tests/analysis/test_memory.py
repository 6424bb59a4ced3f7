"""Memory that the framework holds over time, and copies."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call, steps
from frames import api_calls, copies, known, lasting, tuples, types
from ops import op, ops
from sampled import allocated as samples
from sampled import together as both

import perfkit
from perfkit.analysis import memory
from perfkit.analysis.steps import STEPS
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES, MEMORY_EVENTS, SAMPLES

LEVELS = (0, 2, 10), (10, 8, 10), (40, 4, 10), (50, 4, 20)


def shares(frame: pd.DataFrame, **more: Any) -> tuple[float, ...]:
    """Fragmentation of the only device: at the peak, mean and most."""
    (row,) = tuples(memory.fragmentation(frame, **more), "peak_frac", "mean_frac", "max_frac")
    return row


FRAME = samples(*LEVELS)
COLUMNS = "time_ns", "allocated_bytes", "reserved_bytes"


def test_levels_and_their_peak_by_hand() -> None:
    assert list(LEVELS) == tuples(memory.timeline(FRAME), *COLUMNS)
    assert [(10, 8, 10, 20)] == tuples(memory.peak(FRAME), *COLUMNS, "max_reserved_bytes")


def test_fragmentation_by_hand() -> None:
    """(10 - 8) / 10 = 0.2 at the peak; 0.8 for 10 ns, 0.2 for 30, 0.6 for 10: mean 20 / 50."""
    assert (0.2, 0.4, 0.8) == pytest.approx(shares(FRAME), rel=1e-15)


def test_0_of_0_reserved_bytes_weigh_nothing_in_the_mean() -> None:
    assert (0.5, 0.5, 0.5) == shares(samples((0, 0, 0), (10, 5, 10), (20, 5, 10)))


def test_one_level_spans_no_time_and_has_no_mean() -> None:
    assert (0.5, np.nan, 0.5) == pytest.approx(shares(samples((5, 5, 10))), nan_ok=True)


def test_the_nth_allocated_and_the_nth_reserved_level_of_a_time_belong_together() -> None:
    at_once = (5, 1, 10), (5, 9, 20), (5, 3, 30)
    assert list(at_once) == tuples(memory.timeline(samples(*at_once)), *COLUMNS)


def test_a_level_holds_into_a_window() -> None:
    """In 20..45 the level 8 of time 10 holds until 40, then 4: mean of 0.2 for 20 ns and 0.6 for 5."""
    window = (20, 45)
    assert [(20, 8), (40, 4)] == tuples(memory.timeline(FRAME, window=window), *COLUMNS[:2])
    assert (0.2 * 20 + 0.6 * 5) / 25 == pytest.approx(shares(FRAME, window=window)[1], rel=1e-15)
    for window, highest in (((20, 45), 8), ((40, 45), 4)):
        assert [highest] == memory.peak(FRAME, window=window)["allocated_bytes"].tolist()
    assert memory.timeline(FRAME, window=(-9, 0)).empty


def test_memory_of_a_monitoring_log_is_no_level_of_the_allocator() -> None:
    others = FRAME.assign(metric=pd.Categorical(["memory_used_bytes"] * len(FRAME)))
    assert memory.timeline(SAMPLES.make(others)).empty


def test_growth_by_hand() -> None:
    # Least in [0, 10), [10, 20) and [20, 30): 2, 3 and 6; peaks within a step do not count, warm-up neither.
    levels = samples(
        (0, 2, 90), (3, 50, 90), (8, 3, 90), (12, 70, 90), (18, 6, 90), (25, 80, 90), (29, 9, 90)
    )
    spans = (0, 10), (10, 20), (20, 30)
    found = tuples(
        memory.growth(levels, steps(*spans)),
        "steps_count",
        "growth_bytes",
        "grew_frac",
        "total_bytes",
    )
    assert [(3, 2.0, 1.0, 4)] == found
    for of, read in ((steps(*spans, steady=False), levels), (steps((0, 10)), levels)):
        assert memory.growth(read, of).empty
    assert memory.growth(samples((15, 7, 90)), steps(*spans)).empty, "no level is known before 15"


def test_growth_of_what_a_real_program_keeps(torch: Any, tmp_path: Path) -> None:
    for kept in (True, False):
        held = []
        with torch.profiler.profile(profile_memory=True, acc_events=True) as profiler:
            for _ in range(12):
                with torch.profiler.record_function("ProfilerStep#0"):
                    made = torch.ones(2**18) + 1
                    held += [made] if kept else []
        profiler.export_chrome_trace(str(tmp_path / f"{kept}.pt.trace.json"))
        run = perfkit.load(tmp_path / f"{kept}.pt.trace.json")
        spans = run.ranges[run.ranges["name"].eq("ProfilerStep#0")][["rank", "start_ns", "dur_ns"]]
        found = STEPS.make(
            spans.assign(step=range(len(spans)), name="step", steady=True, how="profiler")
        )
        (row,) = memory.growth(run.samples, found).to_dict("records")
        assert (2**20 if kept else 0) == row["growth_bytes"]


def test_memory_of_operators_is_what_pytorch_says(torch: Any, tmp_path: Path) -> None:
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiler:
        before = torch.ones(3)
        left = [before] + [
            torch.nn.functional.gelu(torch.ones(2**n) @ torch.ones(2**n, 7)) for n in (5, 9)
        ]
        left += [torch.cat([left[-1], left[-2]])]
    profiler.export_chrome_trace(str(tmp_path / "run.pt.trace.json"))
    run = perfkit.load(tmp_path / "run.pt.trace.json")
    found = memory.by_operator(run.samples, run.ops)
    told = {e.key: e.self_cpu_memory_usage for e in profiler.key_averages() if e.key != "[memory]"}
    first = {"aten::empty": 12}  # the three numbers of `before`, which nothing precedes
    assert {
        name: size - first.get(name, 0) for name, size in told.items() if size != first.get(name, 0)
    } == {
        row["name"]: row["net_bytes"]
        for row in found.to_dict("records")
        if row["net_bytes"] and isinstance(row["name"], str)
    }


def test_devices_and_ranks_are_apart_and_reserved_may_be_missing() -> None:
    frame = both(samples((5, 7, None), (9, 3, None), gpu=-1), samples((5, 1, 10), (6, 1, None)))
    assert [True, True, False, True] == memory.timeline(frame)["reserved_bytes"].isna().tolist()
    assert [7, 1] == memory.peak(frame)["allocated_bytes"].tolist()
    assert [True, False] == memory.peak(frame)["max_reserved_bytes"].isna().tolist()
    assert [True, False] == memory.fragmentation(frame)["max_frac"].isna().tolist()
    frame = both(samples(*LEVELS), samples((3, 1, 10), gpu=1), samples((30, 2, 40), rank=1))
    assert [(0, 0, 8), (0, 1, 1), (1, 0, 2)] == tuples(
        memory.peak(frame), "rank", "gpu", "allocated_bytes"
    )
    found = memory.bins(memory.timeline(frame), bins=3)
    most = found.groupby(["rank", "gpu"])[["max_allocated_bytes", "max_reserved_bytes"]].max()
    assert (
        memory.peak(frame)[["allocated_bytes", "max_reserved_bytes"]].to_numpy().tolist()
        == most.to_numpy().tolist()
    )
    assert {0, 17, 34} == set(found["start_ns"])


BINNED = "min_allocated_bytes", "max_allocated_bytes", "max_reserved_bytes"


def test_bins_by_hand() -> None:
    expected = [(0, 12, 2, 8, 10), (12, 13, 8, 8, 10), (25, 13, 8, 8, 10), (38, 13, 4, 8, 20)]
    assert expected == tuples(
        memory.bins(memory.timeline(samples(*LEVELS)), bins=4), "start_ns", "dur_ns", *BINNED
    )


def test_a_level_that_ends_where_a_bin_begins_is_not_in_it() -> None:
    """8 bytes until 40 exactly: the bin from 40 on knows only the 4 that begin there."""
    found = memory.bins(memory.timeline(samples(*LEVELS)), bins=2, window=(0, 80))
    assert [(0, 8), (40, 4)] == tuples(found, "start_ns", "max_allocated_bytes")


def test_the_peak_of_levels_at_one_time_is_in_its_bin_and_in_no_later_one() -> None:
    """9 of the three levels at 5 ns."""
    found = memory.bins(
        memory.timeline(samples((5, 1, 10), (5, 9, None), (5, 3, None), (6, 3, None)))
    )
    assert [(1, 9, 10), (3, 3, None)] == known(found, *BINNED)


def test_no_bin_is_shorter_than_1_ns() -> None:
    assert [1, 1, 1] == memory.bins(memory.timeline(samples((0, 1, None), (2, 2, None))))[
        "dur_ns"
    ].tolist()
    assert [1] == memory.bins(memory.timeline(samples((7, 1, None))))["dur_ns"].tolist()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        PerfkitError, match="12 bytes are allocated of 10 reserved on gpu 0 of rank 0 at 7 ns"
    ):
        memory.fragmentation(samples((7, 12, 10)))


def copy(start: int, dur: int, size: int, **more: Any) -> dict[str, Any]:
    return lasting(start, dur, bytes=size, **more)


def test_memory_taken_from_cuda_by_hand() -> None:
    events = [
        (10, "allocation", "device", 100),
        (20, "allocation", "device", 50),
        (25, "allocation", "pinned", 7),
        (30, "release", "device", 100),
        (40, "allocation", "device", 20),
    ]
    columns = ["time_ns", "operation", "memory", "bytes"]
    recorded = pd.DataFrame(events, columns=columns).assign(
        rank=0, gpu=0, process=1, address=pd.NA, correlation=-1
    )
    frame = MEMORY_EVENTS.make(recorded)
    told = ("memory", "allocations_count", "releases_count", "peak_bytes", "kept_bytes")
    expected = [("device", 3, 1, 150, 70), ("pinned", 1, 0, 7, 7)]
    assert expected == tuples(memory.taken(frame), *told)
    assert [("device", 1, 1, 70, 70)] == tuples(memory.taken(frame, window=(30, 41)), *told)


def test_copied_by_hand() -> None:
    row = memory.copied(copies(copy(0, 10, 1000), copy(50, 30, 2000))).iloc[0]
    assert row.to_dict() == {
        "direction": "H2D",
        "src_memory": "pinned",
        "dst_memory": "device",
        "count": 2,
        "bytes": 3000,
        "total_ns": 40,
        "bytes_per_s": 75e9,  # 3000 bytes in 40 ns, not the mean of 100 and 66.7 GB/s
        "mean_ns": 20,
        "median_ns": 20,
        "min_ns": 10,
        "max_ns": 30,
        "std_ns": 200**0.5,
        "mean_bytes": 1500,
        "median_bytes": 1500,
        "min_bytes": 1000,
        "max_bytes": 2000,
        "std_bytes": 500_000**0.5,
    }


def test_a_copy_in_0_ns_has_bytes_and_no_rate() -> None:
    found = memory.copied(
        copies(copy(0, 10, 1000), copy(50, 0, 500), copy(60, 0, 7, direction="D2H"))
    )
    assert found.loc[0, ["bytes", "bytes_per_s"]].tolist() == [1500, 100e9]
    assert np.isnan(found.loc[1, "bytes_per_s"])


def test_kinds_of_memory_are_told_apart_and_a_memset_has_no_source() -> None:
    memset = copy(60, 20, 1, direction="memset", src_memory=None)
    found = memory.copied(copies(copy(0, 10, 1), copy(20, 30, 1, src_memory="pageable"), memset))
    assert [("pageable",), (None,), ("pinned",)] == known(found, "src_memory")


def test_a_quarter_of_a_copy_lies_in_a_window() -> None:
    """Of the copy 0..40, in 30..100."""
    found = memory.copied(copies(copy(0, 40, 1000), copy(100, 10, 5)), window=(30, 100))
    assert [(1, 250, 10, 25e9)] == tuples(found, "count", "bytes", "total_ns", "bytes_per_s")


def test_nothing_copied_has_the_types_of_something() -> None:
    for by in (["direction"], list(memory.COPY_KEYS)):
        some = memory.copied(copies(copy(0, 1, 1)), by=by)
        assert types(some) == types(memory.copied(COPIES.empty(), by=by))
        assert memory.copied(COPIES.empty(), by=by, window=(0, 1)).empty


def test_pageable_copies_of_asynchronous_calls() -> None:
    frame = copies(
        copy(0, 1, 10, correlation=1, src_memory="pageable"),
        copy(10, 2, 20, correlation=2, src_memory="pageable"),
        copy(20, 3, 30, correlation=3),
        copy(30, 4, 40, correlation=4, direction="D2H", src_memory="device", dst_memory="pageable"),
        copy(40, 5, 50, src_memory="pageable"),
    )
    names = "cudaMemcpyAsync", "cudaMemcpy", "cudaMemcpyAsync", "cuMemcpyDtoHAsync"
    calls = [call(2 * i, 2 * i + 1, name, i + 1) for i, name in enumerate(names)]
    found = (
        memory.pageable_async(frame, api_calls(*calls))
        .drop(columns=["rank", "gpu"])
        .to_numpy()
        .tolist()
    )
    assert [[0, 1, 10, "H2D", "cudaMemcpyAsync"], [30, 4, 40, "D2H", "cuMemcpyDtoHAsync"]] == found
    # Ids are unique within a process only.
    for other in ({"process": 2}, {"rank": 1}):
        assert memory.pageable_async(frame[:1], api_calls({**calls[0], **other})).empty


def test_small_copies() -> None:
    sizes = (
        copy(0, 1, 65_536),
        copy(10, 2, 65_537),
        copy(20, 4, 0),
        copy(30, 8, 1_000_000, direction="D2H"),
    )
    found = memory.small_copies(
        copies(*sizes, copy(40, 16, 4, direction="memset", src_memory=None))
    )
    assert found.to_numpy().tolist() == [["H2D", 2, 65_536, 5, 2 / 3], ["D2H", 0, 0, 0, 0.0]]
    # Copies outside of a window count neither as small nor as all; one cut by it keeps its size.
    frame = copies(copy(0, 10, 65_536), copy(8, 10, 200_000), copy(50, 5, 10))
    found = memory.small_copies(frame, window=(5, 20))
    assert found.to_numpy().tolist() == [["H2D", 1, 65_536, 5, 0.5]]


def test_memory_while_two_threads_run_operators_is_nobodys() -> None:
    # Of changes at 5, 15, 25 and 35 the first is unknown; they are of mm, of either operator, and of none.
    levels = samples((5, 4, None), (15, 10, None), (25, 30, None), (35, 1, None))
    found = memory.by_operator(
        levels, ops(op("aten::mm", 0, 30), op("aten::add", 20, 30, thread=2))
    )
    assert [(20, 29), (6, 0)] == tuples(found, "allocated_bytes", "released_bytes")
    assert [True, False] == found["name"].isna().tolist()
