"""Real logs of DCGM and the exporters equal the truth that was counted from them by other means."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from readers.test_dcgm import values

from perfkit.readers import dcgm
from perfkit.readers.dcgm import forms
from perfkit.readers.dcgm.fields import BY_COLUMN, METRICS

FILES = (
    "dcgmi_dmon_DCGM_issue244_8gpu_NA.txt",
    "dcgmi_dmon_h100nvl_dcgm339.txt",
    "dcgmi_dmon_mig_old_header.txt",
    "dcgm_exporter_a100_mig.prom",
    "dcgm_exporter_t4_k8s.prom",
    "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.metrics",
    "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-mig__590.48.01__load.metrics",
)
DMON, SCRAPES = FILES[:3], FILES[3:]


def truth(profiles: Path, name: str) -> dict[str, Any]:
    """What is known of a file."""
    known: dict[str, Any] = json.loads((profiles / "golden" / "monitor" / f"{name}.truth.json").read_text())
    return known


def test_every_file_of_dcgm_and_no_other_is_claimed(profiles: Path) -> None:
    """Of all monitoring logs these are the reader's."""
    assert sorted(FILES) == sorted(f.name for f in (profiles / "monitor").iterdir() if dcgm.sniff(f))


@pytest.mark.parametrize("name", DMON)
def test_dmon_equals_the_truth(profiles: Path, name: str) -> None:
    """Per GPU and column: how many values, their mean, least and greatest; and per column how many are N/A.

    Values of instances, which are relative to the instance, are left out and counted.
    """
    known = truth(profiles, name)
    path = profiles / "monitor" / name
    profile = dcgm.read(path)
    expected = {
        (int(entity.split()[1]), BY_COLUMN[column].metric): figures
        for entity, columns in known["per_entity"].items()
        for column, figures in columns.items()
        if entity.startswith("GPU ")
    }
    grouped = profile.table("SAMPLES").groupby(["gpu", "metric"], observed=True)["value"]
    found = {key: {"n": len(v), "mean": v.mean(), "min": v.min(), "max": v.max()} for key, v in grouped}
    assert expected == found
    absent: dict[str, int] = {}
    rows: dict[str, int] = {}
    for one in forms.read_dmon(path).series:
        absent[one.field.short] = absent.get(one.field.short, 0) + sum(math.isnan(v) for v in one.values)
        rows[f"GPU {one.gpu}"] = len(one.values)
    whole = {entity: count for entity, count in known["rows_per_entity"].items() if entity.startswith("GPU ")}
    assert (known["not_available"], whole) == ({column: n for column, n in absent.items() if n}, rows)
    left_out = len(known["columns"]) * sum(known["rows_per_entity"][e] for e in known["rows_per_entity"].keys() - whole)
    assert (left_out > 0) == any(f"MIG instances are left out ({left_out})" in note for note in profile.notes)


@pytest.mark.parametrize("name", SCRAPES)
def test_scrapes_equal_the_truth(profiles: Path, name: str) -> None:
    """Every sample of the file is parsed, and those of the truth come out of the tables in base units."""
    known = truth(profiles, name)
    path = profiles / "monitor" / name
    lines = list(forms.parsed(path, path.read_text().split("\n")))
    counted: dict[str, int] = {}
    for one in lines:
        counted[one.name] = counted.get(one.name, 0) + 1
    assert (known["samples"], known["per_metric"]) == (len(lines), counted)
    profile = dcgm.read(path)
    compared = 0
    for metric, by_gpu in known["main_values"].items():
        if metric in METRICS:
            field = METRICS[metric]
            whole = {gpu: value for gpu, value in by_gpu.items() if "/" not in gpu}
            for i, value in enumerate(whole.values()):
                assert [pytest.approx(value * field.scale)] == values(profile, field.metric, gpu=i)
                compared += 1
    assert compared >= 2


def test_mig_instances_are_parsed_though_not_mixed_in(profiles: Path) -> None:
    """The A100's instance 13 has values of its own (DRAM 0.800339 beside 0.690789 of the GPU), as the truth says."""
    name = "dcgm_exporter_a100_mig.prom"
    known = truth(profiles, name)["main_values"]["DCGM_FI_PROF_DRAM_ACTIVE"]
    series = forms.read_exposition(profiles / "monitor" / name).series
    found = {f"{s.gpu}/{s.instance}".rstrip("/"): s.values[0] for s in series if s.field.short == "DRAMA"}
    assert known == found


def test_an_h100_under_load(profiles: Path) -> None:
    """nvidia_gpu_exporter on an H100: 631.95 W of 700 W, 20,780,679,168 of 85,520,809,984 B, no throttling, busy."""
    profile = dcgm.read(profiles / "monitor" / SCRAPES[2])
    assert ([631.95], [700]) == (values(profile, "power_w"), values(profile, "power_limit_w"))
    assert [20780679168] == values(profile, "memory_used_bytes")
    assert [1] == values(profile, "gpu_busy_frac")
    assert [0] == values(profile, "throttled_power_frac")
    device = profile.table("DEVICES").iloc[0]
    assert ("NVIDIA H100 80GB HBM3", "9.0", 85520809984) == tuple(
        device[["name", "compute_capability", "memory_bytes"]]
    )
    assert "590.48.01" == profile.capture["tool_version"].iloc[0]
