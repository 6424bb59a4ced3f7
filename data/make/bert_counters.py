"""What would Nsight Compute have counted in one encoder layer of BERT, launch by launch?

Conventions
-----------
The tool holds the clock at its base value, 1.065 GHz, and empties the caches before each kernel: products, which the
SMs limit, take longer than on the timeline by the ratio of the clocks; what the memory limits takes as long. Operations
and bytes follow from the shapes: a product's multiply-adds, FP32 on CUDA cores or TF32 on tensor cores; operands and
results once. Occupancy follows from the launches. Stalls, hit rates and cache traffic are invented, plausible for the
kind of kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from make import ncu
from make.bert_kernels import PEAK, Case, Precision, key, places
from make.bert_run import Phase, cases
from make.mlp_counters import Float
from make.timeline import Int
from perfkit.simulate.export import CARD

BASE_HZ, BOOST_HZ = 1_065_000_000, int(CARD["clockRate"])
MEMORY_HZ, BYTES_PER_CYCLE, CHANNELS = 1_512_000_000, 1_280, 40
SECTOR = 32
AGAIN = 8  # how often the SMs ask the L2 cache for what a product reads: each tile needs its rows and columns

# warp cycles per issued instruction, by what a kernel does
_STALLS = {
    "product": {
        "not_selected": 0.9,
        "math_pipe_throttle": 0.74,
        "barrier": 0.31,
        "short_scoreboard": 0.28,
        "wait": 0.62,
    },
    "tensor": {"math_pipe_throttle": 3.1, "long_scoreboard": 1.4, "barrier": 0.9, "wait": 1.7, "short_scoreboard": 0.6},
    "moving": {"long_scoreboard": 19.6, "lg_throttle": 2.4, "wait": 2.2, "drain": 1.1, "no_instruction": 0.6},
}
REASONS = sorted({"selected", "imc_miss", "membar", "misc", "sleeping", *(r for row in _STALLS.values() for r in row)})


def write(path: Path, phase: Phase, taken_ns: Mapping[str, float], *, label: str) -> dict[str, Any]:
    """Write the raw page of a layer of a phase to `path` and return what is true of it."""
    layer, known = places(phase.batch), cases(phase)
    keys = [key(place, phase.batch, phase.precision) for place in layer]
    counted = _Layer([known[each] for each in keys], phase.precision, np.array([taken_ns[each] for each in keys]))
    kernels = [each.kernel for each in counted.cases]
    launches = [ncu.Launch(k.full_name, (*k.grids[0], 1), (k.block, 1, 1)) for k in kernels]
    metrics = dict(ncu.device_metrics()) | dict(ncu.launch_metrics(kernels, [0] * len(kernels))) | counted.metrics()
    said = [f"Batch size: {phase.batch}", "Device: cuda"]
    ncu.write(path, launches, ncu.columns(metrics, len(launches)), label=label, output=said)
    return counted.truth(layer)


class _Layer:
    """The launches of a layer, and what follows from their shapes."""

    def __init__(self, found: list[Case], precision: Precision, taken: Float) -> None:
        self.cases = found
        product = np.array([each.is_product for each in found])
        self.on_tensor_cores = product & (precision == "tf32")
        self.flops = np.array([each.flops for each in found])
        self.read, self.written = (np.array([getattr(c, f"{w}_bytes") for c in found]) for w in ("read", "written"))
        self.asked = np.where(product, AGAIN, 1)
        self.dur = np.round(np.where(product, taken * BOOST_HZ / BASE_HZ, taken)).astype(np.int64)
        self.kinds = np.where(self.on_tensor_cores, "tensor", np.where(product, "product", "moving"))
        self.peak = PEAK[precision] * BASE_HZ / BOOST_HZ

    def metrics(self) -> dict[str, Any]:
        """Return all metrics by name."""
        return {**dict(self._speed()), **dict(self._operations()), **dict(self._memory()), **dict(self._stalls())}

    def _speed(self) -> Iterator[tuple[str, Any]]:
        seconds = self.dur / 1e9
        fp32 = 100 * self._fp32 / seconds / (PEAK["fp32"] * BASE_HZ / BOOST_HZ)
        tensor = 100 * self._tensor / seconds / self.peak
        dram = 100 * (self.read + self.written) / seconds / (BYTES_PER_CYCLE * MEMORY_HZ)
        yield "gpu__time_duration.sum", self.dur
        yield "sm__cycles_elapsed.avg", np.round(seconds * BASE_HZ)
        yield "sm__cycles_elapsed.avg.per_second", BASE_HZ
        yield "gpc__cycles_elapsed.max", np.round(seconds * BASE_HZ)
        yield "gpc__cycles_elapsed.avg.per_second", BASE_HZ
        yield "sm__throughput.avg.pct_of_peak_sustained_elapsed", np.maximum(np.maximum(fp32, tensor), 9.0) + 1.1
        yield "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", dram + 1.7
        yield "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", dram
        yield "dram__throughput.avg.pct_of_peak_sustained_elapsed", dram
        yield "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", fp32
        yield "sm__inst_executed_pipe_tensor.sum", self._tensor // 2_048
        yield "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", tensor

    @property
    def _fp32(self) -> Int:
        """Operations on CUDA cores."""
        return np.asarray(np.where(self.on_tensor_cores, 0, self.flops), np.int64)

    @property
    def _tensor(self) -> Int:
        return np.asarray(np.where(self.on_tensor_cores, self.flops, 0), np.int64)

    def _operations(self) -> Iterator[tuple[str, Any]]:
        multiplied = np.where(self.kinds == "product", self._fp32 // 2, 0)
        added = self._fp32 - 2 * multiplied
        yield "sm__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.sum", self._fp32
        yield "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", added - added // 2
        yield "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", added // 2
        yield "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", multiplied
        for name in ("dadd", "dmul", "dfma", "hadd", "hmul", "hfma"):
            yield f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", 0
        yield "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", 64 * ncu.SMS
        for kind in ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "int8", "tf32_dst_fp32"):
            dense = self._tensor if kind.startswith("tf32") else 0
            yield f"sm__ops_path_tensor_src_{kind}.sum", dense
            yield f"sm__ops_path_tensor_src_{kind}_sparsity_off.sum", dense
            yield f"sm__ops_path_tensor_src_{kind}_sparsity_on.sum", 0
        yield "sm__ops_path_tensor_src_fp64.sum", 0

    def _memory(self) -> Iterator[tuple[str, Any]]:
        loaded = self.asked * self.read // SECTOR
        stored = self.written // SECTOR
        cycles = np.round(CHANNELS * self.dur / 1e9 * MEMORY_HZ)
        yield "dram__bytes_read.sum", self.read
        yield "dram__bytes_write.sum", self.written
        yield "dram__bytes.sum", self.read + self.written
        yield "dram__bytes.sum.peak_sustained", BYTES_PER_CYCLE
        yield "dram__cycles_elapsed.sum", cycles
        yield "dram__cycles_elapsed.avg", cycles / CHANNELS
        yield "dram__cycles_elapsed.avg.per_second", MEMORY_HZ
        yield "l1tex__t_bytes.sum", SECTOR * (loaded + stored)
        yield "lts__t_bytes.sum", SECTOR * (loaded + stored)
        yield "lts__t_sectors.sum", loaded + stored
        yield "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", loaded
        yield "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", loaded // 16
        yield "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", stored
        yield "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", stored // 16
        yield "lts__t_sector_hit_rate.pct", 100 * (1 - 1 / self.asked)

    def _stalls(self) -> Iterator[tuple[str, Any]]:
        latency: Float = np.zeros(len(self.cases))
        for reason in REASONS:
            value = np.array([{"selected": 1.0, **_STALLS[kind]}.get(reason, 0.02) for kind in self.kinds.tolist()])
            latency = latency + value
            yield f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", value
        yield "smsp__average_warp_latency_per_inst_issued.ratio", latency
        yield "smsp__issue_active.avg.per_cycle_active", 1 / latency

    def truth(self, layer: tuple[str, ...]) -> dict[str, Any]:
        """Return what is true of each launch and of all."""
        kernels = [each.kernel for each in self.cases]
        columns: dict[str, list[Any]] = {
            "place": list(layer),
            "name": [k.full_name for k in kernels],
            "grid_blocks": [k.grids[0][0] * k.grids[0][1] for k in kernels],
            "block_threads": [k.block for k in kernels],
            "dur_ns": self.dur.tolist(),
            "fp32_flops": self._fp32.tolist(),
            "tensor_flops": self._tensor.tolist(),
            "dram_bytes": (self.read + self.written).tolist(),
            "theoretical_occupancy_frac": [each.occupancy for each in ncu.occupancy_limits(kernels)],
        }
        sums = ("dur_ns", "fp32_flops", "tensor_flops", "dram_bytes")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {"launches": rows, "totals": {name: sum(columns[name]) for name in sums}}
