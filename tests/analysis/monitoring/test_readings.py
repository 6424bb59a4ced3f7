"""Throttling by cause, and power, memory and temperature against their limits."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import tuples
from sampled import SECOND, devices, samples, together

from perfkit.analysis.readings import throttling
from perfkit.logs.monitoring import at_limit
from perfkit.tables import DEVICES

NO_DEVICES = DEVICES.empty()
NAN = np.nan
SHARES = ["power_frac", "thermal_frac", "other_frac", "throttled_frac"]
POWER, THERMAL = "throttled_power_frac", "throttled_thermal_frac"
POWER, THERMAL, OTHER = (f"throttled_{cause}_frac" for cause in ("power", "thermal", "other"))

# Lost time in ns by the power limit, which grows with the clock or not.
GROWING, STANDING, VIOLATION = [n * SECOND for n in range(6)], [0] * 6, "power_violation_ns"
OF_REASONS = {
    "throttled_sw_power_ns": [7e9, 8e9, 9e9, 10e9, 10e9, 10e9],
    "throttled_power_brake_ns": STANDING,
    "throttled_sw_thermal_ns": [0, 1e9, 1e9, 1e9, 1e9, 1e9],
    "throttled_hw_thermal_ns": [3e9, 3e9, 3e9, 3e9, 4e9, 5e9],
}


@pytest.mark.parametrize(
    ("shares", "source", "metrics"),
    [
        ([0.4, NAN, 0, 0.4], [OTHER, POWER], {POWER: [0, 1, 1, 0, 0], OTHER: [0] * 5}),
        (
            [0.4, 0.4, NAN, 0.6],
            [POWER, THERMAL],
            {POWER: [0, 1, 1, 0, 0], THERMAL: [0, 0, 1, 1, 0]},
        ),
        # Reasons and violation counters count once.
        (
            [0.5, NAN, NAN, 0.5],
            ["power_violation_frac", POWER],
            {POWER: [1, 0, 0, 0], "power_violation_frac": [0.01, 0.3, 0, 0]},
        ),
        # A temperature does not throttle, and idleness is no throttling; a snapshot can throttle.
        ([NAN] * 4, [], {"temperature_c": [83, 84]}),
        (
            [NAN, NAN, 0, 0],
            ["throttled_other_frac"],
            {"idle_frac": [1, 1], "throttled_other_frac": [0, 0]},
        ),
        ([NAN, 1, NAN, 1], [THERMAL], {THERMAL: [1]}),
        # Counters tell where reasons do not; reasons precede counters cause by cause.
        (
            [0.75, 0.25, NAN, 0.75],
            [VIOLATION, "thermal_violation_ns"],
            {"every": 2 * SECOND, VIOLATION: [7e9, 8e9, 10e9], "thermal_violation_ns": [0, 0, 1e9]},
        ),
        (
            [2 / 6, 0.25, NAN, 2 / 6],
            [POWER, "thermal_violation_ns"],
            {
                POWER: [1, 0, 1, 0, 0, 0],
                VIOLATION: GROWING,
                "thermal_violation_ns": [0, 0, 0, 0, 1.25e9, 1.25e9],
            },
        ),
        # Counters of reasons precede their readings, if they were read twice.
        (
            [0.6, 0.4, 0.5, 0.6],
            ["throttled_other_frac", *OF_REASONS],
            {
                POWER: STANDING,
                THERMAL: [1] * 6,
                "throttled_other_frac": [1, 0] * 3,
                **OF_REASONS,
                VIOLATION: GROWING,
            },
        ),
        ([1, NAN, NAN, 1], [POWER], {POWER: [1], "throttled_sw_power_ns": [5e9]}),
        ([NAN] * 4, [], {"at": [3, 3], VIOLATION: [5e9, 6e9]}),
        # A counter that was reset counts on either side; one read late counts at most the time, or outruns the clock.
        ([0.75, NAN, NAN, 0.75], [VIOLATION], {VIOLATION: [8e9, 9e9, 0, 0.5e9]}),
        ([1, NAN, NAN, 1], [VIOLATION], {VIOLATION: [0, 0, 2e9, 2e9, 4e9]}),
        ([NAN] * 4, [], {VIOLATION: [0, 1e9, 2e9, 4.1e9]}),
    ],
)
def test_throttling_by_hand(
    shares: list[float], source: list[str], metrics: dict[str, Any]
) -> None:
    found = throttling(samples(**metrics)).iloc[0]
    assert shares == pytest.approx(found[SHARES].astype(float).tolist(), nan_ok=True)
    assert ", ".join(source) == found["source"]


def test_counters_of_each_device_are_its_own() -> None:
    drawn = together(
        samples(power_violation_ns=[0, 1e9, 2e9, 2e9]),
        samples(gpu=1, power_violation_ns=[9e9, 9e9, 9e9]),
        samples(gpu=2, temperature_c=[83, 84, 85]),
    )
    found = throttling(drawn, window=(0, 3 * SECOND))["power_frac"]
    assert [1, 0, NAN] == pytest.approx(found.tolist(), nan_ok=True)
    apart = (
        samples(every=4 * SECOND, **{POWER: [0, 1]}),
        samples(power_violation_frac=[0, 0, 0, 1, 1, 0, 0, 0]),
    )
    assert 0.625 == throttling(together(*apart))["power_frac"].item()


USED, HOT = {"memory_used_bytes": [30, 60]}, {"temperature_c": [83, 84, 85, 60]}
H100, T4, RTX_4090 = map(devices, ("NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA GeForce RTX 4090"))
MINE, SPLIT = devices("mine", memory_bytes=120), "used, free and reserved"
FIGURES = ["mean", "worst", "limit", "mean_frac", "worst_frac", "at_limit_frac"]


@pytest.mark.parametrize(
    ("metrics", "known", "figures", "source"),
    [
        (
            {"power_w": [350, 680], "power_limit_w": [700, 700]},
            *(H100, [515, 680, 700, 515 / 700, 680 / 700, 0.5], "recorded limit"),
        ),
        # A limit that is lowered counts from then on.
        (
            {"power_w": [380] * 4, "power_limit_w": [760, None, 400, None]},
            *(None, [380, 380, 400, (0.5 + 0.95) / 2, 0.95, 0.5], "recorded limit"),
        ),
        # The data sheet stands in for the known name only.
        ({"power_w": [225, 225]}, RTX_4090, [225, 225, 450, 0.5, 0.5, 0], "data sheet of the GPU"),
        *(({"power_w": [225, 225]}, known, None, "") for known in (None, devices("NVIDIA H100"))),
        # A T4 is limited to 70 W: 77 W may be read (1.1 times), 77.1 W not; a recorded limit is the GPU's own.
        ({"power_w": [63, 77]}, T4, [70, 77, 70, 1, 1.1, 0.5], "data sheet of the GPU"),
        ({"power_w": [60, 77.1]}, T4, [68.55, 77.1, 70, NAN, NAN, NAN], "data sheet of the GPU"),
        (
            {"power_w": [60, 77.1], "power_limit_w": [70, None]},
            *(T4, [68.55, 77.1, 70, 68.55 / 70, 77.1 / 70, 0.5], "recorded limit"),
        ),
        (
            USED | {"memory_total_bytes": [80, 80]},
            MINE,
            [45, 60, 80, 0.5625, 0.75, 0],
            "recorded total",
        ),
        (
            USED | {"memory_free_bytes": [65, 35], "driver_reserved_bytes": [5, 5]},
            *(MINE, [45, 60, 100, 0.45, 0.6, 0], SPLIT),
        ),
        (USED, MINE, [45, 60, 120, 0.375, 0.5, 0], "device"),
        (USED | {"memory_total_bytes": [0, 0]}, None, None, ""),
        # Slowdown at 89: 84 is within 5 degrees, 83 is not.
        (
            HOT | {"temperature_slowdown_c": [89] + [None] * 3},
            *(None, [78, 85, 89, NAN, NAN, 0.5], "recorded slowdown temperature"),
        ),
        (HOT, None, None, ""),
        # A margin is worst where it is lowest.
        (
            {"temperature_margin_c": [26, 5, -2]},
            None,
            [29 / 3, -2, 0, NAN, NAN, 2 / 3],
            "recorded margin",
        ),
    ],
)
def test_quantities_against_their_limits(
    metrics: dict[str, list[float]],
    known: pd.DataFrame | None,
    figures: list[float] | None,
    source: str,
) -> None:
    (quantity,) = {name.split("_used")[0].rsplit("_", 1)[0] for name in list(metrics)[:1]}
    found = at_limit(samples(**metrics), NO_DEVICES if known is None else known)
    assert [(quantity, source)] * (figures is not None) == tuples(found, "quantity", "source")
    if figures is not None:
        assert figures == pytest.approx(
            found.loc[0, FIGURES].astype(float).tolist(), rel=1e-12, nan_ok=True
        )


def test_devices_keep_their_own_limits() -> None:
    drawn = together(
        samples(power_w=[100], power_limit_w=[200], memory_used_bytes=[1], memory_total_bytes=[4]),
        samples(gpu=1, power_w=[100], power_limit_w=[400]),
        samples(rank=1, power_w=[100], power_limit_w=[100]),
    )
    expected = [
        (0, 0, "power", 0.5),
        (0, 0, "memory", 0.25),
        (0, 1, "power", 0.25),
        (1, 0, "power", 1.0),
    ]
    assert expected == tuples(at_limit(drawn, NO_DEVICES), "rank", "gpu", "quantity", "mean_frac")
    # A limit may be read once and outside the window.
    drawn = samples(power_w=[100, 200, 300], power_limit_w=[400, None, None])
    found = at_limit(drawn, NO_DEVICES, window=(SECOND, 2 * SECOND))
    assert [(200, 0.5)] == tuples(found, "mean", "mean_frac")
