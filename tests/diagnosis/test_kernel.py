"""Kernel-level figures of the lab's inference, the numbers the lab should have found, and of real reports."""

import csv
import re
from pathlib import Path
from typing import Any

import counted
import extras
import numpy as np
import pandas as pd
import pytest
from diagnosis.traces import told, values, view
from sampled import devices

import perfkit
from perfkit import diagnosis, hardware, tables
from perfkit.report.notebooks import sample


def launches(*rows: dict[str, Any], name: str = "gather") -> pd.DataFrame:
    return counted.launches(
        *({"name": name, "grid_blocks": None, "block_threads": None, **row} for row in rows)
    )


def test_the_lab() -> None:
    """763,904 + 772,096 + 2 x 15,484,032 = 32,504,064 FLOP; / 57.58 us = 0.5645 TFLOP/s; / 2,481,024 B = 13.10.

    The lab added the clocks of eight launches and got 7.2 us and 4.5 TFLOP/s. At 3 % of the roof and less than a wave
    of blocks the verdict is latency, not memory, as the lab concluded. The A100 PCIe's FP32 ridge is 19.5 TFLOP/s over
    1.935 TB/s.
    """
    lab = perfkit.select(perfkit.load(sample()))
    figures = values(lab)
    assert (32_504_064, 2_481_024) == (figures["measured_flops"], figures["measured_dram_bytes"])
    assert 57_582 == pytest.approx(figures["measured_dur_ns"], abs=1)
    assert 0.5645e12 == pytest.approx(figures["measured_flops_per_s"], rel=1e-3)
    assert 13.101 == pytest.approx(figures["measured_intensity"], abs=1e-3)
    (finding,) = (f for rule, f in told(lab).items() if rule.endswith("_bound"))
    assert ("latency_bound", "low") == (finding.rule, finding.severity)
    roofs = diagnosis.roof(lab).ceilings
    assert roofs is not None
    assert 10.08 == pytest.approx(roofs.loc[roofs["roof"] == "fp32", "ridge"].iloc[0], abs=0.01)
    assert "Main stall: long scoreboard" == diagnosis.figures(lab)["main_stall_frac"].label
    assert [] == [r for r in diagnosis.refusals(lab) if "stall" in r.question]
    alone = perfkit.select(
        perfkit.load(sample() / "mlp_a100.inference.ncu.csv")
    )  # counters without a timeline
    assert "Is the GPU idle, and why?" in [r.question for r in diagnosis.refusals(alone)]
    assert "span_ns" not in values(alone)


def test_what_a_report_did_not_count(profiles: Path) -> None:
    """The last of sglang's five launches was cut, every counter of it is NaN; BERT's page names no GPU.

    Launch 4 of IndexSpaces works in the tensor pipe for 32 % of its cycles, and only its FP32 operations were counted.
    """
    extras.require("ncu_report")
    run = perfkit.load(profiles / "ncu" / "flyinglandlord__sglang__profile.ncu-rep")
    lasted = run.launches.set_index("launch")["dur_ns"]
    assert (5, [4]) == (len(lasted), lasted.index[lasted.isna()].tolist())
    figures = values(run)
    assert (4, 16_448 + 3_232 + 33_504 + 33_952) == (
        figures["measured_count"],
        figures["measured_dur_ns"],
    )
    assert "kernel_stall" not in told(run)  # warps that wait to be selected are enough
    trained = perfkit.load(profiles / "ncu/NVIDIA__nsight-training__manual_nvtx.ncu-rep")
    assert "kernel_stall" not in told(
        trained
    )  # at 88 to 95 % of the memory's rate warps have to wait for it
    name = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_torch_nsight.csv"
    chosen = perfkit.select(perfkit.load(profiles / "ncu" / name))
    roof = diagnosis.roof(chosen)
    assert roof.ceilings is None
    assert (roof.points["flops"] == 0).any()
    assert roof.points["roof_share_frac"].isna().all()
    assert "roof_share_frac" not in values(chosen)
    run = perfkit.load(profiles / "ncu" / "eschnett__IndexSpaces.jl__profile.ncu-rep")
    last = run.launches.set_index("launch").loc[4]
    assert (6_181_056, True) == (round(last["fp32_flops"]), bool(np.isnan(last["tensor_flops"])))
    assert 0.32 == pytest.approx(last["tensor_frac"], abs=0.001)
    figures = diagnosis.figures(run)
    assert not {"measured_flops_per_s", "measured_intensity"} & set(figures)
    assert (
        "without 1 launches that lack a count of tensor operations"
        in figures["measured_flops"].definition
    )


def test_a_real_kernel_that_waits_at_barriers(profiles: Path) -> None:
    """speedy_scan, from NVIDIA's own page (two decimals): stalled at the barrier over the sum of all reasons."""
    extras.require("ncu_report")
    with (profiles / "golden/ncu/thedavidchu__speedy_scan__profile.raw_base.csv").open(
        encoding="utf-8"
    ) as file:
        (row,) = [row for row in csv.DictReader(file) if row["ID"]]
    reason = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
    values = {
        match[1]: float(row[name].replace(",", ""))
        for name in row
        if (match := reason.fullmatch(name))
    }
    finding = told(perfkit.load(profiles / "ncu/thedavidchu__speedy_scan__profile.ncu-rep"))[
        "kernel_stall"
    ]
    share = values["barrier"] / sum(values.values())
    first = [figure.value for figure in finding.evidence[:2]]
    assert [share, 1.0] == pytest.approx(first, rel=1e-3)
    dram = float(row["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"])
    assert 100 / dram == pytest.approx(finding.gain.high, rel=1e-3), (
        "the bytes take their time, whatever does not wait"
    )
    assert finding.gain.share is None, "of kernel time, not of the run's"
    assert "barrier" in finding.title


def waiting(*rows: tuple[float, float, float]) -> perfkit.Selection:
    """Launches of `gather` by duration in ns, throughput of the memory, and share of the long scoreboard."""
    ran = launches(
        *({"dur_ns": ns, "memory_frac": memory, "sm_frac": 0.1} for ns, memory, _ in rows)
    )
    shares = [
        (i, *row)
        for i, (*_, s) in enumerate(rows)
        for row in (("long_scoreboard", s), ("not_selected", 1 - s))
    ]
    stalls = pd.DataFrame(shares, columns=["launch", "reason", "value"]).assign(rank=0, node=-1)
    return view(launches=ran, stalls=tables.STALLS.make(stalls))


def test_latency_is_evidence_of_the_stall_that_explains_it() -> None:
    """All of 5 s waits for latency, 90 % of it in one stall: one finding."""
    found = told(waiting((4.49e9, 0.4, 0.71), (0.51e9, 0.4, 0.1)))
    assert "latency_bound" not in found
    evidence = {figure.id: figure.value for figure in found["kernel_stall"].evidence}
    assert 1.0 == evidence["latency_bound_frac"]


def test_latency_is_told_beside_a_stall_of_other_launches() -> None:
    """Of 5 s, 2 s wait mostly in a stall. In 3 s most warps could run: no stall explains these."""
    found = told(waiting((2e9, 0.4, 0.71), (3e9, 0.4, 0.2)))
    assert {"latency_bound", "kernel_stall"} <= set(found)


def test_long_kernels_that_wait_for_memory_are_told() -> None:
    finding = told(waiting((4.49e9, 0.4, 0.71), (0.51e9, 0.4, 0.1)))["kernel_stall"]
    first = [figure.value for figure in finding.evidence[:2]]
    assert [0.71, 0.898] == pytest.approx(first)
    assert 1 / (1 - 0.898) == pytest.approx(finding.gain.high), "no counter says what remains"
    assert finding.title.startswith(
        "Warps of gather spend 71.0 % of their time in the stall “long scoreboard”"
    )


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(1e9, 0.85, 0.9)], id="the memory is saturated"),
        pytest.param(
            [(1e9, 0.4, 0.29)], id="under 30 %: the rest is another stall, which may be told"
        ),
        pytest.param([(2e8, 0.4, 0.9), (8e8, 0.9, 0.9)], id="20 % of the measured time"),
    ],
)
def test_stalls_below_the_thresholds_are_not_told(rows: list[tuple[float, float, float]]) -> None:
    found = told(waiting(*rows))
    assert "long scoreboard" not in " ".join(f.title for f in found.values())
    assert rows[0][2] < 0.3 or "kernel_stall" not in found


def test_a_launch_in_two_precisions_has_the_share_of_its_dominant_one() -> None:
    roofs = hardware.peaks("NVIDIA A100-SXM4-40GB")
    assert roofs
    work = {
        "tensor_flops": 0.8 * roofs.flops("fp16_tensor") / 1e3,
        "fp32_flops": 0.005 * roofs.flops("fp32") / 1e3,
    }
    row = {"dur_ns": 1e6, "dram_bytes": 1e6, "memory_frac": 0.2, "sm_frac": 0.8, **work}
    ran = launches(row, name="ampere_fp16_s16816gemm_fp16_128x128_tn")
    device = devices(roofs.name, compute_capability="8.0")
    assert 0.8 == pytest.approx(values(view(launches=ran, devices=device))["roof_share_frac"])
