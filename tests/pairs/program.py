"""A training loop of three layers a step, written as Nsight Systems exports it: before and after a change.

The times are drawn here, without perfkit: a run has a speed of its own (`noise`), and each step and each kernel
differs a little from the next. `Change` says what the second run does otherwise.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from readers import nsys_files

US = 1_000
LAYERS = 3
LAYER = (
    ("sgemm_128x128", 900),
    ("layer_norm_kernel", 120),
    ("gelu_kernel", 80),
)  # names, microseconds
LOSS, OPTIMISER = ("cross_entropy_kernel", 150), ("adam_kernel", 450)
COPY_US, PAUSE_US, CALL_US = (
    300,
    250,
    6,
)  # of a batch to the GPU, of the CPU between steps, of a launch
STEP_US = LAYERS * sum(us for _, us in LAYER) + LOSS[1] + OPTIMISER[1] + COPY_US + PAUSE_US
KERNEL_JITTER, STEP_JITTER = 0.02, 0.005
NVTX, SEQUENCE, IRREGULAR = "nvtx", "sequence", "irregular"
FORMS = (NVTX, SEQUENCE, IRREGULAR)


@dataclass(frozen=True)
class Change:
    """What a run does otherwise; shares are of a step.

    `kernels`: each kernel lasts longer by this share. `pause`: the CPU waits in each step. `copies`: the copy of a step
    lasts longer. `once`: the CPU waits once, for this share of the whole run. `warm_up`: slow first steps.
    `start_up_us`: the CPU waits after the first kernel. `offset`: kernels that the recording misses at its start.
    `steps`: of the run. `lost`: share of the kernels that the recording lacks. `gpu`: its name. `reader`: of another
    profiler. `ranges`: the recording has a range around each launch.
    """

    kernels: float = 0.0
    pause: float = 0.0
    copies: float = 0.0
    once: float = 0.0
    warm_up: int = 0
    start_up_us: int = 0
    offset: int = 0
    steps: int = 30
    lost: float = 0.0
    gpu: str = "NVIDIA A100-SXM4-80GB"
    reader: str = ""
    ranges: bool = False


@dataclass
class _Clock:
    """The rows that were written so far, and the times that the CPU and the GPU have reached, ns."""

    rows: dict[str, list[dict[str, Any]]]
    cpu: int = 1_000 * US
    gpu: int = 0
    number: int = 0


def write(
    path: Path, change: Change, *, form: str, noise: float, seed: int, program: int = 0
) -> Path:
    """Write a run as SQLite; runs of one `program` launch the same kernels, runs of one `seed` take the same times."""
    times = random.Random(f"times {seed}")
    choices = random.Random(f"program {program}")
    speed = times.gauss(1, noise)
    clock = _Clock(
        {
            table: []
            for table in (nsys_files.KERNEL, nsys_files.MEMCPY, nsys_files.RUNTIME, nsys_files.NVTX)
        }
    )
    for step in range(change.steps):
        slow = 3.0 if step < change.warm_up else 1.0
        pace = speed * slow * times.gauss(1, STEP_JITTER)
        _step(clock, step, _kernels(choices, form), change, pace, times, form)
    return nsys_files.sqlite(path, _tables(clock, change, times))


def _kernels(choices: random.Random, form: str) -> list[tuple[str, int]]:
    """Return the kernels of a step; an irregular one runs layers and kernels as its data want it."""
    if form != IRREGULAR:
        return [*LAYER * LAYERS, LOSS, OPTIMISER]
    launched = [kernel for kernel in LAYER * 4 if choices.random() < 0.75]
    choices.shuffle(launched)
    return [
        *launched,
        *choices.choices([LOSS, OPTIMISER, ("dropout_kernel", 200)], k=choices.randint(1, 4)),
    ]


def _step(
    clock: _Clock,
    step: int,
    kernels: list[tuple[str, int]],
    change: Change,
    pace: float,
    times: random.Random,
    form: str,
) -> None:
    begun = clock.cpu
    copy_us = COPY_US + change.copies * STEP_US
    _operation(
        clock, nsys_files.MEMCPY, "cudaMemcpyAsync_v3020", round(copy_us * pace * US), bytes=1 << 20
    )
    for name, us in kernels:
        dur = round(us * (1 + change.kernels) * pace * times.gauss(1, KERNEL_JITTER) * US)
        _operation(
            clock,
            nsys_files.KERNEL,
            "cudaLaunchKernel_v7000",
            dur,
            demangledName=f"void {name}(float*)",
        )
        if change.ranges:
            called = clock.rows[nsys_files.RUNTIME][-1]
            around = nsys_files.event(called["start"], called["end"], name)
            clock.rows[nsys_files.NVTX].append(around)
        if step == 0 and name == kernels[0][0]:
            clock.cpu += change.start_up_us * US
            change = Change(**{**vars(change), "start_up_us": 0})
    waited = max(clock.gpu, clock.cpu) + CALL_US * US
    clock.rows[nsys_files.RUNTIME].append(
        nsys_files.call(
            clock.cpu, waited, "cudaStreamSynchronize_v3020", correlationId=_next(clock)
        )
    )
    pause_us = PAUSE_US + change.pause * STEP_US
    clock.cpu = waited + round(pause_us * pace * US)
    if step == change.steps // 2:
        clock.cpu += round(change.once * change.steps * STEP_US * US)
    if form == NVTX:
        clock.rows[nsys_files.NVTX].append(nsys_files.event(begun, clock.cpu, f"step {step}"))


def _operation(clock: _Clock, table: str, call: str, dur: int, **columns: Any) -> None:
    """Let the CPU launch an operation, and the GPU run it after the one before."""
    number = _next(clock)
    launched = nsys_files.call(clock.cpu, clock.cpu + CALL_US * US, call, correlationId=number)
    clock.rows[nsys_files.RUNTIME].append(launched)
    clock.cpu += CALL_US * US
    start = max(clock.gpu, clock.cpu + 2 * US)
    clock.gpu = start + dur
    make = nsys_files.kernel if table == nsys_files.KERNEL else nsys_files.copy
    if table == nsys_files.KERNEL:
        columns["shortName"] = (
            columns["demangledName"].removeprefix("void ").removesuffix("(float*)")
        )
    clock.rows[table].append(make(start, clock.gpu, correlationId=number, **columns))


def _next(clock: _Clock) -> int:
    clock.number += 1
    return clock.number


def _tables(clock: _Clock, change: Change, times: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of an export, without what the recording misses or lost."""
    kernels = clock.rows[nsys_files.KERNEL][change.offset :]
    begun = kernels[0]["start"] if change.offset else 0
    rows = {table: [row for row in of if row["start"] >= begun] for table, of in clock.rows.items()}
    rows[nsys_files.KERNEL] = [row for row in kernels if times.random() >= change.lost]
    session = nsys_files.session("2024.6.2.225", duration=clock.cpu + 1_000 * US)
    filled = {table: of for table, of in rows.items() if of}
    return {**session, "TARGET_INFO_GPU": [nsys_files.gpu(name=change.gpu)], **filled}
