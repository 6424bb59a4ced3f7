"""Rules about idle time by its cause."""

import re
from typing import Any

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import (
    EXISTING_BUFFERS,
    FOR_DATA_LOADING,
    FOR_MPI,
    FOR_SYNC,
    SHOW_GRAPH,
)
from perfkit.diagnosis.rules.changes import (
    GRAPHS,
    HIDDEN_LOADING,
    NO_CODE,
    NO_MEMORY_CALLS,
    NO_WAITS,
)
from perfkit.diagnosis.rules.longest_moments import longest_gap
from perfkit.diagnosis.rules.rule import Fact, Inside, Rule, later, now, soon, worth_a_look

SHOW_RANGES = """\
with torch.cuda.nvtx.range("forward"):
    output = model(batch)"""

# What to do about code that the CPU was inside, by its name: the first that fits.
INSIDE = (
    Inside(
        re.compile(r"^Torch-Compiled Region|CompiledFxGraph"),
        (
            "Compile the model with torch.compile(mode='reduce-overhead'): one graph then launches "
            "all kernels of a compiled region"
        ),
    ),
    Inside(
        re.compile(r"^aten::.*conv"),
        (
            "Set torch.backends.cudnn.benchmark to False, or pad the images to a "
            "few fixed sizes: cuDNN makes a new plan for each new shape"
        ),
        tries=True,
    ),
    Inside(
        re.compile(r"^aten::.*(?:attention|fft|mm|linear)"),
        (
            "Pad the inputs of this operator to a few fixed shapes: perhaps it makes a new plan "
            "for each new shape"
        ),
    ),
    Inside(
        re.compile(r"built-in function collect>"),
        ("Call gc.collect() less often, or leave it out: it looks at every object of Python"),
    ),
    Inside(
        re.compile(r"\.py\(|^<built-in"),
        "Call this function less often, or move it out of the loop",
    ),
)


UNKNOWN = (
    now("Record the CUDA calls of the CPU and the nodes of graphs: {nsys}"),
    soon("Mark the phases of the program with NVTX ranges", when=~Fact.RANGES),
)

THRESHOLD = worth_a_look("Idle time")
ELIMINATED = "perfkit found the cause by elimination: no recorded call or range explains the time"


def _of_cause(
    cause: str, *objections: Objection, subject: str = "", besides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return what the rules about causes of idle time share; warm-up speaks against each."""
    return {
        "needs": ("KERNELS", "API_CALLS", *besides),
        "subject": subject or cause.replace("_", " "),
        "evidence": (f"idle_{cause}_frac", "idle_frac"),
        "threshold": THRESHOLD,
        "objections": (Objection.WARM_UP, *objections),
        "kind": cause,
        "causes": (cause,),
        "moment": longest_gap(cause),
    }


IDLE = Rule(
    name="idle",
    question="Is the GPU idle?",
    needs=("KERNELS",),
    evidence=("idle_frac",),
    threshold=THRESHOLD,
    advice=UNKNOWN,
    next="Record the CUDA calls, which show the cause: {nsys}",
    indirect=ELIMINATED,
    moment=longest_gap(),
)

IDLE_DATA_LOADING = Rule(
    name="idle_data_loading",
    question="Does the GPU wait for its data?",
    **_of_cause("data_loading", besides=("RANGES",)),
    advice=FOR_DATA_LOADING,
    next="Time one batch of the loader alone, without the GPU",
    reason="the CPU was loading data",
    change=HIDDEN_LOADING,
)

IDLE_SYNC = Rule(
    name="idle_sync",
    question="Is the GPU idle because the CPU waited for it before launching more work?",
    **_of_cause("sync"),
    advice=FOR_SYNC,
    next="Find the line that waits (step 5 lists the waits): {torch}",
    reason="the CPU waited for the GPU before it launched more work",
    change=NO_WAITS,
)

IDLE_MEMORY = Rule(
    name="idle_memory",
    question="Does the GPU wait for calls that allocate or free memory?",
    **_of_cause("memory"),
    advice=(
        now(
            (
                "Find what the long steps do and the short ones do not, such as an input of "
                "another shape: only they allocate or free memory"
            ),
            when=Fact.TWO_LENGTHS,
        ),
        now(
            "Remove torch.cuda.empty_cache() from the long steps, if they call it",
            when=Fact.PYTORCH & Fact.TWO_LENGTHS,
        ),
        now(
            (
                "Remove torch.cuda.empty_cache() from the loop: PyTorch keeps memory that tensors "
                "free, and needs it again in the next step"
            ),
            when=Fact.PYTORCH & Fact.LOOP & ~Fact.TWO_LENGTHS,
        ),
        now(
            (
                "Let blocks of memory grow if shapes vary "
                "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
            ),
            when=Fact.PYTORCH,
        ),
        now(
            "Allocate buffers once, before the steps, or take them from a pool (cudaMallocAsync)",
            when=~Fact.PYTORCH,
        ),
        EXISTING_BUFFERS,
        soon("Keep shapes fixed so that the allocator can reuse its blocks"),
        later("Plan the memory of a step so that no step allocates or frees memory"),
    ),
    next=(
        "Find the allocation: open the memory timeline of step 5, or record with "
        "--cuda-memory-usage=true of nsys"
    ),
    reason="the CPU was allocating or freeing GPU memory",
    at_best=NO_MEMORY_CALLS,
)

IDLE_LAUNCH = Rule(
    name="idle_launch",
    question="Does the GPU wait for calls that launch kernels?",
    **_of_cause("launch"),
    advice=(
        now(
            "Check what fills the launch queue or holds the driver's lock: other threads, a "
            "debugger, the profiler itself"
        ),
        soon(
            "Launch fewer and longer kernels, or launch a CUDA graph (cudaGraphLaunch)",
            when=~Fact.GRAPHS,
        ),
    ),
    next=(
        "Compare how long launches take and how long kernels wait in the queue (step 3); look at "
        "the CPU's clock and load at the same time"
    ),
    reason="the CPU was inside calls that launch kernels",
    change=GRAPHS,
)

IDLE_CUDA_CALL = Rule(
    name="idle_cuda_call",
    question="Does the GPU wait for other CUDA calls of the CPU?",
    **_of_cause("cuda_call", subject="CUDA call"),
    advice=(
        now(
            "Gather small buffers into one buffer and copy it once (cudaMemcpyAsync)",
            when=Fact.SMALL_COPIES,
        ),
        now(
            "Move this call out of the loop: create events and streams once (cudaEventCreate, "
            "cudaStreamCreate), and reuse them",
            when=~Fact.IDLE_IN_COPIES,
        ),
        now(
            "Copy from and to pinned memory with calls that return at once (cudaMemcpyAsync)",
            when=Fact.IDLE_IN_COPIES & Fact.LINK_COPIES & ~Fact.PINNED,
        ),
        soon(
            "Issue copies and memsets before the GPU has finished what comes before them",
            when=Fact.IDLE_IN_COPIES,
        ),
    ),
    next="Find the call, and check whether it waits inside the driver: {nsys}",
    reason="the CPU was inside other CUDA calls",
)

IDLE_MPI = Rule(
    name="idle_mpi",
    question="Does the GPU wait for MPI calls of the CPU?",
    **_of_cause("mpi", besides=("RANGES",)),
    advice=FOR_MPI,
    next=(
        "Record which rank waits for which: nsys profile --trace=mpi,cuda,nvtx -o report.%q{RANK} "
        "PROGRAM"
    ),
    reason="the CPU was inside MPI calls",
)

IDLE_SYSTEM = Rule(
    name="idle_system",
    question=(
        "Does the GPU wait while the operating system blocks the thread that launches kernels?"
    ),
    **_of_cause("system", besides=("OS_CALLS",)),
    advice=(
        now(
            (
                "Find the call of the operating system that blocks the thread (step 3, OS calls), "
                "and its lock, file or poll"
            ),
            when=~Fact.STACKS,
        ),
        now(
            (
                "Raise num_workers of the DataLoader and set persistent_workers=True if the call "
                "is poll, select or sem_timedwait: these calls usually wait for the loader"
            ),
            when=Fact.PYTORCH & Fact.DATALOADER,
        ),
        now(
            "Move files, sockets and locks out of the launching thread (std::async, or "
            "concurrent.futures.ThreadPoolExecutor)"
        ),
        soon(
            "Reserve cores for this process (taskset, numactl --cpunodebind) if other "
            "processes use them"
        ),
    ),
    next="Find who holds the lock, file or core: {nsys} (add --sample=process-tree before PROGRAM)",
    reason="the operating system blocked the thread that launches kernels",
    indirect=(
        "the recording has the call, but not what it waits for: perhaps there was nothing to do"
    ),
)

IDLE_HOST_CODE = Rule(
    name="idle_host_code",
    question="Does the GPU wait for CPU code outside CUDA?",
    **_of_cause("host_code", Objection.PROFILED, Objection.BLOCKED, Objection.ANOTHER_WORKS),
    advice=(
        now(
            "Record call stacks to see what the launching thread does in these gaps: {callers}",
            when=~Fact.OPERATORS & ~Fact.STACKS,
        ),
        now(
            "Shorten the Python functions that run during the longest gaps (step 5 names them)",
            when=Fact.OPERATORS,
        ),
        now(
            "Mark the phases of the program with NVTX ranges (torch.cuda.nvtx.range_push)",
            when=Fact.PYTORCH & ~Fact.RANGES,
            code=SHOW_RANGES,
        ),
        now(
            "Mark the phases of the program with NVTX ranges (nvtxRangePushA, nvtxRangePop)",
            when=~Fact.PYTORCH & ~Fact.RANGES,
        ),
        soon(
            (
                "Move that work to another thread (std::async, or "
                "concurrent.futures.ThreadPoolExecutor) or out of the loop"
            ),
            when=Fact.LOOP,
        ),
        soon(
            (
                "Move that work to another thread (std::async, or "
                "concurrent.futures.ThreadPoolExecutor), or do it while the GPU works"
            ),
            when=~Fact.LOOP,
        ),
        soon(
            "Compile the step so that Python runs less (torch.compile)",
            when=Fact.PYTORCH & ~Fact.COMPILED,
        ),
        later(
            "Keep CPU code out of the step: use CUDA graphs, or a loop in C++",
            when=Fact.PYTORCH & Fact.LOOP & ~Fact.GRAPHS,
        ),
        later(
            "Keep CPU code out of the step: use CUDA graphs",
            when=Fact.LOOP & ~Fact.GRAPHS & ~Fact.PYTORCH,
        ),
    ),
    next="Record what the CPU does in these gaps: {callers}",
    reason="the CPU ran code outside CUDA",
    indirect=ELIMINATED,
    at_best=NO_CODE,
)

IDLE_KERNEL_WAIT = Rule(
    name="idle_kernel_wait",
    question="Do gaps between dependent kernels cost time?",
    **_of_cause("kernel_wait"),
    advice=(
        now(
            "Raise the batch_size so that kernels last longer than the gap between them",
            when=Fact.PYTORCH,
        ),
        now(
            "Give each kernel more work, so that it lasts longer than the gap before it",
            when=~Fact.PYTORCH,
        ),
        soon(
            (
                "Capture the step in a CUDA graph, which shortens the gap between kernels "
                "(torch.cuda.graph)"
            ),
            when=Fact.PYTORCH & ~Fact.GRAPHS,
            code=SHOW_GRAPH,
        ),
        soon(
            (
                "Capture the step in a CUDA graph, which shortens the gap between kernels "
                "(cudaStreamBeginCapture)"
            ),
            when=~Fact.PYTORCH & ~Fact.GRAPHS,
        ),
        later("Fuse small kernels that depend on each other"),
    ),
    next="Run the same steps in a CUDA graph, which shortens these gaps, and compare the two runs",
    reason="kernels that depend on each other follow with gaps",
    indirect=ELIMINATED,
)

IDLE_OTHER = Rule(
    name="idle_other",
    question="Does the GPU wait for something that was not recorded?",
    **_of_cause("other"),
    advice=(
        now(
            "Find in the timeline what the stream waited for: an event (cudaStreamWaitEvent), "
            "or another stream",
            when=~Fact.ONE_STREAM,
        ),
        now(
            "Find what held up work that was in its only stream already: another process on this "
            "GPU, memory that the driver maps (cudaMallocAsync), a GPU that slept",
            when=Fact.ONE_STREAM,
        ),
        soon(
            "Remove dependencies between streams if the data do not need them",
            when=~Fact.ONE_STREAM,
        ),
        later(
            "Balance the work between GPUs and streams that wait for each other", when=~Fact.ONE_GPU
        ),
    ),
    next="Record what the stream waited for, such as events and other processes: {nsys}",
    reason="the GPU waited for something that was not recorded",
    indirect=ELIMINATED,
)

IDLE_UNATTRIBUTED = Rule(
    name="idle_unattributed",
    question="Is the GPU idle where no call was recorded?",
    **_of_cause("unattributed"),
    advice=UNKNOWN,
    next="Record the missing calls and the nodes of graphs: {nsys}",
    indirect=ELIMINATED,
)

IDLE_EDGE = Rule(
    name="idle_edge",
    question="Is the GPU idle at the start or the end of the window?",
    **_of_cause("edge", Objection.BY_DESIGN),
    advice=(
        now(
            (
                "Divide this phase over all GPUs (cudaSetDevice), or start the work of the idle "
                "GPU earlier"
            ),
            when=~Fact.ONE_GPU,
        ),
        now(
            "Choose a window of steady steps, without start-up and shut-down (--window)",
            when=Fact.STEPS,
        ),
        soon(
            "Start the recording in the steady part: call cudaProfilerStart and pass "
            "--capture-range=cudaProfilerApi"
        ),
    ),
    next=(
        "Choose a window of steady steps: --capture-range=cudaProfilerApi, or the window parameter "
        "of this report"
    ),
    indirect="a phase of the program may need fewer GPUs or no GPU",
)
