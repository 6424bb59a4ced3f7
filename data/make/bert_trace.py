"""What would PyTorch's profiler have recorded of some batches of the lab's BERT?

Conventions
-----------
An execution of its own, after the one that Nsight Systems saw: the two tools cannot record one process at once.
Recorded with shapes, without memory and stacks. Kernels last as long as in the timeline's batches of that size, drawn
anew; the host takes time for every operator, as it does when it is watched. The file says that it is simulated.

The kernels are those of `bert_run.answering`, in its order, each in the operator that PyTorch launches it in. Names,
arguments and nesting are those of PyTorch 2, eager, without gradients. What only a CPU needs is left out: copies of the
bias, conjugation, scalars as tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make import kineto, timeline, torch_trace
from make.activity import rows
from make.bert_kernels import HEADS, HIDDEN, LAYERS, POSITIONS, SEQUENCE, VOCABULARY, WIDE, key
from make.bert_run import Segment
from make.execution import OUTSIDE_NS, STEP, WORKER, Execution, laid_out, moments, run_step
from make.kernels import Kernel
from make.spans import (
    NONE,
    SIZES,
    Input,
    Part,
    Span,
    annotation,
    contiguous,
    copied,
    kernel,
    listed,
    op,
    scalar,
    tensor,
    turned,
)
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
    step = list(moments(annotation(STEP, *operators(_batch(segment)))))
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


DEPTH = HIDDEN // HEADS
EPSILON = scalar("9.9999999999999998e-13")


def operators(batch: int) -> tuple[Part, ...]:
    """Return the parts of one batch, in order."""
    return _Pass(batch).parts()


class _Pass:
    """One batch: its tensors, and where they are worked on."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.tokens = tensor(batch, SEQUENCE, kind="long int")
        self.hidden = tensor(batch, SEQUENCE, HIDDEN)
        self.scores = tensor(batch, HEADS, SEQUENCE, SEQUENCE)
        self.mask = tensor(batch, 1, 1, SEQUENCE)

    def parts(self) -> tuple[Part, ...]:
        """Return all of it."""
        layers = [part for _ in range(LAYERS) for part in self._layer()]
        return (*self._to_device(), *self._masked(), *self._embedded(), *layers, *self._answer())

    def _kernel(self, place: str) -> Part:
        return kernel(key(place, self.batch))

    def _to_device(self) -> list[Span]:
        """Tokens, their kinds and the mask, from pageable memory."""
        return [moved(self.tokens, LONG, "H2D") for _ in range(3)]

    def _masked(self) -> list[Span]:
        """What is added to the scores: 0, or the least number where there is no token."""
        rows = tensor(self.batch, 1, SEQUENCE, kind="long int")
        whole = tensor(self.batch, 1, 1, SEQUENCE, kind="long int")
        made = empty_strided(self.mask, FLOAT)
        cast = op("aten::copy_", self.mask, whole, NO, parts=[self._kernel("mask_to_float")])
        to_float = op("aten::_to_copy", whole, FLOAT, NONE, NONE, NONE, NO, NONE, parts=[made, cast])
        left = op("aten::sub", Input("double"), self.mask, ONE, parts=[self._kernel("mask_from_one")])
        return [
            op("aten::unsqueeze", self.tokens, ONE, parts=[strided(self.tokens, rows)]),
            op("aten::unsqueeze", rows, scalar("2"), parts=[strided(rows, whole)]),
            op("aten::to", whole, FLOAT, NO, NO, NONE, parts=[to_float]),
            op("aten::rsub", self.mask, scalar("1."), ONE, parts=[left]),
            op("aten::mul", self.mask, Input("double"), parts=[self._kernel("mask_scaled")]),
        ]

    def _embedded(self) -> list[Span]:
        """The sum of three vectors per token: of its word, its sentence and its place."""
        all_places = tensor(1, POSITIONS, kind="long int")
        places = tensor(1, SEQUENCE, strides=(POSITIONS, 1), kind="long int")
        chosen = strided(all_places, places, ZERO)
        return [
            self._looked_up(VOCABULARY, self.tokens, "look_up"),
            self._looked_up(2, self.tokens, "look_up"),
            self._added(self.hidden),
            op("aten::slice", all_places, ONE, ZERO, scalar(str(SEQUENCE)), ONE, parts=[chosen]),
            self._looked_up(POSITIONS, places, "look_up_places"),
            self._added(tensor(1, SEQUENCE, HIDDEN)),
            self._normed(),
            dropout(self.hidden),
        ]

    def _looked_up(self, rows: int, tokens: Input, place: str) -> Span:
        table, flat = tensor(rows, HIDDEN), tensor(count(tokens), kind="long int")
        found = tensor(count(tokens), HIDDEN)
        reshaped = op("aten::reshape", tokens, listed([-1]), parts=[viewed(tokens, [-1])])
        selected = op("aten::index_select", table, ZERO, flat, parts=[empty([0]), self._kernel(place)])
        parts = [reshaped, selected, viewed(found, [*dims_of(tokens), HIDDEN])]
        return op("aten::embedding", table, tokens, scalar("-1"), NO, NO, parts=parts)

    def _layer(self) -> list[Span]:
        wide = tensor(self.batch, SEQUENCE, WIDE)
        return [
            *self._attention(),
            self._linear("out", HIDDEN, HIDDEN),
            dropout(self.hidden),
            self._added(self.hidden),
            self._normed(),
            self._linear("fc1", HIDDEN, WIDE),
            op("aten::gelu", wide, NONE, parts=[self._kernel("gelu")]),
            self._linear("fc2", WIDE, HIDDEN),
            dropout(self.hidden),
            self._added(self.hidden),
            self._normed(),
        ]

    def _attention(self) -> list[Span]:
        heads = swapped(tensor(self.batch, SEQUENCE, HEADS, DEPTH), (0, 2, 1, 3))
        turned_keys = swapped(heads, (0, 1, 3, 2))
        softmax = op("aten::_softmax", self.scores, scalar("-1"), NO, parts=[self._kernel("softmax")])
        context = tensor(self.batch, HEADS, SEQUENCE, DEPTH)
        joined = swapped(context, (0, 2, 1, 3))
        return [
            *(part for name in ("query", "key", "value") for part in self._head(name)),
            op("aten::transpose", heads, scalar("-1"), scalar("-2"), parts=[strided(heads, turned_keys)]),
            self._matmul("scores", heads, turned_keys),
            op("aten::div", self.scores, Input("double"), parts=[self._kernel("scaled")]),
            op("aten::add", self.scores, self.mask, ONE, parts=[self._kernel("masked")]),
            op("aten::softmax", self.scores, scalar("-1"), NONE, parts=[softmax]),
            dropout(self.scores),
            self._matmul("context", self.scores, heads),
            op("aten::permute", context, listed((0, 2, 1, 3)), parts=[strided(context, joined)]),
            op("aten::contiguous", joined, ZERO, parts=[self._cloned(joined)]),
            viewed(tensor(*dims_of(joined)), dims_of(self.hidden)),
        ]

    def _head(self, name: str) -> list[Span]:
        """Queries, keys or values, split over the heads."""
        split = tensor(self.batch, SEQUENCE, HEADS, DEPTH)
        ordered = swapped(split, (0, 2, 1, 3))
        return [
            self._linear(name, HIDDEN, HIDDEN),
            viewed(self.hidden, dims_of(split)),
            op("aten::permute", split, listed((0, 2, 1, 3)), parts=[strided(split, ordered)]),
        ]

    def _matmul(self, place: str, first: Input, second: Input) -> Span:
        """A product per head: what does not lie in one piece is copied before."""
        parts: list[Part] = []
        batched = []
        for each in (first, second):
            dims = (self.batch * HEADS, *dims_of(each)[2:])
            parts += [op("aten::expand", each, listed(dims_of(each)), NO, parts=[strided(each, each)])]
            parts += [self._reshaped(each, dims)]
            batched.append(tensor(*dims))
        out = (self.batch * HEADS, dims_of(first)[2], dims_of(second)[3])
        product = op("aten::bmm", *batched, parts=[self._kernel(place)])
        back = op("aten::_unsafe_view", tensor(*out), listed((self.batch, HEADS, *out[1:])))
        return op("aten::matmul", first, second, parts=[*parts, product, back])

    def _reshaped(self, each: Input, dims: Sequence[int]) -> Span:
        if list(each.strides) == contiguous(dims_of(each)):
            return op("aten::reshape", each, listed(dims), parts=[viewed(each, dims)])
        whole = op("aten::_unsafe_view", tensor(*dims_of(each)), listed(dims))
        return op("aten::reshape", each, listed(dims), parts=[self._cloned(each), whole])

    def _cloned(self, each: Input, place: str = "copy") -> Span:
        made = op("aten::empty_like", each, FLOAT, LAYOUT, NONE, NONE, ZERO, parts=[empty(dims_of(each), ordered=True)])
        filled = op("aten::copy_", tensor(*dims_of(each)), each, NO, parts=[self._kernel(place)])
        return op("aten::clone", each, ZERO, parts=[made, filled])

    def _linear(self, place: str, inputs: int, outputs: int) -> Span:
        rows = self.batch * SEQUENCE
        x, flat, weight = tensor(self.batch, SEQUENCE, inputs), tensor(rows, inputs), tensor(outputs, inputs)
        bias, transposed = tensor(outputs), tensor(inputs, outputs, strides=(1, inputs))
        product = op("aten::addmm", bias, flat, transposed, ONE, ONE, parts=[self._kernel(place)])
        back = viewed(tensor(rows, outputs), (self.batch, SEQUENCE, outputs))
        return op("aten::linear", x, weight, bias, parts=[viewed(x, dims_of(flat)), turned(weight), product, back])

    def _added(self, other: Input) -> Span:
        return op("aten::add", self.hidden, other, ONE, parts=[self._kernel("add")])

    def _normed(self) -> Span:
        """A normalisation, which also makes mean and spread of each vector."""
        rows, vector = self.batch * SEQUENCE, tensor(HIDDEN)
        of_rows = [viewed(tensor(rows), (self.batch, SEQUENCE, 1)) for _ in range(2)]
        made = [empty(dims_of(self.hidden), ordered=True), empty([rows]), empty([rows])]
        own = (self.hidden, listed([HIDDEN]), vector, vector, EPSILON)
        inner = op("aten::native_layer_norm", *own, parts=[*made, self._kernel("norm"), *of_rows])
        return op("aten::layer_norm", *own, YES, parts=[inner])

    def _answer(self) -> list[Span]:
        """Two logits per token, each in a tensor of its own, and both on the CPU."""
        both = tensor(self.batch, SEQUENCE, 2)
        strides = (2 * SEQUENCE, 2, 1)
        one = tensor(self.batch, SEQUENCE, 1, strides=strides)
        row = tensor(self.batch, SEQUENCE, strides=strides[:2])
        narrowed = []
        for i in range(2):
            cut = strided(both, one, scalar(str(i)))
            sliced = op("aten::slice", both, scalar("-1"), scalar(str(i)), scalar(str(i + 1)), ONE, parts=[cut])
            narrowed.append(op("aten::narrow", both, scalar("-1"), scalar(str(i)), ONE, parts=[sliced]))
        each = (
            op("aten::squeeze", one, scalar("-1"), parts=[strided(one, row)]),
            op("aten::contiguous", row, ZERO, parts=[self._cloned(row, "logits")]),
        )
        split = op("aten::split", both, ONE, scalar("-1"), parts=narrowed)
        logits = tensor(self.batch, SEQUENCE)
        return [self._linear("head", HIDDEN, 2), split, *each, *each, *(moved(logits, FLOAT, "D2H") for _ in range(2))]


NO, YES, ZERO, ONE = scalar("False"), scalar("True"), scalar("0"), scalar("1")
FLOAT, LONG, LAYOUT = scalar("6"), scalar("4"), ZERO  # PyTorch's numbers of types and of the usual layout
DROPPED = scalar("0.10000000000000001")


def dims_of(each: Input) -> list[int]:
    """Return the sizes of a tensor."""
    return [int(str(size)) for size in each.dims]


def count(each: Input) -> int:
    """Return the number of its elements."""
    return math.prod(dims_of(each))


def swapped(each: Input, order: Sequence[int]) -> Input:
    """Return the same elements with dimensions in another order."""
    dims, strides = dims_of(each), [int(str(stride)) for stride in each.strides]
    return Input(each.kind, tuple(dims[i] for i in order), [strides[i] for i in order])


def strided(each: Input, view: Input, offset: Input = NONE) -> Span:
    """Return a view of a tensor: no work."""
    strides = [int(str(stride)) for stride in view.strides]
    return op("aten::as_strided", each, listed(dims_of(view)), listed(strides), offset)


def viewed(each: Input, dims: Sequence[int]) -> Span:
    """Return a view in other dimensions: no work."""
    return op("aten::view", each, listed(dims))


def empty(dims: Sequence[int], *, ordered: bool = False) -> Span:
    """Return the making of a tensor without content; an ordered one is told its layout in memory."""
    return op("aten::empty", listed(dims), FLOAT, LAYOUT, NONE, NONE, ZERO if ordered else NONE)


def empty_strided(each: Input, kind: Input) -> Span:
    """Return the making of a tensor like this one, without content."""
    return op("aten::empty_strided", listed(dims_of(each)), listed(contiguous(dims_of(each))), kind, LAYOUT, NONE, NO)


def dropout(each: Input) -> Span:
    """Return a dropout, which drops nothing when a model is not trained."""
    return op("aten::dropout", each, DROPPED, NO)


def moved(each: Input, kind: Input, direction: str) -> Span:
    """Return a copy between the CPU and the LAYOUT, "H2D" or "D2H", which the host waits for."""
    size = count(each) * SIZES[each.kind]
    filled = op("aten::copy_", each, each, NO, parts=copied(direction, size))
    made = op("aten::_to_copy", each, kind, LAYOUT, NONE, NONE, NO, NONE, parts=[empty_strided(each, kind), filled])
    return op("aten::to", each, kind, LAYOUT, NONE, NONE, NO, NO, NONE, parts=[made])
