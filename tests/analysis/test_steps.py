"""Steps: named ranges, repetitions of kernels, ranks, windows, which are steady; and those of simulated captures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels, ranges

import perfkit
from make import Shape, capture, mlp_a100
from perfkit.analysis.intervals import Int
from perfkit.analysis.steps import STEPS, bounds, detect, iterations, last_phase, on_gpu, repeats, steady
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


def test_layers_of_one_graph_are_no_iterations() -> None:
    """The same kernels, all of one launch of a graph, or of a graph launched for each step."""
    one = [{**row, "in_graph": True, "correlation": 7} for row in training(4)]
    each = [{**row, "correlation": i // len(KERNEL_STEP)} for i, row in enumerate(one)]
    assert [0, 4] == [len(detect(RANGES.empty(), kernels(*rows))) for rows in (one, each)]


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


def test_which_steps_are_steady() -> None:
    """Those after the warm-up, the first unless it is the longest, and the last unless its end is unknown."""
    # 900, 300 and 160 before steps of 100 exceed 1.5 * 100: warm-up; a later slow one is not.
    assert steadiness(900, 300, 160, *[100] * 6, 400, 100, 100, 100) == [False] * 3 + [True] * 10
    # 120 is less than 1.5 * 100, but longer than every later step; 120 with a later 130 is steady.
    assert steadiness(120, 100, 100, 110) == [False, True, True, True]
    assert steadiness(120, 100, 100, 130) == [True] * 4
    # Eight slow steps before eight fast ones are no warm-up: only the first, the slowest, is left out.
    assert steadiness(210, *[200] * 7, *[100] * 8) == [False] + [True] * 15
    # Where later steps vary between 10 and 300, earlier ones of 100 are nothing special.
    assert steadiness(100, 100, 10, 300, 10, 300, 10, 300, 10, 10) == [True] * 10
    # A last step of 60 among steps of 100 ended before the next would have begun.
    assert steadiness(*[100] * 5, 60) == [True] * 5 + [False]
    assert steadiness(*[100] * 5, 70) == [True] * 6


def test_steady_keeps_rows_and_numbers() -> None:
    """The typical steps keep their numbers and columns."""
    steps = detect(named(900, 100, 100, 100), KERNELS.empty())
    kept = steady(steps)
    assert kept["step"].tolist() == [1, 2, 3]
    assert kept.columns.tolist() == STEPS.column_names


def test_order_of_ranks_does_not_matter() -> None:
    """Kernels of two ranks that are not in the table's order have the same steps."""
    frame = kernels(*training(4), *training(5, rank=1))
    turned = pd.concat([frame[frame["rank"] == 1], frame[frame["rank"] == 0]])
    pd.testing.assert_frame_equal(detect(RANGES.empty(), frame), detect(RANGES.empty(), turned))


NONE = np.zeros(0, np.int64)


def named_range(start: int, end: int, name: str, **more: Any) -> dict[str, Any]:
    """A range from start to end."""
    return {"start_ns": start, "dur_ns": end - start, "name": name, **more}


def found(spans: Iterable[dict[str, Any]], launched: np.ndarray = NONE) -> list[tuple[int, int, str]]:
    """Start, length and name of the iterations."""
    return [tuple(row) for row in iterations(ranges(*spans), launched).itertuples(index=False)]


def loop(number: int, name: str = "Data loading", batch: str = "Batch {}") -> list[dict[str, Any]]:
    """Iterations of 100 with 60 of one range and, after a break of 10, 20 of another."""
    parts = [
        (named_range(100 * i, 100 * i + 60, name), named_range(100 * i + 70, 100 * i + 90, batch.format(i)))
        for i in range(number)
    ]
    return [part for pair in parts for part in pair]


@pytest.mark.parametrize(
    "name", ["Step {}", "train_step_{}", "iteration {}/9", "batch [{}]", "Token {}, seq = 5", "step"]
)
def test_a_range_called_step_is_the_iteration(name: str) -> None:
    """Ranges called step, iteration, batch or token last as long as they last, whatever lies between them."""
    spans = [named_range(100 * i, 100 * i + 30, name.format(i)) for i in range(4)]
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
    spans = [*loop(4), named_range(400, 450, "Data loading")]
    assert found(spans) == [(100 * i, 100, "Data loading") for i in range(3)] + [(300, 90, "Data loading")]


def test_a_part_of_an_iteration_is_not_the_iteration() -> None:
    """Where only the forward pass has a name, an iteration goes from one to the next."""
    spans = [named_range(100 * i, 100 * i + 30, "forward") for i in range(4)]
    assert [dur for _, dur, _ in found(spans)] == [100, 100, 100, 30]


def test_outermost_level_wins() -> None:
    """Steps that contain forward and backward are the iterations, epochs around them are not."""
    spans = [named_range(0, 1000, "Epoch 1"), named_range(1000, 2000, "Epoch 2"), named_range(2000, 3000, "Epoch 3")]
    spans += [named_range(100 * i, 100 * i + 80, f"Step {i}", depth=1) for i in range(30)]
    for i in range(30):
        spans += [
            named_range(100 * i, 100 * i + 40, "forward", depth=2),
            named_range(100 * i + 40, 100 * i + 80, "backward", depth=2),
        ]
    assert [(100 * i, 80, f"Step {i}") for i in range(30)] == found(spans)


def test_first_step_inside_another_range() -> None:
    """A range around the first step alone does not part it from the others, though it lies deeper."""
    spans = [named_range(0, 95, "warm-up"), named_range(2, 90, "Step 0", depth=1)]
    spans += [named_range(100 * i, 100 * i + 90, f"Step {i}") for i in range(1, 5)]
    assert [name for _, _, name in found(spans)] == [f"Step {i}" for i in range(5)]


def test_names_that_tell_win_over_outer_ones() -> None:
    """Train and Test repeat with each of four epochs, but the batches inside say that they are the iterations."""
    spans = []
    for epoch in range(4):
        spans += [
            named_range(1000 * epoch, 1000 * epoch + 800, "Train"),
            named_range(1000 * epoch + 800, 1000 * epoch + 1000, "Test"),
        ]
        spans += [
            named_range(1000 * epoch + 80 * i, 1000 * epoch + 80 * i + 70, f"Batch {i}", depth=1) for i in range(10)
        ]
    assert len(found(spans)) == 40


def test_numbers_that_name_a_part_are_kept() -> None:
    """layer_0, layer_1, layer_2 come in every iteration: one of three ranges, not three of one."""
    spans = [named_range(30 * i, 30 * i + 30, f"layer_{i % 3}") for i in range(15)]
    assert found(spans) == [(90 * i, 90, "layer_0") for i in range(5)]


def test_names_that_a_framework_writes_are_left_out() -> None:
    """Operators, hooks and epochs repeat too, but nobody named them as iterations."""
    for name in ("aten::mm, seq = {}", "Optimizer.step#Adam.step", "{{'mod': 'Linear', 'op': {}}}", "epoch {}"):
        assert found([named_range(10 * i, 10 * i + 9, name.format(i)) for i in range(9)]) == []


def test_marks_are_left_out() -> None:
    """Marks have no duration and show no iteration."""
    assert found([named_range(10 * i, 10 * i, f"step {i}", kind="mark") for i in range(9)]) == []


def test_thread_that_covers_more_time_wins() -> None:
    """Of two threads with a range per batch, the one whose ranges last longer tells the iterations."""
    spans = [named_range(100 * i + 5, 100 * i + 90, f"batch {i}", thread=2) for i in range(5)]
    spans += [named_range(100 * i, 100 * i + 10, f"batch {i}", thread=1) for i in range(5)]
    assert [start for start, _, _ in found(spans)] == [5, 105, 205, 305, 405]


def test_kernels_must_start_within_the_iterations() -> None:
    """Three batches that hold two of five kernels are not the program's iterations, with three of five they are."""
    spans = [named_range(10 * i, 10 * i + 8, f"batch {i}") for i in range(3)]
    assert found(spans, np.array([3, 15, 60, 80, 90])) == []
    assert len(found(spans, np.array([3, 15, 19, 80, 90]))) == 3


def test_other_names_must_repeat_without_breaks_and_start_kernels() -> None:
    """A range that says nothing is an iteration if it fills the time and kernels start in most of its repetitions."""
    often = [named_range(10 * i, 10 * i + 8, "solve") for i in range(6)]
    assert len(found(often, np.arange(5, 60, 10))) == 6
    assert found(often, np.array([5, 6, 7])) == []
    rare = [named_range(i, i + 1, "a") for i in range(0, 900, 300)] + [
        named_range(i + 1, i + 2, "b") for i in range(0, 900, 300)
    ]
    rare += [named_range(i, i + 1, f"other {i}") for i in (150, 450)]
    assert found(rare, np.arange(0, 900, 100)) == []


def test_other_siblings_do_not_disturb() -> None:
    """A logging range after every third batch is passed over: the batches are named, it is not."""
    spans = loop(9)
    spans += [named_range(300 * i + 95, 300 * i + 98, "logging") for i in range(3)]
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


FORWARD = [10, 11, 12, 13, 14, 15, 13, 16]
BACKWARD = [20, 21, 22, 13, 23, 24, 25, 13, 26, 27]
# A training step of 12 layers: 226 kernels, of which 0, 1, 2, 3, 4 and 7 run once.
STEP = [0, 1, *FORWARD * 12, 2, 3, 4, *BACKWARD * 12, 5, 6, 5, 6, 7]


def repetitions(sequence: list[int], pause: Int | None = None) -> list[tuple[int, int]]:
    """The stretches (first, stop) of a sequence."""
    first, stop = repeats(np.array(sequence, np.int64), pause)
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def evenly(first: int, length: int, number: int) -> list[tuple[int, int]]:
    """Adjoining stretches of one length."""
    return [(first + i * length, first + (i + 1) * length) for i in range(number)]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([1, 2, 3, 4] * 3, evenly(0, 4, 3)),
        ([1, 2] * 5, evenly(0, 2, 5)),
        ([1] * 4, evenly(0, 1, 4)),
        ([9, 8, 7, *[1, 2, 3, 4] * 6], evenly(3, 4, 6)),
        ([9, 8, *[1, 2, 3, 4] * 6, 5, 6], evenly(2, 4, 6)),
        ([9, *[1, 2, 3, 4, 5, 6, 7, 8] * 4, 1, 2, 3], evenly(1, 8, 4)),
    ],
)
def test_planted_periods(sequence: list[int], expected: list[tuple[int, int]]) -> None:
    """A sequence repeated after a prologue, before an epilogue or cut at the end is found where it was planted."""
    assert expected == repetitions(sequence)


@pytest.mark.parametrize("sequence", [[], [1], [1, 2, 3, 4, 5, 6], [1, 2, 3, 1, 2, 3], [1, 1]])
def test_too_few_repetitions(sequence: list[int]) -> None:
    """Fewer than three repetitions are none."""
    assert repetitions(sequence) == []


@pytest.mark.parametrize("names", [2, 10, 300])
def test_random_sequences_do_not_repeat(names: int) -> None:
    """Names drawn at random have no period."""
    assert repetitions(np.random.default_rng(names).integers(0, names, 20_000).tolist()) == []


def test_even_distance_alone_is_no_repetition() -> None:
    """An element after every seven others is no start of a repetition when the others are drawn at random."""
    sequence = np.random.default_rng(9).integers(1, 500, 4000)
    sequence[::8] = 0
    assert repetitions(sequence.tolist()) == []


def test_layers_are_no_steps() -> None:
    """Of 12 layers within a step, in which many kernels run 12 times, the step is taken: 226 kernels."""
    assert evenly(3, 226, 40) == repetitions([90, 91, 92, *STEP * 40])


def test_tokens_of_an_inference() -> None:
    """24 layers of 10 kernels with 4 before and 4 after them: the token of 248 kernels, not the layer."""
    layer = list(range(10))
    assert evenly(0, 248, 50) == repetitions([100, 101, 102, 103, *layer * 24, 104, 105, 106, 107] * 50)


def test_epochs_are_no_steps() -> None:
    """Four epochs of 30 steps and 5 validation runs: 120 steps, none of them with a validation run inside."""
    validation = [0, 1, *FORWARD * 12, 2]
    stretches = repetitions([90, *(STEP * 30 + validation * 5) * 4])
    epoch = 30 * 226 + 5 * len(validation)
    expected = [pair for e in range(4) for pair in evenly(1 + e * epoch, 226, 30)]
    assert expected == stretches


def test_start_before_the_first_anchor() -> None:
    """Four micro-batches and an optimiser, whose kernels alone run once: the step starts with the first micro-batch."""
    micro = [0, 1, *FORWARD * 6, 2, 3, *BACKWARD * 6]
    step = [*micro * 4, 5, 6, 7, 8, 9, 30, 31]
    assert evenly(0, len(step), 12) == repetitions(step * 12)


@pytest.mark.parametrize("seed", range(5))
def test_variation(seed: int) -> None:
    """200 steps with up to 7 kernels more and 3 fewer each are found, to the kernel where the first is kept."""
    random = np.random.default_rng(seed)
    sequence: list[int] = []
    starts = []
    for _ in range(200):
        step = list(STEP)
        for _ in range(random.integers(0, 8)):
            step.insert(random.integers(1, len(step)), 500 + random.integers(0, 3))
        for _ in range(random.integers(0, 4)):
            step.pop(random.integers(4, len(step)))
        starts.append(len(sequence))
        sequence += step
    assert [first for first, _ in repetitions(sequence)] == starts


def test_warm_up_of_other_kernels_is_no_repetition() -> None:
    """A thousand kernels of autotuning before the steps, some of them the steps' own, are prologue."""
    tuning = np.random.default_rng(1).choice([5, 7, *range(200, 230)], 1000).tolist()
    assert evenly(1000, 226, 20) == repetitions([*tuning, *STEP * 20])[-20:]


def test_first_repetition_may_be_longer() -> None:
    """A first step that runs 150 kernels of its own in the middle is a step, whole."""
    first = [*STEP[:100], *range(300, 450), *STEP[100:]]
    assert [(0, 376), *evenly(376, 226, 10)] == repetitions([*first, *STEP * 10])


def test_repetition_starts_after_the_longest_pause() -> None:
    """With a pause of 100 before every element 3 of 1 2 3 4, a repetition is 3 4 1 2; the capture starts with 1."""
    sequence = [1, 2, 3, 4] * 6
    pause = np.array([0 if code != 3 else 100 for code in sequence], np.int64)
    assert evenly(2, 4, 5) == repetitions(sequence, pause)


def test_even_pauses_do_not_move_the_start() -> None:
    """Pauses that are about the same everywhere say nothing: the first element starts the repetition."""
    sequence = [1, 2, 3, 4] * 6
    pause = np.random.default_rng(2).integers(90, 110, 24)
    assert evenly(0, 4, 6) == repetitions(sequence, pause)


def test_pause_finds_the_start_of_uneven_repetitions() -> None:
    """Where steps differ by a few elements, each starts at its own pause."""
    random = np.random.default_rng(4)
    sequence: list[int] = []
    starts = []
    for _ in range(30):
        extra = [500] * int(random.integers(0, 6))
        starts.append(len(sequence))
        sequence += [*FORWARD * 12, *extra, *STEP[-130:], 2, 3, 4]
    pause = np.zeros(len(sequence), np.int64)
    pause[starts] = 1000
    assert [first for first, _ in repetitions(sequence, pause)] == starts


def test_codes_are_names() -> None:
    """Other numbers for the same elements change nothing."""
    sequence = np.array(STEP * 5)
    other = np.random.default_rng(5).permutation(10_000)[sequence]
    assert repetitions(sequence.tolist()) == repetitions(other.tolist())


def test_bounds_by_hand() -> None:
    """Stretch 0..2 is followed at once by 2..4: it ends where that begins; the last ends with its longest interval.

    Stretches with other intervals between them end with their own last, at most where the next begins; none have none.
    """
    start, end = np.array([0, 3, 10, 13, 30]), np.array([2, 5, 40, 15, 31])
    assert [[0, 10], [10, 40]] == [b.tolist() for b in bounds(start, end, np.array([0, 2]), np.array([2, 4]))]
    start, end = np.array([0, 3, 10, 20]), np.array([2, 30, 12, 25])
    assert [[0, 20], [20, 25]] == [b.tolist() for b in bounds(start, end, np.array([0, 3]), np.array([2, 4]))]
    assert [0, 0] == [len(b) for b in bounds(np.array([1]), np.array([2]), NONE, NONE)]


SHAPES = {
    "plain": Shape(),
    "three streams with NCCL": Shape(streams=3, nccl=True),
    "CUDA graphs": Shape(graph=True),
    "20 kernels a step": Shape(kernels_per_step=20),
    "five kernels a step": Shape(kernels_per_step=5),
    "hostile names": Shape(open_ranges=True, hostile_names=("<i>", "<b>epoch</b>", "", "aten::mm")),
}


@pytest.fixture(params=SHAPES)
def simulated(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[perfkit.Run, dict[str, Any]]:
    """A capture of 40 steps, and what is true of it."""
    shape = SHAPES[request.param]
    path = tmp_path / "run.sqlite"
    truth = capture(path, kernels=40 * shape.kernels_per_step, shape=shape)
    return perfkit.load(path), truth


def test_named_steps(simulated: tuple[perfkit.Run, dict[str, Any]]) -> None:
    """Ranges called step are found, each with its length."""
    run, truth = simulated
    found = detect(run.ranges, run.kernels)
    assert found["how"].unique().tolist() == ["nvtx"]
    assert len(found) == truth["steps"]["count"]
    assert found["name"].tolist() == [f"step {i}" for i in range(len(found))]


def test_steps_from_kernels(simulated: tuple[perfkit.Run, dict[str, Any]]) -> None:
    """Without ranges as many steps are found, and each kernel step starts within the range of its step."""
    run, truth = simulated
    named = detect(run.ranges, run.kernels)
    found = detect(RANGES.empty(), run.kernels)
    assert found["how"].unique().tolist() == ["kernel sequence"]
    assert len(found) == truth["steps"]["count"]
    inside = found["start_ns"].between(named["start_ns"], named["start_ns"] + named["dur_ns"])
    assert inside.all()


def test_two_processes(tmp_path: Path) -> None:
    """Of two processes in one capture the steps of one are found."""
    path = tmp_path / "run.sqlite"
    truth = capture(path, kernels=28 * 40, shape=Shape(gpus=2, processes=2))
    run = perfkit.load(path)
    assert truth["steps"]["count"] == 40
    assert [20, 20] == [len(detect(ranges, run.kernels)) for ranges in (run.ranges, RANGES.empty())]


def test_epoch_of_training(tmp_path: Path) -> None:
    """469 training steps, of which the first two warm up; 79 test batches after them are none of them."""
    run = perfkit.load(mlp_a100(tmp_path / "mlp"))
    named = detect(run.ranges, run.kernels)
    found = detect(RANGES.empty(), run.kernels)
    assert (469, 469) == (len(named), len(found))
    assert steady(named)["step"].tolist() == list(range(2, 469))
    # A step of kernels begins with its first kernel, after the host has loaded the data.
    late = found["start_ns"] - named["start_ns"]
    assert late.between(0, named["dur_ns"]).all()
    pd.testing.assert_series_equal(found["step"], named["step"])


def test_the_last_phase_is_where_the_length_of_steps_changed_for_good() -> None:
    """Steps of 9, then 4 ms with a straggler each: the second phase. Steps that vary are one phase."""

    def phase(lengths: list[int]) -> list[int]:
        ends = np.cumsum(lengths)
        rows = {"rank": 0, "step": range(len(lengths)), "start_ns": ends - lengths, "dur_ns": lengths, "name": "s"}
        return last_phase(STEPS.make(pd.DataFrame(rows).assign(how="nvtx", steady=True)))["dur_ns"].tolist()

    assert [4] * 9 + [8] + [4] * 10 == phase([9] * 12 + [3] + [9] * 7 + [4] * 9 + [8] + [4] * 10)
    assert [2] * 12 == phase([9] * 12 + [4] * 12 + [2] * 12)
    for one in ([9, 4] * 20, [5, 6, 7] * 10, [90] + [4] * 30, [4] * 30 + [90], [9, 4]):
        assert one == phase(one)


def test_the_step_of_the_gpu_lasts_to_the_first_kernel_of_the_next_step() -> None:
    """The CPU starts a step every 10 ns, the GPU every 15: 15, and 12 to the end of the last kernel."""
    found = STEPS.make(
        pd.DataFrame({"rank": 0, "step": range(3), "start_ns": [0, 10, 20], "dur_ns": 10, "name": "s"}).assign(
            how="nvtx", steady=True
        )
    )
    calls = api_calls(*({"start_ns": 10 * i + 2, "dur_ns": 1, "correlation": i, "name": "l"} for i in range(3)))
    work = kernels(*({"start_ns": 15 * i + 5, "dur_ns": 12, "correlation": i} for i in range(3)))
    assert [15, 15, 12] == on_gpu(found, work, calls).tolist()
