"""From which value on is something a finding, how much of it is severe, and who says so?

A convention is one of this project: a round number that keeps findings few. The others are named with their source: the
guide to performance analysis, the course's chapter on profiling, and what vendors document.
"""

from __future__ import annotations

SHARES = "a tenth of the time is worth a look, three tenths are severe (conventions)"
IDLE = f"Idle time: {SHARES}"
COPIES = f"Copies beside no kernel: {SHARES}"
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
    "exposed_copy": COPIES,
    "copies_small": f"At most 64 KB is small (CUDA Runtime API, synchronisation behaviour). {COPIES}",
    "copies_pageable": f"{COPIES}. Half of the bytes are told with low severity at least",
    "copies_": COPIES,
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


def threshold(rule: str) -> str:
    """Return from which value on a rule tells something, and whose threshold that is.

    Examples
    --------
    >>> threshold("idle_sync") == threshold("idle_memory")
    True
    >>> threshold("rust")
    Traceback (most recent call last):
    ...
    ValueError: rule: 'rust' has no threshold
    """
    if rule in THRESHOLDS:
        return THRESHOLDS[rule]
    for start, text in THRESHOLDS.items():
        if start.endswith("_") and rule.startswith(start):
            return text
    raise ValueError(f"rule: {rule!r} has no threshold")
