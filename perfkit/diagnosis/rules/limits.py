"""Rules about what limits the launches that counters measured."""

from collections.abc import Mapping
from typing import Any

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_COMPUTATION, FOR_MEMORY_BOUND
from perfkit.diagnosis.rules.longest_moments import longest_kernel
from perfkit.diagnosis.rules.rule import KERNELS, Fact, Rule, later, now, soon

BESIDE = ("roof_share_frac", "main_stall_frac", "achieved_occupancy_frac")
# What the rules about a limit share.
LIMITING: Mapping[str, Any] = {
    "needs": ("LAUNCHES", "COUNTERS"),
    "target": "near the roof",
    "threshold": (
        "Half of the measured time has this limit (convention). A unit limits a launch from 60 % "
        "of its peak rate on (Nsight Compute, SOLBottleneck); of several the busiest, in the order "
        "tensor pipe, other pipes, load/store, L1, L2, DRAM. No unit is busy and the grid is full: "
        "latency"
    ),
    "moment": longest_kernel,
    "notebook": KERNELS,
    "shortens_kernels": True,
    "vagueness": 2,
}

LATENCY_BOUND = Rule(
    name="latency_bound",
    question="Does latency limit the measured kernels?",
    **LIMITING,
    evidence=("latency_bound_frac", *BESIDE),
    advice=(
        now(
            "Give each launch more work: raise batch_size, or compute several items per block",
            when=Fact.PYTORCH & ~Fact.FULL_GRID,
        ),
        now(
            (
                "Give each launch more work: compute more data at a time, or fuse launches that "
                "follow each other"
            ),
            when=~Fact.FULL_GRID & ~Fact.PYTORCH,
        ),
        now("Record why the warps wait: {ncu}", when=Fact.FULL_GRID & ~Fact.STALLS),
        now(
            "Remove the main stall of the longest kernels (stall_shares names it)",
            when=Fact.FULL_GRID & Fact.STALLS,
        ),
        now(
            "Launch enough blocks for every SM (cudaOccupancyMaxPotentialBlockSize)",
            when=~Fact.FULL_GRID & ~Fact.LIBRARY_KERNELS,
        ),
        soon(
            "Batch independent loads (#pragma unroll) so that each warp has more loads in flight",
            when=~Fact.LIBRARY_KERNELS,
        ),
        soon(
            "Raise occupancy if registers or shared memory limit it (--maxrregcount)",
            when=~Fact.LIBRARY_KERNELS & ~Fact.FULL_OCCUPANCY & ~Fact.OCCUPIED,
        ),
        later("Fuse consecutive short kernels", when=~Fact.FULL_GRID),
    ),
    next=(
        "Measure the stall reasons of the longest kernels by source line: {ncu} (add "
        "--import-source yes before PROGRAM)"
    ),
    objections=(Objection.OCCUPANCY_EXPLAINS,),
    kind="latency",
)

MEMORY_BOUND = Rule(
    name="memory_bound",
    question="Does DRAM limit the measured kernels?",
    **LIMITING,
    evidence=("memory_bound_frac", *BESIDE),
    advice=FOR_MEMORY_BOUND,
    next="Look at the L2 hit rate and the coalescing of the longest kernels (step 4)",
    kind="memory",
)

CACHE_BOUND = Rule(
    name="cache_bound",
    question="Do caches, shared memory or the load/store pipe limit the measured kernels?",
    **LIMITING,
    evidence=("cache_bound_frac", *BESIDE),
    advice=(
        now(
            (
                "Make the loads of the longest kernels coalesced and free of bank conflicts "
                "(access shows which are not)"
            ),
            when=Fact.COUNTERS,
        ),
        soon(
            (
                "Try another algorithm or tile size of the library for this shape "
                "(cublasLtMatmulAlgoGetHeuristic)"
            ),
            when=Fact.LIBRARY_KERNELS & ~Fact.PYTORCH,
        ),
        soon(
            "Try another algorithm of the library for this shape (torch.backends.cudnn.benchmark)",
            when=Fact.LIBRARY_KERNELS & Fact.PYTORCH,
        ),
        later("Change the algorithm so that it uses each loaded value more often (tiling)"),
    ),
    next=(
        "Look at the hit rates and the sectors per request of the longest kernels (step 4), and "
        "find the loads: {ncu} (add --section SourceCounters --import-source yes before PROGRAM)"
    ),
    kind="cache",
)

COMPUTE_BOUND = Rule(
    name="compute_bound",
    question="Does a pipe of the SMs limit the measured kernels?",
    **LIMITING,
    evidence=("compute_bound_frac", *BESIDE),
    advice=FOR_COMPUTATION,
    next=(
        "Look at the busiest pipe of the longest kernels, and at a roofline of their precision "
        "(step 4)"
    ),
    kind="compute",
)

LOW_OCCUPANCY = Rule(
    name="low_occupancy",
    question="Does the launch configuration limit the occupancy of the SMs?",
    needs=("LAUNCHES", "COUNTERS"),
    evidence=(
        *("theoretical_occupancy_frac", "achieved_occupancy_frac", "latency_bound_frac"),
        *("roof_share_frac", "main_stall_frac", "stall_warp_frac", "stall_time_frac"),
    ),
    target="above 50 %",
    threshold="The guide's target is above 50 % of the warps that an SM can hold",
    advice=(
        now(
            (
                "Use less shared memory per block (the third value of <<<grid, block, bytes>>>, "
                "cudaFuncSetAttribute), or split the kernel"
            ),
            when=Fact.SHARED_MEMORY_LIMITS & ~Fact.LIBRARY_KERNELS,
        ),
        now(
            (
                "Set __launch_bounds__ or -maxrregcount so that each thread uses fewer registers, "
                "or split the kernel"
            ),
            when=Fact.REGISTERS_LIMIT & ~Fact.LIBRARY_KERNELS,
        ),
        now(
            "Try other block sizes (128 or 256 threads)",
            when=~Fact.LIBRARY_KERNELS & ~Fact.REGISTERS_LIMIT & ~Fact.SHARED_MEMORY_LIMITS,
        ),
        now("Try other tile sizes of the library (cuBLASLt heuristics)", when=Fact.LIBRARY_KERNELS),
        soon(
            (
                "Compute several independent values per thread, so that fewer warps hide the same "
                "latency"
            ),
            when=~Fact.LIBRARY_KERNELS,
        ),
        later("Use autotuning to choose tile and block sizes for this GPU"),
    ),
    next="Look at what limits the longest kernels (registers, shared memory, block size) in step 4",
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=0,
)

SMALL_BLOCKS = Rule(
    name="small_blocks",
    question="Do blocks have a few threads only?",
    needs=("LAUNCHES|KERNELS",),
    evidence=("small_blocks_frac", "small_blocks_count"),
    target="128 or 256 threads",
    threshold=(
        "Blocks of at most 16 threads, or of one warp where an SM may hold under half of its "
        "warps, with 10 % of the measured time; on a timeline, blocks of at most 16 threads for 30 "
        "% of the time (conventions)"
    ),
    advice=(
        now(
            (
                "Let the compiler spread the loop over gangs and vector lanes (acc loop "
                "independent gang vector): -Minfo=accel says which loops it runs in one thread, "
                "and why"
            ),
            when=Fact.OPENACC,
        ),
        now(
            (
                "Spread the loop over teams and threads (omp target teams distribute parallel "
                "for), and read -Minfo=mp of nvc"
            ),
            when=Fact.OPENMP & Fact.FEW_LANES,
        ),
        now(
            (
                "Choose a larger block size, 128 or 256 threads per block (blockDim): one thread "
                "per element in place of one block per element"
            ),
            when=Fact.FEW_LANES & ~Fact.OPENACC & ~Fact.OPENMP,
        ),
        now(
            (
                "Let each thread use fewer registers (-maxrregcount, __launch_bounds__, nvc "
                "-gpu=maxregcount:N): larger blocks do not help before that"
            ),
            when=Fact.REGISTERS_LIMIT & ~Fact.FEW_LANES,
        ),
        now(
            (
                "Choose a larger block size, 128 or 256 threads per block: an SM holds few blocks, "
                "however small they are"
            ),
            when=~Fact.FEW_LANES & ~Fact.REGISTERS_LIMIT,
        ),
        soon(
            "Then launch at least as many blocks as the GPU has SMs",
            when=Fact.FEW_LANES & ~Fact.FULL_GRID,
        ),
    ),
    next="Measure how many warps an SM holds: {ncu}",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=3,
)
