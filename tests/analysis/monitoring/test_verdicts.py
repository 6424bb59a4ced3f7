"""Five verdicts per device, each with its figure, its threshold and its reason."""

import pandas as pd
import pytest
from frames import tuples
from sampled import devices, samples, together

from perfkit.logs.monitoring import checks
from perfkit.tables import DEVICES

NO_DEVICES = DEVICES.empty()
NAMES = ["utilisation", "memory", "power", "throttling", "traffic"]


def check(name: str, **metrics: list[float]) -> pd.Series:
    found = checks(samples(**metrics), NO_DEVICES)
    return found[found["check"] == name].iloc[0]


def test_five_checks_per_device_in_their_order() -> None:
    drawn = together(
        samples(rank=1, power_w=[1], power_limit_w=[2]),
        samples(gpu=1, gpu_busy_frac=[1, 1, 1]),
        samples(gpu_busy_frac=[1, 1, 1]),
        samples(gpu=-1, memory_used_bytes=[1], memory_total_bytes=[2]),
        samples(gpu=2, memory_allocated_bytes=[1], step_ns=[1]),
    )
    expected = [(*place, name) for place in ((0, 0), (0, 1), (1, 0)) for name in NAMES]
    assert expected == tuples(checks(drawn, NO_DEVICES), "rank", "gpu", "check")


def test_consistent_utilisation() -> None:
    steady, uneven = [0.8] * 9 + [0.0], [1.0] * 8 + [0.79, 0.0]
    found = check("utilisation", gpu_busy_frac=steady)
    assert ("ok", 0.9, 0.9, "frac") == tuple(found[["verdict", "value", "threshold", "unit"]])
    found = check("utilisation", gpu_busy_frac=uneven)
    assert ("attention", 0.8) == tuple(found[["verdict", "value"]])
    assert "the median is 100 %, and nothing ran for 10.0 % of the time" in found["reason"]
    assert (
        "too few readings (2) to tell: record it"
        in check("utilisation", gpu_busy_frac=[1, 1])["reason"]
    )
    drawn = samples(every=10, gpu_busy_frac=[0] * 10 + [1] * 10)
    verdicts = [checks(drawn, NO_DEVICES, window=w)["verdict"].iloc[0] for w in (None, (100, 200))]
    assert ["attention", "ok"] == verdicts


def test_memory_near_capacity() -> None:
    for used, verdict, advice in (
        (76e9, "attention", "may fail"),
        (72e9, "ok", "on average"),
        (30e9, "ok", "more"),
    ):
        found = check("memory", memory_used_bytes=[1e9, used], memory_total_bytes=[80e9, 80e9])
        assert (verdict, used / 80e9, 0.95) == tuple(found[["verdict", "value", "threshold"]])
        assert found["reason"].endswith(advice)


def test_power_near_its_limit_is_work() -> None:
    for power, verdict in (([300, 500], "ok"), ([300, 399], "attention"), ([700, 700], "ok")):
        found = check("power", power_w=power, power_limit_w=[700, 700])
        assert (verdict, 0.5) == tuple(found[["verdict", "threshold"]])
        assert found["value"] == pytest.approx(sum(power) / 1400, rel=1e-12)
    assert (
        "at the limit for 50.0 % of the time"
        in check("power", power_w=[1, 9], power_limit_w=[9, 9])["reason"]
    )
    known = devices("NVIDIA GeForce RTX 4090", memory_bytes=120)
    found = checks(samples(power_w=[280], memory_used_bytes=[60]), known).set_index("check")
    assert [280 / 450, 0.5] == found.loc[["power", "memory"], "value"].tolist()
    assert "280 W of 450 W (data sheet of the GPU)" in found.loc["power", "reason"]


@pytest.mark.parametrize(
    ("name", "metrics", "why"),
    [
        (
            "utilisation",
            {"power_w": [1], "power_limit_w": [1]},
            "no utilisation is recorded: record it",
        ),
        (
            "memory",
            {"memory_used_bytes": [1e9]},
            "1.00 GB are in use, of how much is not recorded: `nvidia-smi",
        ),
        (
            "power",
            {"power_w": [300]},
            "300 W on average, of how much is not recorded: `nvidia-smi --query-gpu=",
        ),
        ("throttling", {"power_violation_ns": [4e9, 4e9]}, "by the power limit 0 %"),
        (
            "throttling",
            {"thermal_violation_frac": [0, 0]},
            "by heat 0 %; whether the power limit lowers the clock",
        ),
        *(
            (
                "throttling",
                {"temperature_c": [t] * 3, "gpu_busy_frac": [1] * 3},
                "`nvidia-smi dmon -s pucvmet`",
            )
            for t in (60, 83, 95)
        ),
        ("traffic", {"gpu_busy_frac": [1]}, "no traffic is recorded"),
    ],
)
def test_what_cannot_be_told_says_what_to_record(
    name: str, metrics: dict[str, list[float]], why: str
) -> None:
    found = check(name, **metrics)
    assert "cannot tell" == found["verdict"]
    assert why in found["reason"]


CALM = {"throttled_power_frac": [0] * 100, "throttled_thermal_frac": [0] * 100}


def test_throttling_is_told_from_reasons_and_counters() -> None:
    once = {"throttled_thermal_frac": [1] + [0] * 99}
    counters = {"power_violation_ns": [4e9, 4.5e9], "thermal_violation_ns": [0, 0]}
    standing = {"power_violation_ns": [4e9] * 3, "thermal_violation_ns": [0] * 3}
    for metrics, verdict, value in (
        *((CALM, "ok", 0.0), (CALM | once, "attention", 0.01), (once, "attention", 0.01)),
        *((counters, "attention", 0.5), (standing, "ok", 0.0)),
    ):
        found = check("throttling", **metrics)
        assert (verdict, value, 0.01) == tuple(found[["verdict", "value", "threshold"]])
    assert "by the power limit 50.0 %, by heat 0 %" in check("throttling", **counters)["reason"]


@pytest.mark.parametrize(
    ("metrics", "verdict", "why"),
    [
        (
            {"temperature_c": [84], "temperature_slowdown_c": [89]},
            "attention",
            "Celsius are within 5 of the slowdown at 89.0",
        ),
        ({"temperature_c": [83], "temperature_slowdown_c": [89]}, "ok", ""),
        (
            {"temperature_margin_c": [26, -2]},
            "attention",
            "the margin to the slowdown fell to -2.00 degrees",
        ),
        ({"temperature_margin_c": [26, 5]}, "attention", ""),
        ({"temperature_margin_c": [26, 6]}, "ok", ""),
    ],
)
def test_a_temperature_near_the_slowdown_is_a_warning(
    metrics: dict[str, list[float]], verdict: str, why: str
) -> None:
    found = check("throttling", **CALM, **metrics)
    assert verdict == found["verdict"]
    assert found["reason"].endswith(why)


def test_traffic_without_a_peak_is_a_value() -> None:
    # The busiest direction at the 95th percentile, and no verdict.
    found = check("traffic", pcie_rx_bytes_per_s=[1e9] * 19 + [9e9], pcie_tx_bytes_per_s=[2e9] * 20)
    assert ("cannot tell", 2e9, "bytes_per_s") == tuple(found[["verdict", "value", "unit"]])
    assert pd.isna(found["threshold"])
    assert "PCIe to the GPU 1.00 GB/s, PCIe from the GPU 2.00 GB/s" in found["reason"]
