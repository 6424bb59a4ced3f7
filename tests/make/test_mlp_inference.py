"""The simulated counters of the lab's forward pass: the report's sums, and its mistake undone."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfkit
from perfkit.analysis import access, dossier, warps

Counted = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def counted(mlp: Path) -> Counted:
    """The file's numbers by metric, and its names, read by a plain loop."""
    lines = (mlp / "mlp_a100.inference.ncu.csv").read_text().splitlines()
    header, _, *rows = csv.reader(lines[next(i for i, line in enumerate(lines) if line.startswith('"ID",')) :])
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return {
        name: np.array([float(v.replace(",", "")) for v in values]) if "__" in name and "name" not in name else values
        for name, values in columns.items()
    }


@pytest.fixture(scope="module")
def truth(mlp: Path) -> dict[str, Any]:
    """What the simulation says is true of the file."""
    return json.loads((mlp / "mlp_a100.truth.json").read_text())["ncu"]


@pytest.fixture(scope="module")
def run(mlp: Path) -> perfkit.Run:
    """The folder, read as one run."""
    return perfkit.load(mlp)


def test_instructions_are_the_reports(counted: Counted) -> None:
    """763,904 + 772,096 + 2 x 15,484,032 = 32,504,064 FLOP, per kernel as in Table 9; tensor counters are 0."""
    fadd, fmul, ffma = (
        counted[f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"] for op in ("fadd", "fmul", "ffma")
    )
    assert (763_904, 772_096, 15_484_032) == (fadd.sum(), fmul.sum(), ffma.sum())
    flops = counted["sm__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.sum"]
    assert (fadd + fmul + 2 * ffma).tolist() == flops.tolist()
    by_kernel: dict[str, float] = {}
    for name, value in zip(counted["Kernel Name"], flops, strict=True):
        key = next(k for k in ("sgemm", "splitK", "softmax", "clamp") if k in name)
        by_kernel[key] = by_kernel.get(key, 0) + value
    assert {"sgemm": 32_243_712, "splitK": 229_376, "clamp": 0, "softmax": 30_976} == by_kernel
    assert 0 == sum(values.sum() for name, values in counted.items() if "tensor" in name)


def test_bytes_are_the_reports(counted: Counted) -> None:
    """2,481,024 bytes read; printed in K and M, SGEMM's add up to the 367.43 of Table 10 and clamp's to 216.70."""
    read = counted["dram__bytes_read.sum"]
    assert (2_481_024, 0) == (read.sum(), counted["dram__bytes_write.sum"].sum())
    printed = [round(value / 1e6, 2) if value >= 1e6 else round(value / 1e3, 2) for value in read]
    sums = dict.fromkeys(("sgemm", "clamp", "splitK", "softmax"), 0.0)
    for name, value in zip(counted["Kernel Name"], printed, strict=True):
        sums[next(key for key in sums if key in name)] += value
    assert {"sgemm": 367.43, "clamp": 216.70, "splitK": 665.86, "softmax": 11.65} == pytest.approx(sums, abs=1e-9)


def test_time_is_cycles_over_rate_per_kernel(counted: Counted) -> None:
    """72,581 cycles; rates add up to 10,083,762,361 and stay 1.26 GHz each: 57.58 µs, not the report's 7.2."""
    cycles, rate = counted["sm__cycles_elapsed.avg"], counted["sm__cycles_elapsed.avg.per_second"]
    assert (72_581, 10_083_762_361) == (cycles.sum(), rate.sum())
    assert "57.58" == f"{(cycles / rate).sum() * 1e6:.2f}"
    assert "7.2" == f"{cycles.sum() / rate.sum() * 1e6:.1f}"
    assert pytest.approx(cycles / rate * 1e9, abs=1) == counted["gpu__time_duration.sum"]


def test_dram_cycles_are_table_10s(counted: Counted) -> None:
    """3,636,736 cycles, and frequencies that add up to 4.77 and 4.71 GHz for the groups of three."""
    assert 3_636_736 == counted["dram__cycles_elapsed.sum"].sum()
    assert 4.77e9 + 4.71e9 + 1.59e9 + 1.57e9 == counted["dram__cycles_elapsed.avg.per_second"].sum()


def test_percentages_are_possible(counted: Counted) -> None:
    """Every percentage is in 0..100, and a unit is at least as busy as its busiest part."""
    percent = {name: v for name, v in counted.items() if ".pct" in name or name.endswith("_pct")}
    assert all(((v >= 0) & (v <= 100)).all() for v in percent.values())
    tail = "throughput.avg.pct_of_peak_sustained_elapsed"
    assert (percent[f"gpu__compute_memory_{tail}"] >= percent[f"gpu__dram_{tail}"]).all()


def test_stalls_add_up_to_the_latency(counted: Counted) -> None:
    """Cycles by reason are the warp's latency per instruction, and 1 of them is the instruction itself."""
    reasons = [v for name, v in counted.items() if "issue_stalled" in name]
    latency = counted["smsp__average_warp_latency_per_inst_issued.ratio"]
    assert pytest.approx(latency, abs=0.1) == sum(reasons)  # 18 values of two decimals
    selected = counted["smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"]
    assert [1.0] * 8 == selected.tolist()


def test_truth_adds_up(truth: dict[str, Any]) -> None:
    """13.10 FLOP/B and 0.564 TFLOP/s; with the mistaken time it would be 4.5."""
    totals = truth["totals"]
    assert ("13.10", "0.564") == (f"{totals['intensity']:.2f}", f"{totals['flops_per_s'] / 1e12:.3f}")
    assert "4.5" == f"{totals['mistaken_flops_per_s'] / 1e12:.1f}"
    for column, total in (("fp32_flops", "flops"), ("dram_bytes", "dram_bytes")):
        assert totals[total] == sum(row[column] for row in truth["launches"])


def test_the_reader_finds_the_truth(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """LAUNCHES read from the file are the truth: names, grids, times, clocks, FLOP, bytes, occupancy."""
    assert {"nsys", "ncu", "torch_trace"} == {profile.reader for profile in run.profiles}
    found, expected = run.launches, truth["launches"]
    assert [row["name"] for row in expected] == found["full_name"].tolist()
    for column in ("grid_blocks", "block_threads", "dur_ns", "clock_hz", "fp32_flops", "dram_bytes"):
        assert [row[column] for row in expected] == found[column].tolist()
    assert 0 == found[["fp64_flops", "fp16_flops", "tensor_flops"]].sum().sum()
    frac = [row["theoretical_occupancy_frac"] for row in expected]
    assert pytest.approx(frac, rel=1e-12) == found["theoretical_occupancy_frac"].tolist()


def test_limits_are_the_rules(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Limits read from the file and computed from registers, shared memory and block agree, and name the limiter."""
    said = run.counters
    measured = warps.occupancy(run.launches, said)
    plain = said[~said["metric"].str.startswith("launch__occupancy_limit_")]
    blank = run.launches.assign(theoretical_occupancy_frac=np.nan)
    sm = warps.Sm(warps=64, registers=65536, shared_bytes=167936, slots=32, sms=108, compute_capability=8)
    computed = warps.occupancy(blank, plain.reset_index(drop=True), sm=sm)
    names = [column for column in measured if column.endswith("_blocks")]
    assert computed[names].equals(measured[names])
    expected = [[name.replace("shared_mem", "shared memory") for name in r["limiter"]] for r in truth["launches"]]
    assert expected == measured["limiter"].str.split(", ").tolist()
    assert (measured["waves"] < 1).all()


def test_every_check_of_memory_access_has_its_counters(run: perfkit.Run) -> None:
    """Sectors, conflicts and hit rates are measured; excess sectors and sector use are not."""
    found = access.checks(run.launches, run.counters)
    absent = found.loc[found["verdict"].eq("not measured"), "check"].unique().tolist()
    assert ["excess_sectors_frac", "sector_use_frac"] == absent
    assert not found["verdict"].eq("contradictory").any()


def test_the_dossier_joins_both_captures(run: perfkit.Run) -> None:
    """The four kernels are found by full name, at 89 % of the timeline's clock, and wait for memory."""
    found = dossier.kernels(run.kernels, run.launches, run.stalls, devices=run.devices)
    measured = found[found["matched_by"].ne("none")]
    assert ({"full_name"}, 8) == (set(measured["matched_by"]), measured["measured_count"].sum())
    assert pytest.approx(1.2604702951 / 1.41, rel=1e-6) == measured["clock_ratio"].to_numpy()
    assert measured["other_clock"].all()
    assert {"long_scoreboard"} == set(measured["main_stall"])
    time = 17_880_191 + 3_759_001 + 2_086_008 + 1_456_379  # Table 5: sgemm_tn, clamp, split-K, softmax
    assert pytest.approx(time / 87_363_080, rel=1e-12) == dossier.covered(found)


def test_main_stall_leaves_out_what_issued(run: perfkit.Run) -> None:
    """Each of the eight launches has one main stall, and it is not the cycle in which it issued."""
    found = warps.main_stall(run.stalls)
    assert (list(range(8)), False) == (found["launch"].tolist(), "selected" in set(found["reason"]))
