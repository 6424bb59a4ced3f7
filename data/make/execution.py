"""How do some steps of the lab's MLP run, operator by operator, while PyTorch's profiler records them?

`mlp_operators.csv` lists them, each kernel of `mlp_run` in the operator that PyTorch 2 launches it in, eager, with
SGD's for-each implementation. Autograd's thread runs the backward nodes while the script's waits for them; a node runs
in the engine's ``evaluate_function``, which also sums gradients over what the forward pass broadcast (the bias) and
frees what the node has used up. Memory is that of the tensors in blocks of 512 bytes, of cuBLAS's workspace by
CUBLAS_WORKSPACE_CONFIG's default :4096:2:16:8, and of cuBLASLt's for the time of a product.

Times are int64 ns since the start of the trace. What the host does in a step is a list of moments: where a span begins
or ends, memory changes, a call is made. Calls and the GPU's work between them are laid out by `timeline`; kernels take
as long as in the training steps of the lab's run, drawn anew, and a step waits for its data for as large a part of its
time as the step of that number did there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from make import timeline
from make.activity import Block, rows
from make.mlp_run import Segment
from make.simulate.export import Worker
from make.spans import BATCH, LAYERS, Allocator, Memory, Part, Span, Wait, annotation, parts, python
from make.timeline import Int, Laid, Op, Plan, Times, lay_out

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def memory_before() -> tuple[Memory, ...]:
    """Return what lies in the GPU's memory: the model, its momentum and gradients, and what the last step left."""
    return tuple(part for part in parts("mlp_operators", "before") if isinstance(part, Memory))


def operators() -> tuple[Part, ...]:
    """Return the parts of one step, in order."""
    return parts("mlp_operators", "step")


def product_flops() -> dict[str, int]:
    """Return the operations of the matrix products of a step, FLOP, by operator: 2 M N K each.

    All layers have a forward product and the gradient of their weights; all but the first that of their input, too.
    """
    each = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    return {"aten::addmm": sum(each), "aten::mm": sum(each) + sum(each[1:])}


WORKER = Worker(process=3_812_406)
FIRST_STEP = 10
SLOWER = np.array([5, 3, 1, 1, 1, 1, 1, 1])  # the profiler starts without steps to warm up
MOMENT_NS = (250, 4_000)  # from one moment of the host to the next, with what recording costs
OUTSIDE_NS = 40_000  # before the first step, between steps and after the last one
STEP = "ProfilerStep#"
PROGRAM = ("train.py(37): <module>", "train.py(21): train")


class Moment(NamedTuple):
    """Where a span `begins` or ends, memory changes, the data loader works or a call is made."""

    part: Part
    thread: int
    begins: bool = False


class Ran(NamedTuple):
    """A span that ran: `operator` and `function` are the numbers of the innermost ones around it, -1 for none."""

    span: Span
    name: str
    step: int
    thread: int
    start: int
    end: int
    operator: int
    function: int


class Level(NamedTuple):
    """What an allocator holds after it gave memory or took it back."""

    change: Memory
    thread: int
    time: int
    address: int
    total: int


@dataclass
class Execution:
    """Spans that ran, by their number; levels of memory; the GPU's rows, and the operator of each correlation id."""

    block: Block
    end: int
    ran: list[Ran] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    operators: dict[int, int] = field(default_factory=dict)


def executed(segments: Sequence[Segment], rng: np.random.Generator) -> Execution:
    """Return an execution of the training steps from `FIRST_STEP` on; `segments` are those of the lab's run."""
    lab = max((s for s in segments if s.part == "train"), key=lambda s: len(s.begin))
    step = list(moments(annotation(STEP, *operators())))
    plan = tuple(m.part._replace(thread=m.thread) for m in step if isinstance(m.part, Op))
    times = timeline.draw_times(plan, len(SLOWER), timeline.EAGER, rng)
    times = times._replace(call=times.call * SLOWER, work=_work(lab, times, rng))
    delays = _delays(step, rng)
    _, at = laid_out(step, plan, times, delays)
    delays[_place_of_wait(step)] += (at[-1] * _share(lab)).astype(np.int64)
    laid, at = laid_out(step, plan, times, delays)
    end = np.cumsum(at[-1] + OUTSIDE_NS)
    begin = end - at[-1]
    found = Execution(rows(plan, laid, WORKER, begin, 1), int(end[-1]) + OUTSIDE_NS)
    _run(found, step, at + begin)
    return found


def moments(part: Part, thread: int = 0) -> Iterator[Moment]:
    """Yield the moments of a part that a thread runs, in order."""
    if isinstance(part, Span):
        own = max(thread, part.thread)
        yield Moment(part, own, begins=True)
        for inner in part.parts:
            yield from moments(inner, own)
        yield Moment(part, own)
    else:
        yield Moment(part, thread)


def _work(lab: Segment, times: Times, rng: np.random.Generator) -> Int:
    """Time of the GPU in each operation: of kernels drawn from the lab's steps, whose plan is the same."""
    work = times.work.copy()
    for i, op in enumerate(lab.plan):
        if op.kind == "kernel":
            work[i] = rng.choice(lab.laid.end[i] - lab.laid.start[i], work.shape[1])
    return work


def _delays(step: Sequence[Moment], rng: np.random.Generator) -> Int:
    low, high = MOMENT_NS
    drawn = low + ((high - low) * rng.random((len(step), len(SLOWER))) ** 3).astype(np.int64)
    return np.asarray(drawn * SLOWER, np.int64)


def _place_of_wait(step: Sequence[Moment]) -> int:
    return next(i for i, moment in enumerate(step) if isinstance(moment.part, Wait))


def _share(lab: Segment) -> np.ndarray:
    """Time for data over the rest of the time in the lab's steps of the same numbers; its first is number 1."""
    steps = slice(FIRST_STEP - 1, FIRST_STEP - 1 + len(SLOWER))
    return (lab.begin - lab.start)[steps] / lab.laid.length[steps]


def laid_out(step: Sequence[Moment], plan: Plan, times: Times, delays: Int) -> tuple[Laid, Int]:
    """Return calls and GPU work of all steps, and when the moments are; both from the beginning of each step.

    The host comes to a moment `delays` after the moment before it, or after the call if that is later.
    """
    is_call = np.array([isinstance(moment.part, Op) for moment in step])
    passed = np.cumsum(delays, axis=0)
    laid = lay_out(plan, times._replace(gap=np.diff(passed[is_call], axis=0, prepend=0)))
    in_calls = np.vstack([np.zeros_like(passed[:1]), laid.call_end - passed[is_call]])
    return laid, passed + in_calls[np.cumsum(is_call) - is_call]


def _run(execution: Execution, step: Sequence[Moment], at: Int) -> None:
    """Add what ran: the program's own functions, and below them every step."""
    for depth, name in enumerate(PROGRAM):
        inset = 1_000 * depth
        execution.ran.append(
            Ran(python(name), name, -1, 0, inset, execution.end - inset, -1, depth - 1)
        )
    allocators = {on_gpu: Allocator() for on_gpu in (True, False)}
    around = (len(PROGRAM) - 1,)
    for change in memory_before():
        allocators[change.on_gpu].change(change)
    for number, times in enumerate(at.T.tolist()):
        run_step(execution, step, number, times, allocators, around)


def run_step(
    execution: Execution,
    step: Sequence[Moment],
    number: int,
    times: list[int],
    allocators: dict[bool, Allocator],
    outer: Sequence[int] = (),
) -> None:
    """Add what ran in the step of that number, whose moments are at these times, inside the `outer` spans."""
    ends = _ends(step)
    around: list[list[int]] = [[*outer], []]
    for i, (moment, time) in enumerate(zip(step, times, strict=True)):
        part, own = moment.part, around[moment.thread]
        if isinstance(part, Memory):
            address = allocators[part.on_gpu].change(part)
            execution.levels.append(
                Level(part, moment.thread, time, address, allocators[part.on_gpu].total)
            )
        elif isinstance(part, Op):
            execution.operators[len(execution.operators) + 1] = _innermost(execution, own, "cpu_op")
        elif isinstance(part, Span) and moment.begins:
            ran = _ran(execution, part, moment.thread, number, own)
            own.append(len(execution.ran))
            execution.ran.append(ran._replace(start=time, end=times[ends[i]]))
        elif isinstance(part, Span):
            own.pop()


def _ran(execution: Execution, span: Span, thread: int, step: int, around: Sequence[int]) -> Ran:
    """Return a span that runs in those `around` it, without its times."""
    name = f"{STEP}{FIRST_STEP + step}" if span.name == STEP else span.name
    operator, function = (
        _innermost(execution, around, category) for category in ("cpu_op", "python_function")
    )
    return Ran(span, name, step, thread, 0, 0, operator, function)


def _innermost(execution: Execution, around: Sequence[int], category: str) -> int:
    """Return the innermost span of a category among those `around`, -1 if there is none."""
    return next((n for n in reversed(around) if execution.ran[n].span.category == category), -1)


def _ends(step: Sequence[Moment]) -> dict[int, int]:
    """Return the moment at which the span that begins with each moment ends."""
    ends: dict[int, int] = {}
    begun: list[int] = []
    for i, moment in enumerate(step):
        if moment.begins:
            begun.append(i)
        elif isinstance(moment.part, Span):
            ends[begun.pop()] = i
    return ends
