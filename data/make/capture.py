"""How does a capture of any size look, from 10 to 10,000,000 kernels?

Conventions
-----------
The lab's MLP again, from a quicker host: kernels have the durations of their rows of Table 5, and workers run side
by side. Times are int64 ns. Everything is drawn at random from the seed.

Functions
---------
capture    write a capture and return what is true of it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make import nsys, pace
from make.activity import Block, Ranges, calls_in, rows
from make.durations import draw
from make.shape import PLAIN, Shape, plans, table, workers
from make.table5 import TABLE_5
from make.tally import Tally
from make.timeline import Int, Laid, lay_out
from perfkit.simulate import export
from perfkit.simulate.export import Worker

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
    """Write a capture of `kernels` kernels to `path` and return what is true of it.

    Parameters
    ----------
    path
        The SQLite file; replaced, once the new one is complete.
    kernels
        Kernels over all workers, at least one per worker; NCCL's are among them.
    seed
        The same seed, shape and number give the same bytes.
    shape
        What the capture has.

    Returns
    -------
    dict
        ``kernels``, ``kernel_rows``, ``gpus``, ``copies``, ``calls``, ``launches`` as `Tally.truth` counts them,
        ``steps`` and ``samples`` (metric to mean per GPU).

    Raises
    ------
    ValueError
        If there are fewer kernels than workers.
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
            nsys.write_block(db, piece.block, names, calls=shape.calls)
            if shape.nvtx:
                nsys.write_ranges(db, _ranges(piece, shape))
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


def _pieces(crew: Sequence[Worker], kernels: int, shape: Shape, rng: np.random.Generator) -> Iterator[_Piece]:
    """Steps of all workers, some thousand at a time."""
    pools = {key: np.array_split(draw(kernel, rng), len(kernel.grids)) for key, kernel in TABLE_5.items()}
    pools["all_reduce"] = [np.arange(40_000, 90_000)]
    correlation = dict.fromkeys((worker.process for worker in crew), 1)
    for i, worker in enumerate(crew):
        clock, done = FIRST_NS + 70_000 * i, 0
        for plan, steps in plans(kernels // len(crew) + (i < kernels % len(crew)), shape):
            times = pace.times(plan, steps, pace.QUICK, rng)
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
        end.append(np.array([piece.end[0]] * len(shape.hostile_names) + [-1] * shape.open_ranges, np.int64))
    return Ranges(piece.block.worker, names, np.concatenate(start), np.concatenate(end))


def _write_target(
    db: export.Database, crew: Sequence[Worker], shape: Shape, tally: Tally, last: int
) -> dict[str, dict[str, float]]:
    """Write session, GPUs and samples; return the mean of each sampled metric per GPU."""
    label = "make.capture: no GPU ran"
    export.write_session(db, label=label, arguments="train.py", dur_ns=last + 1_000_000, workers=crew)
    if shape.target_info:
        export.write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=shape.gpus, workers=crew)
    means = {}
    for gpu in range(shape.gpus if shape.metrics else 0):
        times = np.linspace(0, last, SAMPLES).astype(np.int64)
        busy = np.diff(tally.kernels_until(gpu, times), prepend=0) / max(last // (SAMPLES - 1), 1)
        values = {name: np.rint(most * busy).astype(np.int64) for name, most in _AT_FULL_LOAD.items()}
        export.write_samples(db, gpu=gpu, times=times, values=values)
        means[str(gpu)] = {name: float(value.mean()) for name, value in values.items()}
    return means


def _truth(tally: Tally, lengths: Int, shape: Shape, means: dict[str, dict[str, float]]) -> dict[str, Any]:
    truth = tally.truth()
    if not shape.calls:
        truth |= {"calls": {}, "launches": {}}
    steps = {"count": len(lengths), "total_ns": int(lengths.sum()), "median_ns": float(np.median(lengths))}
    return truth | {"steps": steps, "samples": means}
