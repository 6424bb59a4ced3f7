"""The lab's BERT as PyTorch's profiler and Nsight Compute would have recorded it: files, truth, and PyTorch itself."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfkit
from make import bert, bert_a100_optimised, bert_run
from make.execution import moments
from make.spans import annotation
from make.timeline import Op
from perfkit.analysis import flops, kernels, operators, steps

LAYERS, STEPS, BATCH, TOKENS = 12, 3, 32, 32 * 128
OF_A_LAYER = 2 * TOKENS * 768 * 768, 2 * TOKENS * 768 * 3072, 2 * 32 * 12 * 128 * 128 * 64  # FLOP of each product


@pytest.fixture(scope="module")
def truth(bert: Path) -> dict[str, Any]:
    """What the simulation says is true."""
    return json.loads((bert / "bert_a100.truth.json").read_text())


@pytest.fixture(scope="module")
def run(bert: Path) -> perfkit.Run:
    """The trace alone."""
    return perfkit.load(bert / "bert_a100.pt.trace.json.gz")


def test_operators_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Count, CPU and GPU time, total and self, and kernels of every operator."""
    columns = ["count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"]
    summary = operators.summary(run.ops, run.kernels, run.api_calls).astype({"name": "string"})
    assert truth["torch"]["operators"] == summary.set_index("name")[columns].to_dict("index")


def test_kernels_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Count and total of every kernel, and each has the operator that launched it."""
    summary = kernels.summary(run.kernels, by="full_name").astype({"full_name": "string"}).set_index("full_name")
    counted: Counter[str] = Counter()
    for row in truth["torch"]["gpu"]["kernel_rows"]:
        counted[row["full_name"]] += row["total_ns"]
    assert counted == summary["total_ns"].to_dict()
    assert STEPS * 252 == truth["torch"]["gpu"]["kernels"]["count"] == len(run.kernels)
    assert {"launch"} == set(operators.kernels_of(run.ops, run.kernels, run.api_calls)["how"])


def test_steps_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Three steps of batch 32, each within 3 % of the report's latency, which profiling hides behind the GPU."""
    found = steps.detect(run.ranges, run.kernels)
    told = pd.DataFrame(truth["torch"]["steps"])
    assert told["dur_ns"].tolist() == found["dur_ns"].tolist()
    assert told["start_ns"].diff().tolist()[1:] == found["start_ns"].diff().tolist()[1:]
    assert all(abs(dur / 48_633_747 - 1) < 0.03 for dur in found["dur_ns"])


def test_flops_by_shape_are_those_of_bert(run: perfkit.Run) -> None:
    """Linear layers and the two products of attention, from the shapes in the trace, are the formula's."""
    owner = operators.kernels_of(run.ops, run.kernels, run.api_calls)
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=run.kernels["dur_ns"]))
    points = flops.roofline(run.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    found = points.groupby("name")["flops"].sum().to_dict()
    square, wide, attention = OF_A_LAYER
    head = 2 * TOKENS * 768 * 2
    assert STEPS * (LAYERS * (4 * square + 2 * wide) + head) == found["aten::addmm"]
    assert STEPS * LAYERS * 2 * attention == found["aten::bmm"]
    assert STEPS * bert.batch_flops(BATCH) == found["aten::addmm"] + found["aten::bmm"]


def test_the_gpu_does_what_the_timeline_does() -> None:
    """Kernels, copies and waits of the operators are those of the timeline's batches, in their order."""
    own = [m.part for m in moments(annotation("step", *bert.operators())) if isinstance(m.part, Op)]
    expected = [(op.kind, op.what, op.size) for op in bert_run.answering(BATCH)]
    assert expected == [(op.kind, op.what, op.size) for op in own]


def test_operators_are_those_that_pytorch_runs(run: perfkit.Run, tmp_path: Path) -> None:
    """PyTorch, recording such a batch on the CPU, has all operators but those that copy to the GPU and back.

    Name, caller, shapes, types, strides and other arguments are its own.
    """
    if not os.environ.get("PERFKIT_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'perfkit[torch]')")
    first = run.ranges[run.ranges["kind"] == "step"].iloc[0]
    own = run.ops[run.ops["start_ns"] < first["start_ns"] + first["dur_ns"]]
    ours, real = of_a_batch(own), of_a_batch(perfkit.load(recorded(tmp_path)).ops)
    only_ours = Counter(name for name, *_ in (ours - real).elements())
    moved = {"aten::to": 3, "aten::_to_copy": 5, "aten::empty_strided": 5, "aten::copy_": 5}
    assert moved == only_ours
    cpus_own = {"aten::expand", "aten::as_strided", "aten::copy_", "aten::resolve_conj", "aten::select", "aten::to"}
    cpus_own |= {"aten::_to_copy", "aten::empty_strided"}
    assert {name for name, *_ in (real - ours).elements()} <= cpus_own
    assert 1517 == ours.total()


def of_a_batch(ops: pd.DataFrame) -> Counter[tuple[Any, ...]]:
    """Name, name of the caller and arguments of each operator."""
    named = ops.set_index("op")["name"].astype("string")
    arguments = (ops[column].astype("string").fillna("") for column in ("shapes", "dtypes", "strides", "concrete"))
    return Counter(zip(ops["name"].tolist(), ops["parent"].map(named).fillna(""), *arguments, strict=True))


def recorded(folder: Path) -> Path:
    """Record a batch with PyTorch on the CPU."""
    import torch
    from bert_eager import Bert

    model = Bert(LAYERS).eval()
    tokens = torch.zeros(BATCH, 128, dtype=torch.long)
    mask = torch.ones_like(tokens)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        start, end = model(tokens, tokens, mask)
        start.cpu(), end.cpu()
    profiler.export_chrome_trace(str(folder / "cpu.json"))
    return folder / "cpu.json"


def test_counters_are_the_truths(bert: Path, truth: dict[str, Any], tmp_path: Path) -> None:
    """Time, operations, bytes and occupancy of each launch of a layer, in FP32 and in TF32, as perfkit reads them."""
    faster = bert_a100_optimised(tmp_path)
    told = {bert: truth["ncu"], faster: json.loads((faster / "bert_a100_optimised.truth.json").read_text())["ncu"]}
    columns = ["grid_blocks", "block_threads", "dur_ns", "fp32_flops", "tensor_flops", "dram_bytes"]
    for folder, expected in told.items():
        (page,) = folder.glob("*.ncu.csv")
        found = perfkit.load(page).launches
        rows = [{name: row[name] for name in columns} for row in expected["launches"]]
        assert rows == found[columns].to_dict("records")
        occupancy = [row["theoretical_occupancy_frac"] for row in expected["launches"]]
        assert pytest.approx(occupancy, abs=1e-4) == found["theoretical_occupancy_frac"].tolist()


def test_a_layer_does_what_its_formula_says(truth: dict[str, Any]) -> None:
    """Counted products are 24 s h^2 + 4 s^2 h per sequence, all else below 1 %; none is on tensor cores."""
    square, wide, attention = OF_A_LAYER
    products = [row["fp32_flops"] for row in truth["ncu"]["launches"] if "gemm" in row["name"]]
    assert 4 * square + 2 * wide + 2 * attention == sum(products)
    assert BATCH * (24 * 128 * 768**2 + 4 * 128**2 * 768) == sum(products)
    total = truth["ncu"]["totals"]
    assert total["tensor_flops"] == 0
    assert math.isclose(total["fp32_flops"], sum(products), rel_tol=0.01)


def test_counters_run_at_the_base_clock(bert: Path, truth: dict[str, Any]) -> None:
    """Products take 1410/1065 of their time on the timeline, and what moves memory the same time, to 2 %."""
    timeline = perfkit.load(bert / "bert_a100.nsys.sqlite").kernels
    phase = truth["phases"]["32 sequences"]
    own = timeline[timeline["start_ns"].between(phase["start_ns"], phase["end_ns"])]
    for place, ratio in (("gelu", 1.0), ("fc1", 1410 / 1065)):
        (row,) = [row for row in truth["ncu"]["launches"] if row["place"] == place]
        same = own[(own["full_name"].astype(str) == row["name"]) & (own["grid_blocks"] == row["grid_blocks"])]
        assert math.isclose(row["dur_ns"] / same["dur_ns"].mean(), ratio, rel_tol=0.02)
