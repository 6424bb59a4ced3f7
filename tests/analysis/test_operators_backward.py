"""Forward operators and the nodes of autograd they made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import ranges
from ops import launch, launched, op, ops

from perfkit.analysis.operators.totals import backward
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS

ENGINE = "autograd::engine::evaluate_function: "
COLUMNS = ["operator", "node", "count", "forward_ns", "backward_ns"]


def node(name: str, start: int, end: int, sequence: int = -1, thread: int = 2) -> list[dict[str, Any]]:
    """A node of autograd: the engine's call, and what it calls a ns later."""
    outer = op(ENGINE + name, start, end, sequence=sequence, thread=thread)
    return [outer, op(name, start + 1, end - 1, sequence=sequence, thread=thread)]


def rows(*tables: pd.DataFrame, **more: Any) -> list[list[Any]]:
    """The rows as lists, None where the operator is missing."""
    found = backward(*tables, **more)[COLUMNS].astype(object)
    return found.where(found.notna(), None).to_numpy().tolist()


LINEAR = [
    op("aten::linear", 0, 90, sequence=7),
    op("aten::t", 10, 20, sequence=7),
    op("aten::addmm", 30, 80, sequence=8),
]
BACKWARD = [*node("AddmmBackward0", 200, 290, 8), op("aten::mm", 210, 250, thread=2), *node("TBackward0", 300, 310, 7)]


def test_worked_by_hand() -> None:
    """linear and t bear number 7, addmm 8: TBackward0 is t's, which starts last of the two, AddmmBackward0 is addmm's.

    addmm launches 10 ns; its backward 15 ns in aten::mm and 5 ns itself: 20 / 10 = 2.
    """
    kernel, call = launched(
        launch(40, 100, 10), launch(220, 300, 15, thread=2), launch(260, 320, 5, thread=2), launch(85, 400, 99)
    )
    tables = ops(*LINEAR, *BACKWARD), kernel, call
    assert [["aten::addmm", "AddmmBackward0", 1, 10, 20], ["aten::t", "TBackward0", 1, 0, 0]] == rows(*tables)
    ratio = backward(*tables)["ratio"].tolist()
    assert 2.0 == ratio[0]
    assert np.isnan(ratio[1])


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


def test_forward_before_the_capture() -> None:
    """A node whose operator was not recorded has none, also where one with its number only comes later."""
    frame = ops(*node("MmBackward0", 20, 40, 3), op("aten::mm", 50, 60, sequence=3))
    assert [[None, "MmBackward0", 1, 0, 0]] == rows(frame, KERNELS.empty(), API_CALLS.empty())


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


def test_numbers_count_per_rank() -> None:
    """Number 3 of rank 1 is another graph."""
    frame = ops(op("aten::mm", 0, 9, sequence=3), *({**each, "rank": 1} for each in node("MmBackward0", 20, 40, 3)))
    assert [[None, "MmBackward0", 1, 0, 0]] == rows(frame, KERNELS.empty(), API_CALLS.empty())


def test_operators_called_backward_are_no_nodes() -> None:
    """aten::convolution_backward is an operator that a node calls."""
    frame = ops(op("aten::convolution_backward", 0, 9, sequence=3), op("## backward ##", 20, 30))
    assert [] == rows(frame, KERNELS.empty(), API_CALLS.empty())


def test_window_cuts_kernels() -> None:
    """Of kernels 100..110 and 300..315 the window 105..310 holds 5 and 10 ns; without it they have 10 and 15."""
    kernel, call = launched(launch(40, 100, 10), launch(220, 300, 15, thread=2))
    frame = ops(*LINEAR, *BACKWARD)
    assert ["aten::addmm", "AddmmBackward0", 1, 5, 10] == rows(frame, kernel, call, window=(105, 310))[0]


def test_empty() -> None:
    """Without nodes there are no rows, with the same columns and types."""
    some = backward(ops(*LINEAR, *BACKWARD), *launched(launch(40, 100, 10)))
    none = backward(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert none.empty
    assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()


def test_wrong_arguments() -> None:
    """A foreign table and a backward window are refused."""
    with pytest.raises(SchemaError, match="'OPS' does not match"):
        backward(ranges(), KERNELS.empty(), API_CALLS.empty())
    with pytest.raises(ValueError, match="does not end after it starts"):
        backward(OPS.empty(), KERNELS.empty(), API_CALLS.empty(), window=(5, 5))
