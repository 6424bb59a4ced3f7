"""How many operations and bytes does one operator take, from the shapes of its operands?

The profiler writes the arguments of an operator as JSON lists with an entry per argument. A tensor
is a list of its sizes; an argument that is no tensor has an empty list, as a tensor without
dimensions has. Lists of tensors are not read. Other arguments stand as text in a list of their own,
such as "[2, 2]" and "True". Everything is checked: what does not look like this is not recorded.

A multiplication and an addition are 2 FLOP; what is added to a product, or scales it, is not
counted. Bytes are those of every tensor that is read or written, once: what no cache can save.
Operators that hardly compute have bytes only.

A product of M x K and K x N is 2 M N K, times the batch.

Attention, with Q heads and T query positions per batch entry B, S key positions, head dimensions D
of query and key and E of the value: forward 2 B Q T S (D + E), which is 4 B Q T S D for D = E;
backward 2 B Q T S (3 D + 2 E), 2.5 times as much, because the scores are computed anew. A causal
mask halves both, where it is known to be one and T = S; where T and S differ there is no model. A
mask given as a tensor counts as none. Sequences of several lengths in one tensor, and sliding
windows, have no model: the lengths are not in the trace.

A convolution is 2 N K P Q (C / groups) R S: for each element of the output (N, K, P, Q) one product
with the filter (C / groups, R, S), in any number of dimensions. A transposed one has that for each
element of the input. Each gradient costs as much as the convolution itself. The bias is not
counted. The size of the output is in no trace: without the recorded stride, padding and dilation
there is no model of a convolution, and without the recorded list of what is wanted none of its
gradients.

PyTorch's torch.utils.flop_counter counts the same, but not the causal mask, and the gradient of
grouped filters `groups` times. Dao et al.: FlashAttention, NeurIPS 2022, and FlashAttention-2, ICLR
2024, section 4.1, which also halves for a causal mask. Positions of the arguments: PyTorch's
native_functions.yaml, flash-attention's flash_attn_interface.py.
"""

import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

with Path(__file__).with_name("operators.toml").open("rb") as _file:
    _LISTED = tomllib.load(_file)
TYPES: dict[str, tuple[str, int]] = _LISTED["types"]
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
        match = _INTEGERS.fullmatch(self.text(position) or "")
        return tuple(int(part) for part in match[1].split(",")) if match else None

    def flags(self, position: int) -> tuple[bool, ...] | None:
        """Return a truth value, or a list of them, None where it is not one."""
        match = _FLAGS.fullmatch(self.text(position) or "")
        return tuple(part.strip() == "True" for part in match[1].split(",")) if match else None


class Work(NamedTuple):
    """What an operator does: the model that says so, type of its operands, FLOP or None, and bytes or NaN."""

    model: str
    dtype: str
    flops: int | None
    bytes: float


_CAUSAL = {
    "True": True,
    "False": False,
    "0": False,
    "1": True,
    "2": True,
}  # numbers: kinds of mask in CUTLASS


class Form(NamedTuple):
    """Where an operator has its query, its flag or kind of mask, and what tells sequences of several lengths.

    `heads_last` is for tensors of (batch, position, head, dimension) instead of (batch, head,
    position, dimension).
    """

    causal: int
    query: int = 0
    heads_last: bool = False
    lengths: int | None = None
    windows: Sequence[int] = ()

    @property
    def backward(self) -> bool:
        """Whether it is a backward operator: these have the gradient of the output before the query."""
        return self.query == 1


FORMS = {name: Form(**at) for name, at in _LISTED["attention"].items()}


class Places(NamedTuple):
    """Positions of a convolution's arguments; None where the operator has no such argument."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | None = None
    output_padding: int | None = None


PLACES = {name: Places(**at) for name, at in _LISTED["convolution"].items()}


def stored(elements: int, dtype: str) -> float:
    """Return the bytes of so many elements of a type, NaN where the type is not known."""
    return elements * _SIZES[dtype] if dtype in _SIZES else math.nan


def parsed(shapes: object, dtypes: object = None, concrete: object = None) -> Inputs | None:
    """Return the arguments of an operator, None where the shapes were not recorded or are not a list.

    The texts are "Input Dims", "Input type" and "Concrete Inputs" as recorded; anything else is not
    recorded.
    """
    sizes = _listed(shapes)
    if sizes is None:
        return None
    return Inputs(
        tuple(
            tuple(size)
            if isinstance(size, list) and all(type(n) is int and n >= 0 for n in size)
            else None
            for size in sizes
        ),
        tuple(dtype if isinstance(dtype, str) else "" for dtype in _listed(dtypes) or ()),
        tuple(text if isinstance(text, str) else "" for text in _listed(concrete) or ()) or None,
    )


def _listed(text: object) -> list[object] | None:
    """Return what a JSON list holds, None for anything else."""
    if not isinstance(text, str) or len(text) > LONGEST:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, list) else None


def gemm(
    given: Inputs,
    *,
    first: int = 0,
    added: int | None = None,
    turned: bool = False,
    result: str = "",
) -> Work | None:
    """Return the work of a product of the tensors at `first` and after it, vectors and batches as torch.matmul does.

    `added` is the position of what is added to the product; with `turned` the second matrix is N x
    K; `result` is the type of the product where it is not that of its operands.
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
    moved = (
        left.nbytes
        + right.nbytes
        + stored(out, result or left.dtype)
        + (more.nbytes if more else 0)
    )
    return Work("gemm", left.dtype, 2 * out * a[-1], moved)


def embedding(given: Inputs) -> Work | None:
    """Return the traffic of rows taken from a table: the row numbers, the rows, and the rows again as output."""
    table, rows = given.tensor(0), given.tensor(1)
    if table is None or rows is None or len(table.shape) != 2:
        return None
    return Work(
        "embedding",
        table.dtype,
        None,
        rows.nbytes + 2 * stored(rows.elements * table.shape[1], table.dtype),
    )


def operands(given: Inputs) -> list[Tensor]:
    """Return the tensors that have dimensions."""
    return [t for i in range(len(given.shapes)) if (t := given.tensor(i)) is not None and t.shape]


def result(tensors: list[Tensor]) -> Tensor | None:
    """Return what an operator on every element of tensors of one type writes, None where they do not fit together."""
    out: tuple[int, ...] | None = ()
    for tensor in tensors:
        out = None if out is None else broadcast(out, tensor.shape)
    return (
        Tensor(out, tensors[0].dtype)
        if out and len({tensor.dtype for tensor in tensors}) == 1
        else None
    )


def elementwise(given: Inputs) -> Work | None:
    """Return the traffic of an operator on every element of tensors of one type: all are read, the result written."""
    tensors = operands(given)
    out = result(tensors)
    return (
        Work("elementwise", out.dtype, None, sum(t.nbytes for t in tensors) + out.nbytes)
        if out
        else None
    )


def copied(given: Inputs) -> Work | None:
    """Return the traffic of aten::copy_: the second tensor is read, the first written, each in its own type."""
    target, source = given.tensor(0), given.tensor(1)
    if target is None or source is None:
        return None
    return Work("elementwise", target.dtype, None, source.nbytes + target.nbytes)


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of two shapes together, None where they do not fit.

    >>> broadcast((8, 1), (4,)), broadcast((8, 2), (4,))
    ((8, 4), None)
    """
    pairs = list(zip_longest(a[::-1], b[::-1], fillvalue=1))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in reversed(pairs))


def attention(given: Inputs, form: Form) -> Work | None:
    """Return operations and traffic of an operator of that form; each tensor is read or written once."""
    query, key, value = (given.tensor(form.query + i) for i in range(3))
    if query is None or key is None or value is None or query.dtype not in (*FLOATS, ""):
        return None
    shapes = [t.shape for t in (query, key, value)]
    if form.heads_last:
        shapes = [(s[0], s[2], s[1], s[3]) if len(s) == 4 else s for s in shapes]
    sizes = _attention_sizes(*shapes)
    lengths = given.tensor(form.lengths) if form.lengths is not None else None
    # Sequences of several lengths; an empty tensor is none
    several = lengths is not None and lengths.elements > 1
    # Only near positions see each other
    windowed = any(given.text(at) not in (None, "", "-1") for at in form.windows)
    # Without recorded arguments it is not causal, as in PyTorch's counter; None is unclear.
    causal = _CAUSAL.get(given.text(form.causal) or "") if given.concrete else False
    if sizes is None or causal is None or several or windowed:
        return None
    heads, queries, keys, query_width, value_width = sizes
    if causal and queries != keys:
        return None
    widths = (3, 2) if form.backward else (1, 1)
    flops = 2 * heads * queries * keys * (widths[0] * query_width + widths[1] * value_width)
    out = stored(heads * queries * value_width, query.dtype)
    moved = (query.nbytes + key.nbytes + value.nbytes + out) * (2 if form.backward else 1)
    model = ("causal_" if causal else "") + "attention" + ("_backward" if form.backward else "")
    return Work(model, query.dtype, flops // 2 if causal else flops, moved)


def _attention_sizes(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return batch times query heads, query and key positions, head dimensions of query and value, if they fit.

    Several heads of the query may share one of key and value.
    """
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, queries, width = query
    fits = (
        key[0] == value[0] == batch
        and key[1] == value[1]
        and key[2] == value[2]
        and key[3] == width
    )
    if not fits or not key[1] or heads % key[1]:
        return None
    return batch * heads, queries, key[2], width, value[3]


def convolution(given: Inputs, at: Places) -> Work | None:
    """Return the work of a convolution, None where its stride, padding and the like were not recorded."""
    image, filters = given.tensor(0), given.tensor(1)
    transposed = (False,) if at.transposed is None else given.flags(at.transposed)
    groups = given.integers(at.groups)
    if image is None or filters is None or not _fit(image, filters) or not transposed or not groups:
        return None
    sizes = _output_sizes(image, filters, given, at, transposed=transposed[0])
    inner = filters.shape[0] if transposed[0] else filters.shape[1] * groups[0]
    if sizes is None or image.shape[1] != inner:
        return None
    channels = filters.shape[1] * groups[0] if transposed[0] else filters.shape[0]
    out = image.shape[0] * channels * math.prod(sizes)
    flops = _flops(image.elements if transposed[0] else out, filters)
    return Work(
        "convolution", image.dtype, flops, image.nbytes + filters.nbytes + stored(out, image.dtype)
    )


def convolution_gradients(given: Inputs) -> Work | None:
    """Return the work of aten::convolution_backward, None where it was not recorded which gradients were wanted."""
    gradient, image, filters = (given.tensor(i) for i in range(3))
    transposed, wanted = given.flags(7), given.flags(10) or ()
    if (
        gradient is None
        or image is None
        or filters is None
        or not _fit(image, filters)
        or not transposed
    ):
        return None
    count = sum(wanted[:2])  # of the image and of the filters; the bias is the third
    if not count or len(gradient.shape) != len(image.shape):
        return None
    each = _flops((image if transposed[0] else gradient).elements, filters)
    # One of the two is read to compute the gradient of the other, which has its size.
    moved = gradient.nbytes + count * (image.nbytes + filters.nbytes)
    return Work("convolution_backward", gradient.dtype, count * each, moved)


def _fit(image: Tensor, filters: Tensor) -> bool:
    """Tell whether image and filters have the type and number of dimensions of a convolution."""
    return image.dtype in (*FLOATS, "") and len(image.shape) == len(filters.shape) >= 3


def _flops(products: int, filters: Tensor) -> int:
    return 2 * products * math.prod(filters.shape[1:])


def _output_sizes(
    image: Tensor, filters: Tensor, given: Inputs, at: Places, *, transposed: bool
) -> tuple[int, ...] | None:
    """Return the output's sizes without batch and channels, None where an argument is missing or does not fit."""
    count = len(image.shape) - 2
    extra = (
        given.integers(at.output_padding) if transposed and at.output_padding is not None else (0,)
    )
    arguments = [
        given.integers(at.stride),
        given.integers(at.padding),
        given.integers(at.dilation),
        extra,
    ]
    spread = [
        values * count if len(values) == 1 else values for values in arguments if values is not None
    ]
    if len(spread) < 4 or any(len(values) != count for values in spread) or min(spread[0]) < 1:
        return None
    dimensions = zip(image.shape[2:], filters.shape[2:], *spread, strict=True)
    sizes = tuple(_size(*of, transposed=transposed) for of in dimensions)
    return sizes if min(sizes) >= 0 else None


def _size(
    image: int,
    filters: int,
    stride: int,
    padding: int,
    dilation: int,
    extra: int,
    *,
    transposed: bool,
) -> int:
    """Return the size of a dimension of the output (PyTorch's documentation of Conv2d and ConvTranspose2d)."""
    reach = dilation * (filters - 1)
    if transposed:
        return (image - 1) * stride - 2 * padding + reach + extra + 1
    return (image + 2 * padding - reach - 1) // stride + 1
