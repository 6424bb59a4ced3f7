"""Steps: named ranges, repetitions of kernels, ranks, windows, which are steady; and those of simulated captures."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call, steps
from frames import api_calls, copies, kernels, lasting, ranges, tuples

import perfkit
from make import Shape, capture
from perfkit.analysis.intervals import Int
from perfkit.analysis.sequences import repeats
from perfkit.analysis.steps import (
    STEPS,
    by_gpu,
    detect,
    inside,
    iterations,
    last_phase,
    of_program,
    on_gpu,
    steady,
    without_launches,
)
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

KERNEL_STEP = ["embed", *["gemm", "softmax"] * 6, "loss", *["gemm", "wgrad"] * 6, "adam"]


def training(
    number: int, *, prologue: int = 0, begin: int = 0, **more: Any
) -> list[dict[str, Any]]:
    rows = every(10, 5, "init_{}", prologue, at=begin, **more)
    begin += 10 * prologue
    for step in range(number):
        at = begin + 370 * step + 100
        rows += [lasting(at + 10 * i, 5, name, **more) for i, name in enumerate(KERNEL_STEP)]
    return rows


def every(
    period: int, dur: int, name: str, count: int, *, at: int = 0, **more: Any
) -> list[dict[str, Any]]:
    return [lasting(at + period * i, dur, name.format(i), **more) for i in range(count)]


def named(*durations: int) -> pd.DataFrame:
    starts = [sum(durations[:i]) for i in range(len(durations))]
    return ranges(
        *(
            lasting(s, d, f"Step {i}")
            for i, (s, d) in enumerate(zip(starts, durations, strict=True))
        )
    )


def steadiness(*durations: int) -> list[bool]:
    return detect(named(*durations), KERNELS.empty())["steady"].tolist()


def test_kernel_sequence_by_hand() -> None:
    found = detect(RANGES.empty(), kernels(*training(4, prologue=9)))
    times = (190, 370), (560, 370), (930, 370), (1300, 265)
    columns = "step", "start_ns", "dur_ns", "how", "name"
    assert tuples(found, *columns) == [
        (i, *time, "kernel sequence", "embed") for i, time in enumerate(times)
    ]


def test_bursts_of_one_kernel_are_steps() -> None:
    """Six bursts of five kernels of 20 µs each 1 µs, and 0.9 ms to the next burst."""
    bursts = [every(21_000, 20_000, "stencil", 5, at=i * 1_000_000) for i in range(6)]
    found = detect(RANGES.empty(), kernels(*(row for burst in bursts for row in burst)))
    assert [i * 1_000_000 for i in range(6)] == found["start_ns"].tolist()


def test_kernels_that_rest_as_long_each_time_are_steps_of_their_own() -> None:
    found = detect(RANGES.empty(), kernels(*every(1_000_000, 20_000, "stencil", 20)))
    assert 20 == len(found)


def test_launches_of_one_kernel_alone_are_no_steps_but_with_a_copy_each_are() -> None:
    work = kernels(*every(1_000_000, 20_000, "stencil", 20))
    found = detect(RANGES.empty(), work)
    with_copies = copies(*every(1_000_000, 5_000, "", 20, at=500_000))
    assert 0 == len(without_launches(found, work, COPIES.empty()))
    assert 20 == len(without_launches(found, work, with_copies))


def test_the_device_that_runs_more_steps_tells_those_of_the_rank() -> None:
    """Device 1 runs five steps and device 0 three."""
    found = detect(RANGES.empty(), kernels(*training(3), *training(5, begin=7, gpu=1)))
    assert found["start_ns"].tolist() == [107 + 370 * i for i in range(5)]


def test_what_does_not_repeat_has_no_steps() -> None:
    assert detect(ranges(lasting(0, 9, "main")), kernels(*training(2, prologue=30))).empty


def test_kernels_of_one_launch_of_a_graph_are_no_steps_and_of_one_for_each_step_are() -> None:
    one = [{**row, "in_graph": True, "correlation": 7} for row in training(4)]
    each = [{**row, "correlation": i // len(KERNEL_STEP)} for i, row in enumerate(one)]
    assert [0, 4] == [len(detect(RANGES.empty(), kernels(*rows))) for rows in (one, each)]


def test_ranks_come_in_any_order() -> None:
    frame = kernels(*training(4), *training(5, rank=1))
    turned = pd.concat([frame[frame["rank"] == 1], frame[frame["rank"] == 0]])
    pd.testing.assert_frame_equal(detect(RANGES.empty(), frame), detect(RANGES.empty(), turned))


def test_steps_of_the_profiler_come_first() -> None:
    # Be they two; those of a thread with fewer are left out.
    for marked in ({"name": "ProfilerStep#{}"}, {"name": "anything", "kind": "step"}):
        spans = [*every(1000, 900, count=2, **marked), *every(100, 90, "Batch {}", 20, depth=1)]
        found = detect(ranges(*spans, {**spans[0], "thread": 7}), KERNELS.empty())
        assert [(0, 900, "profiler step"), (1000, 900, "profiler step")] == tuples(
            found, "start_ns", "dur_ns", "how"
        )


def test_ranks_have_steps_of_their_own_and_named_ones_come_before_the_kernels() -> None:
    spans = ranges(*every(370, 300, "Step {}", 3, at=100), lasting(0, 5, "main", rank=1))
    found = detect(spans, kernels(*training(4), *training(4, rank=2)))
    expected = [*((0, i, "nvtx") for i in range(3)), *((2, i, "kernel sequence") for i in range(4))]
    assert expected == tuples(found, "rank", "step", "how")


def test_steps_in_a_window_keep_their_numbers() -> None:
    found = inside(detect(named(*[100] * 6), KERNELS.empty()), (50, 350), KERNELS.empty())
    assert [(1, 100, 100), (2, 200, 100)] == tuples(found, "step", "start_ns", "dur_ns")


def test_steady_steps_keep_their_numbers() -> None:
    kept = steady(detect(named(900, 100, 100, 100), KERNELS.empty()))
    assert (STEPS.column_names, [1, 2, 3]) == (kept.columns.tolist(), kept["step"].tolist())


# The CPU launches a kernel every 10 ns, the GPU starts one every 15.
LAUNCHES = api_calls(*(call(10 * i + 2, 10 * i + 3, correlation=i) for i in range(3)))
WORK = kernels(*(lasting(15 * i + 5, 12, correlation=i) for i in range(3)))


LATE = api_calls(*(call(at, at + 1, correlation=i) for i, at in enumerate((2, 12, 34))))


def test_steps_take_as_long_as_on_the_gpu() -> None:
    """15 ns each, and 12 to the end of the last kernel."""
    assert [15, 15, 12] == on_gpu(steps((0, 10), (10, 20), (20, 30)), WORK, LAUNCHES).tolist()


def test_a_step_that_outlasts_its_work_has_no_time_of_its_own_on_the_gpu() -> None:
    """The kernels end at 17, 32 and 47 ns: only the second step goes on for longer."""
    assert [15, -1, 12] == on_gpu(steps((0, 10), (10, 33), (33, 43)), WORK, LATE).fillna(
        -1
    ).tolist()


def test_a_step_that_launches_nothing_has_no_time_on_the_gpu() -> None:
    """The first call comes before all steps, the second step launches nothing; rank 1 has kernels of its own."""
    later = WORK.assign(rank=1, start_ns=WORK["start_ns"] + 100)
    both = pd.concat([LAUNCHES, LAUNCHES.assign(rank=1)]), pd.concat([WORK, later])
    of_two = pd.concat(
        [steps((10, 13), (13, 20), (20, 30)), steps((0, 90)).assign(rank=1)], ignore_index=True
    )
    took = on_gpu(STEPS.make(of_two), KERNELS.make(both[1]), API_CALLS.make(both[0]))
    assert [32 - 20, -1, 47 - 35, 147 - 105] == took.fillna(-1).tolist()


def test_the_gpu_takes_steps_from_one_first_kernel_to_the_next() -> None:
    """Kernels begin at 5, 20 and 35 ns; the last one ends at 47, after the CPU has left its step."""
    found = by_gpu(steps((0, 10), (10, 20), (20, 30)), WORK, LAUNCHES)
    assert [(5, 15), (20, 15), (35, 12)] == tuples(found, "start_ns", "dur_ns")


def test_a_last_step_whose_first_kernel_the_cpu_prepares_lasts_as_long_as_on_the_cpu() -> None:
    """The GPU is idle when the CPU begins its last step at 50, which lasts 30 ns."""
    work = kernels(*(lasting(at, 12, correlation=i) for i, at in enumerate((5, 30, 57))))
    calls = api_calls(*(call(at, at + 1, correlation=i) for i, at in enumerate((4, 29, 56))))
    found = by_gpu(steps((0, 25), (25, 50), (50, 80)), work, calls)
    assert [(5, 25), (30, 27), (57, 30)] == tuples(found, "start_ns", "dur_ns")


def test_a_last_step_in_which_the_recording_ends_late_is_not_steady() -> None:
    """Nor is the first, which is longer than all others but the last."""
    assert [False, True, True, True, True, False] == steadiness(160, 122, 123, 118, 127, 206)


def test_a_slow_last_step_is_steady_where_others_are_as_slow() -> None:
    assert [True] * 6 == steadiness(100, 100, 200, 100, 100, 206)


@pytest.mark.parametrize(
    ("durations", "slow_count"),
    [
        # 900, 300 and 160 before steps of 100 exceed 1.5 * 100: warm-up; a later slow one is not.
        ([900, 300, 160, *[100] * 6, 400, 100, 100, 100], 3),
        # 120 is less than 1.5 * 100, but longer than every later step; 120 with a later 130 is steady.
        ([120, 100, 100, 110], 1),
        ([120, 100, 100, 130], 0),
        # Eight slow steps before eight fast ones are no warm-up: the first, the slowest, is left out.
        ([210, *[200] * 7, *[100] * 8], 1),
        # Where later steps vary between 10 and 300, earlier ones of 100 are nothing special.
        ([100, 100, 10, 300, 10, 300, 10, 300, 10, 10], 0),
        # What recurs is no warm-up: a checkpoint in every third step, the first in the first step.
        ([274, 7, 5, 265, 7, 6], 0),
        # One that lasts half as long, or one slow step of thirty, is no sign of that.
        ([274, 7, 5, 137, 7, 6], 1),
        ([274, *[7] * 10, 265, *[7] * 20], 1),
    ],
)
def test_slow_first_steps_are_warm_up(durations: list[int], slow_count: int) -> None:
    steady_count = len(durations) - slow_count
    assert [False] * slow_count + [True] * steady_count == steadiness(*durations)


def test_a_short_last_step_ended_before_the_next_would_have_begun() -> None:
    assert steadiness(*[100] * 5, 60) == [True] * 5 + [False]
    assert steadiness(*[100] * 5, 70) == [True] * 6


NONE = np.zeros(0, np.int64)


def found(
    spans: Iterable[dict[str, Any]], launched: np.ndarray = NONE
) -> list[tuple[int, int, str]]:
    return tuples(iterations(ranges(*spans), launched), "start_ns", "dur_ns", "name")


LOADING = "Data loading"
LOADINGS = [*((100 * i, 100, LOADING) for i in range(3)), (300, 90, LOADING)]


def loop(number: int) -> list[dict[str, Any]]:
    return [*every(100, 60, LOADING, number), *every(100, 20, "Batch {}", number, at=70)]


def test_a_range_called_step_is_the_iteration_as_long_as_it_lasts() -> None:
    for name in ("Step {}", "train_step_{}", "iteration {}/9", "batch [{}]", "Token {}", "step"):
        assert [(100 * i, 30, name.format(i).partition(", ")[0]) for i in range(4)] == found(
            every(100, 30, name, 4)
        )


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        # Loading and batch repeat together: from one loading to the next, the last to the end of its batch.
        (loop(4), LOADINGS),
        # A last loading without a batch, where the loader ends, is no iteration.
        ([*loop(4), lasting(400, 50, LOADING)], LOADINGS),
        # A logging range after every third batch is passed over: the batches are named, it is not.
        (
            [*loop(9), *every(300, 3, "logging", 3, at=95)],
            [*((100 * i, 100, LOADING) for i in range(8)), (800, 90, LOADING)],
        ),
        # Where only the forward pass has a name, an iteration goes from one to the next.
        (
            every(100, 30, "forward", 4),
            [*((100 * i, 100, "forward") for i in range(3)), (300, 30, "forward")],
        ),
        # Steps that contain forward and backward are the iterations, epochs around them are not.
        (
            [
                *every(1000, 1000, "Epoch {}", 3),
                *every(100, 80, "Step {}", 30, depth=1),
                *every(100, 40, "forward", 30, depth=2),
                *every(100, 40, "backward", 30, at=40, depth=2),
            ],
            [(100 * i, 80, f"Step {i}") for i in range(30)],
        ),
        # A range around the first step alone does not part it from the others, though it lies deeper.
        (
            [
                lasting(0, 95, "warm-up"),
                lasting(2, 88, "Step 0", depth=1),
                *every(100, 90, "Step {}", 5)[1:],
            ],
            [(2, 88, "Step 0"), *((100 * i, 90, f"Step {i}") for i in range(1, 5))],
        ),
        # Train and Test repeat with each of four epochs, but the batches inside say that they are the iterations.
        (
            [
                *every(1000, 800, "Train", 4),
                *every(1000, 200, "Test", 4, at=800),
                *(
                    row
                    for at in range(0, 4000, 1000)
                    for row in every(80, 70, "Batch {}", 10, at=at, depth=1)
                ),
            ],
            [(at + 80 * i, 70, f"Batch {i}") for at in range(0, 4000, 1000) for i in range(10)],
        ),
        # layer_0, layer_1, layer_2 come in every iteration: one of three ranges, not three of one.
        (
            [lasting(30 * i, 30, f"layer_{i % 3}") for i in range(15)],
            [(90 * i, 90, "layer_0") for i in range(5)],
        ),
        # Of two threads with a range per batch, the one whose ranges last longer tells the iterations.
        (
            [
                *every(100, 85, "batch {}", 5, at=5, thread=2),
                *every(100, 10, "batch {}", 5, thread=1),
            ],
            [(100 * i + 5, 85, f"batch {i}") for i in range(5)],
        ),
        # Operators, hooks and epochs repeat too, but nobody named them as iterations.
        *(
            (every(10, 9, name, 9), [])
            for name in (
                "aten::mm, seq = {}",
                "Optimizer.step#Adam.step",
                "{{'mod': 'Linear', 'op': {}}}",
                "epoch {}",
            )
        ),
        # Marks have no duration and show no iteration, and fewer than three are none.
        (every(10, 0, "step {}", 9, kind="mark"), []),
        *((loop(number), []) for number in range(3)),
    ],
)
def test_iterations_by_hand(
    spans: list[dict[str, Any]], expected: list[tuple[int, int, str]]
) -> None:
    assert expected == found(spans)


def test_kernels_must_start_within_the_iterations() -> None:
    spans = every(10, 8, "batch {}", 3)  # hold two of five kernels, or three
    assert [0, 3] == [len(found(spans, np.array([3, 15, third, 80, 90]))) for third in (60, 19)]
    # A range that says nothing is an iteration if it fills the time and kernels start in most of its repetitions.
    often = every(10, 8, "solve", 6)
    assert len(found(often, np.arange(5, 60, 10))) == 6
    assert found(often, np.array([5, 6, 7])) == []
    rare = [
        *every(300, 1, "a", 3),
        *every(300, 1, "b", 3, at=1),
        *every(300, 1, "other {}", 2, at=150),
    ]
    assert found(rare, np.arange(0, 900, 100)) == []


FORWARD = [10, 11, 12, 13, 14, 15, 13, 16]
BACKWARD = [20, 21, 22, 13, 23, 24, 25, 13, 26, 27]
# A training step of 12 layers: 226 kernels, of which 0, 1, 2, 3, 4 and 7 run once.
STEP = [0, 1, *FORWARD * 12, 2, 3, 4, *BACKWARD * 12, 5, 6, 5, 6, 7]


def repetitions(sequence: list[int], pause: Int | None = None) -> list[tuple[int, int]]:
    first, stop = repeats(np.array(sequence, np.int64), pause)
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def evenly(first: int, length: int, number: int) -> list[tuple[int, int]]:
    return list(pairwise(range(first, first + (number + 1) * length, length)))


LAYER = list(range(10))
VALIDATION = [0, 1, *FORWARD * 12, 2]
EPOCH = 30 * 226 + 5 * len(VALIDATION)
# Four micro-batches and an optimiser, whose kernels alone run once.
MICRO = [*[0, 1, *FORWARD * 6, 2, 3, *BACKWARD * 6] * 4, 5, 6, 7, 8, 9, 30, 31]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([1, 2, 3, 4] * 3, evenly(0, 4, 3)),
        ([1, 2] * 5, evenly(0, 2, 5)),
        ([1] * 4, evenly(0, 1, 4)),
        ([9, 8, 7, *[1, 2, 3, 4] * 6], evenly(3, 4, 6)),
        ([9, 8, *[1, 2, 3, 4] * 6, 5, 6], evenly(2, 4, 6)),
        ([9, *[1, 2, 3, 4, 5, 6, 7, 8] * 4, 1, 2, 3], evenly(1, 8, 4)),
        # Fewer than three repetitions are none.
        *((few, []) for few in ([], [1], [1, 2, 3, 4, 5, 6], [1, 2, 3, 1, 2, 3], [1, 1])),
        # Of 12 layers within a step, in which many kernels run 12 times, the step is taken: 226 kernels.
        ([90, 91, 92, *STEP * 40], evenly(3, 226, 40)),
        # 24 layers of 10 kernels with 4 before and 4 after them: the token of 248 kernels, not the layer.
        ([100, 101, 102, 103, *LAYER * 24, 104, 105, 106, 107] * 50, evenly(0, 248, 50)),
        # Four epochs of 30 steps and 5 validation runs: 120 steps, none of them with a validation run inside.
        (
            [90, *(STEP * 30 + VALIDATION * 5) * 4],
            [pair for e in range(4) for pair in evenly(1 + e * EPOCH, 226, 30)],
        ),
        # The step starts with the first micro-batch, before the first anchor.
        (MICRO * 12, evenly(0, len(MICRO), 12)),
        # A first step that runs 150 kernels of its own in the middle is a step, whole.
        (
            [*STEP[:100], *range(300, 450), *STEP[100:], *STEP * 10],
            [(0, 376), *evenly(376, 226, 10)],
        ),
    ],
)
def test_planted_periods(sequence: list[int], expected: list[tuple[int, int]]) -> None:
    assert expected == repetitions(sequence)


def test_random_sequences_do_not_repeat() -> None:
    for names in (2, 10, 300):
        assert repetitions(np.random.default_rng(names).integers(0, names, 20_000).tolist()) == []
    sequence = np.random.default_rng(9).integers(1, 500, 4000)
    sequence[::8] = 0  # comes after every seven others
    assert repetitions(sequence.tolist()) == []
    # A thousand kernels of autotuning before the steps, some of them the steps' own, are prologue.
    tuning = np.random.default_rng(1).choice([5, 7, *range(200, 230)], 1000).tolist()
    assert evenly(1000, 226, 20) == repetitions([*tuning, *STEP * 20])[-20:]


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_up_to_7_kernels_more_and_3_fewer(seed: int) -> None:
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


def test_repetition_starts_after_the_longest_pause() -> None:
    sequence = [1, 2, 3, 4] * 6
    pause = np.array([0 if code != 3 else 100 for code in sequence], np.int64)
    assert evenly(2, 4, 5) == repetitions(sequence, pause)
    # Pauses that are about the same everywhere say nothing.
    assert evenly(0, 4, 6) == repetitions(sequence, np.random.default_rng(2).integers(90, 110, 24))
    # Where steps differ by a few elements, each starts at its own pause.
    random = np.random.default_rng(4)
    steps = [
        [*FORWARD * 12, *[500] * int(random.integers(0, 6)), *STEP[-130:], 2, 3, 4]
        for _ in range(30)
    ]
    starts = np.cumsum([0, *map(len, steps[:-1])])
    pause = np.zeros(sum(map(len, steps)), np.int64)
    pause[starts] = 1000
    assert [
        first for first, _ in repetitions([code for step in steps for code in step], pause)
    ] == starts.tolist()


HOSTILE = Shape(open_ranges=True, hostile_names=("<i>", "<b>epoch</b>", "", "aten::mm"))
SHAPES = (
    Shape(),
    Shape(streams=3, nccl=True),
    Shape(graph=True),
    Shape(kernels_per_step=20),
    Shape(kernels_per_step=5),
)


@pytest.mark.parametrize("shape", [*SHAPES, HOSTILE])
def test_steps_of_simulated_captures(shape: Shape, tmp_path: Path) -> None:
    truth = capture(tmp_path / "run.sqlite", kernels=40 * shape.kernels_per_step, shape=shape)
    run = perfkit.load(tmp_path / "run.sqlite")
    named, found = detect(run.ranges, run.kernels), detect(RANGES.empty(), run.kernels)
    assert tuples(named, "how", "name") == [
        ("nvtx", f"step {i}") for i in range(truth["steps"]["count"])
    ]
    assert found["how"].tolist() == ["kernel sequence"] * truth["steps"]["count"]
    assert found["start_ns"].between(named["start_ns"], named["start_ns"] + named["dur_ns"]).all()


def test_the_last_phase_is_where_the_length_of_steps_changed_for_good() -> None:
    def phase(lengths: list[int]) -> list[int]:
        return last_phase(steps(*pairwise([0, *np.cumsum(lengths).tolist()])))["dur_ns"].tolist()

    assert [4] * 9 + [8] + [4] * 10 == phase([9] * 12 + [3] + [9] * 7 + [4] * 9 + [8] + [4] * 10)
    assert [2] * 12 == phase([9] * 12 + [4] * 12 + [2] * 12)
    for one in ([9, 4] * 20, [5, 6, 7] * 10, [90] + [4] * 30, [4] * 30 + [90], [9, 4]):
        assert one == phase(one)


def test_a_pause_of_minutes_within_a_step_leaves_the_slow_first_steps_slow() -> None:
    durations = [40, 40, 10, 10 + 10**6, 10, 10, 10, 10]
    begin = np.cumsum([0, *durations[:-1]]).tolist()
    work = [lasting(at + 1, 8, f"kernel {i}") for i, at in enumerate(begin)]
    found = detect(named(*durations), kernels(*work))
    assert [False, False, *[True] * 6] == found["steady"].tolist()


def test_ranges_of_a_process_that_launches_nothing_are_no_steps() -> None:
    polls = ranges(*every(50, 10, "poll", 40, process=9))
    launches = api_calls(*every(370, 5, "cudaLaunchKernel", 4))
    found = detect(polls, kernels(*training(4)), api_calls=launches)
    assert {"kernel sequence"} == set(found["how"])


def test_a_window_holds_the_steps_whose_kernels_lie_in_it() -> None:
    """The CPU runs 300 ns ahead: its steps 1 and 2 launch what runs from 400 to 600."""
    spans = ranges(*every(100, 90, "Step {}", 4))
    called = api_calls(
        *(lasting(100 * i + 5, 5, "cudaLaunchKernel", correlation=i) for i in range(4))
    )
    work = kernels(*(lasting(100 * i + 300, 80, "gemm", correlation=i) for i in range(4)))
    found = inside(detect(spans, work, api_calls=called), (400, 600), work, called)
    assert [1, 2] == found["step"].tolist()


def test_a_last_step_that_launches_nothing_only_began() -> None:
    """The profiler opens a third step when it closes the second, and stops: its 5 ns are no step."""
    spans = [*every(1000, 900, count=2, name="ProfilerStep#{}"), lasting(2000, 5, "ProfilerStep#2")]
    rows = [{"start_ns": at, "dur_ns": 100} for at in (100, 1100)]
    found = detect(ranges(*spans), kernels(*rows))
    assert [(0, 900), (1000, 900)] == tuples(found, "start_ns", "dur_ns")


def test_ranges_that_all_lie_in_one_another_are_no_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each depth has one range: nothing is looked for in it, which took a minute for 20,000 of them."""

    def looked_for(code: np.ndarray) -> None:
        raise AssertionError(code)

    monkeypatch.setattr("perfkit.analysis.steps.repeats", looked_for)
    start = np.arange(50)
    nested = pd.DataFrame({"start_ns": start, "dur_ns": 1000 - 2 * start, "kind": "push_pop"})
    nested = nested.assign(rank=0, process=1, thread=1, domain="")
    nested["name"] = pd.Categorical([f"r{number}" for number in start])
    assert 0 == len(iterations(nested, start))


def test_without_kernels_the_ranges_of_a_process_that_calls_cuda_count() -> None:
    marked = ranges(*({"start_ns": 0, "dur_ns": 9, "process": n} for n in (1, 2)))
    calls = api_calls({"start_ns": 0, "dur_ns": 9, "name": "cudaMemcpy", "process": 1})
    assert [1] == of_program(marked, KERNELS.empty(), calls)["process"].tolist()


def test_polls_of_a_thread_that_never_calls_cuda_are_no_steps() -> None:
    """Thread 2 polls as often as thread 1 launches; of its ranges only one that says "step" counts."""
    polls = [lasting(at, 9, "poll", thread=2) for at in range(0, 50, 10)]
    marked = ranges(*polls, lasting(0, 50, "step", thread=2), lasting(0, 50, "solve", thread=1))
    calls = api_calls({"start_ns": 0, "dur_ns": 1, "thread": 1})
    kept = of_program(marked, kernels({"start_ns": 0, "dur_ns": 1}), calls)
    assert {"step", "solve"} == set(kept["name"])


def test_ranges_count_where_no_thread_of_their_process_calls_cuda() -> None:
    marked = ranges(lasting(0, 9, "frame", thread=2))
    launched = kernels({"start_ns": 0, "dur_ns": 1})
    assert 1 == len(of_program(marked, launched, API_CALLS.empty()))
