"""What would the profilers have recorded of the ResNet-18 that the A100 lab report trains?

The captures were never published; some of their figures were (part 3 of the report). These hold as printed: SMs active
and memory bandwidth, the order of the most expensive kernels of each kind, the bytes that one forward pass reads and
writes, the time of such a pass. What they imply is built in; the rest is invented. The files say that they are
simulated. The passes of inference and their counters are in a folder of their own: another run of another script.

A sample covers the time since the one before it; percentages are integers as the vendor writes them. What kernels and
copies do spreads evenly over their time. From the first to the last work of the GPU the means are the report's. Reads
are less than what the kernels ask for, because the L2 cache answers some; in passes of one image SMs are active less
than their number of blocks says, because these are gone before the kernel is.

Counters hold section 3.4.3 exactly: 137.21 Mbyte read and 242.43 Kbyte written in all; of the first six launches the
bandwidth and its share of the peak, and of four of them the bytes, as printed. The text recognition read 8.22 in the
fifth row; it is taken for 3.22, as in the rows around it. Bytes of the second and third row follow from operands and
bandwidth. A block of a matrix product computes a whole tile, and whole steps of 8 along the sum, needed or not; tensor
cores count what they do. SM clock, cache traffic, hit rates and stalls are invented.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from make import activity, counters, resnet_run
from make.activity import Block, Rows
from make.counters import CHANNELS, DRAM_PEAK, SECTOR, SMS
from make.kernels import save
from make.mlp import (
    CLOCK,
    CLOCK_HZ,
    GR,
    PEAK_GB_PER_S,
    READ,
    SM,
    SYSTEM,
    SYSTEM_HZ,
    WRITE,
    window_of,
)
from make.resnet_run import Steps, active_ns
from make.resnet_work import TENSOR, TILES, duration_ns
from make.tally import Tally
from make.timeline import Float, Int

NAME = "resnet18_a100"
LABEL = "perfkit simulate resnet18_a100: made from the figures of an A100 lab report; no GPU ran"
T0_UNIX_NS = 1_750_082_400_000_000_000  # 14:00 UTC of the report's date, 16 June 2025
REST_NS = 17_000_000
TRAINING_PERIOD_NS, INFERENCE_PERIOD_NS = 4_000_000, 100_000

# tables 11 and 12 of the report, s
REPORT = {
    "images": 832_571,
    "training_s": {"1": 6283.2402, "64": 625.0386, "128": 614.9121},
    "inference_gpu_s": {"1": 0.0053, "64": 0.0093, "128": 0.0144},
    "inference_cpu_s": {"1": 0.02, "64": 0.95, "128": 1.94},
}


def resnet18_a100(folder: Path, *, seed: int = 0) -> Path:
    """Write the run into `folder` and return that.

    It is `resnet18_a100.nsys.sqlite` and `resnet18_a100.truth.json`, and in the folder `inference` of it
    `resnet18_a100.inference.nsys.sqlite` and `.ncu.csv`. Files of these names are replaced; others stay.
    """
    inference = folder / "inference" / f"{NAME}.inference"
    inference.parent.mkdir(parents=True, exist_ok=True)
    training = resnet_run.training_steps(np.random.default_rng(seed))
    passes = resnet_run.inference_passes(np.random.default_rng([seed, 1]))
    truth = {"simulated": LABEL, "seed": seed, "report": REPORT}
    truth |= _write(folder / f"{NAME}.nsys.sqlite", training, TRAINING_PERIOD_NS, TRAINING)
    timeline, counters = (
        inference.with_name(f"{inference.name}{end}") for end in (".nsys.sqlite", ".ncu.csv")
    )
    truth["inference"] = _write(timeline, passes, INFERENCE_PERIOD_NS, INFERENCE)
    truth["ncu"] = write_counters(counters, label=LABEL)
    save(folder / f"{NAME}.truth.json", truth)
    return folder


def _write(path: Path, steps: Steps, period_ns: int, wanted: Wanted) -> dict[str, Any]:
    """Write a capture; return what is true of it."""
    end_ns = int(steps.end[-1]) + REST_NS
    block, kernels = steps.block(), list(steps.program.kernels.values())
    times, values = sample_metrics(steps, end_ns, period_ns, wanted)
    script = "part3_resnet18_train.py -b 128" if steps.waits else "part3_resnet18_inf.py -b 1"
    about: dict[str, Any] = {
        "label": LABEL,
        "arguments": script,
        "dur_ns": end_ns,
        "t0_unix_ns": T0_UNIX_NS,
    }
    activity.write(path, [block], kernels, steps.ranges(), (times, values), **about)
    tally = Tally(kernels)
    tally.add(block)
    return {
        **tally.truth(),
        "steps": _steps(steps),
        "report_window": window_means(steps, times, values),
    } | {
        "samples": {
            name: {"count": len(times), "mean": float(value.mean())}
            for name, value in values.items()
        }
    }


def _steps(steps: Steps) -> dict[str, float]:
    """Number of steps, their time, and how much of it the host waited for data."""
    return {
        "count": len(steps.start),
        "total_ns": int((steps.end - steps.start).sum()),
        "loading_ns": int((steps.begin - steps.start).sum()),
    }


ISSUE, TENSOR_ACTIVE = "SM Issue [Throughput %]", "Tensor Active [Throughput %]"
WARPS, UNUSED = (
    "Compute Warps in Flight [Throughput %]",
    "Unallocated Warps in Active SMs [Throughput %]",
)
RECEIVED, SENT = "PCIe RX Throughput [Throughput %]", "PCIe TX Throughput [Throughput %]"
TENSOR_FLOPS_PER_NS, LINK_BYTES_PER_NS = 156_000, 31.5
OCCUPIED, ISSUED = 0.31, 0.22  # of an active SM's warps that are there, of its cycles that issue


class Wanted(NamedTuple):
    """SMs active, per cent; memory read and written, GB/s."""

    sm_percent: float
    read_gb_per_s: float
    write_gb_per_s: float


TRAINING = Wanted(14.41, 47.98, 34.97)  # sections 3.3.1 and 3.3.2
INFERENCE = Wanted(3.23, 8.02, 7.58)  # sections 3.4.1 and 3.4.2


def sample_metrics(
    steps: Steps, end_ns: int, period_ns: int, wanted: Wanted
) -> tuple[Int, dict[str, Int]]:
    """Return when the metrics were read, ns, and the values of those that were not always 0."""
    times = np.arange(period_ns, end_ns, period_ns)
    block = steps.block()
    inside = _inside(times, steps.window)
    shares = {
        name: _spread(block.kernels, did, times) / period_ns
        for name, did in _done(steps, block).items()
    }
    active = _to_mean(100 * shares[SM], inside, wanted.sm_percent)
    peak = PEAK_GB_PER_S  # bytes per ns
    return times, {
        CLOCK: np.full(len(times), CLOCK_HZ),
        SYSTEM: np.full(len(times), SYSTEM_HZ),
        GR: _whole(100 * shares[GR]),
        SM: active,
        ISSUE: _whole(ISSUED * active),
        WARPS: _whole(OCCUPIED * active),
        UNUSED: _whole((1 - OCCUPIED) * active),
        TENSOR_ACTIVE: _whole(100 * shares[TENSOR_ACTIVE] / TENSOR_FLOPS_PER_NS),
        READ: _to_mean(shares[READ], inside, 100 * wanted.read_gb_per_s / peak),
        WRITE: _to_mean(shares[WRITE], inside, 100 * wanted.write_gb_per_s / peak),
        RECEIVED: _whole(100 * _copied(block, 0, times) / period_ns / LINK_BYTES_PER_NS),
        SENT: _whole(100 * _copied(block, 1, times) / period_ns / LINK_BYTES_PER_NS),
    }


def window_means(steps: Steps, times: Int, values: Mapping[str, Int]) -> dict[str, float]:
    """Return the window, ns, and the three figures in it."""
    return window_of(values, _inside(times, steps.window), steps.window)


def _inside(times: Int, window: tuple[int, int]) -> NDArray[np.bool_]:
    return np.asarray((times >= window[0]) & (times < window[1]))


def _done(steps: Steps, block: Block) -> dict[str, Float]:
    """What each kernel does, by metric: time, time of all SMs, bytes, operations on tensor cores."""
    launches = [launch for launch in steps.program.launches if launch]
    count = len(steps.begin)
    length = (block.kernels["end"] - block.kernels["start"]).astype(np.float64)
    each = np.arange(len(length)) % len(launches)
    full = np.array([active_ns(launch, np.ones(1))[0] for launch in launches])
    tensor = [launch.flops * (launch.key in TENSOR) for launch in launches]
    return {
        GR: length,
        SM: full[each] * length,
        READ: np.tile(np.array([float(launch.read) for launch in launches]), count),
        WRITE: np.tile(np.array([float(launch.written) for launch in launches]), count),
        TENSOR_ACTIVE: np.tile(np.array(tensor, np.float64), count),
    }


def _copied(block: Block, direction: int, times: Int) -> Float:
    chosen = block.copies["direction"] == direction
    rows = {name: block.copies[name][chosen] for name in ("start", "end", "bytes")}
    return _spread(rows, rows["bytes"].astype(np.float64), times)


def _spread(rows: Rows, done: Float, times: Int) -> Float:
    """How much of what each row does falls between each two of the times; rows come one after another."""
    if not len(done):
        return np.zeros(len(times))
    edges = np.stack([rows["start"], rows["end"]], axis=1).ravel()
    until = np.cumsum(done)
    reached = np.stack([until - done, until], axis=1).ravel()
    return np.asarray(np.diff(np.interp(times, edges, reached, left=0.0), prepend=0.0), np.float64)


def _whole(values: NDArray[Any]) -> Int:
    return np.asarray(np.rint(values), np.int64)


def _to_mean(values: Float, inside: NDArray[np.bool_], mean: float) -> Int:
    """Integers in proportion to the values, the largest remainders rounded up until the mean inside is right."""
    total = round(mean * int(inside.sum()))
    scaled = values * (total / values[inside].sum())
    whole = np.floor(scaled).astype(np.int64)
    order = np.argsort(np.where(inside, whole - scaled, 1), kind="stable")
    whole[order[: total - int(whole[inside].sum())]] += 1
    return np.asarray(whole, np.int64)


READ_BYTES, WRITTEN_BYTES = 137_210_112, 242_432
FIRST_READ = (610_304, 46_080, 640_000, 3_219_456, 3_219_456, 3_219_456)
FIRST_PER_S = (91.77e9, 11.17e9, 31.85e9, 479.81e9, 180.11e9, 543.29e9)
FIRST_PERCENT = (4.5, 0.55, 1.57, 23.65, 8.84, 26.71)
DRAM_HZ = 1_590_000_000
SM_HZ, BOOST_HZ = 1_260_000_000, 1_410_000_000  # the tool holds the clock at its base
TF32_PER_CYCLE, FP32_PER_CYCLE, PER_INSTRUCTION = (
    1_024,
    128,
    2_048,
)  # FLOP of an SM, and of an m16n8k8 on tensor cores
WRITERS = 7  # launches late in the pass whose writes do not all stay in the cache

PROGRAM = resnet_run.inference_program(1)
LAUNCHES = [launch for launch in PROGRAM.launches if launch]
SLOTS = [op.slot for op in PROGRAM.plan if op.kind == "kernel"]
KERNELS = [PROGRAM.kernels[launch.key] for launch in LAUNCHES]
KEYS = np.array([launch.key for launch in LAUNCHES])
BLOCKS = np.array([launch.blocks for launch in LAUNCHES])
USES_TENSOR = np.isin(KEYS, sorted(TENSOR))


def write_counters(path: Path, *, label: str) -> dict[str, Any]:
    """Write the raw page to `path`; return what is true of each launch, the sums, and FLOP by formula."""
    exact, dram_hz, read, written = _exact_ns(), _dram_hz(), _read(), _written()
    dur = np.rint(exact).astype(np.int64)
    cycles = np.rint(exact * SM_HZ / 1e9).astype(np.int64)
    most = (
        DRAM_PEAK * dram_hz * exact / 1e9
    )  # bytes that memory could have moved in each launch's time
    dram = 100 * (read + written) / most
    tensor = np.where(USES_TENSOR, np.array([launch.tiled_flops for launch in LAUNCHES]), 0)
    pipe = 100 * tensor / (TF32_PER_CYCLE * SMS * cycles)
    fadd, fmul, fused = _thread_operations()
    flops = fadd + fmul + fused
    fma = 100 * flops / (FP32_PER_CYCLE * SMS * cycles)
    loaded, stored = _sectors("read"), _sectors("written")
    values = {
        "dur_ns": dur,
        "cycles": cycles,
        "hz": SM_HZ,
        "sm_percent": 1.02 * np.maximum(pipe, fma) + 1.2,
        "memory_percent": np.maximum(dram, 1.9) * 1.05 + 1.4,
        "dram_percent": dram,
        "fma_percent": 1.1 * fma,
        "tensor_instructions": tensor // PER_INSTRUCTION,
        "tensor_percent": pipe / np.minimum(1, BLOCKS / SMS),
        "flops_per_sm": flops / SMS,
        "fadd": fadd,
        "fmul": fmul,
        "ffma": fused // 2,
        "tf32_flops": tensor,
        "tf32_peak": TF32_PER_CYCLE * SMS,
        "int_zero": 0,
        "read": read,
        "read_percent": 100 * read / most,
        "read_per_s": 1e9 * read / exact,
        "written": written,
        "dram_cycles": np.rint(CHANNELS * dram_hz * exact / 1e9).astype(np.int64),
        "dram_cycles_mean": dram_hz * exact / 1e9,
        "dram_hz": np.rint(dram_hz).astype(np.int64),
        "loaded": loaded,
        "stored": stored,
        "load_requests": -(-loaded // 8),
        "store_requests": -(-stored // 8),
        "l1_hit_percent": np.where(USES_TENSOR, 11.4, 0),
        "l2_hit_percent": 100 * (1 - read / SECTOR / (loaded + stored)),
    }
    launches = list(zip(KERNELS, SLOTS, strict=True))
    kinds = np.where(USES_TENSOR, "tensor", "moving").tolist()
    counters.write(
        path, "resnet", launches, kinds, values, label=label, output=["Using cuda for inference"]
    )
    found = counters.truth(
        launches,
        dur_ns=dur.tolist(),
        tensor_flops=tensor.tolist(),
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


def _dram_hz() -> Float:
    hz = np.full(len(KEYS), float(DRAM_HZ))
    hz[: len(FIRST_READ)] = np.array(FIRST_PER_S) / (np.array(FIRST_PERCENT) / 100 * DRAM_PEAK)
    return hz


def _thread_operations() -> tuple[Int, Int, Int]:
    """FLOP on CUDA cores by kind: sums, products, fused ones; a product's result is scaled by one product."""
    flops = np.array([launch.flops for launch in LAUNCHES])
    results = np.array([launch.written // 4 for launch in LAUNCHES])
    sums = np.where(np.isin(KEYS, ["add", "mean"]), flops, 0)
    fused = np.where(np.isin(KEYS, ["norm_inference", "linear_one"]), flops, 0)
    return sums, np.where(USES_TENSOR, results, 0), fused
