"""Dips, idle time, periods and imbalance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sampled import SECOND, samples, together

from perfkit.analysis.monitoring import summaries
from perfkit.analysis.monitoring.summaries import dips, idle, imbalance, periods
from perfkit.errors import SchemaError
from perfkit.tables import SAMPLES


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


def wave(period: int, length: int, busy: int, noise: float = 0.0) -> list[float]:
    """Utilisation of 0.95 for `busy` of every `period` readings, else 0.1, with noise."""
    random = np.random.default_rng(1)
    return [(0.95 if t % period < busy else 0.1) + noise * float(random.normal()) for t in range(length)]


@pytest.mark.parametrize(("period", "busy"), [(7, 6), (10, 5), (24, 20), (60, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_period_is_found(period: int, busy: int, noise: float) -> None:
    """The shortest that repeats, not a multiple of it, whatever the share of the work in it."""
    found = periods(samples(every=SECOND // 2, gpu_busy_frac=wave(period, 300, busy, noise))).iloc[0]
    assert (period * SECOND // 2, SECOND // 2) == tuple(found[["period_ns", "step_ns"]])
    assert 0.6 < found["correlation"] < 1 + 1e-9


def test_the_correlation_of_an_exact_wave_is_1() -> None:
    """Over whole periods, at a lag of one: every reading meets its like."""
    found = periods(samples(gpu_busy_frac=wave(10, 100, 5))).iloc[0]
    assert found["correlation"] == pytest.approx(1, abs=1e-9)


def test_a_late_log_keeps_its_period() -> None:
    """Readings left out now and then do not shift the period: the grid is time, not the number of the reading."""
    whole = wave(20, 400, 15)
    kept = [t for t in range(400) if t % 17]
    found = periods(samples(at=[t * SECOND for t in kept], gpu_busy_frac=[whole[t] for t in kept])).iloc[0]
    assert 20 * SECOND == found["period_ns"]


@pytest.mark.parametrize(
    "values",
    [
        [0.9] * 100,
        np.random.default_rng(0).random(300).tolist(),
        np.linspace(0, 1, 200).tolist(),
        [0.0] * 30 + [0.95] * 270,
        np.cumsum(np.random.default_rng(3).normal(size=500)).tolist(),
        [0.0, 1.0],
        [0.5],
    ],
    ids=["constant", "noise", "ramp", "start-up", "walk", "two", "one"],
)
def test_where_nothing_repeats_there_is_no_period(values: list[float]) -> None:
    """A constant, noise, a trend, a start-up, a random walk, too few readings."""
    found = periods(samples(gpu_busy_frac=values))
    assert found[["period_ns", "correlation"]].isna().all(axis=None)


def test_a_long_log_has_a_coarser_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """3000 readings of 1 ms on at most 1100 points: a step of 3 ms, rounded up, and the period to that precision."""
    monkeypatch.setattr(summaries, "POINTS", 1100)
    found = periods(samples(every=10**6, gpu_busy_frac=wave(100, 3000, 70))).iloc[0]
    assert -(-3000 * 10**6 // 1100) == found["step_ns"]
    assert abs(found["period_ns"] - 100 * 10**6) <= found["step_ns"]


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


@pytest.mark.parametrize("of", [dips, idle, periods, imbalance])
def test_empty_and_wrong_tables(of: object) -> None:
    """No readings, no rows, with the types of a full answer; another table is refused."""
    drawn = together(samples(gpu_busy_frac=[1, 1, 0]), samples(gpu=1, gpu_busy_frac=[1, 1, 1]))
    full, nothing = of(drawn), of(SAMPLES.empty())
    assert 0 < len(full)
    assert 0 == len(nothing)
    assert full.dtypes.astype(str).to_dict() == nothing.dtypes.astype(str).to_dict()
    with pytest.raises(SchemaError, match="table 'SAMPLES' does not match"):
        of(pd.DataFrame({"value": [1.0]}))


@pytest.mark.parametrize("below", [0, -1, 1.1, np.nan])
def test_a_share_below_which_nothing_or_all_is_low(below: float) -> None:
    """The share lies above 0 and is at most 1."""
    with pytest.raises(ValueError, match=f"below: {below} is not within 0 and 1"):
        dips(SAMPLES.empty(), below=below)
