"""Kernel-level figures of the lab's inference: the numbers the lab should have found."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from diagnosis.test_diagnosis import _view

import perfkit
from perfkit import diagnosis, hardware, tables
from perfkit.diagnosis.finding import Finding
from perfkit.report.notebooks import sample


@pytest.fixture(scope="module")
def view() -> perfkit.Selection:
    """The sample run: timeline and counters, read and diagnosed once."""
    return perfkit.select(perfkit.load(sample()))


def test_lab_figures(view: perfkit.Selection) -> None:
    """763,904 + 772,096 + 2 x 15,484,032 = 32,504,064 FLOP; / 57.58 us = 0.5645 TFLOP/s; / 2,481,024 B = 13.10.

    The lab added the clocks of eight launches and got 7.2 us and 4.5 TFLOP/s.
    """
    figures = diagnosis.figures(view)
    assert 32_504_064 == figures["measured_flops"].value
    assert 2_481_024 == figures["measured_dram_bytes"].value
    assert 57_582 == pytest.approx(figures["measured_dur_ns"].value, abs=1)
    assert 0.5645e12 == pytest.approx(figures["measured_flops_per_s"].value, rel=1e-3)
    assert 13.101 == pytest.approx(figures["measured_intensity"].value, abs=1e-3)


def test_lab_is_bound_by_latency(view: perfkit.Selection) -> None:
    """At 3 % of the roof and less than a wave of blocks the verdict is latency, not memory, as the lab concluded."""
    (finding,) = (f for f in diagnosis.findings(view) if f.rule.endswith("_bound"))
    assert "latency_bound" == finding.rule
    assert "low" == finding.severity


def test_roof_is_the_data_sheet_of_the_recorded_gpu(view: perfkit.Selection) -> None:
    """The A100 PCIe's FP32 ridge is 19.5 TFLOP/s over 1.935 TB/s = 10.08 FLOP/byte."""
    roof = diagnosis.roof(view)
    assert roof.ceilings is not None
    ridge = roof.ceilings[roof.ceilings["roof"] == "fp32"]["ridge"].iloc[0]
    assert 10.08 == pytest.approx(ridge, abs=0.01)


def test_question_of_counters_is_not_refused_when_they_are_there(view: perfkit.Selection) -> None:
    """With counters the main stall is a figure and no longer among what was not answered."""
    assert "Main stall: long scoreboard" == diagnosis.figures(view)["main_stall_frac"].label
    assert [] == [r for r in diagnosis.refusals(view) if "stall" in r.question]


def test_counters_without_a_timeline_say_so() -> None:
    """Launches alone do not tell whether the GPU is idle: a timeline is what to record."""
    alone = perfkit.select(perfkit.load(sample() / "mlp_a100.inference.ncu.csv"))
    assert "Is the GPU idle, and why?" in [r.question for r in diagnosis.refusals(alone)]
    assert "span_ns" not in diagnosis.figures(alone)


def test_a_launch_without_a_number_was_not_measured(profiles: Path) -> None:
    """The report has five launches; of the last, which was cut, every counter is NaN: four were measured."""
    run = perfkit.load(profiles / "ncu" / "flyinglandlord__sglang__profile.ncu-rep")
    lasted = run.launches.set_index("launch")["dur_ns"]
    assert (5, [4]) == (len(lasted), lasted.index[lasted.isna()].tolist())
    figures = diagnosis.figures(run)
    assert 4 == figures["measured_count"].value
    assert 16_448 + 3_232 + 33_504 + 33_952 == figures["measured_dur_ns"].value


def stalled(path: Path) -> list[Finding]:
    """The findings on stalls of a report."""
    return [finding for finding in diagnosis.findings(perfkit.load(path)) if finding.rule == "kernel_stall"]


def test_a_real_kernel_that_waits_at_barriers(profiles: Path) -> None:
    """speedy_scan, from NVIDIA's own page (two decimals): stalled at the barrier over the sum of all reasons."""
    with (profiles / "golden/ncu/thedavidchu__speedy_scan__profile.raw_base.csv").open(encoding="utf-8") as file:
        (row,) = [row for row in csv.DictReader(file) if row["ID"]]
    reason = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
    values = {match[1]: float(row[name].replace(",", "")) for name in row if (match := reason.fullmatch(name))}
    (finding,) = stalled(profiles / "ncu/thedavidchu__speedy_scan__profile.ncu-rep")
    share = values["barrier"] / sum(values.values())
    assert [share, 1.0] == pytest.approx([figure.value for figure in finding.evidence], rel=1e-3)
    assert 1 / (1 - share) == pytest.approx(finding.gain.high, rel=1e-3)
    assert finding.gain.share is None, "of kernel time, not of the run's"
    assert "barrier" in finding.title


@pytest.mark.parametrize("name", ["flyinglandlord__sglang__profile", "NVIDIA__nsight-training__manual_nvtx"])
def test_stalls_that_cost_nothing_are_not_told(profiles: Path, name: str) -> None:
    """Warps that wait to be selected are enough; at 88 to 95 % of the memory's rate warps have to wait for it."""
    assert [] == stalled(profiles / "ncu" / f"{name}.ncu-rep")


def waiting(*launches: tuple[float, float, float]) -> perfkit.Selection:
    """Launches of `gather` by duration in ns, throughput of the memory, and share of the long scoreboard."""
    rows = [
        {"launch": i, "dur_ns": ns, "memory_frac": memory, "sm_frac": 0.1} for i, (ns, memory, _) in enumerate(launches)
    ]
    frame = pd.DataFrame(rows).reindex(columns=tables.LAUNCHES.column_names).assign(rank=0, gpu=0, name="gather")
    shares = [(i, *row) for i, (*_, s) in enumerate(launches) for row in (("long_scoreboard", s), ("wait", 1 - s))]
    stalls = pd.DataFrame(shares, columns=["launch", "reason", "value"]).assign(rank=0, node=-1)
    return _view(launches=tables.LAUNCHES.make(frame.assign(full_name="gather")), stalls=tables.STALLS.make(stalls))


def test_long_kernels_that_wait_for_memory_are_told() -> None:
    """4.49 s of kernels with 71 % long scoreboard, beside 0.51 s that wait for something else: both shares are told."""
    (finding,) = (
        f for f in diagnosis.findings(waiting((4.49e9, 0.4, 0.71), (0.51e9, 0.4, 0.1))) if f.rule == "kernel_stall"
    )
    assert [0.71, 0.898] == pytest.approx([figure.value for figure in finding.evidence])
    assert 1 / (1 - 0.71 * 0.898) == pytest.approx(finding.gain.high)
    assert finding.title.startswith("Warps of gather spend 71.0 % of their time in the stall “long scoreboard”")


@pytest.mark.parametrize("launches", [((1e9, 0.85, 0.9),), ((1e9, 0.4, 0.29),), ((2e8, 0.4, 0.9), (8e8, 0.9, 0.9))])
def test_stalls_below_the_thresholds_are_not_told(launches: tuple[tuple[float, float, float], ...]) -> None:
    """The memory is saturated, the share is under 30 %, or the kernel has 20 % of the measured time."""
    rows = diagnosis.findings(waiting(*launches))
    if launches[0][2] < 0.3:  # the rest of the samples is another stall, which may be told
        assert "long scoreboard" not in " ".join(f.title for f in rows)
    else:
        assert "kernel_stall" not in {f.rule for f in rows}


def test_a_launch_in_two_precisions_has_the_share_of_its_dominant_one() -> None:
    """80 % of the tensor roof and 0.5 % of that of FP32, in one launch: 80 %, not their mean."""
    roofs = hardware.peaks("NVIDIA A100-SXM4-40GB")
    assert roofs
    work = {"tensor_flops": 0.8 * roofs.flops("fp16_tensor") / 1e3, "fp32_flops": 0.005 * roofs.flops("fp32") / 1e3}
    row = {
        "rank": 0,
        "gpu": 0,
        "launch": 0,
        "dur_ns": 1e6,
        "dram_bytes": 1e6,
        "memory_frac": 0.2,
        "sm_frac": 0.8,
        **work,
    }
    name = "ampere_fp16_s16816gemm_fp16_128x128_tn"
    frame = pd.DataFrame([row]).reindex(columns=tables.LAUNCHES.column_names).assign(name=name, full_name=name)
    device = {"rank": 0, "gpu": 0, "name": roofs.name, "compute_capability": "8.0"}
    devices = tables.DEVICES.make(pd.DataFrame([device]).reindex(columns=tables.DEVICES.column_names))
    figures = diagnosis.figures(_view(launches=tables.LAUNCHES.make(frame), devices=devices))
    assert 0.8 == pytest.approx(figures["roof_share_frac"].value)


def test_no_share_of_a_roof_that_is_not_known(profiles: Path) -> None:
    """The page of BERT names no GPU: no launch has a share of the roof, those without operations have none either."""
    name = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_torch_nsight.csv"
    view = perfkit.select(perfkit.load(profiles / "ncu" / name))
    roof = diagnosis.roof(view)
    assert roof.ceilings is None
    assert (roof.points["flops"] == 0).any()
    assert roof.points["roof_share_frac"].isna().all()
    assert "roof_share_frac" not in diagnosis.figures(view)


def test_operations_that_were_counted_in_part_are_left_out(profiles: Path) -> None:
    """Launch 4 works in the tensor pipe for 32 % of its cycles, and only its 6,181,056 FP32 operations were counted."""
    run = perfkit.load(profiles / "ncu" / "eschnett__IndexSpaces.jl__profile.ncu-rep")
    last = run.launches.set_index("launch").loc[4]
    assert (6_181_056, True) == (round(last["fp32_flops"]), bool(np.isnan(last["tensor_flops"])))
    assert 0.32 == pytest.approx(last["tensor_frac"], abs=0.001)
    figures = diagnosis.figures(run)
    assert not {"measured_flops_per_s", "measured_intensity"} & set(figures)
    assert "without 1 launches that lack a count of tensor operations" in figures["measured_flops"].definition
