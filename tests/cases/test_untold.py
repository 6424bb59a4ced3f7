"""Kind (f): what a recording shows and nobody told."""

from collections.abc import Callable

import pytest
from adversary.machine import Machine
from cases import programs, truths
from cases.facts import (
    advised,
    bound_reaches_truth,
    first_says,
    gain_covers_truth,
    gain_of,
    no_title_says,
    not_told,
    nothing_gained,
    share_told,
    some_title_says,
    told,
    verdict_omits,
    verdict_says,
)
from cases.judging import Judgement
from cases.situations import Logged, Situation, Tables, by_nsys, by_ranks
from cases.table import Case, Fact, facts_of
from cases.tables import waiting_at_an_openmp_barrier

TWO_GPUS = "monitor/tkjunsei__OpenAD__gpu_usage_2xA6000.csv"
LAMMPS = "hpctoolkit/HPCToolkit__hpcviewer.e4__lmp-openmp-database"
ONE_CARD = "reports/nccl_one_network_card/nccl.txt"
GEMMS = "nsys/florianmattana__CUDA-Kernels__prof.sqlite"


def the_clock(machine: Machine, at: int) -> tuple[int, int, int]:
    """What nvidia-smi reads of a busy GPU whose clock falls by the power limit."""
    share = machine.gpus[0].clock(at)
    return 99, round(1410 * share), 0 if share == 1 else 4


def used_by_the_first(path: object) -> float:
    return truths.utilisation(path, "0")  # type: ignore[arg-type]


BARRIER = Tables(waiting_at_an_openmp_barrier)
SHARED = Situation(programs.sharing_a_gpu, by_nsys)
EXPERTS = Situation(programs.routing_to_one_expert, by_ranks)
THROTTLED = Situation(programs.throttled, Logged(the_clock))
PIECES = Situation(programs.copying_pieces, by_nsys)
SERVER = Situation(programs.waiting_for_requests, by_nsys)
UNUSED = Situation(programs.using_one_of_two_gpus, by_nsys)

CASES = (
    Case(
        "f3",
        TWO_GPUS,
        (
            Fact(
                "one of two GPUs is used",
                verdict_says(
                    "one of two", "one of the two", "1 of 2", "not used", "unused", "never used"
                ),
            ),
            Fact("GPU 0 is 91.0 % busy", share_told(used_by_the_first, 0.001)),
            Fact(
                "GPU 1 waits for nothing",
                verdict_omits("never reached 80 %"),
            ),
        ),
    ),
    Case(
        "f4",
        LAMMPS,
        (
            Fact("barriers spin", some_title_says("barrier", "openmp")),
            Fact("the spinning takes 5.1 %", share_told(83.6 / 1641.3, 0.001)),
            Fact(
                "sleeping threads are no work",
                told("poll", "epoll_wait", "sleep"),
            ),
        ),
    ),
    Case(
        "f5",
        BARRIER,
        (
            Fact(
                "the threads are unevenly loaded",
                some_title_says("barrier", "imbalance", "openmp"),
            ),
            Fact("the waiting takes 28.7 %", share_told(0.287, 0.001)),
            Fact(
                "the region is named",
                told("relax_cells"),
            ),
        ),
    ),
    Case(
        "f5 twin",
        BARRIER.twin,
        (Fact("an even load is no finding", no_title_says("barrier", "imbalance", "openmp")),),
    ),
    Case(
        "f6",
        ONE_CARD,
        (
            Fact(
                "data go through the memory of the host", verdict_says("gpudirect", "host memory")
            ),
            Fact(
                "eight GPUs share one card",
                told("nccl_ib_hca", "one card", "one network card", "mlx5_0"),
            ),
        ),
    ),
    Case(
        "f7",
        SHARED,
        (
            Fact(
                "two processes share the GPU",
                told("two processes", "2 processes"),
            ),
            Fact(
                "the verdict is not only the kernels",
                verdict_omits("only faster or fewer kernels"),
            ),
        ),
    ),
    Case(
        "f7 twin",
        SHARED.twin,
        (Fact("one process shares nothing", not_told("two processes", "2 processes")),),
    ),
    Case(
        "f8",
        EXPERTS,
        (
            Fact(
                "ranks wait for one another",
                verdict_says("wait", "imbalance", "uneven", "comes late"),
            ),
            Fact(
                "a finding names the imbalance",
                some_title_says("imbalance", "uneven", "comes late", "wait", "slowest"),
            ),
            Fact(
                "the gain is that of an even load",
                gain_covers_truth,
            ),
        ),
    ),
    Case(
        "f8 twin",
        EXPERTS.twin,
        (
            Fact(
                "an even load is no imbalance", no_title_says("imbalance", "comes late", "slowest")
            ),
        ),
    ),
    Case(
        "f9",
        THROTTLED,
        (
            Fact(
                "the verdict is the clock",
                verdict_says("clock", "power", "throttl"),
            ),
            Fact(
                "it costs what the clock lost",
                gain_covers_truth,
            ),
            Fact("the throttling is found", some_title_says("clock")),
        ),
    ),
    Case(
        "f9 twin",
        THROTTLED.twin,
        (Fact("a full clock is no finding", no_title_says("clock", "throttl")),),
    ),
    Case(
        "f10",
        PIECES,
        (
            Fact(
                "many small copies are the finding",
                first_says("small copies", "4.10 kb", "4.1 kb", "4 kb"),
            ),
            Fact(
                "the bound reaches what one buffer gains",
                bound_reaches_truth,
            ),
            Fact("one buffer is advised", advised("one buffer")),
        ),
    ),
    Case(
        "f10 twin",
        PIECES.twin,
        (Fact("one copy is not many", no_title_says("small copies", "cuda calls")),),
    ),
    Case(
        "f11",
        SERVER,
        (
            Fact(
                "the server had no request",
                verdict_says("request", "no work came"),
            ),
            Fact(
                "a faster program is not served faster",
                nothing_gained(),
            ),
        ),
    ),
    Case(
        "f11 twin",
        SERVER.twin,
        (Fact("a full server waits for no request", verdict_omits("no request")),),
    ),
    Case(
        "f12",
        UNUSED,
        (
            Fact(
                "a GPU is never used",
                some_title_says("never used", "unused", "does nothing", "not used", "no work"),
            ),
            Fact(
                "two GPUs are twice as fast at most",
                gain_of(
                    "used", "never used", "unused", "no work", "does nothing", most=2.0, least=1.9
                ),
            ),
        ),
    ),
    Case(
        "f12 twin",
        UNUSED.twin,
        (Fact("a single GPU is used", no_title_says("unused", "never used", "not used")),),
    ),
    Case(
        "f13",
        GEMMS,
        (
            Fact(
                "one longest gap is told",
                told("one pause", "longest gap", "one gap"),
            ),
        ),
    ),
)


@pytest.mark.parametrize(("case", "fact"), facts_of(*CASES))
def test_what_a_recording_shows_is_told(
    case: Case, fact: Fact, judge: Callable[[Case], Judgement]
) -> None:
    assert "" == fact.test(judge(case))
