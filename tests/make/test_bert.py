"""The simulated runs of the lab's BERT: the report's latencies, and files that hold what their truth says."""

import json
import sqlite3
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import perfkit
from make import bert
from perfkit.analysis import flops, kernels, operators, steps

Connect = Callable[[Path], sqlite3.Connection]
# what the report's snapshots print, s
GPU_S = {1: 0.0094331693649292, 8: 0.01702481269836426, 16: 0.027854666709899903, 32: 0.04863374710083008}
DATA = Path(__file__).parents[2] / "data"
LAB, OPTIMISED = DATA / "bert_a100", DATA / "bert_a100_optimised"
TRUTH, OPTIMISED_TRUTH = (json.loads((each / f"{each.name}.truth.json").read_text()) for each in (LAB, OPTIMISED))
LAYERS, STEPS, BATCH, TOKENS = 12, 3, 32, 32 * 128
OF_A_LAYER = 2 * TOKENS * 768 * 768, 2 * TOKENS * 768 * 3072, 2 * 32 * 12 * 128 * 128 * 64  # FLOP of each product


def steps_of(db: sqlite3.Connection, phase: str) -> list[tuple[int, int]]:
    """Start and end of the steps inside the range of that name."""
    ranges = db.execute("SELECT start, end, text FROM NVTX_EVENTS ORDER BY start, end DESC").fetchall()
    ((first, last, _),) = [row for row in ranges if row[2] == phase]
    return [(a, b) for a, b, text in ranges if text.startswith("step ") and first <= a and b <= last]


@pytest.mark.parametrize("batch", GPU_S)
def test_latencies_are_the_reports(connect: Connect, batch: int) -> None:
    """Mean and median of the steps, as the ranges in the file say them, are what the report prints, to the ns."""
    phase = f"{batch} sequence{'s' * (batch > 1)}"
    lengths = [end - start for start, end in steps_of(connect(LAB / "bert_a100.nsys.sqlite"), phase)]
    expected = round(GPU_S[batch] * 1e9)
    assert (12, expected, expected) == (len(lengths), statistics.mean(lengths), statistics.median(lengths))
    assert lengths == TRUTH["phases"][phase]["latency_ns"]


@pytest.fixture(scope="module")
def run() -> perfkit.Run:
    return perfkit.load(LAB / "bert_a100.pt.trace.json.gz")


@pytest.fixture(scope="module")
def owner(run: perfkit.Run) -> pd.DataFrame:
    return operators.kernels_of(run.ops, run.kernels, run.api_calls)


def test_operators_and_kernels_are_the_truths(run: perfkit.Run, owner: pd.DataFrame) -> None:
    columns = ["count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"]
    summary = operators.summary(run.ops, run.kernels, run.api_calls).astype({"name": "string"})
    assert TRUTH["torch"]["operators"] == summary.set_index("name")[columns].to_dict("index")
    summary = kernels.summary(run.kernels, by="full_name").astype({"full_name": "string"}).set_index("full_name")
    counted: Counter[str] = Counter()
    for row in TRUTH["torch"]["gpu"]["kernel_rows"]:
        counted[row["full_name"]] += row["total_ns"]
    assert counted == summary["total_ns"].to_dict()
    assert STEPS * 252 == TRUTH["torch"]["gpu"]["kernels"]["count"] == len(run.kernels)
    assert {"launch"} == set(owner["how"])


def test_steps_are_the_truths(run: perfkit.Run) -> None:
    """Three steps of batch 32, each within 3 % of the report's latency, which profiling hides behind the GPU."""
    found = steps.detect(run.ranges, run.kernels)
    told = pd.DataFrame(TRUTH["torch"]["steps"])
    assert told["dur_ns"].tolist() == found["dur_ns"].tolist()
    assert told["start_ns"].diff().tolist()[1:] == found["start_ns"].diff().tolist()[1:]
    assert all(abs(dur / 48_633_747 - 1) < 0.03 for dur in found["dur_ns"])


def test_flops_by_shape_are_those_of_bert(run: perfkit.Run, owner: pd.DataFrame) -> None:
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=run.kernels["dur_ns"]))
    points = flops.roofline(run.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    found = points.groupby("name")["flops"].sum().to_dict()
    square, wide, attention = OF_A_LAYER
    head = 2 * TOKENS * 768 * 2
    assert STEPS * (LAYERS * (4 * square + 2 * wide) + head) == found["aten::addmm"]
    assert STEPS * LAYERS * 2 * attention == found["aten::bmm"]
    assert STEPS * bert.batch_flops(BATCH) == found["aten::addmm"] + found["aten::bmm"]


def test_counters_are_the_truths() -> None:
    columns = ["grid_blocks", "block_threads", "dur_ns", "fp32_flops", "tensor_flops", "dram_bytes"]
    for folder, truth in ((LAB, TRUTH), (OPTIMISED, OPTIMISED_TRUTH)):
        (page,) = folder.glob("*.ncu.csv")
        found, expected = perfkit.load(page).launches, truth["ncu"]["launches"]
        assert [{name: row[name] for name in columns} for row in expected] == found[columns].to_dict("records")
        occupancy = [row["theoretical_occupancy_frac"] for row in expected]
        assert pytest.approx(occupancy, abs=1e-4) == found["theoretical_occupancy_frac"].tolist()
