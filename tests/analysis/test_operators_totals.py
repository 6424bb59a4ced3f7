"""Operators and the kernels they launch: who launched, how long they take, and their backward."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call, span
from frames import api_calls, kernels, known, tuples
from ops import launch, launched, op, ops, random_launches, random_operators

from perfkit.analysis.operators import totals
from perfkit.tables import API_CALLS, KERNELS

NESTED = ops(op("aten::linear", 0, 100), op("aten::addmm", 20, 80), op("aten::empty", 30, 40))
ENGINE = "autograd::engine::evaluate_function: "
NONE = KERNELS.empty(), API_CALLS.empty()
FIGURES = "count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"
COLUMNS = ["operator", "node", "count", "forward_ns", "backward_ns"]


def operator_of(at: int, frame: pd.DataFrame = NESTED) -> str | None:
    """The operator of a kernel launched at a time."""
    found = totals.kernels_of(frame, *launched(launch(at, 500, 10)))["op"].iloc[0]
    return None if found < 0 else str(frame.loc[frame["op"] == found, "name"].item())


def test_innermost_operator_by_hand() -> None:
    bounds = {"linear": (0, 19, 80, 99), "addmm": (20, 40, 79), "empty": (30, 39)}
    expected = {at: f"aten::{name}" for name, times in bounds.items() for at in times} | {100: None}
    assert expected == {at: operator_of(at) for at in expected}
    # [50, 50) contains no moment. Of operators that begin at once the shorter has what is launched at that moment.
    assert "aten::linear" == operator_of(50, ops(op("aten::linear", 0, 100), op("aten::t", 50, 50)))
    assert "inner" == operator_of(10, ops(op("outer", 10, 90), op("inner", 10, 30)))
    # Operators whose parent was filtered out stand at the top.
    assert [-1, -1] == totals.parents(NESTED[NESTED["name"] != "aten::addmm"]).tolist()


def test_operators_count_per_thread_process_and_rank() -> None:
    for where in ({"thread": 2}, {"process": 2}, {"rank": 1}):
        kernel, call = launched(launch(50, 500, 10, **where))
        found = totals.kernels_of(NESTED, kernel.assign(process=where.get("process", 1)), call)
        assert [(-1, "outside")] == tuples(found, "op", "how")
    frame = ops(op("a", 0, 10), op("b", 0, 10, rank=1), op("c", 20, 30, rank=1))
    frame["op"] = [0, 0, 1]  # numbers begin anew in every rank
    tables = launched(launch(5, 50, 1), launch(25, 50, 1, rank=1), launch(5, 90, 1, rank=1))
    assert [(0, 0), (1, 1), (1, 0)] == tuples(totals.kernels_of(frame, *tables), "rank", "op")


def test_every_kernel_keeps_its_row_and_index() -> None:
    kernel = kernels(*(span(start, start + 5, correlation=start) for start in (200, 300, 400)))
    calls = api_calls(*(call(at, at + 1, correlation=of) for at, of in ((50, 200), (150, 300))))
    found = totals.kernels_of(NESTED, kernel.set_axis([7, 8, 9]), calls)
    assert [7, 8, 9] == found.index.tolist()
    assert [(1, "launch"), (-1, "outside"), (-1, "none")] == tuples(found, "op", "how")


def test_calls_that_launch_several_kernels_or_hold_another_call() -> None:
    kernel = kernels(*(span(s, s + 5, correlation=3, in_graph=True) for s in (200, 210, 220)))
    assert [0, 0, 0] == totals.kernels_of(
        NESTED, kernel, api_calls(call(85, 94, "cudaGraphLaunch", 3))
    )["op"].tolist()
    # Where a runtime and a driver call bear the id, the outer one, which begins first, says the operator.
    frame = ops(op("outer", 0, 100), op("inner", 52, 60))
    calls = api_calls(call(50, 70, correlation=4), call(53, 58, "cuLaunchKernel", 4))
    assert [0] == totals.kernels_of(frame, kernels(span(99, 100, correlation=4)), calls)[
        "op"
    ].tolist()


def by_name(found: pd.DataFrame, *columns: str) -> dict[str | None, tuple[Any, ...]]:
    """Columns by name, None for kernels without operator."""
    names = [name for (name,) in known(found, "name")]
    return dict(zip(names, tuples(found, *columns), strict=True))


def test_worked_by_hand() -> None:
    """linear 0..100 > addmm 20..80, and addmm 200..240; of four kernels the last has no operator."""
    frame = ops(op("aten::linear", 0, 100), op("aten::addmm", 20, 80), op("aten::addmm", 200, 240))
    launches = launch(10, 300, 10), launch(30, 320, 30), launch(210, 400, 20), launch(900, 950, 40)
    found = totals.summary(frame, *launched(*launches))
    assert by_name(found, *FIGURES, "gpu_share_frac") == {
        "aten::linear": (1, 100, 40, 40, 10, 1, 0.1),
        "aten::addmm": (2, 100, 100, 50, 50, 2, 0.5),
        None: (0, 0, 0, 40, 40, 1, 0.4),
    }
    means = found.set_index("name")["cpu_self_mean_ns"]
    assert [40.0, 50.0] == [means["aten::linear"], means["aten::addmm"]]
    assert means[means.index.isna()].isna().all()


def test_an_operator_in_itself_counts_once_in_totals() -> None:
    """copy_ 0..90 > to 10..80 > copy_ 20..70: copy_ takes 90 in all, not 140; itself 90 - 70 + 50 = 70."""
    frame = ops(op("aten::copy_", 0, 90), op("aten::to", 10, 80), op("aten::copy_", 20, 70))
    found = by_name(totals.summary(frame, *launched(launch(30, 100, 5))), *FIGURES)
    assert {"aten::copy_": (2, 90, 70, 5, 5, 1), "aten::to": (1, 70, 20, 5, 0, 0)} == found


def test_by_shapes_and_by_thread() -> None:
    shapes = ["[[2,3]]", "[[4,5]]", "[[2,3]]", None]
    frame = ops(
        *(op("aten::relu", 100 * i, 100 * i + 50, shapes=shape) for i, shape in enumerate(shapes))
    )
    found = totals.summary(frame, *NONE, by=("name", "shapes"))
    assert [2, 1, 1] == found["count"].tolist()
    assert ["[[2,3]]", "[[4,5]]"] == found["shapes"].dropna().tolist()
    nested = ops(
        op("aten::copy_", 0, 90, shapes="[[1]]"), op("aten::copy_", 20, 70, shapes="[[2]]")
    )
    assert [90, 50] == sorted(
        totals.summary(nested, *NONE, by=["name", "shapes"])["cpu_total_ns"], reverse=True
    )
    # By thread the totals are those of the operators at the top.
    frame = ops(op("a", 0, 100), op("b", 20, 80), op("a", 200, 240), op("b", 0, 30, thread=2))
    assert [(1, 140), (2, 30)] == sorted(
        tuples(totals.summary(frame, *NONE, by="thread"), "thread", "cpu_total_ns")
    )


def test_window_cuts_both_sides() -> None:
    frame = ops(op("early", 0, 10), op("aten::linear", 10, 100), op("aten::addmm", 20, 80))
    launches = launch(5, 60, 20), launch(30, 140, 30), launch(31, 150, 30)
    assert by_name(totals.summary(frame, *launched(*launches), window=(50, 150)), *FIGURES) == {
        "aten::linear": (1, 50, 20, 10, 0, 0),
        "aten::addmm": (1, 30, 30, 10, 10, 1),
        "early": (0, 0, 0, 20, 20, 1),  # not there, but its kernel is
    }
    some = random_operators(8), *random_launches(8)
    for by in totals.KEYS:
        pd.testing.assert_frame_equal(
            totals.summary(*some, by=by), totals.summary(*some, by=by, window=(-1, 100_000))
        )


@pytest.mark.parametrize("by", ["name", ("name", "shapes"), ("rank", "thread")])
@pytest.mark.parametrize("window", [None, (200, 700), (990, 1300), (5000, 6000)])
def test_parts_agree_with_their_own_join(window: Any, by: Any) -> None:
    ops, (kernels, calls) = random_operators(1), random_launches(1)
    index = totals.Operators(ops, kernels, calls)
    whole = totals.summary(ops, kernels, calls, by=by, window=window)
    pd.testing.assert_frame_equal(whole, index.summary(by=by, window=window))
    assert window or whole["gpu_share_frac"].sum() == pytest.approx(1, rel=1e-12)
    for rank in (0, 1):
        mine = [np.flatnonzero(table["rank"] == rank) for table in (ops, kernels, calls)]
        few = mine[1][kernels["name"].iloc[mine[1]].isin(["k1", "k3"])]
        for rows in (mine[1], few, few[:0]):
            expected = totals.summary(
                ops.iloc[mine[0]], kernels.iloc[rows], calls.iloc[mine[2]], by=by, window=window
            )
            found = index.summary(by=by, window=window, ops=mine[0], kernels=rows)
            pd.testing.assert_frame_equal(expected, found)
    some = np.arange(0, len(kernels), 7)
    expected = totals.summary(ops, kernels.iloc[some], calls, by=by, window=window)
    pd.testing.assert_frame_equal(expected, index.summary(by=by, window=window, kernels=some))


def node(
    name: str, start: int, end: int, sequence: int = -1, thread: int = 2
) -> list[dict[str, Any]]:
    outer = op(ENGINE + name, start, end, sequence=sequence, thread=thread)
    return [outer, op(name, start + 1, end - 1, sequence=sequence, thread=thread)]


def rows(*tables: pd.DataFrame, **more: Any) -> list[list[Any]]:
    """The rows as lists, None where the operator is missing."""
    return [[*row] for row in known(totals.backward(*tables, **more), *COLUMNS)]


MM_BACKWARD = node("MmBackward0", 20, 40, 3)


def test_backward_by_hand() -> None:
    linear = [op("aten::linear", 0, 90, sequence=7), op("aten::t", 10, 20, sequence=7)]
    linear += [op("aten::addmm", 30, 80, sequence=8)]
    nodes = (
        *node("AddmmBackward0", 200, 290, 8),
        op("aten::mm", 210, 250, thread=2),
        *node("TBackward0", 300, 310, 7),
    )
    forward, of_mm = launch(40, 100, 10), launch(220, 300, 15, thread=2)
    frame, others = ops(*linear, *nodes), (launch(260, 320, 5, thread=2), launch(85, 400, 99))
    tables = frame, *launched(forward, of_mm, *others)
    # TBackward0 is t's, which starts last of the two with number 7; addmm launches 10 ns, its node 5 and, in mm, 15.
    assert [
        ["aten::addmm", "AddmmBackward0", 1, 10, 20],
        ["aten::t", "TBackward0", 1, 0, 0],
    ] == rows(*tables)
    assert [(2.0,), (None,)] == known(totals.backward(*tables), "ratio")
    cut = rows(frame, *launched(forward, of_mm), window=(105, 310))
    assert ["aten::addmm", "AddmmBackward0", 1, 5, 10] == cut[0]


def test_nodes_of_early_profilers_and_without_number() -> None:
    frame = ops(op("aten::mm", 0, 9, sequence=3), op("MmBackward", 20, 40, sequence=3, thread=2))
    kernel, call = launched(launch(5, 50, 4), launch(25, 60, 6, thread=2))
    # Until 2021 the engine's call was not recorded: the node alone is the backward.
    assert [["aten::mm", "MmBackward", 1, 4, 6]] == rows(frame, kernel, call)
    alone = launched(launch(25, 60, 6, thread=2))
    for name in (
        "torch::autograd::AccumulateGrad",
        "struct torch::autograd::AccumulateGrad",
        "CopyBackwards",
    ):
        assert [[None, name, 1, 0, 6]] == rows(ops(*node(name, 20, 40)), *alone)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([*MM_BACKWARD, op("aten::mm", 50, 60, sequence=3)], [[None, "MmBackward0", 1, 0, 0]]),
        (
            [op("aten::mm", 0, 9, sequence=3, rank=1), *MM_BACKWARD],
            [[None, "MmBackward0", 1, 0, 0]],
        ),
        ([op("aten::convolution_backward", 0, 9, sequence=3), op("## backward ##", 20, 30)], []),
    ],
    ids=["forward before the capture", "other rank", "no nodes"],
)
def test_nodes_whose_operator_is_not_there(
    spans: list[dict[str, Any]], expected: list[list[Any]]
) -> None:
    assert expected == rows(ops(*spans), *NONE)


def test_recomputed_operators_are_not_the_forward() -> None:
    again = op(
        "aten::mm", 25, 30, sequence=3, thread=2
    )  # by a checkpoint, with a number of that thread
    frame = ops(op("aten::relu", 0, 9, sequence=3), *node("ReluBackward0", 20, 40, 3), again)
    kernel, call = launched(launch(5, 50, 4), launch(26, 60, 6, thread=2))
    assert [["aten::relu", "ReluBackward0", 1, 4, 6]] == rows(frame, kernel, call)
    # Where a backward pass runs twice over one graph, the forward time counts once.
    frame = ops(op("aten::mm", 0, 9, sequence=3), *MM_BACKWARD, *node("MmBackward0", 50, 70, 3))
    kernel, call = launched(
        launch(5, 50, 4), launch(25, 60, 6, thread=2), launch(55, 80, 8, thread=2)
    )
    assert [["aten::mm", "MmBackward0", 2, 4, 14]] == rows(frame, kernel, call)


def test_nodes_run_within_a_node() -> None:
    """A reentrant checkpoint has 3 ns of its own and recomputes mm for 6; the MmBackward0 that it runs takes 9."""
    frame = ops(
        *node("CheckpointFunctionBackward", 20, 90, 5),
        op("aten::mm", 30, 40, sequence=2, thread=2),
        *node("MmBackward0", 50, 70, 2),
        op("aten::mul", 0, 5, sequence=2),
    )
    launches = (
        launch(25, 100, 3, thread=2),
        launch(31, 110, 6, thread=2),
        launch(55, 120, 9, thread=2),
    )
    expected = [["aten::mm", "MmBackward0", 1, 6, 9], [None, "CheckpointFunctionBackward", 1, 0, 9]]
    assert expected == sorted(rows(frame, *launched(*launches)), key=lambda row: row[0] is None)
