"""When does each operation of a step happen: how long it takes, and how a plan is laid out in time?

A plan is what the host does in one step, in order, phase by phase; many steps of one plan are laid out at once. Arrays
are int64 ns of shape (operations of the plan, steps); time 0 is where the step's first phase starts. A stream runs its
work in order, one at a time; work starts when the host has called for it and the stream is free. Every plan ends with
the GPU drained, so that steps can be put one behind the other.

Times are drawn between two bounds with a tail towards the upper one. Durations of a kernel of Table 5 are drawn around
the median and then nudged, within their bounds, until the total is exact: count, total, minimum and maximum always
hold, and so does the median (mean of the two middle values).
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.kernels import Kernel

Int = NDArray[np.int64]
Float = NDArray[np.float64]

SPACING_NS = 900
RETURN_NS = 2_500


class Op(NamedTuple):
    """One thing the host does; `what` is a kernel's key, a copy's direction or a function's name.

    A ``node`` is a kernel of the CUDA graph that the last ``graph`` operation launched.
    """

    kind: Literal["kernel", "node", "copy", "memset", "sync", "graph", "call"]
    what: str
    phase: str
    slot: int = 0
    thread: int = 0
    stream: int = 0
    size: int = 0

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU has work from it."""
        return self.kind in ("kernel", "node", "copy", "memset")

    @property
    def called(self) -> bool:
        """Whether the host makes a call of its own for it."""
        return self.kind != "node"


Plan = tuple[Op, ...]


class Times(NamedTuple):
    """How long things take, int64 ns of shape (operations, steps).

    ``gap`` before a call, ``call`` in it (at least), ``delay`` from its end until the GPU can start, ``work``.
    """

    gap: Int
    call: Int
    delay: Int
    work: Int


@dataclass(frozen=True)
class Laid:
    """A plan on the time axis; rows of operations without a call or without GPU work hold zeros."""

    call_start: Int
    call_end: Int
    start: Int
    end: Int
    length: Int
    phases: dict[str, tuple[Int, Int]]


def lay_out(plan: Plan, times: Times) -> Laid:
    """Return when calls and GPU work of all steps start and end; a copy may start while its call still runs."""
    steps = times.gap.shape[1]
    blank = np.zeros((4, len(plan), steps), np.int64)
    laid = Laid(blank[0], blank[1], blank[2], blank[3], np.zeros(steps, np.int64), {})
    free = np.zeros((1 + max(op.stream for op in plan), steps), np.int64)
    host = called = np.zeros(steps, np.int64)
    for i, op in enumerate(plan):
        begun = laid.phases.get(op.phase, (host, host))[0]
        if op.called:
            laid.call_start[i] = host + times.gap[i]
            called = laid.call_start[i] + times.call[i]
        if op.on_gpu:
            ready = (laid.call_start[i] + called) // 2 if op.size else called + times.delay[i]
            laid.start[i] = np.maximum(ready, free[op.stream] + SPACING_NS)
            laid.end[i] = free[op.stream] = laid.start[i] + times.work[i]
        if op.called:
            host = laid.call_end[i] = np.maximum(called, _awaited(op, laid.end[i], free))
        laid.phases[op.phase] = (begun, host)
    laid.length[:] = host
    return laid


def _awaited(op: Op, end: Int, free: Int) -> Int:
    """When the work a call waits for is done: all of it for a synchronisation, its own for a copy to the host."""
    if op.kind == "sync":
        return np.asarray(free.max(axis=0) + RETURN_NS, np.int64)
    return end + RETURN_NS if op.what == "D2H" else np.zeros_like(end)


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


def draw_times(plan: Plan, steps: int, pace: Pace, rng: np.random.Generator) -> Times:
    """Return the times of `steps` steps of a plan; those of kernels on the GPU are 0 and left to the caller."""
    shape = (len(plan), steps)
    gap, call, delay = (
        _between(bounds, shape, rng) for bounds in (pace.gap_ns, pace.call_ns, pace.delay_ns)
    )
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


def shares(total: int, weight: Float) -> Int:
    """Split `total` into whole parts in proportion to the weights."""
    ends = np.floor(total * np.cumsum(weight) / weight.sum()).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)


def draw_durations(kernel: Kernel, rng: np.random.Generator) -> Int:
    """Return the durations of all launches of `kernel`, ns, the longest first."""
    low, high = _bounds(kernel)
    spare = kernel.total_ns - int(low.sum())
    if not 0 <= spare <= int((high - low).sum()):
        raise ValueError(
            f"kernel: {kernel.name} cannot have {kernel.count} launches of {kernel.total_ns} ns in all"
        )
    reach = int((high - low).sum())
    drawn = low + ((high - low) * _unit(len(low), spare / reach if reach else 0.0, rng)).astype(
        np.int64
    )
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
