"""What `perfkit check` says of pairs of runs that are drawn without perfkit; `python -m tests.pairs` counts more."""

import pytest
from pairs.cases import CASES, Case, checked
from pairs.program import IRREGULAR, NVTX

LITTLE = 0.005  # noise between runs, which does not move the answer
BY_NAME = {case.name: case for case in CASES}


def name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=name)
def test_without_steps_equal_work_is_compared(case: Case) -> None:
    """No range and no sequence shows a step: the answer is one of those that are right all the same."""
    assert checked(case, IRREGULAR, LITTLE, 0) in case.right


@pytest.mark.parametrize(
    "which", ["equal", "pause 10 %", "warm-up", "other number of steps", "lost operations"]
)
def test_with_steps_the_same_answers_are_right(which: str) -> None:
    assert checked(BY_NAME[which], NVTX, LITTLE, 0) in BY_NAME[which].right
