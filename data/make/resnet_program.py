"""What does the host do in a training step and in a forward pass of ResNet-18, call by call?

Conventions
-----------
The script is the naive one: pageable memory, `loss.item()` in every step, one stream, everything launched one by one.
A kernel's slot says which of its launches in the step it is; each launch has its own grid.

Classes
-------
Program     a plan, the kernels it launches, and what each of its operations does on the GPU

Functions
---------
training    one step of SGD with momentum
inference   one forward pass on a batch that is on the GPU
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from make import resnet_work
from make.mlp_steps import copies
from make.resnet_kernels import LAUNCHED, NAMES
from make.resnet_layers import IMAGE
from make.resnet_work import Launch
from make.table5 import Kernel
from make.timeline import Op, Plan

IMAGE_BYTES, LABEL_BYTES = 3 * IMAGE**2 * 4, 8

Phases = Iterable[tuple[str, Iterable[Launch]]]


class Program(NamedTuple):
    """`launches` has one entry per operation of the plan: None for what is no kernel."""

    plan: Plan
    kernels: dict[str, Kernel]
    launches: list[Launch | None]


def training(batch: int) -> Program:
    """Return the program of a training step."""
    phases = (
        ("forward", (*resnet_work.forward(batch, training=True), *resnet_work.loss(batch))),
        ("backward", resnet_work.backward(batch)),
        ("optimizer", resnet_work.optimizer()),
    )
    given = copies("to device", "H2D", batch * IMAGE_BYTES, batch * LABEL_BYTES)
    return _program(given, phases, copies("loss.item", "D2H", 4))


def inference(batch: int) -> Program:
    """Return the program of a forward pass, which the host waits for."""
    phases = [("forward", resnet_work.forward(batch, training=False))]
    return _program((), phases, (Op("sync", "cudaDeviceSynchronize_v3020", "forward"),))


def _program(before: Plan, phases: Phases, after: Plan) -> Program:
    grids: dict[str, list[tuple[int, int]]] = {}
    ops, launches = [], []
    for phase, work in phases:
        for launch in work:
            slots = grids.setdefault(launch.key, [])
            ops.append(Op("kernel", launch.key, phase, len(slots), int(phase == "backward")))
            launches.append(launch)
            slots.append((launch.blocks, 1))
    kernels = {key: _kernel(key, tuple(slots)) for key, slots in grids.items()}
    return Program((*before, *ops, *after), kernels, [*[None] * len(before), *launches, *[None] * len(after)])


def _kernel(key: str, grids: tuple[tuple[int, int], ...]) -> Kernel:
    block, registers, shared, dynamic = LAUNCHED[key]
    return Kernel(
        name=_short(NAMES[key]),
        full_name=NAMES[key],
        grids=grids,
        block=block,
        registers=registers,
        shared_bytes=shared,
        dynamic_shared_bytes=dynamic,
    )


def _short(full_name: str) -> str:
    """The name without return type, namespaces, template arguments and parameters, as the tool prints it."""
    plain = full_name.replace("<unnamed>::", "").partition("<")[0].partition("(")[0]
    return plain.split("::")[-1].split()[-1]
