"""How does the lab's inference with BERT lie in time, so that every batch size has the report's latency?

The script is the naive one: tokens, their kinds and a mask are copied from pageable memory, the pass is launched kernel
by kernel, and the two logits of each token are copied back, which waits for them. With a CUDA graph the pass is one
launch.

Times are int64 ns since the start of the capture. The latency is the time from the copy of a batch to the GPU until its
logits are back. Mean and median over a phase are the report's, to the nanosecond: where the host decides, its time
before the launches is adjusted, and where the GPU does, the time of the products. One batch before each phase warms up.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from make import mlp_run, timeline
from make.bert_kernels import (
    FLOAT_BYTES,
    HIDDEN,
    LAYERS,
    POSITIONS,
    SEQUENCE,
    SIZES,
    TOKEN_BYTES,
    VOCABULARY,
    WIDE,
    Case,
    Precision,
    case,
    key,
    places,
)
from make.kernels import Kernel
from make.timeline import Int, Laid, Op, Pace, Plan, Times, draw_durations, lay_out

_NORM = (HIDDEN, HIDDEN)
_LAYER = (
    *((HIDDEN * HIDDEN, HIDDEN) * 4),
    *_NORM,
    WIDE * HIDDEN,
    WIDE,
    HIDDEN * WIDE,
    HIDDEN,
    *_NORM,
)
PARAMETERS = (
    VOCABULARY * HIDDEN,
    POSITIONS * HIDDEN,
    2 * HIDDEN,
    *_NORM,
    *(_LAYER * LAYERS),
    2 * HIDDEN,
    2,
)
MASK = ("mask_to_float", "mask_from_one", "mask_scaled")
EMBEDDING = ("look_up", "look_up", "add", "look_up_places", "add", "norm")
HEAD = ("head", "logits", "logits")


def setup_plan() -> Plan:
    """Return the plan of ``model.to("cuda")``."""
    return mlp_run.copies("model to device", "H2D", *(FLOAT_BYTES * size for size in PARAMETERS))


def passes(batch: int) -> tuple[str, ...]:
    """Return the places of a forward pass."""
    return (*MASK, *EMBEDDING, *(places(batch) * LAYERS), *HEAD)


def answering(batch: int, *, precision: Precision = "fp32", graph: bool = False) -> Plan:
    """Return the plan of one batch."""
    keys = [key(place, batch, precision) for place in passes(batch)]
    if graph:
        forward = [
            Op("graph", "forward", "forward"),
            *(Op("node", each, "forward") for each in keys),
        ]
    else:
        forward = [Op("kernel", each, "forward") for each in keys]
    tokens, logits = batch * SEQUENCE * TOKEN_BYTES, batch * SEQUENCE * FLOAT_BYTES
    given = mlp_run.copies("to device", "H2D", *[tokens] * 3)
    return (*given, *forward, *mlp_run.copies("to host", "D2H", *[logits] * 2))


STEPS = 12
LATENCY_NS = dict(
    zip(SIZES, (9_433_169, 17_024_813, 27_854_667, 48_633_747), strict=True)
)  # Table 13's snapshots
HOST = Pace(gap_ns=(20_000, 74_000), call_ns=(4_600, 13_000), delay_ns=(1_400, 4_000))
JITTER = (0.985, 1.045)  # a kernel's time over its nominal one
GRAPH_NS = 48_000  # more in the call that launches a graph
START_NS, BETWEEN_NS, PAUSE_NS = 4_300_000_000, 30_000_000, (120_000, 400_000)
CUBLAS_NS, COLD_NS = (
    60_000_000,
    (2_000_000, 9_000_000),
)  # before the first product; first launch of each kernel
TRIES = 30


class Phase(NamedTuple):
    """Batches of one size; without a latency, times are those that kernels and host have by themselves."""

    name: str
    batch: int
    latency_ns: int | None = None
    precision: Precision = "fp32"
    graph: bool = False


class Segment(NamedTuple):
    """Steps of one plan; `phase` is None where the model is copied, `warm` says whether they are timed."""

    phase: Phase | None
    plan: Plan
    laid: Laid
    begin: Int
    warm: bool = True


def _name(batch: int, change: str = "") -> str:
    return f"{batch} sequence{'s' if batch > 1 else ''}{change}"


LAB = tuple(Phase(_name(batch), batch, latency) for batch, latency in LATENCY_NS.items())
OPTIMISED = (
    Phase(_name(1, " in a graph"), 1, graph=True),
    Phase(_name(32, " in TF32"), 32, precision="tf32"),
)


def run(phases: Sequence[Phase], rng: np.random.Generator) -> list[Segment]:
    """Return the segments of a run in order of time: the model's copies, then each phase after a batch of warm-up."""
    plan = setup_plan()
    laid = lay_out(plan, timeline.draw_times(plan, 1, HOST, rng))
    segments = [Segment(None, plan, laid, np.array([START_NS]))]
    clock = START_NS + int(laid.length[0]) + BETWEEN_NS
    seen: set[str] = set()
    for phase in phases:
        for steps, warm in ((1, False), (STEPS, True)):
            plan = answering(phase.batch, precision=phase.precision, graph=phase.graph and warm)
            times = _times(plan, phase, steps, rng)
            laid = lay_out(
                plan, _fitted(plan, phase, times, rng) if warm else _cold(plan, times, seen, rng)
            )
            begin = clock + np.cumsum(laid.length + rng.integers(*PAUSE_NS, steps)) - laid.length
            segments.append(Segment(phase, plan, laid, begin, warm))
            clock = int(begin[-1] + laid.length[-1])
        clock += BETWEEN_NS
    return segments


def spread(mean_ns: int, count: int, rng: np.random.Generator) -> Int:
    """Return times with this mean and median, from 1.5 % below to 3 % above, in random order."""
    low, high = round(0.985 * mean_ns), round(1.03 * mean_ns)
    return rng.permutation(
        draw_durations(Kernel("", "", count * mean_ns, count, mean_ns, low, high), rng)
    )


def cases(phase: Phase) -> dict[str, Case]:
    """Return the kernels of a phase by their keys."""
    places = dict.fromkeys(passes(phase.batch))
    return {
        key(p, phase.batch, phase.precision): case(p, phase.batch, phase.precision) for p in places
    }


def _times(plan: Plan, phase: Phase, steps: int, rng: np.random.Generator) -> Times:
    times, found = timeline.draw_times(plan, steps, HOST, rng), cases(phase)
    for i, op in enumerate(plan):
        if op.what in found:
            times.work[i] = found[op.what].dur_ns * rng.uniform(*JITTER, steps)
        elif op.kind == "graph":
            times.call[i] += GRAPH_NS
    return times


def _fitted(plan: Plan, phase: Phase, times: Times, rng: np.random.Generator) -> Times:
    """Make the steps as long as the report says, by the host's time between launches or the products' on the GPU."""
    if phase.latency_ns is None:
        return times
    found, wanted = cases(phase), spread(phase.latency_ns, times.gap.shape[1], rng)
    of_host = phase.batch == 1
    moved = times.gap if of_host else times.work
    chosen = [
        i
        for i, op in enumerate(plan)
        if op.what in found and (of_host or found[op.what].is_product)
    ]
    for _ in range(TRIES):
        missing = wanted - lay_out(plan, times).length
        if not missing.any():
            return times
        share = missing * moved[chosen] // moved[chosen].sum(axis=0)
        moved[chosen] += share
        moved[chosen[-1]] += missing - share.sum(axis=0)
    raise ValueError(f"phases: {phase.name} cannot have a latency of {phase.latency_ns} ns")


def _cold(plan: Plan, times: Times, seen: set[str], rng: np.random.Generator) -> Times:
    """Slow the first launch of each kernel, which loads its code, and the first of all, before which cuBLAS starts."""
    for i, op in enumerate(plan):
        if op.kind == "kernel" and op.what not in seen:
            times.gap[i] += 0 if seen else CUBLAS_NS
            times.call[i] += rng.integers(*COLD_NS)
            seen.add(op.what)
    return times
