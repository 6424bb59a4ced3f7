"""What would Nsight Compute have counted in a forward pass of ResNet-18 on one image?

Conventions
-----------
From section 3.4.3 of the A100 lab report, exactly: 137.21 Mbyte read and 242.43 Kbyte written in all; of the first six
launches the bandwidth and its share of the peak, and of four of them the bytes, as printed. The text recognition read
8.22 in the fifth row. It is taken for 3.22, as in the rows around it: the first convolution's output, which all three
read. Of the second row's bytes half is readable, of the third row's nothing; they follow from operands and bandwidth.

A block of a matrix product computes a whole tile, and whole steps of 8 along the sum, needed or not; tensor cores count
what they do, so that they count more than the formula. SM clock, cache traffic, hit rates and stalls are invented.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make import ncu, resnet_run
from make.resnet_work import TENSOR, TILES, duration_ns
from make.timeline import Int

Float = NDArray[np.float64]

READ_BYTES, WRITTEN_BYTES, SECTOR = 137_210_112, 242_432, 32
FIRST_READ = (610_304, 46_080, 640_000, 3_219_456, 3_219_456, 3_219_456)
FIRST_PER_S = (91.77e9, 11.17e9, 31.85e9, 479.81e9, 180.11e9, 543.29e9)
FIRST_PERCENT = (4.5, 0.55, 1.57, 23.65, 8.84, 26.71)
DRAM_BYTES_PER_CYCLE, DRAM_HZ, CHANNELS = 1_280, 1_590_000_000, 40
SM_HZ, BOOST_HZ = 1_260_000_000, 1_410_000_000  # the tool holds the clock at its base
TF32_PER_CYCLE, FP32_PER_CYCLE, PER_INSTRUCTION = 1_024, 128, 2_048  # FLOP of an SM, and of an m16n8k8 on tensor cores
WRITERS = 7  # launches late in the pass whose writes do not all stay in the cache

_STALLS = {  # warp cycles per issued instruction
    "tensor": {"long_scoreboard": 3.4, "barrier": 1.6, "math_pipe_throttle": 1.9, "wait": 1.2, "mio_throttle": 0.7},
    "moving": {"long_scoreboard": 15.2, "wait": 2.1, "lg_throttle": 1.4, "no_instruction": 1.1, "drain": 0.9},
}
_OTHER_STALLS = ("branch_resolving", "dispatch_stall", "imc_miss", "membar", "misc", "not_selected", "short_scoreboard")
REASONS = sorted({"selected", "sleeping", "tex_throttle", *_OTHER_STALLS, *_STALLS["tensor"], *_STALLS["moving"]})
_TYPES = ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "int4", "int8", "tf32_dst_fp32")

PROGRAM = resnet_run.inference_program(1)
LAUNCHES = [launch for launch in PROGRAM.launches if launch]
SLOTS = [op.slot for op in PROGRAM.plan if op.kind == "kernel"]
KERNELS = [PROGRAM.kernels[launch.key] for launch in LAUNCHES]
KEYS = np.array([launch.key for launch in LAUNCHES])
BLOCKS = np.array([launch.blocks for launch in LAUNCHES])
USES_TENSOR = np.isin(KEYS, sorted(TENSOR))


def write(path: Path, *, label: str) -> dict[str, Any]:
    """Write the raw page to `path` and return what is true of it."""
    launches = [ncu.Launch(k.full_name, (*k.grids[s], 1), (k.block, 1, 1)) for k, s in zip(KERNELS, SLOTS, strict=True)]
    metrics = dict(_metrics())
    ncu.write(path, launches, ncu.columns(metrics, len(launches)), label=label, output=["Using cuda for inference"])
    return _truth(metrics)


def _metrics() -> Iterator[tuple[str, Any]]:
    yield from ncu.device_metrics()
    yield from ncu.launch_metrics(KERNELS, SLOTS)
    yield from _speed()
    yield from _operations()
    yield from _memory()
    yield from _stalls()


def _speed() -> Iterator[tuple[str, Any]]:
    pipe, dram = _tensor_percent(), _dram_percent()
    fma = 100 * sum(_thread_operations()) / (FP32_PER_CYCLE * ncu.SMS * _cycles())
    busiest = np.maximum(pipe, fma)
    yield "gpu__time_duration.sum", _durations()
    yield "sm__cycles_elapsed.avg", _cycles()
    yield "sm__cycles_elapsed.avg.per_second", SM_HZ
    yield "gpc__cycles_elapsed.max", _cycles()
    yield "gpc__cycles_elapsed.avg.per_second", SM_HZ
    yield "sm__throughput.avg.pct_of_peak_sustained_elapsed", 1.02 * busiest + 1.2
    yield "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", np.maximum(dram, 1.9) * 1.05 + 1.4
    yield "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", dram
    yield "dram__throughput.avg.pct_of_peak_sustained_elapsed", dram
    yield "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", 1.1 * fma
    yield "sm__inst_executed_pipe_tensor.sum", _tensor_operations() // PER_INSTRUCTION
    yield (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        pipe / np.minimum(1, BLOCKS / ncu.SMS),
    )


def _operations() -> Iterator[tuple[str, Any]]:
    fadd, fmul, fused = _thread_operations()
    total = "sm__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on"
    yield f"{total}.avg", (fadd + fmul + fused) / ncu.SMS
    yield f"{total}.sum", fadd + fmul + fused
    for name, count in (("fadd", fadd), ("fmul", fmul), ("ffma", fused // 2)):
        yield f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", count
    for name in ("dadd", "dmul", "dfma", "hadd", "hmul", "hfma"):
        yield f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", 0
    yield "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", 64 * ncu.SMS
    for kind in _TYPES:
        done = _tensor_operations() if kind == "tf32_dst_fp32" else 0
        for sparsity in ("", "_sparsity_off", "_sparsity_on"):
            yield f"sm__ops_path_tensor_src_{kind}{sparsity}.sum", 0 if sparsity == "_sparsity_on" else done
    yield "sm__ops_path_tensor_src_tf32_dst_fp32.sum.peak_sustained", TF32_PER_CYCLE * ncu.SMS
    yield "sm__ops_path_tensor_src_fp64.sum", 0
    yield "sm__ops_path_tensor_src_int1.sum", 0


def _memory() -> Iterator[tuple[str, Any]]:
    loaded, stored = _sectors("read"), _sectors("written")
    yield "dram__bytes_read.sum", _read()
    yield "dram__bytes_read.sum.pct_of_peak_sustained_elapsed", 100 * _read() / _most()
    yield "dram__bytes_read.sum.per_second", 1e9 * _read() / _exact_ns()
    yield "dram__bytes_write.sum", _written()
    yield "dram__bytes.sum", _read() + _written()
    yield "dram__bytes.sum.peak_sustained", DRAM_BYTES_PER_CYCLE
    yield "dram__cycles_elapsed.sum", np.rint(CHANNELS * _dram_hz() * _exact_ns() / 1e9).astype(np.int64)
    yield "dram__cycles_elapsed.avg", _dram_hz() * _exact_ns() / 1e9
    yield "dram__cycles_elapsed.avg.per_second", np.rint(_dram_hz()).astype(np.int64)
    yield "l1tex__t_bytes.sum", SECTOR * (loaded + stored)
    yield "lts__t_bytes.sum", SECTOR * (loaded + stored)
    yield "lts__t_sectors.sum", loaded + stored
    yield "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", loaded
    yield "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", -(-loaded // 8)
    yield "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", stored
    yield "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", -(-stored // 8)
    yield "l1tex__t_sector_hit_rate.pct", np.where(USES_TENSOR, 11.4, 0)
    yield "lts__t_sector_hit_rate.pct", 100 * (1 - _read() / SECTOR / (loaded + stored))


def _stalls() -> Iterator[tuple[str, Any]]:
    latency = np.zeros(len(KEYS))
    kinds = np.where(USES_TENSOR, "tensor", "moving")
    for reason in REASONS:
        value = np.array([{"selected": 1.0, **_STALLS[kind]}.get(reason, 0.02) for kind in kinds])
        latency += value
        yield f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", value
    yield "smsp__average_warp_latency_per_inst_issued.ratio", latency
    yield "smsp__issue_active.avg.per_cycle_active", 1 / latency


def _read() -> Int:
    """Bytes: the report's where it prints them, the others in proportion to what the kernels read."""
    wanted = np.array([launch.read for launch in LAUNCHES])
    first = len(FIRST_READ)
    rest = _split(READ_BYTES - sum(FIRST_READ), wanted[first:])
    return np.concatenate([np.array(FIRST_READ), rest])


def _written() -> Int:
    """Bytes: of the launches in the pass's second half the ones that write most."""
    wanted = np.array([launch.written for launch in LAUNCHES])
    late = np.where(np.arange(len(wanted)) > len(wanted) // 2, wanted, 0)
    chosen = np.argsort(-late, kind="stable")[:WRITERS]
    return _split(WRITTEN_BYTES, np.where(np.isin(np.arange(len(wanted)), chosen), wanted, 0))


def _split(total: int, weights: Int) -> Int:
    """Split `total` bytes in proportion to the weights into whole sectors that add up to it."""
    ends = np.rint(total // SECTOR * np.cumsum(weights) / weights.sum()).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0) * SECTOR, np.int64)


def _sectors(which: str) -> Int:
    """Sectors that go through the caches: every operand, by each block of a matrix product that needs it."""
    again = np.where(np.isin(KEYS, sorted(TILES)), 2, 1)
    sectors = np.array([-(-getattr(launch, which) // SECTOR) for launch in LAUNCHES])
    return np.asarray(sectors * (again if which == "read" else 1) + 8, np.int64)


def _exact_ns() -> Float:
    """Times: of the first launches from what they read per second, of the others from the clock."""
    slower = np.array([duration_ns(launch) * BOOST_HZ / SM_HZ for launch in LAUNCHES])
    first = len(FIRST_READ)
    slower[:first] = np.array(FIRST_READ) / np.array(FIRST_PER_S) * 1e9
    return np.asarray(np.maximum(slower, 1e9 * _read() / (0.85 * DRAM_BYTES_PER_CYCLE * DRAM_HZ)), np.float64)


def _durations() -> Int:
    return np.rint(_exact_ns()).astype(np.int64)


def _cycles() -> Int:
    return np.rint(_exact_ns() * SM_HZ / 1e9).astype(np.int64)


def _dram_hz() -> Float:
    hz = np.full(len(KEYS), float(DRAM_HZ))
    hz[: len(FIRST_READ)] = np.array(FIRST_PER_S) / (np.array(FIRST_PERCENT) / 100 * DRAM_BYTES_PER_CYCLE)
    return hz


def _most() -> Float:
    """Bytes that memory could have moved in each launch's time."""
    return np.asarray(DRAM_BYTES_PER_CYCLE * _dram_hz() * _exact_ns() / 1e9, np.float64)


def _dram_percent() -> Float:
    return np.asarray(100 * (_read() + _written()) / _most(), np.float64)


def _tensor_operations() -> Int:
    return np.where(USES_TENSOR, np.array([launch.tiled_flops for launch in LAUNCHES]), 0)


def _tensor_percent() -> Float:
    return np.asarray(100 * _tensor_operations() / (TF32_PER_CYCLE * ncu.SMS * _cycles()), np.float64)


def _thread_operations() -> tuple[Int, Int, Int]:
    """FLOP on CUDA cores by kind: sums, products, fused ones; a product's result is scaled by one product."""
    flops = np.array([launch.flops for launch in LAUNCHES])
    results = np.array([launch.written // 4 for launch in LAUNCHES])
    sums = np.where(np.isin(KEYS, ["add", "mean"]), flops, 0)
    fused = np.where(np.isin(KEYS, ["norm_inference", "linear_one"]), flops, 0)
    return sums, np.where(USES_TENSOR, results, 0), fused


def _truth(metrics: dict[str, Any]) -> dict[str, Any]:
    flops = metrics["sm__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.sum"]
    columns: dict[str, list[Any]] = {
        "name": [k.full_name for k in KERNELS],
        "grid_blocks": BLOCKS.tolist(),
        "block_threads": [k.block for k in KERNELS],
        "dur_ns": _durations().tolist(),
        "tensor_flops": _tensor_operations().tolist(),
        "fp32_flops": flops.tolist(),
        "dram_bytes": (_read() + _written()).tolist(),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    sums = {name: sum(columns[name]) for name in ("dur_ns", "tensor_flops", "fp32_flops", "dram_bytes")}
    formula = sum(launch.flops for launch, used in zip(LAUNCHES, USES_TENSOR, strict=True) if used)
    return {"launches": rows, "totals": {**sums, "convolution_flops": formula}}
