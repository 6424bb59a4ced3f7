"""Operators with many short kernels, and operators that should not be there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges
from ops import launch, launched, op, ops

from perfkit.analysis.operators import CHECKS, many_small, unexpected
from perfkit.analysis.steps import STEPS
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS, OPS

NONE = OPS.empty(), KERNELS.empty(), COPIES.empty(), API_CALLS.empty()
LOOP = ops(op("aten::add_", 0, 100), op("aten::mm", 100, 200))
SHORT = launched(
    launch(10, 1_000, 2_000),
    launch(40, 4_000, 4_000),
    launch(90, 9_000, 9_000),
    launch(120, 20_000, 85_000),
    launch(900, 200_000, 0),
)


def steps(*bounds: tuple[int, int]) -> pd.DataFrame:
    """Steps of rank 0 from start to end."""
    rows = [
        {"rank": 0, "step": i, "start_ns": a, "dur_ns": b - a, "name": "s", "how": "nvtx", "steady": True}
        for i, (a, b) in enumerate(bounds)
    ]
    return STEPS.make(pd.DataFrame(rows))


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


def test_median_at_the_limit_is_not_short() -> None:
    """A median of 4 us is not below 4 us."""
    assert 2 == len(many_small(LOOP, *SHORT, below_ns=4_001))
    assert 1 == len(many_small(LOOP, *SHORT, below_ns=4_000))


def test_kernels_per_step() -> None:
    """Of add_'s kernels at 1, 4 and 9 us two start in the steps 0..2 us and 3..9 us: one per step."""
    found = many_small(LOOP, *SHORT, steps=steps((0, 2_000), (3_000, 9_000)))
    assert [1.0, 0.0] == found["per_step_count"].tolist()


def test_graph_launches_have_no_interval() -> None:
    """Two graphs of two nodes are launched 50 ns apart, but nodes are not launched one by one."""
    nodes = kernels(*({"start_ns": 100 * i, "dur_ns": 9, "correlation": i // 2, "in_graph": True} for i in range(4)))
    calls = api_calls(*({"start_ns": 50 * i, "dur_ns": 5, "name": "cudaGraphLaunch", "correlation": i} for i in (0, 1)))
    assert np.isnan(many_small(LOOP, nodes, calls)["interval_ns"]).all()


def test_intervals_stay_on_a_thread() -> None:
    """The next launch of another thread is no end of an interval."""
    found = many_small(LOOP, *launched(launch(10, 100, 5), launch(20, 110, 5, thread=2)))
    assert found["interval_ns"].isna().all()


def test_many_small_in_a_window() -> None:
    """Kernels that start in 4..9 us are one of add_, whole."""
    found = many_small(LOOP, *SHORT, window=(4_000, 9_000))
    assert [[1, 4_000]] == found[["count", "total_ns"]].to_numpy().tolist()


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


def call(at: int, name: str, correlation: int = -1) -> dict[str, Any]:
    """A call of the CUDA API of 1 ns."""
    return {"start_ns": at, "dur_ns": 1, "name": name, "correlation": correlation}


def checks(*tables: pd.DataFrame, **more: Any) -> list[tuple[str, str, int, int, int]]:
    """Check, operator, count, CPU time and GPU time of what is unexpected."""
    found = unexpected(*tables, **more)
    columns = ["check", "name", "count", "cpu_total_ns", "gpu_total_ns"]
    return list(found[columns].itertuples(index=False, name=None))


def test_scalar_read_by_hand() -> None:
    """is_nonzero 0..50 > item > _local_scalar_dense copies 2 ns to the host and waits: once, and the copy besides.

    An item of a tensor on the CPU calls nothing and is left out.
    """
    nested = op("aten::is_nonzero", 0, 50), op("aten::item", 5, 45), op("aten::_local_scalar_dense", 10, 40)
    moved = copies({"start_ns": 15, "dur_ns": 2, "direction": "D2H", "dst_memory": "pageable", "correlation": 1})
    calls = api_calls(call(12, "cudaMemcpyAsync", 1), call(18, "cudaStreamSynchronize"))
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
    tables = KERNELS.empty(), COPIES.empty(), api_calls(call(5, calls))
    assert [(check, name, 1, 9, 0)] == checks(ops(op(name, 0, 9), op(name, 20, 30)), *tables)
    other = "cudaLaunchKernel" if check == "memory from the driver" else calls
    assert [] == checks(ops(op("aten::relu", 0, 9)), *tables[:2], api_calls(call(5, other)))


@pytest.mark.parametrize(
    ("direction", "memory", "expected"),
    [
        ("H2D", {"src_memory": "pageable"}, ["pageable host to device copy"]),
        ("H2D", {"src_memory": "pinned"}, []),
        ("D2H", {"dst_memory": "pinned"}, ["device to host copy"]),
        ("D2D", {"src_memory": "device"}, []),
    ],
)
def test_copies(direction: str, memory: dict[str, str], expected: list[str]) -> None:
    """Copies to the host, and those from pageable memory, are unexpected; prefetched and device copies are not."""
    moved = copies({"start_ns": 15, "dur_ns": 2, "direction": direction, "correlation": 1, **memory})
    found = checks(ops(op("aten::copy_", 0, 9)), KERNELS.empty(), moved, api_calls(call(5, "cudaMemcpyAsync", 1)))
    assert expected == [check for check, *_ in found]


def test_layout_copy() -> None:
    """contiguous counts where a kernel runs in it, be it launched by the copy_ that it calls."""
    frame = ops(op("aten::contiguous", 0, 50), op("aten::copy_", 10, 40), op("aten::contiguous", 60, 70))
    kernel, calls = launched(launch(20, 100, 7))
    assert [("layout copy", "aten::contiguous", 1, 50, 7)] == checks(frame, kernel, COPIES.empty(), calls)


@pytest.mark.parametrize(("full_name", "count"), [("f<double>(int)", 1), ("f<float>(int)", 0)])
def test_double_precision(full_name: str, count: int) -> None:
    """The kernel's name decides: a Python number is recorded as "double" too, and is computed with in float."""
    kernel, calls = launched(launch(5, 100, 7, full_name))
    frame = ops(op("aten::mul", 0, 9, dtypes='["float","double"]'))
    found = checks(frame, kernel, COPIES.empty(), calls)
    assert [("double precision", "aten::mul", 1, 9, 7)] * count == found


def test_window_cuts_operators() -> None:
    """Of a nonzero 0..9 the window 4..20 holds 5 ns, of one at 30..40 nothing."""
    frame = ops(op("aten::nonzero", 0, 9), op("aten::nonzero", 30, 40))
    calls = api_calls(call(2, "cudaStreamSynchronize"), call(32, "cudaStreamSynchronize"))
    found = checks(frame, KERNELS.empty(), COPIES.empty(), calls, window=(4, 20))
    assert [("size from values", "aten::nonzero", 1, 5, 0)] == found


def test_order_and_words() -> None:
    """Rows come in the order of the checks, the most time first, each with why and what to do."""
    frame = ops(op("aten::mm", 0, 9), op("aten::bmm", 20, 40), op("aten::nonzero", 50, 55))
    calls = api_calls(call(5, "cudaMalloc"), call(25, "cudaMalloc"), call(52, "cudaEventQuery"))
    found = unexpected(frame, KERNELS.empty(), COPIES.empty(), calls)
    assert ["aten::nonzero", "aten::bmm", "aten::mm"] == found["name"].tolist()
    said = {check.check: (check.why, check.instead) for check in CHECKS}
    assert [said[check] for check in found["check"]] == list(zip(found["why"], found["instead"], strict=True))


def test_checks_are_named_once() -> None:
    """Every check has a name of its own."""
    assert len(CHECKS) == len({check.check for check in CHECKS})


def test_nothing_unexpected() -> None:
    """No operators, no rows, the same columns and types; foreign tables and backward windows are refused."""
    some = unexpected(ops(op("aten::nonzero", 0, 9)), *NONE[1:3], api_calls(call(5, "cudaMemcpy")))
    assert unexpected(*NONE).empty
    assert some.dtypes.astype(str).to_dict() == unexpected(*NONE).dtypes.astype(str).to_dict()
    with pytest.raises(SchemaError, match="'COPIES' does not match"):
        unexpected(*NONE[:2], ranges(), NONE[3])
    with pytest.raises(ValueError, match="does not end after it starts"):
        unexpected(*NONE, window=(5, 5))
