"""What to do about each cause of lost time, by horizon, what to measure next, and from which value on a rule tells it.

Horizons are days, weeks to months, and quarters. A convention is one of this project: a round number that keeps
findings
few. The others are named with their source: the guide to performance analysis, the course's chapter on profiling, and
what vendors document.
"""

from __future__ import annotations

Advice = dict[str, tuple[str, ...]]


def advice(immediate: str, medium: str, long: str) -> Advice:
    """Return advice by horizon; steps within a text are separated by semicolons."""
    texts = {"immediate": immediate, "medium-term": medium, "long-term": long}
    steps = {horizon: [step.strip() for step in text.split(";")] for horizon, text in texts.items()}
    return {horizon: tuple(step[0].upper() + step[1:] for step in of_horizon) for horizon, of_horizon in steps.items()}


DATA_LOADING = advice(
    "Raise DataLoader num_workers towards the cores per GPU; set pin_memory=True, persistent_workers=True and "
    "prefetch_factor=4; copy with non_blocking=True",
    "Decode, tokenise or resize the data once and store it ready to use; keep it on local NVMe",
    "Move preprocessing to the GPU or to a separate service; choose a storage format that is read in large blocks",
)
CHECKPOINTING = advice(
    "Save asynchronously: torch.distributed.checkpoint.async_save copies the state to pinned memory and writes it "
    "beside the next steps (in Megatron --async-save, in DeepSpeed an asynchronous engine); save less often: every "
    "sqrt(2 x time to save x mean time between failures) (Young), 54 minutes for 60 s and one failure a day",
    "Write to local NVMe and copy to shared storage in the background; let every rank write its own shard "
    "(torch.distributed.checkpoint) instead of gathering all on rank 0",
    "Use parallel storage that takes the whole state in under a minute (140 GB need 2.3 GB/s); keep copies in the "
    "memory of other nodes and write only some of them",
)
SYNC = advice(
    "Remove .item(), .cpu() and print of GPU values from the step; log every hundredth step; use pinned memory and "
    "non_blocking=True for copies",
    "Replace device-wide synchronisation by events between streams",
    "Let the framework run several steps ahead: no decision of the host may depend on the step in flight",
)
MEMORY = advice(
    "Allocate buffers before the loop; use the framework's caching allocator or cudaMallocAsync",
    "Give operators their output buffers; keep shapes fixed so that blocks are reused",
    "Plan memory per step so that nothing is allocated or freed in it",
)
LAUNCH = advice(
    "Raise the batch size; compile the step with torch.compile(mode='reduce-overhead')",
    "Capture the step in a CUDA graph; use fused optimizers and fused attention",
    "Write the chains of small kernels as one kernel",
)
HOST_CODE = advice(
    "Record the framework (perfkit step 5) or call stacks to see what the launching thread does in these gaps; "
    "mark phases with NVTX",
    "Move that work off the launching thread or out of the step; compile the step so that Python runs less",
    "Keep the step free of Python: CUDA graphs, or a C++ loop",
)
HOST_PATH = advice(
    "Open step 3, call paths, at this function: what is only needed once belongs before the loop",
    "Do this work once and keep its result (functools.cache), or move it to another thread "
    "(concurrent.futures.ThreadPoolExecutor) or to the time in which the GPU computes",
    "Replace it by a compiled or vectorised implementation",
)
KERNEL_WAIT = advice(
    "Raise the batch size so that kernels are longer than the gap between them",
    "Capture the step in a CUDA graph (torch.cuda.graph, or torch.compile(mode='reduce-overhead')), which shortens the "
    "gap between dependent kernels",
    "Fuse dependent small kernels",
)
OTHER_WAIT = advice(
    "Look at the timeline for what the stream waited for: an event (cudaStreamWaitEvent), another stream, a collective "
    "of another GPU",
    "Remove dependencies between streams that the data do not need",
    "Balance the work between the GPUs and streams that wait for each other",
)
UNKNOWN = advice(
    "Record the CUDA calls of the CPU (nsys profile --trace=cuda) and graph nodes (--cuda-graph-trace=node)",
    "Mark the program's phases with NVTX",
    "Keep a recording with calls and ranges as the baseline of every change",
)
EDGE = advice(
    "Choose a window of steady steps, without start-up and shut-down",
    "Start recording with cudaProfilerStart or --capture-range in the steady part",
    "Measure start-up separately: it is paid once per job",
)
IDLE_GPU = advice(
    "Give the GPU more work per step: a larger batch_size; find the host code in which the time goes "
    "(step 3, call paths) and take it out of the loop",
    "Overlap the host's work with the GPU's: copies with non_blocking=True, prefetch_factor of the loader, several "
    "steps in flight",
    "Assess smaller or shared GPUs for this job; keep the utilisation of every job under watch",
)
COPIES = advice(
    "Pin the host memory; copy with non_blocking=True on a stream of its own; merge small copies",
    "Prefetch the next batch while this one is computed",
    "Keep data that is used again on the GPU",
)
PAGEABLE = advice(
    "Set pin_memory=True in the DataLoader, or allocate with cudaHostAlloc; copy with .to(device, non_blocking=True)",
    "Copy on a stream of its own, and prefetch the next batch while this one is computed",
    "Keep data that is used again on the GPU",
)
SMALL_COPIES = advice(
    "Gather small tensors into one buffer (torch.cat) and copy that once; create constants on the GPU "
    "(torch.zeros(n, device='cuda'))",
    "Log and update parameters of the host in batches, every hundredth step",
    "Keep the state of the loop on the GPU, so that nothing small crosses the link in a step",
)
SYNC_COPIES = advice(
    "Replace cudaMemcpy by cudaMemcpyAsync on a stream, with pinned memory; in PyTorch non_blocking=True",
    "Synchronise by an event where the data is needed, not by the copy",
    "Let the host run steps ahead: double-buffer what is copied",
)
COMMUNICATION = advice(
    "Check that gradient buckets start while the backward pass runs (DDP bucket_cap_mb); use NVLink where there is",
    "Communicate in bfloat16; accumulate gradients over several micro-batches",
    "Choose the parallel layout so that the large exchanges stay inside a node",
)
LINKS = advice(
    "Look at nvidia-smi nvlink --status and nvidia-smi topo -m, and in a log with NCCL_DEBUG=INFO at the transports "
    "(P2P, not SHM or NET inside a node); unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_ALGO and NCCL_PROTO",
    "Run all_reduce_perf -b 1M -e 16G -f 2 on every node before a training, and take slower nodes out; disable ACS on "
    "the PCIe switches and load nvidia-peermem where a network is crossed",
    "Choose nodes whose GPUs a switch joins (NVSwitch) for what communicates most, and keep that inside a node",
)
LOW_MFU = advice(
    "Train in bfloat16; raise the micro-batch as far as the memory allows; call fused attention "
    "(attn_implementation='flash_attention_2' or 'sdpa')",
    "Record some steps with a timeline (nsys profile --trace=cuda,nvtx) and mend what the GPU waits for; overlap the "
    "gradients' exchange with the backward pass; recompute activations only where memory is short",
    "Choose the parallel layout by measurement: tensor parallel inside a node, fewer pipeline bubbles "
    "(more micro-batches, interleaved stages)",
)
MFU_IN_DOUBT = advice(
    "Check that the peak is the dense one of one GPU in the precision that runs (--peaks of perfkit report), not that "
    "with sparsity, and that the rate is of one GPU, not of all",
    "Count operations by 6 x parameters per token, of the active parameters, without recomputation",
    "Log tokens per second beside the MFU: a gain in one without the other is a fault of the count",
)
COMPUTATION = advice(
    "Measure the longest kernels with Nsight Compute (ncu --set full) and see step 4",
    "Use mixed precision so that matrix products run on tensor cores; fuse elementwise chains",
    "Change the algorithm or the model where the longest kernel is already near its roof",
)
ATTENTION = advice(
    "Call torch.nn.functional.scaled_dot_product_attention, or load the model with "
    "attn_implementation='flash_attention_2' or 'sdpa'",
    "Use shapes and types that the fused kernels take (16-bit types, head sizes they support)",
    "Choose an attention that needs no full matrix of scores for long sequences",
)
PRECISION = advice(
    "Run the forward pass under torch.autocast with bfloat16; allow TF32 for what stays in float32 "
    "(torch.set_float32_matmul_precision('high'))",
    "Pad dimensions to multiples of 8, better 64, so that tensor cores fit; compare the loss with that in float32",
    "Train in 8 bits where hardware and accuracy allow it",
)
PREPARATION = advice(
    "Prepare in batches instead of one by one; use fast tokenizers; move the work into DataLoader workers",
    "Prepare once and store the result; cache what is asked for again",
    "Give preparation machines or GPUs of its own",
)
BALANCE = advice(
    "Compare what the slowest rank gets: batch, sequence lengths, its share of the model; check its clocks "
    "(nvidia-smi dmon -s pucvmet)",
    "Bucket sequences by length (a batch_sampler over sorted lengths); balance the stages of the pipeline by measured "
    "time",
    "Choose a parallel layout whose parts take the same time",
)
LOW_UTILISATION = advice(
    "Record a few steps with a timeline (nsys profile) or the framework's profiler (perfkit record torch): they show "
    "what the GPU waits for",
    "Mend the largest cause that the recording shows, and compare the log with this one",
    "Keep the utilisation of every job under watch",
)
MEMORY_FULL = advice(
    "Watch for out-of-memory errors before changing anything; lower the batch size if there are any",
    "Use activation checkpointing (torch.utils.checkpoint), 16-bit types and a fused optimizer, which need less memory",
    "Shard parameters and optimizer states over the GPUs (torch.distributed.fsdp, DeepSpeed ZeRO)",
)
THROTTLING = advice(
    "Look at the event reasons: a power limit is set by nvidia-smi -pl or the chassis, heat by airflow and fans",
    "Compare GPUs of one job by clock and temperature; move the job off a node that is always slower",
    "Plan cooling and power for the clock that the measurements assume",
)
WARM_UP = advice(
    "Leave the first steps out of every measurement: choose a window of steady steps, or record with "
    "torch.profiler.schedule(wait=1, warmup=2, active=6), nsys --capture-range=cudaProfilerApi",
    "Cache compiled kernels and autotuning results between runs (TORCHINDUCTOR_CACHE_DIR on storage that stays)",
    "Keep shapes fixed so that nothing is compiled after the first step, or use torch.compile(dynamic=True)",
)
LATENCY = advice(
    "Give each launch more work (larger batch, several items per block); launch enough blocks for every SM "
    "(cudaOccupancyMaxPotentialBlockSize)",
    "Unroll or batch independent loads (#pragma unroll) so that each warp has more in flight; raise occupancy where "
    "registers or shared memory limit it",
    "Fuse short kernels that follow one another",
)
TENSOR_CORES = advice(
    "Allow TF32 (torch.set_float32_matmul_precision('high')), or run under torch.autocast with bfloat16",
    "Pad dimensions to multiples of 8, better 64; use channels_last for convolutions; raise the micro-batch",
    "Use libraries whose matrix kernels run on tensor cores, and 8 bits where hardware and accuracy allow it",
)
OCCUPANCY = advice(
    "Try other block sizes (128 or 256 threads); set __launch_bounds__ or -maxrregcount so that registers fit",
    "Lower shared memory per block, or split the kernel so that each part keeps less state",
    "Let autotuning choose tile and block sizes for this GPU",
)
MEMORY_BOUND = advice(
    "Read and write each value once: fuse elementwise operations (torch.compile); use 16-bit types where accuracy "
    "allows (torch.autocast)",
    "Coalesce accesses and use vector loads (float4); keep reused data in shared memory (__shared__) or L2",
    "Change the algorithm so that more is computed per byte (tiling, recomputation)",
)
TIMELINE = "nsys profile --trace=cuda,nvtx,osrt --gpu-metrics-devices=all PROGRAM"
COUNTERS = "ncu --set full --launch-count 50 PROGRAM"
FRAMEWORK = "perfkit record torch"
NEXT = {
    "idle_data_loading": f"Time one batch of the loader alone, and record its processes too: {TIMELINE}",
    "input": f"Record the GPU beside the loader: {TIMELINE}",
    "checkpointing": f"Two checkpoints at least, in an NVTX range each, with the calls that write: {TIMELINE}",
    "preparation": "Time the preparation alone, per batch, and compare it with the step",
    "idle_sync": f"Which line waits: {FRAMEWORK}, then the synchronisations of step 5",
    "synchronisation": f"Remove one wait and record again; which line waits is in step 5 ({FRAMEWORK})",
    "idle_host_code": f"What the host does in these gaps: {FRAMEWORK}; or nsys with --trace=osrt (files, locks) and "
    "--sample=process-tree (call stacks)",
    "idle_launch": "The queue of launches over time (step 3), and the CPU's clock and load beside it",
    "idle_memory": "Which allocation it is: the memory timeline of step 5, or --cuda-memory-usage=true of nsys",
    "idle_kernel_wait": "The same steps in a CUDA graph, whose nodes follow faster, and compare the two runs",
    "idle_other": f"What the stream waited for: events and other processes beside it, {TIMELINE}",
    "idle_unattributed": "The calls that are missing: nsys profile --trace=cuda,nvtx --cuda-graph-trace=node PROGRAM",
    "idle_edge": "A window of steady steps: --capture-range=cudaProfilerApi, or the window parameter of this report",
    "idle": f"CUDA calls, for the cause: {TIMELINE}",
    "small_operators": "The same steps under torch.compile(mode='reduce-overhead'), and compare the two runs",
    "launch_overhead": "The same steps in a CUDA graph, and compare the two runs",
    "exposed_communication": "nccl-tests on the same nodes, for the bandwidth that the links reach (step 1)",
    "ranks": "Shapes and clocks per rank: a log of each GPU (nvidia-smi dmon -s pucvmet) beside the recording",
    "copies_": "The same steps with pinned memory and non_blocking=True, and compare the two runs",
    "exposed_copy": "The same steps with pinned memory and non_blocking=True, and compare the two runs",
    "tensor_cores": f"Tensor-pipe activity per kernel: {COUNTERS}",
    "precision": f"Tensor-pipe activity per kernel: {COUNTERS}",
    "attention": f"The roofline of the attention kernels: {COUNTERS}",
    "memory_bandwidth": f"Which kernels move the bytes, and how well they coalesce: {COUNTERS}",
    "memory_bound": "L2 hit rate and coalescing of the longest kernels (step 4)",
    "latency_bound": "The stall reasons of the longest kernels by source line: ncu --set full --import-source yes",
    "compute_bound": "The busiest pipe of the longest kernels, and a roofline of their precision (step 4)",
    "low_occupancy": "The limits of the longest kernels (registers, shared memory, block size) in step 4",
    "log_throttling": "Clock, power and temperature over an hour: nvidia-smi dmon -s pucvmet -o DT",
    "log_": f"A timeline of a few steps: {TIMELINE}",
    "bus_bandwidth": "The same GPUs again, with the transports: NCCL_DEBUG=INFO all_reduce_perf -b 8 -e 16G -f 2 -g 8",
    "training_mfu": f"Where a few steady steps spend their time: {TIMELINE}",
    "training_mfu_suspicious": "The peak itself: perfkit baseline gemm, then perfkit report RUN --peaks baseline.csv",
    "warm_up": "A window of steady steps: --capture-range=cudaProfilerApi, or the window parameter of this report",
    "computation": f"How well the kernels use the GPU: {COUNTERS}",
    "paths_": f"When it happens: {TIMELINE}",
}
OTHERWISE = f"A recording with CUDA calls, ranges and metrics of the GPU: {TIMELINE}"
SHARES = "a tenth of the time is worth a look, three tenths are severe (conventions)"
IDLE = f"Idle time: {SHARES}"
COPIES_THRESHOLD = f"Copies beside no kernel: {SHARES}"
SMALL = f"Half of the launches under 10 µs, what launching one costs (chapter: 5 to 10 µs). Idle between: {SHARES}"
VERDICT = (
    "Half of the measured time with this verdict (convention). SMs and memory both under 60 % of their rate: latency; "
    "else the higher one bounds, or both within 10 points (Nsight Compute, SOLBottleneck)"
)
LOG = "the checks of step 2"
THRESHOLDS = {
    "idle": IDLE,
    "idle_": IDLE,
    "input": f"Waiting for the loader: {SHARES}; case 1 of the course's chapter waits for 40 %",
    "preparation": f"Idle time while data are prepared: {SHARES}",
    "checkpointing": "A twentieth of the time is told, a tenth worth a look, three tenths severe (conventions); the "
    "guide asks for 140 GB in 60 s",
    "synchronisation": f"Idle time after waits: {SHARES}",
    "small_operators": SMALL,
    "launch_overhead": SMALL,
    "exposed_copy": COPIES_THRESHOLD,
    "copies_small": f"At most 64 KB is small (CUDA Runtime API, synchronisation behaviour). {COPIES_THRESHOLD}",
    "copies_pageable": f"{COPIES_THRESHOLD}. Half of the bytes are told with low severity at least",
    "copies_": COPIES_THRESHOLD,
    "exposed_communication": f"The guide's target is under 20 to 30 % of a step; exposed: {SHARES}",
    "ranks": "The slowest rank a tenth above the mean; what others wait for it: " + SHARES,
    "computation": "Computing for six tenths of the time (convention) is told, with low severity",
    "warm_up": f"Steps longer than 1.5 times the median of the later ones are warm-up (convention): {SHARES}",
    "tensor_cores": f"The guide's target is above 85 % for matrix kernels; matrix work without them: {SHARES}",
    "memory_bandwidth": "Nsight Compute calls 60 % of the bandwidth bound (SOLBottleneck), the guide 80 % well used",
    "attention": f"Kernel time of softmax and batched products: {SHARES}; 60 % in case 3 of the course's chapter",
    "precision": "Under half of the matrix work in 16 or 8 bits, where that work is a tenth of the kernel time "
    "(conventions)",
    "latency_bound": VERDICT,
    "memory_bound": VERDICT,
    "compute_bound": VERDICT,
    "low_occupancy": "The guide's target is above 50 % of the warps",
    "bus_bandwidth": "Under 60 % of the line rate, severe under 40 % (conventions); NCCL's ring reaches 82 % of NVLink "
    "on eight H100 (NVIDIA/nccl-tests issue 212)",
    "training_mfu": "Under 35 %, severe under 20 %: published trainings of dense models reach 35 to 55 % (PaLM, "
    "Megatron-LM, Llama 3)",
    "training_mfu_suspicious": "Above 70 %: no published training of a dense model reaches 60 %",
    "log_utilisation": f"A utilisation of 80 % for nine tenths of the time (conventions; {LOG})",
    "log_memory": f"From 95 % of the memory on the next allocation may fail (convention; {LOG})",
    "log_power": f"Under half of the power limit little is computed (convention; {LOG})",
    "log_throttling": f"A lowered clock for 1 % of the time, or 5 degrees below the slowdown (conventions; {LOG}); "
    "event reasons are NVML's",
    "log_traffic": f"From 80 % of a link's peak on it is full (convention; {LOG})",
    "paths_gpu_idle": "Busy for under 70 % of the wall time is severe (convention)",
    "paths_copies": "A tenth of the GPU's time is worth a look, three tenths are severe (conventions)",
    "paths_stall": "Three tenths of the samples of waiting warps (convention)",
    "paths_launches": "Kernels under 10 µs in the mean, no longer than launching one costs (chapter: 5 to 10 µs)",
    "paths_host": "Half of the CPU time of each caller in turn; three tenths in all are worth a look (conventions)",
}


def stall(helps: str) -> Advice:
    """Return advice for the main reason for which warps wait, from the words that say what usually helps."""
    return advice(
        helps.rstrip("."),
        "Measure the kernels that wait most with Nsight Compute (ncu --set full) and see step 4",
        "Change the algorithm or the data layout of these kernels; record the share of the stall with every release",
    )


def threshold(rule: str) -> str:
    """Return from which value on a rule tells something, and whose threshold that is; ValueError for an unknown
    rule.
    """
    if rule in THRESHOLDS:
        return THRESHOLDS[rule]
    for start, text in THRESHOLDS.items():
        if start.endswith("_") and rule.startswith(start):
            return text
    raise ValueError(f"rule: {rule!r} has no threshold")


def measure_next(rule: str) -> str:
    """Return what to measure next after a finding of a rule."""
    if rule in NEXT:
        return NEXT[rule]
    return next((text for start, text in NEXT.items() if start.endswith("_") and rule.startswith(start)), OTHERWISE)
