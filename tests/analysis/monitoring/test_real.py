"""Monitoring logs of real machines, against what the logs' own lines say and the truth that was made from them."""

import csv
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from frames import tuples
from real import truth_of
from sampled import samples

import perfkit
from perfkit.analysis import readings
from perfkit.analysis.timeline import samples_mean
from perfkit.logs import monitoring
from perfkit.logs.diagnosis import figures as diagnosed
from perfkit.logs.diagnosis import findings as concluded

TRAINING = "smi_query__rtx4090_training_run.csv"
H100 = "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{}__{}"
# Columns of the truth, the metric, and how many of the metric's units one of theirs is.
METRICS = {
    "utilization.gpu": ("gpu_busy_frac", 0.01),
    "utilization.memory": ("memory_busy_frac", 0.01),
    "memory.used": ("memory_used_bytes", 2**20),
    "power.draw": ("power_w", 1),
    "gtemp": ("temperature_c", 1),
    "pclk": ("sm_clock_hz", 10**6),
}
METRICS |= {
    "sm": METRICS["utilization.gpu"],
    "mem": METRICS["utilization.memory"],
    "pwr": METRICS["power.draw"],
}
LOGS = [
    TRAINING,
    *(
        H100.format(state, kind)
        for state in ("load", "idle")
        for kind in ("dmon.txt", "query-gpu.csv")
    ),
]


def truth(profiles: Path, name: str) -> dict[str, dict[str, float]]:
    of: dict[str, dict[str, float]] = next(
        iter(truth_of(profiles, "monitor", name)["per_gpu"].values())
    )
    return of


@pytest.fixture(scope="module")
def training(profiles: Path) -> perfkit.Run:
    return perfkit.load(profiles / "monitor" / TRAINING)


@pytest.fixture(scope="module")
def lines(profiles: Path) -> list[tuple[float, float, float]]:
    with (profiles / "monitor" / TRAINING).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    times = [datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f") for row in rows]
    columns = ("utilization.gpu [%]", "power.draw [W]")
    return [
        ((time - times[0]).total_seconds(), *(float(row[column].split()[0]) for column in columns))
        for time, row in zip(times, rows, strict=True)
    ]


@pytest.mark.parametrize("name", LOGS)
def test_counts_and_extremes_are_those_of_the_truth(profiles: Path, name: str) -> None:
    read = perfkit.load(profiles / "monitor" / name).samples
    found = readings.summary(read).set_index("metric")
    plain = samples_mean(read).set_index("metric")["mean"]
    told = {column: of for column, of in truth(profiles, name).items() if column in METRICS}
    assert len(told) >= 4
    for column, expected in told.items():
        metric, unit = METRICS[column]
        row = found.loc[metric]
        assert expected["n"] == row["count"]
        figures = [plain[metric], row["min"], row["max"]]
        assert figures == pytest.approx(
            [expected[key] * unit for key in ("mean", "min", "max")], rel=1e-12
        )


def test_the_readings_of_a_training_are_weighted_by_time(
    training: perfkit.Run, lines: list[tuple[float, float, float]], profiles: Path
) -> None:
    holds = [later[0] - line[0] for line, later in pairwise(lines)]
    holds.append(sorted(holds)[(len(holds) - 1) // 2])
    weighted = (
        sum(hold * line[1] for hold, line in zip(holds, lines, strict=True)) / sum(holds) / 100
    )
    found = readings.summary(training.samples).set_index("metric").loc["gpu_busy_frac"]
    assert found["mean"] == pytest.approx(weighted, rel=1e-9)  # the seconds of the lines are floats
    assert 0.8246 == round(found["mean"], 4)
    assert 0.8299 == round(truth(profiles, TRAINING)["utilization.gpu"]["mean"] / 100, 4)
    # 1.1 s between readings on average, 1.003 s as a rule: one of eleven is missing.
    assert found["missing_frac"] == pytest.approx(
        1 - 2619 * 1.003 / (lines[-1][0] + 1.003), abs=0.01
    )


@pytest.mark.parametrize(
    ("state", "power", "verdicts"), [("load", 631.95, "ok"), ("idle", 69.85, "attention")]
)
def test_an_h100_tells_its_limits_itself(
    profiles: Path, state: str, power: float, verdicts: str
) -> None:
    # Of 700 W and 81,559 MiB, with the reasons of its clock: nothing lowers it, idle or not.
    name = H100.format(state, "query-gpu.csv")
    run = perfkit.load(profiles / "monitor" / name)
    found = monitoring.checks(run.samples, run.devices).set_index("check")
    used = truth(profiles, name)["memory.used"]["max"]
    shares = found.loc[["power", "memory", "throttling"], "value"].tolist()
    assert [power / 700, used / 81_559, 0] == pytest.approx(shares, rel=1e-12)
    expected = [verdicts, "ok", "cannot tell"]
    assert expected == found.loc[["power", "throttling", "utilisation"], "verdict"].tolist()


def test_violation_counters_of_dmon_answer_for_power_and_heat(profiles: Path) -> None:
    run = perfkit.load(profiles / "monitor" / "dmon_pucvmet_gfx_470.txt")
    (shares,) = tuples(
        readings.throttling(run.samples),
        "power_frac",
        "thermal_frac",
        "throttled_frac",
        "other_frac",
    )
    assert (0.0, 0.0, 0.0, np.nan) == pytest.approx(shares, nan_ok=True)
    traffic = monitoring.checks(run.samples, run.devices).set_index("check").loc["traffic"]
    received = run.samples[run.samples["metric"] == "pcie_rx_bytes_per_s"]["value"].max()
    assert ("cannot tell", "bytes_per_s", received) == tuple(traffic[["verdict", "unit", "value"]])


def test_a_real_counter_of_lost_time_is_a_share_of_the_time_that_passed(profiles: Path) -> None:
    name = "nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__{}__query-gpu.csv"
    counted = []
    for state in ("idle", "load"):
        with (profiles / "monitor" / name.format(state)).open(encoding="utf-8") as file:
            (row,) = csv.DictReader(file, skipinitialspace=True)
        time = datetime.strptime(f"{row['timestamp']} +0000", "%Y/%m/%d %H:%M:%S.%f %z")
        lost_us = int(row["clocks_event_reasons_counters.sw_power_cap [us]"].split()[0])
        counted.append((round(time.timestamp() * 1000) * 10**6, 1000 * lost_us))
    at, lost_ns = zip(*counted, strict=True)
    found = readings.throttling(samples(at=at, power_violation_ns=lost_ns)).iloc[0]
    assert found["power_frac"] == pytest.approx(5.738122 / 14.941, rel=1e-12)


@pytest.mark.parametrize(
    ("log", "watts", "verdict"),
    [
        (H100.format("load", "dmon.txt"), 636, "cannot tell"),
        ("dmon_nvenc_load.txt", 7, "attention"),
    ],
)
def test_a_log_of_another_gpu_is_refused(
    log: str, watts: float, verdict: str, profiles: Path
) -> None:
    timeline = profiles / "nsys" / "Lianhang666__gpu4__report2.sqlite"
    run = perfkit.Run(
        [*perfkit.load(timeline).profiles, *perfkit.load(profiles / "monitor" / log).profiles]
    )
    assert ["Tesla T4"] == run.devices["name"].tolist()
    found = monitoring.checks(run.samples, run.devices).set_index("check").loc["power"]
    assert verdict == found["verdict"]
    row = monitoring.at_limit(run.samples, run.devices).iloc[0]
    assert (watts, 70) == tuple(row[["worst", "limit"]])
    if verdict == "cannot tell":
        assert np.isnan(row["worst_frac"])
        assert found["reason"].startswith(
            "up to 636 W are more than the 70.0 W of the data sheet of the GPU: "
        )
        assert not [f.id for f in diagnosed(perfkit.select(run)) if f.id.startswith("log_power")]


def test_little_power_follows_from_one_reading_of_low_utilisation(profiles: Path) -> None:
    """A kernel runs 8 % of the time, the video encoder 100 %."""
    log = (
        profiles
        / "monitor/nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__load__query-gpu.csv"
    )
    assert [] == list(concluded(perfkit.select(perfkit.load(log))))


def test_only_gpus_that_never_held_a_program_are_unused(profiles: Path) -> None:
    """GPU 0 and 1 hold 17 GB at the first of five readings, and run nothing; GPU 4 and 5 never hold any."""
    log = profiles / "monitor" / "nvidia-smi_table_loop__X-yang03_mixed_gpus.txt"
    found = {f.rule: f.title for f in concluded(perfkit.select(perfkit.load(log)))}
    title = (
        "2 of 6 GPUs are not used: GPU 4, GPU 5, while GPU 2, GPU 3 run kernels 52.3 % of the time"
    )
    assert title == found["log_unused"]
