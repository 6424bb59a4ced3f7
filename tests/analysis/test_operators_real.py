"""Operators of real traces, against what Kineto and PyTorch themselves recorded of the same things.

Other tools answer the same questions by other conventions. HTA counts kernels by name and knows no operators; its
launch statistics leave driver calls out. TraceLens builds a tree of CPU operators, runtime calls and kernels and gives
an operator the time of all kernels below it, as `gpu_total_ns`; kernels without a launch call it shows in no operator.
PyTorch's own table adds copies and memsets to the kernels of an operator, and counts an operator in itself twice.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers.torch_real import (
    B200,
    BERT_H100,
    EARLY_2021,
    GRAPHS_A100,
    NCCL_A100,
    RESNET_MI300,
    SGLANG_MI300,
    TRACES,
    V100_AFTER,
    V100_BEFORE,
    XDIT_MI300,
    events_of,
    read,
)

import perfkit
from perfkit.analysis import host, kernels, memory, operators, steps

QWEN_H100 = "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
NORMALISATION = "TraceLens__perf_model__normalization__normalization_layer_test.json.gz"
AGREE_WITH_KINETO = {
    "HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": 14,
    NCCL_A100: 2700,
    B200: 766,
    BERT_H100: 60,
    RESNET_MI300: 2238,
    NORMALISATION: 168,
    SGLANG_MI300: 8,
    EARLY_2021: 30,
}


def tables(profiles: Path, name: str, *wanted: str) -> tuple[pd.DataFrame, ...]:
    """Tables of a trace."""
    return tuple(read(profiles / "torch" / name).table(table) for table in wanted)


def work(profiles: Path, name: str) -> tuple[pd.DataFrame, ...]:
    """Operators, kernels and calls of a trace."""
    return tables(profiles, name, "OPS", "KERNELS", "API_CALLS")


def complete(profiles: Path, name: str, *categories: str) -> list[dict[str, Any]]:
    """Complete events of some categories, in any spelling."""
    events = events_of(profiles / "torch" / name)
    return [event for event in events if event.get("ph") == "X" and str(event.get("cat")).lower() in categories]


def external(event: dict[str, Any]) -> int:
    """The id that Kineto gives an operator and what it launches; -1 none."""
    arguments = event.get("args", {})
    return int(arguments.get("External id", arguments.get("external id", -1)))


@pytest.mark.parametrize("name", TRACES)
def test_kernels_with_and_without_operator_add_up(name: str, profiles: Path) -> None:
    """In every trace operators and the rest together have all kernels and all their time, and operators their own."""
    ops, kernels, calls = work(profiles, name)
    assert len(kernels) == len(operators.kernels_of(ops, kernels, calls))
    for by in ("name", ("name", "shapes"), ("rank", "thread")):
        found = operators.summary(ops, kernels, calls, by=by)
        assert (len(ops), ops["self_ns"].sum()) == (found["count"].sum(), found["cpu_self_ns"].sum())
        assert (len(kernels), kernels["dur_ns"].sum()) == (found["kernel_count"].sum(), found["gpu_self_ns"].sum())
    each = operators.launched(ops, kernels, calls)
    assert (len(kernels), kernels["dur_ns"].sum()) == (each["count"].sum(), each["total_ns"].sum())


@pytest.mark.parametrize("name", AGREE_WITH_KINETO)
def test_operators_are_those_that_kineto_names(name: str, profiles: Path) -> None:
    """Kineto gives a kernel the external id of an operator: it is the one that contains the launch, for all of them."""
    ops, kernels, calls = work(profiles, name)
    launched_by = {external(event): event["name"] for event in complete(profiles, name, "cpu_op", "operator")}
    said = Counter(
        (event["args"]["correlation"], launched_by[external(event)])
        for event in complete(profiles, name, "kernel")
        if external(event) in launched_by
    )
    of = operators.kernels_of(ops, kernels, calls)["op"].map(dict(zip(ops["op"], ops["name"].astype(str), strict=True)))
    ours = Counter(zip(kernels["correlation"], of, strict=True))
    assert AGREE_WITH_KINETO[name] == said.total()
    assert said <= ours


def test_brute_force_on_one_trace(profiles: Path) -> None:
    """Of all operators that contain the launch on its thread, the one that starts last and then ends first."""
    ops, kernels, calls = work(profiles, BERT_H100)
    launch = dict(zip(calls["correlation"], calls.itertuples(), strict=True))
    expected = []
    for correlation in kernels["correlation"]:
        call = launch[correlation]
        around = ops[(ops["start_ns"] <= call.start_ns) & (call.start_ns < ops["start_ns"] + ops["dur_ns"])]
        around = around[around["thread"] == call.thread].sort_values(["start_ns", "dur_ns"], ascending=[False, True])
        expected.append(around["op"].iloc[0])
    assert expected == operators.kernels_of(ops, kernels, calls)["op"].tolist()


def test_how_many_kernels_have_no_operator(profiles: Path) -> None:
    """The 544 kernels of one graph launch outside of operators, 757 without a recorded call, 705 in a cut capture."""
    expected = {
        SGLANG_MI300: {"launch": 8, "outside": 547, "none": 0},
        RESNET_MI300: {"launch": 2238, "outside": 0, "none": 757},
        GRAPHS_A100: {"launch": 5285, "outside": 90, "none": 705},
    }
    found = {name: operators.kernels_of(*work(profiles, name))["how"].value_counts().to_dict() for name in expected}
    assert expected == found


@pytest.mark.parametrize(("name", "links"), [(NCCL_A100, 543), (RESNET_MI300, 213), (NORMALISATION, 51)])
def test_backward_is_what_pytorch_links(name: str, links: int, profiles: Path) -> None:
    """PyTorch records a flow from each forward operator to its node: we find the same pairs, and no others."""
    flows = [event for event in events_of(profiles / "torch" / name) if event.get("cat") == "fwdbwd"]
    at: dict[tuple[str, Decimal], list[dict[str, Any]]] = {}
    for event in complete(profiles, name, "cpu_op"):
        at.setdefault((str(event["tid"]), event["ts"]), []).append(event)
    sides: dict[int, dict[str, set[tuple[int, str]]]] = {}
    for flow in flows:
        there = {(e["args"].get("Sequence number", -1), e["name"]) for e in at[str(flow["tid"]), flow["ts"]]}
        sides.setdefault(flow["id"], {})[flow["ph"]] = there
    expected: Counter[tuple[str, str]] = Counter()
    for side in sides.values():
        (pair,) = {(f, b) for number, f in side["s"] for same, b in side["f"] if number == same >= 0}
        expected[pair] += 1
    found = operators.backward(*work(profiles, name))
    pairs = found[found["operator"].notna()].set_index(["operator", "node"])["count"].to_dict()
    assert links == expected.total()
    assert dict(expected) == pairs


def test_all_time_of_the_backward_pass(profiles: Path) -> None:
    """On the thread of autograd all kernels belong to nodes: their times add up to it."""
    ops, kernels, calls = work(profiles, NCCL_A100)
    by_thread = operators.summary(ops, kernels, calls, by="thread").set_index("thread")["gpu_self_ns"]
    assert by_thread[2919752] == operators.backward(ops, kernels, calls)["backward_ns"].sum()


def test_scalar_read_of_bert(profiles: Path) -> None:
    """The attention mask is tested by is_nonzero, whose line is the stack's; the GPU was idle until the next kernel."""
    wanted = ("OPS", "KERNELS", "COPIES", "API_CALLS", "PYTHON_CALLS")
    ops, kernels, copies, calls, stacks = tables(profiles, BERT_H100, *wanted)
    found = operators.synchronisations(ops, kernels, copies, calls, stacks)
    assert ["explicit", "explicit", "implicit"] == sorted(found["kind"])
    wait = found[found["kind"] == "implicit"].iloc[0]
    assert ("aten::_local_scalar_dense", "aten::is_nonzero") == (wait["operator"], wait["outermost"])
    line = "transformers/modeling_attn_mask_utils.py(429): _prepare_4d_attention_mask_for_sdpa"
    assert line == wait["line"]
    end = wait["start_ns"] + wait["dur_ns"]
    both = pd.concat([kernels, copies])
    dry = (both["start_ns"] + both["dur_ns"])[both["start_ns"] < end].max()
    assert dry < end
    assert both["start_ns"][both["start_ns"] > end].min() - max(dry, wait["start_ns"]) == wait["idle_ns"]


def test_synchronisations_inside_operators(profiles: Path) -> None:
    """Copies from the host on the A100 wait 75 times in to > copy_, and 30 copies to pageable memory with them."""
    ops, kernels, copies, calls = tables(profiles, GRAPHS_A100, "OPS", "KERNELS", "COPIES", "API_CALLS")
    found = operators.synchronisation_summary(operators.synchronisations(ops, kernels, copies, calls))
    rows = found[["api", "operator", "outermost", "count"]].astype(object)
    assert {
        ("cudaStreamSynchronize", "aten::copy_", "aten::to", 75),
        ("cudaMemcpyAsync", "aten::copy_", "aten::to", 30),
    } <= {tuple(row) for row in rows.itertuples(index=False)}


@pytest.mark.parametrize(
    ("capture", "calls"),
    [
        ("hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite", 18),
        ("extra-p__extrap__ex-gpu.s10.sqlite", 8),
    ],
)
def test_a_call_held_twice_waits_once(capture: str, calls: int, profiles: Path) -> None:
    """These exports hold cudaMemcpy and, inside it, cudaMemcpy_v3020: 36 rows of 18 calls, and 16 of 8.

    Raw SQL pairs each row with the one of the same thread, correlation id and longer name that lies inside it, and
    leaves none over: CUPTI gives a call one correlation id, so that the rows are half as many calls.
    """
    path = profiles / "nsys" / capture
    query = """
        WITH waits AS (
            SELECT start, end, globalTid, correlationId, value AS name
            FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId
            WHERE value GLOB 'cuda*Synchronize*' OR value GLOB 'cudaMemcpy*' OR value GLOB 'cudaFree*'
        )
        SELECT outside.start, outside.end, (SELECT COUNT(*) FROM waits)
        FROM waits AS outside JOIN waits AS inside USING (globalTid, correlationId)
        WHERE inside.name = outside.name || '_v3020' AND inside.start >= outside.start AND inside.end <= outside.end
        ORDER BY globalTid, outside.start
    """
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        pairs = database.execute(query).fetchall()
    assert [calls, {2 * calls}] == [len(pairs), {rows for _, _, rows in pairs}]
    run = perfkit.load(path)
    waits = operators.synchronisations(run.ops, run.kernels, run.copies, run.api_calls)
    assert [end - start for start, end, _ in pairs] == waits["dur_ns"].tolist()  # of the outer row
    assert 2 * calls == run.api_calls["name"].isin(["cudaMemcpy", "cudaDeviceSynchronize", "cudaFree"]).sum()


def test_diffusion_reads_values(profiles: Path) -> None:
    """The scheduler of the diffusion run looks a time step up: one item and one nonzero, both unexpected."""
    found = operators.unexpected(*tables(profiles, XDIT_MI300, "OPS", "KERNELS", "COPIES", "API_CALLS"))
    by_check = found.groupby("check")["name"].apply(list).to_dict()
    assert ["aten::item"] == by_check["scalar read"]
    assert ["aten::nonzero"] == by_check["size from values"]
    assert "double precision" not in by_check


def test_python_numbers_are_not_double_precision(profiles: Path) -> None:
    """SGD of 2021 multiplies by Python numbers, recorded as inputs of type double: its kernels compute in float."""
    ops, kernels, copies, calls = tables(profiles, V100_BEFORE, "OPS", "KERNELS", "COPIES", "API_CALLS")
    assert ops["dtypes"].astype(str).str.contains('"double"').any()
    assert "double precision" not in operators.unexpected(ops, kernels, copies, calls)["check"].tolist()


def test_small_kernels_of_the_optimiser(profiles: Path) -> None:
    """ResNet-50 on V100: a third of all launches are add_ of about 1 us, 41 us apart: the CPU sets the pace."""
    ops, kernels, calls, ranges = tables(profiles, V100_BEFORE, "OPS", "KERNELS", "API_CALLS", "RANGES")
    found = operators.many_small(ops, kernels, calls, steps=steps.detect(ranges, kernels)).iloc[0]
    assert ("aten::add_", 2994, 1000.0, 41_000.0) == tuple(found[["name", "count", "median_ns", "interval_ns"]])
    assert found["count_frac"] == pytest.approx(2994 / 8772, rel=1e-12)
    assert found["interval_ns"] > found["median_ns"]


@pytest.mark.parametrize(
    ("name", "active", "formats"),
    [
        (V100_BEFORE, False, {"fp32"}),
        (NCCL_A100, False, {"tf32", "fp32", "unknown"}),
        (QWEN_H100, True, {"bf16", "fp32"}),
        (RESNET_MI300, True, {"bf16", "unknown"}),
        (XDIT_MI300, True, {"bf16"}),
    ],
)
def test_mixed_precision(name: str, active: bool, formats: set[str], profiles: Path) -> None:
    """A V100 knows no TF32, the A100's ResNet uses it, and the models in bfloat16 run in it on both vendors' GPUs."""
    found = kernels.precision(*work(profiles, name))
    assert formats == set(found["format"])
    assert active is kernels.mixed(found).active


def test_workers_end_the_wait_for_data(profiles: Path) -> None:
    """ResNet-50 waits 30 % of its time for data, with four loader processes 1 %: what the events add up to."""
    share = {}
    for name in (V100_BEFORE, V100_AFTER):
        ranges, kernels = tables(profiles, name, "RANGES", "KERNELS")
        found = host.input_wait(ranges, steps.detect(ranges, kernels))
        spans = complete(profiles, name, "operator")
        waits = sum(int(s["dur"]) * 1000 for s in spans if s["name"].startswith("enumerate(DataLoader)#"))
        assert waits == found["wait_ns"].sum()
        share[name] = found["wait_ns"].sum() / found["dur_ns"].sum()
    assert 0.29 < share[V100_BEFORE] < 0.31
    assert 0.009 < share[V100_AFTER] < 0.011


@pytest.mark.parametrize("name", [QWEN_H100, BERT_H100, NORMALISATION])
def test_memory_peak(name: str, profiles: Path) -> None:
    """Peak and number of levels are those of the events, of the GPU and of the host."""
    (samples,) = tables(profiles, name, "SAMPLES")
    events = [e["args"] for e in events_of(profiles / "torch" / name) if e["name"] == "[memory]"]
    found = memory.peak(samples).set_index("gpu")
    assert len(events) == len(memory.timeline(samples))
    for gpu, of_gpu in (
        (-1, [e for e in events if e["Device Type"] == 0]),
        (0, [e for e in events if e["Device Type"]]),
    ):
        assert max(event["Total Allocated"] for event in of_gpu) == found["allocated_bytes"][gpu]
    assert max(event["Total Reserved"] for event in events) == found["max_reserved_bytes"][0]
    assert memory.fragmentation(samples).set_index("gpu").loc[0].between(0, 1).all()
