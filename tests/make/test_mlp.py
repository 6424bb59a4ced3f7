"""The simulated run of the lab's MLP: its timeline, its trace, and the counters of its inference."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfkit
from make import execution, mlp_a100, mlp_run, torch_trace
from make.execution import moments
from make.kernels import TABLE_5
from make.kineto import BASE_STEP_NS
from make.mlp_run import run as lab_run
from make.spans import BATCH, IMAGE, LAYERS, annotation
from make.timeline import Op
from perfkit.analysis import access, dossier, flops, host, kernels, memory, operators, steps, timeline, warps

Connect = Callable[[Path], sqlite3.Connection]
CAPTURE, TRUTH, COUNTERS = "mlp_a100.nsys.sqlite", "mlp_a100.truth.json", "mlp_a100.inference.ncu.csv"
TRACE = "mlp_a100.pt.trace.json.gz"
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"


@pytest.fixture
def truth(mlp: Path) -> dict[str, Any]:
    """What the simulation says is true."""
    return json.loads((mlp / TRUTH).read_text())


def test_kernels_are_table_5(mlp: Path, count_rows: Callable[[Path], dict[str, Any]]) -> None:
    """Instances, total, median, minimum and maximum of the 28 names, from the file's rows, are the report's."""
    expected = {k.full_name: (k.count, k.total_ns, k.median_ns, k.min_ns, k.max_ns) for k in TABLE_5.values()}
    assert expected == count_rows(mlp / CAPTURE)["kernel_rows"]


def test_windows_are_the_reports(mlp: Path, connect: Connect) -> None:
    """The report's own query finds its own times, 9.644169424|19.447882187 and 9.5316707|19.447603756."""
    found = {}
    for table in (KERNEL, MEMCPY):
        (found[table],) = connect(mlp / CAPTURE).execute(f"SELECT MIN(start) / 1e9, MAX(end) / 1e9 FROM {table}")
    assert {KERNEL: (9.644169424, 19.447882187), MEMCPY: (9.5316707, 19.447603756)} == found


@pytest.mark.parametrize(
    ("first", "last", "sm", "read", "write"),
    [(9_644_000_000, 19_448_000_000, "0.17", "0.07", "0.93"), (9_531_400_000, 19_448_000_000, "0.17", "0.09", "0.96")],
)
def test_samples_have_the_reports_means(
    mlp: Path, connect: Connect, first: int, last: int, sm: str, read: str, write: str
) -> None:
    """Mean percentages in the report's windows, times the 1935 GB/s its script assumes, print as it prints them."""
    query = (
        "SELECT avg(value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m ON g.typeId = m.typeId AND g.metricId = "
        f"m.metricId WHERE metricName LIKE ? AND timestamp BETWEEN {first} AND {last}"
    )
    db = connect(mlp / CAPTURE)
    names = ("SMs Active%", "DRAM Read%", "DRAM Write%")
    active, reads, writes = (db.execute(query, (name,)).fetchone()[0] for name in names)
    assert [sm, read, write] == [f"{value:.2f}" for value in (active, reads * 19.35, writes * 19.35)]


def test_kernels_never_overlap(truth: dict[str, Any]) -> None:
    """One stream: busy time is the sum of Table 5, 87,363,080 ns."""
    assert 87_363_080 == truth["gpus"]["0"]["kernel_busy_ns"]


def test_copies_of_the_naive_script(truth: dict[str, Any]) -> None:
    """6 parameters, 548 batches and labels, 1 image batch go up; 469 losses, 79 counts and a mean come down."""
    assert 6 + 2 * 548 + 1 == truth["copies"]["H2D"]["count"]
    images = 60_000 + 10_000
    sizes = 4 * (784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10) + images * (784 * 4 + 8) + 128 * 784 * 4
    assert sizes == truth["copies"]["H2D"]["bytes"]
    assert (469 + 79 + 1, 469 * 4 + 79 * 8 + 4) == (truth["copies"]["D2H"]["count"], truth["copies"]["D2H"]["bytes"])


def test_steps_hold_their_phases(mlp: Path, connect: Connect) -> None:
    """469 + 79 steps tile their parts, and each step's phases lie in it, data loading first."""
    db = connect(mlp / CAPTURE)
    ranges = db.execute("SELECT start, end, text FROM NVTX_EVENTS ORDER BY start, end DESC").fetchall()
    steps = [row for row in ranges if row[2].startswith(("step ", "test step "))]
    assert 469 + 79 == len(steps)
    assert all(before[1] == after[0] for before, after in pairwise(steps))
    starts = {start for start, _, text in ranges if text == "data loading"}
    assert {start for start, _, _ in steps} == starts


def test_waiting_for_data_is_why_the_gpu_idles(truth: dict[str, Any]) -> None:
    """More than three quarters of the idle time is data loading, and step 0 is the slowest by far."""
    idle = truth["gpus"]["0"]["breakdown"]["idle_ns"]
    assert 0.75 * idle < truth["ranges"]["data loading"]["total_ns"] < idle
    assert truth["ranges"]["step"]["max_ns"] > 20 * truth["ranges"]["step"]["median_ns"]


def test_backward_is_launched_from_another_thread(mlp: Path, connect: Connect) -> None:
    """13 of a step's kernels and its memset come from the framework's thread: 469 x (15 + 1) calls."""
    query = "SELECT globalTid, count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY 1 ORDER BY 2"
    (_, backward), (main, _) = connect(mlp / CAPTURE).execute(query).fetchall()
    assert 469 * 16 == backward
    assert main & 0xFFFFFF == main >> 24 & 0xFFFFFF


def test_another_seed_keeps_the_table(tmp_path: Path, truth: dict[str, Any]) -> None:
    """What the report prints does not depend on the seed, and the rest does."""
    other = json.loads((mlp_a100(tmp_path, seed=1) / TRUTH).read_text())
    assert truth["kernel_rows"] == other["kernel_rows"]
    assert truth["ranges"]["step"] != other["ranges"]["step"]


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
def ncu(mlp: Path) -> dict[str, Any]:
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


def test_truth_adds_up(ncu: dict[str, Any]) -> None:
    """13.10 FLOP/B and 0.564 TFLOP/s; with the mistaken time it would be 4.5."""
    totals = ncu["totals"]
    assert ("13.10", "0.564") == (f"{totals['intensity']:.2f}", f"{totals['flops_per_s'] / 1e12:.3f}")
    assert "4.5" == f"{totals['mistaken_flops_per_s'] / 1e12:.1f}"
    for column, total in (("fp32_flops", "flops"), ("dram_bytes", "dram_bytes")):
        assert totals[total] == sum(row[column] for row in ncu["launches"])


def test_the_reader_finds_the_truth(run: perfkit.Run, ncu: dict[str, Any]) -> None:
    """LAUNCHES read from the file are the truth: names, grids, times, clocks, FLOP, bytes, occupancy."""
    assert {"nsys", "ncu", "torch_trace"} == {profile.reader for profile in run.profiles}
    found, expected = run.launches, ncu["launches"]
    assert [row["name"] for row in expected] == found["full_name"].tolist()
    for column in ("grid_blocks", "block_threads", "dur_ns", "clock_hz", "fp32_flops", "dram_bytes"):
        assert [row[column] for row in expected] == found[column].tolist()
    assert 0 == found[["fp64_flops", "fp16_flops", "tensor_flops"]].sum().sum()
    frac = [row["theoretical_occupancy_frac"] for row in expected]
    assert pytest.approx(frac, rel=1e-12) == found["theoretical_occupancy_frac"].tolist()


def test_limits_are_the_rules(run: perfkit.Run, ncu: dict[str, Any]) -> None:
    """Limits read from the file and computed from registers, shared memory and block agree, and name the limiter."""
    said = run.counters
    measured = warps.occupancy(run.launches, said)
    plain = said[~said["metric"].str.startswith("launch__occupancy_limit_")]
    blank = run.launches.assign(theoretical_occupancy_frac=np.nan)
    sm = warps.Sm(warps=64, registers=65536, shared_bytes=167936, slots=32, sms=108, compute_capability=8)
    computed = warps.occupancy(blank, plain.reset_index(drop=True), sm=sm)
    names = [column for column in measured if column.endswith("_blocks")]
    assert computed[names].equals(measured[names])
    expected = [[name.replace("shared_mem", "shared memory") for name in r["limiter"]] for r in ncu["launches"]]
    assert expected == measured["limiter"].str.split(", ").tolist()
    assert (measured["waves"] < 1).all()


def test_every_check_of_memory_access_has_its_counters(run: perfkit.Run) -> None:
    """Sectors, conflicts and hit rates are measured; excess sectors, sector use and active lanes are not."""
    found = access.checks(run.launches, run.counters)
    absent = found.loc[found["verdict"].eq("not measured"), "check"].unique().tolist()
    assert ["excess_sectors_frac", "sector_use_frac", "active_lanes_frac"] == absent
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


SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"
STEPS = 8


@pytest.fixture(scope="module")
def kineto(mlp: Path) -> dict[str, Any]:
    """What the simulation says is true of the trace."""
    return json.loads((mlp / TRUTH).read_text())["torch"]


@pytest.fixture(scope="module")
def traced(mlp: Path) -> perfkit.Run:
    """The trace alone."""
    return perfkit.load(mlp / TRACE)


@pytest.fixture(scope="module")
def events(mlp: Path) -> list[dict[str, Any]]:
    """The trace's events, decoded by the standard library."""
    return json.loads(gzip.decompress((mlp / TRACE).read_bytes()))["traceEvents"]


@pytest.fixture(scope="module")
def found(traced: perfkit.Run) -> pd.DataFrame:
    """The steps that are detected."""
    return steps.detect(traced.ranges, traced.kernels)


def test_operators_are_the_truths(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """Count, CPU and GPU time, total and self, and kernels of every operator."""
    columns = ["count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"]
    summary = operators.summary(traced.ops, traced.kernels, traced.api_calls).astype({"name": "string"})
    assert kineto["operators"] == summary.set_index("name")[columns].to_dict("index")


def test_kernels_are_the_truths(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """Count, total, median, minimum and maximum of every kernel, and the busy time of the GPU."""
    columns = ["count", "total_ns", "median_ns", "min_ns", "max_ns"]
    summary = kernels.summary(traced.kernels, by="full_name").astype({"full_name": "string"})
    expected = {row["full_name"]: {name: row[name] for name in columns} for row in kineto["gpu"]["kernel_rows"]}
    assert expected == summary.set_index("full_name")[columns].to_dict("index")
    gpu, busy = kineto["gpu"]["gpus"]["0"], timeline.busy(traced.kernels, traced.copies).iloc[0]
    names = ["kernel_busy_ns", "device_busy_ns", "span_ns"]
    assert {name: gpu[name] for name in names} == busy[names].to_dict()
    parts = timeline.breakdown(traced.kernels, traced.copies).iloc[0]
    assert gpu["breakdown"] == parts[list(gpu["breakdown"])].to_dict()


def test_copies_and_calls_are_the_truths(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """Count, time and bytes by direction, from and to pageable memory; count and time of each call."""
    of = traced.copies.groupby("direction", observed=True)
    sums = of.agg(count=("bytes", "size"), total_ns=("dur_ns", "sum"), bytes=("bytes", "sum"))
    assert kineto["gpu"]["copies"] == sums.to_dict("index")
    sides = set(zip(traced.copies["src_memory"].astype(str), traced.copies["dst_memory"].astype(str), strict=True))
    assert {("pageable", "device"), ("device", "pageable"), ("nan", "device")} == sides
    calls = traced.api_calls.groupby("name", observed=True).agg(count=("dur_ns", "size"), total_ns=("dur_ns", "sum"))
    expected = {name.rsplit("_", 1)[0]: sums for name, sums in kineto["gpu"]["calls"].items()}
    assert expected == calls.to_dict("index")


def test_steps_and_their_waits_are_the_truths(traced: perfkit.Run, found: pd.DataFrame, kineto: dict[str, Any]) -> None:
    """Eight steps, the first two not steady, and the time of each in the data loader."""
    waits = host.input_wait(traced.ranges, found)
    rows = found.assign(wait_ns=waits["wait_ns"].astype("int64")).astype({"name": "string"})
    assert kineto["steps"] == rows[["name", "start_ns", "dur_ns", "wait_ns", "steady"]].to_dict("records")
    assert [f"ProfilerStep#{n}" for n in range(10, 18)] == found["name"].tolist()
    assert [False] * 2 + [True] * 6 == found["steady"].tolist()


def test_steps_wait_as_in_the_lab(mlp: Path, traced: perfkit.Run, found: pd.DataFrame) -> None:
    """Steps 10 to 17 wait for their data for the share of the time of the lab's steps 10 to 17, to 1 %."""
    lab = perfkit.load(mlp / "mlp_a100.nsys.sqlite").ranges.astype({"name": "string"})
    theirs = lab[lab["name"].isin([f"step {n}" for n in range(10, 18)])].sort_values("start_ns")
    loading = lab[(lab["name"] == "data loading") & lab["start_ns"].isin(theirs["start_ns"])].sort_values("start_ns")
    expected = loading["dur_ns"].to_numpy() / theirs["dur_ns"].to_numpy()
    assert pytest.approx(expected, rel=0.01) == host.input_wait(traced.ranges, found)["wait_frac"].to_numpy()


def test_flops_are_those_of_the_network(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """2 x 128 x (784 x 256 + 256 x 128 + 128 x 10) forward, and backward that and the last two terms again."""
    each = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    assert {"aten::addmm": STEPS * sum(each), "aten::mm": STEPS * (2 * sum(each) - each[0])} == kineto["flops"]
    owner = operators.kernels_of(traced.ops, traced.kernels, traced.api_calls)
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=traced.kernels["dur_ns"]))
    points = flops.roofline(traced.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    assert kineto["flops"] == points.set_index("name")["flops"].to_dict()
    assert {"fp32"} == set(points["dtype"])


def test_memory_is_the_truths(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """The peak of both allocators, when it is reached, and what is reserved on the GPU, which is always enough."""
    peak = memory.peak(traced.samples).set_index("gpu")
    for gpu, expected in kineto["memory"].items():
        row = peak.loc[int(gpu)]
        assert (expected["peak_allocated_bytes"], expected["peak_ns"]) == (row["allocated_bytes"], row["time_ns"])
    assert kineto["memory"]["0"]["reserved_bytes"] == peak.loc[0, "max_reserved_bytes"]
    assert 0 < memory.fragmentation(traced.samples).set_index("gpu").loc[0, "peak_frac"] < 1


def test_memory_of_a_step_comes_back(traced: perfkit.Run) -> None:
    """Each step ends with as much as the one before it; the model, its momentum and gradients stay."""
    levels = memory.timeline(traced.samples)
    ends = traced.ranges.loc[traced.ranges["kind"] == "step", ["start_ns", "dur_ns"]].sum(axis=1)
    for gpu, least in ((0, 3 * 4 * sum(i * o + o for i, o in LAYERS)), (-1, 0)):
        own = levels[levels["gpu"] == gpu]
        left = {own.loc[own["time_ns"] < end, "allocated_bytes"].iloc[-1] for end in ends}
        assert (1, True) == (len(left), min(left) >= least)


def test_every_change_of_memory_is_in_the_totals(events: list[dict[str, Any]]) -> None:
    """A total is the one before it plus the change, and what is freed was given at that address with that size."""
    for device in (0, -1):
        changes = [e["args"] for e in events if e["name"] == "[memory]" and e["args"]["Device Id"] == device]
        given: dict[int, int] = {}
        for before, after in pairwise(changes):
            assert after["Total Allocated"] == before["Total Allocated"] + after["Bytes"]
        for change in changes:
            if change["Bytes"] > 0:
                assert change["Addr"] not in given
                given[change["Addr"]] = change["Bytes"]
            else:
                assert -change["Bytes"] == given.pop(change["Addr"], -change["Bytes"])


def test_synchronisations_are_the_truths(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """Three waits and a copy to pageable memory a step: implicit ones, of .to() and .item() in the loop of train.py."""
    waits = operators.synchronisations(traced.ops, traced.kernels, traced.copies, traced.api_calls, traced.python_calls)
    assert kineto["synchronisations"] == Counter(waits["api"])
    assert {"cudaStreamSynchronize": 3 * STEPS, "cudaMemcpyAsync": STEPS} == kineto["synchronisations"]
    assert {("implicit", "train.py(21): train")} == set(zip(waits["kind"], waits["line"], strict=True))
    assert {"aten::to": 2 * STEPS, "aten::item": 2 * STEPS} == Counter(waits["outermost"])


def test_every_kernel_has_an_operator(traced: perfkit.Run) -> None:
    """Containment finds the operator that "External id" names, for every call; nothing is outside."""
    owner = operators.kernels_of(traced.ops, traced.kernels, traced.api_calls)
    assert {"launch"} == set(owner["how"])


def test_external_ids_name_the_innermost_operator(traced: perfkit.Run, events: list[dict[str, Any]]) -> None:
    """A kernel has the External id of the operator in which its call begins."""
    of_id = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    named = {e["args"]["correlation"]: of_id[e["args"]["External id"]] for e in events if e.get("cat") == "kernel"}
    owner = operators.kernels_of(traced.ops, traced.kernels, traced.api_calls)
    names = traced.ops.set_index("op")["name"].reindex(owner["op"]).tolist()
    assert named == dict(zip(traced.kernels["correlation"], names, strict=True))


def test_the_gpu_does_what_the_lab_does() -> None:
    """The kernels, copies and waits of a step are those of every other training step of the simulated run."""
    step = annotation("step", *execution.operators())
    own = [moment.part for moment in moments(step) if isinstance(moment.part, Op)]
    columns = [(op.kind, op.what, op.slot, op.size) for op in own]
    assert columns == [(op.kind, op.what, op.slot, op.size) for op in mlp_run.training_plan()]


def test_durations_are_possible(traced: perfkit.Run) -> None:
    """Every kernel lasts as long as one of its row in Table 5."""
    rows = {kernel.full_name: kernel for kernel in TABLE_5.values()}
    extremes = traced.kernels.groupby("full_name", observed=True)["dur_ns"].agg(["min", "max"])
    outside = [n for n, (low, high) in extremes.T.items() if low < rows[n].min_ns or high > rows[n].max_ns]
    assert [] == outside


def test_backward_runs_on_a_thread_of_its_own(traced: perfkit.Run, kineto: dict[str, Any]) -> None:
    """Autograd's thread runs the eleven numbered nodes of each step and six that keep gradients, and nothing else."""
    main = traced.ranges["thread"].iloc[0]
    autograd = traced.ops[traced.ops["thread"] != main]
    top = autograd.loc[autograd["parent"] < 0, "name"].astype("string")
    assert top.str.startswith("autograd::engine::evaluate_function: ").all()
    assert STEPS * (11 + 6) == len(top)
    pairs = operators.backward(traced.ops, traced.kernels, traced.api_calls).dropna(subset=["operator"])
    expected = {"aten::addmm": 24, "aten::relu": 24, "aten::t": 24, "aten::nll_loss_forward": 8}
    assert {**expected, "aten::_log_softmax": 8} == dict(zip(pairs["operator"], pairs["count"], strict=True))
    assert kineto["operators"]["AddmmBackward0"]["count"] == 24


def test_arrows_lead_from_forward_to_backward(events: list[dict[str, Any]]) -> None:
    """Eleven pairs a step, each from an operator of a number to the node of that number, later and elsewhere."""
    at = {(e["tid"], e["ts"]): e for e in events if e.get("cat") == "cpu_op" and "Sequence number" in e["args"]}
    ends: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "fwdbwd":
            ends.setdefault(event["id"], []).append(at[event["tid"], event["ts"]])
    assert 11 * STEPS == len(ends)
    for forward, backward in ends.values():
        assert forward["args"]["Sequence number"] == backward["args"]["Sequence number"]
        assert forward["ts"] + forward["dur"] < backward["ts"]
        assert (0, 1) == (forward["args"]["Fwd thread id"], backward["args"]["Fwd thread id"])


def test_python_functions_nest(traced: perfkit.Run, events: list[dict[str, Any]], kineto: dict[str, Any]) -> None:
    """A function lies in the one whose Python id is its parent's, train.py around all; read back it has that depth."""
    functions = {e["args"]["Python id"]: e for e in events if e.get("cat") == "python_function"}
    assert kineto["functions"] == len(functions) == len(traced.python_calls)
    depth = {None: -1}
    for number, event in functions.items():
        parent = event["args"]["Python parent id"]
        depth[number] = depth[parent] + 1
        if parent is not None:
            outer = functions[parent]
            assert outer["ts"] < event["ts"]
            assert event["ts"] + event["dur"] < outer["ts"] + outer["dur"]
    assert Counter(depth[number] for number in functions) == Counter(traced.python_calls["depth"].tolist())
    assert ["train.py(37): <module>", "train.py(21): train"] == traced.python_calls["name"].tolist()[:2]


def test_the_trace_names_no_host(mlp: Path) -> None:
    """Rank, host and the profiler's random number are not among the keys of the object."""
    held = json.loads(gzip.decompress((mlp / TRACE).read_bytes()))
    assert [] == [key for key in held if "host" in key or "trace_id" in key or "distributed" in key]
    assert (0, TRACE) == (held["baseTimeNanoseconds"] % BASE_STEP_NS, held["traceName"])


def test_the_device_is_the_labs(traced: perfkit.Run) -> None:
    """The same card as in the capture of Nsight Systems, and the time 0 of the truth: 14:10 UTC."""
    row = traced.devices.iloc[0]
    assert ("NVIDIA A100 80GB PCIe", 108, "8.0") == (row["name"], row["sm_count"], row["compute_capability"])
    assert pd.Timestamp("2025-06-16T14:10").value == traced.capture["t0_unix_ns"].iloc[0]


def test_the_sample_joins_three_tools() -> None:
    """One run: kernels, copies and calls stay those of Nsight Systems, operators are the trace's, which is whole."""
    traced = perfkit.load(SAMPLE)
    assert {"nsys", "ncu", "torch_trace"} == {profile.reader for profile in traced.profiles}
    trace = json.loads((SAMPLE / TRUTH).read_text())
    assert trace["kernels"]["count"] == len(traced.kernels)
    own = traced.of("torch_trace")
    assert trace["torch"]["gpu"]["kernels"]["count"] == len(own.kernels)
    assert sum(row["count"] for row in trace["torch"]["operators"].values()) == len(traced.ops) == len(own.ops)
    # The trace was taken two hours after the report of Nsight Systems: captures so far apart keep their own clocks.
    assert 60e9 < trace["torch"]["t0_unix_ns"] - int(traced.capture["t0_unix_ns"].min())
    assert trace["torch"]["steps"][0]["start_ns"] == own.ranges["start_ns"].min()


def write(path: Path, seed: int) -> dict[str, Any]:
    """Write the trace of a seed and return its truth."""
    return torch_trace.write(
        path, lab_run(np.random.default_rng(seed)), np.random.default_rng([seed, 1]), t0_unix_ns=1_750_083_000 * 10**9
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_have_two_slow_steps_too(tmp_path: Path, seed: int) -> None:
    """Whatever is drawn, the first two steps are not steady, and counts and operations are the same."""
    kineto = write(tmp_path / TRACE, seed)
    traced = perfkit.load(tmp_path / TRACE)
    assert [step["steady"] for step in kineto["steps"]] == steps.detect(traced.ranges, traced.kernels)[
        "steady"
    ].tolist()
    assert (224, 1_168) == (kineto["gpu"]["kernels"]["count"], len(traced.ops))


def test_operators_are_those_that_pytorch_runs(traced: perfkit.Run, tmp_path: Path, torch: Any) -> None:
    """PyTorch, recording such a step on the CPU, has all operators but eleven, which a GPU or the data loader needs.

    Name, caller, shapes, types, strides, other arguments and autograd's number (from the step's first) are its own.
    On the CPU there are no copies to the device, and zero_ does without fill_.
    """
    real = operators_of_a_step(perfkit.load(recorded(tmp_path)).ops)
    last = traced.ranges[traced.ranges["kind"] == "step"].iloc[-1]
    ops = traced.ops[traced.ops["start_ns"] >= last["start_ns"]]
    ours = operators_of_a_step(ops)
    only_ours = Counter(name for name, *_ in (ours - real).elements())
    transfer = {"aten::to": 2, "aten::_to_copy": 2, "aten::empty_strided": 2, "aten::copy_": 2}
    assert {**transfer, "aten::stack": 1, "aten::cat": 1, "aten::fill_": 1} == only_ours
    assert 146 == ours.total()


def operators_of_a_step(ops: pd.DataFrame) -> Counter[tuple[Any, ...]]:
    """Name, name of the caller, arguments and number of each operator."""
    names = ops.set_index("op")["name"].astype("string")
    first = ops.loc[ops["name"] == "aten::addmm", "sequence"].min() - 1  # that of the layer's transposition
    number = ops["sequence"].where(ops["sequence"] < 0, ops["sequence"] - first)
    arguments = (ops[column].astype("string").fillna("") for column in ("shapes", "dtypes", "strides", "concrete"))
    caller = ops["parent"].map(names).fillna("")
    return Counter(zip(ops["name"].tolist(), caller, *arguments, number, strict=True))


def recorded(folder: Path) -> Path:
    """Record a training step of the network with PyTorch on the CPU, after one that is not recorded."""
    torch = importlib.import_module("torch")
    layers = torch.nn.ModuleList(torch.nn.Linear(inputs, outputs) for inputs, outputs in LAYERS)
    optimiser = torch.optim.SGD(layers.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images, labels = torch.ones(BATCH, *IMAGE), torch.zeros(BATCH, dtype=torch.long)

    def step() -> None:
        optimiser.zero_grad()
        out = images.view(-1, 784)
        for layer in layers:
            out = torch.relu(layer(out))
        loss = torch.nn.functional.nll_loss(torch.nn.functional.log_softmax(out, dim=1), labels)
        total = loss.detach() * len(labels)
        loss.backward()
        optimiser.step()
        total.item()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(folder / "cpu.json"))
    return folder / "cpu.json"
