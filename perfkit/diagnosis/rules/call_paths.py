"""Rules about call paths: where the CPU and the GPU spend their time."""

from collections.abc import Mapping
from typing import Any

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_COPIES, FOR_LAUNCH, FOR_MPI
from perfkit.diagnosis.rules.rule import CALLS, KERNELS, Fact, Rule, later, now, soon

# What nearly all rules about call paths share.
OF_CALL_PATHS: Mapping[str, Any] = {"needs": ("CALLTREE", "CALL_METRICS"), "notebook": CALLS}

PATHS_GPU_IDLE = Rule(
    name="paths_gpu_idle",
    subject="GPU idle",
    question="Does the GPU work for only a small part of the run?",
    **OF_CALL_PATHS,
    evidence=("paths_gpu_busy_frac", "paths_operation_ns", "paths_wall_ns"),
    target="above 70 %",
    threshold="A GPU that works for under 70 % of the wall time is severe (convention)",
    advice=(
        now(
            (
                "Find the CPU code that takes the time (step 3, call_paths), and move it out of "
                "the loop"
            ),
            when=Fact.CPU_PATHS,
        ),
        now(
            (
                "Record what the CPU does while the GPU has no work: hpcrun -e CPUTIME -e "
                "gpu=nvidia PROGRAM"
            ),
            when=~Fact.CPU_PATHS & ~Fact.AMD,
        ),
        now(
            (
                "Record what the CPU does while the GPU has no work: hpcrun -e CPUTIME -e gpu=rocm "
                "PROGRAM"
            ),
            when=Fact.AMD & ~Fact.CPU_PATHS,
        ),
        soon("Overlap the CPU's work with the GPU's: copy asynchronously, and queue several steps"),
        soon("Give the GPU more work per step: raise batch_size", when=Fact.PYTORCH),
        later("Use a smaller GPU for this job, or share one between jobs"),
    ),
    next="Record when the GPU is idle: {nsys}",
    objections=(Objection.FEW_OPERATIONS,),
)

PATHS_COPIES = Rule(
    name="paths_copies",
    subject="copies",
    question="Do copies take a large part of the GPU's time?",
    **OF_CALL_PATHS,
    evidence=("paths_copy_frac", "paths_copy_*", "paths_h2d_bytes"),
    threshold="10 % of the GPU's time is worth a look, 30 % is severe (conventions)",
    advice=FOR_COPIES,
    next="Record when the copies run, and what runs at the same time: {nsys}",
)

PATHS_ALLOCATION = Rule(
    name="paths_allocation",
    subject="allocation",
    question="Do memory allocations take a large part of the GPU's time?",
    **OF_CALL_PATHS,
    evidence=("paths_allocation_frac", "paths_allocation_*", "paths_operation_ns"),
    threshold=(
        "10 % of the time of all GPU operations is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Allocate buffers once before the loop, or take them from a pool (cudaMallocAsync, "
            "hipMallocAsync)"
        ),
        now(
            (
                "Keep shapes fixed so that PyTorch's allocator can reuse its blocks "
                "(PYTORCH_CUDA_ALLOC_CONF)"
            ),
            when=Fact.PYTORCH,
        ),
        soon("Free buffers after the loop: cudaFree and hipFree wait for the GPU"),
    ),
    next=(
        "Find the call path that allocates (metric GMEM in call_paths of step 3), and record when: "
        "{nsys}"
    ),
)

PATHS_STALL = Rule(
    name="paths_stall",
    subject="stall",
    question="Do warps wait mostly for one reason?",
    needs=("CALLTREE", "CALL_METRICS", "STALLS"),
    evidence=("paths_main_stall_frac",),
    target="under 30 %",
    threshold="30 % of the stall samples (convention)",
    advice=(
        soon("Measure the kernels with the most stall samples: {ncu}", when=~Fact.COUNTERS),
        later("Change the algorithm or the data layout of these kernels"),
    ),
    next="Measure the counters of these kernels: {ncu}",
    indirect="a share of samples is not a share of time",
    notebook=KERNELS,
    shortens_kernels=True,
)

PATHS_LAUNCHES = Rule(
    name="paths_launches",
    subject="launches",
    question="Do kernels run no longer than their launch takes?",
    **OF_CALL_PATHS,
    evidence=("paths_kernel_mean_ns", "paths_launch_*"),
    target="longer kernels",
    threshold="The average kernel runs under 10 µs, and one launch costs 5 to 10 µs (chapter)",
    advice=FOR_LAUNCH,
    next="Record whether the GPU waits for the launches: {nsys}",
    indirect="the recording counts launches, but does not time them",
)

PATHS_BARRIERS = Rule(
    name="paths_barriers",
    subject="barriers",
    question="Do threads of OpenMP wait for one another?",
    **OF_CALL_PATHS,
    evidence=("paths_barrier_frac", "paths_host_ns", "paths_asleep_frac"),
    target="under 5 %",
    threshold=(
        "5 % of all threads' time in barriers of OpenMP; 10 % is worth a look, 30 % is severe "
        "(conventions)"
    ),
    advice=(
        now(
            "Divide the iterations of the region evenly: schedule(dynamic) or schedule(guided) "
            "on its loop"
        ),
        now(
            "Bind the threads to cores (OMP_PROC_BIND=close, OMP_PLACES=cores), and use no "
            "more threads than cores"
        ),
        soon("Merge neighbouring regions, and drop barriers that nothing needs (nowait)"),
    ),
    next=(
        "Compare the threads of the region (step 3), and record a trace of them: hpcrun -e CPUTIME "
        "-t PROGRAM"
    ),
    indirect="the times are sums over threads",
)

PATHS_HOST = Rule(
    name="paths_host",
    subject="host",
    question="In which function does the CPU spend its time?",
    **OF_CALL_PATHS,
    evidence=("paths_host_frac", "paths_procedure_frac", "paths_host_ns"),
    target="less",
    threshold=(
        "On each level of the call path, half of the caller's time. 30 % of all time is "
        "worth a look (conventions)"
    ),
    advice=(
        now(
            "Move work of this function that is needed only once to before the loop (call_paths "
            "shows its callers)"
        ),
        soon(
            "If it computes the same again, keep the result (functools.cache), else move it to "
            "another thread",
            when=Fact.PYTHON,
        ),
        soon(
            "Divide this work over more threads (#pragma omp parallel for), or move it to the GPU",
            when=~Fact.PYTHON & ~Fact.MPI & ~Fact.OPENMP_THREADS,
        ),
        soon(
            "Vectorise the loops of its OpenMP regions (#pragma omp simd), or move them to the GPU",
            when=~Fact.PYTHON & ~Fact.MPI & Fact.OPENMP_THREADS,
        ),
        later("Replace this function by a compiled or vectorised implementation", when=~Fact.MPI),
    ),
    next="Record when it happens: {nsys}",
    indirect="a share of samples is not a share of time",
)

MPI_TIME = Rule(
    name="mpi_time",
    question="Do MPI calls take a large part of the CPU's time?",
    **OF_CALL_PATHS,
    evidence=("paths_mpi_frac", "paths_mpi_call_frac", "paths_host_ns"),
    threshold="Time of the threads in MPI calls: 10 % is worth a look, 30 % is severe (conventions)",
    advice=FOR_MPI,
    next=(
        "Record which rank waits for which: nsys profile --trace=mpi,cuda,nvtx -o report.%q{RANK} "
        "PROGRAM"
    ),
    indirect=(
        "a waiting call takes time like a sending call, and the recording does not tell them apart"
    ),
)
