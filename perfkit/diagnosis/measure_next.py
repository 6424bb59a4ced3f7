"""What to measure next after each finding: what would confirm it, or tell where exactly it is lost."""

from __future__ import annotations

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


def measure_next(rule: str) -> str:
    """Return what to measure next after a finding of a rule.

    Examples
    --------
    >>> measure_next("copies_small") == measure_next("copies_pageable")
    True
    """
    if rule in NEXT:
        return NEXT[rule]
    return next((text for start, text in NEXT.items() if start.endswith("_") and rule.startswith(start)), OTHERWISE)
