"""How long does each thing take that no source fixes: the host's code, its calls, copies?

Conventions
-----------
Times are int64 ns, one per operation of a plan and step, drawn between two bounds with a tail towards the
upper one. A pace is how quick the host is; the GPU's copies take what the lab's PCIe link takes.

Functions
---------
times    time before and in each call, until the GPU starts, and of copies on the GPU
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from make.timeline import Int, Plan, Times

# bytes per ns (GB/s): staging of pageable memory by the host, PCIe 4.0 x16 from a staging buffer, device memory
STAGING, LINK, DEVICE = 8, 11, 700
COPY_NS = 1_100


@dataclass(frozen=True)
class Pace:
    """Bounds of the time the host spends before a call and in it, and until the GPU can start, ns."""

    gap_ns: tuple[int, int]
    call_ns: tuple[int, int]
    delay_ns: tuple[int, int]


EAGER = Pace(gap_ns=(8_000, 30_000), call_ns=(4_600, 13_000), delay_ns=(1_400, 4_000))
QUICK = Pace(gap_ns=(400, 1_400), call_ns=(2_200, 4_600), delay_ns=(900, 2_400))


def times(plan: Plan, steps: int, pace: Pace, rng: np.random.Generator) -> Times:
    """Return the times of `steps` steps of a plan; those of kernels on the GPU are 0 and left to the caller."""
    shape = (len(plan), steps)
    gap, call, delay = (_between(bounds, shape, rng) for bounds in (pace.gap_ns, pace.call_ns, pace.delay_ns))
    staged = np.array([op.size // STAGING if op.what in ("H2D", "D2H") else 0 for op in plan])
    return Times(gap, call + staged[:, None], delay, _copies(plan, steps, rng))


def _between(bounds: tuple[int, int], shape: tuple[int, int], rng: np.random.Generator) -> Int:
    low, high = bounds
    return low + ((high - low) * rng.random(shape) ** 3).astype(np.int64)


def _copies(plan: Plan, steps: int, rng: np.random.Generator) -> Int:
    speed = np.array([DEVICE if op.what in ("D2D", "memset") else LINK for op in plan])
    size = np.array([op.size for op in plan])
    base = np.where(size, COPY_NS + size / speed, 0.0)
    return (base[:, None] * (1 + 0.12 * rng.random((len(plan), steps)))).astype(np.int64)
