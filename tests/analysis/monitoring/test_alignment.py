"""Clock and throttling of each kernel from a log, and samples in bins of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import kernels
from sampled import samples, together

import perfkit
from perfkit.analysis import monitoring
from perfkit.analysis.monitoring.alignment import bins, clock_under_kernels
from perfkit.errors import PerfkitError
from perfkit.tables import KERNELS, SAMPLES

# Kernels from 10 to 30 and 40 to 90; clocks at 0, 10, ..., 90.
RAN = kernels({"start_ns": 10, "dur_ns": 20, "name": "a"}, {"start_ns": 40, "dur_ns": 50, "name": "b"})
CLOCKS = [300, 1900, 1200, 300, 1900, 1000, 1100, 1900, 1800, 300]
TOP = {"sm_clock_hz": CLOCKS, "sm_max_clock_hz": [2000] + [None] * 9}


def test_the_clock_counts_where_a_kernel_runs() -> None:
    """At 10, 20, 40 to 80: 1900, 1200, 1900, 1000, 1100, 1900, 1800, mean 10800 / 7; three are below 1800."""
    found = clock_under_kernels(samples(every=10, **TOP), RAN).iloc[0]
    assert (7, 1000, 2000, "sm_max_clock_hz") == tuple(
        found[["count", "lowest_clock_hz", "max_clock_hz", "max_source"]]
    )
    assert found["mean_clock_hz"] == pytest.approx(10800 / 7, rel=1e-15)
    assert found["low_frac"] == pytest.approx(3 / 7, rel=1e-15)


def test_without_a_recorded_maximum_it_is_the_highest_reading() -> None:
    """1900 of the whole log, also outside the window, and it says so; below 1710 are three of four."""
    found = clock_under_kernels(samples(every=10, sm_clock_hz=CLOCKS), RAN, window=(50, 90)).iloc[0]
    assert (1900, "sm_clock_hz", 4, 0.5) == tuple(found[["max_clock_hz", "max_source", "count", "low_frac"]])


def test_only_devices_with_both_have_a_row() -> None:
    """GPU 0 has kernels alone, GPU 2 readings alone."""
    drawn = together(*(samples(gpu=gpu, every=10, sm_clock_hz=[1, 1]) for gpu in (1, 2)))
    ran = kernels({"start_ns": 0, "dur_ns": 20}, {"gpu": 1, "start_ns": 0, "dur_ns": 20})
    assert [1] == clock_under_kernels(drawn, ran)["gpu"].tolist()


def test_clocks_that_do_not_meet_are_refused() -> None:
    """A log that is an hour late, as from another time zone, or of another device, has nothing to say."""
    hour = 3600 * 10**9
    late = samples(at=[hour, hour + 10], sm_clock_hz=[1, 1])
    with pytest.raises(
        PerfkitError, match=r"\(rank 0 gpu 0\) has readings .* 1 h 0 min after the first kernel\. Check"
    ):
        clock_under_kernels(late, kernels({"start_ns": 0, "dur_ns": 20}))
    with pytest.raises(PerfkitError, match=r"no device \(rank 0 gpu 0\) .* rank and gpu of both name the same devices"):
        clock_under_kernels(samples(every=10, sm_clock_hz=[1, 1]), kernels({"gpu": 3, "start_ns": 0, "dur_ns": 20}))


def test_the_share_of_the_maximum_is_a_share() -> None:
    """Above 0 and at most 1."""
    with pytest.raises(ValueError, match="below: 0 is not within 0 and 1"):
        clock_under_kernels(SAMPLES.empty(), KERNELS.empty(), below=0)


FIGURES = ["start_ns", "dur_ns", "covered_ns", "count", "mean", "min", "max"]
RUN = "smi_query__rtx4090_training_run.csv"


def sampled_at(*readings: tuple[int, float], metric: str = "power_w", gpu: int = 0, rank: int = 0) -> pd.DataFrame:
    """SAMPLES of (time, value) of a metric of a device."""
    frame = pd.DataFrame(readings, columns=["time_ns", "value"], dtype=float).astype({"time_ns": "int64"})
    return SAMPLES.make(frame.assign(metric=metric, gpu=gpu, rank=rank))


def both(*tables: pd.DataFrame) -> pd.DataFrame:
    """SAMPLES of several metrics or devices."""
    return SAMPLES.make(pd.concat(tables))


def rows(found: pd.DataFrame) -> list[tuple[Any, ...]]:
    """The figures of each bin."""
    return list(found[FIGURES].itertuples(index=False, name=None))


def test_two_bins_by_hand() -> None:
    """2 for 10 ns, 8 for 30, 4 for 10 (the usual interval), in bins of 25: (2*10 + 8*15)/25, (8*15 + 4*10)/25."""
    found = bins(sampled_at((0, 2), (10, 8), (40, 4)), bins=2)
    assert [(0, 25, 25, 2, 5.6, 2.0, 8.0), (25, 25, 25, 1, 6.4, 4.0, 8.0)] == rows(found)


def test_a_long_reading_fills_the_bins_it_reaches_over() -> None:
    """Readings at 0, 1, 2 and 9 ns, the usual interval 1: the third counts in four bins, in three it is not taken."""
    found = bins(sampled_at((0, 1), (1, 2), (2, 7), (9, 3)), bins=5)
    assert [2, 1, 0, 0, 1] == found["count"].tolist()
    assert [1.5, 7, 7, 7, 5] == found["mean"].tolist()
    assert [1, 7, 7, 7, 3] == found["min"].tolist()


def test_a_reading_at_an_edge_belongs_to_the_bin_it_begins() -> None:
    """With readings at the edges the one before does not count among the extremes of the next bin."""
    found = bins(sampled_at((0, 9), (5, 1), (10, 9), (15, 1)), bins=4)
    assert [9, 1, 9, 1] == found["min"].tolist() == found["max"].tolist()


def test_no_bin_is_shorter_than_the_readings_are_apart() -> None:
    """Five readings 10 ns apart make five bins however many are asked for; each is a reading."""
    found = bins(sampled_at(*((10 * n, n) for n in range(5))), bins=300)
    assert [(10 * n, 10, 10, 1, n, n, n) for n in range(5)] == rows(found)


def test_the_finest_metric_decides() -> None:
    """Power every 20 ns and a clock every 5 ns share bins of 5 ns; power counts in all of them."""
    found = bins(both(sampled_at((0, 1), (20, 2)), sampled_at(*((5 * n, n) for n in range(8)), metric="sm_clock_hz")))
    power = found[found["metric"] == "power_w"]
    assert {5} == set(found["dur_ns"])
    assert [1, 1, 1, 1, 2, 2, 2, 2] == power["mean"].tolist()
    assert [1, 0, 0, 0, 1, 0, 0, 0] == power["count"].tolist()


def test_the_last_bin_is_what_is_left() -> None:
    """10 ns in bins of 4: the last one has 2."""
    found = bins(sampled_at(*((n, n) for n in range(10))), bins=3)
    assert [(0, 4, 4), (4, 4, 4), (8, 2, 2)] == list(found[FIGURES[:3]].itertuples(index=False, name=None))


def test_the_window_is_what_the_bins_tile() -> None:
    """Of readings at 0, 10, ... in 15..55: the first bin is covered from 20 on, the last reading is cut at 55."""
    found = bins(sampled_at(*((10 * n, n) for n in range(9))), bins=2, window=(15, 55))
    assert [(15, 20, 15, 2), (35, 20, 20, 2)] == list(found[FIGURES[:4]].itertuples(index=False, name=None))
    assert [(2 * 10 + 3 * 5) / 15, (3 * 5 + 4 * 10 + 5 * 5) / 20] == found["mean"].tolist()


def test_devices_metrics_and_times_below_0() -> None:
    """Each device and metric has its own bins on one axis, which may begin before 0; others are passed over."""
    frame = both(
        sampled_at((-10, 1), (0, 3)),
        sampled_at((0, 5), (10, 7), gpu=1),
        sampled_at((-10, 2), (0, 2), rank=1),
        sampled_at((-10, 0), (0, 0), metric="fan_frac"),
    )
    found = bins(frame, metrics=("power_w", "sm_clock_hz"), bins=3)
    keys = list(found[["rank", "gpu", "metric", "start_ns", "mean"]].itertuples(index=False, name=None))
    whole = [(0, 0, -10, 1), (0, 0, 0, 3), (0, 1, 0, 5), (0, 1, 10, 7), (1, 0, -10, 2), (1, 0, 0, 2)]
    assert [(rank, gpu, "power_w", start, mean) for rank, gpu, start, mean in whole] == keys
    assert {"power_w", "fan_frac"} == set(bins(frame)["metric"])


def test_readings_of_one_time() -> None:
    """The last of several counts for the mean, all for the extremes; where nothing else was read all weigh alike."""
    found = bins(sampled_at((0, 1), (10, 9), (10, 3), (20, 1), (30, 1)), bins=4)
    assert (10, 10, 10, 2, 3.0, 3.0, 9.0) == rows(found)[1]
    assert [(7, 1, 1, 2, 6.0, 4.0, 8.0)] == rows(bins(sampled_at((7, 4), (7, 8))))


def test_missing_readings_count_for_nothing() -> None:
    """NaN is no reading: the one before it counts on, from 1 to 3."""
    found = bins(sampled_at((0, 2), (1, 4), (2, float("nan")), (3, 6)))
    assert [2, 4, 4, 6] == found["mean"].tolist()
    assert [1, 1, 0, 1] == found["count"].tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bins_by_following_every_nanosecond(seed: int) -> None:
    """Mean and extremes are those of the value at every nanosecond of a bin, for readings at different times."""
    random = np.random.default_rng(seed)
    frame = both(*(_random(random, gpu) for gpu in range(3)))
    found = bins(frame, bins=7)
    for gpu, of_gpu in found.groupby("gpu"):
        times, values = (frame.loc[frame["gpu"] == gpu, column].to_numpy() for column in ("time_ns", "value"))
        until = times[-1] + sorted(np.diff(times))[(len(times) - 2) // 2]
        for row in of_gpu.to_dict("records"):
            inside = range(max(row["start_ns"], times[0]), min(row["start_ns"] + row["dur_ns"], until))
            each = [values[times <= time][-1] for time in inside]
            assert len(each) == row["covered_ns"]
            assert (min(each), max(each)) == (row["min"], row["max"])
            assert row["mean"] == pytest.approx(float(np.mean(each)), rel=1e-12)
            assert sum(time in inside for time in times) == row["count"]


def _random(random: np.random.Generator, gpu: int) -> pd.DataFrame:
    times = np.sort(random.choice(400, 25, replace=False)).tolist()
    return sampled_at(*zip(times, random.random(25).tolist(), strict=True), gpu=gpu)


@pytest.mark.parametrize("number", [1, 3, 10, 1000])
def test_bins_add_up_to_the_whole(number: int) -> None:
    """Weighted by the time they cover, the means of any number of bins are the time-weighted mean of the log."""
    frame = both(*(_random(np.random.default_rng(gpu), gpu) for gpu in range(3)))
    found = bins(frame, bins=number)
    whole = monitoring.summary(frame)
    parts = found.assign(sum=found["mean"] * found["covered_ns"]).groupby("gpu")[["sum", "covered_ns", "count"]].sum()
    assert (parts["sum"] / parts["covered_ns"]).tolist() == pytest.approx(whole["mean"].tolist(), rel=1e-12)
    assert whole["count"].tolist() == parts["count"].tolist()


def test_the_order_of_readings_does_not_matter() -> None:
    """Shuffled rows give the same bins, and the input stays as it was."""
    frame = both(*(_random(np.random.default_rng(gpu), gpu) for gpu in range(3)))
    shuffled = frame.sample(frac=1, random_state=1)
    before = shuffled.copy()
    pd.testing.assert_frame_equal(bins(frame, bins=6), bins(shuffled, bins=6))
    pd.testing.assert_frame_equal(before, shuffled)


def test_without_readings() -> None:
    """None of a metric and none in the window give no bins, with all columns and their types."""
    full = bins(sampled_at((0, 1), (1, 2)))
    for only in ({"metrics": ("sm_clock_hz",)}, {"window": (5, 9)}):
        found = bins(sampled_at((0, 1)), **only)
        assert found.empty
        assert full.dtypes.drop("metric").equals(found.dtypes.drop("metric"))
        assert isinstance(found["metric"].dtype, pd.CategoricalDtype)


def test_no_bins_are_refused() -> None:
    """There is at least one."""
    with pytest.raises(ValueError, match=r"bins: 0 is not at least 1"):
        bins(sampled_at((0, 1)), bins=0)


def test_the_real_log(profiles: Path) -> None:
    """2,619 readings a second apart in 300 bins: none is lost, and the extremes are those of the log."""
    log = perfkit.load(profiles / "monitor" / RUN).samples
    found = bins(log, metrics=("power_w", "gpu_busy_frac"))
    assert {"gpu_busy_frac": 2619, "power_w": 2619} == found.groupby("metric", observed=True)["count"].sum().to_dict()
    power = log.loc[log["metric"] == "power_w", "value"]
    of_power = found[found["metric"] == "power_w"]
    assert (power.min(), power.max()) == (of_power["min"].min(), of_power["max"].max())
    assert 300 == len(of_power)
