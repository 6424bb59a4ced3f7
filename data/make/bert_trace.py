"""What would PyTorch's profiler have recorded of some batches of the lab's BERT?

Conventions
-----------
An execution of its own, after the one that Nsight Systems saw: the two tools cannot record one process at once.
Recorded with shapes, without memory and stacks. Kernels last as long as in the timeline's batches of that size, drawn
anew; the host takes time for every operator, as it does when it is watched. The file says that it is simulated.

`bert_operators.csv` lists the operators of a batch of 32. The kernels are those of `bert_run.answering`, in its
order, each in the operator that PyTorch launches it in. Names, arguments and nesting are those of PyTorch 2, eager,
without gradients. What only a CPU needs is left out: copies of the bias, conjugation, scalars as tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make import kineto, timeline, torch_trace
from make.activity import rows
from make.bert_kernels import LAYERS
from make.bert_run import Segment
from make.execution import OUTSIDE_NS, STEP, WORKER, Execution, laid_out, moments, run_step
from make.kernels import Kernel
from make.spans import Part, annotation, parts
from make.tally import Tally
from make.timeline import Int, Op, Plan

STEPS = 3
MOMENT_NS = (1_200, 6_500)  # from one moment of the host to the next, with what recording costs


def write(
    path: Path,
    segment: Segment,
    kernels: dict[str, Kernel],
    rng: np.random.Generator,
    *,
    t0_unix_ns: int,
    label: str,
) -> dict[str, Any]:
    """Write the trace to `path` and return what is true of it."""
    execution = _executed(segment, kernels, rng)
    named = tuple(kernels.values())
    header = {"SIMULATED": label, "deviceProperties": [torch_trace.card()], "record_shapes": 1}
    kineto.write(path, torch_trace.trace_events(execution, named), t0_unix_ns=t0_unix_ns, header=header)
    tally = Tally(named)
    tally.add(execution.block)
    steps = [ran for ran in execution.ran if ran.span.name == STEP]
    return {
        "t0_unix_ns": t0_unix_ns,
        "batch": _batch(segment),
        "dur_ns": execution.end,
        "steps": [{"start_ns": ran.start, "dur_ns": ran.end - ran.start} for ran in steps],
        "operators": torch_trace.operators(execution),
        "gpu": tally.truth(),
    }


def _batch(segment: Segment) -> int:
    if segment.phase is None:
        raise ValueError("segment: holds no batches")
    return segment.phase.batch


def _executed(segment: Segment, kernels: dict[str, Kernel], rng: np.random.Generator) -> Execution:
    step = list(moments(annotation(STEP, *operators())))
    plan = tuple(moment.part for moment in step if isinstance(moment.part, Op))
    times = timeline.draw_times(plan, STEPS, timeline.QUICK, rng)
    times = times._replace(work=_work(plan, times.work, segment, rng))
    low, high = MOMENT_NS
    delays = low + ((high - low) * rng.random((len(step), STEPS)) ** 3).astype(np.int64)
    laid, at = laid_out(step, plan, times, delays)
    end = np.cumsum(at[-1] + OUTSIDE_NS)
    begin = end - at[-1]
    found = Execution(rows(plan, laid, WORKER, begin, 1, kernels=kernels), int(end[-1]) + OUTSIDE_NS)
    for number, when in enumerate((at + begin).T.tolist()):
        run_step(found, step, number, when, {})
    return found


def _work(plan: Plan, drawn: Int, segment: Segment, rng: np.random.Generator) -> Int:
    """Time of the GPU in each operation: of kernels drawn from the timeline's, whose plan is the same."""
    work = drawn.copy()
    for i, done in enumerate(segment.plan):
        if done.kind == "kernel":
            work[i] = rng.choice(segment.laid.end[i] - segment.laid.start[i], work.shape[1])
    return _same(plan, segment.plan, work)


def _same(plan: Sequence[Op], other: Sequence[Op], work: Int) -> Int:
    if [(op.kind, op.what) for op in plan] != [(op.kind, op.what) for op in other]:
        raise ValueError("plan: operators launch other work than the timeline's batches")
    return work


def operators() -> tuple[Part, ...]:
    """Return the parts of a batch of 32 questions, in order; those of a layer twelve times."""
    layers = parts("bert_operators", "layer") * LAYERS
    return (*parts("bert_operators", "before"), *layers, *parts("bert_operators", "after"))
