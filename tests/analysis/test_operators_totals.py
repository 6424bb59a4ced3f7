"""Time of the operators on CPU and GPU, self and total, per name and other keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels, ranges
from ops import launch, launched, op, ops, random_launches, random_operators

from perfkit.analysis.operators.totals import KEYS, summary
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS


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
    linear = {"count": 1, "cpu_total_ns": 100, "cpu_self_ns": 40, "cpu_self_mean_ns": 40.0, "gpu_total_ns": 40}
    addmm = {"count": 2, "cpu_total_ns": 100, "cpu_self_ns": 100, "cpu_self_mean_ns": 50.0, "gpu_total_ns": 50}
    assert linear | {"gpu_self_ns": 10, "kernel_count": 1, "gpu_share_frac": 0.1} == found["aten::linear"]
    assert addmm | {"gpu_self_ns": 50, "kernel_count": 2, "gpu_share_frac": 0.5} == found["aten::addmm"]
    assert (0, 0, 40, 40, 1, 0.4) == tuple(
        found[None][column]
        for column in ("count", "cpu_total_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count", "gpu_share_frac")
    )
    assert np.isnan(found[None]["cpu_self_mean_ns"])


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
    assert (2, 90, 70, 5, 5) == tuple(
        found["aten::copy_"][c] for c in ("count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns")
    )
    assert (1, 70, 20, 5, 0) == tuple(
        found["aten::to"][c] for c in ("count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns")
    )


def test_by_shapes() -> None:
    """One operator with two shapes makes a row each; a shape that was not recorded is a shape of its own."""
    shapes = ["[[2,3]]", "[[4,5]]", "[[2,3]]", None]
    frame = ops(*(op("aten::relu", 100 * i, 100 * i + 50, shapes=shape) for i, shape in enumerate(shapes)))
    found = summary(frame, KERNELS.empty(), API_CALLS.empty(), by=("name", "shapes"))
    assert [2, 1, 1] == found["count"].tolist()
    assert ["[[2,3]]", "[[4,5]]"] == found["shapes"].dropna().tolist()


def test_other_shapes_are_another_group() -> None:
    """By shapes, an operator nested in one of its name with other shapes counts in the totals of its own."""
    frame = ops(op("aten::copy_", 0, 90, shapes="[[1]]"), op("aten::copy_", 20, 70, shapes="[[2]]"))
    found = summary(frame, KERNELS.empty(), API_CALLS.empty(), by=["name", "shapes"])
    assert [90, 50] == sorted(found["cpu_total_ns"], reverse=True)


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
    columns = ("count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count")
    assert (1, 50, 20, 10, 0, 0) == tuple(found["aten::linear"][column] for column in columns)
    assert (1, 30, 30, 10, 10, 1) == tuple(found["aten::addmm"][column] for column in columns)
    assert (0, 0, 0, 20, 20, 1) == tuple(found["early"][column] for column in columns)


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
    """Without operators all kernels stand in one row without a name; with rank among the keys in one per rank."""
    kernel, call = launched(launch(1, 5, 10), launch(2, 6, 30, rank=1))
    assert [[0, 40, 2, 1.0]] == summary(OPS.empty(), kernel, call)[
        ["count", "gpu_self_ns", "kernel_count", "gpu_share_frac"]
    ].to_numpy().tolist()
    assert [1, 0] == summary(OPS.empty(), kernel, call, by=("rank", "name"))["rank"].tolist()


def test_empty() -> None:
    """Nothing in, no rows out, with the same columns and types."""
    none = OPS.empty(), KERNELS.empty(), API_CALLS.empty()
    some = ops(op("a", 0, 9)), *launched(launch(5, 6, 7))
    for by in (*KEYS, ("name", "shapes")):
        assert summary(*none, by=by).empty
        kinds = [summary(*tables, by=by).dtypes.astype(str).to_dict() for tables in (some, none)]
        assert kinds[0] == kinds[1]
    assert summary(*none, window=(0, 5)).empty


def test_kernels_of_no_duration() -> None:
    """Where no kernel lasts, shares are 0 of 0: NaN."""
    found = summary(ops(op("a", 0, 9)), kernels({"start_ns": 1, "dur_ns": 0}), api_calls())
    assert found["gpu_share_frac"].isna().all()


@pytest.mark.parametrize("by", ["parent", (), ("name", "stream")])
def test_wrong_grouping(by: Any) -> None:
    """A key that is no key of operators, or none, is refused with the legal ones."""
    with pytest.raises(ValueError, match=r"by: .* is not one or more of \['name', 'shapes'"):
        summary(OPS.empty(), KERNELS.empty(), API_CALLS.empty(), by=by)


def test_wrong_table_and_window() -> None:
    """A foreign table and a backward window are refused; the input is not changed."""
    some = random_operators(11), *random_launches(11)
    before = [table.copy() for table in some]
    with pytest.raises(SchemaError, match="'OPS' does not match"):
        summary(ranges(), *some[1:])
    with pytest.raises(ValueError, match="does not end after it starts"):
        summary(*some, window=(5, 4))
    summary(*some, window=(100, 900))
    for table, same in zip(some, before, strict=True):
        pd.testing.assert_frame_equal(table, same)
