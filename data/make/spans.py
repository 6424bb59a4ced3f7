"""What does PyTorch's profiler see of a thread: spans in spans, operations of the GPU, memory that comes and goes?

The parts of a span happen in it, one after the other. Operations of the GPU are those of `timeline`. Arguments are as
PyTorch's profiler prints them; tensors are contiguous unless strides say otherwise.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from make.kernels import table
from make.timeline import Op

BATCH = 128
IMAGE = (1, 28, 28)
LAYERS = ((784, 256), (256, 128), (128, 10))
NODES = 3 * len(LAYERS) + 2  # transposition, product and ReLU of each layer, softmax, loss

FIRST_ADDRESS = 0x7F39_C800_0000
CATEGORIES = {"operator": "cpu_op", "annotation": "user_annotation", "function": "python_function"}


class Input(NamedTuple):
    """An argument of an operator, as in "Input type", "Input Dims", "Input Strides" and "Concrete Inputs"."""

    kind: str
    dims: Sequence[object] = ()
    strides: Sequence[object] = ()
    concrete: str = ""


class Memory(NamedTuple):
    """Memory that a tensor is given, or that is taken back when its size is negative."""

    tensor: str
    size: int
    on_gpu: bool = True


class Wait(NamedTuple):
    """Time that goes by in the data loader."""


class Span(NamedTuple):
    """An operator, annotation or Python function; `sequence` is autograd's number, from the first of the step on.

    `thread` is that of what is in it, too: 0 runs the script, 1 is autograd's.
    """

    category: Literal["cpu_op", "user_annotation", "python_function"]
    name: str
    inputs: tuple[Input, ...] = ()
    parts: tuple[Part, ...] = ()
    sequence: int | None = None
    thread: int = 0


Part = Span | Op | Memory | Wait


def annotation(name: str, *parts: Part) -> Span:
    """Return a range that PyTorch or the program names."""
    return Span("user_annotation", name, (), parts)


def python(name: str, *parts: Part) -> Span:
    """Return a Python function."""
    return Span("python_function", name, (), parts)


def contiguous(dims: Sequence[int]) -> list[int]:
    """Return the strides of a tensor whose elements lie one after the other."""
    return [math.prod(dims[i + 1 :]) for i in range(len(dims))]


def parts(name: str, section: str) -> tuple[Part, ...]:
    """Return the parts that a section of a CSV file lists: each stands below the last one that is less deep.

    Inputs are separated by semicolons: ``float[128, 10]`` is a tensor, with ``@[1, 128]`` its strides if its elements
    do not lie one after the other; ``=1`` a scalar, ``[1, 128]`` a list, ``-`` nothing.
    """
    rows = [row for row in table(name) if row["section"] == section]
    return tuple(_parts(rows, 0, len(rows), 0))


def _parts(rows: Sequence[dict[str, str]], first: int, end: int, depth: int) -> Iterator[Part]:
    """Yield the parts of this depth among the rows from `first` to `end`."""
    starts = [i for i in range(first, end) if int(rows[i]["depth"]) == depth]
    for start, after in pairwise([*starts, end]):
        yield _part(rows[start], tuple(_parts(rows, start + 1, after, depth + 1)))


def _part(row: dict[str, str], inner: tuple[Part, ...]) -> Part:
    kind: Any = row["kind"]
    size, place = int(row["size"] or 0), row["place"]
    if kind in CATEGORIES:
        inputs = tuple(map(_input, filter(None, row["inputs"].split("; "))))
        sequence = int(row["sequence"]) if row["sequence"] else None
        category: Any = CATEGORIES[kind]
        return Span(category, row["name"], inputs, inner, sequence, int(row["thread"] or 0))
    if kind == "memory":
        return Memory(row["name"], size, on_gpu=place != "cpu")
    return Wait() if kind == "wait" else Op(kind, row["name"], "", int(place or 0), size=size)


def _input(text: str) -> Input:
    if text[0] in "=[":
        return (
            Input("Scalar", concrete=text[1:])
            if text[0] == "="
            else Input("ScalarList", concrete=text)
        )
    kind, bracket, dims = text.partition("[")
    if not bracket:
        return Input(kind.strip("-"))
    sizes, _, strides = f"[{dims}".partition("@")
    shape: list[Any] = json.loads(sizes)
    if kind == "TensorList":
        return Input(kind, shape, [contiguous(each) for each in shape])
    return Input(kind, tuple(shape), json.loads(strides) if strides else contiguous(shape))


@dataclass
class Allocator:
    """Gives a tensor the block of its size that was freed last, or a new one; `total` bytes are given out.

    Of several tensors of one name the oldest is taken first.
    """

    total: int = 0
    _new: int = FIRST_ADDRESS
    _of: defaultdict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _free: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def change(self, memory: Memory) -> int:
        """Give memory or take it back; return its address."""
        self.total += memory.size
        if memory.size < 0:
            address = self._of[memory.tensor].popleft()
            self._free[-memory.size].append(address)
            return address
        if self._free[memory.size]:
            address = self._free[memory.size].pop()
        else:
            address, self._new = self._new, self._new + memory.size
        self._of[memory.tensor].append(address)
        return address
