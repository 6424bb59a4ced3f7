"""The lab's MLP as PyTorch's profiler would have recorded it: what the trace holds is what its truth says."""

from __future__ import annotations

import gzip
import importlib
import json
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfkit
from make import execution, mlp_run, torch_trace
from make.execution import moments
from make.kernels import TABLE_5
from make.kineto import BASE_STEP_NS
from make.mlp_run import run as lab_run
from make.spans import BATCH, IMAGE, LAYERS, annotation
from make.timeline import Op
from perfkit.analysis import flops, host, kernels, memory, operators, steps, timeline

TRACE, TRUTH = "mlp_a100.pt.trace.json.gz", "mlp_a100.truth.json"
SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"
STEPS = 8


@pytest.fixture(scope="module")
def truth(mlp: Path) -> dict[str, Any]:
    """What the simulation says is true of the trace."""
    return json.loads((mlp / TRUTH).read_text())["torch"]


@pytest.fixture(scope="module")
def run(mlp: Path) -> perfkit.Run:
    """The trace alone."""
    return perfkit.load(mlp / TRACE)


@pytest.fixture(scope="module")
def events(mlp: Path) -> list[dict[str, Any]]:
    """The trace's events, decoded by the standard library."""
    return json.loads(gzip.decompress((mlp / TRACE).read_bytes()))["traceEvents"]


@pytest.fixture(scope="module")
def found(run: perfkit.Run) -> pd.DataFrame:
    """The steps that are detected."""
    return steps.detect(run.ranges, run.kernels)


def test_operators_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Count, CPU and GPU time, total and self, and kernels of every operator."""
    columns = ["count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"]
    summary = operators.summary(run.ops, run.kernels, run.api_calls).astype({"name": "string"})
    assert truth["operators"] == summary.set_index("name")[columns].to_dict("index")


def test_kernels_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Count, total, median, minimum and maximum of every kernel, and the busy time of the GPU."""
    columns = ["count", "total_ns", "median_ns", "min_ns", "max_ns"]
    summary = kernels.summary(run.kernels, by="full_name").astype({"full_name": "string"})
    expected = {row["full_name"]: {name: row[name] for name in columns} for row in truth["gpu"]["kernel_rows"]}
    assert expected == summary.set_index("full_name")[columns].to_dict("index")
    gpu, busy = truth["gpu"]["gpus"]["0"], timeline.busy(run.kernels, run.copies).iloc[0]
    names = ["kernel_busy_ns", "device_busy_ns", "span_ns"]
    assert {name: gpu[name] for name in names} == busy[names].to_dict()
    parts = timeline.breakdown(run.kernels, run.copies).iloc[0]
    assert gpu["breakdown"] == parts[list(gpu["breakdown"])].to_dict()


def test_copies_and_calls_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Count, time and bytes by direction, from and to pageable memory; count and time of each call."""
    of = run.copies.groupby("direction", observed=True)
    sums = of.agg(count=("bytes", "size"), total_ns=("dur_ns", "sum"), bytes=("bytes", "sum"))
    assert truth["gpu"]["copies"] == sums.to_dict("index")
    sides = set(zip(run.copies["src_memory"].astype(str), run.copies["dst_memory"].astype(str), strict=True))
    assert {("pageable", "device"), ("device", "pageable"), ("nan", "device")} == sides
    calls = run.api_calls.groupby("name", observed=True).agg(count=("dur_ns", "size"), total_ns=("dur_ns", "sum"))
    expected = {name.rsplit("_", 1)[0]: sums for name, sums in truth["gpu"]["calls"].items()}
    assert expected == calls.to_dict("index")


def test_steps_and_their_waits_are_the_truths(run: perfkit.Run, found: pd.DataFrame, truth: dict[str, Any]) -> None:
    """Eight steps, the first two not steady, and the time of each in the data loader."""
    waits = host.input_wait(run.ranges, found)
    rows = found.assign(wait_ns=waits["wait_ns"].astype("int64")).astype({"name": "string"})
    assert truth["steps"] == rows[["name", "start_ns", "dur_ns", "wait_ns", "steady"]].to_dict("records")
    assert [f"ProfilerStep#{n}" for n in range(10, 18)] == found["name"].tolist()
    assert [False] * 2 + [True] * 6 == found["steady"].tolist()


def test_steps_wait_as_in_the_lab(mlp: Path, run: perfkit.Run, found: pd.DataFrame) -> None:
    """Steps 10 to 17 wait for their data for the share of the time of the lab's steps 10 to 17, to 1 %."""
    lab = perfkit.load(mlp / "mlp_a100.nsys.sqlite").ranges.astype({"name": "string"})
    theirs = lab[lab["name"].isin([f"step {n}" for n in range(10, 18)])].sort_values("start_ns")
    loading = lab[(lab["name"] == "data loading") & lab["start_ns"].isin(theirs["start_ns"])].sort_values("start_ns")
    expected = loading["dur_ns"].to_numpy() / theirs["dur_ns"].to_numpy()
    assert pytest.approx(expected, rel=0.01) == host.input_wait(run.ranges, found)["wait_frac"].to_numpy()


def test_flops_are_those_of_the_network(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """2 x 128 x (784 x 256 + 256 x 128 + 128 x 10) forward, and backward that and the last two terms again."""
    each = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    assert {"aten::addmm": STEPS * sum(each), "aten::mm": STEPS * (2 * sum(each) - each[0])} == truth["flops"]
    owner = operators.kernels_of(run.ops, run.kernels, run.api_calls)
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=run.kernels["dur_ns"]))
    points = flops.roofline(run.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    assert truth["flops"] == points.set_index("name")["flops"].to_dict()
    assert {"fp32"} == set(points["dtype"])


def test_memory_is_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """The peak of both allocators, when it is reached, and what is reserved on the GPU, which is always enough."""
    peak = memory.peak(run.samples).set_index("gpu")
    for gpu, expected in truth["memory"].items():
        row = peak.loc[int(gpu)]
        assert (expected["peak_allocated_bytes"], expected["peak_ns"]) == (row["allocated_bytes"], row["time_ns"])
    assert truth["memory"]["0"]["reserved_bytes"] == peak.loc[0, "max_reserved_bytes"]
    assert 0 < memory.fragmentation(run.samples).set_index("gpu").loc[0, "peak_frac"] < 1


def test_memory_of_a_step_comes_back(run: perfkit.Run) -> None:
    """Each step ends with as much as the one before it; the model, its momentum and gradients stay."""
    levels = memory.timeline(run.samples)
    ends = run.ranges.loc[run.ranges["kind"] == "step", ["start_ns", "dur_ns"]].sum(axis=1)
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


def test_synchronisations_are_the_truths(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Three waits and a copy to pageable memory a step: implicit ones, of .to() and .item() in the loop of train.py."""
    waits = operators.synchronisations(run.ops, run.kernels, run.copies, run.api_calls, run.python_calls)
    assert truth["synchronisations"] == Counter(waits["api"])
    assert {"cudaStreamSynchronize": 3 * STEPS, "cudaMemcpyAsync": STEPS} == truth["synchronisations"]
    assert {("implicit", "train.py(21): train")} == set(zip(waits["kind"], waits["line"], strict=True))
    assert {"aten::to": 2 * STEPS, "aten::item": 2 * STEPS} == Counter(waits["outermost"])


def test_every_kernel_has_an_operator(run: perfkit.Run) -> None:
    """Containment finds the operator that "External id" names, for every call; nothing is outside."""
    owner = operators.kernels_of(run.ops, run.kernels, run.api_calls)
    assert {"launch"} == set(owner["how"])


def test_external_ids_name_the_innermost_operator(run: perfkit.Run, events: list[dict[str, Any]]) -> None:
    """A kernel has the External id of the operator in which its call begins."""
    of_id = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    named = {e["args"]["correlation"]: of_id[e["args"]["External id"]] for e in events if e.get("cat") == "kernel"}
    owner = operators.kernels_of(run.ops, run.kernels, run.api_calls)
    names = run.ops.set_index("op")["name"].reindex(owner["op"]).tolist()
    assert named == dict(zip(run.kernels["correlation"], names, strict=True))


def test_the_gpu_does_what_the_lab_does() -> None:
    """The kernels, copies and waits of a step are those of every other training step of the simulated run."""
    step = annotation("step", *execution.operators())
    own = [moment.part for moment in moments(step) if isinstance(moment.part, Op)]
    columns = [(op.kind, op.what, op.slot, op.size) for op in own]
    assert columns == [(op.kind, op.what, op.slot, op.size) for op in mlp_run.training_plan()]


def test_durations_are_possible(run: perfkit.Run) -> None:
    """Every kernel lasts as long as one of its row in Table 5."""
    rows = {kernel.full_name: kernel for kernel in TABLE_5.values()}
    extremes = run.kernels.groupby("full_name", observed=True)["dur_ns"].agg(["min", "max"])
    outside = [n for n, (low, high) in extremes.T.items() if low < rows[n].min_ns or high > rows[n].max_ns]
    assert [] == outside


def test_backward_runs_on_a_thread_of_its_own(run: perfkit.Run, truth: dict[str, Any]) -> None:
    """Autograd's thread runs the eleven numbered nodes of each step and six that keep gradients, and nothing else."""
    main = run.ranges["thread"].iloc[0]
    autograd = run.ops[run.ops["thread"] != main]
    top = autograd.loc[autograd["parent"] < 0, "name"].astype("string")
    assert top.str.startswith("autograd::engine::evaluate_function: ").all()
    assert STEPS * (11 + 6) == len(top)
    pairs = operators.backward(run.ops, run.kernels, run.api_calls).dropna(subset=["operator"])
    expected = {"aten::addmm": 24, "aten::relu": 24, "aten::t": 24, "aten::nll_loss_forward": 8}
    assert {**expected, "aten::_log_softmax": 8} == dict(zip(pairs["operator"], pairs["count"], strict=True))
    assert truth["operators"]["AddmmBackward0"]["count"] == 24


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


def test_python_functions_nest(run: perfkit.Run, events: list[dict[str, Any]], truth: dict[str, Any]) -> None:
    """A function lies in the one whose Python id is its parent's, train.py around all; read back it has that depth."""
    functions = {e["args"]["Python id"]: e for e in events if e.get("cat") == "python_function"}
    assert truth["functions"] == len(functions) == len(run.python_calls)
    depth = {None: -1}
    for number, event in functions.items():
        parent = event["args"]["Python parent id"]
        depth[number] = depth[parent] + 1
        if parent is not None:
            outer = functions[parent]
            assert outer["ts"] < event["ts"]
            assert event["ts"] + event["dur"] < outer["ts"] + outer["dur"]
    assert Counter(depth[number] for number in functions) == Counter(run.python_calls["depth"].tolist())
    assert ["train.py(37): <module>", "train.py(21): train"] == run.python_calls["name"].tolist()[:2]


def test_it_says_that_it_is_simulated(mlp: Path) -> None:
    """The first keys of the object say so; rank, host and the profiler's random number are not in it."""
    held = json.loads(gzip.decompress((mlp / TRACE).read_bytes()))
    assert "no GPU ran" in held["SIMULATED"]
    assert [] == [key for key in held if "host" in key or "trace_id" in key or "distributed" in key]
    assert (0, TRACE) == (held["baseTimeNanoseconds"] % BASE_STEP_NS, held["traceName"])


def test_the_device_is_the_labs(run: perfkit.Run) -> None:
    """The same card as in the capture of Nsight Systems, and the time 0 of the truth: 14:10 UTC."""
    row = run.devices.iloc[0]
    assert ("NVIDIA A100 80GB PCIe", 108, "8.0") == (row["name"], row["sm_count"], row["compute_capability"])
    assert pd.Timestamp("2025-06-16T14:10").value == run.capture["t0_unix_ns"].iloc[0]


def test_the_sample_joins_three_tools() -> None:
    """One run: kernels, copies and calls stay those of Nsight Systems, operators are the trace's, which is whole."""
    run = perfkit.load(SAMPLE)
    assert {"nsys", "ncu", "torch_trace"} == {profile.reader for profile in run.profiles}
    trace = json.loads((SAMPLE / TRUTH).read_text())
    assert trace["kernels"]["count"] == len(run.kernels)
    own = run.of("torch_trace")
    assert trace["torch"]["gpu"]["kernels"]["count"] == len(own.kernels)
    assert sum(row["count"] for row in trace["torch"]["operators"].values()) == len(run.ops) == len(own.ops)
    # The trace was taken two hours after the report of Nsight Systems: captures so far apart keep their own clocks.
    assert 60e9 < trace["torch"]["t0_unix_ns"] - int(run.capture["t0_unix_ns"].min())
    assert trace["torch"]["steps"][0]["start_ns"] == own.ranges["start_ns"].min()


def test_the_sample_is_this_simulation(mlp: Path) -> None:
    """The trace under data/ holds, character by character, what the command writes today."""
    assert gzip.decompress((SAMPLE / TRACE).read_bytes()) == gzip.decompress((mlp / TRACE).read_bytes())


def test_the_sample_is_small() -> None:
    """The trace is under 300 kB, and the folder under 5 MB."""
    assert (SAMPLE / TRACE).stat().st_size < 300_000
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 5_000_000


def write(path: Path, seed: int) -> dict[str, Any]:
    """Write the trace of a seed and return its truth."""
    return torch_trace.write(
        path, lab_run(np.random.default_rng(seed)), np.random.default_rng([seed, 1]), t0_unix_ns=1_750_083_000 * 10**9
    )


def test_the_same_seed_gives_the_same_bytes(mlp: Path, tmp_path: Path, truth: dict[str, Any]) -> None:
    """Written again it is the same file with the same truth."""
    assert truth == write(tmp_path / TRACE, 0)
    assert (mlp / TRACE).read_bytes() == (tmp_path / TRACE).read_bytes()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_have_two_slow_steps_too(tmp_path: Path, seed: int) -> None:
    """Whatever is drawn, the first two steps are not steady, and counts and operations are the same."""
    truth = write(tmp_path / TRACE, seed)
    run = perfkit.load(tmp_path / TRACE)
    assert [step["steady"] for step in truth["steps"]] == steps.detect(run.ranges, run.kernels)["steady"].tolist()
    assert (224, 1_168) == (truth["gpu"]["kernels"]["count"], len(run.ops))


def test_operators_are_those_that_pytorch_runs(run: perfkit.Run, tmp_path: Path) -> None:
    """PyTorch, recording such a step on the CPU, has all operators but eleven, which a GPU or the data loader needs.

    Name, caller, shapes, types, strides, other arguments and autograd's number (from the step's first) are its own.
    On the CPU there are no copies to the device, and zero_ does without fill_.
    """
    if not os.environ.get("PERFKIT_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'perfkit[torch]')")
    real = operators_of_a_step(perfkit.load(recorded(tmp_path)).ops)
    last = run.ranges[run.ranges["kind"] == "step"].iloc[-1]
    ops = run.ops[run.ops["start_ns"] >= last["start_ns"]]
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
