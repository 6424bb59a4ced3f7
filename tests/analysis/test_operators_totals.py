"""Operators and the kernels they launch: who launched, how long they take, and their backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call, span
from frames import api_calls, copies, kernels, ranges, tuples
from ops import launch, launched, op, ops, random_launches, random_operators

from perfkit.analysis import operators
from perfkit.analysis.operators.totals import (
    KEYS,
    Operators,
    backward,
    kernels_of,
    outermost,
    parents,
    rolled_up,
    summary,
)
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS

NESTED = ops(op("aten::linear", 0, 100), op("aten::addmm", 20, 80), op("aten::empty", 30, 40))
ENGINE = "autograd::engine::evaluate_function: "
NONE = KERNELS.empty(), API_CALLS.empty()
FIGURES = "count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"
COLUMNS = ["operator", "node", "count", "forward_ns", "backward_ns"]
LINEAR = [
    op("aten::linear", 0, 90, sequence=7),
    op("aten::t", 10, 20, sequence=7),
    op("aten::addmm", 30, 80, sequence=8),
]


def operator_of(at: int, frame: pd.DataFrame = NESTED, **call: Any) -> int:
    """Number of the operator of a kernel launched at a time; -1 none."""
    return int(kernels_of(frame, *launched(launch(at, 500, 10, **call)))["op"].iloc[0])


@pytest.mark.parametrize(
    ("at", "expected"), [(0, 0), (19, 0), (20, 1), (30, 2), (39, 2), (40, 1), (79, 1), (80, 0), (99, 0), (100, -1)]
)
def test_innermost_operator_by_hand(at: int, expected: int) -> None:
    """Of operators [0, 100) > [20, 80) > [30, 40) the innermost that contains the start of the call launched it."""
    assert expected == operator_of(at)


@pytest.mark.parametrize("where", [{"thread": 2}, {"process": 2}, {"rank": 1}])
def test_other_threads_processes_and_ranks(where: dict[str, int]) -> None:
    """An operator at the same time on another thread or rank launched nothing here."""
    kernel, call = launched(launch(50, 500, 10, **where))
    found = kernels_of(NESTED, kernel.assign(process=where.get("process", 1)), call)
    assert [(-1, "outside")] == tuples(found, "op", "how")


def test_every_kernel_keeps_its_row() -> None:
    """Launched inside, outside of operators, and without a recorded call: three rows, and the index of the kernels."""
    kernel = kernels(*(span(start, start + 5, correlation=start) for start in (200, 300, 400)))
    calls = api_calls(*(call(at, at + 1, correlation=of) for at, of in ((50, 200), (150, 300))))
    found = kernels_of(NESTED, kernel.set_axis([7, 8, 9]), calls)
    assert [7, 8, 9] == found.index.tolist()
    assert [(1, "launch"), (-1, "outside"), (-1, "none")] == tuples(found, "op", "how")


def test_calls_that_launch_several_kernels_or_hold_another_call() -> None:
    """Three kernels of one cudaGraphLaunch have the operator around it.

    Where a runtime and a driver call bear the id, the outer one, which begins first, says the operator.
    """
    kernel = kernels(*(span(s, s + 5, correlation=3, in_graph=True) for s in (200, 210, 220)))
    assert [0, 0, 0] == kernels_of(NESTED, kernel, api_calls(call(85, 94, "cudaGraphLaunch", 3)))["op"].tolist()
    frame = ops(op("outer", 0, 100), op("inner", 52, 60))
    calls = api_calls(call(50, 70, correlation=4), call(53, 58, "cuLaunchKernel", 4))
    assert [0] == kernels_of(frame, kernels(span(99, 100, correlation=4)), calls)["op"].tolist()


def test_operators_of_no_duration_and_of_one_start() -> None:
    """[50, 50) contains no moment. Of operators that begin at once the shorter has what is launched at that moment."""
    assert 0 == operator_of(50, ops(op("aten::linear", 0, 100), op("aten::t", 50, 50)))
    frame = ops(op("outer", 10, 90), op("inner", 10, 30))
    assert ["inner"] == frame.loc[frame["op"] == operator_of(10, frame), "name"].tolist()


def test_operators_count_per_rank() -> None:
    """Operator 0 of rank 1 is not operator 0 of rank 0."""
    frame = ops(op("a", 0, 10), op("b", 0, 10, rank=1), op("c", 20, 30, rank=1))
    frame["op"] = [0, 0, 1]
    kernel, call = launched(launch(5, 50, 1), launch(25, 50, 1, rank=1), launch(5, 90, 1, rank=1))
    found = kernels_of(frame, kernel, call)
    assert [(0, 0), (1, 1), (1, 0)] == tuples(found, "rank", "op")


def test_window_selects_by_start() -> None:
    """Kernels that start in 200..300 are kept whole, others left out, with their index."""
    kernel, call = launched(launch(50, 199, 50), launch(51, 200, 500), launch(52, 300, 1))
    assert [1] == kernels_of(NESTED, kernel, call, window=(200, 300)).index.tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kernels_of_by_looking_at_every_operator(seed: int) -> None:
    """The operator is the shortest of all that contain the call on its rank and thread."""
    frame, (kernel, call) = random_operators(seed), random_launches(seed)
    of = dict(zip(call["correlation"], call.itertuples(), strict=True))
    expected = []
    for row in kernel.itertuples():
        at = of[row.correlation]
        same = frame[(frame["rank"] == at.rank) & (frame["thread"] == at.thread)]
        around = same[(same["start_ns"] <= at.start_ns) & (at.start_ns < same["start_ns"] + same["dur_ns"])]
        # Of two that start and end together the second, the inner one.
        around = around.sort_values(["dur_ns", "op"], ascending=[True, False])
        expected.append(around["op"].iloc[0] if len(around) else -1)
    assert expected == kernels_of(frame, kernel, call)["op"].tolist()


def test_tree_by_climbing() -> None:
    """Parents, sums and outermost operators are what climbing from every operator gives."""
    frame = random_operators(4)
    row_of = {(row.rank, row.op): place for place, row in enumerate(frame.itertuples())}
    up = [row_of.get((row.rank, row.parent), -1) for row in frame.itertuples()]
    assert up == parents(frame).tolist()
    values, kind = np.arange(len(up)) % 7, frame["name"].cat.codes.to_numpy()
    total, alone = values.copy(), np.ones(len(up), bool)
    for place in range(len(up)):
        above = up[place]
        while above >= 0:
            total[above] += values[place]
            alone[place] &= kind[above] != kind[place]
            above = up[above]
    assert total.tolist() == rolled_up(values, parents(frame)).tolist()
    assert alone.tolist() == outermost(parents(frame), kind, np.arange(len(up))).tolist()


def test_part_of_the_operators() -> None:
    """Operators whose parent was filtered out stand at the top; one that launched nothing itself can be found still."""
    part = NESTED[NESTED["name"] != "aten::addmm"]
    assert [-1, -1] == parents(part).tolist()


def test_launched_by_hand() -> None:
    """addmm launches a for 10 and b twice for 20 and 40; linear a for 5; 7 ns of c have no operator: 82 ns in all.

    Of a kernel 200..210 the window 205..300 holds 5 ns.
    """
    of_addmm = launch(25, 200, 10, "a"), launch(26, 220, 20, "b"), launch(27, 250, 40, "b")
    found = operators.launched(NESTED, *launched(*of_addmm, launch(90, 300, 5, "a"), launch(400, 500, 7, "c")))
    found["operator"] = found["operator"].astype(object).where(found["operator"].notna(), None)
    assert tuples(found, "operator", "kernel", "count", "total_ns", "share_frac") == [
        ("aten::addmm", "b", 2, 60, 60 / 82),
        ("aten::addmm", "a", 1, 10, 10 / 82),
        (None, "c", 1, 7, 7 / 82),
        ("aten::linear", "a", 1, 5, 5 / 82),
    ]
    assert [5] == operators.launched(NESTED, *launched(of_addmm[0]), window=(205, 300))["total_ns"].tolist()


def test_launched_adds_up() -> None:
    """Counts and times of all rows are those of all kernels, with and without operator."""
    kernel, call = random_launches(5)
    found = operators.launched(random_operators(5), kernel, call)
    assert (len(kernel), kernel["dur_ns"].sum()) == (found["count"].sum(), found["total_ns"].sum())


def by_name(found: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    """The rows by name, None for kernels without operator."""
    rows = found.astype({"name": object}).to_dict("records")
    return {name if isinstance(name := row.pop("name"), str) else None: row for row in rows}


def test_worked_by_hand() -> None:
    """linear 0..100 calls addmm 20..80, and another addmm runs 200..240; kernels of 10, 30 and 20, one alone of 40.

    CPU: linear total 100, self 100 - 60 = 40; addmm total 60 + 40 = 100, self 100 of two: mean 50. GPU: the 30 and the
    20 were launched by addmm, linear launched the 10 itself and has 10 + 30 = 40 in all; shares of 100 ns.
    """
    frame = ops(op("aten::linear", 0, 100), op("aten::addmm", 20, 80), op("aten::addmm", 200, 240))
    launches = launch(10, 300, 10), launch(30, 320, 30), launch(210, 400, 20), launch(900, 950, 40)
    found = by_name(summary(frame, *launched(*launches)))
    columns = *FIGURES, "gpu_share_frac"
    assert {name: tuple(row[column] for column in columns) for name, row in found.items()} == {
        "aten::linear": (1, 100, 40, 40, 10, 1, 0.1),
        "aten::addmm": (2, 100, 100, 50, 50, 2, 0.5),
        None: (0, 0, 0, 40, 40, 1, 0.4),
    }
    means = [found[name]["cpu_self_mean_ns"] for name in ("aten::linear", "aten::addmm", None)]
    assert [40.0, 50.0, np.nan] == pytest.approx(means, rel=0, abs=0, nan_ok=True)


def test_without_kernels_the_longest_on_the_cpu_comes_first() -> None:
    """a runs three times for 5 ns, b for 100 ns with c in 70 of them: c has 70 ns of its own, b 30, a 15."""
    frame = ops(*(op("a", at, at + 5) for at in (0, 10, 20)), op("b", 100, 200), op("c", 110, 180))
    assert ["c", "b", "a"] == summary(frame, KERNELS.empty(), API_CALLS.empty())["name"].astype(str).tolist()


def test_an_operator_in_itself_counts_once_in_totals() -> None:
    """copy_ 0..90 > to 10..80 > copy_ 20..70: copy_ takes 90 in all, not 140; itself 90 - 70 + 50 = 70, in two.

    The kernel of 5 ns that the inner copy_ launched is in the total of copy_ once, and in that of to.
    """
    frame = ops(op("aten::copy_", 0, 90), op("aten::to", 10, 80), op("aten::copy_", 20, 70))
    found = by_name(summary(frame, *launched(launch(30, 100, 5))))
    assert (2, 90, 70, 5, 5, 1) == tuple(found["aten::copy_"][column] for column in FIGURES)
    assert (1, 70, 20, 5, 0, 0) == tuple(found["aten::to"][column] for column in FIGURES)


def test_by_shapes() -> None:
    """One operator with two shapes makes a row each; a shape that was not recorded is a shape of its own.

    An operator nested in one of its name with other shapes counts in the totals of its own.
    """
    shapes = ["[[2,3]]", "[[4,5]]", "[[2,3]]", None]
    frame = ops(*(op("aten::relu", 100 * i, 100 * i + 50, shapes=shape) for i, shape in enumerate(shapes)))
    found = summary(frame, *NONE, by=("name", "shapes"))
    assert [2, 1, 1] == found["count"].tolist()
    assert ["[[2,3]]", "[[4,5]]"] == found["shapes"].dropna().tolist()
    nested = ops(op("aten::copy_", 0, 90, shapes="[[1]]"), op("aten::copy_", 20, 70, shapes="[[2]]"))
    assert [90, 50] == sorted(summary(nested, *NONE, by=["name", "shapes"])["cpu_total_ns"], reverse=True)


def test_by_thread_adds_up_the_outermost() -> None:
    """By thread the totals are those of the operators at the top: 100 and 40 ns of thread 1, 30 of thread 2."""
    frame = ops(op("a", 0, 100), op("b", 20, 80), op("a", 200, 240), op("b", 0, 30, thread=2))
    found = summary(frame, KERNELS.empty(), API_CALLS.empty(), by="thread")
    assert {1: 140, 2: 30} == dict(zip(found["thread"], found["cpu_total_ns"], strict=True))


def test_window_cuts_both_sides() -> None:
    """In 50..150 linear 0..100 has 50 ns, its addmm 20..80 30 ns of them; of a kernel 140..170 it holds 10 ns.

    A kernel that the operator before the window launched counts with an operator that is not there: count 0.
    """
    frame = ops(op("early", 0, 10), op("aten::linear", 10, 100), op("aten::addmm", 20, 80))
    launches = launch(5, 60, 20), launch(30, 140, 30), launch(31, 150, 30)
    found = by_name(summary(frame, *launched(*launches), window=(50, 150)))
    assert (1, 50, 20, 10, 0, 0) == tuple(found["aten::linear"][column] for column in FIGURES)
    assert (1, 30, 30, 10, 10, 1) == tuple(found["aten::addmm"][column] for column in FIGURES)
    assert (0, 0, 0, 20, 20, 1) == tuple(found["early"][column] for column in FIGURES)


def test_window_around_everything_changes_nothing() -> None:
    """Cut at a window that holds all, every figure is that of no window."""
    some = random_operators(8), *random_launches(8)
    for by in KEYS:
        pd.testing.assert_frame_equal(summary(*some, by=by), summary(*some, by=by, window=(-1, 100_000)))


@pytest.mark.parametrize("by", ["name", ("name", "rank"), "rank", ("rank", "process", "thread", "name"), "dtypes"])
def test_rows_add_up(by: Any) -> None:
    """Self times and kernels of all rows add up to those of the tables, and shares to 1, however they are grouped."""
    frame, (kernel, call) = random_operators(9), random_launches(9)
    found = summary(frame, kernel, call, by=by)
    assert len(frame) == found["count"].sum()
    assert frame["self_ns"].sum() == found["cpu_self_ns"].sum()
    assert (len(kernel), kernel["dur_ns"].sum()) == (found["kernel_count"].sum(), found["gpu_self_ns"].sum())
    assert found["gpu_share_frac"].sum() == pytest.approx(1, rel=1e-12)
    assert (found["gpu_total_ns"] >= found["gpu_self_ns"]).all()


def test_totals_by_counting_nanoseconds() -> None:
    """The total time of a name is the number of ns in which any operator of it runs, per rank and thread."""
    frame = random_operators(10)
    moments: dict[str, set[tuple[int, int, int]]] = {}
    for row in frame.itertuples():
        during = range(row.start_ns, row.start_ns + row.dur_ns)
        moments.setdefault(row.name, set()).update((row.rank, row.thread, at) for at in during)
    found = summary(frame, KERNELS.empty(), API_CALLS.empty()).set_index("name")["cpu_total_ns"]
    assert {name: len(during) for name, during in moments.items()} == found.to_dict()


def test_kernels_alone() -> None:
    """Without operators all kernels stand in one row without a name; with rank among the keys in one per rank.

    Where no kernel lasts, shares are 0 of 0: NaN.
    """
    tables = OPS.empty(), *launched(launch(1, 5, 10), launch(2, 6, 30, rank=1))
    assert [(0, 40, 2, 1.0)] == tuples(summary(*tables), "count", "gpu_self_ns", "kernel_count", "gpu_share_frac")
    assert [1, 0] == summary(*tables, by=("rank", "name"))["rank"].tolist()
    assert summary(ops(op("a", 0, 9)), kernels(span(1, 1)), api_calls())["gpu_share_frac"].isna().all()


@pytest.mark.parametrize("by", ["parent", (), ("name", "stream")])
def test_wrong_keys_and_windows_are_refused(by: Any) -> None:
    """A key that is no key of operators, or none, with the legal ones; by the index as by the analysis."""
    index = Operators(OPS.empty(), *NONE)
    assert index.summary().empty
    for refuse in (index.summary, partial(summary, OPS.empty(), *NONE)):
        with pytest.raises(ValueError, match=r"by: .* is not one or more of \['name', 'shapes'"):
            refuse(by=by)
        with pytest.raises(ValueError, match="does not end after it starts"):
            refuse(window=(4, 4))


@pytest.mark.parametrize("by", ["name", ("name", "shapes"), ("rank", "thread")])
@pytest.mark.parametrize("window", [None, (200, 700), (990, 1300), (5000, 6000)])
@pytest.mark.parametrize("seed", range(2))
def test_parts_agree_with_their_own_join(seed: int, window: Any, by: Any) -> None:
    """All of it, each rank, some kernels, some kernels of a rank, and no kernel at all."""
    ops, (kernels, calls) = random_operators(seed), random_launches(seed)
    index = Operators(ops, kernels, calls)
    pd.testing.assert_frame_equal(
        summary(ops, kernels, calls, by=by, window=window), index.summary(by=by, window=window)
    )
    for rank in (0, 1):
        mine = [np.flatnonzero(table["rank"] == rank) for table in (ops, kernels, calls)]
        few = mine[1][kernels["name"].iloc[mine[1]].isin(["k1", "k3"])]
        for rows in (mine[1], few, few[:0]):
            expected = summary(ops.iloc[mine[0]], kernels.iloc[rows], calls.iloc[mine[2]], by=by, window=window)
            found = index.summary(by=by, window=window, ops=mine[0], kernels=rows)
            pd.testing.assert_frame_equal(expected, found)
    some = np.arange(0, len(kernels), 7)
    expected = summary(ops, kernels.iloc[some], calls, by=by, window=window)
    pd.testing.assert_frame_equal(expected, index.summary(by=by, window=window, kernels=some))


def node(name: str, start: int, end: int, sequence: int = -1, thread: int = 2) -> list[dict[str, Any]]:
    """A node of autograd: the engine's call, and what it calls a ns later."""
    outer = op(ENGINE + name, start, end, sequence=sequence, thread=thread)
    return [outer, op(name, start + 1, end - 1, sequence=sequence, thread=thread)]


def rows(*tables: pd.DataFrame, **more: Any) -> list[list[Any]]:
    """The rows as lists, None where the operator is missing."""
    found = backward(*tables, **more)[COLUMNS].astype(object)
    return found.where(found.notna(), None).to_numpy().tolist()


BACKWARD = [*node("AddmmBackward0", 200, 290, 8), op("aten::mm", 210, 250, thread=2), *node("TBackward0", 300, 310, 7)]


def test_backward_by_hand() -> None:
    """linear and t bear number 7, addmm 8: TBackward0 is t's, which starts last of the two, AddmmBackward0 is addmm's.

    addmm launches 10 ns; its backward 15 ns in aten::mm and 5 ns itself: 20 / 10 = 2. Of the kernels 100..110 and
    300..315 the window 105..310 holds 5 and 10 ns.
    """
    forward, of_mm = launch(40, 100, 10), launch(220, 300, 15, thread=2)
    frame, others = ops(*LINEAR, *BACKWARD), (launch(260, 320, 5, thread=2), launch(85, 400, 99))
    tables = frame, *launched(forward, of_mm, *others)
    assert [["aten::addmm", "AddmmBackward0", 1, 10, 20], ["aten::t", "TBackward0", 1, 0, 0]] == rows(*tables)
    ratio = backward(*tables)["ratio"].tolist()
    assert 2.0 == ratio[0]
    assert np.isnan(ratio[1])
    cut = rows(frame, *launched(forward, of_mm), window=(105, 310))
    assert ["aten::addmm", "AddmmBackward0", 1, 5, 10] == cut[0]


def test_nodes_of_early_profilers() -> None:
    """Until 2021 the engine's call was not recorded: the node alone is the backward."""
    frame = ops(op("aten::mm", 0, 9, sequence=3), op("MmBackward", 20, 40, sequence=3, thread=2))
    kernel, call = launched(launch(5, 50, 4), launch(25, 60, 6, thread=2))
    assert [["aten::mm", "MmBackward", 1, 4, 6]] == rows(frame, kernel, call)


@pytest.mark.parametrize(
    "name", ["torch::autograd::AccumulateGrad", "struct torch::autograd::AccumulateGrad", "CopyBackwards"]
)
def test_nodes_without_number(name: str) -> None:
    """Nodes that no operator made have none, and their time is shown."""
    kernel, call = launched(launch(25, 60, 6, thread=2))
    assert [[None, name, 1, 0, 6]] == rows(ops(*node(name, 20, 40)), kernel, call)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([*node("MmBackward0", 20, 40, 3), op("aten::mm", 50, 60, sequence=3)], [[None, "MmBackward0", 1, 0, 0]]),
        (
            [op("aten::mm", 0, 9, sequence=3), *({**n, "rank": 1} for n in node("MmBackward0", 20, 40, 3))],
            [[None, "MmBackward0", 1, 0, 0]],
        ),
        ([op("aten::convolution_backward", 0, 9, sequence=3), op("## backward ##", 20, 30)], []),
    ],
    ids=["forward before the capture", "other rank", "no nodes"],
)
def test_nodes_whose_operator_is_not_there(spans: list[dict[str, Any]], expected: list[list[Any]]) -> None:
    """One with its number only comes later, or is another rank's graph; what a node calls is no node."""
    assert expected == rows(ops(*spans), *NONE)


def test_recomputed_operators_are_not_the_forward() -> None:
    """What a checkpoint computes anew within a node bears numbers of that thread, and counts as backward."""
    again = op("aten::mm", 25, 30, sequence=3, thread=2)
    frame = ops(op("aten::relu", 0, 9, sequence=3), *node("ReluBackward0", 20, 40, 3), again)
    kernel, call = launched(launch(5, 50, 4), launch(26, 60, 6, thread=2))
    assert [["aten::relu", "ReluBackward0", 1, 4, 6]] == rows(frame, kernel, call)


def test_nodes_run_within_a_node() -> None:
    """A reentrant checkpoint runs a backward pass of its own: its nodes match what was recomputed, times count once.

    The checkpoint's node has 3 ns of its own and recomputes mm for 6; the inner MmBackward0 takes 9.
    """
    frame = ops(
        *node("CheckpointFunctionBackward", 20, 90, 5),
        op("aten::mm", 30, 40, sequence=2, thread=2),
        *node("MmBackward0", 50, 70, 2),
        op("aten::mul", 0, 5, sequence=2),
    )
    launches = launch(25, 100, 3, thread=2), launch(31, 110, 6, thread=2), launch(55, 120, 9, thread=2)
    expected = [["aten::mm", "MmBackward0", 1, 6, 9], [None, "CheckpointFunctionBackward", 1, 0, 9]]
    assert expected == sorted(rows(frame, *launched(*launches)), key=lambda row: row[0] is None)


def test_a_graph_used_twice() -> None:
    """Where a backward pass runs twice over one graph, the forward time counts once."""
    frame = ops(op("aten::mm", 0, 9, sequence=3), *node("MmBackward0", 20, 40, 3), *node("MmBackward0", 50, 70, 3))
    kernel, call = launched(launch(5, 50, 4), launch(25, 60, 6, thread=2), launch(55, 80, 8, thread=2))
    assert [["aten::mm", "MmBackward0", 2, 4, 14]] == rows(frame, kernel, call)


@pytest.mark.parametrize("question", [kernels_of, operators.launched, summary, backward])
def test_nothing_and_wrong_tables(question: Any) -> None:
    """Nothing has no rows, and the columns and types of something; foreign tables and backward windows are refused."""
    frame, (kernel, call) = random_operators(11), random_launches(11)
    none = OPS.empty(), KERNELS.empty(), API_CALLS.empty()
    before = [table.copy() for table in (frame, kernel, call)]
    found = question(frame, kernel, call, window=(3, 900))
    assert question(*none).empty
    assert question(*none, window=(0, 5)).empty
    assert found.dtypes.astype(str).to_dict() == question(*none).dtypes.astype(str).to_dict()
    for wrong in ((ranges(), kernel, call), (frame, copies(), call), (frame, kernel, ranges())):
        with pytest.raises(SchemaError, match=r"'(OPS|KERNELS|API_CALLS)' does not match"):
            question(*wrong)
    with pytest.raises(ValueError, match="does not end after it starts"):
        question(frame, kernel, call, window=(5, 5))
    for table, same in zip((frame, kernel, call), before, strict=True):
        pd.testing.assert_frame_equal(table, same)


def test_types_of_every_grouping_and_what_stands_alone() -> None:
    """Whatever operators are grouped by, nothing has the columns and types of something.

    Without operators and calls a kernel has its row; operators without kernels have none.
    """
    for by in (*KEYS, ("name", "shapes")):
        some = summary(ops(op("a", 0, 9)), *launched(launch(5, 6, 7)), by=by)
        assert some.dtypes.astype(str).to_dict() == summary(OPS.empty(), *NONE, by=by).dtypes.astype(str).to_dict()
    for question in (kernels_of, operators.launched):
        assert 1 == len(question(OPS.empty(), kernels(span(1, 6)), API_CALLS.empty()))
        assert question(NESTED, *NONE).empty
