"""Clock and throttling of each kernel from a log, and samples in bins of time."""

from typing import Any

import pytest
from analysis.spans import span
from frames import kernels, tuples
from sampled import samples, together

from perfkit.analysis.alignment import bins, clock_under_kernels
from perfkit.errors import PerfkitError

# Clocks at 0, 10, ..., 90.
RAN = kernels(span(10, 30), span(40, 90))
CLOCKS = [300, 1900, 1200, 300, 1900, 1000, 1100, 1900, 1800, 300]
TOP = {"sm_clock_hz": CLOCKS, "sm_max_clock_hz": [2000] + [None] * 9}


def test_the_clock_counts_where_a_kernel_runs() -> None:
    # At 10, 20, 40 to 80: 1900, 1200, 1900, 1000, 1100, 1900, 1800; three are below 1800.
    found = clock_under_kernels(samples(every=10, **TOP), RAN).iloc[0]
    columns = ["count", "lowest_clock_hz", "max_clock_hz", "max_source"]
    assert (7, 1000, 2000, "sm_max_clock_hz") == tuple(found[columns])
    assert found["mean_clock_hz"] == pytest.approx(10800 / 7, rel=1e-15)
    assert found["low_frac"] == pytest.approx(3 / 7, rel=1e-15)
    # Without a recorded maximum it is the highest reading.
    found = clock_under_kernels(samples(every=10, sm_clock_hz=CLOCKS), RAN, window=(50, 90)).iloc[0]
    assert (1900, "sm_clock_hz", 4, 0.5) == tuple(
        found[["max_clock_hz", "max_source", "count", "low_frac"]]
    )
    # Only devices with both have a row.
    drawn = together(*(samples(gpu=gpu, every=10, sm_clock_hz=[1, 1]) for gpu in (1, 2)))
    ran = kernels(span(0, 20), span(0, 20, gpu=1))
    assert [1] == clock_under_kernels(drawn, ran)["gpu"].tolist()


def test_clocks_that_do_not_meet_are_refused() -> None:
    hour, one = 3600 * 10**9, [1, 1]
    for drawn, gpu, why in (
        (
            samples(at=[hour, hour + 10], sm_clock_hz=one),
            0,
            r"readings .* 1 h 0 min after the first kernel\. Check",
        ),
        (samples(every=10, sm_clock_hz=one), 3, "rank and gpu of both name the same devices"),
    ):
        with pytest.raises(PerfkitError, match=rf"\(rank 0 gpu 0\) .*{why}"):
            clock_under_kernels(drawn, kernels(span(0, 20, gpu=gpu)))


FIGURES = ["start_ns", "dur_ns", "covered_ns", "count", "mean", "min", "max"]


@pytest.mark.parametrize(
    ("readings", "more", "expected"),
    [
        # 2 for 10 ns, 8 for 30, 4 for 10 (the usual interval), in bins of 25.
        (
            [(0, 2), (10, 8), (40, 4)],
            {"bins": 2},
            [(0, 25, 25, 2, 5.6, 2, 8), (25, 25, 25, 1, 6.4, 4, 8)],
        ),
        # No bin is shorter than the readings are apart; the last is what is left.
        (
            [(10 * n, n) for n in range(5)],
            {"bins": 300},
            [(10 * n, 10, 10, 1, n, n, n) for n in range(5)],
        ),
        (
            [(n, n) for n in range(10)],
            *(
                {"bins": 3},
                [(0, 4, 4, 4, 1.5, 0, 3), (4, 4, 4, 4, 5.5, 4, 7), (8, 2, 2, 2, 8.5, 8, 9)],
            ),
        ),
        # The window is what the bins tile.
        (
            [(10 * n, n) for n in range(9)],
            *(
                {"bins": 2, "window": (15, 55)},
                [(15, 20, 15, 2, 35 / 15, 2, 3), (35, 20, 20, 2, 4, 3, 5)],
            ),
        ),
        # Readings of one time count both; missing ones count for nothing.
        ([(7, 4), (7, 8)], {}, [(7, 1, 1, 2, 6.0, 4.0, 8.0)]),
        (
            [(0, 1), (10, 9), (10, 3), (20, float("nan")), (30, 1)],
            *({"bins": 2}, [(0, 20, 20, 3, 2, 1, 9), (20, 20, 20, 1, 2, 1, 3)]),
        ),
    ],
)
def test_bins_by_hand(
    readings: list[tuple[int, float]], more: dict[str, Any], expected: list[Any]
) -> None:
    at, power = zip(*readings, strict=True)
    assert expected == tuples(bins(samples(at=at, power_w=power), **more), *FIGURES)


def test_devices_metrics_and_times_below_0() -> None:
    frame = together(
        samples(at=[-10, 0], power_w=[1, 3]),
        samples(at=[0, 10], power_w=[5, 7], gpu=1),
        samples(at=[-10, 0], power_w=[2, 2], rank=1),
        samples(at=[-10, 0], fan_frac=[0, 0]),
    )
    found = bins(frame[frame["metric"] == "power_w"], bins=3)
    whole = [
        (0, 0, -10, 1),
        (0, 0, 0, 3),
        (0, 1, 0, 5),
        (0, 1, 10, 7),
        (1, 0, -10, 2),
        (1, 0, 0, 2),
    ]
    assert whole == tuples(found, "rank", "gpu", "start_ns", "mean")
    assert [{"power_w"}, {"power_w", "fan_frac"}] == [
        set(found["metric"]),
        set(bins(frame)["metric"]),
    ]
