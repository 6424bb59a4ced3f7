"""Operators that should not be there, calls that wait for the GPU, and real traces."""

from __future__ import annotations

import sqlite3
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call, span, steps
from frames import api_calls, copies, kernels, ranges, tuples
from ops import launch, launched, op, ops, python_calls
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
from perfkit.analysis import host, memory, operators
from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.operators import (
    CHECKS,
    SYNCHRONISATIONS,
    many_small,
    synchronisation_summary,
    synchronisations,
    unexpected,
)
from perfkit.analysis.steps import detect
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS, OPS, PYTHON_CALLS

NONE = OPS.empty(), KERNELS.empty(), COPIES.empty(), API_CALLS.empty()
LOOP = ops(op("aten::add_", 0, 100), op("aten::mm", 100, 200))
SHORT = launched(
    launch(10, 1_000, 2_000),
    launch(40, 4_000, 4_000),
    launch(90, 9_000, 9_000),
    launch(120, 20_000, 85_000),
    launch(900, 200_000, 0),
)
QWEN_H100 = "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
NORMALISATION = "TraceLens__perf_model__normalization__normalization_layer_test.json.gz"


def work(start: int, end: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A kernel."""
    return span(start, end, correlation=correlation, **more)


def test_many_small_by_hand() -> None:
    """add_ launches kernels of 2, 4 and 9 us: median 4, mean 5; mm one of 85 us is left out. In all 5 kernels, 100 us.

    Its calls begin at 10, 40 and 90 and the next of the thread at 120: intervals 30, 50 and 30, median 30.
    """
    found = many_small(LOOP, *SHORT)
    expected = {"count": 3, "total_ns": 15_000, "mean_ns": 5_000.0, "median_ns": 4_000.0, "count_frac": 0.6}
    first = found.iloc[0].to_dict()
    assert "aten::add_" == first.pop("name")
    assert np.isnan(first.pop("per_step_count"))
    assert expected | {"share_frac": 0.15, "interval_ns": 30.0} == first
    assert [True] == found["name"].isna()[1:].tolist()
    assert np.isnan(found.loc[1, "interval_ns"])


def test_many_small_below_a_limit_per_step_and_in_a_window() -> None:
    """A median of 4 us is not below 4 us; of kernels at 1, 4 and 9 us two start in the steps, and one in 4..9 us."""
    assert [2, 1] == [len(many_small(LOOP, *SHORT, below_ns=limit)) for limit in (4_001, 4_000)]
    in_steps = many_small(LOOP, *SHORT, steps=steps((0, 2_000), (3_000, 9_000)))
    assert [1.0, 0.0] == in_steps["per_step_count"].tolist()
    assert [(1, 4_000)] == tuples(many_small(LOOP, *SHORT, window=(4_000, 9_000)), "count", "total_ns")


def test_graph_nodes_and_launches_of_other_threads_have_no_interval() -> None:
    """Nodes of two graphs launched 50 ns apart are not launched one by one; another thread's launch ends nothing."""
    nodes = kernels(*({"start_ns": 100 * i, "dur_ns": 9, "correlation": i // 2, "in_graph": True} for i in range(4)))
    calls = api_calls(*(call(50 * i, 50 * i + 5, "cudaGraphLaunch", i) for i in (0, 1)))
    for tables in ((nodes, calls), launched(launch(10, 100, 5), launch(20, 110, 5, thread=2))):
        assert many_small(LOOP, *tables)["interval_ns"].isna().all()


def test_many_small_of_nothing() -> None:
    """No kernels, no rows, the same columns and types; a limit that is no duration and foreign tables are refused."""
    none = NONE[0], NONE[1], NONE[3]
    assert many_small(*none).empty
    assert many_small(LOOP, *SHORT).dtypes.astype(str).to_dict() == many_small(*none).dtypes.astype(str).to_dict()
    with pytest.raises(ValueError, match="below_ns: 0 is not positive"):
        many_small(*none, below_ns=0)
    with pytest.raises(SchemaError, match="'STEPS' does not match"):
        many_small(*none, steps=ranges())
    with pytest.raises(SchemaError, match="'OPS' does not match"):
        many_small(ranges(), *none[1:])


def checks(*tables: pd.DataFrame, **more: Any) -> list[tuple[str, str, int, int, int]]:
    """Check, operator, count, CPU time and GPU time of what is unexpected."""
    return tuples(unexpected(*tables, **more), "check", "name", "count", "cpu_total_ns", "gpu_total_ns")


def test_scalar_read_by_hand() -> None:
    """is_nonzero 0..50 > item > _local_scalar_dense copies 2 ns to the host and waits: once, and the copy besides.

    An item of a tensor on the CPU calls nothing and is left out.
    """
    nested = op("aten::is_nonzero", 0, 50), op("aten::item", 5, 45), op("aten::_local_scalar_dense", 10, 40)
    moved = copies({"start_ns": 15, "dur_ns": 2, "direction": "D2H", "dst_memory": "pageable", "correlation": 1})
    calls = api_calls(call(12, 13, "cudaMemcpyAsync", 1), call(18, 19, "cudaStreamSynchronize"))
    expected = [
        ("scalar read", "aten::is_nonzero", 1, 50, 2),
        ("device to host copy", "aten::_local_scalar_dense", 1, 30, 2),
    ]
    assert expected == checks(ops(*nested, op("aten::item", 90, 95)), KERNELS.empty(), moved, calls)


@pytest.mark.parametrize(
    ("name", "calls", "check"),
    [
        ("aten::nonzero", "cudaStreamSynchronize", "size from values"),
        ("aten::_unique2", "hipMemcpyWithStream", "size from values"),
        ("aten::repeat_interleave", "cudaMemcpyAsync", "size from values"),
        ("aten::empty_strided", "cudaMalloc", "memory from the driver"),
        ("aten::mm", "hipFree", "memory from the driver"),
    ],
)
def test_operators_that_call(name: str, calls: str, check: str) -> None:
    """An operator that makes such a call is unexpected, one that does not, or of another name, is not."""
    tables = KERNELS.empty(), COPIES.empty(), api_calls(call(5, 6, calls))
    assert [(check, name, 1, 9, 0)] == checks(ops(op(name, 0, 9), op(name, 20, 30)), *tables)
    other = "cudaLaunchKernel" if check == "memory from the driver" else calls
    assert [] == checks(ops(op("aten::relu", 0, 9)), *tables[:2], api_calls(call(5, 6, other)))


@pytest.mark.parametrize(
    ("direction", "memory", "expected"),
    [
        ("H2D", {"src_memory": "pageable"}, ["pageable host to device copy"]),
        ("H2D", {"src_memory": "pinned"}, []),
        ("D2H", {"dst_memory": "pinned"}, ["device to host copy"]),
        ("D2D", {"src_memory": "device"}, []),
    ],
)
def test_copies_to_the_host_and_from_pageable_memory_are_unexpected(
    direction: str, memory: dict[str, str], expected: list[str]
) -> None:
    """Prefetched and device copies are not."""
    moved = copies({**work(15, 17, 1), "direction": direction, **memory})
    found = checks(ops(op("aten::copy_", 0, 9)), KERNELS.empty(), moved, api_calls(call(5, 6, "cudaMemcpyAsync", 1)))
    assert expected == [check for check, *_ in found]


def test_a_layout_copy_counts_where_a_kernel_runs() -> None:
    """In contiguous, be it launched by the copy_ that it calls."""
    frame = ops(op("aten::contiguous", 0, 50), op("aten::copy_", 10, 40), op("aten::contiguous", 60, 70))
    kernel, calls = launched(launch(20, 100, 7))
    assert [("layout copy", "aten::contiguous", 1, 50, 7)] == checks(frame, kernel, COPIES.empty(), calls)


@pytest.mark.parametrize(("full_name", "count"), [("f<double>(int)", 1), ("f<float>(int)", 0)])
def test_the_name_of_the_kernel_tells_double_precision(full_name: str, count: int) -> None:
    """A Python number is recorded as "double" too, and is computed with in float."""
    kernel, calls = launched(launch(5, 100, 7, full_name))
    found = checks(ops(op("aten::mul", 0, 9, dtypes='["float","double"]')), kernel, COPIES.empty(), calls)
    assert [("double precision", "aten::mul", 1, 9, 7)] * count == found


def test_window_cuts_operators() -> None:
    """Of a nonzero 0..9 the window 4..20 holds 5 ns, of one at 30..40 nothing."""
    frame = ops(op("aten::nonzero", 0, 9), op("aten::nonzero", 30, 40))
    calls = api_calls(call(2, 3, "cudaStreamSynchronize"), call(32, 33, "cudaStreamSynchronize"))
    found = checks(frame, KERNELS.empty(), COPIES.empty(), calls, window=(4, 20))
    assert [("size from values", "aten::nonzero", 1, 5, 0)] == found


def test_order_and_words() -> None:
    """Rows come in the order of the checks, the most time first, each with why and what to do."""
    frame = ops(op("aten::mm", 0, 9), op("aten::bmm", 20, 40), op("aten::nonzero", 50, 55))
    calls = api_calls(call(5, 6, "cudaMalloc"), call(25, 26, "cudaMalloc"), call(52, 53, "cudaEventQuery"))
    found = unexpected(frame, KERNELS.empty(), COPIES.empty(), calls)
    assert ["aten::nonzero", "aten::bmm", "aten::mm"] == found["name"].tolist()
    said = {check.check: (check.why, check.instead) for check in CHECKS}
    assert [said[check] for check in found["check"]] == list(zip(found["why"], found["instead"], strict=True))
    assert len(said) == len(CHECKS)


def test_nothing_unexpected() -> None:
    """No operators, no rows, the same columns and types; foreign tables and backward windows are refused."""
    some = unexpected(ops(op("aten::nonzero", 0, 9)), *NONE[1:3], api_calls(call(5, 6, "cudaMemcpy")))
    assert unexpected(*NONE).empty
    assert some.dtypes.astype(str).to_dict() == unexpected(*NONE).dtypes.astype(str).to_dict()
    with pytest.raises(SchemaError, match="'COPIES' does not match"):
        unexpected(*NONE[:2], ranges(), NONE[3])
    with pytest.raises(ValueError, match="does not end after it starts"):
        unexpected(*NONE, window=(5, 5))


# The program launches a kernel 20..100, waits from 30 to 112 for a copy 100..105 that .item() asked for, computes on
# the CPU, and launches the next kernel at 150: it starts at 160.
ITEM = ops(op("aten::item", 25, 120), op("aten::_local_scalar_dense", 28, 118))
KERNEL = kernels(work(20, 100, 1), work(160, 200, 3))
COPY = copies({**work(100, 105, 2), "direction": "D2H", "src_memory": "device", "dst_memory": "pageable"})
CALLS = api_calls(
    call(10, 15, correlation=1),
    call(30, 108, "cudaMemcpyAsync", 2),
    call(109, 112, "cudaStreamSynchronize"),
    call(150, 155, correlation=3),
)


def test_copy_and_synchronisation_of_an_item_by_hand() -> None:
    """They end in the gap 105..160: 4 ns until the second call begins, 51 ns after. The second starts in 100..200.

    Both are the operator's doing: implicit, item > _local_scalar_dense.
    """
    found = synchronisations(ITEM, KERNEL, COPY, CALLS)
    columns = ["api", "start_ns", "dur_ns", "idle_ns", "kind", "operator", "outermost", "gpu"]
    by = "implicit", "aten::_local_scalar_dense", "aten::item", 0
    assert tuples(found, *columns) == [
        ("cudaMemcpyAsync", 30, 78, 4, *by),
        ("cudaStreamSynchronize", 109, 3, 51, *by),
    ]
    assert found["line"].isna().all()
    assert [109] == synchronisations(ITEM, KERNEL, COPY, CALLS, window=(100, 200))["start_ns"].tolist()


@pytest.mark.parametrize(
    ("name", "inside", "kind"),
    [
        ("cudaDeviceSynchronize", False, "explicit"),
        ("hipEventSynchronize", False, "explicit"),
        ("cuStreamSynchronize_ptsz", False, "explicit"),
        ("cudaStreamSynchronize", True, "implicit"),
        ("hipMemcpyWithStream", False, "implicit"),
        ("cudaFree", True, "implicit"),
        *((name, False, None) for name in ("cudaLaunchKernel", "cudaEventQuery", "cudaMemcpyAsync")),
        ("cudaStreamWaitEvent", False, None),
    ],
)
def test_only_a_call_to_synchronise_outside_of_operators_is_explicit(name: str, inside: bool, kind: str | None) -> None:
    """Everything else that waits is implicit; launches, queries and asynchronous copies do not wait."""
    frame = ops(op("aten::copy_", 0, 50)) if inside else OPS.empty()
    found = synchronisations(frame, *NONE[1:3], api_calls(call(5, 9, name, 1)))
    assert ([kind] if kind else []) == found["kind"].tolist()


@pytest.mark.parametrize(
    ("direction", "memory", "count"), [("D2H", "pageable", 1), ("D2H", "pinned", 0), ("H2D", "pageable", 0)]
)
def test_asynchronous_copies(direction: str, memory: str, count: int) -> None:
    """cudaMemcpyAsync waits where it copies from the device to pageable memory."""
    side = {"dst_memory": memory} if direction == "D2H" else {"src_memory": memory}
    moved = copies({**work(7, 8, 1), "direction": direction, **side})
    assert count == len(synchronisations(*NONE[:2], moved, api_calls(call(5, 9, "cudaMemcpyAsync", 1))))


def test_outermost_aten_operator() -> None:
    """Of annotation > to > _to_copy > custom::copy the outermost aten operator is to, the innermost the custom one."""
    names = ("forward", "aten::to", "aten::_to_copy", "custom::copy")
    frame = ops(*(op(name, 10 * i, 100 - 10 * i) for i, name in enumerate(names)))
    found = synchronisations(frame, *NONE[1:3], api_calls(call(40, 45, "cudaStreamSynchronize")))
    assert [("custom::copy", "aten::to")] == list(zip(found["operator"], found["outermost"], strict=True))
    found = synchronisations(ops(op("forward", 0, 9)), *NONE[1:3], api_calls(call(4, 5, "cudaFree")))
    assert [True] == found["outermost"].isna().tolist()


PROGRAM = "train.py(9): step"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<built-in method item of Tensor object at 0x7f>", PROGRAM),
        ("torch/_tensor.py(5): wrapped", PROGRAM),
        ("/opt/site-packages/torch/nn/modules/module.py(5): _call_impl", PROGRAM),
        ("nn.Module: Net_0", PROGRAM),
        ("contextlib.py(75): inner", PROGRAM),
        ("multiprocessing/process.py(314): run", PROGRAM),
        ("<frozen os>(791): encode", PROGRAM),
        *((own, own) for own in ("transformers/masks.py(243): ignore", "<ipython-input-3-ab>(1): <module>")),
        *((own, own) for own in ("mytorch/net.py(3): forward", "")),
    ],
)
def test_line_of_the_program(inner: str, expected: str) -> None:
    """The innermost frame that is not built in, PyTorch's or the standard library's; names are any text."""
    stack = python_calls(op(PROGRAM, 0, 900), op(inner, 20, 140), op("<built-in f>", 200, 300))
    found = synchronisations(ITEM, KERNEL, COPY, CALLS, stack)
    assert [expected, expected] == found["line"].tolist()


def test_line_where_all_is_built_in() -> None:
    """Without a frame of the program the innermost of all is given; none on another thread or after it returned."""
    stack = python_calls(
        op("torch/a.py(1): f", 0, 150), op("<built-in g>", 20, 109), op("x.py(1): h", 0, 900, thread=2)
    )
    found = synchronisations(ITEM, KERNEL, COPY, CALLS, stack)
    assert ["<built-in g>", "torch/a.py(1): f"] == found["line"].tolist()


@pytest.mark.parametrize(
    ("busy", "waits", "idle"),
    [
        ([work(20, 100, 1), work(160, 200, 3), work(50, 170, 9, stream=8)], (109, 112), 0),
        ([work(0, 10, 1), work(60, 70, 2)], (40, 45), 20),
        *(([work(20, 100, 1), work(160, 200, 3)], ends, None) for ends in ((0, 5), (190, 200), (195, 300))),
    ],
)
def test_idle_time_of_a_wait_by_hand(busy: list[dict[str, Any]], waits: tuple[int, int], idle: int | None) -> None:
    """A kernel of another stream runs on: no gap. Dry at 10, waited for from 40 to 45, at work at 60: 20 of 50 ns.

    Before the first operation of the device and from the end of its last on, nothing tells what a wait costs.
    """
    calls = api_calls(call(*waits, "cudaDeviceSynchronize"))
    found = synchronisations(OPS.empty(), kernels(*busy), COPIES.empty(), calls)
    assert [idle] == found["idle_ns"].astype(object).where(found["idle_ns"].notna(), None).tolist()


def test_device_of_the_thread() -> None:
    """A thread waits for the device on which it last started an operation, or for the only one of its rank.

    Before it started any, and of two devices, it waits for one not known.
    """
    kernel = kernels(work(20, 30, 1), work(20, 30, 2, gpu=1), work(90, 99, 3), work(70, 99, 4, gpu=1))
    calls = api_calls(
        call(0, 1, "cudaDeviceSynchronize"),
        call(5, 6, correlation=1),
        call(31, 40, "cudaStreamSynchronize"),
        call(5, 6, correlation=2, thread=2),
        call(31, 40, "cudaStreamSynchronize", thread=2),
        call(31, 40, "cudaStreamSynchronize", thread=3),
    )
    found = synchronisations(OPS.empty(), kernel, COPIES.empty(), calls)
    assert [-1, 0, 1, -1] == found["gpu"].tolist()
    assert [None, 59, 39, None] == [None if pd.isna(idle) else idle for idle in found["idle_ns"]]
    only = synchronisations(*NONE[:1], KERNEL, COPIES.empty(), api_calls(call(101, 110, "cudaFree", thread=9)))
    assert [(0, 59)] == tuples(only, "gpu", "idle_ns")


def random_waits(seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels on two devices of two ranks, and calls that wait at random on two threads of each."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, (2, 5000, 60), (80, 3)).tolist()
    kernel = kernels(*(work(start, start + dur, rank=rank, gpu=rank) for rank, start, dur in rows))
    waits = random.integers(0, (2, 2, 5000, 90), (150, 4)).tolist()
    calls = [
        call(start, start + dur, "cudaStreamSynchronize", rank=rank, thread=thread)
        for rank, thread, start, dur in waits
    ]
    return kernel, api_calls(*calls)


@pytest.mark.parametrize("seed", [1, 2])
def test_idle_by_counting_nanoseconds(seed: int) -> None:
    """Every ns of a gap that ends known waits belongs to the last one of them begun by then, if any had."""
    kernel, calls = random_waits(seed)
    found = synchronisations(OPS.empty(), kernel, COPIES.empty(), calls)
    gaps = idle_gaps(kernel, COPIES.empty(), API_CALLS.empty())
    cost = np.zeros(len(found), int)
    starts, ends = found["start_ns"].to_numpy(), (found["start_ns"] + found["dur_ns"]).to_numpy()
    for gap in gaps.itertuples():
        last = gap.start_ns + gap.dur_ns
        within = np.flatnonzero((found["rank"] == gap.rank) & (gap.start_ns <= ends) & (ends < last))
        for moment in range(gap.start_ns, last):
            begun = [place for place in within if starts[place] <= moment]
            if begun:
                latest = max(starts[place] for place in begun)
                cost[[place for place in begun if starts[place] == latest][-1]] += 1
    known = found["idle_ns"].notna().to_numpy()
    assert cost[known].sum() > 0
    assert cost[known].tolist() == found["idle_ns"][known].tolist()
    assert 0 == cost[~known].sum()
    assert found["idle_ns"].sum() <= gaps["dur_ns"].sum()


def test_summary_by_hand() -> None:
    """Two items on one line wait 3 and 5 ns and cost 51 and an unknown idle time; a synchronise 2 ns and 60."""
    found = synchronisations(ITEM, KERNEL, COPY, CALLS)
    waits = found.iloc[[1]]
    unknown = waits.assign(dur_ns=5, idle_ns=pd.array([pd.NA], dtype="Int64"))
    other = waits.assign(
        dur_ns=2, idle_ns=pd.array([60], dtype="Int64"), kind=pd.Categorical(["explicit"], found["kind"].cat.categories)
    )
    table = SYNCHRONISATIONS.make(pd.concat([waits, unknown, other]))
    columns = ["kind", "count", "total_ns", "max_ns", "idle_ns", "idle_count"]
    expected = [["explicit", 1, 2, 2, 60, 1], ["implicit", 2, 8, 5, 51, 1]]
    assert expected == synchronisation_summary(table)[columns].to_numpy().tolist()


def test_nothing_that_waits_and_foreign_tables() -> None:
    """No rows, the columns of the table; foreign tables and a backward window are refused; the input stays."""
    assert SYNCHRONISATIONS.check(synchronisations(*NONE)).empty
    assert SYNCHRONISATIONS.check(synchronisations(*NONE, PYTHON_CALLS.empty())).empty
    before = CALLS.copy()
    none, some = (synchronisation_summary(synchronisations(*t)) for t in (NONE, (ITEM, KERNEL, COPY, CALLS)))
    pd.testing.assert_frame_equal(before, CALLS)
    assert none.empty
    assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()
    with pytest.raises(SchemaError, match="'PYTHON_CALLS' does not match"):
        synchronisations(*NONE, kernels())
    with pytest.raises(SchemaError, match="'SYNCHRONISATIONS' does not match"):
        synchronisation_summary(ranges())
    with pytest.raises(ValueError, match="does not end after it starts"):
        synchronisations(*NONE, window=(5, 5))


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


def traced(profiles: Path, name: str) -> tuple[pd.DataFrame, ...]:
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
    ops, kernels, calls = traced(profiles, name)
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
    ops, kernels, calls = traced(profiles, name)
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


def test_how_many_kernels_have_no_operator(profiles: Path) -> None:
    """The 544 kernels of one graph launch outside of operators, 757 without a recorded call, 705 in a cut capture."""
    expected = {
        SGLANG_MI300: {"launch": 8, "outside": 547, "none": 0},
        RESNET_MI300: {"launch": 2238, "outside": 0, "none": 757},
        GRAPHS_A100: {"launch": 5285, "outside": 90, "none": 705},
    }
    found = {name: operators.kernels_of(*traced(profiles, name))["how"].value_counts().to_dict() for name in expected}
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
    found = operators.backward(*traced(profiles, name))
    pairs = found[found["operator"].notna()].set_index(["operator", "node"])["count"].to_dict()
    assert links == expected.total()
    assert dict(expected) == pairs


def test_all_time_of_the_backward_pass(profiles: Path) -> None:
    """On the thread of autograd all kernels belong to nodes: their times add up to it."""
    ops, kernels, calls = traced(profiles, NCCL_A100)
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
    [("hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite", 18), ("extra-p__extrap__ex-gpu.s10.sqlite", 8)],
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


def test_what_is_unexpected_in_real_runs(profiles: Path) -> None:
    """The scheduler of the diffusion run looks a time step up: one item and one nonzero.

    SGD of 2021 multiplies by Python numbers, recorded as inputs of type double: its kernels compute in float.
    """
    wanted = "OPS", "KERNELS", "COPIES", "API_CALLS"
    found = operators.unexpected(*tables(profiles, XDIT_MI300, *wanted)).groupby("check")["name"].apply(list).to_dict()
    assert [["aten::item"], ["aten::nonzero"]] == [found["scalar read"], found["size from values"]]
    sgd = tables(profiles, V100_BEFORE, *wanted)
    assert sgd[0]["dtypes"].astype(str).str.contains('"double"').any()
    assert "double precision" not in {*found, *operators.unexpected(*sgd)["check"]}


def test_small_kernels_of_the_optimiser(profiles: Path) -> None:
    """ResNet-50 on V100: a third of all launches are add_ of about 1 us, 41 us apart: the CPU sets the pace."""
    ops, kernels, calls, ranges = tables(profiles, V100_BEFORE, "OPS", "KERNELS", "API_CALLS", "RANGES")
    found = operators.many_small(ops, kernels, calls, steps=detect(ranges, kernels)).iloc[0]
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
    found = analysis_kernels.precision(*traced(profiles, name))
    assert formats == set(found["format"])
    assert active is analysis_kernels.mixed(found).active


def test_workers_end_the_wait_for_data(profiles: Path) -> None:
    """ResNet-50 waits 30 % of its time for data, with four loader processes 1 %: what the events add up to."""
    share = {}
    for name in (V100_BEFORE, V100_AFTER):
        ranges, kernels = tables(profiles, name, "RANGES", "KERNELS")
        found = host.input_wait(ranges, detect(ranges, kernels))
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
