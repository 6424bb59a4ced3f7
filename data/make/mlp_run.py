"""How does the lab's run of the MLP lie in time, so that all its printed figures hold?

Conventions
-----------
Times are int64 ns since the start of the capture. A segment is a number of steps of one plan. What happens inside
a step is drawn at random and laid out from the step's own beginning; how long the host loads data before each
step is what makes the whole fit between the first and the last kernel.

Functions
---------
run    all segments, with the beginning of each step
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from make import mlp_steps, pace
from make.durations import draw
from make.table5 import TABLE_5
from make.timeline import Int, Laid, Plan, Times, lay_out

# section 2.2 of the report: first start and last end of copies and of kernels
FIRST_COPY_NS, LAST_COPY_NS = 9_531_670_700, 19_447_603_756
FIRST_KERNEL_NS, LAST_KERNEL_NS = 9_644_169_424, 19_447_882_187

CUBLAS_NS = 55_000_000
COLD_NS = {"train": 100_000_000, "test": 10_000_000}
PAUSE_NS = 2_000_000

Part = Literal["setup", "train", "test", "inference"]


class Segment(NamedTuple):
    """Steps of one plan: `start` is where data loading begins, `begin` where the plan does, ns."""

    part: Part
    plan: Plan
    laid: Laid
    start: Int
    begin: Int


PARTS: tuple[tuple[Part, Plan, int], ...] = (
    ("setup", mlp_steps.setup(), 1),
    ("train", mlp_steps.training(first=True), 1),
    ("train", mlp_steps.training(), 467),
    ("train", mlp_steps.training(96), 1),
    ("test", mlp_steps.evaluation(first=True), 1),
    ("test", mlp_steps.evaluation(), 77),
    ("test", mlp_steps.evaluation(16), 1),
    ("inference", mlp_steps.inference(), 1),
)


def run(rng: np.random.Generator) -> list[Segment]:
    """Return the segments of the run in order of time."""
    times = [pace.times(plan, steps, pace.EAGER, rng) for _, plan, steps in PARTS]
    _deal([each.work for each in times], rng)
    _warm_up(times, rng)
    last = PARTS[-1][1]
    times[-1].gap[_first_kernel(last)] += _delay(lay_out(last, times[-1]))
    return _placed([lay_out(plan, each) for (_, plan, _), each in zip(PARTS, times, strict=True)], rng)


def _deal(work: list[Int], rng: np.random.Generator) -> None:
    """Give every kernel a duration from its row of Table 5, slot 0 the longest ones."""
    wanted: dict[str, dict[int, list[Int]]] = defaultdict(lambda: defaultdict(list))
    for (_, plan, _), rows in zip(PARTS, work, strict=True):
        for op, row in zip(plan, rows, strict=True):
            if op.kind == "kernel":
                wanted[op.what][op.slot].append(row)
    for key, kernel in TABLE_5.items():
        durations = draw(kernel, rng)
        for _, rows_of_slot in sorted(wanted[key].items()):
            ends = np.cumsum([len(row) for row in rows_of_slot])
            dealt, durations = rng.permutation(durations[: ends[-1]]), durations[ends[-1] :]
            for row, values in zip(rows_of_slot, np.split(dealt, ends[:-1]), strict=True):
                row[:] = values


def _warm_up(times: list[Times], rng: np.random.Generator) -> None:
    """Slow the first launch of each kernel, which loads its code, and before the very first start cuBLAS."""
    seen: set[str] = set()
    for (part, plan, _), each in zip(PARTS, times, strict=True):
        for i, op in enumerate(plan):
            if op.kind != "kernel" or op.what in seen:
                continue
            if seen:
                each.call[i, 0] += int(COLD_NS[part] * (0.4 + 1.2 * rng.random()))
            else:
                each.gap[i, 0] += CUBLAS_NS
            seen.add(op.what)


def _first_kernel(plan: Plan) -> int:
    return next(i for i, op in enumerate(plan) if op.kind == "kernel")


def _delay(laid: Laid) -> int:
    """How much later the kernels of the last pass have to follow its copy for the report's figures."""
    last_copy, last_kernel = laid.end[0, 0], laid.end.max()
    return LAST_KERNEL_NS - LAST_COPY_NS - int(last_kernel - last_copy)


def _placed(laid: list[Laid], rng: np.random.Generator) -> list[Segment]:
    """Put the steps behind each other; data loading fills what is left between the fixed times."""
    setup, first, last = laid[0], laid[1], laid[-1]
    lengths = np.concatenate([each.length for each in laid[1:-1]])
    begin = FIRST_KERNEL_NS - int(first.start[_first_kernel(PARTS[1][1]), 0])
    end = LAST_KERNEL_NS - int(last.end.max())
    loading = _shares(end - PAUSE_NS - begin - int(lengths.sum()), len(lengths) - 1, rng)
    begins = begin + np.r_[0, np.cumsum(lengths[:-1] + loading)]
    setup_begin = np.array([FIRST_COPY_NS - int(setup.start[0, 0])])
    starts = np.r_[setup_begin + setup.length, (begins + lengths)[:-1]]
    bounds = np.cumsum([0, *[len(each.length) for each in laid[1:-1]]])
    placed = [(setup_begin, setup_begin)]
    placed += [(starts[i:j], begins[i:j]) for i, j in pairwise(bounds)]
    placed += [(np.array([end]), np.array([end]))]
    return [Segment(part, plan, each, *times) for (part, plan, _), each, times in zip(PARTS, laid, placed, strict=True)]


def _shares(total: int, count: int, rng: np.random.Generator) -> Int:
    """Split `total` into `count` parts that vary by a quarter, one in forty being three times as long."""
    weight = (0.75 + 0.5 * rng.random(count)) * np.where(rng.random(count) < 1 / 40, 3, 1)
    ends = np.floor(total * np.cumsum(weight) / weight.sum()).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)
