"""Statistics of monitoring logs: time-weighted, by metric and device; utilisation in four columns; energy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sampled import SECOND, samples, together

from perfkit.analysis.monitoring.summaries import energy, summary, utilisation
from perfkit.analysis.timeline import samples_mean
from perfkit.errors import SchemaError
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


def test_energy_is_the_integral_of_the_power() -> None:
    """100 W rising to 200 in 2 s, then falling to 0 in 1 s: 300 + 100 = 400 J in 3 s."""
    found = energy(samples(at=[0, 2 * SECOND, 3 * SECOND], power_w=[100, 200, 0])).iloc[0]
    assert 400 == found["energy_j"]
    assert found["power_w"] == pytest.approx(400 / 3, rel=1e-15)
    assert (3 * SECOND, "power_w") == tuple(found[["span_ns", "source"]])


def test_a_counter_of_energy_is_preferred_unless_it_went_back() -> None:
    """Last less first reading; after a reset of the driver the power tells, and without it nothing does."""
    counted = samples(energy_j=[10, 25, 40], power_w=[1, 1, 1])
    reset = samples(gpu=1, energy_j=[10, 2, 40], power_w=[1, 1, 1])
    alone = samples(gpu=2, energy_j=[10, 2, 40])
    found = energy(together(counted, reset, alone))
    assert [30, 2] == found["energy_j"].iloc[:2].tolist()
    assert np.isnan(found["energy_j"].iloc[2])
    assert ["energy_j", "power_w", "energy_j"] == found["source"].tolist()


def test_one_reading_has_no_energy() -> None:
    """Power without a time is no energy."""
    found = energy(samples(power_w=[300])).iloc[0]
    assert 0 == found["span_ns"]
    assert found[["energy_j", "power_w"]].isna().all()


@pytest.mark.parametrize("of", [summary, utilisation, energy])
def test_empty_and_wrong_tables(of: object) -> None:
    """No readings, no rows, with the types of a full answer; another table is refused; the input stays as it is."""
    drawn = samples(power_w=[1, 2, 3], gpu_busy_frac=[0, 1, 1])
    before = drawn.copy(deep=True)
    full = of(drawn)
    pd.testing.assert_frame_equal(before, drawn)
    for nothing in (of(SAMPLES.empty()), of(drawn, window=(10**12, 10**12 + 1))):
        assert 0 == len(nothing)
        assert full.dtypes.astype(str).to_dict() == nothing.dtypes.astype(str).to_dict()
    with pytest.raises(SchemaError, match="table 'SAMPLES' does not match"):
        of(pd.DataFrame({"value": [1.0]}))
    with pytest.raises(ValueError, match=r"window: \(5, 5\) does not end after it starts"):
        of(drawn, window=(5, 5))
