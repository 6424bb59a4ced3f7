"""Iterations that named ranges show: labels, levels, siblings, and ranges that are no iterations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import ranges

from perfkit.analysis.steps import iterations
from perfkit.tables import RANGES

NONE = np.zeros(0, np.int64)


def span(start: int, end: int, name: str, **more: Any) -> dict[str, Any]:
    """A range from start to end."""
    return {"start_ns": start, "dur_ns": end - start, "name": name, **more}


def found(spans: Iterable[dict[str, Any]], launched: np.ndarray = NONE) -> list[tuple[int, int, str]]:
    """Start, length and name of the iterations."""
    return [tuple(row) for row in iterations(ranges(*spans), launched).itertuples(index=False)]


def loop(number: int, name: str = "Data loading", batch: str = "Batch {}") -> list[dict[str, Any]]:
    """Iterations of 100 with 60 of one range and, after a break of 10, 20 of another."""
    parts = [
        (span(100 * i, 100 * i + 60, name), span(100 * i + 70, 100 * i + 90, batch.format(i))) for i in range(number)
    ]
    return [part for pair in parts for part in pair]


@pytest.mark.parametrize(
    "name", ["Step {}", "train_step_{}", "iteration {}/9", "batch [{}]", "Token {}, seq = 5", "step"]
)
def test_a_range_called_step_is_the_iteration(name: str) -> None:
    """Ranges called step, iteration, batch or token last as long as they last, whatever lies between them."""
    spans = [span(100 * i, 100 * i + 30, name.format(i)) for i in range(4)]
    assert found(spans) == [(100 * i, 30, name.format(i).partition(", ")[0]) for i in range(4)]


def test_siblings_are_one_iteration_together() -> None:
    """Loading and batch repeat together: from one loading to the next, the last to the end of its batch."""
    assert found(loop(4)) == [
        (0, 100, "Data loading"),
        (100, 100, "Data loading"),
        (200, 100, "Data loading"),
        (300, 90, "Data loading"),
    ]


def test_iteration_cut_short_is_none() -> None:
    """A last loading without a batch, where the loader ends, is no iteration."""
    spans = [*loop(4), span(400, 450, "Data loading")]
    assert found(spans) == [(100 * i, 100, "Data loading") for i in range(3)] + [(300, 90, "Data loading")]


def test_a_part_of_an_iteration_is_not_the_iteration() -> None:
    """Where only the forward pass has a name, an iteration goes from one to the next."""
    spans = [span(100 * i, 100 * i + 30, "forward") for i in range(4)]
    assert [dur for _, dur, _ in found(spans)] == [100, 100, 100, 30]


def test_outermost_level_wins() -> None:
    """Steps that contain forward and backward are the iterations, epochs around them are not."""
    spans = [span(0, 1000, "Epoch 1"), span(1000, 2000, "Epoch 2"), span(2000, 3000, "Epoch 3")]
    spans += [span(100 * i, 100 * i + 80, f"Step {i}", depth=1) for i in range(30)]
    for i in range(30):
        spans += [
            span(100 * i, 100 * i + 40, "forward", depth=2),
            span(100 * i + 40, 100 * i + 80, "backward", depth=2),
        ]
    assert [(100 * i, 80, f"Step {i}") for i in range(30)] == found(spans)


def test_first_step_inside_another_range() -> None:
    """A range around the first step alone does not part it from the others, though it lies deeper."""
    spans = [span(0, 95, "warm-up"), span(2, 90, "Step 0", depth=1)]
    spans += [span(100 * i, 100 * i + 90, f"Step {i}") for i in range(1, 5)]
    assert [name for _, _, name in found(spans)] == [f"Step {i}" for i in range(5)]


def test_names_that_tell_win_over_outer_ones() -> None:
    """Train and Test repeat with each of four epochs, but the batches inside say that they are the iterations."""
    spans = []
    for epoch in range(4):
        spans += [
            span(1000 * epoch, 1000 * epoch + 800, "Train"),
            span(1000 * epoch + 800, 1000 * epoch + 1000, "Test"),
        ]
        spans += [span(1000 * epoch + 80 * i, 1000 * epoch + 80 * i + 70, f"Batch {i}", depth=1) for i in range(10)]
    assert len(found(spans)) == 40


def test_numbers_that_name_a_part_are_kept() -> None:
    """layer_0, layer_1, layer_2 come in every iteration: one of three ranges, not three of one."""
    spans = [span(30 * i, 30 * i + 30, f"layer_{i % 3}") for i in range(15)]
    assert found(spans) == [(90 * i, 90, "layer_0") for i in range(5)]


def test_names_that_a_framework_writes_are_left_out() -> None:
    """Operators, hooks and epochs repeat too, but nobody named them as iterations."""
    for name in ("aten::mm, seq = {}", "Optimizer.step#Adam.step", "{{'mod': 'Linear', 'op': {}}}", "epoch {}"):
        assert found([span(10 * i, 10 * i + 9, name.format(i)) for i in range(9)]) == []


def test_marks_are_left_out() -> None:
    """Marks have no duration and show no iteration."""
    assert found([span(10 * i, 10 * i, f"step {i}", kind="mark") for i in range(9)]) == []


def test_thread_that_covers_more_time_wins() -> None:
    """Of two threads with a range per batch, the one whose ranges last longer tells the iterations."""
    spans = [span(100 * i + 5, 100 * i + 90, f"batch {i}", thread=2) for i in range(5)]
    spans += [span(100 * i, 100 * i + 10, f"batch {i}", thread=1) for i in range(5)]
    assert [start for start, _, _ in found(spans)] == [5, 105, 205, 305, 405]


def test_kernels_must_start_within_the_iterations() -> None:
    """Three batches that hold two of five kernels are not the program's iterations, with three of five they are."""
    spans = [span(10 * i, 10 * i + 8, f"batch {i}") for i in range(3)]
    assert found(spans, np.array([3, 15, 60, 80, 90])) == []
    assert len(found(spans, np.array([3, 15, 19, 80, 90]))) == 3


def test_other_names_must_repeat_without_breaks_and_start_kernels() -> None:
    """A range that says nothing is an iteration if it fills the time and kernels start in most of its repetitions."""
    often = [span(10 * i, 10 * i + 8, "solve") for i in range(6)]
    assert len(found(often, np.arange(5, 60, 10))) == 6
    assert found(often, np.array([5, 6, 7])) == []
    rare = [span(i, i + 1, "a") for i in range(0, 900, 300)] + [span(i + 1, i + 2, "b") for i in range(0, 900, 300)]
    rare += [span(i, i + 1, f"other {i}") for i in (150, 450)]
    assert found(rare, np.arange(0, 900, 100)) == []


def test_other_siblings_do_not_disturb() -> None:
    """A logging range after every third batch is passed over: the batches are named, it is not."""
    spans = loop(9)
    spans += [span(300 * i + 95, 300 * i + 98, "logging") for i in range(3)]
    assert [start for start, _, _ in found(spans)] == [100 * i for i in range(9)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_too_few(number: int) -> None:
    """Fewer than three iterations are none."""
    assert found(loop(number)) == []


def test_empty_has_columns() -> None:
    """Without ranges the frame has its columns and integer times."""
    empty = iterations(RANGES.empty(), NONE)
    assert empty.columns.tolist() == ["start_ns", "dur_ns", "name"]
    assert empty.dtypes.astype(str).tolist()[:2] == ["int64", "int64"]


def test_order_of_rows_and_shift_change_nothing() -> None:
    """Ranges in any order, a million later, show the same iterations a million later."""
    frame = ranges(*loop(5))
    moved = frame.assign(start_ns=frame["start_ns"] + 1_000_000).sample(frac=1, random_state=3)
    expected = iterations(frame, NONE)
    pd.testing.assert_frame_equal(expected.assign(start_ns=expected["start_ns"] + 1_000_000), iterations(moved, NONE))
