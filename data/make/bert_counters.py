"""What would Nsight Compute have counted in one encoder layer of BERT, launch by launch?

Conventions
-----------
The tool holds the clock at its base value, 1.065 GHz, and empties the caches before each kernel: products, which the
SMs limit, take longer than on the timeline by the ratio of the clocks; what the memory limits takes as long. Operations
and bytes follow from the shapes: a product's multiply-adds, FP32 on CUDA cores or TF32 on tensor cores; operands and
results once. Stalls, hit rates and cache traffic are invented, plausible for the kind of kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from make import counters
from make.bert_kernels import PEAK, key, places
from make.bert_run import Phase, cases
from make.counters import CHANNELS, DRAM_PEAK, SECTOR
from perfkit.simulate.export import CARD

BASE_HZ, BOOST_HZ, MEMORY_HZ = 1_065_000_000, int(CARD["clockRate"]), 1_512_000_000
AGAIN = 8  # how often the SMs ask the L2 cache for what a product reads: each tile needs its rows and columns


def write(path: Path, phase: Phase, taken_ns: Mapping[str, float], *, label: str) -> dict[str, Any]:
    """Write the raw page of a layer to `path`; return what is true of each launch and of all.

    `taken_ns` is the time that each kernel takes on the timeline, by its key.
    """
    layer, known = places(phase.batch), cases(phase)
    keys = [key(place, phase.batch, phase.precision) for place in layer]
    launched = [known[each] for each in keys]
    launches = [(each.kernel, 0) for each in launched]
    product = np.array([each.is_product for each in launched])
    flops, read, written = (
        np.array([getattr(c, n) for c in launched]) for n in ("flops", "read_bytes", "written_bytes")
    )
    taken = np.array([taken_ns[each] for each in keys])
    dur = np.round(np.where(product, taken * BOOST_HZ / BASE_HZ, taken)).astype(np.int64)
    seconds = dur / 1e9
    on_tensor_cores = product & (phase.precision == "tf32")
    tensor, fp32 = np.where(on_tensor_cores, flops, 0), np.where(on_tensor_cores, 0, flops)
    multiplied = np.where(product, fp32 // 2, 0)
    added = fp32 - 2 * multiplied
    asked = np.where(product, AGAIN, 1)
    fma_percent = 100 * fp32 / seconds / (PEAK["fp32"] * BASE_HZ / BOOST_HZ)
    tensor_percent = 100 * tensor / seconds / (PEAK[phase.precision] * BASE_HZ / BOOST_HZ)
    dram_percent = 100 * (read + written) / seconds / (DRAM_PEAK * MEMORY_HZ)
    loaded, stored = asked * read // SECTOR, written // SECTOR
    dram_cycles = np.round(CHANNELS * dur / 1e9 * MEMORY_HZ)
    values = {
        "dur_ns": dur,
        "cycles": np.round(seconds * BASE_HZ),
        "hz": BASE_HZ,
        "sm_percent": np.maximum(np.maximum(fma_percent, tensor_percent), 9.0) + 1.1,
        "memory_percent": dram_percent + 1.7,
        "dram_percent": dram_percent,
        "fma_percent": fma_percent,
        "tensor_instructions": tensor // 2_048,
        "tensor_percent": tensor_percent,
        "fadd": added - added // 2,
        "fmul": added // 2,
        "ffma": multiplied,
        "tf32_flops": tensor,
        "read": read,
        "written": written,
        "dram_cycles": dram_cycles,
        "dram_cycles_mean": dram_cycles / CHANNELS,
        "dram_hz": MEMORY_HZ,
        "loaded": loaded,
        "stored": stored,
        "load_requests": loaded // 16,
        "store_requests": stored // 16,
        "l2_hit_percent": 100 * (1 - 1 / asked),
    }
    kinds = np.where(on_tensor_cores, "tensor", np.where(product, "product", "moving")).tolist()
    output = [f"Batch size: {phase.batch}", "Device: cuda"]
    counters.write(path, "bert", launches, kinds, values, label=label, output=output)
    found = counters.truth(
        launches,
        dur_ns=dur.tolist(),
        fp32_flops=fp32.tolist(),
        tensor_flops=tensor.tolist(),
        dram_bytes=(read + written).tolist(),
        theoretical_occupancy_frac=[counters.limits(each.kernel).occupancy for each in launched],
    )
    rows = [{"place": place, **row} for place, row in zip(layer, found["launches"], strict=True)]
    return {"launches": rows, "totals": found["totals"]}
