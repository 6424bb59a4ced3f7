"""Allocated and reserved memory: over time, at its peak, and how much of it lies idle."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from frames import ranges

from perfkit.analysis.memory import TIMELINE, bins, fragmentation, peak, timeline
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import SAMPLES


def samples(*levels: tuple[int, int, int | None], gpu: int = 0, rank: int = 0) -> pd.DataFrame:
    """SAMPLES of (time, allocated, reserved) of a device; reserved None is not recorded."""
    rows = []
    for time, allocated, reserved in levels:
        at = {"rank": rank, "gpu": gpu, "time_ns": time}
        rows.append({**at, "metric": "memory_allocated_bytes", "value": float(allocated)})
        if reserved is not None:
            rows.append({**at, "metric": "memory_reserved_bytes", "value": float(reserved)})
    return SAMPLES.make(pd.DataFrame(rows, columns=SAMPLES.column_names))


def both(*tables: pd.DataFrame) -> pd.DataFrame:
    """SAMPLES of several devices."""
    return SAMPLES.make(pd.concat(tables))


LEVELS = (0, 2, 10), (10, 8, 10), (40, 4, 10), (50, 4, 20)


def test_timeline_by_hand() -> None:
    """A level per event, allocated and reserved side by side."""
    found = timeline(samples(*LEVELS))
    assert [list(level) for level in LEVELS] == found[
        ["time_ns", "allocated_bytes", "reserved_bytes"]
    ].to_numpy().tolist()


def test_peak_by_hand() -> None:
    """Most is allocated from 10 on, 8 of 10 reserved; later 20 are reserved."""
    found = peak(samples(*LEVELS)).iloc[0]
    assert (8, 10, 10, 20) == tuple(found[["allocated_bytes", "time_ns", "reserved_bytes", "max_reserved_bytes"]])


def test_fragmentation_by_hand() -> None:
    """(10 - 8) / 10 = 0.2 at the peak, as in the definition; 0.8 for 10 ns, 0.2 for 30, 0.6 for 10: mean 20 / 50."""
    found = fragmentation(samples(*LEVELS)).iloc[0]
    assert 0.2 == found["peak_frac"]
    assert found["mean_frac"] == pytest.approx(0.4, rel=1e-15)
    assert 0.8 == found["max_frac"]


def test_events_at_one_time() -> None:
    """The n-th allocated and the n-th reserved level of a time belong together, in their order."""
    found = timeline(samples((5, 1, 10), (5, 9, 20), (5, 3, 30)))
    assert [[1, 10], [9, 20], [3, 30]] == found[["allocated_bytes", "reserved_bytes"]].to_numpy().tolist()


def test_reserved_not_recorded() -> None:
    """Host memory has no reserved level: missing, and no fragmentation; its peak is known."""
    frame = both(samples((5, 7, None), (9, 3, None), gpu=-1), samples((5, 1, 10), (6, 1, None)))
    assert [True, True, False, True] == timeline(frame)["reserved_bytes"].isna().tolist()
    assert [7, 1] == peak(frame)["allocated_bytes"].tolist()
    assert [True, False] == peak(frame)["max_reserved_bytes"].isna().tolist()
    assert [True, False] == fragmentation(frame)["max_frac"].isna().tolist()


def test_nothing_reserved() -> None:
    """0 of 0 reserved bytes are NaN, and weigh nothing in the mean."""
    found = fragmentation(samples((0, 0, 0), (10, 5, 10), (20, 5, 10))).iloc[0]
    assert [0.5, 0.5, 0.5] == found[["peak_frac", "mean_frac", "max_frac"]].tolist()


def test_single_level() -> None:
    """One level spans no time: there is no mean over it."""
    found = fragmentation(samples((5, 5, 10))).iloc[0]
    assert (0.5, 0.5) == (found["peak_frac"], found["max_frac"])
    assert np.isnan(found["mean_frac"])


def test_devices_and_ranks_are_apart() -> None:
    """Each device of each rank has its own levels and peak."""
    frame = both(samples(*LEVELS), samples((3, 1, 10), gpu=1), samples((3, 2, 40), rank=1))
    assert [(0, 0, 8), (0, 1, 1), (1, 0, 2)] == list(
        peak(frame)[["rank", "gpu", "allocated_bytes"]].itertuples(index=False, name=None)
    )


def test_window_keeps_the_level_at_its_start() -> None:
    """In 20..45 the level 8 of time 10 holds until 40, then 4: mean of 0.2 for 20 ns and 0.6 for 5."""
    frame = samples(*LEVELS)
    assert [[20, 8], [40, 4]] == timeline(frame, window=(20, 45))[["time_ns", "allocated_bytes"]].to_numpy().tolist()
    assert [8] == peak(frame, window=(20, 45))["allocated_bytes"].tolist()
    assert [4] == peak(frame, window=(40, 45))["allocated_bytes"].tolist()
    mean = fragmentation(frame, window=(20, 45))["mean_frac"].iloc[0]
    assert mean == pytest.approx((0.2 * 20 + 0.6 * 5) / 25, rel=1e-15)
    assert timeline(frame, window=(-9, 0)).empty


def test_other_metrics_are_passed_over() -> None:
    """Power and memory of a monitoring log are no levels of the allocator."""
    frame = samples(*LEVELS)
    others = frame.assign(metric=pd.Categorical(["memory_used_bytes"] * len(frame)))
    assert timeline(SAMPLES.make(others)).empty


@pytest.mark.parametrize("seed", [1, 2])
def test_levels_by_following_the_events(seed: int) -> None:
    """Peak and mean are what a program that follows the events one by one finds."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, 300, 60)).tolist()
    reserved = random.integers(50, 100, 60)
    allocated = (reserved * random.random(60)).astype(int)
    events = list(zip(times, allocated.tolist(), reserved.tolist(), strict=True))
    part = sum((b[0] - a[0]) * (a[2] - a[1]) / a[2] for a, b in pairwise(events))
    frame = samples(*events)
    assert fragmentation(frame)["mean_frac"].iloc[0] == pytest.approx(part / (times[-1] - times[0]), rel=1e-12)
    assert max(event[1] for event in events) == peak(frame)["allocated_bytes"].iloc[0]
    assert events == list(timeline(frame).drop(columns=["rank", "gpu"]).itertuples(index=False, name=None))


def test_bins_by_hand() -> None:
    """Four bins on [0, 51): 2, then 8 from 10 on; 8 held from before; 8 until 40; 4 at last, reserved 10, then 20."""
    found = bins(timeline(samples(*LEVELS)), bins=4)
    assert [[0, 12], [12, 13], [25, 13], [38, 13]] == found[["start_ns", "dur_ns"]].to_numpy().tolist()
    levels = found[["min_allocated_bytes", "max_allocated_bytes", "max_reserved_bytes"]]
    assert [[2, 8, 10], [8, 8, 10], [8, 8, 10], [4, 8, 20]] == levels.to_numpy().tolist()


def test_a_level_that_ends_with_a_bin_is_not_in_the_next() -> None:
    """8 bytes until 40 exactly: the bin from 40 on knows only the 4 that begin there."""
    found = bins(timeline(samples(*LEVELS)), bins=2, window=(0, 80))
    assert [(0, 8), (40, 4)] == list(found[["start_ns", "max_allocated_bytes"]].itertuples(index=False, name=None))


def test_levels_of_no_duration_count_in_their_bin() -> None:
    """9 of the three levels at 5 ns is the peak: it is in the bin, and in no later one."""
    found = bins(timeline(samples((5, 1, 10), (5, 9, None), (5, 3, None), (6, 3, None))))
    assert [[1, 9, 10], [3, 3, None]] == [
        [None if pd.isna(value) else value for value in row] for row in found.iloc[:, 4:].to_numpy(object).tolist()
    ]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("window", [None, (40, 260)])
def test_bins_against_the_level_of_every_nanosecond(seed: int, window: tuple[int, int] | None) -> None:
    """Least and most of each bin are those of its nanoseconds, for two devices that begin at different times."""
    random = np.random.default_rng(seed)
    frames, held = [], []
    for gpu in (0, 1):
        times = np.sort(random.choice(np.arange(20 * gpu, 300), 40, replace=False)).tolist()
        values = random.integers(0, 99, 40).tolist()
        frames.append(samples(*((time, value, 100) for time, value in zip(times, values, strict=True)), gpu=gpu))
        held.append(np.concatenate([np.full(times[0], -1), np.repeat(values, np.diff(times, append=400))]))
    table = timeline(both(*frames))
    first, last = window or (int(table["time_ns"].min()), int(table["time_ns"].max()) + 1)
    expected = []
    for gpu, level in enumerate(held):
        for at in range(7):
            low, high = (first + (last - first) // 7 * edge + (last - first) % 7 * edge // 7 for edge in (at, at + 1))
            seen = level[low:high][level[low:high] >= 0]
            expected += [[0, gpu, low, high - low, seen.min(), seen.max(), 100]] if len(seen) else []
    assert expected == bins(table, bins=7, window=window).to_numpy().tolist()


def test_bins_keep_the_peak() -> None:
    """However few the bins, most of them is the peak of each device; the devices share one axis."""
    frame = both(samples(*LEVELS), samples((3, 1, 10), gpu=1), samples((30, 2, 40), rank=1))
    found = bins(timeline(frame), bins=3)
    most = found.groupby(["rank", "gpu"])[["max_allocated_bytes", "max_reserved_bytes"]].max()
    assert peak(frame)[["allocated_bytes", "max_reserved_bytes"]].to_numpy().tolist() == most.to_numpy().tolist()
    assert {0, 17, 34} == set(found["start_ns"])


def test_no_more_bins_than_nanoseconds() -> None:
    """Levels at 0 and 2 ns asked for in 500 bins come in 3 of 1 ns; one level in one."""
    assert [1, 1, 1] == bins(timeline(samples((0, 1, None), (2, 2, None))))["dur_ns"].tolist()
    assert [1] == bins(timeline(samples((7, 1, None))))["dur_ns"].tolist()


def test_more_allocated_than_reserved() -> None:
    """Levels that contradict each other are refused, with the numbers."""
    with pytest.raises(PerfkitError, match="12 bytes are allocated of 10 reserved on gpu 0 of rank 0 at 7 ns"):
        fragmentation(samples((7, 12, 10)))


def test_empty() -> None:
    """No samples, no rows, the same columns and types."""
    assert TIMELINE.check(timeline(SAMPLES.empty())).empty
    for question in (timeline, peak, fragmentation):
        none, some = question(SAMPLES.empty()), question(samples(*LEVELS))
        assert none.empty
        assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()
    none, some = bins(TIMELINE.empty()), bins(timeline(samples(*LEVELS)))
    assert none.empty
    assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()
    assert bins(TIMELINE.empty(), window=(5, 9)).empty


def test_wrong_arguments() -> None:
    """A foreign table and a backward window are refused; the input is not changed."""
    frame = samples(*LEVELS)
    before = frame.copy()
    for question in (timeline, peak, fragmentation):
        with pytest.raises(SchemaError, match="'SAMPLES' does not match"):
            question(ranges())
        with pytest.raises(ValueError, match="does not end after it starts"):
            question(frame, window=(5, 5))
        question(frame, window=(5, 30))
    with pytest.raises(SchemaError, match="'TIMELINE' does not match"):
        bins(frame)
    with pytest.raises(ValueError, match="does not end after it starts"):
        bins(timeline(frame), window=(5, 5))
    with pytest.raises(ValueError, match=r"bins: 0 is not at least 1"):
        bins(timeline(frame), bins=0)
    pd.testing.assert_frame_equal(before, frame)
