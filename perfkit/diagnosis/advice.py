"""What to do about each cause of lost time, by horizon: days, weeks to months, quarters."""

from __future__ import annotations

Advice = dict[str, tuple[str, ...]]


def advice(immediate: str, medium: str, long: str) -> Advice:
    """Return advice by horizon; steps within a text are separated by semicolons."""
    texts = {"immediate": immediate, "medium-term": medium, "long-term": long}
    return {horizon: tuple(_sentence(step.strip()) for step in text.split(";")) for horizon, text in texts.items()}


def _sentence(step: str) -> str:
    return step[0].upper() + step[1:]


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


def stall(helps: str) -> Advice:
    """Return advice for the main reason for which warps wait, from the words that say what usually helps."""
    return advice(
        helps.rstrip("."),
        "Measure the kernels that wait most with Nsight Compute (ncu --set full) and see step 4",
        "Change the algorithm or the data layout of these kernels; record the share of the stall with every release",
    )
