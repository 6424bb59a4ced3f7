"""What `perfkit check` says of pairs of runs that are drawn without perfkit; `python -m tests.pairs` counts more."""

import pytest
from pairs import rates
from pairs.cases import CASES, Case, checked, quickly_checked
from pairs.program import IRREGULAR, NVTX

LITTLE = 0.005  # noise between runs, which does not move the answer
BY_NAME = {case.name: case for case in CASES}


def name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=name)
@pytest.mark.sampled(3)
def test_without_steps_equal_work_is_compared(case: Case) -> None:
    """No range and no sequence shows a step: the answer is one of those that are right all the same."""
    assert checked(case, IRREGULAR, LITTLE, 0) in case.right


@pytest.mark.parametrize(
    "which", ["equal", "pause 10 %", "warm-up", "other number of steps", "lost operations"]
)
def test_with_steps_the_same_answers_are_right(which: str) -> None:
    assert checked(BY_NAME[which], NVTX, LITTLE, 0) in BY_NAME[which].right


def test_the_quick_way_gives_the_same_answer() -> None:
    pair = BY_NAME["pause 10 %"], NVTX, LITTLE, 1
    assert checked(*pair) == quickly_checked(*pair)


PROMISED = [one for one in rates.read() if one.is_allowed]
EQUAL = [one for one in PROMISED if one.case.startswith("equal")]
WORSE = [one for one in PROMISED if BY_NAME[one.case].right == (1,) and "10 %" in one.case]


@pytest.mark.parametrize("one", EQUAL, ids=str)
def test_of_50_equal_pairs_at_most_one_fails(one: rates.Rate) -> None:
    assert 50 <= one.pairs
    assert one.failed <= one.pairs / 50


@pytest.mark.parametrize("one", WORSE, ids=str)
def test_of_50_regressions_of_twice_the_tolerance_49_fail(one: rates.Rate) -> None:
    assert 50 <= one.pairs
    assert one.failed >= 49 / 50 * one.pairs


def test_the_stored_rates_are_of_equal_and_of_slower_runs() -> None:
    assert {"nvtx", "irregular"} <= {one.form for one in EQUAL}
    assert {"kernels 10 %", "pause 10 %", "copies 10 %"} <= {one.case for one in WORSE}
