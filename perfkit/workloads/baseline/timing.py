"""Timing work on the device that PyTorch computes on.

Conventions
-----------
The device is the GPU that PyTorch has chosen, or the CPU where it has none. Work is warmed up and then repeated; on a
GPU events in its stream take the time of a repeat, on the CPU its clock does.

Functions
---------
device   what PyTorch computes on
Device   with its name, and the times of repeats
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from perfkit.errors import PerfkitError

Work = Callable[[], object]

WARM_UP, LEAST, MOST = 3, 5, 100  # repeats
CALLS = WARM_UP + 2 + LEAST  # at least, for the times of one work
CPU_INFO = Path("/proc/cpuinfo")


class Device(NamedTuple):
    """PyTorch and what it computes on; `kind` is cuda or cpu, `capability` the compute capability of a GPU."""

    torch: Any
    kind: str
    name: str
    capability: tuple[int, int] | None = None

    def times(self, work: Work, seconds: float) -> list[float]:
        """Return the times of repeats of `work`, ns: as many as fit into `seconds`, but at least 5 and at most 100."""
        clock = _on_cpu if self.capability is None else self._on_gpu
        clock(work, WARM_UP)
        fit = seconds * 1e9 / max(min(clock(work, 2)), 1)
        return clock(work, int(min(max(fit, LEAST), MOST)))

    def fits(self, size_bytes: int) -> bool:
        """Say whether half of the GPU's free memory holds so much; the memory of a CPU is left to the system."""
        return self.capability is None or 2 * size_bytes <= self.torch.cuda.mem_get_info()[0]

    def _on_gpu(self, work: Work, repeats: int) -> list[float]:
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            work()
            mark.record()
        self.torch.cuda.synchronize()
        return [first.elapsed_time(then) * 1e6 for first, then in pairwise(marks)]  # ms


def device() -> Device:
    """Return what PyTorch computes on.

    Raises
    ------
    PerfkitError
        If PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as e:
        raise PerfkitError(
            f"torch: cannot be imported ({e}). Install PyTorch, for example with `pip install 'perfkit[torch]'`."
        ) from e
    if torch.cuda.is_available():
        return Device(torch, "cuda", torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    return Device(torch, "cpu", cpu_name())


def _on_cpu(work: Work, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        work()
        times.append(float(time.perf_counter_ns() - start))
    return times


def cpu_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
