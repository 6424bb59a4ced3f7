"""Which operator launched each kernel, and which kernels each operator launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels
from ops import launch, launched, op, ops, random_launches, random_operators

from perfkit.analysis import operators
from perfkit.analysis.operators.totals import kernels_of, outermost, parents, rolled_up
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS

NESTED = ops(op("aten::linear", 0, 100), op("aten::addmm", 20, 80), op("aten::empty", 30, 40))


def operator_of(at: int, frame: pd.DataFrame = NESTED, **call: Any) -> int:
    """Number of the operator of a kernel launched at a time; -1 none."""
    return int(kernels_of(frame, *launched(launch(at, 500, 10, **call)))["op"].iloc[0])


@pytest.mark.parametrize(
    ("at", "expected"), [(0, 0), (19, 0), (20, 1), (30, 2), (39, 2), (40, 1), (79, 1), (80, 0), (99, 0), (100, -1)]
)
def test_innermost_operator_by_hand(at: int, expected: int) -> None:
    """Of operators [0, 100) > [20, 80) > [30, 40) the innermost that contains the start of the call launched it."""
    assert expected == operator_of(at)


def test_when_the_gpu_starts_does_not_matter() -> None:
    """A kernel that runs while another operator does belongs to the one that launched it."""
    found = kernels_of(ops(op("a", 0, 10), op("b", 10, 90)), *launched(launch(5, 20, 30)))
    assert [0] == found["op"].tolist()


@pytest.mark.parametrize("where", [{"thread": 2}, {"process": 2}, {"rank": 1}])
def test_other_threads_processes_and_ranks(where: dict[str, int]) -> None:
    """An operator at the same time on another thread or rank launched nothing here."""
    kernel, call = launched(launch(50, 500, 10, **where))
    found = kernels_of(NESTED, kernel.assign(process=where.get("process", 1)), call)
    assert [(-1, "outside")] == list(found[["op", "how"]].itertuples(index=False, name=None))


def test_every_kernel_keeps_its_row() -> None:
    """Launched inside, outside of operators, and without a recorded call: three rows, and the index of the kernels."""
    kernel = kernels(*({"start_ns": start, "dur_ns": 5, "correlation": start} for start in (200, 300, 400)))
    call = api_calls(*({"start_ns": at, "dur_ns": 1, "correlation": of} for at, of in ((50, 200), (150, 300))))
    found = kernels_of(NESTED, kernel.set_axis([7, 8, 9]), call)
    assert [7, 8, 9] == found.index.tolist()
    assert ["launch", "outside", "none"] == found["how"].tolist()
    assert [1, -1, -1] == found["op"].tolist()


def test_graph_nodes_belong_to_the_graph_launch() -> None:
    """Three kernels of one cudaGraphLaunch have the operator around it."""
    kernel = kernels(*({"start_ns": s, "dur_ns": 5, "correlation": 3, "in_graph": True} for s in (200, 210, 220)))
    call = api_calls({"start_ns": 85, "dur_ns": 9, "name": "cudaGraphLaunch", "correlation": 3})
    assert [0, 0, 0] == kernels_of(NESTED, kernel, call)["op"].tolist()


def test_driver_call_inside_a_runtime_call() -> None:
    """Where both bear the correlation id, the outer one, which begins first, says the operator."""
    frame = ops(op("outer", 0, 100), op("inner", 52, 60))
    calls = [{"start_ns": 50, "dur_ns": 20}, {"start_ns": 53, "dur_ns": 5, "name": "cuLaunchKernel"}]
    call = api_calls(*({**each, "correlation": 4} for each in calls))
    assert [0] == kernels_of(frame, kernels({"start_ns": 99, "dur_ns": 1, "correlation": 4}), call)["op"].tolist()


def test_operator_without_duration_launches_nothing() -> None:
    """[50, 50) contains no moment: what is launched at 50 belongs to the operator around it."""
    assert 0 == operator_of(50, ops(op("aten::linear", 0, 100), op("aten::t", 50, 50)))


def test_what_starts_together_is_nested() -> None:
    """Of operators that begin at once the shorter is the inner one, and has what is launched at that moment."""
    frame = ops(op("outer", 10, 90), op("inner", 10, 30))
    assert ["inner"] == frame.loc[frame["op"] == operator_of(10, frame), "name"].tolist()


def test_numbers_count_per_rank() -> None:
    """Operator 0 of rank 1 is not operator 0 of rank 0."""
    frame = ops(op("a", 0, 10), op("b", 0, 10, rank=1), op("c", 20, 30, rank=1))
    frame["op"] = [0, 0, 1]
    kernel, call = launched(launch(5, 50, 1), launch(25, 50, 1, rank=1), launch(5, 90, 1, rank=1))
    found = kernels_of(frame, kernel, call)
    assert [(0, 0), (1, 1), (1, 0)] == list(found[["rank", "op"]].itertuples(index=False, name=None))


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
    """addmm launches a for 10 and b twice for 20 and 40; linear a for 5; 7 ns of c have no operator: 82 ns in all."""
    found = operators.launched(
        NESTED,
        *launched(
            launch(25, 200, 10, "a"),
            launch(26, 220, 20, "b"),
            launch(27, 250, 40, "b"),
            launch(90, 300, 5, "a"),
            launch(400, 500, 7, "c"),
        ),
    )
    assert ["aten::addmm", "aten::addmm", None, "aten::linear"] == [
        name if isinstance(name, str) else None for name in found["operator"]
    ]
    assert ["b", "a", "c", "a"] == found["kernel"].tolist()
    assert [2, 1, 1, 1] == found["count"].tolist()
    assert [60, 10, 7, 5] == found["total_ns"].tolist()
    assert [60 / 82, 10 / 82, 7 / 82, 5 / 82] == found["share_frac"].tolist()


def test_launched_in_a_window_is_cut() -> None:
    """Of a kernel 200..210 the window 205..300 holds 5 ns."""
    found = operators.launched(NESTED, *launched(launch(25, 200, 10)), window=(205, 300))
    assert [5] == found["total_ns"].tolist()


def test_launched_adds_up() -> None:
    """Counts and times of all rows are those of all kernels, with and without operator."""
    kernel, call = random_launches(5)
    found = operators.launched(random_operators(5), kernel, call)
    assert (len(kernel), kernel["dur_ns"].sum()) == (found["count"].sum(), found["total_ns"].sum())


def test_empty() -> None:
    """No kernels, no rows, the same columns and types; kernels without operators or calls stay."""
    none = OPS.empty(), KERNELS.empty(), API_CALLS.empty()
    some = NESTED, *launched(launch(5, 6, 7))
    for question in (kernels_of, operators.launched):
        assert question(*none).empty
        assert question(*some).dtypes.astype(str).to_dict() == question(*none).dtypes.astype(str).to_dict()
        assert len(question(NESTED, *none[1:])) == 0
        assert len(question(none[0], some[1], none[2])) == 1


def test_shift_changes_nothing() -> None:
    """A million ns later every kernel has the same operator."""
    frame, (kernel, call) = random_operators(6), random_launches(6)
    later = [table.assign(start_ns=table["start_ns"] + 1_000_000) for table in (frame, kernel, call)]
    pd.testing.assert_frame_equal(kernels_of(frame, kernel, call), kernels_of(*later))


def test_wrong_arguments() -> None:
    """A backward window and a foreign table are refused; the input is not changed."""
    some = random_operators(7), *random_launches(7)
    before = [table.copy() for table in some]
    for question in (kernels_of, operators.launched):
        with pytest.raises(ValueError, match="does not end after it starts"):
            question(*some, window=(5, 5))
        with pytest.raises(SchemaError, match="'KERNELS' does not match"):
            question(some[0], copies(), some[2])
        question(*some, window=(3, 900))
    for table, same in zip(some, before, strict=True):
        pd.testing.assert_frame_equal(table, same)
