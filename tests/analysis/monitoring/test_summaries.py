"""Means, percentiles, dips and imbalance of a log of the GPUs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sampled import SECOND, samples, together

from perfkit.analysis.monitoring.summaries import dips, idle, imbalance, summary, utilisation
from perfkit.analysis.timeline import samples_mean
from perfkit.tables import SAMPLES

STATISTICS = ["mean", "p5", "p50", "p95", "min", "max"]


def made(seed: int) -> pd.DataFrame:
    """Readings of two metrics on two GPUs at random times, some of them NaN, in random order."""
    random = np.random.default_rng(seed)
    tables = []
    for gpu in (0, 1):
        for metric in ("power_w", "gpu_busy_frac"):
            at = np.cumsum(random.integers(1, 20, 40)).tolist()
            values = np.where(random.random(40) < 0.1, np.nan, random.integers(0, 9, 40))
            tables.append(samples(gpu=gpu, at=at, **{metric: values.tolist()}))
    return together(*tables).sample(frac=1, random_state=seed).reset_index(drop=True)


def repeated(own: pd.DataFrame) -> np.ndarray:
    """The value of one metric at every ns, the last for the lower median of the intervals."""
    times, values = own["time_ns"].to_numpy(), own["value"].to_numpy()
    intervals = np.diff(times)
    holds = np.append(intervals, np.sort(intervals)[(len(intervals) - 1) // 2])
    return np.sort(np.repeat(values, holds))


def test_statistics_worked_by_hand() -> None:
    """1 for 1 s, 4 for 6 s, 2 for 2 s, 8 for 2 s (the middle one of 1, 2, 6): (1 + 24 + 4 + 16) / 11 = 45 / 11.

    By size 1, 2, 4, 8 hold 1, 2, 6 and 2 s: 5 % of 11 s are within the first, half within the third, 95 % in the last.
    """
    found = summary(samples(at=[0, SECOND, 7 * SECOND, 9 * SECOND], power_w=[1, 4, 2, 8])).iloc[0]
    assert found["mean"] == pytest.approx(45 / 11, rel=1e-15)
    assert [1, 4, 8, 1, 8] == found[STATISTICS[1:]].tolist()
    assert 4 == found["count"]


def test_half_of_the_time_is_half_of_it() -> None:
    """Of 1, 2, 3 and 10 for equal times the metric was at or below 2 for half of it."""
    assert 2 == summary(samples(power_w=[10, 1, 3, 2]))["p50"].item()


def test_with_equal_intervals_the_mean_is_that_of_the_readings() -> None:
    """As `timeline.samples_mean`, which does not weigh."""
    drawn = samples(power_w=np.random.default_rng(0).random(50).tolist())
    assert summary(drawn)["mean"].item() == pytest.approx(samples_mean(drawn)["mean"].item(), rel=1e-12)


@pytest.mark.parametrize("window", [None, (50, 300)])
@pytest.mark.parametrize("seed", range(3))
def test_statistics_against_every_nanosecond(seed: int, window: tuple[int, int] | None) -> None:
    """Oracle: the series written out ns by ns; order does not matter, NaN readings count for nothing."""
    drawn = made(seed)
    first, last = window or (0, 10**6)
    inside = drawn[(drawn["time_ns"] >= first) & (drawn["time_ns"] < last)].dropna().sort_values("time_ns")
    found = summary(drawn, window=window)
    assert [(0, "gpu_busy_frac"), (0, "power_w"), (1, "gpu_busy_frac"), (1, "power_w")] == list(
        zip(found["gpu"], found["metric"], strict=True)
    )
    for row in found.itertuples():
        own = inside[(inside["gpu"] == row.gpu) & (inside["metric"] == row.metric)]
        whole = repeated(own)
        ranks = [int(np.ceil(share * len(whole))) - 1 for share in (0.05, 0.5, 0.95)]
        expected = [whole.mean(), *whole[ranks], own["value"].min(), own["value"].max()]
        assert len(own) == row.count
        assert [getattr(row, name) for name in STATISTICS] == pytest.approx(expected, rel=1e-12)


def test_missing_ticks_of_a_regular_log() -> None:
    """Every second for 40 s, without the readings at 5, 6 and 11: 3 of 41; NaN is missing like no row."""
    at = [t * SECOND for t in range(41) if t not in (5, 6)]
    values = [np.nan if time == 11 * SECOND else 1.0 for time in at]
    found = summary(samples(at=at, power_w=values))
    assert found["missing_frac"].item() == pytest.approx(3 / 41, rel=1e-15)
    assert 0 == summary(samples(power_w=[1, 2, 3]))["missing_frac"].item()


def test_an_irregular_log_has_no_ticks_to_miss() -> None:
    """Intervals that differ by more than a quarter, or two readings, tell nothing of what is missing."""
    assert np.isnan(summary(samples(at=[0, 10, 25, 29, 60], power_w=[1] * 5))["missing_frac"].item())
    assert np.isnan(summary(samples(power_w=[1, 2]))["missing_frac"].item())


def test_readings_at_one_time_weigh_the_same() -> None:
    """A snapshot, or several readings of one instant, has a mean all the same; a doubled reading changes none."""
    assert [3, 3, 3, 3] == summary(samples(power_w=[3]))[["mean", "p50", "min", "max"]].iloc[0].tolist()
    assert 2 == summary(samples(at=[5, 5], power_w=[1, 3]))["mean"].item()
    once, twice = (summary(samples(at=at, power_w=[1] * len(at))) for at in ([0, 5, 10], [0, 5, 5, 10]))
    assert once["mean"].item() == twice["mean"].item()


def test_a_shift_of_the_clock_changes_nothing() -> None:
    """Times may be negative: only their differences count."""
    drawn = made(7)
    pd.testing.assert_frame_equal(summary(drawn), summary(drawn.assign(time_ns=drawn["time_ns"] - 10**15)))


def test_the_four_meanings_stand_side_by_side() -> None:
    """Busy 0.9, SMs active 0.6, occupancy 0.3; of the pipes the busiest, tensor at 0.2, and which it was."""
    drawn = samples(
        gpu_busy_frac=[0.8, 1.0],
        graphics_active_frac=[0.5, 0.5],
        sm_active_frac=[0.6, 0.6],
        sm_occupancy_frac=[0.3, 0.3],
        tensor_active_frac=[0.1, 0.3],
        fp32_active_frac=[0.1, 0.1],
    )
    found = utilisation(drawn).iloc[0]
    meanings = ["gpu_busy_frac", "sm_active_frac", "sm_occupancy_frac", "pipe_active_frac"]
    assert found[meanings].tolist() == pytest.approx([0.9, 0.6, 0.3, 0.2], rel=1e-12)
    assert ("gpu_busy_frac", "tensor_active_frac", "") == tuple(found[["busy_metric", "pipe", "note"]])


def test_a_meaning_that_was_not_recorded_stays_empty() -> None:
    """None of them stands in for another; DCGM 1001 is the same quantity as nvidia-smi's and says so."""
    found = utilisation(together(samples(graphics_active_frac=[0.5]), samples(gpu=1, sm_active_frac=[0.4])))
    assert [0.5, 0.4] == [found["gpu_busy_frac"].iloc[0], found["sm_active_frac"].iloc[1]]
    assert 2 == found[["gpu_busy_frac", "sm_active_frac", "sm_occupancy_frac", "pipe_active_frac"]].notna().sum().sum()
    assert "graphics_active_frac" == found["busy_metric"].iloc[0]
    assert found[["busy_metric", "pipe"]].iloc[1].isna().all()


def test_an_impossible_dashboard_is_noted() -> None:
    """Tensor pipes 95 % of the cycles and SMs active 82 %: a pipe cannot work without an SM. 85 % may be sampling."""
    found = utilisation(
        together(
            samples(sm_active_frac=[0.82], tensor_active_frac=[0.95]),
            samples(gpu=1, sm_active_frac=[0.82], tensor_active_frac=[0.85]),
        )
    )
    assert ["pipe_active_frac exceeds sm_active_frac, which", ""] == [note[:46] for note in found["note"]]
    assert 0.95 == found["pipe_active_frac"].iloc[0]


@pytest.mark.parametrize("of", [summary, utilisation])
def test_a_window_without_readings(of: object) -> None:
    """No rows, with the types of a full answer."""
    drawn = samples(power_w=[1, 2, 3], gpu_busy_frac=[0, 1, 1])
    full, nothing = of(drawn), of(drawn, window=(10**12, 10**12 + 1))
    assert (0, full.dtypes.astype(str).to_dict()) == (len(nothing), nothing.dtypes.astype(str).to_dict())


def test_dips_by_hand() -> None:
    """Median 0.9, low below 0.45: from 2 to 4 s, down to 0.1, and the last reading for the usual second."""
    found = dips(samples(gpu_busy_frac=[0.9, 0.9, 0.4, 0.1, 0.9, 0.45, 0.9, 0.9, 0.0]))
    assert [2 * SECOND, 8 * SECOND] == found["start_ns"].tolist()
    assert [2 * SECOND, SECOND] == found["dur_ns"].tolist()
    assert [2, 1] == found["count"].tolist()
    assert [0.1, 0.0] == found["lowest"].tolist()
    assert {0.9} == set(found["median"])


def test_dips_do_not_cross_devices() -> None:
    """The last reading of a GPU and the first of the next are two stretches, each against its own median."""
    found = dips(together(samples(power_w=[100, 100, 10]), samples(gpu=1, power_w=[1, 30, 30])), metric="power_w")
    assert [(0, 2 * SECOND, 100), (1, 0, 30)] == list(
        zip(found["gpu"], found["start_ns"], found["median"], strict=True)
    )


def test_nothing_is_below_half_of_nothing() -> None:
    """A GPU that idles most of the time has no dips; it is idle."""
    drawn = samples(gpu_busy_frac=[0, 0, 0, 1])
    assert 0 == len(dips(drawn))
    assert 0.75 == idle(drawn)["idle_frac"].item()


@pytest.mark.parametrize("seed", range(3))
def test_dips_against_a_loop(seed: int) -> None:
    """Oracle: one pass over the readings."""
    random = np.random.default_rng(seed)
    values, at = random.integers(1, 10, 60).astype(float), np.cumsum(random.integers(1, 9, 60))
    found = dips(samples(at=at.tolist(), power_w=values.tolist()), metric="power_w", below=0.8)
    limit = 0.8 * found["median"].iloc[0]
    usual = np.sort(np.diff(at))[29]
    expected, begun = [], None
    for time, value in [*zip(at, values, strict=True), (at[-1] + usual, np.inf)]:
        if value < limit and begun is None:
            begun = time
        elif value >= limit and begun is not None:
            expected, begun = [*expected, (begun, time - begun)], None
    assert expected == list(zip(found["start_ns"], found["dur_ns"], strict=True))


def test_idle_by_hand() -> None:
    """0 at 1 and 2 s, at 4 s and from 6 s on: 2 + 1 + 1 of 7 s in three stretches, the longest 2 s."""
    found = idle(samples(gpu_busy_frac=[0.5, 0, 0, 1, 0, 0.01, 0])).iloc[0]
    assert found["idle_frac"] == pytest.approx(4 / 7, rel=1e-15)
    assert (4 * SECOND, 2 * SECOND, 3) == tuple(found[["idle_ns", "longest_ns", "count"]])


def test_idle_by_the_graphics_engine_where_there_is_no_other() -> None:
    """gpu_busy_frac counts first; the two are never mixed."""
    drawn = together(
        samples(gpu_busy_frac=[0, 1], graphics_active_frac=[0, 0]), samples(gpu=1, graphics_active_frac=[0])
    )
    assert [0.5, 1.0] == idle(drawn)["idle_frac"].tolist()


def test_imbalance_by_hand() -> None:
    """Means 0.9, 0.6, 0.75 on three GPUs: (0.9 - 0.6) / 0.9 = 1/3, lowest on rank 1 gpu 0; power on one is no pair."""
    drawn = together(
        samples(gpu_busy_frac=[0.8, 1.0], power_w=[300, 300]),
        samples(gpu=1, gpu_busy_frac=[0.75, 0.75]),
        samples(rank=1, gpu_busy_frac=[0.6, 0.6]),
    )
    found = imbalance(drawn)
    assert ["gpu_busy_frac"] == found["metric"].tolist()
    row = found.iloc[0]
    figures = row[["lowest", "mean", "highest", "spread_frac"]].tolist()
    assert figures == pytest.approx([0.6, 0.75, 0.9, 1 / 3], rel=1e-12)
    assert [3, 1, 0, 0, 0] == row[["devices", "lowest_rank", "lowest_gpu", "highest_rank", "highest_gpu"]].tolist()


def test_imbalance_of_idle_devices_is_unknown() -> None:
    """Where the highest is 0 there is no share of it; metrics come in the order that was asked for."""
    drawn = together(*(samples(gpu=gpu, gpu_busy_frac=[0], power_w=[10 + 10 * gpu]) for gpu in (0, 1)))
    found = imbalance(drawn, metrics=("power_w", "gpu_busy_frac"))
    assert ["power_w", "gpu_busy_frac"] == found["metric"].tolist()
    assert 0.5 == found["spread_frac"].iloc[0]
    assert np.isnan(found["spread_frac"].iloc[1])


@pytest.mark.parametrize("below", [0, -1, 1.1, np.nan])
def test_a_share_below_which_nothing_or_all_is_low(below: float) -> None:
    """The share lies above 0 and is at most 1."""
    with pytest.raises(ValueError, match=f"below: {below} is not within 0 and 1"):
        dips(SAMPLES.empty(), below=below)
