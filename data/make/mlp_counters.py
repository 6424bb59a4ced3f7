"""What would Nsight Compute have counted in the lab's forward pass: eight launches, with the report's sums?

Conventions
-----------
`mlp_counters.csv` holds what is counted. From section 2.4 of the A100 lab report, exactly: instructions by kind and
kernel (Table 9), bytes read (the sum of 2.4.2, and per kernel Table 10, whose 367.43 is 1.22 Mbyte + 366.21 Kbyte),
DRAM cycles and frequencies (Table 10), SM cycles (72,581) and the sum of the eight launches' SM frequencies
(10,083,762,361, which the report took for one). What it prints per kernel is split over the kernel's launches:
instructions as the layers' products, DRAM cycles as the times of Table 7, SM cycles as the memory's times. Cache
traffic, hit rates, throughput of the SM and stalls are invented, plausible for kernels that are far too small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from make import counters
from make.counters import CHANNELS, DRAM_PEAK, SECTOR, SMS
from make.kernels import TABLE_5, table

LABEL = "perfkit simulate mlp_a100: made from the figures of an A100 lab report; no GPU ran"


def write(path: Path) -> dict[str, Any]:
    """Write the raw page to `path`; return what is true of each launch, and the report's sums and mistaken rate."""
    rows = table("mlp_counters")
    kinds = [row["kernel"] for row in rows]
    launches = [(TABLE_5[row["kernel"]], int(row["slot"])) for row in rows]
    count = {name: np.array([int(row[name]) for row in rows]) for name in list(rows[0])[1:]}
    seconds = count["cycles"] / count["hz"]
    sectors, products = count["loaded"] + count["stored"], np.array(kinds) == "gemm_tn"
    flops = count["fadd"] + count["fmul"] + 2 * count["ffma"]
    pipe = 100 * count["ffma"] / (SMS * 64 * count["cycles"])
    dram = 100 * count["read"] / (DRAM_PEAK * count["dram_hz"] * count["cycles"] / count["hz"])
    shared = np.where(products, 4 * count["loaded"], 0)
    values = {
        **count,
        "sm_percent": 1.5 * pipe + 1.2,
        "memory_percent": np.maximum(dram, 1.9) + 2.4,
        "dram_percent": dram,
        "fma_percent": 1.3 * pipe,
        **dict.fromkeys(("written", "tensor_instructions", "tensor_percent", "tf32_flops", "int_zero"), 0),
        "flops_per_sm": flops / SMS,
        "dram_cycles_mean": count["dram_cycles"] / CHANNELS,
        "load_requests": count["loaded"] // count["per_request"],
        "store_requests": count["stored"] // count["per_request"],
        "l1_hit_percent": np.where(products, 3.1, 0),
        "l2_hit_percent": 100 * (1 - count["read"] / SECTOR / sectors),
        "shared_wavefronts": shared,
        "bank_conflicts": shared // 64,
    }
    counters.write(path, "mlp", launches, kinds, values, label=LABEL, output=["Running on device: cuda"])
    limits = [counters.limits(kernel) for kernel, _ in launches]
    found = counters.truth(
        launches,
        dur_ns=count["dur_ns"].tolist(),
        clock_hz=count["hz"].tolist(),
        fp32_flops=flops.tolist(),
        dram_bytes=count["read"].tolist(),
        theoretical_occupancy_frac=[each.occupancy for each in limits],
        limiter=[each.limiter for each in limits],
    )
    total, read, cycles, hz = (int(each.sum()) for each in (flops, count["read"], count["cycles"], count["hz"]))
    return {
        "launches": found["launches"],
        "totals": {
            "flops": total,
            "dram_bytes": read,
            "intensity": total / read,
            "cycles": cycles,
            "sum_of_hz": hz,
            "seconds": float(seconds.sum()),
            "flops_per_s": total / float(seconds.sum()),
            "mistaken_seconds": cycles / hz,
            "mistaken_flops_per_s": total / (cycles / hz),
        },
    }
