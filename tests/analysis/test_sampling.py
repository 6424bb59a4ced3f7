"""Sampled metrics in equal bins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import ranges

import perfkit
from perfkit.analysis import monitoring
from perfkit.analysis.monitoring.alignment import bins
from perfkit.errors import SchemaError
from perfkit.tables import SAMPLES

FIGURES = ["start_ns", "dur_ns", "covered_ns", "count", "mean", "min", "max"]
RUN = "smi_query__rtx4090_training_run.csv"


def samples(*readings: tuple[int, float], metric: str = "power_w", gpu: int = 0, rank: int = 0) -> pd.DataFrame:
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
    found = bins(samples((0, 2), (10, 8), (40, 4)), bins=2)
    assert [(0, 25, 25, 2, 5.6, 2.0, 8.0), (25, 25, 25, 1, 6.4, 4.0, 8.0)] == rows(found)


def test_a_long_reading_fills_the_bins_it_reaches_over() -> None:
    """Readings at 0, 1, 2 and 9 ns, the usual interval 1: the third counts in four bins, in three it is not taken."""
    found = bins(samples((0, 1), (1, 2), (2, 7), (9, 3)), bins=5)
    assert [2, 1, 0, 0, 1] == found["count"].tolist()
    assert [1.5, 7, 7, 7, 5] == found["mean"].tolist()
    assert [1, 7, 7, 7, 3] == found["min"].tolist()


def test_a_reading_at_an_edge_belongs_to_the_bin_it_begins() -> None:
    """With readings at the edges the one before does not count among the extremes of the next bin."""
    found = bins(samples((0, 9), (5, 1), (10, 9), (15, 1)), bins=4)
    assert [9, 1, 9, 1] == found["min"].tolist() == found["max"].tolist()


def test_no_bin_is_shorter_than_the_readings_are_apart() -> None:
    """Five readings 10 ns apart make five bins however many are asked for; each is a reading."""
    found = bins(samples(*((10 * n, n) for n in range(5))), bins=300)
    assert [(10 * n, 10, 10, 1, n, n, n) for n in range(5)] == rows(found)


def test_the_finest_metric_decides() -> None:
    """Power every 20 ns and a clock every 5 ns share bins of 5 ns; power counts in all of them."""
    found = bins(both(samples((0, 1), (20, 2)), samples(*((5 * n, n) for n in range(8)), metric="sm_clock_hz")))
    power = found[found["metric"] == "power_w"]
    assert {5} == set(found["dur_ns"])
    assert [1, 1, 1, 1, 2, 2, 2, 2] == power["mean"].tolist()
    assert [1, 0, 0, 0, 1, 0, 0, 0] == power["count"].tolist()


def test_the_last_bin_is_what_is_left() -> None:
    """10 ns in bins of 4: the last one has 2."""
    found = bins(samples(*((n, n) for n in range(10))), bins=3)
    assert [(0, 4, 4), (4, 4, 4), (8, 2, 2)] == list(found[FIGURES[:3]].itertuples(index=False, name=None))


def test_the_window_is_what_the_bins_tile() -> None:
    """Of readings at 0, 10, ... in 15..55: the first bin is covered from 20 on, the last reading is cut at 55."""
    found = bins(samples(*((10 * n, n) for n in range(9))), bins=2, window=(15, 55))
    assert [(15, 20, 15, 2), (35, 20, 20, 2)] == list(found[FIGURES[:4]].itertuples(index=False, name=None))
    assert [(2 * 10 + 3 * 5) / 15, (3 * 5 + 4 * 10 + 5 * 5) / 20] == found["mean"].tolist()


def test_devices_metrics_and_times_below_0() -> None:
    """Each device and metric has its own bins on one axis, which may begin before 0; others are passed over."""
    frame = both(
        samples((-10, 1), (0, 3)),
        samples((0, 5), (10, 7), gpu=1),
        samples((-10, 2), (0, 2), rank=1),
        samples((-10, 0), (0, 0), metric="fan_frac"),
    )
    found = bins(frame, metrics=("power_w", "sm_clock_hz"), bins=3)
    keys = list(found[["rank", "gpu", "metric", "start_ns", "mean"]].itertuples(index=False, name=None))
    whole = [(0, 0, -10, 1), (0, 0, 0, 3), (0, 1, 0, 5), (0, 1, 10, 7), (1, 0, -10, 2), (1, 0, 0, 2)]
    assert [(rank, gpu, "power_w", start, mean) for rank, gpu, start, mean in whole] == keys
    assert {"power_w", "fan_frac"} == set(bins(frame)["metric"])


def test_readings_of_one_time() -> None:
    """The last of several counts for the mean, all for the extremes; where nothing else was read all weigh alike."""
    found = bins(samples((0, 1), (10, 9), (10, 3), (20, 1), (30, 1)), bins=4)
    assert (10, 10, 10, 2, 3.0, 3.0, 9.0) == rows(found)[1]
    assert [(7, 1, 1, 2, 6.0, 4.0, 8.0)] == rows(bins(samples((7, 4), (7, 8))))


def test_missing_readings_count_for_nothing() -> None:
    """NaN is no reading: the one before it counts on, from 1 to 3."""
    found = bins(samples((0, 2), (1, 4), (2, float("nan")), (3, 6)))
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
    return samples(*zip(times, random.random(25).tolist(), strict=True), gpu=gpu)


@pytest.mark.parametrize("number", [1, 3, 10, 1000])
def test_bins_add_up_to_the_whole(number: int) -> None:
    """Weighted by the time they cover, the means of any number of bins are the time-weighted mean of the log."""
    frame = both(*(_random(np.random.default_rng(gpu), gpu) for gpu in range(3)))
    found = bins(frame, bins=number)
    whole = monitoring.summary(frame)
    parts = found.assign(sum=found["mean"] * found["covered_ns"]).groupby("gpu")[["sum", "covered_ns", "count"]].sum()
    assert (parts["sum"] / parts["covered_ns"]).tolist() == pytest.approx(whole["mean"].tolist(), rel=1e-12)
    assert whole["count"].tolist() == parts["count"].tolist()


def test_shifted_readings_shift_the_bins() -> None:
    """A second later everything else is the same."""
    frame = _random(np.random.default_rng(5), 0)
    later = bins(frame.assign(time_ns=frame["time_ns"] + 10**9), bins=6)
    pd.testing.assert_frame_equal(bins(frame, bins=6), later.assign(start_ns=later["start_ns"] - 10**9))


def test_the_order_of_readings_does_not_matter() -> None:
    """Shuffled rows give the same bins, and the input stays as it was."""
    frame = both(*(_random(np.random.default_rng(gpu), gpu) for gpu in range(3)))
    shuffled = frame.sample(frac=1, random_state=1)
    before = shuffled.copy()
    pd.testing.assert_frame_equal(bins(frame, bins=6), bins(shuffled, bins=6))
    pd.testing.assert_frame_equal(before, shuffled)


def test_without_readings() -> None:
    """No samples, none of a metric and none in the window give no bins, with all columns and their types."""
    full = bins(samples((0, 1), (1, 2)))
    for found in (
        bins(SAMPLES.empty()),
        bins(samples((0, 1)), metrics=("sm_clock_hz",)),
        bins(samples((0, 1)), window=(5, 9)),
    ):
        assert found.empty
        assert full.dtypes.drop("metric").equals(found.dtypes.drop("metric"))
        assert isinstance(found["metric"].dtype, pd.CategoricalDtype)


def test_wrong_arguments() -> None:
    """A foreign table, no bins and a backward window are refused."""
    with pytest.raises(SchemaError, match="'SAMPLES' does not match"):
        bins(ranges())
    with pytest.raises(ValueError, match=r"bins: 0 is not at least 1"):
        bins(samples((0, 1)), bins=0)
    with pytest.raises(ValueError, match="does not end after it starts"):
        bins(samples((0, 1)), window=(5, 5))


def test_the_real_log(profiles: Path) -> None:
    """2,619 readings a second apart in 300 bins: none is lost, and the extremes are those of the log."""
    log = perfkit.load(profiles / "monitor" / RUN).samples
    found = bins(log, metrics=("power_w", "gpu_busy_frac"))
    assert {"gpu_busy_frac": 2619, "power_w": 2619} == found.groupby("metric", observed=True)["count"].sum().to_dict()
    power = log.loc[log["metric"] == "power_w", "value"]
    of_power = found[found["metric"] == "power_w"]
    assert (power.min(), power.max()) == (of_power["min"].min(), of_power["max"].max())
    assert 300 == len(of_power)
