"""Which durations have a given count, total, median, minimum and maximum?

Conventions
-----------
Integers, ns. They are drawn at random around the median and then nudged, within their bounds, until the
total is exact: count, total, minimum and maximum always hold, and so does the median (mean of the two
middle values).

Functions
---------
draw    durations of all launches of one kernel
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from make.table5 import Kernel

Int = NDArray[np.int64]


def draw(kernel: Kernel, rng: np.random.Generator) -> Int:
    """Return the durations of all launches of `kernel`, ns, the longest first.

    Raises
    ------
    ValueError
        If no set of integers has the kernel's count, total, median, minimum and maximum.

    Examples
    --------
    >>> draw(Kernel("k", "k", total_ns=31, count=4, median_ns=7.5, min_ns=4, max_ns=12), np.random.default_rng(0))
    array([12,  8,  7,  4])
    """
    low, high = _bounds(kernel)
    spare = kernel.total_ns - int(low.sum())
    if not 0 <= spare <= int((high - low).sum()):
        raise ValueError(f"kernel: {kernel.name} cannot have {kernel.count} launches of {kernel.total_ns} ns in all")
    reach = int((high - low).sum())
    drawn = low + ((high - low) * _unit(len(low), spare / reach if reach else 0.0, rng)).astype(np.int64)
    return np.sort(_nudged(drawn, low, high, kernel.total_ns))[::-1]


def _bounds(kernel: Kernel) -> tuple[Int, Int]:
    """Bounds of each of the sorted durations that pin minimum, median and maximum."""
    half = kernel.count // 2
    low = np.full(kernel.count, kernel.min_ns, np.int64)
    high = np.full(kernel.count, math.floor(kernel.median_ns), np.int64)
    low[half:], high[half:] = math.ceil(kernel.median_ns), kernel.max_ns
    low[(kernel.count - 1) // 2] = high[(kernel.count - 1) // 2] = math.floor(kernel.median_ns)
    low[half] = high[half] = math.ceil(kernel.median_ns)
    high[0], low[-1] = kernel.min_ns, kernel.max_ns
    return low, high


def _unit(count: int, mean: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Random numbers in 0..1 whose mean is about `mean`: powers of uniform ones."""
    return rng.random(count) ** (1 / min(max(mean, 0.01), 0.99) - 1)


def _nudged(values: Int, low: Int, high: Int, total: int) -> Int:
    """Move values within their bounds, all by about the same, until they sum to `total`."""
    values = values.copy()
    while missing := total - int(values.sum()):
        room = high - values if missing > 0 else values - low
        movable = np.flatnonzero(room)
        share = -(-abs(missing) // len(movable))
        move = np.minimum(room[movable], share)
        move = np.diff(np.minimum(np.cumsum(move), abs(missing)), prepend=0)
        values[movable] += move if missing > 0 else -move
    return values
