"""What would the GPU's sampled metrics have shown of the steps of ResNet-18?

Conventions
-----------
A sample covers the time since the one before it; percentages are integers as the vendor writes them. What kernels and
copies do spreads evenly over their time. From the first to the last work of the GPU the means are the report's, to the
two decimals it prints: SMs active in per cent, memory read and written in GB/s of 1935. Reads are less than what the
kernels ask for, because the L2 cache answers some; in passes of one image SMs are active less than their number of
blocks says, because these are gone before the kernel is.

Classes
-------
Wanted     the report's three figures

Functions
---------
sample     times and values of the metrics
means      the three figures, computed from the samples as the report's script does
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.activity import Block, Rows
from make.mlp_samples import CLOCK, CLOCK_HZ, GR, PEAK_GB_PER_S, READ, SM, SYSTEM, SYSTEM_HZ, WRITE
from make.resnet_kernels import TENSOR
from make.resnet_run import Steps, active_ns
from make.timeline import Int

Float = NDArray[np.float64]

ISSUE, TENSOR_ACTIVE = "SM Issue [Throughput %]", "Tensor Active [Throughput %]"
WARPS, UNUSED = "Compute Warps in Flight [Throughput %]", "Unallocated Warps in Active SMs [Throughput %]"
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


def sample(steps: Steps, end_ns: int, period_ns: int, wanted: Wanted) -> tuple[Int, dict[str, Int]]:
    """Return when the metrics were read, ns, and the values of those that were not always 0."""
    times = np.arange(period_ns, end_ns, period_ns)
    block = steps.block()
    inside = _inside(times, steps.window)
    shares = {name: _spread(block.kernels, did, times) / period_ns for name, did in _done(steps, block).items()}
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


def means(steps: Steps, times: Int, values: Mapping[str, Int]) -> dict[str, float]:
    """Return the window, ns, and the three figures in it."""
    inside = _inside(times, steps.window)
    sm, read, write = (float(values[metric][inside].mean()) for metric in (SM, READ, WRITE))
    return {
        "first_ns": steps.window[0],
        "last_ns": steps.window[1],
        "sm_active_percent": sm,
        "read_gb_per_s": read / 100 * PEAK_GB_PER_S,
        "write_gb_per_s": write / 100 * PEAK_GB_PER_S,
    }


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
