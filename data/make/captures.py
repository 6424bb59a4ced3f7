"""What does a capture of any size hold, from 10 to 10,000,000 kernels?

A worker is a process on a GPU. There are as many as the larger of the two numbers, dealt to both in turn; those of
one process share its ids. A step copies a batch to the GPU, launches kernels of the lab's training step, over and over
if there are more than its 28, and copies the loss back, which waits for all.

The lab's MLP again, from a quicker host: kernels have the durations of their rows of Table 5, and workers run side
by side. Times are int64 ns. Everything is drawn at random from the seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make import activity, mlp_run, timeline
from make.activity import Block, Ranges, calls_in, rows
from make.kernels import KERNELS, TABLE_5, Kernel
from make.simulate import export
from make.simulate.export import Worker
from make.tally import Tally
from make.timeline import Int, Laid, Op, Plan, draw_durations, lay_out

STEPS_AT_ONCE = 8_192

_TRAINING = tuple(op for op in mlp_run.training_plan() if op.kind == "kernel")


@dataclass(frozen=True)
class Shape:
    """What a capture has; the default is one process that launches on one stream of one GPU.

    Workers are dealt to `gpus` and `processes` in turn, a worker's kernels to `streams`; its last step may have fewer
    than `kernels_per_step`. With `graph` a step's kernels are one CUDA graph, which share one correlation id; with
    `nccl` each step has two NCCL kernels, on a stream of their own beside the computation. `calls`, `nvtx`, `metrics`
    and `target_info` say whether these were recorded, `open_ranges` whether each process has a range that it never
    closed. `hostile_names` are given to as many kernels and to ranges around the first step.
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
        work = [
            op._replace(phase=p, thread=int(p == "backward"))
            for op, p in zip(ops, phases, strict=True)
        ]
    return (*mlp_run.batch_plan(128), *work, *mlp_run.copies("loss.item", "D2H", 4))


def _phase(place: float) -> str:
    """The phase of a step that a kernel is in, by its place among the kernels, 0..1."""
    return "forward" if place < 0.36 else "backward" if place < 0.9 else "optimizer"


FIRST_NS = 1_000_000_000
T0_UNIX_NS = 1_750_075_200_000_000_000
LOADING_NS = (40_000, 400_000)
SAMPLES = 200

# sampled percentage when kernels run all the time
_AT_FULL_LOAD = {
    "GR Active [Throughput %]": 100,
    "SMs Active [Throughput %]": 60,
    "DRAM Read Bandwidth [Throughput %]": 20,
    "DRAM Write Bandwidth [Throughput %]": 10,
}


def capture(path: Path, *, kernels: int, seed: int = 0, shape: Shape = PLAIN) -> dict[str, Any]:
    """Write a capture of `kernels` kernels over all workers, NCCL's among them, to `path`; return what is true of it.

    That is ``kernels``, ``kernel_rows``, ``gpus``, ``copies``, ``calls``, ``launches`` as `Tally.truth` counts them,
    ``steps`` and ``samples`` (metric to mean per GPU). The same arguments give the same bytes. ValueError if there are
    fewer kernels than workers.
    """
    crew, names = workers(shape), table(shape)
    if kernels < len(crew):
        raise ValueError(f"kernels: {kernels} is not {len(crew)}, the number of workers, or more")
    rng = np.random.default_rng(seed)
    tally = Tally(names)
    lengths: list[Int] = []
    last = 0
    with export.writing(path) as db:
        for piece in _pieces(crew, kernels, shape, rng):
            activity.write_block(db, piece.block, names, calls=shape.calls)
            if shape.nvtx:
                activity.write_ranges(db, _ranges(piece, shape))
            tally.add(piece.block)
            lengths.append(piece.end - piece.start)
            last = max(last, int(piece.end[-1]))
        means = _write_target(db, crew, shape, tally, last)
    return _truth(tally, np.concatenate(lengths), shape, means)


class _Piece(NamedTuple):
    """Steps of one worker: where each starts loading data, and where it ends."""

    block: Block
    laid: Laid
    first: int
    start: Int
    begin: Int

    @property
    def end(self) -> Int:
        return self.begin + self.laid.length


def _pieces(
    crew: Sequence[Worker], kernels: int, shape: Shape, rng: np.random.Generator
) -> Iterator[_Piece]:
    """Steps of all workers, some thousand at a time."""
    pools = {
        key: np.array_split(draw_durations(kernel, rng), len(kernel.grids))
        for key, kernel in TABLE_5.items()
    }
    pools["all_reduce"] = [np.arange(40_000, 90_000)]
    correlation = dict.fromkeys((worker.process for worker in crew), 1)
    for i, worker in enumerate(crew):
        clock, done = FIRST_NS + 70_000 * i, 0
        for plan, steps in plans(kernels // len(crew) + (i < kernels % len(crew)), shape):
            times = timeline.draw_times(plan, steps, timeline.QUICK, rng)
            for op, row in zip(plan, times.work, strict=True):
                if op.kind in ("kernel", "node"):
                    row[:] = rng.choice(pools[op.what][op.slot], steps)
            laid = lay_out(plan, times)
            loading = rng.integers(*LOADING_NS, steps)
            end = clock + np.cumsum(loading + laid.length)
            begin = end - laid.length
            block = rows(plan, laid, worker, begin, correlation[worker.process])
            yield _Piece(block, laid, done, begin - loading, begin)
            correlation[worker.process] += steps * calls_in(plan)
            clock, done = int(end[-1]), done + steps


def _ranges(piece: _Piece, shape: Shape) -> Ranges:
    """Steps and their phases; around a worker's first step also the ranges that the shape adds."""
    count = len(piece.start)
    names = [f"step {piece.first + i}" for i in range(count)] + ["data loading"] * count
    start, end = [piece.start, piece.start], [piece.end, piece.begin]
    for phase, (first, last) in piece.laid.phases.items():
        names += [phase] * count
        start.append(piece.begin + first)
        end.append(piece.begin + last)
    if not piece.first:
        further = [*shape.hostile_names, *(["never closed"] if shape.open_ranges else [])]
        names += further
        start.append(np.full(len(further), piece.start[0] - 1))
        end.append(
            np.array([piece.end[0]] * len(shape.hostile_names) + [-1] * shape.open_ranges, np.int64)
        )
    return Ranges(piece.block.worker, names, np.concatenate(start), np.concatenate(end))


def _write_target(
    db: export.Database, crew: Sequence[Worker], shape: Shape, tally: Tally, last: int
) -> dict[str, dict[str, float]]:
    """Write session, GPUs and samples; return the mean of each sampled metric per GPU."""
    label = "make.capture: no GPU ran"
    export.write_session(
        db, label=label, arguments="train.py", dur_ns=last + 1_000_000, workers=crew
    )
    if shape.target_info:
        export.write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=shape.gpus, workers=crew)
    means = {}
    for gpu in range(shape.gpus if shape.metrics else 0):
        times = np.linspace(0, last, SAMPLES).astype(np.int64)
        busy = np.diff(tally.kernels_until(gpu, times), prepend=0) / max(last // (SAMPLES - 1), 1)
        values = {
            name: np.rint(most * busy).astype(np.int64) for name, most in _AT_FULL_LOAD.items()
        }
        export.write_samples(db, gpu=gpu, times=times, values=values)
        means[str(gpu)] = {name: float(value.mean()) for name, value in values.items()}
    return means


def _truth(
    tally: Tally, lengths: Int, shape: Shape, means: dict[str, dict[str, float]]
) -> dict[str, Any]:
    truth = tally.truth()
    if not shape.calls:
        truth |= {"calls": {}, "launches": {}}
    steps = {
        "count": len(lengths),
        "total_ns": int(lengths.sum()),
        "median_ns": float(np.median(lengths)),
    }
    return truth | {"steps": steps, "samples": means}
