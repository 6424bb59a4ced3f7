"""The simulated run of the lab's MLP: its timeline, its trace, and the counters of its inference."""

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfkit
from make.kineto import BASE_STEP_NS
from make.spans import BATCH, LAYERS
from perfkit.analysis import flops, host, kernels, memory, operators, steps, timeline

SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"
CAPTURE, TRACE = SAMPLE / "mlp_a100.nsys.sqlite", SAMPLE / "mlp_a100.pt.trace.json.gz"
TRUTH = json.loads((SAMPLE / "mlp_a100.truth.json").read_text())
NCU, KINETO = TRUTH["ncu"], TRUTH["torch"]
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
STEPS = 8  # of the trace

# total time ns, instances, average, median, minimum, maximum, name: typed from the report
REPORT = """
17880191 1644 10876.0 12192.0  7328 15072 ampere_sgemm_32x32_sliced1x4_tn
14104665  937 15053.0 15584.0 14208 16128 multi_tensor_apply_kernel
 7346991  939  7824.3  7808.0  7137  8832 ampere_sgemm_32x32_sliced1x4_nt
 6900418  938  7356.5  7536.0  6112  8096 reduce_kernel
 5551353  468 11861.9 11871.0 11775 12000 multi_tensor_apply_kernel
 5257664  469 11210.4 11232.0  9728 11456 reduce_kernel
 4226481  468  9030.9  9024.0  8960  9120 ampere_sgemm_64x32_sliced1x4_nt
 3759001 1647  2282.3  2304.0  2111  2624 vectorized_elementwise_kernel
 3660680  469  7805.3  7808.0  7775  8128 ampere_sgemm_32x32_sliced1x4_nn
 3233758 1407  2298.3  2304.0  2175  2432 vectorized_elementwise_kernel
 2549612  469  5436.3  5440.0  5407  5473 ampere_sgemm_128x32_nn
 2421968  548  4419.6  4352.5  2751  5184 nll_loss_forward_reduce_cuda_kernel
 2086008  549  3799.7  3809.0  3615  3872 splitKreduce_kernel
 1738506  938  1853.4  1856.0  1759  1921 vectorized_elementwise_kernel
 1641810  469  3500.7  3520.0  3137  3807 nll_loss_backward_reduce_cuda_kernel
 1456379  549  2652.8  2688.0  2528  2721 softmax_warp_forward
 1103898  469  2353.7  2368.0  2240  2464 softmax_warp_backward
 1009715  469  2152.9  2144.0  2111  2272 vectorized_elementwise_kernel
  499647   79  6324.6  6336.0  5824  6496 reduce_kernel
  365952   79  4632.3  4609.0  4256  4768 reduce_kernel
  205793   79  2605.0  2592.0  2528  2720 unrolled_elementwise_kernel
  166782   79  2111.2  2080.0  2048  2209 vectorized_elementwise_kernel
  164256   78  2105.8  2080.0  2016  2177 vectorized_elementwise_kernel
   11488    1 11488.0 11488.0 11488 11488 ampere_sgemm_32x128_tn
    9184    1  9184.0  9184.0  9184  9184 ampere_sgemm_64x32_sliced1x4_tn
    6368    1  6368.0  6368.0  6368  6368 gemmSN_TN_kernel
    2464    1  2464.0  2464.0  2464  2464 unrolled_elementwise_kernel
    2048    1  2048.0  2048.0  2048  2048 vectorized_elementwise_kernel
"""


@pytest.fixture
def db(connect: Callable[[Path], sqlite3.Connection]) -> sqlite3.Connection:
    return connect(CAPTURE)


def test_kernels_are_table_5_of_the_report(db: sqlite3.Connection) -> None:
    """Total, instances, average to 0.1 ns, median, minimum, maximum and name, in the report's order, by the rows.

    The report prints short names that repeat; written out, all 28 differ. The sums are those of the definitions,
    section 17.
    """
    query = f"SELECT value, end - start FROM {KERNEL} JOIN StringIds ON id = demangledName"
    durations = pd.DataFrame(db.execute(query).fetchall(), columns=["name", "ns"]).groupby("name")["ns"]
    found = durations.agg(["sum", "count", "mean", "median", "min", "max"]).sort_values("sum", ascending=False)
    rows = [line.split() for line in REPORT.strip().splitlines()]
    assert [[float(number) for number in row[:6]] for row in rows] == found.round({"mean": 1}).to_numpy().tolist()
    assert all(row[6] in full for row, full in zip(rows, found.index, strict=True))
    assert (28, 87_363_080, 14_245) == (len(found), found["sum"].sum(), found["count"].sum())
    assert 87_363_080 == TRUTH["gpus"]["0"]["kernel_busy_ns"]  # one stream: kernels never overlap
    softmax = "void <unnamed>::softmax_warp_forward<float, float, float, 4, 0, 0>"
    relu = "void at::vectorized_elementwise_kernel<4, at::<unnamed>::launch_clamp"
    split = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, "
    for start in ("ampere_sgemm_32x32_sliced1x4_tn", softmax, relu, split):  # as section 2.3 prints them
        assert found.index.str.startswith(start).any()


def test_windows_are_the_reports(db: sqlite3.Connection) -> None:
    """The report's own query finds its own times; mean percentages, times its script's 1935 GB/s, print as there."""
    query = "SELECT MIN(start) / 1e9, MAX(end) / 1e9 FROM "
    assert [(9.644169424, 19.447882187)] == db.execute(query + KERNEL).fetchall()
    assert [(9.5316707, 19.447603756)] == db.execute(query + MEMCPY).fetchall()
    sampled = "SELECT avg(value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m ON g.typeId = m.typeId AND "
    sampled += "g.metricId = m.metricId WHERE metricName LIKE ? AND timestamp BETWEEN ? AND ?"
    for first, expected in ((9_644_000_000, ["0.17", "0.07", "0.93"]), (9_531_400_000, ["0.17", "0.09", "0.96"])):
        scales = {"SMs Active%": 1, "DRAM Read%": 19.35, "DRAM Write%": 19.35}
        means = [db.execute(sampled, (name, first, 19_448_000_000)).fetchone()[0] * k for name, k in scales.items()]
        assert expected == [f"{mean:.2f}" for mean in means]


# The counters


@pytest.fixture(scope="module")
def run() -> perfkit.Run:
    return perfkit.load(SAMPLE)


def test_the_reader_finds_the_truth_of_the_counters(run: perfkit.Run) -> None:
    """13.10 FLOP/B and 0.564 TFLOP/s; with the mistaken time it would be 4.5."""
    totals = NCU["totals"]
    assert ("13.10", "0.564") == (f"{totals['intensity']:.2f}", f"{totals['flops_per_s'] / 1e12:.3f}")
    assert "4.5" == f"{totals['mistaken_flops_per_s'] / 1e12:.1f}"
    found, expected = run.launches, pd.DataFrame(NCU["launches"])
    assert (expected["fp32_flops"].sum(), expected["dram_bytes"].sum()) == (totals["flops"], totals["dram_bytes"])
    assert expected["name"].tolist() == found["full_name"].tolist()
    for column in ("grid_blocks", "block_threads", "dur_ns", "clock_hz", "fp32_flops", "dram_bytes"):
        assert expected[column].tolist() == found[column].tolist()
    assert 0 == found[["fp64_flops", "fp16_flops", "tensor_flops"]].sum().sum()
    frac = expected["theoretical_occupancy_frac"].tolist()
    assert pytest.approx(frac, rel=1e-12) == found["theoretical_occupancy_frac"].tolist()


# The trace


@pytest.fixture(scope="module")
def traced() -> perfkit.Run:
    return perfkit.load(TRACE)


@pytest.fixture(scope="module")
def held() -> dict[str, Any]:
    return json.loads(gzip.decompress(TRACE.read_bytes()))


@pytest.fixture(scope="module")
def events(held: dict[str, Any]) -> list[dict[str, Any]]:
    return held["traceEvents"]


@pytest.fixture(scope="module")
def found(traced: perfkit.Run) -> pd.DataFrame:
    return steps.detect(traced.ranges, traced.kernels)


@pytest.fixture(scope="module")
def owner(traced: perfkit.Run) -> pd.DataFrame:
    return operators.kernels_of(traced.ops, traced.kernels, traced.api_calls)


def test_operators_kernels_copies_and_calls_are_the_truths(traced: perfkit.Run) -> None:
    columns = ["count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"]
    summary = operators.summary(traced.ops, traced.kernels, traced.api_calls).astype({"name": "string"})
    assert KINETO["operators"] == summary.set_index("name")[columns].to_dict("index")
    columns = ["count", "total_ns", "median_ns", "min_ns", "max_ns"]
    summary = kernels.summary(traced.kernels, by="full_name").astype({"full_name": "string"})
    expected = {row["full_name"]: {name: row[name] for name in columns} for row in KINETO["gpu"]["kernel_rows"]}
    assert expected == summary.set_index("full_name")[columns].to_dict("index")
    gpu, busy = KINETO["gpu"]["gpus"]["0"], timeline.busy(traced.kernels, traced.copies).iloc[0]
    names = ["kernel_busy_ns", "device_busy_ns", "span_ns"]
    assert {name: gpu[name] for name in names} == busy[names].to_dict()
    parts = timeline.breakdown(traced.kernels, traced.copies).iloc[0]
    assert gpu["breakdown"] == parts[list(gpu["breakdown"])].to_dict()
    of = traced.copies.groupby("direction", observed=True)
    sums = of.agg(count=("bytes", "size"), total_ns=("dur_ns", "sum"), bytes=("bytes", "sum"))
    assert KINETO["gpu"]["copies"] == sums.to_dict("index")
    sides = set(zip(traced.copies["src_memory"].astype(str), traced.copies["dst_memory"].astype(str), strict=True))
    assert {("pageable", "device"), ("device", "pageable"), ("nan", "device")} == sides
    calls = traced.api_calls.groupby("name", observed=True).agg(count=("dur_ns", "size"), total_ns=("dur_ns", "sum"))
    expected = {name.rsplit("_", 1)[0]: sums for name, sums in KINETO["gpu"]["calls"].items()}
    assert expected == calls.to_dict("index")


def test_steps_and_their_waits_are_the_truths(traced: perfkit.Run, found: pd.DataFrame) -> None:
    waits = host.input_wait(traced.ranges, found)
    rows = found.assign(wait_ns=waits["wait_ns"].astype("int64")).astype({"name": "string"})
    assert KINETO["steps"] == rows[["name", "start_ns", "dur_ns", "wait_ns", "steady"]].to_dict("records")
    assert [f"ProfilerStep#{n}" for n in range(10, 18)] == found["name"].tolist()
    assert [False] * 2 + [True] * 6 == found["steady"].tolist()


def test_steps_wait_as_in_the_lab(traced: perfkit.Run, found: pd.DataFrame) -> None:
    """Steps 10 to 17 wait for their data for the share of the time of the lab's steps 10 to 17, to 1 %."""
    lab = perfkit.load(CAPTURE).ranges.astype({"name": "string"})
    theirs = lab[lab["name"].isin([f"step {n}" for n in range(10, 18)])].sort_values("start_ns")
    loading = lab[(lab["name"] == "data loading") & lab["start_ns"].isin(theirs["start_ns"])].sort_values("start_ns")
    expected = loading["dur_ns"].to_numpy() / theirs["dur_ns"].to_numpy()
    assert pytest.approx(expected, rel=0.01) == host.input_wait(traced.ranges, found)["wait_frac"].to_numpy()


def test_flops_are_those_of_the_network(traced: perfkit.Run, owner: pd.DataFrame) -> None:
    """2 x 128 x (784 x 256 + 256 x 128 + 128 x 10) forward, and backward that and the last two terms again."""
    each = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    assert {"aten::addmm": STEPS * sum(each), "aten::mm": STEPS * (2 * sum(each) - each[0])} == KINETO["flops"]
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=traced.kernels["dur_ns"]))
    points = flops.roofline(traced.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    assert KINETO["flops"] == points.set_index("name")["flops"].to_dict()
    assert {"fp32"} == set(points["dtype"])


def test_memory_is_the_truths(traced: perfkit.Run) -> None:
    peak = memory.peak(traced.samples).set_index("gpu")
    for gpu, expected in KINETO["memory"].items():
        row = peak.loc[int(gpu)]
        assert (expected["peak_allocated_bytes"], expected["peak_ns"]) == (row["allocated_bytes"], row["time_ns"])
    assert KINETO["memory"]["0"]["reserved_bytes"] == peak.loc[0, "max_reserved_bytes"]
    assert 0 < memory.fragmentation(traced.samples).set_index("gpu").loc[0, "peak_frac"] < 1


def test_synchronisations_are_the_truths(traced: perfkit.Run) -> None:
    """Three waits and a copy to pageable memory a step: implicit ones, of .to() and .item() in the loop of train.py."""
    waits = operators.synchronisations(traced.ops, traced.kernels, traced.copies, traced.api_calls, traced.python_calls)
    assert KINETO["synchronisations"] == Counter(waits["api"])
    assert {"cudaStreamSynchronize": 3 * STEPS, "cudaMemcpyAsync": STEPS} == KINETO["synchronisations"]
    assert {("implicit", "train.py(21): train")} == set(zip(waits["kind"], waits["line"], strict=True))
    assert {"aten::to": 2 * STEPS, "aten::item": 2 * STEPS} == Counter(waits["outermost"])


def test_external_ids_name_the_innermost_operator(
    traced: perfkit.Run, events: list[dict[str, Any]], owner: pd.DataFrame
) -> None:
    """A kernel has the External id of the operator in which its call begins."""
    of_id = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    named = {e["args"]["correlation"]: of_id[e["args"]["External id"]] for e in events if e.get("cat") == "kernel"}
    assert {"launch"} == set(owner["how"])
    names = traced.ops.set_index("op")["name"].reindex(owner["op"]).tolist()
    assert named == dict(zip(traced.kernels["correlation"], names, strict=True))


def test_backward_runs_on_a_thread_of_its_own(traced: perfkit.Run) -> None:
    """Autograd's thread runs the eleven numbered nodes of each step and six that keep gradients, and nothing else."""
    main = traced.ranges["thread"].iloc[0]
    autograd = traced.ops[traced.ops["thread"] != main]
    top = autograd.loc[autograd["parent"] < 0, "name"].astype("string")
    assert top.str.startswith("autograd::engine::evaluate_function: ").all()
    assert STEPS * (11 + 6) == len(top)
    pairs = operators.backward(traced.ops, traced.kernels, traced.api_calls).dropna(subset=["operator"])
    expected = {"aten::addmm": 24, "aten::relu": 24, "aten::t": 24, "aten::nll_loss_forward": 8}
    assert {**expected, "aten::_log_softmax": 8} == dict(zip(pairs["operator"], pairs["count"], strict=True))
    assert KINETO["operators"]["AddmmBackward0"]["count"] == 24


def test_the_trace_is_of_the_labs_device_and_names_no_host(traced: perfkit.Run, held: dict[str, Any]) -> None:
    """Rank, host and the profiler's random number are not among the keys; time 0 is that of the truth: 14:10 UTC."""
    assert [] == [key for key in held if "host" in key or "trace_id" in key or "distributed" in key]
    assert (0, TRACE.name) == (held["baseTimeNanoseconds"] % BASE_STEP_NS, held["traceName"])
    row = traced.devices.iloc[0]
    assert ("NVIDIA A100 80GB PCIe", 108, "8.0") == (row["name"], row["sm_count"], row["compute_capability"])
    assert pd.Timestamp("2025-06-16T14:10").value == traced.capture["t0_unix_ns"].iloc[0]


def test_the_sample_joins_three_tools(run: perfkit.Run) -> None:
    """One run: kernels, copies and calls stay those of Nsight Systems, operators are the trace's, which is whole.

    The trace was taken two hours after the report of Nsight Systems: captures so far apart keep their own clocks.
    """
    assert {"nsys", "ncu", "torch_trace"} == {profile.reader for profile in run.profiles}
    own = run.of("torch_trace")
    assert [TRUTH["kernels"]["count"], 28 * STEPS] == [len(run.kernels), len(own.kernels)]
    assert 146 * STEPS == len(run.ops) == len(own.ops)
    assert 60e9 < KINETO["t0_unix_ns"] - int(run.capture["t0_unix_ns"].min())
    assert KINETO["steps"][0]["start_ns"] == own.ranges["start_ns"].min()
