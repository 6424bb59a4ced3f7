"""Operators that should not be there, calls that wait for the GPU, and real traces."""

import sqlite3
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from analysis.spans import call, span, steps
from frames import api_calls, copies, kernels, known, lasting, python_calls, tuples
from ops import launch, launched, op, ops
from readers import torch_real as real

import perfkit
from perfkit.analysis import operators
from perfkit.analysis.operators import many_small, synchronisations, unexpected
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS, OPS

NONE = OPS.empty(), KERNELS.empty(), COPIES.empty(), API_CALLS.empty()
LOOP = ops(op("aten::add_", 0, 100), op("aten::mm", 100, 200))
AT = (
    (10, 1_000, 2_000),
    (40, 4_000, 4_000),
    (90, 9_000, 9_000),
    (120, 20_000, 85_000),
    (900, 200_000, 0),
)
SHORT = launched(*(launch(*at) for at in AT))
NORMALISATION = "TraceLens__perf_model__normalization__normalization_layer_test.json.gz"


def test_many_small_by_hand() -> None:
    """add_ launches 2, 4 and 9 us: median 4, mean 5, of 5 kernels and 100 us; 10, 40, 90, 120: intervals 30, 50, 30."""
    found = many_small(LOOP, *SHORT)
    columns = [
        "name",
        "count",
        "total_ns",
        "mean_ns",
        "median_ns",
        "count_frac",
        "share_frac",
        "interval_ns",
    ]
    assert ["aten::add_", 3, 15_000, 5_000, 4_000, 0.6, 0.15, 30] == found.loc[0, columns].tolist()
    assert found.loc[0, ["per_step_count"]].isna().all()
    assert found.loc[1:, ["name", "interval_ns"]].isna().to_numpy().tolist() == [[True, True]]


def test_many_small_below_a_limit_per_step_and_in_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit, count in ((4_001, 2), (4_000, 1)):
        monkeypatch.setattr(operators, "SHORT_NS", limit)
        assert count == len(many_small(LOOP, *SHORT))
    monkeypatch.undo()
    in_steps = many_small(LOOP, *SHORT, steps=steps((0, 2_000), (3_000, 9_000)))
    assert [1.0, 0.0] == in_steps["per_step_count"].tolist()
    assert [(1, 4_000)] == tuples(
        many_small(LOOP, *SHORT, window=(4_000, 9_000)), "count", "total_ns"
    )
    # Nodes of two graphs launched 50 ns apart are not launched one by one; another thread's launch ends nothing.
    nodes = kernels(*(lasting(100 * i, 9, correlation=i // 2, in_graph=True) for i in range(4)))
    calls = api_calls(*(call(50 * i, 50 * i + 5, "cudaGraphLaunch", i) for i in (0, 1)))
    for tables in ((nodes, calls), launched(launch(10, 100, 5), launch(20, 110, 5, thread=2))):
        assert many_small(LOOP, *tables)["interval_ns"].isna().all()


def checks(*tables: pd.DataFrame, **more: Any) -> list[tuple[str, str, int, int, int]]:
    return tuples(
        unexpected(*tables, **more), "check", "name", "count", "cpu_total_ns", "gpu_total_ns"
    )


def test_scalar_read_by_hand() -> None:
    """is_nonzero 0..50 > item > _local_scalar_dense copies 2 ns to the host and waits; 90..95 calls nothing."""
    nested = (
        op("aten::is_nonzero", 0, 50),
        op("aten::item", 5, 45),
        op("aten::_local_scalar_dense", 10, 40),
    )
    moved = copies(lasting(15, 2, direction="D2H", dst_memory="pageable", correlation=1))
    calls = api_calls(call(12, 13, "cudaMemcpyAsync", 1), call(18, 19, "cudaStreamSynchronize"))
    copied = "device to host copy", "aten::_local_scalar_dense", 1, 30, 2
    expected = [("scalar read", "aten::is_nonzero", 1, 50, 2), copied]
    assert expected == checks(ops(*nested, op("aten::item", 90, 95)), KERNELS.empty(), moved, calls)


def test_operators_that_call() -> None:
    names, copies = (
        ("nonzero", "_unique2", "repeat_interleave"),
        ("hipMemcpyWithStream", "cudaMemcpyAsync"),
    )
    sized = [*zip(names, ("cudaStreamSynchronize", *copies), strict=True)]
    for name, calls in (*sized, ("empty_strided", "cudaMalloc"), ("mm", "hipFree")):
        check = "size from values" if (name, calls) in sized else "memory from the driver"
        tables = KERNELS.empty(), COPIES.empty(), api_calls(call(5, 6, calls))
        found = checks(ops(op(f"aten::{name}", 0, 9), op(f"aten::{name}", 20, 30)), *tables)
        assert [(check, f"aten::{name}", 1, 9, 0)] == found
        # In the window 4..20 5 of the 9 ns.
        found = checks(
            ops(op(f"aten::{name}", 0, 9), op(f"aten::{name}", 30, 40)), *tables, window=(4, 20)
        )
        assert [(check, f"aten::{name}", 1, 5, 0)] == found
        other = calls if check == "size from values" else "cudaLaunchKernel"
        assert [] == checks(ops(op("aten::relu", 0, 9)), *tables[:2], api_calls(call(5, 6, other)))


def test_asynchronous_copies() -> None:
    for direction, sides, check, waits in (
        ("H2D", {"src_memory": "pageable"}, ["pageable host to device copy"], 0),
        ("H2D", {"src_memory": "pinned"}, [], 0),
        ("D2H", {"dst_memory": "pinned"}, ["device to host copy"], 0),
        ("D2H", {"dst_memory": "pageable"}, ["device to host copy"], 1),
        ("D2D", {"src_memory": "device"}, [], 0),
    ):
        moved = copies({**span(15, 17, 1), "direction": direction, **sides})
        tables = (
            ops(op("aten::copy_", 0, 9)),
            KERNELS.empty(),
            moved,
            api_calls(call(5, 6, "cudaMemcpyAsync", 1)),
        )
        assert check == [found for found, *_ in checks(*tables)]
        assert waits == len(synchronisations(*tables))


def test_layout_copies_and_double_precision_count_where_a_kernel_runs() -> None:
    frame = ops(
        op("aten::contiguous", 0, 50), op("aten::copy_", 10, 40), op("aten::contiguous", 60, 70)
    )
    kernel, calls = launched(launch(20, 100, 7))
    assert [("layout copy", "aten::contiguous", 1, 50, 7)] == checks(
        frame, kernel, COPIES.empty(), calls
    )
    # A Python number is recorded as "double" too, and is computed with in float: the name of the kernel tells.
    for full_name, count in (("f<double>(int)", 1), ("f<float>(int)", 0)):
        kernel, calls = launched(launch(5, 100, 7, full_name))
        found = checks(
            ops(op("aten::mul", 0, 9, dtypes='["float","double"]')), kernel, COPIES.empty(), calls
        )
        assert [("double precision", "aten::mul", 1, 9, 7)] * count == found


# The program launches a kernel 20..100, waits from 30 to 112 for a copy 100..105 that .item() asked for, computes on
# the CPU, and launches the next kernel at 150: it starts at 160.
ITEM = ops(op("aten::item", 25, 120), op("aten::_local_scalar_dense", 28, 118))
KERNEL = kernels(span(20, 100, 1), span(160, 200, 3))
COPY = copies(
    {**span(100, 105, 2), "direction": "D2H", "src_memory": "device", "dst_memory": "pageable"}
)
WAITS = call(30, 108, "cudaMemcpyAsync", 2), call(109, 112, "cudaStreamSynchronize")
CALLS = api_calls(call(10, 15, correlation=1), *WAITS, call(150, 155, correlation=3))


def test_copy_and_synchronisation_of_an_item_by_hand() -> None:
    """Of the gap 105..160 4 ns pass until the second call begins, 51 after; only the second starts in 100..200."""
    found = synchronisations(ITEM, KERNEL, COPY, CALLS)
    columns = ["api", "start_ns", "dur_ns", "idle_ns", "kind", "operator", "outermost", "gpu"]
    by = "implicit", "aten::_local_scalar_dense", "aten::item", 0
    assert tuples(found, *columns) == [
        ("cudaMemcpyAsync", 30, 78, 4, *by),
        ("cudaStreamSynchronize", 109, 3, 51, *by),
    ]
    assert found["line"].isna().all()
    assert [109] == synchronisations(ITEM, KERNEL, COPY, CALLS, window=(100, 200))[
        "start_ns"
    ].tolist()


def test_only_a_call_to_synchronise_outside_of_operators_is_explicit() -> None:
    none = "cudaLaunchKernel", "cudaEventQuery", "cudaMemcpyAsync", "cudaStreamWaitEvent"
    explicit = "cudaDeviceSynchronize", "hipEventSynchronize", "cuStreamSynchronize_ptsz"
    for name, inside, kinds in (
        *((name, False, ["explicit"]) for name in explicit),
        *(
            (name, inside, ["implicit"])
            for name, inside in (("hipMemcpyWithStream", False), ("cudaFree", True))
        ),
        ("cudaStreamSynchronize", True, ["implicit"]),
        *((name, False, []) for name in none),
    ):
        frame = ops(op("aten::copy_", 0, 50)) if inside else OPS.empty()
        found = synchronisations(frame, *NONE[1:3], api_calls(call(5, 9, name, 1)))
        assert kinds == found["kind"].tolist()


def test_outermost_aten_operator() -> None:
    names = ("forward", "aten::to", "aten::_to_copy", "custom::copy")
    frame = ops(
        *(op(name, 10 * i, 100 - 10 * i) for i, name in enumerate(names)), op("forward", 200, 209)
    )
    calls = api_calls(call(40, 45, "cudaStreamSynchronize"), call(204, 205, "cudaFree"))
    found = synchronisations(frame, *NONE[1:3], calls)
    expected = [("custom::copy", "aten::to"), ("forward", None)]
    assert expected == known(found, "operator", "outermost")


def test_line_of_the_program() -> None:
    program, frozen = "train.py(9): step", "<frozen os>(791): encode"
    others = (
        "<built-in method item of Tensor object>",
        "torch/_tensor.py(5): wrapped",
        "nn.Module: Net_0",
        frozen,
    )
    others += (
        "/opt/site-packages/torch/nn/modules/module.py(5): _call_impl",
        "contextlib.py(75): inner",
    )
    others += ("multiprocessing/process.py(314): run",)
    own = (
        "transformers/masks.py(243): ignore",
        "<ipython-input-3-ab>(1): <module>",
        "mytorch/net.py(3): forward",
        "",
    )
    for inner in (*others, *own):
        stack = python_calls(op(program, 0, 900), op(inner, 20, 140), op("<built-in f>", 200, 300))
        found = synchronisations(ITEM, KERNEL, COPY, CALLS, stack)
        assert [inner if inner in own else program] * 2 == found["line"].tolist(), inner


def test_line_where_all_is_built_in_is_the_innermost_of_the_thread() -> None:
    stack = (
        op("torch/a.py(1): f", 0, 150),
        op("<built-in g>", 20, 109),
        op("x.py(1): h", 0, 900, thread=2),
    )
    found = synchronisations(ITEM, KERNEL, COPY, CALLS, python_calls(*stack))
    assert ["<built-in g>", "torch/a.py(1): f"] == found["line"].tolist()
    with pytest.raises(SchemaError, match="'PYTHON_CALLS' does not match"):
        synchronisations(*NONE, kernels())


@pytest.mark.parametrize(
    ("busy", "waits", "idle"),
    [
        # A kernel of another stream runs on: no gap.
        ([span(20, 100, 1), span(160, 200, 3), span(50, 170, 9, stream=8)], (109, 112), 0),
        # Dry at 10, waited for from 40 to 45, at work at 60: 20 of 50 ns.
        ([span(0, 10, 1), span(60, 70, 2)], (40, 45), 20),
        # Before the first operation of the device and from the end of its last on, nothing tells what a wait costs.
        *(
            ([span(20, 100, 1), span(160, 200, 3)], ends, None)
            for ends in ((0, 5), (190, 200), (195, 300))
        ),
    ],
)
def test_idle_time_of_a_wait_by_hand(
    busy: list[dict[str, Any]], waits: tuple[int, int], idle: int | None
) -> None:
    calls = api_calls(call(*waits, "cudaDeviceSynchronize"))
    found = synchronisations(OPS.empty(), kernels(*busy), COPIES.empty(), calls)
    assert [(idle,)] == known(found, "idle_ns")


def test_device_of_a_wait_is_where_its_thread_last_started_work_or_the_only_one() -> None:
    kernel = kernels(
        span(20, 30, 1), span(20, 30, 2, gpu=1), span(90, 99, 3), span(70, 99, 4, gpu=1)
    )
    calls = api_calls(
        call(0, 1, "cudaDeviceSynchronize"),
        call(5, 6, correlation=1),
        call(5, 6, correlation=2, thread=2),
        *(call(31, 40, "cudaStreamSynchronize", thread=thread) for thread in (1, 2, 3)),
    )
    found = synchronisations(OPS.empty(), kernel, COPIES.empty(), calls)
    assert [(-1, None), (0, 59), (1, 39), (-1, None)] == known(found, "gpu", "idle_ns")
    only = synchronisations(
        *NONE[:1], KERNEL, COPIES.empty(), api_calls(call(101, 110, "cudaFree", thread=9))
    )
    assert [(0, 59)] == tuples(only, "gpu", "idle_ns")


def test_summary_by_hand() -> None:
    found = synchronisations(ITEM, KERNEL, COPY, CALLS)
    waits = found.iloc[[1]]
    unknown = waits.assign(dur_ns=5, idle_ns=pd.array([pd.NA], dtype="Int64"))
    explicit = pd.Categorical(["explicit"], found["kind"].cat.categories)
    other = waits.assign(dur_ns=2, idle_ns=pd.array([60], dtype="Int64"), kind=explicit)
    table = operators.synchronisation_summary(
        operators.SYNCHRONISATIONS.make(pd.concat([waits, unknown, other]))
    )
    columns = ["kind", "count", "total_ns", "max_ns", "idle_ns", "idle_count"]
    assert [["explicit", 1, 2, 2, 60, 1], ["implicit", 2, 8, 5, 51, 1]] == table[
        columns
    ].to_numpy().tolist()


AGREE_WITH_KINETO = {
    "HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": 14,
    NORMALISATION: 168,
}
AGREE_WITH_KINETO |= {
    real.NCCL_A100: 2700,
    real.B200: 766,
    real.BERT_H100: 60,
    real.RESNET_MI300: 2238,
}
AGREE_WITH_KINETO |= {real.SGLANG_MI300: 8, real.EARLY_2021: 30}


def tables(profiles: Path, name: str, *wanted: str) -> tuple[pd.DataFrame, ...]:
    return tuple(real.read(profiles / "torch" / name).table(table) for table in wanted)


def traced(profiles: Path, name: str) -> tuple[pd.DataFrame, ...]:
    """Operators, kernels and calls of a trace."""
    return tables(profiles, name, "OPS", "KERNELS", "API_CALLS")


WANTED = "OPS", "KERNELS", "COPIES", "API_CALLS"


def complete(profiles: Path, name: str, *categories: str) -> list[dict[str, Any]]:
    events = real.events_of(profiles / "torch" / name)
    return [
        event
        for event in events
        if event.get("ph") == "X" and str(event.get("cat")).lower() in categories
    ]


def external(event: dict[str, Any]) -> int:
    arguments = event.get("args", {})
    return int(arguments.get("External id", arguments.get("external id", -1)))


@pytest.mark.parametrize("name", real.TRACES)
@pytest.mark.sampled(3)
def test_kernels_with_and_without_operator_add_up(name: str, profiles: Path) -> None:
    ops, kernels, calls = traced(profiles, name)
    assert len(kernels) == len(operators.kernels_of(ops, kernels, calls))
    for by in ("name", ("name", "shapes"), ("rank", "thread")):
        found = operators.summary(ops, kernels, calls, by=by)
        assert (len(ops), ops["self_ns"].sum()) == (
            found["count"].sum(),
            found["cpu_self_ns"].sum(),
        )
        assert (len(kernels), kernels["dur_ns"].sum()) == (
            found["kernel_count"].sum(),
            found["gpu_self_ns"].sum(),
        )


@pytest.mark.parametrize("name", AGREE_WITH_KINETO)
def test_operators_are_those_that_kineto_names(name: str, profiles: Path) -> None:
    ops, kernels, calls = traced(profiles, name)
    launched_by = {
        external(event): event["name"] for event in complete(profiles, name, "cpu_op", "operator")
    }
    said = Counter(
        (event["args"]["correlation"], launched_by[external(event)])
        for event in complete(profiles, name, "kernel")
        if external(event) in launched_by
    )
    of = operators.kernels_of(ops, kernels, calls)["op"].map(
        dict(zip(ops["op"], ops["name"].astype(str), strict=True))
    )
    ours = Counter(zip(kernels["correlation"], of, strict=True))
    assert AGREE_WITH_KINETO[name] == said.total()
    assert said <= ours


@pytest.mark.parametrize(
    ("name", "links"), [(real.NCCL_A100, 543), (real.RESNET_MI300, 213), (NORMALISATION, 51)]
)
def test_backward_is_what_pytorch_links(name: str, links: int, profiles: Path) -> None:
    flows = [
        event for event in real.events_of(profiles / "torch" / name) if event.get("cat") == "fwdbwd"
    ]
    at: dict[tuple[str, Decimal], list[dict[str, Any]]] = {}
    for event in complete(profiles, name, "cpu_op"):
        at.setdefault((str(event["tid"]), event["ts"]), []).append(event)
    sides: dict[int, dict[str, set[tuple[int, str]]]] = {}
    for flow in flows:
        there = {
            (e["args"].get("Sequence number", -1), e["name"])
            for e in at[str(flow["tid"]), flow["ts"]]
        }
        sides.setdefault(flow["id"], {})[flow["ph"]] = there
    expected: Counter[tuple[str, str]] = Counter()
    for side in sides.values():
        (pair,) = {
            (f, b) for number, f in side["s"] for same, b in side["f"] if number == same >= 0
        }
        expected[pair] += 1
    found = operators.backward(*traced(profiles, name))
    pairs = found[found["operator"].notna()].set_index(["operator", "node"])["count"].to_dict()
    if name == real.NCCL_A100:  # on the thread of autograd all kernels belong to nodes
        of_thread = operators.summary(*traced(profiles, name), by="thread").set_index("thread")[
            "gpu_self_ns"
        ]
        assert of_thread[2919752] == found["backward_ns"].sum()
    assert links == expected.total()
    assert dict(expected) == pairs


@pytest.mark.parametrize(
    ("capture", "calls"),
    [("hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0", 18), ("extra-p__extrap__ex-gpu.s10", 8)],
)
def test_a_call_held_twice_waits_once(capture: str, calls: int, profiles: Path) -> None:
    # These exports hold cudaMemcpy and, inside it, cudaMemcpy_v3020.
    path = profiles / "nsys" / f"{capture}.sqlite"
    query = """
        SELECT end - start FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId
        WHERE value IN ('cudaMemcpy', 'cudaDeviceSynchronize', 'cudaFree') ORDER BY globalTid, start
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        outer = [ns for (ns,) in database.execute(query)]
    run = perfkit.load(path)
    waits = operators.synchronisations(run.ops, run.kernels, run.copies, run.api_calls)
    assert outer == waits["dur_ns"].tolist()
    held = run.api_calls["name"].isin(["cudaMemcpy", "cudaDeviceSynchronize", "cudaFree"])
    assert 2 * calls == 2 * len(outer) == held.sum()


def test_what_is_unexpected_in_real_runs(profiles: Path) -> None:
    found = operators.unexpected(*tables(profiles, real.XDIT_MI300, *WANTED))
    found = found.groupby("check")["name"].apply(list).to_dict()
    # The scheduler of the diffusion run looks a time step up.
    assert [["aten::item"], ["aten::nonzero"]] == [found["scalar read"], found["size from values"]]
    # SGD of 2021 multiplies by Python numbers, recorded as inputs of type double: its kernels compute in float.
    sgd = tables(profiles, real.V100_BEFORE, *WANTED)
    assert sgd[0]["dtypes"].astype(str).str.contains('"double"').any()
    assert "double precision" not in {*found, *operators.unexpected(*sgd)["check"]}
