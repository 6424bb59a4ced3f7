"""Rules about what limits the launches that counters measured."""

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_COMPUTATION, FOR_MEMORY_BOUND
from perfkit.diagnosis.rules.moments import longest_kernel
from perfkit.diagnosis.rules.rule import (
    IMMEDIATE,
    KERNELS,
    LONG_TERM,
    MEDIUM_TERM,
    Fact,
    Rule,
    Step,
)

LATENCY_BOUND = Rule(
    name="latency_bound",
    question="Does latency limit the measured kernels?",
    needs=("LAUNCHES", "COUNTERS"),
    evidence=(
        "latency_bound_frac",
        "roof_share_frac",
        "main_stall_frac",
        "achieved_occupancy_frac",
    ),
    target="near the roof",
    threshold=(
        "Half of the measured time has this limit (convention). A unit limits a "
        "launch from 60 % of its peak rate on (Nsight Compute, SOLBottleneck); of "
        "several the busiest, in the order tensor pipe, other pipes, load/store, "
        "L1, L2, DRAM. No unit is busy and the grid is full: latency"
    ),
    advice=(
        Step(
            IMMEDIATE,
            ("Give each launch more work: raise batch_size, or compute several items per block"),
            only=(Fact.PYTORCH,),
            unless=(Fact.FULL_GRID,),
        ),
        Step(
            IMMEDIATE,
            ("Give each launch more work: compute more data at a time, or fuse launches that follow each other"),
            unless=(Fact.FULL_GRID, Fact.PYTORCH),
        ),
        Step(
            IMMEDIATE,
            "Record why the warps wait: {ncu}",
            only=(Fact.FULL_GRID,),
            unless=(Fact.STALLS,),
        ),
        Step(
            IMMEDIATE,
            ("Remove the main stall of the longest kernels (stall_shares names it)"),
            only=(Fact.FULL_GRID, Fact.STALLS),
        ),
        Step(
            IMMEDIATE,
            ("Launch enough blocks for every SM (cudaOccupancyMaxPotentialBlockSize)"),
            unless=(Fact.FULL_GRID, Fact.LIBRARY_KERNELS),
        ),
        Step(
            MEDIUM_TERM,
            ("Batch independent loads (#pragma unroll) so that each warp has more loads in flight"),
            unless=(Fact.LIBRARY_KERNELS,),
        ),
        Step(
            MEDIUM_TERM,
            ("Raise occupancy if registers or shared memory limit it (--maxrregcount)"),
            unless=(Fact.LIBRARY_KERNELS, Fact.FULL_OCCUPANCY, Fact.OCCUPIED),
        ),
        Step(LONG_TERM, "Fuse consecutive short kernels", unless=(Fact.FULL_GRID,)),
    ),
    next=(
        "Measure the stall reasons of the longest kernels by source line: {ncu} "
        "(add --import-source yes before PROGRAM)"
    ),
    objections=(Objection.OCCUPANCY_EXPLAINS,),
    kind="latency",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=2,
)

MEMORY_BOUND = Rule(
    name="memory_bound",
    question="Does DRAM limit the measured kernels?",
    needs=("LAUNCHES", "COUNTERS"),
    evidence=("memory_bound_frac", "roof_share_frac", "main_stall_frac", "achieved_occupancy_frac"),
    target="near the roof",
    threshold=(
        "Half of the measured time has this limit (convention). A unit limits a "
        "launch from 60 % of its peak rate on (Nsight Compute, SOLBottleneck); of "
        "several the busiest, in the order tensor pipe, other pipes, load/store, "
        "L1, L2, DRAM. No unit is busy and the grid is full: latency"
    ),
    advice=FOR_MEMORY_BOUND,
    next="Look at the L2 hit rate and the coalescing of the longest kernels (step 4)",
    objections=(Objection.FEW_MEASURED,),
    kind="memory",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=2,
)

CACHE_BOUND = Rule(
    name="cache_bound",
    question=("Do caches, shared memory or the load/store pipe limit the measured kernels?"),
    needs=("LAUNCHES", "COUNTERS"),
    evidence=("cache_bound_frac", "roof_share_frac", "main_stall_frac", "achieved_occupancy_frac"),
    target="near the roof",
    threshold=(
        "Half of the measured time has this limit (convention). A unit limits a "
        "launch from 60 % of its peak rate on (Nsight Compute, SOLBottleneck); of "
        "several the busiest, in the order tensor pipe, other pipes, load/store, "
        "L1, L2, DRAM. No unit is busy and the grid is full: latency"
    ),
    advice=(
        Step(
            IMMEDIATE,
            ("Make the loads of the longest kernels coalesced and free of bank conflicts (access shows which are not)"),
            only=(Fact.COUNTERS,),
        ),
        Step(
            MEDIUM_TERM,
            ("Try another algorithm or tile size of the library for this shape (cublasLtMatmulAlgoGetHeuristic)"),
            only=(Fact.LIBRARY_KERNELS,),
            unless=(Fact.PYTORCH,),
        ),
        Step(
            MEDIUM_TERM,
            ("Try another algorithm of the library for this shape (torch.backends.cudnn.benchmark)"),
            only=(Fact.LIBRARY_KERNELS, Fact.PYTORCH),
        ),
        Step(
            LONG_TERM,
            ("Change the algorithm so that it uses each loaded value more often (tiling)"),
        ),
    ),
    next=(
        "Look at the hit rates and the sectors per request of the longest kernels "
        "(step 4), and find the loads: {ncu} (add --section SourceCounters "
        "--import-source yes before PROGRAM)"
    ),
    objections=(Objection.FEW_MEASURED,),
    kind="cache",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=2,
)

COMPUTE_BOUND = Rule(
    name="compute_bound",
    question="Does a pipe of the SMs limit the measured kernels?",
    needs=("LAUNCHES", "COUNTERS"),
    evidence=(
        "compute_bound_frac",
        "roof_share_frac",
        "main_stall_frac",
        "achieved_occupancy_frac",
    ),
    target="near the roof",
    threshold=(
        "Half of the measured time has this limit (convention). A unit limits a "
        "launch from 60 % of its peak rate on (Nsight Compute, SOLBottleneck); of "
        "several the busiest, in the order tensor pipe, other pipes, load/store, "
        "L1, L2, DRAM. No unit is busy and the grid is full: latency"
    ),
    advice=FOR_COMPUTATION,
    next=("Look at the busiest pipe of the longest kernels, and at a roofline of their precision (step 4)"),
    objections=(Objection.FEW_MEASURED,),
    kind="compute",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=2,
)

LOW_OCCUPANCY = Rule(
    name="low_occupancy",
    question="Does the launch configuration limit the occupancy of the SMs?",
    needs=("LAUNCHES", "COUNTERS"),
    evidence=("theoretical_occupancy_frac", "achieved_occupancy_frac"),
    target="above 50 %",
    threshold="The guide's target is above 50 % of the warps that an SM can hold",
    advice=(
        Step(
            IMMEDIATE,
            (
                "Use less shared memory per block (the third value of <<<grid, "
                "block, bytes>>>, cudaFuncSetAttribute), or split the kernel"
            ),
            only=(Fact.SHARED_MEMORY_LIMITS,),
            unless=(Fact.LIBRARY_KERNELS,),
        ),
        Step(
            IMMEDIATE,
            ("Set __launch_bounds__ or -maxrregcount so that each thread uses fewer registers, or split the kernel"),
            only=(Fact.REGISTERS_LIMIT,),
            unless=(Fact.LIBRARY_KERNELS,),
        ),
        Step(
            IMMEDIATE,
            "Try other block sizes (128 or 256 threads)",
            unless=(Fact.LIBRARY_KERNELS, Fact.REGISTERS_LIMIT, Fact.SHARED_MEMORY_LIMITS),
        ),
        Step(
            IMMEDIATE,
            "Try other tile sizes of the library (cuBLASLt heuristics)",
            only=(Fact.LIBRARY_KERNELS,),
        ),
        Step(
            MEDIUM_TERM,
            ("Compute several independent values per thread, so that fewer warps hide the same latency"),
            unless=(Fact.LIBRARY_KERNELS,),
        ),
        Step(LONG_TERM, "Use autotuning to choose tile and block sizes for this GPU"),
    ),
    next=("Look at what limits the longest kernels (registers, shared memory, block size) in step 4"),
    objections=(Objection.NEAR_ROOF,),
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
        "Blocks of at most 16 threads, or of one warp where an SM may hold under "
        "half of its warps, with 10 % of the measured time; on a timeline, blocks "
        "of at most 16 threads for 30 % of the time (conventions)"
    ),
    advice=(
        Step(
            IMMEDIATE,
            (
                "Let the compiler spread the loop over gangs and vector lanes (acc "
                "loop independent gang vector): -Minfo=accel says which loops it "
                "runs in one thread, and why"
            ),
            only=(Fact.OPENACC,),
        ),
        Step(
            IMMEDIATE,
            (
                "Spread the loop over teams and threads (omp target teams "
                "distribute parallel for), and read -Minfo=mp of nvc"
            ),
            only=(Fact.OPENMP, Fact.FEW_LANES),
        ),
        Step(
            IMMEDIATE,
            (
                "Choose a larger block size, 128 or 256 threads per block "
                "(blockDim): one thread per element in place of one block per "
                "element"
            ),
            only=(Fact.FEW_LANES,),
            unless=(Fact.OPENACC, Fact.OPENMP),
        ),
        Step(
            IMMEDIATE,
            (
                "Let each thread use fewer registers (-maxrregcount, "
                "__launch_bounds__, nvc -gpu=maxregcount:N): larger blocks do not "
                "help before that"
            ),
            only=(Fact.REGISTERS_LIMIT,),
            unless=(Fact.FEW_LANES,),
        ),
        Step(
            IMMEDIATE,
            (
                "Choose a larger block size, 128 or 256 threads per block: an SM "
                "holds few blocks, however small they are"
            ),
            unless=(Fact.FEW_LANES, Fact.REGISTERS_LIMIT),
        ),
        Step(
            MEDIUM_TERM,
            "Then launch at least as many blocks as the GPU has SMs",
            only=(Fact.FEW_LANES,),
            unless=(Fact.FULL_GRID,),
        ),
    ),
    next="Measure how many warps an SM holds: {ncu}",
    moment=longest_kernel,
    notebook=KERNELS,
    shortens_kernels=True,
    vagueness=3,
)
