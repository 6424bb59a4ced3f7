"""What does a training program do with the GPU, step after step?

Conventions
-----------
It runs on `perfkit.simulate.machine`, event by event. The host launches a step's kernels one after another and runs
ahead of the GPU until so many launches wait that the driver lets it wait too. Reading the loss waits for the stream,
and so does a copy from pageable memory. Lengths are random, from the seed; a kernel's do not depend on the others.
Times are int64 ns.

Functions
---------
executed    the rows of a program
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import numpy as np

from perfkit.simulate.experiments.kernels import Kernel
from perfkit.simulate.experiments.setup import Setup
from perfkit.simulate.experiments.transformer import step
from perfkit.simulate.machine import Machine, Thread, Work

STREAM = 7
CPU_NS = 5_000  # mean work of the host for one launch, in PyTorch and Python
CALL_NS, RETURN_NS = (2_500, 800), (3_000, 2_000)  # least and mean excess
AHEAD = 1_000  # launches that the driver's queue holds
LOSS_BYTES, TOKEN_BYTES = 4, 8
LATENCY_NS, BYTES_PER_NS = 1_500, 20.0  # of copies over PCIe
HANDED_NS = (60_000, 20_000)  # of a batch, from a worker to the program
SPREAD = 0.01  # of a kernel's time, relative standard deviation
Rows = dict[str, list[dict[str, Any]]]


def executed(setup: Setup) -> Rows:
    """Return kernels, copies, calls and ranges of a program as rows: start_ns, dur_ns, and what there is to say.

    Examples
    --------
    >>> rows = executed(Setup(steps=2, layers=1))
    >>> len(rows["kernels"]), rows["calls"][-1]["name"]
    (136, 'cudaDeviceSynchronize')
    """
    machine = Machine(1, setup.seed)
    program = _Program(machine, setup)
    for thread in (program.main(), *map(program.worker, range(setup.workers))):
        machine.at(0, partial(machine.resume, thread))
    machine.run()
    return machine.rows


class _Program:
    """The threads, and what they have put on the GPU."""

    def __init__(self, machine: Machine, setup: Setup) -> None:
        self.machine, self.setup = machine, setup
        self.kernels = step(setup)
        rng = np.random.default_rng(setup.seed)
        shape = setup.steps, len(self.kernels)
        self.lengths = 1 + SPREAD * rng.standard_normal(shape).clip(-3, 3)
        self.cpu_ns = (CPU_NS / 4 * rng.standard_gamma(4, shape)).astype(int)
        self.batches = [Work() for _ in range(setup.steps)]
        self.numbers = count(1)
        self.submitted: list[Work] = []

    def worker(self, number: int) -> Thread:
        """Load every so many-th batch, one after another."""
        for batch in self.batches[number :: self.setup.workers]:
            yield self.setup.loading_ns * self.setup.batch
            self.machine.finish(batch)

    def main(self) -> Thread:
        """Run all steps, and wait for the GPU at the end."""
        setup = self.setup
        for number in range(setup.steps):
            if setup.loading_ns:
                yield from self.load(number)
                yield from self.copy_in()
            for at, kernel in enumerate(self.kernels):
                yield from self.launch(kernel, number, at)
            if setup.read_loss and (number + 1) % setup.read_loss == 0:
                yield from self.read_loss()
            yield setup.host_ns
        yield from self.call("cudaDeviceSynchronize", wait=self.submitted[-1:])

    def load(self, number: int) -> Thread:
        """Load a batch, or wait for the worker that does."""
        start = self.machine.now
        if self.setup.workers:
            yield [self.batches[number]]
            yield self.machine.some(HANDED_NS)
        else:
            yield self.setup.loading_ns * self.setup.batch
        span = {"name": "data loading", "start_ns": start, "dur_ns": self.machine.now - start}
        self.machine.rows["ranges"].append(span)

    def copy_in(self) -> Thread:
        size = TOKEN_BYTES * self.setup.batch * self.setup.sequence
        yield from self.copy("H2D", size, pinned=self.setup.pinned)
        if not self.setup.pinned:
            yield from self.call("cudaStreamSynchronize", wait=self.submitted[-1:])

    def read_loss(self) -> Thread:
        yield from self.copy("D2H", LOSS_BYTES, pinned=False)
        yield from self.call("cudaStreamSynchronize", wait=self.submitted[-1:])

    def copy(self, direction: str, size: int, *, pinned: bool) -> Thread:
        row = {"direction": direction, "bytes": size, "pinned": pinned}
        yield from self.call("cudaMemcpyAsync", Work(LATENCY_NS + round(size / BYTES_PER_NS), row))

    def launch(self, kernel: Kernel, number: int, at: int) -> Thread:
        """Launch a kernel, when the queue has room for it."""
        if len(self.submitted) > AHEAD:
            yield [self.submitted[-AHEAD]]
        yield int(self.cpu_ns[number, at])
        work = Work(round(kernel.dur_ns * self.lengths[number, at]), {"kernel": kernel})
        yield from self.call("cudaLaunchKernel", work)

    def call(self, name: str, work: Work | None = None, wait: list[Work] | None = None) -> Thread:
        """Make a call that puts work into the stream, or returns when what it waits for is done."""
        start, number = self.machine.now, next(self.numbers)
        if work is not None:
            work.row["correlation"] = number
            self.machine.submit(0, STREAM, work)
            self.submitted.append(work)
        yield self.machine.some(CALL_NS)
        if wait is not None:
            yield wait
            yield self.machine.some(RETURN_NS)
        row = {"name": name, "correlation": number, "start_ns": start, "dur_ns": self.machine.now - start}
        self.machine.rows["calls"].append(row)
