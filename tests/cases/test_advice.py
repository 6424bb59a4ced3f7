"""Kind (e): advice fits the program, and asks for nothing that is there."""

from collections.abc import Callable

import pytest
from cases import programs
from cases.facts import (
    advised,
    advised_first,
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
from cases.situations import Situation, by_nsys, by_ranks, with_scheduling
from cases.table import Case, Fact, facts_of

NAIVE = "ncu/LakshyaSingh354__CudaCode__naive.ncu-rep"
WINDOWS = "nsys/florianmattana__CUDA-Kernels__prof.sqlite"
MIXQ = "nsys/Qcompiler__MIXQ__src_report1.sqlite"
OPEN_ACC = "hpctoolkit/HPCToolkit__hpcviewer.e4__acc_f3-database"
DLRM = "hpctoolkit/hpctoolkit-dlrm-gpu-database"
CAPPED = "reports/one_gpu_power_capped/gpu.csv"
SPINNING = "reports/spinning_gpus/gpu.csv"
LIMITED = "reports/power_limit_reached/gpu.csv"
COLLAPSE = "reports/nccl_collapse_between_nodes/nccl.txt"
FEW_TILES = "torch/TraceLens__evals_mi300__gemm_01_compute_few_tiles.json.gz"
T4 = "torch/marcalph__kernelforge__t4_matmul.pt.trace.json.gz"
UNCACHED = Situation(programs.allocating_each_tensor, by_nsys)
SHARDED = Situation(programs.gathering(programs.GATHER, 0.6, 150), by_ranks)
STAGED = Situation(programs.pipelining, by_ranks)
SPLIT = Situation(programs.gathering(programs.NCCL, 0.06, 20), by_ranks)
REDUCED = Situation(programs.gathering(programs.NCCL, 0.6, 150, backward=True), by_ranks)
CROWDED = Situation(programs.losing_its_core, with_scheduling)
DDP = ("bucket_cap_mb", "accumulate gradients", "gradient buckets")

CASES = (
    Case(
        "e1",
        NAIVE,
        (
            Fact(
                "a program in CUDA C hears nothing of PyTorch",
                not_advised("torch."),
            ),
            Fact(
                "a GPU without tensor cores hears nothing of them",
                not_advised("tensor core"),
            ),
        ),
    ),
    Case(
        "e2",
        WINDOWS,
        (
            Fact(
                "nsys has no osrt on Windows",
                not_advised("osrt"),
            ),
            Fact(
                "a program in C++ hears nothing of PyTorch",
                not_advised("torch."),
            ),
            Fact(
                "a program in C++ needs no loop in C++",
                not_advised("a c++ loop"),
            ),
        ),
    ),
    Case(
        "e3",
        MIXQ,
        (
            Fact(
                "cudaFree of a library is no empty_cache",
                not_advised("empty_cache"),
            ),
            Fact(
                "there is no loop",
                not_advised("from the loop", "out of the loop"),
            ),
            Fact(
                "a library's start-up gains nothing",
                nothing_gained("allocate", "free memory"),
            ),
        ),
    ),
    Case(
        "e4",
        UNCACHED,
        (
            Fact(
                "the caching allocator is to be turned on",
                advised("pytorch_no_cuda_memory_caching", "pytorch_no_hip_memory_caching"),
            ),
            Fact(
                "empty_cache does not come first",
                not_advised_first("empty_cache"),
            ),
            Fact("the verdict names memory", verdict_says("memory")),
        ),
    ),
    Case(
        "e4 twin",
        UNCACHED.twin,
        (
            Fact(
                "no allocator is blamed",
                not_advised("pytorch_no_cuda_memory_caching", "empty_cache"),
            ),
        ),
    ),
    Case(
        "e5",
        OPEN_ACC,
        (
            Fact(
                "OpenACC has no batch",
                not_advised("batch_size"),
            ),
            Fact(
                "nor has it a DataLoader's option",
                not_advised("pin_memory"),
            ),
            Fact(
                "20 kernels are too little to judge",
                verdict_says("too little", "too few", "too short"),
            ),
        ),
    ),
    Case(
        "e6",
        DLRM,
        (
            Fact(
                "to find the CPU code comes first",
                advised_first("find the cpu code", "cpu code", "what the cpu does"),
            ),
            Fact(
                "a larger batch does not come first",
                not_advised_first("batch_size"),
            ),
            Fact(
                "copies, launches and stalls gain under 1 %",
                told("under 1 %", "less than 1 %", "below 1 %"),
            ),
            Fact(
                "the call path names the copy",
                told("dlrm_s_pytorch.py:898"),
            ),
        ),
    ),
    Case(
        "e7",
        CAPPED,
        (
            Fact("GPU 2 is named", verdict_says("gpu 2")),
            Fact(
                "a busy GPU needs no larger batch",
                not_advised("batch_size"),
            ),
            Fact(
                "the supply of power is to be checked",
                advised("power supply", "cable", "bmc"),
            ),
            Fact(
                "it is capped at half of its limit",
                told("half of its limit", "half its limit", "50.0 % of its limit"),
            ),
        ),
    ),
    Case(
        "e8",
        SPINNING,
        (
            Fact("the verdict names GPU 5", verdict_says("gpu 5")),
            Fact(
                "GPU 0 is not blamed",
                verdict_omits("gpu 0 draws"),
            ),
            Fact(
                "seven GPUs wait for it",
                told("wait for", "spin"),
            ),
            Fact(
                "busy GPUs need no larger batch",
                not_advised("batch_size"),
            ),
        ),
    ),
    Case(
        "e9",
        LIMITED,
        (
            Fact("the clock is at 71 % of its maximum", share_told(1500 / 2100)),
            Fact(
                "it is not at 99 %",
                not_told("never fell below 99"),
            ),
            Fact(
                "only a higher limit helps",
                advised("higher limit", "raise the power limit", "nvidia-smi -pl"),
            ),
        ),
    ),
    Case(
        "e10",
        COLLAPSE,
        (
            Fact(
                "links inside a node do not come first",
                not_advised_first("nvlink"),
            ),
            Fact(
                "the network between the nodes comes first",
                advised_first("network", "between the nodes", "protocol"),
            ),
        ),
    ),
    Case(
        "e12",
        FEW_TILES,
        (
            Fact(
                "no elementwise operation is fused",
                not_advised("elementwise"),
            ),
        ),
    ),
    Case(
        "e13",
        T4,
        (
            Fact(
                "a tensor made on the CPU is no DataLoader's",
                not_advised("dataloader"),
            ),
            Fact("it is to be created on the GPU", advised("on the gpu")),
        ),
    ),
    Case(
        "e14 FSDP",
        SHARDED,
        (
            Fact(
                "no advice of DDP",
                not_advised(*DDP),
            ),
            Fact(
                "an AllGather is to be prefetched",
                advised("prefetch"),
            ),
        ),
    ),
    Case(
        "e14 pipeline",
        STAGED,
        (
            Fact(
                "no advice of DDP",
                not_advised(*DDP),
            ),
            Fact(
                "the schedule or the balance is to be changed",
                advised("pipeline schedule", "interleav", "more micro-batches", "balance"),
            ),
        ),
    ),
    Case(
        "e14 tensor parallel",
        SPLIT,
        (
            Fact(
                "no advice of DDP",
                not_advised(*DDP),
            ),
            Fact(
                "a small AllReduce is to be shortened",
                advised("one-shot", "one shot", "cuda graph"),
            ),
        ),
    ),
    Case("e14 twin", REDUCED, (Fact("an AllReduce in a backward pass is DDP's", advised(*DDP)),)),
    Case(
        "e15",
        CROWDED,
        (
            Fact(
                "the cores are named",
                advised("fewer threads", "taskset", "binding", "bind", "cpu cores"),
            ),
        ),
    ),
    Case(
        "e15 twin",
        CROWDED.twin,
        (Fact("a thread that computes lacks no core", not_advised("fewer threads", "taskset")),),
    ),
)


@pytest.mark.parametrize(("case", "fact"), facts_of(*CASES))
def test_advice_meets_its_condition(
    case: Case, fact: Fact, judge: Callable[[Case], Judgement]
) -> None:
    assert "" == fact.test(judge(case))
