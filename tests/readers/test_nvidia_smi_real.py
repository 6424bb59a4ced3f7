"""nvidia-smi: every real log and inventory equals what was counted in it independently (truth.json)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import smi_files as smi

import perfkit
from perfkit.analysis.monitoring.readings import throttling
from perfkit.errors import ReadError
from perfkit.readers import nvidia_smi

MIB = 2**20
DMON = [
    "dmon_DT_pucet_2021.txt",
    "dmon_nvenc_load.txt",
    "dmon_pucvmet_gfx_470.txt",
    *(f"nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__{state}__dmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-geforce-rtx-4080-super__595.71.05__{state}__dmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{state}__dmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-h100-mig__590.48.01__{state}__dmon.txt" for state in ("idle", "load")),
]
QUERIES = [
    "smi_query__power_only_fluidsGL.csv",
    "smi_query__rtx4090_training_run.csv",
    *(name.replace("dmon.txt", "query-gpu.csv") for name in DMON[3:]),
]
XML = ["a100-sxm4-v12", "gtx-1070-ti", "quadro-p2000-v12", "rtx-3060-v12", "rtx-3080-v13", "rtx-4000-sff-ada-v13"]
OWN_SCRIPT = "xypp3__gpu_glasses__nvidia_smi_8gpu_custom.csv"  # in the form of a query, with time zones
PROCESSES = [
    *(f"nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{state}__pmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{state}__compute-apps.csv" for state in ("idle", "load")),
    "nvidia-smi__nvidia-h100-mig__590.48.01__load__pmon.txt",
    "nvidia-smi__nvidia-h100-mig__590.48.01__load__compute-apps.csv",
]
# Column as printed: the metric, and what one printed unit is.
COLUMNS = {
    "pwr": ("power_w", 1),
    "gtemp": ("temperature_c", 1),
    "mtemp": ("memory_temperature_c", 1),
    "sm": ("gpu_busy_frac", 0.01),
    "mem": ("memory_busy_frac", 0.01),
    "enc": ("encoder_busy_frac", 0.01),
    "dec": ("decoder_busy_frac", 0.01),
    "jpg": ("jpeg_busy_frac", 0.01),
    "ofa": ("ofa_busy_frac", 0.01),
    "mclk": ("memory_clock_hz", 1e6),
    "pclk": ("sm_clock_hz", 1e6),
    "pviol": ("power_violation_frac", 0.01),
    "tviol": ("thermal_violation_frac", 1),
    "fb": ("memory_used_bytes", MIB),
    "bar1": ("bar1_used_bytes", MIB),
    "pci": ("pcie_replay_count", 1),
    "rxpci": ("pcie_rx_bytes_per_s", 1e6),
    "txpci": ("pcie_tx_bytes_per_s", 1e6),
}
FIELDS = {
    "memory.total": ("memory_total_bytes", MIB),
    "memory.used": ("memory_used_bytes", MIB),
    "utilization.gpu": ("gpu_busy_frac", 0.01),
    "utilization.memory": ("memory_busy_frac", 0.01),
    "temperature.gpu": ("temperature_c", 1),
    "temperature.memory": ("memory_temperature_c", 1),
    "power.draw": ("power_w", 1),
    "clocks.current.sm": ("sm_clock_hz", 1e6),
}
OTHER_READINGS = {"power.draw.average", "power.draw.instant"}


def truth(profiles: Path, name: str) -> Any:
    """What was counted in a file without perfkit."""
    return json.loads((profiles / "golden" / "monitor" / f"{name}.truth.json").read_text())


def figures(samples: pd.DataFrame, metric: str, scale: float) -> dict[str, float]:
    """Number, mean, lowest and highest of a metric in the unit that was printed."""
    values = samples.loc[samples["metric"] == metric, "value"] / scale
    return {"n": len(values), "mean": values.mean(), "min": values.min(), "max": values.max()}


@pytest.mark.parametrize("name", DMON)
def test_dmon_equals_its_truth(name: str, profiles: Path) -> None:
    """Rows of each GPU, and number, mean, lowest and highest of every column; dashes are counted the same."""
    told = truth(profiles, name)
    profile = smi.read(profiles / "monitor" / name)
    samples = profile.table("SAMPLES")
    assert {int(gpu): rows for gpu, rows in told["rows_per_gpu"].items()} == {
        int(gpu): part.groupby("metric", observed=True).size().max() for gpu, part in samples.groupby("gpu")
    }
    for gpu, columns in told["per_gpu"].items():
        own = samples[samples["gpu"] == int(gpu)]
        for column, expected in columns.items():
            metric, scale = COLUMNS[column]
            assert expected == pytest.approx(figures(own, metric, scale), rel=1e-12), column
        assert {COLUMNS[column][0] for column in columns} == set(own["metric"])
    rows = sum(told["rows_per_gpu"].values())
    noted = next((n.removeprefix("not available: ").split(", ") for n in profile.notes if "available" in n), [])
    assert {f"{column} {count} of {rows}" for column, count in told["not_available"].items()} == set(noted)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_equals_its_truth(name: str, profiles: Path) -> None:
    """Rows, and number, mean, lowest and highest of every column; the first row's time is the start."""
    told = truth(profiles, name)
    profile = smi.read(profiles / "monitor" / name)
    samples = profile.table("SAMPLES")
    assert {0} == set(samples["gpu"])
    (columns,) = told["per_gpu"].values()
    for field, expected in columns.items():
        if field not in OTHER_READINGS:
            assert expected == pytest.approx(figures(samples, *FIELDS[field]), rel=1e-12), field
    assert not {FIELDS[f][0] for f in set(told["not_available"]) - OTHER_READINGS} & set(samples["metric"])
    first, last = (pd.Timestamp(told[end]).value for end in ("first", "last"))
    assert (first, last - first) == tuple(profile.capture.iloc[0][["t0_unix_ns", "dur_ns"]])
    assert (told["names"] or []) == profile.table("DEVICES")["name"].tolist()


@pytest.mark.parametrize("name", XML)
def test_an_inventory_equals_its_truth(name: str, profiles: Path) -> None:
    """Driver, names, utilisation, memory, temperature and power of each GPU; N/A is no sample."""
    told = truth(profiles, f"nvidia-smi_xml__{name}.xml")
    profile = smi.read(profiles / "monitor" / f"nvidia-smi_xml__{name}.xml")
    assert (told["driver"] or "") == profile.capture["tool_version"].iloc[0]
    assert [gpu["name"] for gpu in told["gpus"]] == profile.table("DEVICES")["name"].tolist()
    places = {
        "util": ("gpu_busy_frac", 0.01),
        "mem_used": ("memory_used_bytes", MIB),
        "mem_total": ("memory_total_bytes", MIB),
        "temp": ("temperature_c", 1),
        "power": ("power_w", 1),
    }
    for number, gpu in enumerate(told["gpus"]):
        for key, (metric, scale) in places.items():
            expected = [] if gpu[key] == "N/A" else [pytest.approx(float(gpu[key].split()[0]) * scale, rel=1e-12)]
            assert expected == smi.values(profile, metric, number), key


def test_limits_of_real_gpus(profiles: Path) -> None:
    """A100: slowdown 89, shutdown 92, 85 in operation; the Quadro has no limit of operation, the Ada only margins."""
    names = ("temperature_slowdown_c", "temperature_shutdown_c", "temperature_max_c", "temperature_margin_c")
    found = {}
    for name in ("a100-sxm4-v12", "quadro-p2000-v12", "rtx-4000-sff-ada-v13"):
        profile = smi.read(profiles / "monitor" / f"nvidia-smi_xml__{name}.xml")
        found[name] = [smi.values(profile, metric) for metric in names]
    assert [[89.0], [92.0], [85.0], []] == found["a100-sxm4-v12"]
    assert [[101.0], [104.0], [], []] == found["quadro-p2000-v12"]
    assert [[], [], [], [49.0]] == found["rtx-4000-sff-ada-v13"]


def test_margin_and_temperature_do_not_make_a_limit(profiles: Path) -> None:
    """The H100 says 59 C with a margin of 26, and 53 C with 24: their sum is no constant of the GPU.

    So a margin is never turned into a slowdown temperature.
    """
    folder = profiles / "monitor"
    sums = [
        smi.values(profile, "temperature_c")[0] + smi.values(profile, "temperature_margin_c")[0]
        for kind in ("80gb-hbm3", "mig")
        for profile in [smi.read(folder / f"nvidia-smi__nvidia-h100-{kind}__590.48.01__load__query-gpu.csv")]
    ]
    assert [85.0, 77.0] == sums


def test_reasons_of_a_real_idle_gpu(profiles: Path) -> None:
    """The idle RTX 4080 says that it is idle; the loaded H100 that nothing lowers its clock."""
    folder = profiles / "monitor"
    idle = smi.read(folder / "nvidia-smi__nvidia-geforce-rtx-4080-super__595.71.05__idle__query-gpu.csv")
    busy = smi.read(folder / "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__query-gpu.csv")
    assert ([1.0], [0.0]) == (smi.values(idle, "idle_frac"), smi.values(busy, "idle_frac"))
    for cause in ("power", "thermal", "other"):
        assert [0.0] == smi.values(busy, f"throttled_{cause}_frac")


COUNTERS = {
    "throttled_sw_power_ns": "clocks_event_reasons_counters.sw_power_cap",
    "throttled_power_brake_ns": "clocks_event_reasons_counters.hw_power_brake_slowdown",
    "throttled_sw_thermal_ns": "clocks_event_reasons_counters.sw_thermal_slowdown",
    "throttled_hw_thermal_ns": "clocks_event_reasons_counters.hw_thermal_slowdown",
    "throttled_sync_boost_ns": "clocks_event_reasons_counters.sync_boost",
}


def test_counters_of_reasons_know_what_their_readings_miss(profiles: Path, tmp_path: Path) -> None:
    """Two queries of an RTX 2080, 14.941 s apart, show no reason; the power cap has counted 5.738122 s: 38.4 %."""
    first, second = (
        (
            profiles / "monitor" / f"nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__{when}__query-gpu.csv"
        ).read_text()
        for when in ("idle", "load")
    )
    path = tmp_path / "both.csv"
    path.write_text(first + second.splitlines()[1] + "\n", encoding="utf-8")
    profile = smi.read(path)
    (header, *rows) = csv.reader(path.read_text().splitlines(), skipinitialspace=True)
    for metric, column in COUNTERS.items():
        printed = [float(row[header.index(f"{column} [us]")].removesuffix(" us")) * 1000 for row in rows]
        assert printed == smi.values(profile, metric)
    assert [0.0, 0.0] == smi.values(profile, "throttled_power_frac")
    found = throttling(profile.table("SAMPLES")).iloc[0]
    assert (15_820_333_506 - 15_814_595_384) / 14_941_000 == pytest.approx(found["power_frac"], rel=1e-9)
    assert found["power_frac"] == found["throttled_frac"]


def test_counters_in_a_real_inventory(profiles: Path) -> None:
    """The XML of a driver of 2026 has the five counters, all of them 0 on this RTX 3080."""
    profile = smi.read(profiles / "monitor" / "nvidia-smi_xml__rtx-3080-v13.xml")
    assert [[0.0]] * 5 == [smi.values(profile, metric) for metric in COUNTERS]


@pytest.mark.parametrize("name", PROCESSES)
def test_real_lists_of_processes_are_refused(name: str, profiles: Path) -> None:
    """pmon's columns are of processes, whose sum is not the utilisation of the GPU: the error names dmon or a query."""
    path = profiles / "monitor" / name
    with pytest.raises(ReadError, match=r"nvidia-smi (dmon|--query-gpu)"):
        perfkit.load(path)


def test_no_other_log_is_claimed(profiles: Path) -> None:
    """Of all monitoring logs only those of nvidia-smi are claimed."""
    claimed = {path.name for path in (profiles / "monitor").iterdir() if nvidia_smi.sniff(path)}
    assert {*DMON, *QUERIES, OWN_SCRIPT, *(f"nvidia-smi_xml__{name}.xml" for name in XML)} == claimed
