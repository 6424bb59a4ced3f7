"""Which operators of PyTorch do no work of their own when BERT runs, and what are their arguments?

Functions
---------
dims_of, count, swapped          of a tensor
strided, viewed                  views
empty, empty_strided, dropout    what a batch needs besides
moved                            a copy to the GPU or back
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from make.mlp_parts import NONE, SIZES, Input, Span, contiguous, copied, listed, op, scalar

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
