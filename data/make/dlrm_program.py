"""What happens when, in 100 steps of training a DLRM, on the CPU's threads and on the GPU?

Conventions
-----------
A line of `dlrm_steps.csv` names a place of `dlrm_places.csv` and what is asked for there: kernels by their keys,
other operations as ``kind:bytes``. A memset is made by the call of the kernel behind it. The batch has 2,048 samples
of 480 dense features and 10 rows of each of four embedding tables; it comes from pageable memory.

One list of operations, in integer ns since the program's start, says everything: stretches in which a thread
runs in a context, and kernels, copies, memsets, allocations and synchronisations with the context that asked for them.
The GPU has one stream and does one thing at a time; a thread does one thing at a time, and what is in no stretch is a
thread that waits. A copy from or to pageable memory holds the thread until it is done. The main thread sleeps
while the autograd engine's thread runs the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from make.dlrm_sites import EXIT, KERNELS, MAIN, SPINNING, WORKER, WORKERS, Mark, Sites
from make.kernels import table

Line = tuple[str, list[str]]


def _lines(phase: str) -> list[Line]:
    """Return places and what is asked for there in a phase of a step."""
    return [(row["place"], row["work"].split()) for row in table("dlrm_steps") if row["phase"] == phase]


FORWARD, BACKWARD, OPTIMISER = map(_lines, ("forward", "backward", "optimiser"))
# weights and biases of 480-512-256-64 and 100-256-128-1, then four tables of 20,000 rows of 64
PARAMETERS = (983_040, 2_048, 524_288, 1_024, 65_536, 256, 102_400, 1_024, 131_072, 512, 512, 4, *[5_120_000] * 4)
BLOCKS = (2_097_152, 20_971_520, 20_971_520, 2_097_152)  # what the caching allocator asks the driver for


STEPS = 100
MAIN_THREAD, FIRST_WORKER, WORKER_COUNT, ENGINE_THREAD, CPU_THREADS = 0, 1, 8, 29, 31
MS = 1_000_000

ON_DEVICE = ("kernel", "copy", "memset")  # what the GPU's stream does; the others are the driver's

_KB_PER_S = {"H2D": 6_100_000, "D2H": 6_100_000, "D2D": 1_100_000_000}  # pageable memory of the host
_SHORTEST_NS = {"H2D": 780, "D2H": 1_650, "D2D": 2_900, "memset": 1_150, "alloc": 38_000, "sync": 2_300}
_DELAY_NS = 1_900
_HOST_SPREAD = 0.4
_BEFORE_MEMSET_NS = 800_000  # after the kernel's call, which waits for it


class Op(NamedTuple):
    """Something with a start and a duration; `what` is a kernel's key, a copy's direction or another operation's kind.

    `kind` is cpu, kernel, copy, memset, alloc or sync, `thread` who runs or asks. `samples` is the context on which a
    kernel's samples fall.
    """

    kind: str
    thread: int
    mark: Mark
    start: int
    dur: int
    what: str = ""
    size: int = 0
    samples: int = -1


@dataclass
class _Recorder:
    """Threads' and the GPU's clocks, and what has happened so far."""

    rng: np.random.Generator
    sites: Sites = field(default_factory=Sites)
    ops: list[Op] = field(default_factory=list)
    clock: dict[int, int] = field(default_factory=dict)
    free: int = 0
    launches: dict[tuple[str, str], int] = field(default_factory=dict)

    def runs(self, thread: int, mark: Mark, dur: int) -> None:
        """A thread runs in a context."""
        start = self.clock.get(thread, 0)
        self.ops.append(Op("cpu", thread, mark, start, dur))
        self.clock[thread] = start + dur

    def about(self, mean: int, spread: float = 0.06) -> int:
        """A duration near a mean."""
        return int(self.rng.integers(int(mean * (1 - spread)), int(mean * (1 + spread)) + 1))

    def step(self, plan: Sequence[Line], thread: int) -> None:
        """A thread works through the lines of a plan."""
        for name, works in plan:
            spot, to_set = self.sites.spot(name), 0
            for work in works:
                what, colon, size = work.partition(":")
                if what == "memset":
                    to_set = int(size)
                    continue
                self.runs(thread, spot.python, self.about(900_000, _HOST_SPREAD))
                self.runs(thread, spot.native, self.about(600_000, _HOST_SPREAD))
                if to_set:
                    self._sets(name, thread, to_set)
                    to_set = 0
                self.asks(name, thread, what, int(size) if colon else None)

    def asks(self, name: str, thread: int, what: str, size: int | None) -> None:
        """A thread calls CUDA for an operation: a kernel if it has no size."""
        called = self.about(700_000, _HOST_SPREAD)
        start = max(self.clock[thread] + called // 2 + _DELAY_NS, self.free)
        op = self._kernel(name, thread, what, start) if size is None else self._other(name, thread, what, size, start)
        self.ops.append(op)
        if op.kind in ON_DEVICE:
            self.free = op.start + op.dur
        until = op.start + op.dur if what in ("H2D", "D2H", "alloc", "sync") else 0
        self.runs(thread, self.sites.spot(name).call, max(called, until - self.clock[thread]))

    def _sets(self, name: str, thread: int, size: int) -> None:
        """A memset that the next kernel's own call makes first: that kernel starts when it ends."""
        ready = self.clock[thread] + _BEFORE_MEMSET_NS
        op = self._other(name, thread, "memset", size, max(ready, self.free))
        self.ops.append(op)
        self.free = op.start + op.dur

    def _kernel(self, name: str, thread: int, key: str, start: int) -> Op:
        launched = self.sites.kernel(name, key)
        number = self.launches[name, key] = self.launches.get((name, key), -1) + 1
        samples = launched.instructions[number % len(launched.instructions)]
        return Op("kernel", thread, launched.mark, start, self.about(KERNELS[key].mean_ns), key, 0, samples)

    def _other(self, name: str, thread: int, what: str, size: int, start: int) -> Op:
        mark, copied = self.sites.operation(name, what), what in _KB_PER_S
        dur = self.about(_SHORTEST_NS[what]) + (size * MS // _KB_PER_S[what] if copied else 0)
        return Op("copy" if copied else what, thread, mark, start, dur, what, size)


def run(rng: np.random.Generator) -> tuple[list[Op], Sites, int]:
    """Return the operations of the whole program, its calling contexts, and when it ends, ns."""
    recorder = _Recorder(rng)
    _starts(recorder)
    for number in range(STEPS):
        _loads(recorder)
        recorder.step(FORWARD, MAIN_THREAD)
        _backward(recorder, first=number == 0)
        recorder.step(OPTIMISER, MAIN_THREAD)
        recorder.runs(MAIN_THREAD, recorder.sites.spot("print").python, recorder.about(2 * MS, 0.5))
    recorder.runs(MAIN_THREAD, recorder.sites.native(MAIN, EXIT), recorder.about(390 * MS))
    return recorder.ops, recorder.sites, recorder.clock[MAIN_THREAD]


def _starts(recorder: _Recorder) -> None:
    """Imports, the model, CUDA, and the model's way to the GPU."""
    spot = recorder.sites.spot
    for name, dur in (("import torch", 3_900), ("import dynamo", 1_250), ("tables", 2_300), ("layers", 140)):
        recorder.runs(MAIN_THREAD, spot(name).python, recorder.about(dur * MS // 5))
        recorder.runs(MAIN_THREAD, spot(name).native, recorder.about(dur * MS * 4 // 5))
    recorder.runs(MAIN_THREAD, spot("cuda").native, recorder.about(2_700 * MS))
    for size in BLOCKS:
        recorder.asks("model.to", MAIN_THREAD, "alloc", size)
    recorder.step([("model.to", [f"H2D:{size}" for size in PARAMETERS])], MAIN_THREAD)


def _loads(recorder: _Recorder) -> None:
    """The main thread draws a batch; OpenMP workers help and then spin for a while."""
    spot = recorder.sites.spot("batch")
    recorder.runs(MAIN_THREAD, spot.python, recorder.about(17 * MS, 0.3))
    start = recorder.clock[MAIN_THREAD]
    recorder.runs(MAIN_THREAD, spot.native, recorder.about(31 * MS, 0.3))
    for worker in range(FIRST_WORKER, FIRST_WORKER + WORKER_COUNT):
        recorder.clock[worker] = start + recorder.about(40_000)
        recorder.runs(worker, recorder.sites.native(WORKERS, WORKER), recorder.about(9 * MS, 0.3))
        recorder.runs(worker, recorder.sites.native(WORKERS, SPINNING), recorder.about(13 * MS, 0.3))


def _backward(recorder: _Recorder, *, first: bool) -> None:
    """The engine's thread runs it; the main thread wakes it, sleeps, and is woken."""
    recorder.runs(MAIN_THREAD, recorder.sites.spot("engine").native, recorder.about(300_000))
    recorder.clock[ENGINE_THREAD] = recorder.clock[MAIN_THREAD] + recorder.about(55_000)
    if first:
        recorder.runs(ENGINE_THREAD, recorder.sites.spot("grad.addmm").native, recorder.about(260 * MS))
        for size in BLOCKS[:2]:
            recorder.asks("grad.addmm", ENGINE_THREAD, "alloc", size)
    recorder.step(BACKWARD, ENGINE_THREAD)
    recorder.clock[MAIN_THREAD] = recorder.clock[ENGINE_THREAD] + recorder.about(60_000)
