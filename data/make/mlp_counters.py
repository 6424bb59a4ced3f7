"""What would Nsight Compute have counted in the lab's forward pass: eight launches, with the report's sums?

Conventions
-----------
From section 2.4 of the A100 lab report, exactly: instructions by kind and kernel (Table 9), bytes read (the sum of
2.4.2, and per kernel Table 10, whose 367.43 is 1.22 Mbyte + 366.21 Kbyte), DRAM cycles and frequencies (Table 10),
SM cycles (72,581) and the sum of the eight launches' SM frequencies (10,083,762,361, which the report took for one).
Launches, grids and times relative to each other are the timeline's. Occupancy follows from the launches. Cache
traffic, hit rates, throughput of the SM and stalls are invented, plausible for kernels that are far too small.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make import ncu
from make.kernels import TABLE_5
from make.mlp_run import FORWARD
from make.timeline import Int

LABEL = "perfkit simulate mlp_a100: made from the figures of an A100 lab report; no GPU ran"

Float = NDArray[np.float64]

LAUNCHES = [word.partition(":")[::2] for word in FORWARD.split()]
KEYS = np.array([key for key, _ in LAUNCHES])
KERNELS = [TABLE_5[key] for key, _ in LAUNCHES]
SLOTS = [int(slot or 0) for _, slot in LAUNCHES]

SM_CYCLES = 72_581
SUM_OF_HZ = 10_083_762_361
CHANNELS = 40

# per kernel of the report: fadd, fmul, ffma instructions; DRAM cycles summed over the channels; DRAM frequency, Hz
_COUNTED = {
    "gemm_tn": (625_536, 732_032, 15_443_072, 2_496_640, 1_590_000_000),
    "split_k": (131_072, 32_768, 32_768, 307_840, 1_570_000_000),
    "relu": (0, 0, 0, 613_120, 1_570_000_000),
    "softmax": (7_296, 7_296, 8_192, 219_136, 1_590_000_000),
}
DRAM_READ = np.array([1_220_608, 665_856, 140_800, 333_440, 60_800, 32_768, 15_104, 11_648])
MULTIPLIED = (784 * 256, 256 * 128, 128 * 10)  # multiply-adds per image of each layer
NS = np.array([15040, 3967, 2592, 12736, 2304, 8032, 2144, 2720])  # Table 7: longest first

# sectors of 32 bytes a launch loads and stores, and how many of them a request moves
LOADED = np.array([200_704, 24_576, 4_096, 32_768, 2_048, 2_688, 512, 512])
STORED = np.array([16_384, 4_096, 4_096, 2_048, 2_048, 160, 160, 160])
PER_REQUEST = np.array([8, 4, 16, 8, 16, 8, 16, 4])
_STALLS = {  # warp cycles per issued instruction
    "gemm_tn": {"long_scoreboard": 3.21, "barrier": 1.37, "short_scoreboard": 0.92, "wait": 0.84, "mio_throttle": 0.41},
    "split_k": {"long_scoreboard": 14.6, "wait": 1.93, "short_scoreboard": 0.35, "lg_throttle": 0.61},
    "relu": {"long_scoreboard": 9.87, "wait": 2.61, "no_instruction": 3.42, "imc_miss": 2.16, "drain": 1.75},
    "softmax": {
        "long_scoreboard": 4.18,
        "wait": 3.05,
        "no_instruction": 2.77,
        "imc_miss": 1.34,
        "short_scoreboard": 1.9,
    },
}
_OTHER_STALLS = ("branch_resolving", "dispatch_stall", "math_pipe_throttle", "membar", "misc", "not_selected")
REASONS = sorted({"selected", "sleeping", "tex_throttle", *_OTHER_STALLS, *chain(*_STALLS.values())})
_TENSOR = ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "int4", "int8", "tf32_dst_fp32")


def write(path: Path) -> dict[str, Any]:
    """Write the raw page to `path` and return what is true of it."""
    launches = [ncu.Launch(k.full_name, (*k.grids[s], 1), (k.block, 1, 1)) for k, s in zip(KERNELS, SLOTS, strict=True)]
    metrics = dict(_metrics())
    ncu.write(path, launches, ncu.columns(metrics, len(launches)), label=LABEL, output=["Running on device: cuda"])
    return _truth(metrics)


def _metrics() -> Iterator[tuple[str, Any]]:
    yield from ncu.device_metrics()
    yield from ncu.launch_metrics(KERNELS, SLOTS)
    yield from _speed()
    yield from _operations()
    yield from _memory()
    yield from _stalls()


def _speed() -> Iterator[tuple[str, Any]]:
    """Times and throughputs; throughput of a unit is that of its busiest part, which is not below what it counts."""
    pipe = 100 * _counted(2) / (ncu.SMS * 64 * _cycles())
    yield "gpu__time_duration.sum", _durations()
    yield "sm__cycles_elapsed.avg", _cycles()
    yield "sm__cycles_elapsed.avg.per_second", _hz()
    yield "gpc__cycles_elapsed.max", _cycles()
    yield "gpc__cycles_elapsed.avg.per_second", _hz()
    yield "sm__throughput.avg.pct_of_peak_sustained_elapsed", 1.5 * pipe + 1.2
    yield "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", np.maximum(_dram_pct(), 1.9) + 2.4
    yield "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", _dram_pct()
    yield "dram__throughput.avg.pct_of_peak_sustained_elapsed", _dram_pct()
    yield "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", 1.3 * pipe
    yield "sm__inst_executed_pipe_tensor.sum", 0
    yield "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 0


def _operations() -> Iterator[tuple[str, Any]]:
    fadd, fmul, ffma = _counted(0), _counted(1), _counted(2)
    total = "sm__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on"
    yield f"{total}.avg", (fadd + fmul + 2 * ffma) / ncu.SMS
    yield f"{total}.sum", fadd + fmul + 2 * ffma
    for name, count in (("fadd", fadd), ("fmul", fmul), ("ffma", ffma)):
        yield f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", count
    for name in ("dadd", "dmul", "dfma", "hadd", "hmul", "hfma"):
        yield f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", 0
    yield "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", 64 * ncu.SMS
    for kind in _TENSOR:
        for sparsity in ("", "_sparsity_off", "_sparsity_on"):
            yield f"sm__ops_path_tensor_src_{kind}{sparsity}.sum", 0
    yield "sm__ops_path_tensor_src_fp64.sum", 0
    yield "sm__ops_path_tensor_src_int1.sum", 0


def _memory() -> Iterator[tuple[str, Any]]:
    sectors = LOADED + STORED
    yield "dram__bytes_read.sum", DRAM_READ
    yield "dram__bytes_write.sum", 0
    yield "dram__bytes.sum", DRAM_READ
    yield "dram__bytes.sum.peak_sustained", 1_280
    yield "dram__cycles_elapsed.sum", _dram_cycles()
    yield "dram__cycles_elapsed.avg", _dram_cycles() / CHANNELS
    yield "dram__cycles_elapsed.avg.per_second", _dram_hz()
    yield "l1tex__t_bytes.sum", 32 * sectors
    yield "lts__t_bytes.sum", 32 * sectors
    yield "lts__t_sectors.sum", sectors
    yield "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", LOADED
    yield "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", LOADED // PER_REQUEST
    yield "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", STORED
    yield "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", STORED // PER_REQUEST
    yield "l1tex__t_sector_hit_rate.pct", np.where(KEYS == "gemm_tn", 3.1, 0)
    yield "lts__t_sector_hit_rate.pct", 100 * (1 - DRAM_READ / 32 / sectors)
    shared = np.where(KEYS == "gemm_tn", 4 * LOADED, 0)
    yield "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", shared
    yield "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", shared // 64


def _stalls() -> Iterator[tuple[str, Any]]:
    latency = np.zeros(len(KEYS))
    for reason in REASONS:
        value = np.array([{"selected": 1.0, **_STALLS[key]}.get(reason, 0.02) for key in KEYS])
        latency += value
        yield f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", value
    yield "smsp__average_warp_latency_per_inst_issued.ratio", latency
    yield "smsp__issue_active.avg.per_cycle_active", 1 / latency


def _split(total: int, weights: Float | Int) -> Int:
    """Split `total` in proportion to the weights into integers that add up to it."""
    ends = np.round(total * np.cumsum(weights) / np.sum(weights)).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)


def _by_kernel(totals: dict[str, int], weights: Float | Int) -> Int:
    """Split the total of each kernel over its launches."""
    values = np.zeros(len(KEYS), np.int64)
    for key, total in totals.items():
        values[KEYS == key] = _split(total, weights[KEYS == key])
    return values


def _counted(which: int) -> Int:
    """Instructions of one kind; those of the layers go with their size."""
    size = np.array([MULTIPLIED[slot] for slot in SLOTS])
    return _by_kernel({key: row[which] for key, row in _COUNTED.items()}, size)


def _dram_cycles() -> Int:
    return _by_kernel({key: row[3] for key, row in _COUNTED.items()}, NS)


def _dram_hz() -> Int:
    return np.array([_COUNTED[str(key)][4] for key in KEYS])


def _cycles() -> Int:
    """SM cycles: the report's sum, in proportion to the time that the memory's cycles take."""
    return _split(SM_CYCLES, _dram_cycles() / _dram_hz())


def _hz() -> Int:
    return _split(SUM_OF_HZ, np.ones(len(KEYS)))


def _durations() -> Int:
    exact = _cycles() / _hz() * 1e9
    return _split(round(float(exact.sum())), exact)


def _dram_pct() -> Float:
    return np.asarray(100 * DRAM_READ / (1_280 * _dram_hz() * _cycles() / _hz()), np.float64)


def _truth(metrics: dict[str, Any]) -> dict[str, Any]:
    flops = metrics["sm__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.sum"]
    limits = ncu.occupancy_limits(KERNELS)
    columns: dict[str, list[Any]] = {
        "name": [k.full_name for k in KERNELS],
        "grid_blocks": metrics["launch__grid_size"].tolist(),
        "block_threads": [k.block for k in KERNELS],
        "dur_ns": _durations().tolist(),
        "clock_hz": _hz().tolist(),
        "fp32_flops": flops.tolist(),
        "dram_bytes": DRAM_READ.tolist(),
        "theoretical_occupancy_frac": [each.occupancy for each in limits],
        "limiter": [each.limiter for each in limits],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {"launches": rows, "totals": _totals(int(flops.sum()))}


def _totals(flops: int) -> dict[str, float]:
    seconds = float((_cycles() / _hz()).sum())
    return {
        "flops": flops,
        "dram_bytes": int(DRAM_READ.sum()),
        "intensity": flops / int(DRAM_READ.sum()),
        "cycles": int(_cycles().sum()),
        "sum_of_hz": int(_hz().sum()),
        "seconds": seconds,
        "flops_per_s": flops / seconds,
        "mistaken_seconds": SM_CYCLES / SUM_OF_HZ,
        "mistaken_flops_per_s": flops / (SM_CYCLES / SUM_OF_HZ),
    }
