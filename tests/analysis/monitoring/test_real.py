"""Monitoring logs of real machines, against what the logs' own lines say and the truth that was made from them."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfkit
from perfkit.analysis import monitoring
from perfkit.analysis.timeline import samples_mean
from perfkit.diagnosis.monitor import figures as diagnosed
from perfkit.tables import SAMPLES

TRAINING = "smi_query__rtx4090_training_run.csv"
H100 = "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{}__{}"
# Columns of the truth, the metric, and how many of the metric's units one of theirs is.
METRICS = {
    "utilization.gpu": ("gpu_busy_frac", 0.01),
    "utilization.memory": ("memory_busy_frac", 0.01),
    "memory.used": ("memory_used_bytes", 2**20),
    "power.draw": ("power_w", 1),
    "sm": ("gpu_busy_frac", 0.01),
    "mem": ("memory_busy_frac", 0.01),
    "pwr": ("power_w", 1),
    "gtemp": ("temperature_c", 1),
    "pclk": ("sm_clock_hz", 10**6),
}


def truth(profiles: Path, name: str) -> dict[str, dict[str, float]]:
    """Statistics of each column of a log's only GPU."""
    told: dict[str, Any] = json.loads((profiles / "golden" / "monitor" / f"{name}.truth.json").read_text())
    return next(iter(told["per_gpu"].values()))


@pytest.fixture(scope="module")
def training(profiles: Path) -> perfkit.Run:
    """2,619 readings of an RTX 4090 that trains, 1 s apart, some of them up to 7.3 s."""
    return perfkit.load(profiles / "monitor" / TRAINING)


@pytest.fixture(scope="module")
def lines(profiles: Path) -> list[tuple[float, float, float]]:
    """Seconds, utilisation in percent and power of each line, read by another way."""
    with (profiles / "monitor" / TRAINING).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    times = [datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f") for row in rows]
    columns = ("utilization.gpu [%]", "power.draw [W]")
    return [
        ((time - times[0]).total_seconds(), *(float(row[column].split()[0]) for column in columns))
        for time, row in zip(times, rows, strict=True)
    ]


@pytest.mark.parametrize(
    "name",
    [
        TRAINING,
        H100.format("load", "dmon.txt"),
        H100.format("idle", "dmon.txt"),
        H100.format("load", "query-gpu.csv"),
        H100.format("idle", "query-gpu.csv"),
    ],
)
def test_counts_and_extremes_are_those_of_the_truth(profiles: Path, name: str) -> None:
    """Every column; the plain mean too, which is that of `samples_mean`: the summary's is weighted by time."""
    read = perfkit.load(profiles / "monitor" / name).samples
    found = monitoring.summary(read).set_index("metric")
    plain = samples_mean(read).set_index("metric")["mean"]
    told = {column: of for column, of in truth(profiles, name).items() if column in METRICS}
    assert len(told) >= 4
    for column, expected in told.items():
        metric, unit = METRICS[column]
        row = found.loc[metric]
        assert expected["n"] == row["count"]
        figures = [plain[metric], row["min"], row["max"]]
        assert figures == pytest.approx([expected[key] * unit for key in ("mean", "min", "max")], rel=1e-12)


def test_the_readings_of_a_training_are_weighted_by_time(
    training: perfkit.Run, lines: list[tuple[float, float, float]], profiles: Path
) -> None:
    """82.46 % where the plain mean says 82.99: nvidia-smi was late, up to 7.3 s, when the GPU had little to do."""
    holds = [later[0] - line[0] for line, later in pairwise(lines)]
    holds.append(sorted(holds)[(len(holds) - 1) // 2])
    weighted = sum(hold * line[1] for hold, line in zip(holds, lines, strict=True)) / sum(holds) / 100
    found = monitoring.summary(training.samples).set_index("metric").loc["gpu_busy_frac"]
    assert found["mean"] == pytest.approx(weighted, rel=1e-9)  # the seconds of the lines are floats
    assert 0.8246 == round(found["mean"], 4)
    assert 0.8299 == round(truth(profiles, TRAINING)["utilization.gpu"]["mean"] / 100, 4)
    # 1.1 s between readings on average, 1.003 s as a rule: one of eleven is missing.
    assert found["missing_frac"] == pytest.approx(1 - 2619 * 1.003 / (lines[-1][0] + 1.003), abs=0.01)


def test_the_dips_of_a_training(training: perfkit.Run, lines: list[tuple[float, float, float]]) -> None:
    """25 stretches below 45 %, which hold as many readings as the file has such lines; 23 of them idle."""
    found = monitoring.dips(training.samples)
    assert 25 == len(found)
    assert sum(line[1] < 45 for line in lines) == found["count"].sum()
    none = monitoring.idle(training.samples).iloc[0]
    assert 23 == none["count"]
    assert 0.0402 == round(none["idle_frac"], 4)


def test_the_checks_of_a_training(training: perfkit.Run) -> None:
    """Busy 80 % and more for 67 % of the time; 279 W of the 450 of the data sheet; the rest was not recorded."""
    found = monitoring.checks(training.samples, training.devices).set_index("check")
    assert ["attention", "cannot tell", "ok", "cannot tell", "cannot tell"] == found["verdict"].tolist()
    assert 0.67 == round(found.loc["utilisation", "value"], 3)
    assert 0.621 == round(found.loc["power", "value"], 3)
    assert found.loc["memory", "reason"].startswith("18.5 GB are in use, of how much is not recorded")


@pytest.mark.parametrize(("state", "power", "verdicts"), [("load", 631.95, "ok"), ("idle", 69.85, "attention")])
def test_an_h100_tells_its_limits_itself(profiles: Path, state: str, power: float, verdicts: str) -> None:
    """Of 700 W and 81,559 MiB, with the reasons of its clock: nothing lowers it, idle or not."""
    run = perfkit.load(profiles / "monitor" / H100.format(state, "query-gpu.csv"))
    found = monitoring.checks(run.samples, run.devices).set_index("check")
    assert found.loc["power", "value"] == pytest.approx(power / 700, rel=1e-12)
    assert verdicts == found.loc["power", "verdict"]
    assert ("ok", 0.0) == tuple(found.loc["throttling", ["verdict", "value"]])
    used = truth(profiles, H100.format(state, "query-gpu.csv"))["memory.used"]["max"]
    assert found.loc["memory", "value"] == pytest.approx(used / 81_559, rel=1e-12)
    assert "cannot tell" == found.loc["utilisation", "verdict"]


def test_an_h100_under_load_and_idle_in_dmon(profiles: Path) -> None:
    """Five seconds at 100 % and at 0: consistent, and not; the clock falls to 345 of 1980 MHz when nothing runs."""
    load, idle = (perfkit.load(profiles / "monitor" / H100.format(s, "dmon.txt")).samples for s in ("load", "idle"))
    nothing = perfkit.load(profiles / "monitor" / H100.format("load", "dmon.txt")).devices
    assert ["ok", "attention"] == [monitoring.checks(s, nothing)["verdict"].iloc[0] for s in (load, idle)]
    assert [0.0, 1.0] == [monitoring.idle(s)["idle_frac"].item() for s in (load, idle)]
    clocks = [monitoring.summary(s).set_index("metric").loc["sm_clock_hz", "mean"] for s in (load, idle)]
    assert [1980e6, 345e6] == clocks


def test_violation_counters_of_dmon_answer_for_power_and_heat(profiles: Path) -> None:
    """`dmon -s pucvmet` on driver 470: pviol and tviol are 0 on every line; most traffic is the 14 MB/s of rxpci."""
    run = perfkit.load(profiles / "monitor" / "dmon_pucvmet_gfx_470.txt")
    found = monitoring.throttling(run.samples).iloc[0]
    assert (0.0, 0.0, 0.0) == tuple(found[["power_frac", "thermal_frac", "throttled_frac"]])
    assert np.isnan(found["other_frac"])
    traffic = monitoring.checks(run.samples, run.devices).set_index("check").loc["traffic"]
    assert ("cannot tell", "bytes_per_s") == tuple(traffic[["verdict", "unit"]])
    received = run.samples[run.samples["metric"] == "pcie_rx_bytes_per_s"]["value"]
    assert received.max() == traffic["value"]


def test_the_columns_of_dcgm_stay_apart(profiles: Path) -> None:
    """GPU 0 has GRACT 0.888 and TENSO 0.178, GPU 1 SMACT 0.777 and FP32A 0.046: two columns each, never one."""
    run = perfkit.load(profiles / "monitor" / "dcgmi_dmon_DCGM_issue244_8gpu_NA.txt")
    found = monitoring.utilisation(run.samples).set_index("gpu")
    meanings = ["gpu_busy_frac", "sm_active_frac", "sm_occupancy_frac", "pipe_active_frac"]
    expected = pd.DataFrame([[0.888, np.nan, np.nan, 0.178], [np.nan, 0.777, np.nan, 0.046]], [0, 1], meanings)
    pd.testing.assert_frame_equal(expected, found.loc[[0, 1], meanings], check_names=False, check_index_type=False)
    assert ["tensor_active_frac", "fp32_active_frac"] == found.loc[[0, 1], "pipe"].tolist()


def test_idle_gpus_of_a_node_are_compared(profiles: Path) -> None:
    """Six idle MI100: 35 to 40 W, and no utilisation to be a share of."""
    found = monitoring.imbalance(perfkit.load(profiles / "monitor" / "rocm-smi_json__mi100_rocm571.json").samples)
    row = found.set_index("metric").loc["power_w"]
    assert (6, 35, 40, 0.125) == tuple(row[["devices", "lowest", "highest", "spread_frac"]])
    assert np.isnan(found.set_index("metric").loc["gpu_busy_frac", "spread_frac"])


def test_a_real_counter_of_lost_time_is_a_share_of_the_time_that_passed(profiles: Path) -> None:
    """Between the two logs of an RTX 2080 the power cap's counter grew by 5.738122 s (its unit is us) in 14.941 s."""
    name = "nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__{}__query-gpu.csv"
    counter = "clocks_event_reasons_counters.sw_power_cap [us]"
    rows = []
    for state in ("idle", "load"):
        with (profiles / "monitor" / name.format(state)).open(encoding="utf-8") as file:
            (row,) = csv.DictReader(file, skipinitialspace=True)
        time = datetime.strptime(f"{row['timestamp']} +0000", "%Y/%m/%d %H:%M:%S.%f %z")
        time_ns = round(time.timestamp() * 1000) * 10**6
        value = 1000 * int(row[counter].split()[0])
        rows.append({"rank": 0, "gpu": 0, "time_ns": time_ns, "metric": "power_violation_ns", "value": value})
    found = monitoring.throttling(SAMPLES.make(pd.DataFrame(rows))).iloc[0]
    assert found["power_frac"] == pytest.approx(5.738122 / 14.941, rel=1e-12)


@pytest.mark.parametrize(
    ("log", "watts", "verdict"),
    [(H100.format("load", "dmon.txt"), 636, "cannot tell"), ("dmon_nvenc_load.txt", 7, "attention")],
)
def test_a_log_of_another_gpu_is_refused(log: str, watts: float, verdict: str, profiles: Path) -> None:
    """The log of an H100 beside the timeline of a T4: 636 W of 70 W are no 908.6 %; 7 W might be of the T4.

    Neither log names its GPU: what draws nine times the limit of the data sheet is not the GPU of the timeline. `load`
    refuses that pair (`perfkit.joining`); joined by hand, no share is made of it either.
    """
    timeline = profiles / "nsys" / "Lianhang666__gpu4__report2.sqlite"
    run = perfkit.Run([*perfkit.load(timeline).profiles, *perfkit.load(profiles / "monitor" / log).profiles])
    assert ["Tesla T4"] == run.devices["name"].tolist()
    found = monitoring.checks(run.samples, run.devices).set_index("check").loc["power"]
    assert verdict == found["verdict"]
    row = monitoring.at_limit(run.samples, run.devices).iloc[0]
    assert (watts, 70) == tuple(row[["worst", "limit"]])
    if verdict == "cannot tell":
        assert np.isnan(row["worst_frac"])
        assert found["reason"].startswith("up to 636 W are more than the 70.0 W of the data sheet of the GPU: ")
        assert not [f.id for f in diagnosed(perfkit.select(run)) if f.id.startswith("log_power")]
