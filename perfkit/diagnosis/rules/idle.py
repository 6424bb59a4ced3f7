"""Rules about idle time by its cause."""

import re

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_DATA_LOADING, FOR_MPI, FOR_SYNC, SHOW_GRAPH
from perfkit.diagnosis.rules.changes import (
    GRAPHS,
    HIDDEN_LOADING,
    NO_CODE,
    NO_MEMORY_CALLS,
    NO_WAITS,
)
from perfkit.diagnosis.rules.moments import longest_gap
from perfkit.diagnosis.rules.rule import IMMEDIATE, LONG_TERM, MEDIUM_TERM, Fact, Inside, Rule, Step

SHOW_RANGES = """\
with torch.cuda.nvtx.range("forward"):
    output = model(batch)"""

# What to do about code that the CPU was inside, by its name: the first that fits.
INSIDE = {
    "convolution": Inside(
        re.compile(r"^aten::.*conv"),
        (
            "Set torch.backends.cudnn.benchmark to False, or pad the images to a "
            "few fixed sizes: cuDNN makes a new plan for each new shape"
        ),
    ),
    "plans": Inside(
        re.compile(r"^aten::.*(?:attention|fft|mm|linear)"),
        ("Pad the inputs of this operator to a few fixed shapes: perhaps it makes a new plan for each new shape"),
    ),
    "collect": Inside(
        re.compile(r"built-in function collect>"),
        ("Call gc.collect() less often, or leave it out: it looks at every object of Python"),
    ),
    "function": Inside(
        re.compile(r"\.py\(|^<built-in"),
        "Call this function less often, or move it out of the loop",
    ),
}


UNKNOWN = (
    Step(IMMEDIATE, "Record the CUDA calls of the CPU and the nodes of graphs: {nsys}"),
    Step(MEDIUM_TERM, "Mark the phases of the program with NVTX ranges", unless=(Fact.RANGES,)),
)

IDLE = Rule(
    name="idle",
    question="Is the GPU idle?",
    needs=("KERNELS",),
    evidence=("idle_frac",),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=UNKNOWN,
    next="Record the CUDA calls, which show the cause: {nsys}",
    indirect=("perfkit found the cause by elimination: no recorded call or range explains the time"),
    moment=longest_gap(),
)

IDLE_DATA_LOADING = Rule(
    name="idle_data_loading",
    question="Does the GPU wait for its data?",
    needs=("KERNELS", "API_CALLS", "RANGES"),
    evidence=("idle_data_loading_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=FOR_DATA_LOADING,
    next=("Time one batch of the loader alone, and record the loader's processes too: {nsys}"),
    reason="the CPU was loading data",
    objections=(Objection.WARM_UP,),
    change=HIDDEN_LOADING,
    kind="data_loading",
    causes=("data_loading",),
    moment=longest_gap("data_loading"),
)

IDLE_SYNC = Rule(
    name="idle_sync",
    question="Is the GPU idle because the CPU waited for it before launching more work?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_sync_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=FOR_SYNC,
    next="Find the line that waits (step 5 lists the waits): {torch}",
    reason="the CPU waited for the GPU before it launched more work",
    objections=(Objection.WARM_UP,),
    change=NO_WAITS,
    kind="sync",
    causes=("sync",),
    moment=longest_gap("sync"),
)

IDLE_MEMORY = Rule(
    name="idle_memory",
    question="Does the GPU wait for calls that allocate or free memory?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_memory_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            (
                "Find what the long steps do and the short ones do not, such as an "
                "input of another shape: only they allocate or free memory"
            ),
            only=(Fact.TWO_LENGTHS,),
        ),
        Step(
            IMMEDIATE,
            ("Remove torch.cuda.empty_cache() from the long steps, if they call it"),
            only=(Fact.PYTORCH, Fact.TWO_LENGTHS),
        ),
        Step(
            IMMEDIATE,
            (
                "Remove torch.cuda.empty_cache() from the loop: PyTorch keeps "
                "memory that tensors free, and needs it again in the next step"
            ),
            only=(Fact.PYTORCH, Fact.LOOP),
            unless=(Fact.TWO_LENGTHS,),
        ),
        Step(
            IMMEDIATE,
            ("Let blocks of memory grow if shapes vary (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"),
            only=(Fact.PYTORCH,),
        ),
        Step(
            IMMEDIATE,
            ("Allocate buffers once, before the steps, or take them from a pool (cudaMallocAsync)"),
            unless=(Fact.PYTORCH,),
        ),
        Step(MEDIUM_TERM, "Pass existing output buffers to operators (out=)", only=(Fact.PYTORCH,)),
        Step(MEDIUM_TERM, "Keep shapes fixed so that the allocator can reuse its blocks"),
        Step(LONG_TERM, ("Plan the memory of a step so that no step allocates or frees memory")),
    ),
    next=("Find the allocation: open the memory timeline of step 5, or record with --cuda-memory-usage=true of nsys"),
    reason="the CPU was allocating or freeing GPU memory",
    objections=(Objection.WARM_UP,),
    at_best=NO_MEMORY_CALLS,
    kind="memory",
    causes=("memory",),
    moment=longest_gap("memory"),
)

IDLE_LAUNCH = Rule(
    name="idle_launch",
    question="Does the GPU wait for calls that launch kernels?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_launch_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            (
                "Check what fills the launch queue or holds the driver's lock: "
                "other threads, a debugger, the profiler itself"
            ),
        ),
        Step(
            MEDIUM_TERM,
            ("Launch fewer and longer kernels, or launch a CUDA graph (cudaGraphLaunch)"),
            unless=(Fact.GRAPHS,),
        ),
    ),
    next=(
        "Compare how long launches take and how long kernels wait in the queue "
        "(step 3); look at the CPU's clock and load at the same time"
    ),
    reason="the CPU was inside calls that launch kernels",
    objections=(Objection.WARM_UP,),
    change=GRAPHS,
    kind="launch",
    causes=("launch",),
    moment=longest_gap("launch"),
)

IDLE_CUDA_CALL = Rule(
    name="idle_cuda_call",
    question="Does the GPU wait for other CUDA calls of the CPU?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_cuda_call_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            ("Gather small buffers into one buffer and copy it once (cudaMemcpyAsync)"),
            only=(Fact.SMALL_COPIES,),
        ),
        Step(
            IMMEDIATE,
            ("Move this call out of the loop: create events, streams and buffers once and reuse them"),
        ),
        Step(
            MEDIUM_TERM,
            ("Replace synchronising calls by their asynchronous forms (cudaMallocAsync, cudaFreeAsync)"),
        ),
    ),
    next="Find the call, and check whether it waits inside the driver: {nsys}",
    reason="the CPU was inside other CUDA calls",
    objections=(Objection.WARM_UP,),
    kind="cuda_call",
    causes=("cuda_call",),
    moment=longest_gap("cuda_call"),
)

IDLE_MPI = Rule(
    name="idle_mpi",
    question="Does the GPU wait for MPI calls of the CPU?",
    needs=("KERNELS", "API_CALLS", "RANGES"),
    evidence=("idle_mpi_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=FOR_MPI,
    next=("Record which rank waits for which: nsys profile --trace=mpi,cuda,nvtx -o report.%q{RANK} PROGRAM"),
    reason="the CPU was inside MPI calls",
    objections=(Objection.WARM_UP,),
    kind="mpi",
    causes=("mpi",),
    moment=longest_gap("mpi"),
)

IDLE_SYSTEM = Rule(
    name="idle_system",
    question=("Does the GPU wait while the operating system blocks the thread that launches kernels?"),
    needs=("KERNELS", "API_CALLS", "OS_CALLS"),
    evidence=("idle_system_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            (
                "Find the call of the operating system that blocks the thread "
                "(step 3, OS calls), and its lock, file or poll"
            ),
            unless=(Fact.STACKS,),
        ),
        Step(
            IMMEDIATE,
            (
                "Raise num_workers of the DataLoader and set "
                "persistent_workers=True if the call is poll, select or "
                "sem_timedwait: these calls usually wait for the loader"
            ),
            only=(Fact.PYTORCH, Fact.DATALOADER),
        ),
        Step(
            IMMEDIATE,
            (
                "Move files, sockets and locks out of the launching thread "
                "(std::async, or concurrent.futures.ThreadPoolExecutor)"
            ),
        ),
        Step(
            MEDIUM_TERM,
            ("Reserve cores for this process (taskset, numactl --cpunodebind) if other processes use them"),
        ),
    ),
    next=("Find who holds the lock, file or core: {nsys} (add --sample=process-tree before PROGRAM)"),
    reason="the operating system blocked the thread that launches kernels",
    indirect=("the recording has the call, but not what it waits for: perhaps there was nothing to do"),
    objections=(Objection.WARM_UP,),
    kind="system",
    causes=("system",),
    moment=longest_gap("system"),
)

IDLE_HOST_CODE = Rule(
    name="idle_host_code",
    question="Does the GPU wait for CPU code outside CUDA?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_host_code_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            ("Record call stacks to see what the launching thread does in these gaps: {callers}"),
            unless=(Fact.OPERATORS, Fact.STACKS),
        ),
        Step(
            IMMEDIATE,
            ("Shorten the Python functions that run during the longest gaps (step 5 names them)"),
            only=(Fact.OPERATORS,),
        ),
        Step(
            IMMEDIATE,
            ("Mark the phases of the program with NVTX ranges (torch.cuda.nvtx.range_push)"),
            only=(Fact.PYTORCH,),
            unless=(Fact.RANGES,),
            code=SHOW_RANGES,
        ),
        Step(
            IMMEDIATE,
            ("Mark the phases of the program with NVTX ranges (nvtxRangePushA, nvtxRangePop)"),
            unless=(Fact.PYTORCH, Fact.RANGES),
        ),
        Step(
            MEDIUM_TERM,
            (
                "Move that work to another thread (std::async, or "
                "concurrent.futures.ThreadPoolExecutor) or out of the loop"
            ),
            only=(Fact.LOOP,),
        ),
        Step(
            MEDIUM_TERM,
            (
                "Move that work to another thread (std::async, or "
                "concurrent.futures.ThreadPoolExecutor), or do it while the GPU "
                "works"
            ),
            unless=(Fact.LOOP,),
        ),
        Step(
            MEDIUM_TERM,
            "Compile the step so that Python runs less (torch.compile)",
            only=(Fact.PYTORCH,),
            unless=(Fact.COMPILED,),
        ),
        Step(
            LONG_TERM,
            "Keep CPU code out of the step: use CUDA graphs, or a loop in C++",
            only=(Fact.PYTORCH, Fact.LOOP),
            unless=(Fact.GRAPHS,),
        ),
        Step(
            LONG_TERM,
            "Keep CPU code out of the step: use CUDA graphs",
            only=(Fact.LOOP,),
            unless=(Fact.GRAPHS, Fact.PYTORCH),
        ),
    ),
    next="Record what the CPU does in these gaps: {callers}",
    reason="the CPU ran code outside CUDA",
    indirect=("perfkit found the cause by elimination: no recorded call or range explains the time"),
    objections=(Objection.WARM_UP, Objection.PROFILED, Objection.BLOCKED),
    at_best=NO_CODE,
    kind="host_code",
    causes=("host_code",),
    moment=longest_gap("host_code"),
)

IDLE_KERNEL_WAIT = Rule(
    name="idle_kernel_wait",
    question="Do gaps between dependent kernels cost time?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_kernel_wait_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            ("Raise the batch_size so that kernels last longer than the gap between them"),
        ),
        Step(
            MEDIUM_TERM,
            ("Capture the step in a CUDA graph, which shortens the gap between kernels (torch.cuda.graph)"),
            unless=(Fact.GRAPHS,),
            code=SHOW_GRAPH,
        ),
        Step(LONG_TERM, "Fuse small kernels that depend on each other"),
    ),
    next=("Run the same steps in a CUDA graph, which shortens these gaps, and compare the two runs"),
    reason="kernels that depend on each other follow with gaps",
    indirect=("perfkit found the cause by elimination: no recorded call or range explains the time"),
    objections=(Objection.WARM_UP,),
    kind="kernel_wait",
    causes=("kernel_wait",),
    moment=longest_gap("kernel_wait"),
)

IDLE_OTHER = Rule(
    name="idle_other",
    question="Does the GPU wait for something that was not recorded?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_other_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            ("Find in the timeline what the stream waited for: an event (cudaStreamWaitEvent), or another stream"),
        ),
        Step(MEDIUM_TERM, "Remove dependencies between streams if the data do not need them"),
        Step(
            LONG_TERM,
            "Balance the work between GPUs and streams that wait for each other",
            unless=(Fact.ONE_GPU,),
        ),
    ),
    next=("Record what the stream waited for, such as events and other processes: {nsys}"),
    reason="the GPU waited for something that was not recorded",
    indirect=("perfkit found the cause by elimination: no recorded call or range explains the time"),
    objections=(Objection.WARM_UP,),
    kind="other",
    causes=("other",),
    moment=longest_gap("other"),
)

IDLE_UNATTRIBUTED = Rule(
    name="idle_unattributed",
    question="Is the GPU idle where no call was recorded?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_unattributed_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=UNKNOWN,
    next="Record the missing calls and the nodes of graphs: {nsys}",
    indirect=("perfkit found the cause by elimination: no recorded call or range explains the time"),
    objections=(Objection.WARM_UP,),
    kind="unattributed",
    causes=("unattributed",),
    moment=longest_gap("unattributed"),
)

IDLE_EDGE = Rule(
    name="idle_edge",
    question="Is the GPU idle at the start or the end of the window?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_edge_frac", "idle_frac"),
    target="under 10 %",
    threshold="Idle time: 10 % of the time is worth a look, 30 % is severe (conventions)",
    advice=(
        Step(
            IMMEDIATE,
            ("Divide this phase over all GPUs (cudaSetDevice), or start the work of the idle GPU earlier"),
            unless=(Fact.ONE_GPU,),
        ),
        Step(
            IMMEDIATE,
            ("Choose a window of steady steps, without start-up and shut-down (--window)"),
        ),
        Step(
            MEDIUM_TERM,
            ("Start the recording in the steady part: call cudaProfilerStart and pass --capture-range=cudaProfilerApi"),
        ),
    ),
    next=("Choose a window of steady steps: --capture-range=cudaProfilerApi, or the window parameter of this report"),
    indirect="a phase of the program may need fewer GPUs or no GPU",
    objections=(Objection.WARM_UP, Objection.BY_DESIGN),
    kind="edge",
    causes=("edge",),
    moment=longest_gap("edge"),
)
