"""Repetitions of a sequence: planted periods, prologues, variation, nesting, and sequences without any."""

from __future__ import annotations

import numpy as np
import pytest

from perfkit.analysis.intervals import Int
from perfkit.analysis.steps import bounds, repeats

FORWARD = [10, 11, 12, 13, 14, 15, 13, 16]
BACKWARD = [20, 21, 22, 13, 23, 24, 25, 13, 26, 27]
# A training step of 12 layers: 226 kernels, of which 0, 1, 2, 3, 4 and 7 run once.
STEP = [0, 1, *FORWARD * 12, 2, 3, 4, *BACKWARD * 12, 5, 6, 5, 6, 7]


def found(sequence: list[int], pause: Int | None = None) -> list[tuple[int, int]]:
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
    assert expected == found(sequence)


@pytest.mark.parametrize("sequence", [[], [1], [1, 2, 3, 4, 5, 6], [1, 2, 3, 1, 2, 3], [1, 1]])
def test_too_few_repetitions(sequence: list[int]) -> None:
    """Fewer than three repetitions are none."""
    assert found(sequence) == []


@pytest.mark.parametrize("names", [2, 10, 300])
def test_random_sequences_do_not_repeat(names: int) -> None:
    """Names drawn at random have no period."""
    assert found(np.random.default_rng(names).integers(0, names, 20_000).tolist()) == []


def test_even_distance_alone_is_no_repetition() -> None:
    """An element after every seven others is no start of a repetition when the others are drawn at random."""
    sequence = np.random.default_rng(9).integers(1, 500, 4000)
    sequence[::8] = 0
    assert found(sequence.tolist()) == []


def test_layers_are_no_steps() -> None:
    """Of 12 layers within a step, in which many kernels run 12 times, the step is taken: 226 kernels."""
    assert evenly(3, 226, 40) == found([90, 91, 92, *STEP * 40])


def test_tokens_of_an_inference() -> None:
    """24 layers of 10 kernels with 4 before and 4 after them: the token of 248 kernels, not the layer."""
    layer = list(range(10))
    assert evenly(0, 248, 50) == found([100, 101, 102, 103, *layer * 24, 104, 105, 106, 107] * 50)


def test_epochs_are_no_steps() -> None:
    """Four epochs of 30 steps and 5 validation runs: 120 steps, none of them with a validation run inside."""
    validation = [0, 1, *FORWARD * 12, 2]
    stretches = found([90, *(STEP * 30 + validation * 5) * 4])
    epoch = 30 * 226 + 5 * len(validation)
    expected = [pair for e in range(4) for pair in evenly(1 + e * epoch, 226, 30)]
    assert expected == stretches


def test_start_before_the_first_anchor() -> None:
    """Four micro-batches and an optimiser, whose kernels alone run once: the step starts with the first micro-batch."""
    micro = [0, 1, *FORWARD * 6, 2, 3, *BACKWARD * 6]
    step = [*micro * 4, 5, 6, 7, 8, 9, 30, 31]
    assert evenly(0, len(step), 12) == found(step * 12)


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
    assert [first for first, _ in found(sequence)] == starts


def test_warm_up_of_other_kernels_is_no_repetition() -> None:
    """A thousand kernels of autotuning before the steps, some of them the steps' own, are prologue."""
    tuning = np.random.default_rng(1).choice([5, 7, *range(200, 230)], 1000).tolist()
    assert evenly(1000, 226, 20) == found([*tuning, *STEP * 20])[-20:]


def test_first_repetition_may_be_longer() -> None:
    """A first step that runs 150 kernels of its own in the middle is a step, whole."""
    first = [*STEP[:100], *range(300, 450), *STEP[100:]]
    assert [(0, 376), *evenly(376, 226, 10)] == found([*first, *STEP * 10])


def test_repetition_starts_after_the_longest_pause() -> None:
    """With a pause of 100 before every element 3 of 1 2 3 4, a repetition is 3 4 1 2; the capture starts with 1."""
    sequence = [1, 2, 3, 4] * 6
    pause = np.array([0 if code != 3 else 100 for code in sequence], np.int64)
    assert evenly(2, 4, 5) == found(sequence, pause)


def test_even_pauses_do_not_move_the_start() -> None:
    """Pauses that are about the same everywhere say nothing: the first element starts the repetition."""
    sequence = [1, 2, 3, 4] * 6
    pause = np.random.default_rng(2).integers(90, 110, 24)
    assert evenly(0, 4, 6) == found(sequence, pause)


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
    assert [first for first, _ in found(sequence, pause)] == starts


def test_codes_are_names() -> None:
    """Other numbers for the same elements change nothing."""
    sequence = np.array(STEP * 5)
    other = np.random.default_rng(5).permutation(10_000)[sequence]
    assert found(sequence.tolist()) == found(other.tolist())


def test_bounds_by_hand() -> None:
    """Stretch 0..2 is followed at once by 2..4: it ends where that begins; the last ends with its longest interval."""
    start, end = np.array([0, 3, 10, 13, 30]), np.array([2, 5, 40, 15, 31])
    begin, finish = bounds(start, end, np.array([0, 2]), np.array([2, 4]))
    assert (begin.tolist(), finish.tolist()) == ([0, 10], [10, 40])


def test_bounds_of_stretches_apart() -> None:
    """Stretches with other intervals between them end with their own last, at most where the next begins."""
    start, end = np.array([0, 3, 10, 20]), np.array([2, 30, 12, 25])
    begin, finish = bounds(start, end, np.array([0, 3]), np.array([2, 4]))
    assert (begin.tolist(), finish.tolist()) == ([0, 20], [20, 25])


def test_bounds_of_nothing() -> None:
    """No stretches have no bounds."""
    none = np.zeros(0, np.int64)
    assert [0, 0] == [len(b) for b in bounds(np.array([1]), np.array([2]), none, none)]
