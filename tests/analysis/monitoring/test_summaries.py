"""Means, percentiles, dips and imbalance of a log of the GPUs."""

import numpy as np
import pandas as pd
import pytest
from frames import tuples, types
from sampled import SECOND, samples, together

from perfkit.analysis.readings import summary
from perfkit.analysis.timeline import samples_mean
from perfkit.logs.monitoring import dips, idle, imbalance, utilisation

STATISTICS = ["mean", "p5", "p50", "p95", "min", "max"]
MEANINGS = ["gpu_busy_frac", "sm_active_frac", "sm_occupancy_frac", "pipe_active_frac"]


def test_statistics_worked_by_hand() -> None:
    # 1 for 1 s, 4 for 6 s, 2 for 2 s, 8 for 2 s (the middle one of 1, 2, 6): (1 + 24 + 4 + 16) / 11. By size 1, 2, 4, 8
    # hold 1, 2, 6 and 2 s: 5 % of 11 s are within the first, half within the third, 95 % in the last.
    found = summary(samples(at=[0, SECOND, 7 * SECOND, 9 * SECOND], power_w=[1, 4, 2, 8])).iloc[0]
    assert [45 / 11, 1, 4, 8, 1, 8, 4] == pytest.approx(
        found[[*STATISTICS, "count"]].tolist(), rel=1e-15
    )
    assert 2 == summary(samples(power_w=[10, 1, 3, 2]))["p50"].item()
    # With equal intervals the mean is that of the readings; those at one time weigh the same.
    drawn = samples(power_w=np.random.default_rng(0).random(50).tolist())
    assert summary(drawn)["mean"].item() == pytest.approx(
        samples_mean(drawn)["mean"].item(), rel=1e-12
    )
    pd.testing.assert_frame_equal(summary(drawn), summary(drawn.iloc[::-1]))
    assert [3, 3, 3, 3] == summary(samples(power_w=[3]))[["mean", "p50", "min", "max"]].iloc[
        0
    ].tolist()
    assert 2 == summary(samples(at=[5, 5], power_w=[1, 3]))["mean"].item()
    once, twice = (
        summary(samples(at=at, power_w=[1] * len(at))) for at in ([0, 5, 10], [0, 5, 5, 10])
    )
    assert once["mean"].item() == twice["mean"].item()


def test_missing_ticks_of_a_regular_log() -> None:
    at = [t * SECOND for t in range(41) if t not in (5, 6)]
    values = [np.nan if time == 11 * SECOND else 1.0 for time in at]
    irregular = samples(at=[0, 10, 25, 29, 60], power_w=[1] * 5)
    logs = (
        samples(at=at, power_w=values),
        samples(power_w=[1, 2, 3]),
        irregular,
        samples(power_w=[1, 2]),
    )
    found = [summary(log)["missing_frac"].item() for log in logs]
    assert [3 / 41, 0, np.nan, np.nan] == pytest.approx(found, rel=1e-15, nan_ok=True)


def test_the_four_meanings_stand_side_by_side() -> None:
    pipes = {
        "tensor_active_frac": [0.1, 0.3],
        "fp32_active_frac": [0.1, 0.1],
        "graphics_active_frac": [0.5, 0.5],
    }
    drawn = samples(
        gpu_busy_frac=[0.8, 1.0], sm_active_frac=[0.6, 0.6], sm_occupancy_frac=[0.3, 0.3], **pipes
    )
    found = utilisation(drawn).iloc[0]
    assert found[MEANINGS].tolist() == pytest.approx([0.9, 0.6, 0.3, 0.2], rel=1e-12)
    assert ("gpu_busy_frac", "tensor_active_frac", "") == tuple(
        found[["busy_metric", "pipe", "note"]]
    )
    # A meaning that was not recorded stays empty.
    found = utilisation(
        together(samples(graphics_active_frac=[0.5]), samples(gpu=1, sm_active_frac=[0.4]))
    )
    assert [0.5, 0.4] == [found["gpu_busy_frac"].iloc[0], found["sm_active_frac"].iloc[1]]
    assert 2 == found[MEANINGS].notna().sum().sum()
    assert "graphics_active_frac" == found["busy_metric"].iloc[0]
    assert found[["busy_metric", "pipe"]].iloc[1].isna().all()
    # A pipe above the SMs is noted beyond some doubt.
    shares = [{"sm_active_frac": [0.82], "tensor_active_frac": [pipe]} for pipe in (0.95, 0.85)]
    found = utilisation(together(*(samples(gpu=gpu, **of) for gpu, of in enumerate(shares))))
    assert ["pipe_active_frac exceeds sm_active_frac, which", ""] == [
        note[:46] for note in found["note"]
    ]
    assert 0.95 == found["pipe_active_frac"].iloc[0]
    for of in (summary, utilisation):
        drawn = samples(power_w=[1, 2, 3], gpu_busy_frac=[0, 1, 1])
        full, nothing = of(drawn), of(drawn, window=(10**12, 10**12 + 1))
        assert (0, types(full)) == (len(nothing), types(nothing))


def test_dips_by_hand() -> None:
    found = dips(samples(gpu_busy_frac=[0.9, 0.9, 0.4, 0.1, 0.9, 0.45, 0.9, 0.9, 0.0]))
    expected = [(2 * SECOND, 2 * SECOND, 2, 0.1, 0.9), (8 * SECOND, SECOND, 1, 0.0, 0.9)]
    assert expected == tuples(found, "start_ns", "dur_ns", "count", "lowest", "median")
    found = dips(
        together(samples(gpu_busy_frac=[1, 1, 0.1]), samples(gpu=1, gpu_busy_frac=[0.1, 0.5, 0.5])),
    )
    assert [(0, 2 * SECOND, 1), (1, 0, 0.5)] == tuples(found, "gpu", "start_ns", "median")
    # Nothing is below half of nothing.
    drawn = samples(gpu_busy_frac=[0, 0, 0, 1])
    assert (0, 0.75) == (len(dips(drawn)), idle(drawn)["idle_frac"].item())


def test_idle_by_hand() -> None:
    # 0 at 1 and 2 s, at 4 s and from 6 s on.
    found = idle(samples(gpu_busy_frac=[0.5, 0, 0, 1, 0, 0.01, 0])).iloc[0]
    assert found["idle_frac"] == pytest.approx(4 / 7, rel=1e-15)
    assert (4 * SECOND, 2 * SECOND, 3) == tuple(found[["idle_ns", "longest_ns", "count"]])
    # By the graphics engine where there is no other.
    both = samples(gpu_busy_frac=[0, 1], graphics_active_frac=[0, 0])
    assert [0.5, 1.0] == idle(together(both, samples(gpu=1, graphics_active_frac=[0])))[
        "idle_frac"
    ].tolist()


def test_imbalance_by_hand() -> None:
    busy = (
        {"gpu_busy_frac": [0.8, 1.0], "power_w": [300, 300]},
        {"gpu": 1, "gpu_busy_frac": [0.75] * 2},
    )
    found = imbalance(
        together(*(samples(**of) for of in (*busy, {"rank": 1, "gpu_busy_frac": [0.6] * 2})))
    )
    assert ["gpu_busy_frac"] == found["metric"].tolist()  # power on one is no pair
    row = found.iloc[0]
    figures = row[["lowest", "mean", "highest", "spread_frac"]].tolist()
    assert figures == pytest.approx([0.6, 0.75, 0.9, 1 / 3], rel=1e-12)
    assert [3, 1, 0, 0, 0] == row[
        ["devices", "lowest_rank", "lowest_gpu", "highest_rank", "highest_gpu"]
    ].tolist()
    drawn = together(
        *(samples(gpu=gpu, gpu_busy_frac=[0], power_w=[10 + 10 * gpu]) for gpu in (0, 1))
    )
    found = imbalance(drawn)
    assert ["gpu_busy_frac", "power_w"] == found["metric"].tolist()
    assert [np.nan, 0.5] == pytest.approx(found["spread_frac"].tolist(), nan_ok=True)
