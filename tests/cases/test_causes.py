"""Kind (h): idle time has the cause that the CPU was busy with, and no other."""

from collections.abc import Callable

import pytest
from cases import programs
from cases.facts import (
    first_says,
    no_title_says,
    not_advised_first,
    places_follow_at,
    told,
    verdict_omits,
    verdict_says,
)
from cases.judging import Judgement
from cases.situations import Situation, by_nsys, by_torch
from cases.table import Case, Fact, facts_of

AFTER_A_WAIT = Situation(programs.pausing_after_a_wait, by_nsys)
AFTER_A_COPY = Situation(programs.pausing_after_a_copy, by_nsys)
HIDDEN = Situation(programs.loading_behind_the_gpu, by_torch)
ON_THE_CPU = Situation(programs.optimizing_on_the_cpu, by_torch)
PAUSE = ("cpu ran code", "cpu code", "pause")

CASES = (
    Case(
        "h1",
        AFTER_A_WAIT,
        (
            Fact("the verdict is the pause", verdict_says(*PAUSE)),
            Fact("the wait before it is no cause", verdict_omits("waited for the gpu")),
            Fact("to remove .item() does not come first", not_advised_first(".item()")),
            Fact("the three pauses are told", told("3 pauses")),
            Fact("the verdict tells them once", verdict_omits("the longest takes")),
            Fact("the page says where once", places_follow_at()),
        ),
    ),
    Case(
        "h1 twin",
        AFTER_A_WAIT.twin,
        (Fact("waits for a busy GPU cost nothing", no_title_says("waits of the cpu")),),
    ),
    Case(
        "h1 where the copy waits",
        AFTER_A_COPY,
        (
            Fact("the verdict is the pause", verdict_says(*PAUSE)),
            Fact("the three pauses are told", told("3 pauses")),
        ),
    ),
    Case(
        "h2",
        HIDDEN,
        (
            Fact("the GPU waits for no data", no_title_says("data", "load", "input")),
            Fact("the verdict is the kernels", verdict_says("computes")),
        ),
    ),
    Case(
        "h2 twin",
        HIDDEN.twin,
        (
            Fact(
                "a loader that is too slow is the verdict",
                verdict_says("loading data", "data loading"),
            ),
            Fact("a loader that is too slow is the first finding", first_says("data loading")),
        ),
    ),
    Case(
        "h3",
        ON_THE_CPU,
        (
            Fact("the verdict is the optimizer", verdict_says("optimizer")),
            Fact("the copies are not the verdict", verdict_omits("synchronous copies hold up")),
            Fact("the optimizer's range is told", told("optimizer.step#adamw.step")),
        ),
    ),
    Case(
        "h3 twin",
        ON_THE_CPU.twin,
        (Fact("an optimizer on the GPU is no cause", verdict_omits("optimizer")),),
    ),
)


@pytest.mark.parametrize(("case", "fact"), facts_of(*CASES))
def test_idle_time_has_its_own_cause(
    case: Case, fact: Fact, judge: Callable[[Case], Judgement]
) -> None:
    assert "" == fact.test(judge(case))
