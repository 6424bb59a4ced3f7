"""Kind (d): what limits kernels is named by the hardware's own hierarchy."""

from collections.abc import Callable

import pytest
from cases import programs
from cases.facts import (
    advised,
    advised_first,
    figure_absent,
    figure_is,
    gains_at_most,
    no_title_says,
    not_advised,
    not_advised_first,
    not_told,
    share_told,
    some_title_says,
    told,
    verdict_omits,
    verdict_says,
)
from cases.judging import Judgement
from cases.situations import Situation, Tables, by_ranks
from cases.table import Case, Fact, facts_of
from cases.tables import a_last_wave_of_one_block

NAIVE = "ncu/LakshyaSingh354__CudaCode__naive.ncu-rep"
MATRICES = "ncu/danae-pan__hpc_assignment3__ncu_prof_23883649.ncu-rep"
KRIPKE = "ncu/kulnaman__lammps__kripke_output.ncu-rep"
NUKEXC = "ncu/bobschreiner__NuKEXC__profile_fasts.ncu-rep"
GEMM_9 = "ncu/AshunFeiyu__Cuda_Gemm_Practice__gemm_v9.ncu-rep"
INDEX_SPACES = "ncu/eschnett__IndexSpaces.jl__profile.ncu-rep"
HEAT = "ncu/bautista-garcia__heat_sim__profile.ncu-rep"
OPEN_ACC = "nsys/mamedov__parallel_course_2__report4.sqlite"
ONE_THREAD = "ncu/amitadate__GPU_Power_Model__PS1_10_profile.ncu-rep"
RANDOM = "ncu/flyinglandlord__sglang__profile.ncu-rep"
ADDITION = "torch/TraceLens__evals_mi300__elem_01_add_poor_bw.json.gz"
FEW_TILES = "torch/TraceLens__evals_mi300__gemm_01_compute_few_tiles.json.gz"
ADDED_BYTES_PER_S = (
    3 * 8192**2 * 4 / 421e-6
)  # two matrices of floats read and one written in 421 µs
MI300X_BYTES_PER_S = 5.3e12
TAIL = Tables(a_last_wave_of_one_block)
SLOWED = Situation(programs.slowed_by_communication, by_ranks)

CASES = (
    Case(
        "d1",
        MATRICES,
        (
            Fact(
                "L1 limits, at 84 %",
                verdict_says("l1"),
            ),
            Fact(
                "DRAM at 0.46 % does not limit",
                verdict_omits("memory limits"),
            ),
            Fact("L2 comes next", told("l2")),
            Fact(
                "fusing saves DRAM traffic, which is no limit",
                not_advised("fuse kernels"),
            ),
            Fact(
                "reuse in registers or shared memory is first",
                advised_first("register", "shared", "tile", "tiling"),
            ),
        ),
    ),
    Case(
        "d2",
        MATRICES,
        (
            Fact(
                "blocks of one warp are told",
                told("32 threads", "one warp", "1 warp"),
            ),
            Fact(
                "106 registers limit the occupancy",
                told("limited by registers", "106 registers"),
            ),
            Fact(
                "fewer registers help",
                advised("fewer registers", "maxrregcount", "__launch_bounds__"),
            ),
        ),
    ),
    Case(
        "d3 control",
        KRIPKE,
        (
            Fact("memory limits", verdict_says("memory limits", "dram limits", "dram")),
            Fact("at most 9.9 % are gained", gains_at_most(1.0995)),
            Fact("91.0 % of the roof are reached", figure_is("roof_share_frac", 0.910, 0.002)),
            Fact("fusing is right here", advised("fuse kernels")),
            Fact("16 bits are right here", advised("16-bit")),
        ),
    ),
    Case(
        "d4",
        NUKEXC,
        (
            Fact(
                "the block is 128 already",
                not_advised_first("block size"),
            ),
            Fact(
                "fewer registers come first",
                advised_first("register"),
            ),
            Fact(
                "shared memory does not limit",
                not_advised("less shared memory"),
            ),
            Fact("registers limit the occupancy", told("limited by registers")),
            Fact(
                "the verdict names latency",
                verdict_says("latency", "wait"),
            ),
        ),
    ),
    Case(
        "d5",
        GEMM_9,
        (
            Fact("local memory takes 97.5 % of the accesses", share_told(0.975, 0.001)),
            Fact(
                "40 of 255 registers are used: none is missing",
                not_advised_first("maxrregcount"),
            ),
            Fact(
                "unrolling comes first",
                advised_first("unroll"),
            ),
        ),
    ),
    Case(
        "d6",
        INDEX_SPACES,
        (
            Fact("local memory takes 95.1 % of the accesses", share_told(0.951, 0.001)),
            Fact(
                "more registers need smaller blocks",
                advised("smaller block", "fewer threads", "smaller blocks"),
            ),
        ),
    ),
    Case(
        "d7",
        NAIVE,
        (
            Fact(
                "the load/store pipe limits",
                verdict_says("load/store", "lsu", "l1", "load and store"),
            ),
            Fact(
                "arithmetic does not limit",
                verdict_omits("compute limits"),
            ),
            Fact(
                "the bound is 1 / 0.83",
                gains_at_most(1 / 0.83),
            ),
            Fact("wider loads are advised", advised("float4", "wider loads")),
        ),
    ),
    Case(
        "d8",
        HEAT,
        (
            Fact(
                "the grids are small",
                verdict_says("small grid", "blocks", "fill the gpu", "short"),
            ),
            Fact(
                "cold constants are no cause",
                verdict_omits("imc"),
            ),
            Fact(
                "constants are not the advice",
                not_advised("index constants"),
            ),
            Fact("launches are to be fused or enlarged", advised("fuse", "more work")),
        ),
    ),
    Case(
        "d9",
        OPEN_ACC,
        (
            Fact(
                "one thread runs",
                told("one thread", "1 thread", "single thread", "serial"),
            ),
            Fact(
                "31 of 32 lanes idle",
                told("31 of 32", "lanes", "one lane"),
            ),
            Fact(
                "OpenACC is told what to do",
                advised("acc loop independent", "-minfo=accel"),
            ),
            Fact(
                "more blocks alone do not help",
                not_advised_first("at least as many blocks as sms"),
            ),
        ),
    ),
    Case(
        "d10",
        ONE_THREAD,
        (
            Fact(
                "the block has one thread",
                verdict_says("one thread", "1 thread", "block size", "blocks of 1"),
            ),
            Fact(
                "larger blocks come first",
                advised_first("block size", "larger block", "threads per block", "blockdim"),
            ),
        ),
    ),
    Case(
        "d11",
        RANDOM,
        (
            Fact(
                "at most 1.6 times are possible",
                gains_at_most(1.62),
            ),
            Fact(
                "the roof of FP32 does not apply",
                figure_absent("roof_share_frac"),
            ),
            Fact(
                "integer arithmetic is the pipe",
                told("alu"),
            ),
        ),
    ),
    Case(
        "d12",
        ADDITION,
        (
            Fact(
                "36 % of the bandwidth are used",
                share_told(ADDED_BYTES_PER_S / MI300X_BYTES_PER_S),
            ),
            Fact(
                "the additions move 1.91 TB/s",
                told("1.91 tb/s", "1.9 tb/s"),
            ),
        ),
    ),
    Case(
        "d13",
        FEW_TILES,
        (
            Fact(
                "the output has 4 tiles",
                told("4 tiles", "four tiles"),
            ),
            Fact(
                "split-K fills the GPU",
                advised("split-k", "split k"),
            ),
            Fact(
                "the rate is 31.5 TFLOP/s",
                told("31.5 tflop/s", "31.6 tflop/s"),
            ),
            Fact("no share of an unknown peak is told", not_told("of its peak", "of the peak")),
        ),
    ),
    Case(
        "d14",
        TAIL,
        (
            Fact(
                "the last wave is nearly empty",
                told("last wave", "tail", "133 blocks"),
            ),
            Fact(
                "latency is no cause of it",
                verdict_omits("latency"),
            ),
            Fact("occupancy is no cause of it", no_title_says("occupancy")),
        ),
    ),
    Case("d14 twin", TAIL.twin, (Fact("a full wave has no tail", not_told("last wave", "tail")),)),
    Case(
        "d15",
        SLOWED,
        (
            Fact(
                "communication slows computation",
                some_title_says("slow"),
            ),
            Fact(
                "kernels take 1.35 times as long",
                told("1.3 times", "1.35 times", "1.4 times", "35 %", "35.0 %"),
            ),
        ),
    ),
    Case("d15 twin", SLOWED.twin, (Fact("equal kernels are not slowed", no_title_says("slow")),)),
)


@pytest.mark.parametrize(("case", "fact"), facts_of(*CASES))
def test_kernels_are_told_what_limits_them(
    case: Case, fact: Fact, judge: Callable[[Case], Judgement]
) -> None:
    assert "" == fact.test(judge(case))
