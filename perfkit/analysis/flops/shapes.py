"""What did an operator get: shapes and types of its tensors, and its other arguments, from a trace's text?

The text is what the profiler wrote: JSON lists with an entry per argument. A tensor is a list of its sizes; an
argument
that is no tensor has an empty list, as a tensor without dimensions has. Lists of tensors are not read. Other
arguments
stand as text in a list of their own, such as "[2, 2]" and "True". Everything is checked: what does not look like this
is not recorded.

A multiplication and an addition are 2 FLOP; what is added to a product, or scales it, is not counted. A product of M
x
K and K x N is 2 M N K, times the batch. Bytes are those of every tensor that is read or written, once: what no cache
can save. Operators that hardly compute have bytes only. PyTorch's torch.utils.flop_counter counts the same; positions
of the arguments are those of its native_functions.yaml.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

# Type as C++ spells it, its usual name, and bytes per element.
TYPES = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
}
FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8")
LONGEST = 20_000  # characters; the profiler cuts lists far shorter than this
LARGEST = 1 << 53  # elements: more than any memory holds, and exact as a float64
_SIZES = dict(TYPES.values())
_WHOLE = r"-?\d{1,15}"
_INTEGERS = re.compile(rf"\[?({_WHOLE}(?:, ?{_WHOLE})*)\]?")
_FLAGS = re.compile(r"\[?((?:True|False)(?:, ?(?:True|False))*)\]?")


@dataclass(frozen=True)
class Tensor:
    """Sizes of a tensor and the name of its type: the text as recorded where it is unknown, empty where none was."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Bytes of all elements, NaN where the type is not known."""
        return stored(self.elements, self.dtype)


@dataclass(frozen=True)
class Inputs:
    """Arguments of an operator; `concrete` is None where the profiler did not record what is no tensor."""

    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[str, ...]
    concrete: tuple[str, ...] | None = None

    def tensor(self, position: int) -> Tensor | None:
        """Return the tensor at a position, None where there is none or it has too many elements to be one."""
        shape = self.shapes[position] if position < len(self.shapes) else None
        dtype = self.dtypes[position] if position < len(self.dtypes) else ""
        if shape is None or (not shape and dtype not in TYPES) or math.prod(shape) > LARGEST:
            return None
        return Tensor(shape, TYPES[dtype][0] if dtype in TYPES else dtype)

    def text(self, position: int) -> str | None:
        """Return the argument at a position as it was written, None where it was not."""
        return self.concrete[position] if self.concrete and position < len(self.concrete) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return a whole number, or a list of them, None where it is not one."""
        found = _INTEGERS.fullmatch(self.text(position) or "")
        return tuple(int(part) for part in found[1].split(",")) if found else None

    def flags(self, position: int) -> tuple[bool, ...] | None:
        """Return a truth value, or a list of them, None where it is not one."""
        found = _FLAGS.fullmatch(self.text(position) or "")
        return tuple(part.strip() == "True" for part in found[1].split(",")) if found else None


class Work(NamedTuple):
    """What an operator does: the model that says so, type of its operands, FLOP or None, and bytes or NaN."""

    model: str
    dtype: str
    flops: int | None
    bytes: float


def stored(elements: int, dtype: str) -> float:
    """Return the bytes of so many elements of a type, NaN where the type is not known."""
    return elements * _SIZES[dtype] if dtype in _SIZES else math.nan


def parsed(shapes: object, dtypes: object = None, concrete: object = None) -> Inputs | None:
    """Return the arguments of an operator, None where the shapes were not recorded or are not a list.

    The texts are "Input Dims", "Input type" and "Concrete Inputs" as recorded; anything else is not recorded.
    """
    sizes = _listed(shapes)
    if sizes is None:
        return None
    return Inputs(
        tuple(_shape(size) for size in sizes),
        tuple(dtype if isinstance(dtype, str) else "" for dtype in _listed(dtypes) or ()),
        tuple(text if isinstance(text, str) else "" for text in _listed(concrete) or ()) or None,
    )


def _listed(text: object) -> list[object] | None:
    """Return what a JSON list holds, None for anything else."""
    if not isinstance(text, str) or len(text) > LONGEST:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _shape(sizes: object) -> tuple[int, ...] | None:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        return None
    return tuple(sizes)


def gemm(
    given: Inputs, *, first: int = 0, added: int | None = None, turned: bool = False, result: str = ""
) -> Work | None:
    """Return the work of a product of the tensors at `first` and after it, vectors and batches as torch.matmul does.

    `added` is the position of what is added to the product; with `turned` the second matrix is N x K; `result` is the
    type of the product where it is not that of its operands.
    """
    left, right = given.tensor(first), given.tensor(first + 1)
    if left is None or right is None or left.dtype not in (*FLOATS, ""):
        return None
    a, b = left.shape, right.shape[::-1] if turned else right.shape
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    batch = broadcast(a[:-2], b[:-2])
    if batch is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    out = math.prod(batch) * a[-2] * b[-1]
    more = given.tensor(added) if added is not None else None
    moved = left.nbytes + right.nbytes + stored(out, result or left.dtype) + (more.nbytes if more else 0)
    return Work("gemm", left.dtype, 2 * out * a[-1], moved)


def embedding(given: Inputs) -> Work | None:
    """Return the traffic of rows taken from a table: the row numbers, the rows, and the rows again as output."""
    table, rows = given.tensor(0), given.tensor(1)
    if table is None or rows is None or len(table.shape) != 2:
        return None
    return Work("embedding", table.dtype, None, rows.nbytes + 2 * stored(rows.elements * table.shape[1], table.dtype))


def elementwise(given: Inputs) -> Work | None:
    """Return the traffic of an operator on every element of tensors of one type: all are read, the result written."""
    tensors = [t for i in range(len(given.shapes)) if (t := given.tensor(i)) is not None and t.shape]
    out: tuple[int, ...] | None = ()
    for tensor in tensors:
        out = None if out is None else broadcast(out, tensor.shape)
    if not tensors or out is None or len({tensor.dtype for tensor in tensors}) > 1:
        return None
    moved = sum(tensor.nbytes for tensor in tensors) + stored(math.prod(out), tensors[0].dtype)
    return Work("elementwise", tensors[0].dtype, None, moved)


def copied(given: Inputs) -> Work | None:
    """Return the traffic of aten::copy_: the second tensor is read, the first written, each in its own type."""
    target, source = given.tensor(0), given.tensor(1)
    if target is None or source is None:
        return None
    return Work("elementwise", target.dtype, None, source.nbytes + target.nbytes)


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of two shapes together, None where they do not fit.

    Examples
    --------
    >>> broadcast((8, 1), (4,)), broadcast((8, 2), (4,))
    ((8, 4), None)
    """
    pairs = list(zip_longest(a[::-1], b[::-1], fillvalue=1))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in reversed(pairs))
