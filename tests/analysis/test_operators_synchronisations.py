"""Calls that wait for the GPU: who asked for them, and how long the GPU was idle after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges
from ops import op, ops, python_calls

from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.operators import SYNCHRONISATIONS, synchronisation_summary, synchronisations
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS, OPS, PYTHON_CALLS

NONE = OPS.empty(), KERNELS.empty(), COPIES.empty(), API_CALLS.empty()


def call(start: int, end: int, name: str = "cudaLaunchKernel", correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A call of the CUDA API."""
    return {"start_ns": start, "dur_ns": end - start, "name": name, "correlation": correlation, **more}


def work(start: int, end: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A kernel."""
    return {"start_ns": start, "dur_ns": end - start, "correlation": correlation, **more}


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


def test_worked_by_hand() -> None:
    """Copy and synchronisation of an item end in the gap 105..160: 4 ns until the second call begins, 51 ns after.

    Both are the operator's doing: implicit, item > _local_scalar_dense.
    """
    found = synchronisations(ITEM, KERNEL, COPY, CALLS)
    assert ["cudaMemcpyAsync", "cudaStreamSynchronize"] == found["api"].tolist()
    assert [[30, 78], [109, 3]] == found[["start_ns", "dur_ns"]].to_numpy().tolist()
    assert [4, 51] == found["idle_ns"].tolist()
    assert {"implicit"} == set(found["kind"])
    assert {("aten::_local_scalar_dense", "aten::item")} == set(zip(found["operator"], found["outermost"], strict=True))
    assert [0, 0] == found["gpu"].tolist()
    assert found["line"].isna().all()


@pytest.mark.parametrize(
    ("name", "inside", "kind"),
    [
        ("cudaDeviceSynchronize", False, "explicit"),
        ("hipEventSynchronize", False, "explicit"),
        ("cuStreamSynchronize_ptsz", False, "explicit"),
        ("cudaStreamSynchronize", True, "implicit"),
        ("hipMemcpyWithStream", False, "implicit"),
        ("cudaFree", True, "implicit"),
    ],
)
def test_kinds(name: str, inside: bool, kind: str) -> None:
    """A call to synchronise outside of operators is explicit, everything else that waits is not."""
    frame = ops(op("aten::copy_", 0, 50)) if inside else OPS.empty()
    assert [kind] == synchronisations(frame, *NONE[1:3], api_calls(call(5, 9, name)))["kind"].tolist()


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "cudaEventQuery", "cudaMemcpyAsync", "cudaStreamWaitEvent"])
def test_calls_that_do_not_wait(name: str) -> None:
    """Launches, queries and asynchronous copies are no synchronisation."""
    assert synchronisations(*NONE[:3], api_calls(call(5, 9, name, 1))).empty


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


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<built-in method item of Tensor object at 0x7f>", "train.py(9): step"),
        ("torch/_tensor.py(5): wrapped", "train.py(9): step"),
        ("/opt/site-packages/torch/nn/modules/module.py(5): _call_impl", "train.py(9): step"),
        ("nn.Module: Net_0", "train.py(9): step"),
        ("contextlib.py(75): inner", "train.py(9): step"),
        ("multiprocessing/process.py(314): run", "train.py(9): step"),
        ("<frozen os>(791): encode", "train.py(9): step"),
        ("transformers/masks.py(243): ignore", "transformers/masks.py(243): ignore"),
        ("<ipython-input-3-ab>(1): <module>", "<ipython-input-3-ab>(1): <module>"),
        ("mytorch/net.py(3): forward", "mytorch/net.py(3): forward"),
        ("", ""),
    ],
)
def test_line_of_the_program(inner: str, expected: str) -> None:
    """The innermost frame that is not built in, PyTorch's or the standard library's; names are any text."""
    stack = python_calls(op("train.py(9): step", 0, 900), op(inner, 20, 140), op("<built-in f>", 200, 300))
    found = synchronisations(ITEM, KERNEL, COPY, CALLS, stack)
    assert [expected, expected] == found["line"].tolist()


def test_line_where_all_is_built_in() -> None:
    """Without a frame of the program the innermost of all is given; none on another thread or after it returned."""
    stack = python_calls(
        op("torch/a.py(1): f", 0, 150), op("<built-in g>", 20, 109), op("x.py(1): h", 0, 900, thread=2)
    )
    found = synchronisations(ITEM, KERNEL, COPY, CALLS, stack)
    assert ["<built-in g>", "torch/a.py(1): f"] == found["line"].tolist()


def test_busy_gpu_costs_nothing() -> None:
    """While a kernel of another stream runs on, the end of a wait lies in no gap: 0."""
    busy = kernels(work(20, 100, 1), work(160, 200, 3), work(50, 170, 9, stream=8))
    assert [0, 0] == synchronisations(ITEM, busy, COPY, CALLS)["idle_ns"].tolist()


def test_gap_before_the_wait_is_not_its() -> None:
    """A device that ran dry at 10 is waited for from 40 to 45, and works again at 60: 20 of 50 ns idle."""
    kernel = kernels(work(0, 10, 1), work(60, 70, 2))
    calls = api_calls(call(0, 1, correlation=1), call(40, 45, "cudaDeviceSynchronize"), call(55, 56, correlation=2))
    assert [20] == synchronisations(OPS.empty(), kernel, COPIES.empty(), calls)["idle_ns"].tolist()


@pytest.mark.parametrize(("start", "end"), [(0, 5), (190, 200), (195, 300)])
def test_nothing_before_or_after(start: int, end: int) -> None:
    """Before the first operation of the device and from the end of its last on, nothing tells what a wait costs."""
    calls = api_calls(call(start, end, "cudaDeviceSynchronize"))
    assert [True] == synchronisations(OPS.empty(), KERNEL, COPIES.empty(), calls)["idle_ns"].isna().tolist()


def test_device_of_the_thread() -> None:
    """A thread waits for the device on which it last started an operation; before any of two, for one not known."""
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


def test_only_device_of_a_rank() -> None:
    """A thread that started nothing waits for the only device of its rank."""
    calls = api_calls(call(101, 110, "cudaDeviceSynchronize", thread=9))
    found = synchronisations(OPS.empty(), KERNEL, COPIES.empty(), calls)
    assert [(0, 59)] == list(zip(found["gpu"], found["idle_ns"], strict=True))


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


def test_window_selects_by_start() -> None:
    """Only the call at 109 starts in 100..200."""
    assert [109] == synchronisations(ITEM, KERNEL, COPY, CALLS, window=(100, 200))["start_ns"].tolist()


def test_empty() -> None:
    """Nothing that waits, no rows, the columns of the table; the summary of none has its columns too."""
    assert SYNCHRONISATIONS.check(synchronisations(*NONE)).empty
    assert SYNCHRONISATIONS.check(synchronisations(*NONE, PYTHON_CALLS.empty())).empty
    none, some = (synchronisation_summary(synchronisations(*t)) for t in (NONE, (ITEM, KERNEL, COPY, CALLS)))
    assert none.empty
    assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()


def test_shift_changes_nothing() -> None:
    """A million ns later the same calls wait, at the same cost."""
    kernel, calls = random_waits(3)
    found = [
        synchronisations(OPS.empty(), k, COPIES.empty(), c)
        for k, c in (
            (kernel, calls),
            (kernel.assign(start_ns=kernel["start_ns"] + 10**6), calls.assign(start_ns=calls["start_ns"] + 10**6)),
        )
    ]
    pd.testing.assert_frame_equal(found[0].assign(start_ns=found[0]["start_ns"] + 10**6), found[1])


def test_wrong_arguments() -> None:
    """Foreign tables and a backward window are refused; the input is not changed."""
    with pytest.raises(SchemaError, match="'PYTHON_CALLS' does not match"):
        synchronisations(*NONE, kernels())
    with pytest.raises(SchemaError, match="'SYNCHRONISATIONS' does not match"):
        synchronisation_summary(ranges())
    with pytest.raises(ValueError, match="does not end after it starts"):
        synchronisations(*NONE, window=(5, 5))
    before = CALLS.copy()
    synchronisations(ITEM, KERNEL, COPY, CALLS)
    pd.testing.assert_frame_equal(before, CALLS)
