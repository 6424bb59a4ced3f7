"""Busy time, split, overlap and samples of real captures, against figures computed apart from perfkit.

The `split` in truth.json counts memsets as memory; perfkit counts them as computation (see
`perfkit.analysis.timeline`), so both are checked: truth.json with the memsets renamed to copies,
and the project's own figures, with memsets as computation, in ANCHORS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from real import MFU, OPTIMISED, VECTOR_ADD
from real import WITH_KERNELS as CAPTURES

import perfkit
from perfkit.analysis.communication import overlap
from perfkit.analysis.timeline import bins, breakdown, busy, samples_mean

SPLIT = ["computation_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns", "span_ns"]
# Computed with memsets as computation; per GPU the columns of SPLIT.
ANCHORS = {
    "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite": [
        [381_096_717, 0, 38_499_779, 12_026_248_400, 12_445_844_896]
    ],
    "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite": [[294_404_540, 0, 9_390_923, 38_612_347, 342_407_810]],
    MFU: [
        [253_800_656, 17_172_652, 2_844_479, 26_031_025, 299_848_812],
        [256_199_208, 8_229_100, 2_847_608, 31_385_635, 298_661_551],
    ],
    OPTIMISED: [[80_492_582, 0, 2_272_604, 1_615_363_455, 1_698_128_641]],
}
METRICS = {
    "SM Active": "sm_active_frac",
    "GR Active": "gr_active_frac",
    "DRAM Read Throughput": "dram_read_frac",
    "DRAM Write Throughput": "dram_write_frac",
    "Tensor Active": "tensor_active_frac",
}


def truth(profiles: Path, capture: str) -> dict[str, Any]:
    """The figures kept beside a capture."""
    name = capture.removesuffix(".sqlite")
    return json.loads((profiles / "golden" / "nsys" / f"{name}.truth.json").read_text())


def device_truth(profiles: Path, capture: str) -> list[dict[str, Any]]:
    """The figures of each device, in the order of their numbers."""
    found = truth(profiles, capture)["devices"]
    return [found[key] for key in sorted(found, key=int)]


def load(profiles: Path, capture: str) -> perfkit.Run:
    """The capture as a run."""
    return perfkit.load(profiles / "nsys" / capture)


def test_every_capture_with_kernels_is_checked(profiles: Path) -> None:
    """No capture with kernels is left out of CAPTURES."""
    known = {path.name.removesuffix(".truth.json") for path in (profiles / "golden" / "nsys").glob("*.truth.json")}
    with_kernels = {name for name in known if any(d["kernel_count"] for d in device_truth(profiles, name))}
    assert with_kernels == {capture.removesuffix(".sqlite") for capture in CAPTURES}


@pytest.mark.parametrize("capture", CAPTURES)
def test_busy(profiles: Path, capture: str) -> None:
    """Start, span and both unions of every device are exact."""
    run = load(profiles, capture)
    found = busy(run.kernels, run.copies)[["start_ns", "span_ns", "kernel_busy_ns", "device_busy_ns"]]
    keys = ["first_op_start", "span", "kernel_busy_union", "gpu_busy_union"]
    assert found.to_numpy().tolist() == [[d[key] for key in keys] for d in device_truth(profiles, capture)]


@pytest.mark.parametrize("capture", CAPTURES)
def test_split_with_memsets_as_copies(profiles: Path, capture: str) -> None:
    """Once memsets are renamed to copies, the parts are those of truth.json."""
    run = load(profiles, capture)
    direction = run.copies["direction"].astype(str).replace("memset", "D2D").astype("category")
    keys = ["computation", "exposed_communication", "exposed_memory", "idle", "total"]
    expected = [[d["split"][key] for key in keys] for d in device_truth(profiles, capture)]
    assert breakdown(run.kernels, run.copies.assign(direction=direction))[SPLIT].to_numpy().tolist() == expected


@pytest.mark.parametrize("capture", ANCHORS)
def test_split(profiles: Path, capture: str) -> None:
    """With memsets as computation the parts are the anchors, and sum to the span."""
    run = load(profiles, capture)
    found = breakdown(run.kernels, run.copies)
    assert found[SPLIT].to_numpy().tolist() == ANCHORS[capture]
    assert found[SPLIT[:-1]].sum(axis=1).tolist() == found["span_ns"].tolist()


@pytest.mark.parametrize("capture", CAPTURES)
def test_overlap(profiles: Path, capture: str) -> None:
    """Communication and what computation covers of it are exact; no communication, no fraction."""
    expected = [
        [d["nccl"]["union"], d["nccl"]["overlap_with_compute"], d["nccl"]["overlap_ratio"]] if "nccl" in d else [0, 0]
        for d in device_truth(profiles, capture)
    ]
    found = overlap(load(profiles, capture).kernels)
    rows = found[["communication_ns", "overlapped_ns", "overlap_frac"]].to_numpy()
    assert [[value for value in row if not pd.isna(value)] for row in rows.tolist()] == expected


@pytest.mark.parametrize("capture", [MFU, OPTIMISED])
def test_bins_lose_nothing(profiles: Path, capture: str) -> None:
    """Each stream's time in 1000 bins is its time in one bin; streams of one kind cover at least the split's part."""
    run = load(profiles, capture)
    lane = ["rank", "gpu", "stream", "kind"]
    fine, coarse = (bins(run.kernels, run.copies, bins=count) for count in (1000, 1))
    summed = fine.groupby(lane, observed=True)["busy_ns"].sum()
    pd.testing.assert_series_equal(summed, coarse.set_index(lane)["busy_ns"])
    computed = coarse[coarse["kind"] == "computation"].groupby("gpu")["busy_ns"].sum()
    assert (computed.to_numpy() >= breakdown(run.kernels, run.copies)["computation_ns"].to_numpy()).all()


@pytest.mark.parametrize("capture", [OPTIMISED, VECTOR_ADD])
@pytest.mark.parametrize(("whole", "count", "mean"), [(True, "n", "mean_all"), (False, "n_window", "mean_window")])
def test_samples_mean(profiles: Path, capture: str, whole: bool, count: str, mean: str) -> None:
    """Means over all readings, and from the first kernel's start to the last one's end, both included."""
    metrics = truth(profiles, capture)["gpu_metrics"]
    first, last = metrics["window_kernel"]
    (of_gpu,) = metrics["sets"].values()
    found = samples_mean(load(profiles, capture).samples, window=None if whole else (first, last + 1))
    found = found.set_index(found["metric"].astype(str))
    for spelling, name in METRICS.items():
        expected = of_gpu["metrics"][spelling]
        assert found.loc[name, "count"] == expected[count]
        assert found.loc[name, "mean"] == pytest.approx(expected[mean] / 100, rel=1e-12)
