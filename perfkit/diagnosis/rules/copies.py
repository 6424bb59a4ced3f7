"""Rules about copies that hold up the GPU, and about the pages of unified memory."""

from perfkit.diagnosis.rules.advice import FOR_COPIES, SHOW_DATA_LOADER
from perfkit.diagnosis.rules.changes import FASTER_COPIES, OVERLAPPED_COPIES
from perfkit.diagnosis.rules.longest_moments import longest_copy
from perfkit.diagnosis.rules.rule import KERNELS, Fact, Rule, later, now, soon, worth_a_look

SHOW_PINNED_RESULT = """\
best = scores.topk(10).values
buffer = torch.empty(best.shape, dtype=best.dtype, pin_memory=True)
buffer.copy_(best, non_blocking=True)
done = torch.cuda.Event()
done.record()
done.synchronize()  # later, just before the CPU reads the buffer"""
SHOW_ASYNC_COPY = """\
batch = batch.pin_memory().to("cuda", non_blocking=True)"""
SHOW_PINNED = """\
cudaHostAlloc(&host, bytes, cudaHostAllocDefault);
cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);"""

ALONE = worth_a_look("Copies while no kernel runs")

EXPOSED_COPY = Rule(
    name="exposed_copy",
    question="Do copies delay the GPU?",
    needs=("KERNELS", "COPIES"),
    evidence=("exposed_copy_frac",),
    threshold=ALONE,
    advice=FOR_COPIES,
    next="Do the same work with pinned memory and asynchronous copies, and compare the two runs",
    change=OVERLAPPED_COPIES,
    moment=longest_copy,
)

COPIES_SMALL = Rule(
    name="copies_small",
    question="Do many small copies delay the GPU?",
    needs=("KERNELS", "COPIES"),
    evidence=("exposed_small_copy_frac", "small_copy_gap_frac"),
    threshold=(
        "A copy of at most 64 KB is small (CUDA Runtime API, synchronisation behaviour). A hundred "
        "of them are many; gaps under 1 ms between two of them count (conventions). Copies while "
        "no kernel runs: 10 % of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now("Gather small tensors into one buffer (torch.cat) and copy it once", when=Fact.PYTORCH),
        now(
            "Gather small buffers into one buffer and copy it once (cudaMemcpyAsync)",
            when=~Fact.PYTORCH,
        ),
        now("Create constants on the GPU (torch.zeros(n, device='cuda'))", when=Fact.PYTORCH),
        soon("Log values, and update values on the CPU, only every hundredth step"),
        later("Keep the state of the loop on the GPU, so that a step needs no small copies"),
    ),
    next="Do the same work with merged copies, and compare the two runs",
    change=FASTER_COPIES,
    kind="small",
    moment=longest_copy,
)

COPIES_PAGEABLE = Rule(
    name="copies_pageable",
    question="Do copies of pageable memory delay the GPU?",
    needs=("KERNELS", "COPIES"),
    evidence=("exposed_pageable_copy_frac",),
    threshold=(
        "Copies while no kernel runs: 10 % of the time is worth a look, 30 % is severe "
        "(conventions). perfkit also reports them, with low severity, if they move half of the "
        "bytes"
    ),
    advice=(
        now(
            (
                "Compute on the GPU what the CPU needs, such as a sum, a mean or torch.topk, and "
                "copy only the small result"
            ),
            when=Fact.PYTORCH & Fact.PAGEABLE_TO_CPU,
        ),
        now(
            (
                "Copy the result into a pinned buffer with non_blocking=True, and wait for an "
                "event before the CPU reads it"
            ),
            when=Fact.PYTORCH & Fact.PAGEABLE_TO_CPU,
            code=SHOW_PINNED_RESULT,
        ),
        now(
            (
                "Create on the GPU what the program does not read from a file or a network "
                "(torch.randn(n, device='cuda'))"
            ),
            when=Fact.PYTORCH & ~Fact.PAGEABLE_TO_CPU & ~Fact.DATALOADER,
        ),
        now(
            "Set pin_memory=True in the DataLoader",
            when=Fact.PYTORCH & Fact.DATALOADER & ~Fact.PAGEABLE_TO_CPU,
            code=SHOW_DATA_LOADER,
        ),
        now(
            "Pin the CPU's tensors before the copy (tensor.pin_memory())",
            when=Fact.PYTORCH & ~Fact.PAGEABLE_TO_CPU & ~Fact.DATALOADER,
        ),
        now(
            "Copy with .to(device, non_blocking=True)",
            when=Fact.PYTORCH & ~Fact.PAGEABLE_TO_CPU,
            code=SHOW_ASYNC_COPY,
        ),
        now(
            (
                "Reduce the data on the GPU (such as with cub::DeviceReduce), and copy only the "
                "small result"
            ),
            when=Fact.PAGEABLE_TO_CPU & ~Fact.PYTORCH,
        ),
        now(
            "Allocate the CPU memory with cudaHostAlloc and copy with cudaMemcpyAsync",
            when=~Fact.PYTORCH,
            code=SHOW_PINNED,
        ),
        soon(
            "Copy what the next step needs on a separate stream while the GPU computes this one",
            when=~Fact.PAGEABLE_TO_CPU & Fact.STEPS,
        ),
        soon(
            (
                "Copy the results of one step on a separate stream while the GPU computes the next "
                "step"
            ),
            when=Fact.PAGEABLE_TO_CPU & Fact.STEPS,
        ),
        later("Keep reused data on the GPU"),
    ),
    next="Do the same work with pinned memory and asynchronous copies, and compare the two runs",
    change=FASTER_COPIES,
    kind="pageable",
    moment=longest_copy,
)

COPIES_SYNCHRONOUS = Rule(
    name="copies_synchronous",
    question="Do synchronous copies, for which the CPU waits, delay the GPU?",
    needs=("KERNELS", "COPIES", "API_CALLS"),
    evidence=("exposed_synchronous_copy_frac",),
    threshold=ALONE,
    advice=(
        now("Replace cudaMemcpy by cudaMemcpyAsync on a stream (in PyTorch non_blocking=True)"),
        now(
            "Allocate pinned CPU memory (cudaHostAlloc): without it, asynchronous copies block too",
            when=~Fact.PINNED,
        ),
        soon(
            "Wait for an event (cudaStreamWaitEvent) where the program needs the data, not for "
            "the copy itself"
        ),
        later("Let the CPU run steps ahead: use two buffers for the copied data"),
    ),
    next="Do the same work with asynchronous copies, and compare the two runs",
    change=OVERLAPPED_COPIES,
    kind="synchronous",
    moment=longest_copy,
)

COPIES_SERIAL = Rule(
    name="copies_serial",
    question="Do copies run before or after the computation instead of at the same time?",
    needs=("KERNELS", "COPIES"),
    evidence=("exposed_serial_copy_frac",),
    threshold=ALONE,
    advice=FOR_COPIES,
    next="Do the same work with copies on a stream of their own, and compare the two runs",
    change=OVERLAPPED_COPIES,
    kind="serial",
    moment=longest_copy,
)

COPIES_BOUND = Rule(
    name="copies_bound",
    question="Do copies over the link last longer than the computation that could hide them?",
    needs=("KERNELS", "COPIES"),
    evidence=("exposed_serial_copy_frac", "computation_frac", "h2d_bytes_per_s", "d2h_bytes_per_s"),
    threshold=(
        "Copies in one direction while no kernel runs last twice as long as the computation: 10 % "
        "of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Keep data that the program copies repeatedly, such as weights and tables, on the "
            "GPU (cudaMalloc once)"
        ),
        now(
            (
                "Turn off offloading to the CPU (cpu_offload, device_map) if the GPU's memory "
                "holds the model"
            ),
            when=Fact.PYTORCH,
        ),
        soon(
            "Copy fewer bytes: use 16-bit types, pack the data, and copy only what the kernels read"
        ),
        soon(
            "Let the GPU do more with each copy: run more kernels on the same data before the "
            "next copy"
        ),
        later("Choose a machine with a faster link between CPU and GPU"),
    ),
    next=(
        "Measure the rate that the link reaches, and compare it with the rate of these copies: "
        "perfkit baseline copy"
    ),
    kind="bound",
    moment=longest_copy,
    notebook=KERNELS,
)

UNIFIED_MEMORY = Rule(
    name="unified_memory",
    question="Does the driver move pages of unified memory?",
    needs=("COPIES", "KERNELS"),
    evidence=("migration_frac", "migration_beside_frac"),
    threshold=worth_a_look("Migrations"),
    advice=(
        now("Prefetch managed memory before the kernel runs (cudaMemPrefetchAsync)"),
        now("Tell the driver where data belong with cudaMemAdvise"),
        soon(
            "Replace managed memory by cudaMalloc and explicit copies if you know the access "
            "pattern"
        ),
    ),
    next=(
        "Record the page faults that cause the migrations: nsys profile "
        "--cuda-um-gpu-page-faults=true --cuda-um-cpu-page-faults=true -o report PROGRAM"
    ),
    indirect="the recording does not show whether running kernels wait for the moving pages",
    moment=longest_copy,
)
