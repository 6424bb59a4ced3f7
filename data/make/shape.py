"""Which shapes can a simulated capture have, and what does a worker of such a capture do?

Conventions
-----------
A worker is a process on a GPU. There are as many as the larger of the two numbers, dealt to both in turn; those of
one process share its ids. A step copies a batch to the GPU, launches kernels of the lab's training step, over and over
if there are more than its 28, and copies the loss back, which waits for all.

Functions
---------
workers    who takes part
table      what the kernel numbers of a capture mean
plans      what a worker does, and how often
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from make import mlp_steps
from make.activity import KERNELS
from make.table5 import Kernel
from make.timeline import Op, Plan
from perfkit.simulate.export import Worker

STEPS_AT_ONCE = 8_192

_TRAINING = tuple(op for op in mlp_steps.training() if op.kind == "kernel")


@dataclass(frozen=True)
class Shape:
    """What a capture has; the default is one process that launches on one stream of one GPU.

    Parameters
    ----------
    gpus, processes
        Numbers of GPUs and of processes; workers are dealt to both in turn.
    streams
        Streams that a worker's kernels take in turn.
    kernels_per_step
        Kernels in a step; the last step of a worker may have fewer.
    graph
        Whether a step's kernels are one CUDA graph, which share one correlation id.
    nccl
        Whether each step has two NCCL kernels, on a stream of their own beside the computation.
    calls, nvtx, metrics, target_info
        Whether CUDA calls, NVTX ranges, GPU metrics and the TARGET_INFO tables are recorded.
    open_ranges
        Whether each process has a range that it never closed.
    hostile_names
        Names given to as many kernels and to ranges around the first step.
    """

    gpus: int = 1
    processes: int = 1
    streams: int = 1
    kernels_per_step: int = 28
    graph: bool = False
    nccl: bool = False
    calls: bool = True
    nvtx: bool = True
    metrics: bool = True
    target_info: bool = True
    open_ranges: bool = False
    hostile_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("gpus", "processes", "streams", "kernels_per_step"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not 1 or more")


PLAIN = Shape()


def workers(shape: Shape) -> list[Worker]:
    """Return the workers of a capture."""
    return [
        Worker(40_000 + 1_000 * (i % shape.processes), i % shape.gpus, i // shape.processes)
        for i in range(max(shape.gpus, shape.processes))
    ]


def table(shape: Shape) -> list[Kernel]:
    """Return all kernels, the first ones of a step under the hostile names."""
    keys = dict.fromkeys(op.what for op in _TRAINING)
    hostile = dict(zip(keys, shape.hostile_names, strict=False))
    return [
        replace(kernel, name=hostile[key], full_name=hostile[key]) if key in hostile else kernel
        for key, kernel in KERNELS.items()
    ]


def plans(kernels: int, shape: Shape) -> Iterator[tuple[Plan, int]]:
    """Yield what a worker that launches so many kernels does, and in how many steps of the same kind."""
    steps, rest = divmod(kernels, shape.kernels_per_step)
    whole = _plan(shape.kernels_per_step, shape)
    for first in range(0, steps, STEPS_AT_ONCE):
        yield whole, min(STEPS_AT_ONCE, steps - first)
    if rest:
        yield _plan(rest, shape), 1


def _plan(kernels: int, shape: Shape) -> Plan:
    """A step of so many kernels: those of the training step, over and over."""
    ops = [_TRAINING[i % len(_TRAINING)]._replace(stream=i % shape.streams) for i in range(kernels)]
    for i in {6 * kernels // 10, 8 * kernels // 10} if shape.nccl else ():
        ops[i] = Op("kernel", "all_reduce", "", stream=shape.streams)
    if shape.graph:
        nodes = [op._replace(kind="node", phase="replay") for op in ops]
        work = [Op("graph", "step", "replay"), *nodes]
    else:
        phases = [_phase(i / kernels) for i in range(kernels)]
        work = [op._replace(phase=p, thread=int(p == "backward")) for op, p in zip(ops, phases, strict=True)]
    return (*mlp_steps.batch(128), *work, *mlp_steps.copies("loss.item", "D2H", 4))


def _phase(place: float) -> str:
    """The phase of a step that a kernel is in, by its place among the kernels, 0..1."""
    return "forward" if place < 0.36 else "backward" if place < 0.9 else "optimizer"
