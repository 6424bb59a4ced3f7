"""How do the steps of ResNet-18 lie in time, so that the report's figures hold?

The script is the naive one: pageable memory, `loss.item()` in every step, one stream, everything launched one by one.
A kernel's slot says which of its launches in the step it is; each launch has its own grid.

Times are int64 ns since the start of the capture. Kernels take as long as `resnet_work` says, give or take a few per
cent. In training the host waits for its data loader before each step, for as long as makes the SMs active 14.41 % of
the time from the first copy to the last one; a pass of inference takes as long as the report measured, on average.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from make import resnet_work, timeline
from make.activity import Block, Ranges, named_ranges, rows
from make.kernels import Kernel
from make.mlp_run import copies
from make.resnet_work import IMAGE, LAUNCHED, NAMES, SMS, Launch, duration_ns
from make.simulate.export import Worker
from make.timeline import Float, Int, Laid, Op, Plan, Times, lay_out

IMAGE_BYTES, LABEL_BYTES = 3 * IMAGE**2 * 4, 8

Phases = Iterable[tuple[str, Iterable[Launch]]]


class Program(NamedTuple):
    """`launches` has one entry per operation of the plan: None for what is no kernel."""

    plan: Plan
    kernels: dict[str, Kernel]
    launches: list[Launch | None]


def training_program(batch: int) -> Program:
    """Return the program of a training step."""
    phases = (
        ("forward", (*resnet_work.forward(batch, training=True), *resnet_work.loss(batch))),
        ("backward", resnet_work.backward(batch)),
        ("optimizer", resnet_work.optimizer()),
    )
    given = copies("to device", "H2D", batch * IMAGE_BYTES, batch * LABEL_BYTES)
    return _program(given, phases, copies("loss.item", "D2H", 4))


def inference_program(batch: int) -> Program:
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
    return Program(
        (*before, *ops, *after), kernels, [*[None] * len(before), *launches, *[None] * len(after)]
    )


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


BATCH, STEPS, FIRST_STEP = 128, 20, 100
PASSES = 40
SM_ACTIVE_FRAC = 0.1441  # section 3.3.1 of the report
PASS_NS = 5_322_595  # section 3.2.1: 0.005322594642639161 s
TAIL_FRAC = 0.985  # of a kernel's time all its SMs are active; in the rest the last blocks run
TRAINING_BEGIN_NS, INFERENCE_BEGIN_NS = 412_000_000, 31_000_000
WAITING = timeline.Pace(gap_ns=(24_000, 58_000), call_ns=(4_600, 13_000), delay_ns=(1_400, 4_000))


@dataclass(frozen=True)
class Steps:
    """Steps of a program: `start` is where a step starts, `begin` where its first call may, ns."""

    program: Program
    laid: Laid
    worker: Worker
    start: Int
    begin: Int
    end: Int
    name: str
    numbers: range

    def block(self) -> Block:
        """Return the rows a profiler sees of them."""
        keys = self.program.kernels
        return rows(self.program.plan, self.laid, self.worker, self.begin, 1, kernels=keys)

    def ranges(self) -> Ranges:
        """Return named ranges as a careful author sets them: all, each step, its phases and the wait for data."""
        spans = [(int(self.start[0]), int(self.end[-1]), self.name)]
        for i, number in enumerate(self.numbers):
            spans.append(
                (
                    int(self.start[i]),
                    int(self.end[i]),
                    f"{'step' if self.waits else 'pass'} {number}",
                )
            )
            if self.waits:
                spans.append((int(self.start[i]), int(self.begin[i]), "data loading"))
            for phase, (first, last) in self.laid.phases.items():
                spans.append((int(self.begin[i] + first[i]), int(self.begin[i] + last[i]), phase))
        return named_ranges(self.worker, spans)

    @property
    def waits(self) -> bool:
        """Whether steps wait for data."""
        return bool((self.begin > self.start).any())

    @property
    def window(self) -> tuple[int, int]:
        """From the first to the last moment in which the GPU has work."""
        on_gpu = [i for i, op in enumerate(self.program.plan) if op.on_gpu]
        first = self.begin[0] + self.laid.start[on_gpu, 0].min()
        return int(first), int(self.begin[-1] + self.laid.end[:, -1].max())


def active_ns(launch: Launch, duration: Float) -> Float:
    """Return the time, ns, that would make the same activity if all SMs had work."""
    return np.asarray(TAIL_FRAC * min(1.0, launch.blocks / SMS) * duration, np.float64)


def training_steps(rng: np.random.Generator) -> Steps:
    """Return 20 steps from the middle of the epoch."""
    program = training_program(BATCH)
    times = _times(program, STEPS, timeline.EAGER, rng)
    laid = lay_out(program.plan, times)
    active = sum(active_ns(launch, times.work[i]).sum() for i, launch in _kernels(program))
    first = next(i for i, op in enumerate(program.plan) if op.on_gpu)
    head, tail = int(laid.start[first, 0]), int(laid.length[-1] - laid.end[:, -1].max())
    span = round(active / SM_ACTIVE_FRAC) - int(laid.length.sum()) + head + tail
    waits = _shares(span, STEPS - 1, rng)
    begin = TRAINING_BEGIN_NS + np.r_[0, np.cumsum(laid.length[:-1] + waits)]
    end = begin + laid.length
    start = np.r_[TRAINING_BEGIN_NS - int(waits.mean()), end[:-1]]
    worker, numbers = Worker(process=3_802_774), range(FIRST_STEP, FIRST_STEP + STEPS)
    return Steps(program, laid, worker, start, begin, end, "train", numbers)


def inference_passes(rng: np.random.Generator) -> Steps:
    """Return 40 passes; together they take 40 times what the report says of one."""
    program = inference_program(1)
    laid = lay_out(program.plan, _times(program, PASSES, WAITING, rng))
    rest = _shares(PASSES * PASS_NS - int(laid.length.sum()), PASSES, rng)
    end = INFERENCE_BEGIN_NS + np.cumsum(laid.length + rest)
    start = np.r_[INFERENCE_BEGIN_NS, end[:-1]]
    return Steps(
        program, laid, Worker(process=3_806_019), start, start, end, "inference", range(PASSES)
    )


def _kernels(program: Program) -> list[tuple[int, Launch]]:
    return [(i, launch) for i, launch in enumerate(program.launches) if launch]


def _times(program: Program, steps: int, host: timeline.Pace, rng: np.random.Generator) -> Times:
    """Times of all operations; a kernel's vary by a hundredth, and now and then one is slower by some more."""
    times = timeline.draw_times(program.plan, steps, host, rng)
    for i, launch in _kernels(program):
        vary = 1 + 0.01 * rng.standard_normal(steps).clip(-2, 2) + 0.03 * rng.random(steps) ** 8
        times.work[i] = np.rint(duration_ns(launch) * vary).astype(np.int64)
    return times


def _shares(total: int, count: int, rng: np.random.Generator) -> Int:
    """Split `total` into `count` parts that vary by a third."""
    return timeline.shares(total, 0.7 + 0.6 * rng.random(count))
