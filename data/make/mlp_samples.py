"""What would the GPU's sampled metrics have shown of the lab's run?

Conventions
-----------
A sample covers the time since the one before it, 5 ms; percentages are integers as the vendor writes them, so
that a small mean is a few ones among zeros. The means over the two windows of section 2.2 of the report are
what the report prints, to its two decimals: SMs active 0.17 % in both, memory read 0.07 and written 0.93 GB/s
in the kernels' window, 0.09 and 0.96 GB/s in the copies'. The ones stand where the GPU was busiest.

Functions
---------
sample     times and values of the metrics
windows    the report's figures, computed from the samples as its script does
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from make.activity import Rows
from make.sweep import covered_until
from make.timeline import Int

PERIOD_NS, JITTER_NS = 5_000_000, 20_000
CONTEXT_NS = 9_420_000_000
IDLE_HZ, CLOCK_HZ, SYSTEM_HZ = 210_000_000, 1_410_000_000, 1_275_000_000

# what the report passed to the script, ns, and the peak the script assumes, GB/s
KERNEL_WINDOW = (9_644_000_000, 19_448_000_000)
COPY_WINDOW = (9_531_400_000, 19_448_000_000)
PEAK_GB_PER_S = 1935

GR, SM = "GR Active [Throughput %]", "SMs Active [Throughput %]"
WARPS = "Unallocated Warps in Active SMs [Throughput %]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
CLOCK, SYSTEM = "GPC Clock Frequency [MHz]", "SYS Clock Frequency [MHz]"


def sample(kernels: Rows, end_ns: int, rng: np.random.Generator) -> tuple[Int, dict[str, Int]]:
    """Return when the metrics were read, ns, and the values of those that were not always 0."""
    times = np.arange(PERIOD_NS, end_ns, PERIOD_NS)
    times += (JITTER_NS * (2 * rng.random(len(times)) - 1)).astype(np.int64)
    busy = np.diff(covered_until(kernels["start"], kernels["end"], times), prepend=0)
    in_kernels = _inside(times, KERNEL_WINDOW)
    early = _inside(times, COPY_WINDOW) & ~in_kernels
    running = times >= CONTEXT_NS

    def ones(percent: float, further: float = 0.0) -> Int:
        """Ones whose mean is `percent` in the kernels' window and `further`, if given, in the copies'."""
        count = round(percent * in_kernels.sum())
        before = round(further * _inside(times, COPY_WINDOW).sum()) - count if further else 0
        return _busiest(busy, in_kernels, count) + _busiest(busy, early, before)

    active = ones(0.17)
    return times, {
        CLOCK: np.where(running, CLOCK_HZ, IDLE_HZ),
        SYSTEM: np.where(running, SYSTEM_HZ, IDLE_HZ),
        GR: np.rint(100 * busy / PERIOD_NS).astype(np.int64),
        SM: active,
        WARPS: active,
        READ: ones(100 * 0.07 / PEAK_GB_PER_S, 100 * 0.09 / PEAK_GB_PER_S),
        WRITE: ones(100 * 0.93 / PEAK_GB_PER_S, 100 * 0.96 / PEAK_GB_PER_S),
    }


def _inside(times: Int, window: tuple[int, int]) -> NDArray[np.bool_]:
    return np.asarray((times >= window[0]) & (times <= window[1]))


def _busiest(busy: Int, among: NDArray[np.bool_], count: int) -> Int:
    """Ones for the `count` busiest samples among those given, the earlier one first where they tie."""
    chosen = np.argsort(np.where(among, -busy, 1), kind="stable")[:count]
    return np.isin(np.arange(len(busy)), chosen).astype(np.int64)


def windows(times: Int, values: Mapping[str, Int]) -> dict[str, dict[str, float]]:
    """Return the means of SM activity, percent, and of memory bandwidth, GB/s, in the report's two windows."""
    means = {}
    for name, window in (("kernels", KERNEL_WINDOW), ("copies", COPY_WINDOW)):
        inside = _inside(times, window)
        sm, read, write = (float(values[metric][inside].mean()) for metric in (SM, READ, WRITE))
        means[name] = {
            "first_ns": window[0],
            "last_ns": window[1],
            "sm_active_percent": sm,
            "read_gb_per_s": read / 100 * PEAK_GB_PER_S,
            "write_gb_per_s": write / 100 * PEAK_GB_PER_S,
        }
    return means
