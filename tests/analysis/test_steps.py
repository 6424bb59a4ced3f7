"""Steps: the three ways to find them, ranks, windows, and which of them are steady."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from frames import copies, kernels, ranges

from perfkit.analysis.steps import STEPS, detect, steady
from perfkit.errors import SchemaError
from perfkit.tables import KERNELS, RANGES

KERNEL_STEP = ["embed", *["gemm", "softmax"] * 6, "loss", *["gemm", "wgrad"] * 6, "adam"]


def span(start: int, dur: int, name: str, **more: Any) -> dict[str, Any]:
    """A range."""
    return {"start_ns": start, "dur_ns": dur, "name": name, **more}


def training(number: int, *, prologue: int = 0, begin: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Kernels of 5 ns every 10 ns: a prologue, then steps of 27, each after a pause of 100: 370 ns a step."""
    rows = [span(begin + 10 * i, 5, f"init_{i}", **more) for i in range(prologue)]
    begin += 10 * prologue
    for step in range(number):
        at = begin + 370 * step + 100
        rows += [span(at + 10 * i, 5, name, **more) for i, name in enumerate(KERNEL_STEP)]
    return rows


def named(*durations: int) -> pd.DataFrame:
    """Steps one after the other, as ranges."""
    starts = [sum(durations[:i]) for i in range(len(durations))]
    return ranges(*(span(s, d, f"Step {i}") for i, (s, d) in enumerate(zip(starts, durations, strict=True))))


def steadiness(*durations: int) -> list[bool]:
    """Which of steps of these lengths are steady."""
    return detect(named(*durations), KERNELS.empty())["steady"].tolist()


def test_kernel_sequence_by_hand() -> None:
    """Four steps of 27 kernels after a prologue of 9: each starts after the pause and lasts 370 ns, the last 265."""
    found = detect(RANGES.empty(), kernels(*training(4, prologue=9)))
    assert found["start_ns"].tolist() == [190, 560, 930, 1300]
    assert found["dur_ns"].tolist() == [370, 370, 370, 265]
    assert found["step"].tolist() == [0, 1, 2, 3]
    assert set(found["how"]) == {"kernel sequence"}
    assert set(found["name"]) == {"embed"}


def test_no_repetition_is_no_error() -> None:
    """Kernels and ranges that do not repeat have no steps."""
    assert detect(ranges(span(0, 9, "main")), kernels(*training(2, prologue=30))).empty


def test_named_ranges_come_before_the_kernel_sequence() -> None:
    """Where the program names its steps, the kernels inside are not asked."""
    spans = ranges(*(span(100 + 370 * i, 300, f"Step {i}") for i in range(4)))
    found = detect(spans, kernels(*training(4)))
    assert found["how"].tolist() == ["nvtx"] * 4
    assert found["name"].tolist() == ["Step 0", "Step 1", "Step 2", "Step 3"]


@pytest.mark.parametrize("marked", [{"name": "ProfilerStep#{}"}, {"name": "anything", "kind": "step"}])
def test_steps_of_the_profiler_come_first(marked: dict[str, str]) -> None:
    """ProfilerStep#N, or ranges of kind step, are the steps, be they two; those of a thread with fewer are left out."""
    spans = [span(1000 * i, 900, marked["name"].format(i), kind=marked.get("kind", "push_pop")) for i in range(2)]
    spans += [span(100 * i, 90, f"Batch {i}", depth=1) for i in range(20)]
    spans.append({**spans[0], "thread": 7})
    found = detect(ranges(*spans), KERNELS.empty())
    assert found[["start_ns", "dur_ns", "how"]].to_numpy().tolist() == [
        [0, 900, "profiler step"],
        [1000, 900, "profiler step"],
    ]


def test_device_with_most_kernels_tells() -> None:
    """Device 1 runs five steps and device 0 three: the five are the steps of the rank."""
    found = detect(RANGES.empty(), kernels(*training(3), *training(5, begin=7, gpu=1)))
    assert found["start_ns"].tolist() == [107 + 370 * i for i in range(5)]


def test_ranks_have_steps_of_their_own() -> None:
    """Rank 0 names its steps, rank 2 does not: each is found its own way and numbered from 0; rank 1 has none."""
    spans = ranges(*(span(50 * i, 50, f"Step {i}") for i in range(3)), span(0, 5, "main", rank=1))
    found = detect(spans, kernels(*training(4, rank=2)))
    assert found["rank"].tolist() == [0, 0, 0, 2, 2, 2, 2]
    assert found["step"].tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert found["how"].tolist() == ["nvtx"] * 3 + ["kernel sequence"] * 4


def test_window_keeps_whole_steps() -> None:
    """Of steps 0..100, 100..200, ... the window 50..350 holds steps 1 and 2 whole, under their numbers."""
    found = detect(named(*[100] * 6), KERNELS.empty(), window=(50, 350))
    assert found[["step", "start_ns", "dur_ns"]].to_numpy().tolist() == [[1, 100, 100], [2, 200, 100]]


def test_warm_up_is_not_steady() -> None:
    """Steps of 900, 300 and 160 before steps of 100 exceed 1.5 * 100: warm-up; a later slow one is not."""
    assert steadiness(900, 300, 160, *[100] * 6, 400, 100, 100, 100) == [False] * 3 + [True] * 10


def test_first_step_is_not_steady_when_longest() -> None:
    """120 is less than 1.5 * 100, but longer than every later step; 120 with a later 130 is steady."""
    assert steadiness(120, 100, 100, 110) == [False, True, True, True]
    assert steadiness(120, 100, 100, 130) == [True] * 4


def test_slow_third_is_a_phase() -> None:
    """Eight slow steps before eight fast ones are no warm-up: only the first, the slowest, is left out."""
    assert steadiness(210, *[200] * 7, *[100] * 8) == [False] + [True] * 15


def test_uneven_steps_are_no_warm_up() -> None:
    """Where later steps vary between 10 and 300, earlier ones of 100 are nothing special."""
    assert steadiness(100, 100, 10, 300, 10, 300, 10, 300, 10, 10) == [True] * 10


def test_last_step_whose_end_is_unknown_is_not_steady() -> None:
    """A last step of 60 among steps of 100 ended before the next would have begun."""
    assert steadiness(*[100] * 5, 60) == [True] * 5 + [False]
    assert steadiness(*[100] * 5, 70) == [True] * 6


def test_steady_keeps_rows_and_numbers() -> None:
    """The typical steps keep their numbers and columns."""
    steps = detect(named(900, 100, 100, 100), KERNELS.empty())
    kept = steady(steps)
    assert kept["step"].tolist() == [1, 2, 3]
    assert kept.columns.tolist() == STEPS.column_names


def test_empty() -> None:
    """Without ranges and kernels there is no step, and the columns and types are those of a result."""
    some = detect(named(100, 100, 100), KERNELS.empty())
    none = detect(RANGES.empty(), KERNELS.empty(), window=(0, 5))
    assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()
    assert (0, 0) == (len(none), len(steady(none)))


def test_shift_changes_nothing_else() -> None:
    """A million ns later the same steps start a million ns later."""
    frame = kernels(*training(6, prologue=4))
    before = detect(RANGES.empty(), frame)
    after = detect(RANGES.empty(), frame.assign(start_ns=frame["start_ns"] + 1_000_000))
    pd.testing.assert_frame_equal(before.assign(start_ns=before["start_ns"] + 1_000_000), after)


def test_order_of_ranks_does_not_matter() -> None:
    """Kernels of two ranks that are not in the table's order have the same steps."""
    frame = kernels(*training(4), *training(5, rank=1))
    turned = pd.concat([frame[frame["rank"] == 1], frame[frame["rank"] == 0]])
    pd.testing.assert_frame_equal(detect(RANGES.empty(), frame), detect(RANGES.empty(), turned))


def test_wrong_arguments() -> None:
    """Foreign tables and a backward window are refused; the input is not changed."""
    frame = kernels(*training(4))
    before = frame.copy()
    foreign = copies(span(0, 1, "x"))
    with pytest.raises(SchemaError, match="'RANGES' does not match"):
        detect(foreign, frame)
    with pytest.raises(SchemaError, match="'KERNELS' does not match"):
        detect(RANGES.empty(), foreign)
    with pytest.raises(SchemaError, match="'STEPS' does not match"):
        steady(frame)
    with pytest.raises(ValueError, match="does not end after it starts"):
        detect(RANGES.empty(), frame, window=(9, 9))
    pd.testing.assert_frame_equal(before, frame)
