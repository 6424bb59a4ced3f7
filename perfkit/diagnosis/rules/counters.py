"""Rules about what counters show to slow launches."""

from typing import Any

from perfkit.diagnosis.rules.rule import KERNELS, Fact, Rule, now, soon


def _of_cause(cause: str, *, unit: str = "1", ending: str = "frac") -> dict[str, Any]:
    """Return what the rules about causes that counters name share.

    `unit` is that of their value, and `ending` that of the value's id.
    """
    return {
        "needs": ("LAUNCHES", "COUNTERS"),
        "evidence": (f"{cause}_{ending}", f"{cause}_time_frac"),
        "kind": cause,
        "unit": unit,
        "vagueness": 0,
    }


KERNEL_STALL = Rule(
    name="kernel_stall",
    question="Do the warps of long kernels wait mostly for one reason?",
    needs=("LAUNCHES", "STALLS"),
    evidence=(
        *("stall_warp_frac", "stall_time_frac", "latency_bound_frac"),
        *("roof_share_frac", "main_stall_frac", "achieved_occupancy_frac"),
    ),
    target="under 30 %",
    threshold=(
        "Over 30 % of the warps' time while SMs and memory are below 80 % of their rate (Nsight "
        "Compute, CPIStall), in kernels with 30 % of the measured time (convention)"
    ),
    advice=(
        now(
            "Open the source lines with the most samples of this stall (ncu --page source, or "
            "SourceCounters in its window)"
        ),
        soon(
            (
                "Compare block sizes and unrolling of this kernel (#pragma unroll), one change at "
                "a time"
            ),
            when=~Fact.LIBRARY_KERNELS,
        ),
        soon(
            (
                "Try another algorithm of the library for this shape "
                "(cublasLtMatmulAlgoGetHeuristic, in PyTorch torch.backends.cudnn.benchmark)"
            ),
            when=Fact.LIBRARY_KERNELS & Fact.PYTORCH,
        ),
        soon(
            "Try another algorithm of the library for this shape (cublasLtMatmulAlgoGetHeuristic)",
            when=Fact.LIBRARY_KERNELS & ~Fact.PYTORCH,
        ),
    ),
    next=(
        "Find the source lines that wait: {ncu} (add --section SourceCounters --import-source yes "
        "before PROGRAM)"
    ),
    indirect="a waiting warp costs nothing while another warp can issue an instruction",
    notebook=KERNELS,
    vagueness=1,
)

UNCOALESCED = Rule(
    name="uncoalesced",
    question="Do kernels move sectors of memory that no thread needs?",
    **_of_cause("uncoalesced"),
    threshold=(
        "10 % of the sectors of global memory (Nsight Compute, UncoalescedGlobalAccess) in "
        "launches that memory limits, with 10 % of the measured time (convention)"
    ),
    advice=(
        now(
            (
                "Let neighbouring threads use neighbouring addresses: an array per field in place "
                "of an array of structs, the fastest index in threadIdx.x"
            ),
            when=~Fact.LIBRARY_KERNELS,
        ),
        now(
            (
                "Give the library tensors whose last dimension is contiguous (.contiguous(), "
                "channels_last)"
            ),
            when=Fact.LIBRARY_KERNELS & Fact.PYTORCH,
        ),
        now(
            "Give the library arrays whose fastest dimension is contiguous",
            when=Fact.LIBRARY_KERNELS & ~Fact.PYTORCH,
        ),
        soon(
            "Load a tile in order into __shared__ memory, and read it from there in any order",
            when=~Fact.LIBRARY_KERNELS,
        ),
    ),
    next=(
        "Find the source lines with excess sectors: {ncu} (add --section SourceCounters "
        "--import-source yes before PROGRAM)"
    ),
    indirect=(
        "the counters do not show whether the program needs these addresses in this order, as a "
        "table lookup does"
    ),
    title="{value} of the sectors that {kernel} moves hold nothing that its threads need",
    label="Excess sectors",
    definition=(
        "share of the 32-byte sectors of global memory that coalesced accesses would not move"
    ),
)

BANK_CONFLICTS = Rule(
    name="bank_conflicts",
    question="Do bank conflicts slow down shared memory?",
    **_of_cause("bank_conflicts"),
    threshold=(
        "10 % of the passes (Nsight Compute, SharedMemoryConflicts) in launches whose L1 cache "
        "works at 60 % of its rate or more, with 10 % of the measured time (convention)"
    ),
    advice=(
        now(
            (
                "Pad rows of a __shared__ array by one element (float tile[32][33]), or swizzle "
                "the index"
            ),
            when=~Fact.LIBRARY_KERNELS,
        ),
        now(
            (
                "Try another algorithm of the library for this shape "
                "(cublasLtMatmulAlgoGetHeuristic, in PyTorch torch.backends.cudnn.benchmark)"
            ),
            when=Fact.LIBRARY_KERNELS & Fact.PYTORCH,
        ),
        now(
            "Try another algorithm of the library for this shape (cublasLtMatmulAlgoGetHeuristic)",
            when=Fact.LIBRARY_KERNELS & ~Fact.PYTORCH,
        ),
    ),
    next=(
        "Find the source lines with conflicts: {ncu} (add --section SourceCounters --import-source "
        "yes before PROGRAM)"
    ),
    title="Bank conflicts cause {value} of the passes through shared memory in {kernel}",
    label="Bank conflicts",
    definition="share of the passes through shared memory that bank conflicts add",
)

DIVERGENCE = Rule(
    name="divergence",
    question="Do the threads of a warp take different branches?",
    **_of_cause("divergence"),
    target="under 25 %",
    threshold=(
        "A quarter of the threads of executed warps in launches that the SMs limit, with 10 % of "
        "the measured time (conventions)"
    ),
    advice=(
        now(
            "Let all 32 threads of a warp take the same branch: sort the work by kind "
            "(thrust::sort_by_key), or give each kind a kernel"
        ),
        soon("Replace short branches by arithmetic, so that the compiler needs no jump"),
    ),
    next=(
        "Find the divergent branches: {ncu} (add --section SourceCounters --import-source yes "
        "before PROGRAM)"
    ),
    title="{value} of the threads of {kernel} are idle while their warp executes an instruction",
    label="Idle threads",
    definition="share of the 32 threads of a warp that do not take part in an executed instruction",
)

SPILLS = Rule(
    name="spills",
    question="Do kernels keep values in local memory that registers should hold?",
    **_of_cause("spills"),
    target="0 %",
    threshold=(
        "A quarter of the sectors of local and global memory, in launches with 10 % of the "
        "measured time (conventions)"
    ),
    advice=(
        now(
            (
                "Allow more registers per thread with smaller blocks (fewer threads in "
                "__launch_bounds__, a higher -maxrregcount): now one block takes all registers of "
                "an SM"
            ),
            when=Fact.REGISTERS_FULL & ~Fact.LIBRARY_KERNELS,
        ),
        now(
            (
                "Allow more registers per thread: raise -maxrregcount, or lower the second number "
                "of __launch_bounds__"
            ),
            when=~Fact.LIBRARY_KERNELS & ~Fact.REGISTERS_FREE & ~Fact.REGISTERS_FULL,
        ),
        now(
            "Index arrays of a thread by constants only, and unroll the loops over them",
            when=~Fact.LIBRARY_KERNELS,
        ),
        soon("Split the kernel, or let a thread compute fewer results at once"),
    ),
    next="Let the compiler count spilled registers: nvcc -Xptxas -v",
    title=(
        "{value} of the memory accesses of {kernel} serve local memory: values that no register "
        "holds"
    ),
    label="Local memory",
    definition=(
        "share of local memory in the sectors that the L1 cache moves for local and global memory"
    ),
)

IMBALANCE = Rule(
    name="imbalance",
    question="Do SMs wait for the busiest SM at the end of a kernel?",
    **_of_cause("imbalance"),
    target="under 30 %",
    threshold=(
        "The average SM works less than 70 % of the cycles of the busiest, in launches of 10 µs or "
        "more with a block per SM or more, with 10 % of the measured time (conventions)"
    ),
    advice=(
        now(
            (
                "Give all blocks the same amount of work: split long rows, or let blocks fetch "
                "work from a counter (atomicAdd)"
            ),
            when=~Fact.LIBRARY_KERNELS & ~Fact.LAST_WAVE,
        ),
        now(
            (
                "Choose the grid so that its last wave is full "
                "(cudaOccupancyMaxActiveBlocksPerMultiprocessor x SMs), or make blocks smaller"
            ),
            when=Fact.LAST_WAVE & ~Fact.LIBRARY_KERNELS,
        ),
        now(
            (
                "Change the batch or tile size so that the number of blocks is a multiple of what "
                "the GPU holds at once"
            ),
            when=Fact.LIBRARY_KERNELS,
        ),
    ),
    next=(
        "Compare the work of the blocks, and the number of blocks with that which the GPU holds at "
        "once (step 4, waves)"
    ),
    title="The average SM is idle {value} of the time that the busiest SM needs for {kernel}",
    label="Idle SMs",
    definition="1 - active cycles of the average SM / active cycles of the busiest SM",
)

ATOMICS = Rule(
    name="atomics",
    question="Do atomic operations meet at few addresses?",
    **_of_cause("atomics"),
    target="under 60 %",
    threshold=(
        "One slice of the L2 cache is busy with atomic operations 60 % of the time, and four times "
        "as busy as the average slice, in launches with 10 % of the measured time (conventions)"
    ),
    advice=(
        now(
            "Sum in registers or __shared__ memory first, and add one result per block to "
            "global memory"
        ),
        soon("Sort the keys, and reduce each segment without atomic operations"),
    ),
    next=(
        "Find the atomic instructions: {ncu} (add --section SourceCounters --import-source yes "
        "before PROGRAM)"
    ),
    title=(
        "Atomic operations of {kernel} meet at few addresses: one slice of the L2 cache is busy "
        "{value} of the time"
    ),
    label="Busiest L2 slice",
    definition="share of the time in which one slice of the L2 cache works on atomic operations",
)

NARROW_LOADS = Rule(
    name="narrow_loads",
    question="Do threads load one or two bytes at a time?",
    **_of_cause("narrow_loads", unit="bytes", ending="bytes"),
    target="16 bytes",
    threshold=(
        "At most two bytes per thread and load while the device memory is below 60 % of its rate, "
        "in launches with 10 % of the measured time (conventions)"
    ),
    advice=(
        now(
            "Load 16 bytes at once (reinterpret_cast<const uint4*>(address)), and take the "
            "elements out of the register"
        ),
    ),
    next=(
        "Find the loads in the source: {ncu} (add --section SourceCounters --import-source yes "
        "before PROGRAM)"
    ),
    title="Each thread of {kernel} loads only {value} at once",
    label="Bytes per load",
    definition="sectors per load request x 32 bytes / 32 threads",
)
