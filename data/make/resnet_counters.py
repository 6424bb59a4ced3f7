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

from pathlib import Path
from typing import Any

import numpy as np

from make import counters, resnet_run
from make.counters import CHANNELS, DRAM_PEAK, SECTOR, SMS
from make.resnet_work import TENSOR, TILES, duration_ns
from make.timeline import Float, Int

READ_BYTES, WRITTEN_BYTES = 137_210_112, 242_432
FIRST_READ = (610_304, 46_080, 640_000, 3_219_456, 3_219_456, 3_219_456)
FIRST_PER_S = (91.77e9, 11.17e9, 31.85e9, 479.81e9, 180.11e9, 543.29e9)
FIRST_PERCENT = (4.5, 0.55, 1.57, 23.65, 8.84, 26.71)
DRAM_HZ = 1_590_000_000
SM_HZ, BOOST_HZ = 1_260_000_000, 1_410_000_000  # the tool holds the clock at its base
TF32_PER_CYCLE, FP32_PER_CYCLE, PER_INSTRUCTION = 1_024, 128, 2_048  # FLOP of an SM, and of an m16n8k8 on tensor cores
WRITERS = 7  # launches late in the pass whose writes do not all stay in the cache

PROGRAM = resnet_run.inference_program(1)
LAUNCHES = [launch for launch in PROGRAM.launches if launch]
SLOTS = [op.slot for op in PROGRAM.plan if op.kind == "kernel"]
KERNELS = [PROGRAM.kernels[launch.key] for launch in LAUNCHES]
KEYS = np.array([launch.key for launch in LAUNCHES])
BLOCKS = np.array([launch.blocks for launch in LAUNCHES])
USES_TENSOR = np.isin(KEYS, sorted(TENSOR))


def write(path: Path, *, label: str) -> dict[str, Any]:
    """Write the raw page to `path`; return what is true of each launch, the sums, and FLOP by formula."""
    pipe, dram, read, written = _tensor_percent(), _dram_percent(), _read(), _written()
    fadd, fmul, fused = _thread_operations()
    flops = fadd + fmul + fused
    fma = 100 * flops / (FP32_PER_CYCLE * SMS * _cycles())
    loaded, stored = _sectors("read"), _sectors("written")
    values = {
        "dur_ns": _durations(),
        "cycles": _cycles(),
        "hz": SM_HZ,
        "sm_percent": 1.02 * np.maximum(pipe, fma) + 1.2,
        "memory_percent": np.maximum(dram, 1.9) * 1.05 + 1.4,
        "dram_percent": dram,
        "fma_percent": 1.1 * fma,
        "tensor_instructions": _tensor_operations() // PER_INSTRUCTION,
        "tensor_percent": pipe / np.minimum(1, BLOCKS / SMS),
        "flops_per_sm": flops / SMS,
        "fadd": fadd,
        "fmul": fmul,
        "ffma": fused // 2,
        "tf32_flops": _tensor_operations(),
        "tf32_peak": TF32_PER_CYCLE * SMS,
        "int_zero": 0,
        "read": read,
        "read_percent": 100 * read / _most(),
        "read_per_s": 1e9 * read / _exact_ns(),
        "written": written,
        "dram_cycles": np.rint(CHANNELS * _dram_hz() * _exact_ns() / 1e9).astype(np.int64),
        "dram_cycles_mean": _dram_hz() * _exact_ns() / 1e9,
        "dram_hz": np.rint(_dram_hz()).astype(np.int64),
        "loaded": loaded,
        "stored": stored,
        "load_requests": -(-loaded // 8),
        "store_requests": -(-stored // 8),
        "l1_hit_percent": np.where(USES_TENSOR, 11.4, 0),
        "l2_hit_percent": 100 * (1 - read / SECTOR / (loaded + stored)),
    }
    launches = list(zip(KERNELS, SLOTS, strict=True))
    kinds = np.where(USES_TENSOR, "tensor", "moving").tolist()
    counters.write(path, "resnet", launches, kinds, values, label=label, output=["Using cuda for inference"])
    found = counters.truth(
        launches,
        dur_ns=_durations().tolist(),
        tensor_flops=_tensor_operations().tolist(),
        fp32_flops=flops.tolist(),
        dram_bytes=(read + written).tolist(),
    )
    formula = sum(launch.flops for launch, used in zip(LAUNCHES, USES_TENSOR, strict=True) if used)
    return {**found, "totals": {**found["totals"], "convolution_flops": formula}}


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
    return np.asarray(np.maximum(slower, 1e9 * _read() / (0.85 * DRAM_PEAK * DRAM_HZ)), np.float64)


def _durations() -> Int:
    return np.rint(_exact_ns()).astype(np.int64)


def _cycles() -> Int:
    return np.rint(_exact_ns() * SM_HZ / 1e9).astype(np.int64)


def _dram_hz() -> Float:
    hz = np.full(len(KEYS), float(DRAM_HZ))
    hz[: len(FIRST_READ)] = np.array(FIRST_PER_S) / (np.array(FIRST_PERCENT) / 100 * DRAM_PEAK)
    return hz


def _most() -> Float:
    """Bytes that memory could have moved in each launch's time."""
    return np.asarray(DRAM_PEAK * _dram_hz() * _exact_ns() / 1e9, np.float64)


def _dram_percent() -> Float:
    return np.asarray(100 * (_read() + _written()) / _most(), np.float64)


def _tensor_operations() -> Int:
    return np.where(USES_TENSOR, np.array([launch.tiled_flops for launch in LAUNCHES]), 0)


def _tensor_percent() -> Float:
    return np.asarray(100 * _tensor_operations() / (TF32_PER_CYCLE * SMS * _cycles()), np.float64)


def _thread_operations() -> tuple[Int, Int, Int]:
    """FLOP on CUDA cores by kind: sums, products, fused ones; a product's result is scaled by one product."""
    flops = np.array([launch.flops for launch in LAUNCHES])
    results = np.array([launch.written // 4 for launch in LAUNCHES])
    sums = np.where(np.isin(KEYS, ["add", "mean"]), flops, 0)
    fused = np.where(np.isin(KEYS, ["norm_inference", "linear_one"]), flops, 0)
    return sums, np.where(USES_TENSOR, results, 0), fused
