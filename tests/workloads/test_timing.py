"""Times of steps with clocks that are made up, and the refusal of times that cannot be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.errors import PerfkitError
from perfkit.workloads.running import CpuClock, GpuClock, Times, clock, implied, summary, timed

MS = 1_000_000


class Stream:
    """A stand-in for torch.cuda: work takes the GPU's time, not the host's, and events are reached in order."""

    def __init__(self) -> None:
        self.now_ms, self.waits = 0.0, 0

    def Event(self, *, enable_timing: bool) -> Any:
        """An event of the stream."""
        assert enable_timing
        event = SimpleNamespace(at=None, elapsed_time=lambda other: other.at - event.at)
        event.record = lambda: setattr(event, "at", self.now_ms)
        return event

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.waits += 1


def test_cpu_times_are_those_of_the_host() -> None:
    """A step of 20 ms takes at least that, its wait of 5 ms is not part of it, and the whole holds both."""

    def slow() -> Iterator[int]:
        while True:
            time.sleep(0.005)
            yield 0

    times = timed(lambda batch: time.sleep(0.02), slow(), 3, CpuClock())
    assert (3, 3) == (len(times.step_ns), len(times.wait_ns))
    assert min(times.step_ns) >= 20 * MS
    assert min(times.wait_ns) >= 5 * MS
    assert times.wall_ns >= sum(times.step_ns) + sum(times.wait_ns)


def test_gpu_times_are_those_of_its_events() -> None:
    """Steps of 3 ms on the GPU take 3 ms though the host spends none; it waits before the first and after the last."""
    stream = Stream()

    def step(batch: int) -> None:
        stream.now_ms += batch

    times = timed(step, iter([3, 3, 4]), 3, GpuClock(stream))
    assert [3.0 * MS, 3.0 * MS, 4.0 * MS] == times.step_ns
    assert 2 == stream.waits


def test_batches_are_taken_in_order() -> None:
    """Every step gets the next batch, and no batch is taken beyond the last step."""
    seen: list[int] = []
    left = iter(range(5))
    timed(seen.append, left, 3, CpuClock())
    assert ([0, 1, 2], [3, 4]) == (seen, list(left))


def test_device_decides_the_clock() -> None:
    """A GPU is timed by events, a CPU by its clock."""
    torch = SimpleNamespace(cuda=Stream())
    assert isinstance(clock(torch, "cuda"), GpuClock)
    assert isinstance(clock(torch, "cpu"), CpuClock)


def test_summary_by_hand() -> None:
    """Of 10, 20, 30, 40, 100: median 30, quartiles 20 and 40; the median wait of 1, 2, 9, 9, 9 is 9."""
    found = summary(Times([1.0, 2.0, 9.0, 9.0, 9.0], [40.0, 10.0, 100.0, 20.0, 30.0], 250))
    assert {
        "step_median_ns": 30.0,
        "step_p25_ns": 20.0,
        "step_p75_ns": 40.0,
        "step_min_ns": 10.0,
        "step_max_ns": 100.0,
        "wait_median_ns": 9.0,
        "wall_ns": 250.0,
    } == found


def test_rate_of_the_lab() -> None:
    """32,504,064 FLOP in 57.58 us are 0.5645 TFLOP/s, 2.9 % of the 19.5 TFLOP/s of an A100."""
    found = implied("MLP", 32_504_064, 57_580, peak_flops_per_s=19.5e12)
    assert 0.5645 == round((found["flops_per_s"] or 0) / 1e12, 4)
    assert 0.0289 == round(found["peak_frac"] or 0, 4)


def test_without_a_peak_there_is_no_share() -> None:
    """1,000 FLOP in 1 us are 1e9 FLOP/s; what share that is, nobody knows."""
    expected = {"flops_per_s": pytest.approx(1e9, rel=1e-12), "peak_flops_per_s": None, "peak_frac": None}
    assert expected == implied("a CPU", 1_000, 1_000)


def test_rate_above_the_peak_is_refused() -> None:
    """60.1 MFLOP in the 0.16 us of the lab's table 4 are 376 TFLOP/s, 19 times the peak of its A100."""
    with pytest.raises(PerfkitError, match=r"60\.1 MFLOP in 160 ns are 376 TFLOP/s, 1,926\.2 % of the peak"):
        implied("MLP", 60_096_512, 160, peak_flops_per_s=19.5e12)


def test_the_peak_itself_is_not_refused() -> None:
    """19.5 GFLOP in 1 ms are all of 19.5 TFLOP/s; one FLOP in a thousand more is too much."""
    assert 1.0 == implied("a GEMM", 19_500_000_000, MS, peak_flops_per_s=19.5e12)["peak_frac"]
    with pytest.raises(PerfkitError, match="of the peak"):
        implied("a GEMM", 19_519_500_000, MS, peak_flops_per_s=19.5e12)


def test_time_below_that_of_a_call_is_refused_without_a_peak() -> None:
    """The lab's CPU: 60.1 MFLOP in 0.4258 us would be 141 TFLOP/s."""
    with pytest.raises(PerfkitError, match="are 141 TFLOP/s, in less time than a call takes"):
        implied("MLP on a CPU", 60_096_512, 425.8)


@pytest.mark.parametrize("dur", [0.0, -1.0, float("nan")])
def test_no_time_is_refused(dur: float) -> None:
    """A step takes time."""
    with pytest.raises(PerfkitError, match=f"FLOP in {dur} ns"):
        implied("a step", 1, dur)
