"""How long a step takes, and whether that can be.

A step begins when its batch is there and ends when the device has done it. On a GPU, events in its stream take that
time, without a wait of the host in between; on a CPU its clock does (CUDA C++ Best Practices Guide, 9.1: Timing). The
wait for a batch is always the host's. The first steps are not timed: they allocate, compile, choose kernels and raise
clocks. A rate is of the median step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent

SOON_NS, MUCH_FLOPS = 1_000, 1_000_000  # no device does so much in so little: a call alone takes longer
REMEDY = "Time whole steps, by events on a GPU, and compare the name of the device with that of the peaks."


class Clock(Protocol):
    """Marks moments on a device."""

    def mark(self) -> Any:
        """Mark the moment when all that was asked for is done."""

    def between_ns(self, first: Any, then: Any) -> float:
        """Return the time between two marks, after `finish`."""

    def finish(self) -> None:
        """Wait until all that was asked for is done."""


class Times(NamedTuple):
    """Times of steps in ns: each wait for a batch, each step, and all of them together by the host's clock."""

    wait_ns: list[float]
    step_ns: list[float]
    wall_ns: int


class CpuClock:
    """The clock of the host, which does each step before it goes on."""

    def mark(self) -> int:
        """Return now."""
        return time.perf_counter_ns()

    def between_ns(self, first: int, then: int) -> float:
        """Return the time between two marks."""
        return float(then - first)

    def finish(self) -> None:
        """Do nothing: all is done."""


class GpuClock:
    """Events in the stream of a GPU, which has done what was asked for before them when it reaches them."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def mark(self) -> Any:
        """Put an event into the stream."""
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_ns(self, first: Any, then: Any) -> float:
        """Return the time between two events, to about 0.5 us."""
        return float(first.elapsed_time(then)) * 1e6  # ms

    def finish(self) -> None:
        """Wait for the GPU."""
        self.cuda.synchronize()


def clock(torch: Any, kind: str) -> Clock:
    """Return what takes the time on a device of this kind: cuda or cpu."""
    return GpuClock(torch.cuda) if kind == "cuda" else CpuClock()


def timed(step: Callable[[Any], object], batches: Iterator[Any], steps: int, on: Clock) -> Times:
    """Return the times of steps, each with the next batch; nothing waits for the GPU between them."""
    waits, marks = [], []
    on.finish()
    begin = time.perf_counter_ns()
    for _ in range(steps):
        asked = time.perf_counter_ns()
        batch = next(batches)
        waits.append(float(time.perf_counter_ns() - asked))
        first = on.mark()
        step(batch)
        marks.append((first, on.mark()))
    on.finish()
    wall = time.perf_counter_ns() - begin
    return Times(waits, [on.between_ns(first, then) for first, then in marks], wall)


def summary(times: Times) -> dict[str, float]:
    """Return median and spread of the steps, the median wait, and the time of all, ns."""
    low, quarter, middle, three, high = np.percentile(times.step_ns, [0, 25, 50, 75, 100]).tolist()
    return {
        "step_median_ns": middle,
        "step_p25_ns": quarter,
        "step_p75_ns": three,
        "step_min_ns": low,
        "step_max_ns": high,
        "wait_median_ns": float(np.median(times.wait_ns)),
        "wall_ns": float(times.wall_ns),
    }


def implied(what: str, flops: int, dur_ns: float, *, peak_flops_per_s: float | None = None) -> dict[str, float | None]:
    """Return `flops_per_s` of a step, `peak_flops_per_s`, and `peak_frac`, 0..1; None where no peak is known.

    `what` names the step and its device in the message. A rate above the dense peak, or a million operations in less
    than 1 us, is refused with a PerfkitError: then something else was timed.

    Examples
    --------
    >>> implied("MLP on an A100", 60_096_512, 57_580, peak_flops_per_s=19.5e12)["peak_frac"]  # doctest: +ELLIPSIS
    0.0535...
    """
    if not dur_ns > 0:
        raise PerfkitError(f"{what}: {number(flops)} FLOP in {dur_ns} ns. {REMEDY}")
    rate = flops / (dur_ns / 1e9)
    frac = None if peak_flops_per_s is None else rate / peak_flops_per_s
    claim = f"{what}: {number(flops / 1e6)} MFLOP in {duration(dur_ns)} are {number(rate / 1e12)} TFLOP/s"
    if frac is not None and frac > 1:
        raise PerfkitError(f"{claim}, {percent(frac)} of the peak. {REMEDY}")
    if flops >= MUCH_FLOPS and dur_ns < SOON_NS:
        raise PerfkitError(f"{claim}, in less time than a call takes. {REMEDY}")
    return {"flops_per_s": rate, "peak_flops_per_s": peak_flops_per_s, "peak_frac": frac}
