"""How many operations and bytes does a matrix product or an operator on every element take?

A multiplication and an addition are 2 FLOP; what is added to a product, or scales it, is not counted. A product of M x
K and K x N is 2 M N K, times the batch. Bytes are those of every tensor that is read or written, once: what no cache
can save. Operators that hardly compute have bytes only. PyTorch's torch.utils.flop_counter counts the same; positions
of the arguments are those of its native_functions.yaml.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple

from perfkit.analysis.flops.shapes import FLOATS, Inputs, stored


class Work(NamedTuple):
    """What an operator does: the model that says so, type of its operands, FLOP or None, and bytes or NaN."""

    model: str
    dtype: str
    flops: int | None
    bytes: float


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
