"""What does PyTorch's profiler see of a thread: spans in spans, operations of the GPU, memory that comes and goes?

Conventions
-----------
The parts of a span happen in it, one after the other. Operations of the GPU are those of `timeline`. Arguments are as
PyTorch's profiler prints them; tensors are contiguous unless strides say otherwise.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from make.timeline import Op

BATCH = 128
IMAGE = (1, 28, 28)
LAYERS = ((784, 256), (256, 128), (128, 10))
PARAMETERS = tuple(shape for inputs, outputs in LAYERS for shape in ((outputs, inputs), (outputs,)))
NODES = 3 * len(LAYERS) + 2  # transposition, product and ReLU of each layer, softmax, loss

SMALLEST_BYTES = 512  # the caching allocator of PyTorch hands out multiples of it
FIRST_ADDRESS = 0x7F39_C800_0000
SIZES = {"float": 4, "long int": 8}


class Input(NamedTuple):
    """An argument of an operator, as in "Input type", "Input Dims", "Input Strides" and "Concrete Inputs"."""

    kind: str
    dims: Sequence[object] = ()
    strides: Sequence[object] = ()
    concrete: str = ""


NONE = Input("")


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

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator, not an annotation and not a function."""
        return self.category == "cpu_op"


Part = Span | Op | Memory | Wait


def op(name: str, *inputs: Input, parts: Sequence[Part] = (), sequence: int | None = None, thread: int = 0) -> Span:
    """Return an operator."""
    return Span("cpu_op", name, inputs, tuple(parts), sequence, thread)


def annotation(name: str, *parts: Part) -> Span:
    """Return a range that PyTorch or the program names."""
    return Span("user_annotation", name, (), parts)


def python(name: str, *parts: Part) -> Span:
    """Return a Python function."""
    return Span("python_function", name, (), parts)


def tensor(*dims: int, strides: Sequence[int] | None = None, kind: str = "float") -> Input:
    """Return a tensor.

    Examples
    --------
    >>> tensor(128, 784)
    Input(kind='float', dims=(128, 784), strides=[784, 1], concrete='')
    """
    return Input(kind, dims, contiguous(dims) if strides is None else strides)


def contiguous(dims: Sequence[int]) -> list[int]:
    """Return the strides of a tensor whose elements lie one after the other."""
    return [math.prod(dims[i + 1 :]) for i in range(len(dims))]


def scalar(text: str) -> Input:
    """Return a number or truth value."""
    return Input("Scalar", concrete=text)


def listed(values: Sequence[int]) -> Input:
    """Return a list of numbers."""
    return Input("ScalarList", concrete=str(list(values)))


def tensors(shapes: Sequence[Sequence[int]]) -> Input:
    """Return a list of tensors."""
    return Input("TensorList", list(shapes), [contiguous(shape) for shape in shapes])


def turned(matrix: Input, *, sequence: int | None = None) -> Span:
    """Return a transposition of a matrix: a view, no work."""
    dims, strides = (Input("ScalarList", concrete=str(list(values)[::-1])) for values in (matrix.dims, matrix.strides))
    viewed = op("aten::as_strided", matrix, dims, strides, NONE)
    swapped = op("aten::transpose", matrix, scalar("0"), scalar("1"), parts=[viewed])
    return op("aten::t", matrix, sequence=sequence, parts=[swapped])


def kernel(key: str, slot: int = 0) -> Op:
    """Return a kernel of `kernels`; the slot says which of its launches in a step it is."""
    return Op("kernel", key, "", slot)


def copied(direction: str, size: int) -> tuple[Op, Op]:
    """Return a copy between pageable memory and the GPU, and the wait for it."""
    return Op("copy", direction, "", size=size), Op("sync", "cudaStreamSynchronize_v3020", "")


def given(name: str, *dims: int, kind: str = "float", on_gpu: bool = True) -> Memory:
    """Return the allocation of a tensor of that name."""
    return Memory(name, allocated(math.prod(dims) * SIZES[kind], on_gpu=on_gpu), on_gpu)


def taken(name: str, *dims: int, kind: str = "float", on_gpu: bool = True) -> Memory:
    """Return the end of a tensor of that name."""
    return Memory(name, -allocated(math.prod(dims) * SIZES[kind], on_gpu=on_gpu), on_gpu)


def allocated(size: int, *, on_gpu: bool = True) -> int:
    """Return what an allocator hands out for so many bytes: PyTorch's own for GPUs rounds up, the CPU's does not."""
    return -(-size // SMALLEST_BYTES) * SMALLEST_BYTES if on_gpu else size


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
        """Give memory or take it back; return its address.

        Examples
        --------
        >>> allocator = Allocator()
        >>> [allocator.change(Memory("x", size)) - FIRST_ADDRESS for size in (512, 512, -512, 512)], allocator.total
        ([0, 512, 0, 0], 1024)
        """
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
