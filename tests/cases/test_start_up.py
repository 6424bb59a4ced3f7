"""Kind (a): start-up, one-off gaps and phases are not judged as the loop."""

from collections.abc import Callable

import pytest
from adversary.machine import Machine
from cases import programs
from cases.facts import (
    advised,
    bound_reaches_truth,
    figure_is,
    first_says,
    gains_at_most,
    no_title_says,
    not_advised,
    not_advised_first,
    not_told,
    nothing_gained,
    share_told,
    told,
    verdict_omits,
    verdict_says,
)
from cases.judging import Judgement
from cases.situations import Logged, Situation, by_nsys
from cases.table import Case, Fact, facts_of
from cases.truths import (
    busy_without_the_first_kernel,
    busy_without_the_longest_gap,
)

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.headline import leading
from perfkit.report.notebooks import sample

SECOND = 10**9
FIRE = "nsys/IkerCanut__fire_spread__report1.sqlite"
GEMMS = "nsys/florianmattana__CUDA-Kernels__prof.sqlite"
SORT = "nsys/annikola__cuda_bitonic_sort__report1.sqlite"
MIXQ = "nsys/Qcompiler__MIXQ__src_report1.sqlite"
EQUAL_GEMMS = "torch/JeremyMorlier__GPUModel__trace2.json"


def idle_before_the_start(_: Machine, at: int) -> tuple[int, int, int]:
    """What nvidia-smi reads of a GPU that has no work until the program starts, and no end of work then."""
    return (99, 1410, 0) if at >= 0 else (0, 210, 1)


UPLOAD = Situation(programs.uploading_weights, by_nsys)
ALLOCATION = Situation(programs.allocating_at_first, by_nsys)
PREFILL = Situation(programs.prefilling, by_nsys)
SAVING = Situation(programs.saving_at_the_end, by_nsys)
FREEING = Situation(programs.freeing_in_some_steps, by_nsys)
LOG = Logged(idle_before_the_start, before_ns=20 * SECOND)
LOGGED = Situation(programs.busy_for_seconds, LOG)
LOGGED_IN_TIME = Situation(programs.busy_for_seconds, Logged(idle_before_the_start))

CASES = (
    Case(
        "a1",
        FIRE,
        (
            Fact("start-up takes 16.5 of 18.6 ms", verdict_says("start-up takes 16.5 of 18.6 ms")),
            Fact(
                "the verdict begins with start-up",
                verdict_says("start-up", "loading kernels", "first launch"),
            ),
            Fact(
                "160 kB of pageable copies are no verdict",
                verdict_omits("pageable"),
            ),
            Fact(
                "the steady loop keeps the GPU 41 % busy",
                share_told(busy_without_the_first_kernel, 0.005),
            ),
            Fact(
                "the loop waits for the CPU",
                told("waits of the cpu", "waited for the gpu", "waits for the gpu"),
            ),
        ),
    ),
    Case(
        "a1 from 273.72 to 276.2 ms",
        FIRE,
        (
            Fact("the GPU is idle 65.0 % of the loop", figure_is("idle_frac", 0.650, 0.002)),
            Fact("the verdict names the waits", verdict_says("waited for the gpu", "waits")),
            Fact("the loop gains at most 1.7 times", gains_at_most(1.75)),
        ),
        choice={"window": (273_720_000, 276_200_000)},
    ),
    Case(
        "a2",
        GEMMS,
        (
            Fact(
                "the verdict tells of one pause",
                verdict_says("pause"),
            ),
            Fact("the pause lasts 10 min 16 s", told("10 min 16 s")),
            Fact("the bursts keep the GPU 69 % busy", share_told(busy_without_the_longest_gap)),
            Fact(
                "the pause is no loss of a loop",
                verdict_omits("because the cpu ran code outside cuda"),
            ),
            Fact(
                "nothing is moved out of a loop",
                not_advised("out of the loop", "of the step"),
            ),
        ),
    ),
    Case(
        "a3",
        SORT,
        (
            Fact(
                "copies before and after the sort are outside of the loop",
                verdict_says("what follows the last"),
            ),
            Fact(
                "the copies are made once",
                told("once", "one-off", "one copy in", "before the loop", "outside the loop"),
            ),
            Fact(
                "no step copies anything",
                not_advised("of one step", "next batch"),
            ),
            Fact(
                "sorted data come back and are no weights",
                not_advised("weights", "as many bytes move each way"),
            ),
        ),
    ),
    Case(
        "a4",
        MIXQ,
        (
            Fact(
                "the verdict is start-up or too little",
                verdict_says("start-up", "too little", "too few", "too short"),
            ),
            Fact(
                "no gain is claimed of a start-up",
                nothing_gained(),
            ),
            Fact("steady steps are to be recorded", advised("steady steps")),
            Fact(
                "there is no loop to leave",
                not_advised("the loop"),
            ),
        ),
    ),
    Case(
        "a10",
        ALLOCATION,
        (
            Fact(
                "the verdict is warm-up",
                verdict_says("warm-up", "warm up", "first 10 steps", "start-up"),
            ),
            Fact(
                "the first finding is warm-up",
                first_says("warm-up", "warm up", "start-up"),
            ),
            Fact("the steady steps are told too", verdict_says("computes")),
            Fact(
                "the steady steps do not allocate",
                nothing_gained("allocat", "free memory"),
            ),
            Fact(
                "nothing is removed from the loop",
                not_advised("empty_cache", "from the loop"),
            ),
        ),
    ),
    Case(
        "a10 twin",
        ALLOCATION.twin,
        (
            Fact("no warm-up is found", no_title_says("warm-up", "start-up")),
            Fact("the verdict is the kernels", verdict_says("computes")),
        ),
    ),
    Case(
        "a11",
        UPLOAD,
        (
            Fact(
                "the upload comes once",
                told(
                    "once",
                    "start-up",
                    "before the first step",
                    "before the loop",
                    "outside the steps",
                ),
            ),
            Fact(
                "the verdict is not the copies of the steps",
                verdict_omits("copies of pageable memory hold up"),
            ),
            Fact(
                "no DataLoader is blamed",
                not_advised("dataloader"),
            ),
            Fact(
                "the steps keep the GPU 98 % busy or more",
                share_told(0.99, 0.011),
            ),
            Fact(
                "no step gains anything",
                nothing_gained("pageable", "outside cuda"),
            ),
        ),
    ),
    Case(
        "a11 twin",
        UPLOAD.twin,
        (
            Fact("no start-up is found", no_title_says("start-up", "warm-up")),
            Fact("the verdict is the kernels", verdict_says("computes")),
        ),
    ),
    Case(
        "a12",
        PREFILL,
        (
            Fact(
                "a prefill is no warm-up",
                no_title_says("warm-up"),
            ),
            Fact(
                "the verdict does not speak of warm-up",
                verdict_omits("warm-up"),
            ),
            Fact(
                "two phases are told",
                told("two phases", "2 phases", "prefill", "other kernels"),
            ),
        ),
    ),
    Case("a12 twin", PREFILL.twin, (Fact("one phase has no warm-up", no_title_says("warm-up")),)),
    Case(
        "a13",
        SAVING,
        (
            Fact("the verdict is the checkpoints", verdict_says("checkpoint")),
            Fact("their share is that of the gain", verdict_says("68.4 %")),
            Fact(
                "three checkpoints are counted",
                first_says("3 of them", "three"),
            ),
            Fact(
                "their copies are no finding of their own",
                no_title_says("pageable"),
            ),
            Fact(
                "the bound reaches what is possible",
                bound_reaches_truth,
            ),
        ),
    ),
    Case(
        "a13 twin",
        SAVING.twin,
        (Fact("no checkpoint is found", no_title_says("checkpoint", "file")),),
    ),
    Case(
        "a14",
        LOGGED,
        (
            Fact(
                "readings before the program do not count",
                no_title_says("utilisation"),
            ),
            Fact(
                "the log and the timeline agree",
                figure_is("log_gpu_busy_frac", 0.99),
            ),
            Fact("the verdict is the kernels", verdict_says("computes")),
            Fact(
                "what does not count is told",
                told("before the timeline", "outside the timeline", "before it began"),
            ),
        ),
    ),
    Case(
        "a14 twin",
        LOGGED_IN_TIME,
        (
            Fact("readings beside the program count", figure_is("log_gpu_busy_frac", 0.99)),
            Fact("no utilisation is blamed", no_title_says("utilisation")),
        ),
    ),
    Case(
        "a15",
        FREEING,
        (
            Fact("the long steps are told", told("100 ms", "101 ms", "102 ms")),
            Fact(
                "the short steps are told",
                told("11.3 ms", "11.4 ms", "11.5 ms"),
            ),
            Fact(
                "what differs are the frees",
                told("cudafree", "allocate or free", "allocating or freeing"),
            ),
            Fact(
                "nothing is removed from all steps",
                not_advised_first("empty_cache"),
            ),
        ),
    ),
    Case(
        "a15 twin",
        FREEING.twin,
        (Fact("steps of one length are one kind", not_told("two kinds", "two lengths")),),
    ),
    Case(
        "a16 control",
        EQUAL_GEMMS,
        (
            Fact("five equal GEMMs compute", verdict_says("computes")),
            Fact("the GPU is always busy", figure_is("device_busy_frac", 1.0, 0.001)),
            Fact("a GEMM takes 117 ms", figure_is("kernel_mean_ns", 117e6)),
            Fact("nothing else gains anything", nothing_gained()),
        ),
    ),
)


def test_a_gap_at_the_edge_of_a_window_keeps_its_cause() -> None:
    """Loading takes 10.57 of the 11.36 ms of step 10, by SQL; a replay of the other 0.7 ms says nothing of it (a8)."""
    step = perfkit.select(perfkit.load(sample()), window=(11_365_903_167, 11_377_263_706))
    (found,) = (f for f in diagnosis.findings(step) if f.rule == "idle_data_loading")
    assert 10.568 / 11.361 == pytest.approx(found.gain.share, rel=1e-3)
    assert ("high", True) == (found.confidence, found.gain.high > 10)
    assert leading(diagnosis.findings(step))[0] == found


@pytest.mark.parametrize(("case", "fact"), facts_of(*CASES))
def test_start_up_and_phases_are_not_the_loop(
    case: Case, fact: Fact, judge: Callable[[Case], Judgement]
) -> None:
    assert "" == fact.test(judge(case))
