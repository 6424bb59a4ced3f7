"""Kind (c): gains are bounds of what the advice changes; compare and check say what they know."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cases import programs
from cases.facts import (
    bound_reaches_truth,
    bounds_follow_from_shares,
    figure_is,
    first_says,
    gain_beyond,
    gain_covers_truth,
    gain_of,
    gain_within_share,
    gains_at_most,
    likely_is_possible,
    no_range_wider_than,
    nothing_gained,
    only_kernels_means_most_of_the_time,
    told,
    verdict_agrees_with_the_first_finding,
    verdict_omits,
    verdict_says,
)
from cases.judging import Judgement
from cases.situations import Situation, by_nsys, by_ranks, without_ranges
from cases.table import Case, Fact, facts_of
from cases.truths import heaviest_kernel
from frames import kernels, profile, ranges
from sampled import devices

import perfkit
from perfkit.diagnosis.check import check
from perfkit.diagnosis.comparison import compared
from perfkit.diagnosis.verdict import sentence

MS = 1_000_000
MFU = "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite"
SORT = "nsys/annikola__cuda_bitonic_sort__report1.sqlite"
RESNET_MI300 = "torch/TraceLens__mi300__resnet_act_checkpoint.json.gz"
FIRE = "nsys/IkerCanut__fire_spread__report1.sqlite"
B200 = "torch/TraceLens__b200__eager_trace.json.gz"
T4 = "torch/marcalph__kernelforge__t4_matmul.pt.trace.json.gz"
MIXQ = "nsys/Qcompiler__MIXQ__src_report1.sqlite"
RESNET = "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz"
AI_PROFILER = "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite"
DLRM = "torch/facebookresearch__param__dlrm_kineto"
MPI = "nsys/openhackathons-org__gpubootcamp__mpi_report1.sqlite"
ICON = "nsys/NTHU-SC__ISC25-ICON-C__gpu.sqlite"
LOADER = "reports/single_process_loader/trace.json.gz"
GPT_2 = "reports/mfu_h100_step/trace.json"
GPT_2_JOB = {"parameters": 124e6, "tokens_per_step": 491_520, "dtype": "bf16"}
GPT_2_MFU = 6 * 124e6 * 491_520 / 1.127 / 989.4e12
NO_SYNC = Situation(programs.reducing_each_micro_batch, by_ranks)
STAGES = Situation(programs.pipelining, by_ranks)
UPDATE = Situation(programs.optimizing_by_many_kernels, by_nsys)
SMALL_CAUSES = Situation(programs.many_small_causes, by_nsys)
ONE_LOADER = Situation(programs.loading_on_one_rank, by_ranks)
SHORT_WAITS = Situation(programs.waiting_for_short_kernels, by_nsys)
AMDAHL = ("twice as fast",)

CASES = (
    Case(
        "c1",
        MFU,
        (
            Fact("that GPUs compute is no fault to fix", nothing_gained("compute")),
            Fact("twice as fast a kernel gains what Amdahl says", told(*AMDAHL)),
            Fact("the verdict names the kernel", verdict_says(heaviest_kernel)),
        ),
    ),
    Case(
        "c2",
        SORT,
        (
            Fact("that a GPU computes is no fault to fix", nothing_gained("computes")),
            Fact("twice as fast a kernel gains what Amdahl says", told(*AMDAHL)),
        ),
    ),
    Case(
        "c3",
        RESNET_MI300,
        (
            Fact(
                "without communication up to 2.78 times",
                gain_of("communication", least=2.5, most=2.78),
            ),
        ),
    ),
    Case(
        "c4",
        FIRE,
        (
            Fact("the 160 kB that are copied in the loop gain nothing", nothing_gained("pageable")),
            Fact("what saves under 1 % is not the verdict", verdict_omits("pageable")),
        ),
    ),
    Case(
        "c5",
        B200,
        (Fact("no bound exceeds its share", bounds_follow_from_shares),),
    ),
    Case(
        "c6",
        T4,
        (
            Fact(
                "6.6 % of copies gain 1.07 times at most",
                gain_of("pageable", most=1 / (1 - 0.0661)),
            ),
            Fact("no bound exceeds its share", bounds_follow_from_shares),
        ),
    ),
    Case(
        "c7",
        MIXQ,
        (Fact("no bound exceeds its share", bounds_follow_from_shares),),
    ),
    Case(
        "c8",
        RESNET,
        (
            Fact(
                "18.7 % of loading gain 1.23 times at most",
                gain_of("data loading", most=1 / (1 - 0.1869)),
            ),
            Fact(
                "11.0 % of launches gain more because loading gets shorter too",
                gain_beyond("small operators", "data_loading"),
            ),
            Fact("no bound exceeds its share", bounds_follow_from_shares),
        ),
    ),
    Case(
        "c9",
        AI_PROFILER,
        (
            Fact("no bound exceeds its share", bounds_follow_from_shares),
            Fact("a range of 1.02 to 23 times is no prediction", no_range_wider_than(5)),
        ),
    ),
    Case(
        "c10 DLRM",
        DLRM,
        (Fact("launches gain no more than their share", gain_within_share("small operators")),),
    ),
    Case(
        "c10 MPI",
        MPI,
        (Fact("MPI gains no more than its share", gain_within_share("mpi calls")),),
    ),
    Case(
        "c10 ICON",
        ICON,
        (Fact("OS calls gain no more than their share", gain_within_share("pwrite64")),),
    ),
    Case(
        "c11",
        LOADER,
        (
            Fact("the verdict is data loading", verdict_says("loading data", "data loading")),
            Fact("87.5 % are idle for it", figure_is("idle_data_loading_frac", 0.875, 0.002)),
            Fact("at most 8.03 times are gained", gains_at_most(1 / (1 - 0.87543))),
        ),
    ),
    Case(
        "c12 no_sync",
        NO_SYNC,
        (Fact("the bound holds for the first advice", bound_reaches_truth),),
    ),
    Case(
        "c12 pipeline",
        STAGES,
        (Fact("the bound holds for the first advice", bound_reaches_truth),),
    ),
    Case(
        "c12 optimizer",
        UPDATE,
        (Fact("the bound holds for the first advice", bound_reaches_truth),),
    ),
    Case(
        "c13",
        SMALL_CAUSES,
        (Fact("a third of the time is not only kernels", only_kernels_means_most_of_the_time),),
    ),
    Case(
        "c13 twin",
        SMALL_CAUSES.twin,
        (
            Fact("where nothing else costs time it is the kernels", verdict_says("computes")),
            Fact("and nothing contradicts that", only_kernels_means_most_of_the_time),
        ),
    ),
    Case(
        "c14",
        ONE_LOADER,
        (
            Fact("the verdict is data loading", verdict_says("loading data", "data loading")),
            Fact("the first finding is data loading", first_says("data loading")),
            Fact("the gain is that of the late rank", gain_covers_truth),
            Fact("verdict and first finding agree", verdict_agrees_with_the_first_finding),
        ),
    ),
    Case("c14 twin", ONE_LOADER.twin, (Fact("no loading is blamed", verdict_omits("loading")),)),
    Case(
        "c15",
        SHORT_WAITS,
        (Fact("what is likely is possible", likely_is_possible),),
    ),
    Case(
        "c19 control",
        GPT_2,
        (Fact("the MFU is 32.8 % of an H100", figure_is("job_mfu_frac", GPT_2_MFU, 0.003)),),
        job=GPT_2_JOB,
    ),
)


@pytest.mark.parametrize(("case", "fact"), facts_of(*CASES))
@pytest.mark.sampled(3)
def test_gains_bound_what_can_be_had(
    case: Case, fact: Fact, judge: Callable[[Case], Judgement]
) -> None:
    assert "" == fact.test(judge(case))


def unmarked(folder: Path, *, pauses: bool = False, first_us: float = 150) -> perfkit.Run:
    """A run of the same kernels in no order that repeats, without ranges."""
    folder.mkdir()
    machine = programs.launching_without_a_pattern(pauses, first_us)
    return perfkit.load(without_ranges(machine, folder))


def stepped(name: str, length: float, seed: int, spread: float = 0.0) -> perfkit.Run:
    """A run of 20 steps of so many ms, 0.3 % off by chance.

    Each has a GEMM of 4 ms, and a small kernel of 0.2 ms that is `spread` of its length off by chance.
    """
    random = np.random.default_rng(seed)
    rows, spans, at = [], [], 0
    for step in range(20):
        whole = round(length * MS * random.normal(1, 0.003))
        product = round(4 * MS * random.normal(1, 0.003))
        small = round(0.2 * MS * max(random.normal(1, spread), 0.2))
        rows += [{"name": "gemm", "family": "gemm", "start_ns": at, "dur_ns": product}]
        rows += [{"name": "softmax", "family": "softmax", "start_ns": at + 5 * MS, "dur_ns": small}]
        spans += [{"name": f"step {step}", "start_ns": at, "dur_ns": whole}]
        at += whole
    tables = {"KERNELS": kernels(*rows), "RANGES": ranges(*spans), "DEVICES": devices("A100")}
    return perfkit.Run([profile("nsys", name, None, at, **tables)])


def test_c16_a_run_without_steps_that_pauses_does_not_pass(tmp_path: Path) -> None:
    """Its kernels are the same and its span is longer by 40 pauses of 3 ms: fail, or say that no steps were found."""
    checked = check(unmarked(tmp_path / "new", pauses=True), unmarked(tmp_path / "old"))
    assert checked.exit_code in (1, 2)


def test_c16_a_run_without_steps_does_not_fail_by_its_warm_up(tmp_path: Path) -> None:
    """The first 60 of 400 kernels take 700 µs in one run, all others 150 µs in both: nobody can tell."""
    checked = check(unmarked(tmp_path / "new", first_us=700), unmarked(tmp_path / "old"))
    assert 1 != checked.exit_code


def test_c17_a_small_family_that_wavers_passes() -> None:
    """Small kernels are 40 % off by chance, everything else is alike: they add at most 1 % to the step, `MATTERS`."""
    checked = check(stepped("new", 10.0, 1, 0.4), stepped("old", 10.0, 2, 0.4))
    outcomes = {verdict.id: verdict.outcome for verdict in checked.verdicts}
    assert {"step_median_ns": "pass", "family_softmax_ns": "pass"}.items() <= outcomes.items()


def test_c17_one_sure_regression_fails() -> None:
    """Steps take 7 % longer, whatever the small family does."""
    checked = check(stepped("new", 10.7, 1, 0.4), stepped("old", 10.0, 2, 0.4))
    assert 1 == checked.exit_code


def test_c18_one_run_of_each_is_not_sure() -> None:
    """Two runs of one program, 1.5 % apart, as nodes and temperatures are."""
    found = compared(stepped("old", 10.0, 1), stepped("new", 10.15, 2))
    assert found.confidence in ("medium", "low")


def test_c18_one_run_of_each_is_told_to_be_one() -> None:
    found = compared(stepped("old", 10.0, 1), stepped("new", 10.15, 2))
    assert "One run of each: the intervals allow 2.0 % for noise" in sentence(found)
