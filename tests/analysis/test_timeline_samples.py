"""Mean and percentiles of sampled metrics."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import kernels

from perfkit.analysis.timeline import samples_mean
from perfkit.errors import SchemaError
from perfkit.tables import SAMPLES

STATISTICS = ["mean", "p5", "p50", "p95", "max"]


def samples(*rows: tuple[int, int, int, str, float]) -> pd.DataFrame:
    """SAMPLES of (rank, gpu, time_ns, metric, value)."""
    return SAMPLES.make(pd.DataFrame(rows, columns=["rank", "gpu", "time_ns", "metric", "value"]))


def made(seed: int) -> pd.DataFrame:
    """Random readings of two metrics on two GPUs, some of them NaN."""
    random = np.random.default_rng(seed)
    values = np.where(random.random(90) < 0.1, np.nan, random.random(90))
    drawn = zip(*(random.integers(0, high, 90).tolist() for high in (2, 1000, 2)), values.tolist(), strict=True)
    return samples(*((0, gpu, time, ["sm_active_frac", "dram_read_frac"][m], value) for gpu, time, m, value in drawn))


def test_statistics_worked_by_hand() -> None:
    """1, 2, 3, 10: mean 16/4 = 4; at 0.05 * 3 = 0.15, 1.15; median 2.5; at 2.85, 3 + 0.85 * 7 = 8.95; maximum 10."""
    found = samples_mean(samples(*((0, 0, time, "power_w", value) for time, value in enumerate([10, 1, 3, 2]))))
    assert found["count"].tolist() == [4]
    assert found[STATISTICS].iloc[0].tolist() == pytest.approx([4, 1.15, 2.5, 8.95, 10], rel=1e-12)


def test_the_window_is_half_open() -> None:
    """Readings at 9, 10, 19 and 20 ns in the window [10,20): the two in the middle."""
    drawn = samples(*((0, 0, time, "power_w", time) for time in (9, 10, 19, 20)))
    found = samples_mean(drawn, window=(10, 20))
    assert found[["count", "mean", "max"]].to_numpy().tolist() == [[2, 14.5, 19]]


def test_a_reading_that_is_missing_does_not_count() -> None:
    """Of 1 and NaN the mean is 1; a metric that never gave a value has count 0 and no statistics."""
    found = samples_mean(
        samples((0, 0, 1, "power_w", 1.0), (0, 0, 2, "power_w", np.nan), (0, 0, 1, "energy_j", np.nan))
    )
    assert found["metric"].tolist() == ["energy_j", "power_w"]
    assert found["count"].tolist() == [0, 1]
    assert found[STATISTICS].iloc[0].isna().all()
    assert found[STATISTICS].iloc[1].tolist() == [1.0] * 5


def test_metrics_come_by_their_text() -> None:
    """Rows follow the text of the metric, whatever the order of the categories."""
    drawn = samples((0, 0, 1, "a_w", 1.0), (0, 0, 1, "b_w", 2.0))
    drawn["metric"] = drawn["metric"].cat.reorder_categories(["b_w", "a_w"])
    assert samples_mean(drawn)["metric"].tolist() == ["a_w", "b_w"]


@pytest.mark.parametrize("window", [None, (200, 700)])
@pytest.mark.parametrize("seed", range(3))
def test_statistics_against_a_loop(seed: int, window: tuple[int, int] | None) -> None:
    """Each device and metric, by text, has the mean, percentiles and maximum of numpy; order does not matter."""
    drawn = made(seed)
    found = samples_mean(drawn.sample(frac=1, random_state=seed), window=window).itertuples(index=False)
    first, last = window or (0, 1000)
    for gpu, metric in [(0, "dram_read_frac"), (0, "sm_active_frac"), (1, "dram_read_frac"), (1, "sm_active_frac")]:
        own = drawn[(drawn["gpu"] == gpu) & (drawn["metric"] == metric)]
        own = own[(own["time_ns"] >= first) & (own["time_ns"] < last)]["value"].dropna()
        expected = [len(own), own.mean(), *np.percentile(own, [5, 50, 95]), own.max()]
        row = next(found)
        assert (gpu, metric) == (row.gpu, row.metric)
        assert list(row[3:]) == pytest.approx(expected, rel=1e-12)
    assert next(found, None) is None


def test_empty_table() -> None:
    """Without readings, in the table or in the window, there is no row; dtypes are those of a full answer."""
    full = samples((0, 0, 5, "power_w", 1.0))
    for found in (samples_mean(SAMPLES.empty()), samples_mean(full, window=(6, 9))):
        assert len(found) == 0
        assert found.dtypes.astype(str).tolist() == samples_mean(full).dtypes.astype(str).tolist()


def test_wrong_arguments() -> None:
    """KERNELS in place of SAMPLES and a reversed window are refused."""
    with pytest.raises(SchemaError, match=r"table 'SAMPLES' does not match"):
        samples_mean(kernels())
    with pytest.raises(ValueError, match=r"window: \(9, 2\) does not end after it starts"):
        samples_mean(SAMPLES.empty(), window=(9, 2))
