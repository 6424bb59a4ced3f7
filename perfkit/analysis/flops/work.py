"""How many operations and bytes does each operator take, from the shapes of its operands?

Conventions
-----------
Attention, with Q heads and T query positions per batch entry B, S key positions, head dimensions D of query and key and
E of the value: forward 2 B Q T S (D + E), which is 4 B Q T S D for D = E; backward 2 B Q T S (3 D + 2 E), 2.5 times as
much, because the scores are computed anew. A causal mask halves both, where it is known to be one and T = S; where T
and S differ there is no model. A mask given as a tensor counts as none. Sequences of several lengths in one tensor, and
sliding windows, have no model: the lengths are not in the trace.

A convolution is 2 N K P Q (C / groups) R S: for each element of the output (N, K, P, Q) one product with the filter (C
/ groups, R, S), in any number of dimensions. A transposed one has that for each element of the input. Each gradient
costs as much as the convolution itself. The bias is not counted. The size of the output is in no trace: without the
recorded stride, padding and dilation there is no model of a convolution, and without the recorded list of what is
wanted none of its gradients. Bytes are those of every tensor that is read or written, once.

References
----------
Dao et al.: FlashAttention, NeurIPS 2022, and FlashAttention-2, ICLR 2024, section 4.1, which also halves for a causal
mask. PyTorch's torch.utils.flop_counter gives the same without that half, and counts the gradient of grouped filters
`groups` times. Positions of the arguments: PyTorch's native_functions.yaml, flash-attention's flash_attn_interface.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import where
from perfkit.analysis.flops import shapes
from perfkit.analysis.flops.shapes import FLOATS, Inputs, Tensor, Work, parsed, stored
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.join import enclosing, parents
from perfkit.schema import Column, Table
from perfkit.tables import OPS, RANK

_CAUSAL = {"True": True, "False": False, "0": False, "1": True, "2": True}  # numbers: kinds of mask in CUTLASS


class Form(NamedTuple):
    """Where an operator has its query, its flag or kind of mask, and what tells sequences of several lengths.

    `heads_last` is for tensors of (batch, position, head, dimension) instead of (batch, head, position, dimension).
    """

    causal: int
    query: int = 0
    heads_last: bool = False
    lengths: int | None = None
    windows: tuple[int, ...] = ()

    @property
    def backward(self) -> bool:
        """Whether it is a backward operator: these have the gradient of the output before the query."""
        return self.query == 1


FORMS = {
    "aten::scaled_dot_product_attention": Form(causal=5),
    "aten::_scaled_dot_product_flash_attention": Form(causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Form(causal=4),
    "aten::_scaled_dot_product_efficient_attention": Form(causal=6),
    "aten::_scaled_dot_product_cudnn_attention": Form(causal=6),
    "aten::_cudnn_attention_forward": Form(causal=10, lengths=4),
    "aten::_flash_attention_forward": Form(causal=8, heads_last=True, lengths=3, windows=(11, 12)),
    "aten::_efficient_attention_forward": Form(causal=9, heads_last=True, lengths=4, windows=(13,)),
    "flash_attn::_flash_attn_forward": Form(causal=5, heads_last=True, windows=(6, 7)),
    "aten::_scaled_dot_product_flash_attention_backward": Form(causal=11, query=1, lengths=6),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Form(causal=7, query=1),
    "aten::_scaled_dot_product_efficient_attention_backward": Form(causal=11, query=1),
    "aten::_scaled_dot_product_cudnn_attention_backward": Form(causal=14, query=1, lengths=9),
    "aten::_flash_attention_backward": Form(causal=11, query=1, heads_last=True, lengths=6, windows=(15, 16)),
    "aten::_efficient_attention_backward": Form(causal=14, query=1, heads_last=True, lengths=6, windows=(18,)),
    "flash_attn::_flash_attn_backward": Form(causal=11, query=1, heads_last=True, windows=(12, 13)),
}


class _AttentionSizes(NamedTuple):
    """Batch times query heads, query and key positions, head dimensions of query and value."""

    heads: int
    queries: int
    keys: int
    query_width: int
    value_width: int


def attention(given: Inputs, form: Form) -> Work | None:
    """Return operations and traffic of an operator of that form; each tensor is read or written once."""
    query, key, value = (given.tensor(form.query + i) for i in range(3))
    if query is None or key is None or value is None or query.dtype not in (*FLOATS, ""):
        return None
    sizes = _attention_sizes(*(_heads_first(t.shape, form) for t in (query, key, value)))
    # Without recorded arguments it is not causal, as in PyTorch's counter; None is unclear.
    causal = _CAUSAL.get(given.text(form.causal) or "") if given.concrete else False
    if sizes is None or causal is None or _uneven(given, form) or (causal and sizes.queries != sizes.keys):
        return None
    widths = (3, 2) if form.backward else (1, 1)
    pairs = sizes.heads * sizes.queries * sizes.keys
    flops = 2 * pairs * (widths[0] * sizes.query_width + widths[1] * sizes.value_width)
    out = stored(sizes.heads * sizes.queries * sizes.value_width, query.dtype)
    moved = (query.nbytes + key.nbytes + value.nbytes + out) * (2 if form.backward else 1)
    model = ("causal_" if causal else "") + "attention" + ("_backward" if form.backward else "")
    return Work(model, query.dtype, flops // 2 if causal else flops, moved)


def _heads_first(shape: tuple[int, ...], form: Form) -> tuple[int, ...]:
    return (shape[0], shape[2], shape[1], shape[3]) if form.heads_last and len(shape) == 4 else shape


def _attention_sizes(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> _AttentionSizes | None:
    """Return the sizes if the three fit together; several heads of the query may share one of key and value."""
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, queries, width = query
    fits = key[0] == value[0] == batch and key[1] == value[1] and key[2] == value[2] and key[3] == width
    if not fits or not key[1] or heads % key[1]:
        return None
    return _AttentionSizes(batch * heads, queries, key[2], width, value[3])


def _uneven(given: Inputs, form: Form) -> bool:
    """Tell whether there are sequences of several lengths, or a window of positions that see each other."""
    lengths = given.tensor(form.lengths) if form.lengths is not None else None
    several = lengths is not None and lengths.elements > 1  # an empty tensor stands for none
    return several or any(given.text(at) not in (None, "", "-1") for at in form.windows)


class Places(NamedTuple):
    """Positions of a convolution's arguments; None where the operator has no such argument."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | None = None
    output_padding: int | None = None


PLACES = {
    "aten::convolution": Places(stride=3, padding=4, dilation=5, groups=8, transposed=6, output_padding=7),
    "aten::_convolution": Places(stride=3, padding=4, dilation=5, groups=8, transposed=6, output_padding=7),
    "aten::cudnn_convolution": Places(stride=3, padding=2, dilation=4, groups=5),
    "aten::miopen_convolution": Places(stride=4, padding=3, dilation=5, groups=6),
    "aten::mkldnn_convolution": Places(stride=4, padding=3, dilation=5, groups=6),
}


class _Dimension(NamedTuple):
    """One spatial dimension of a convolution."""

    image: int
    filters: int
    stride: int
    padding: int
    dilation: int
    output_padding: int

    def size(self, *, transposed: bool) -> int:
        """Return the size of the output (PyTorch's documentation of Conv2d and ConvTranspose2d)."""
        reach = self.dilation * (self.filters - 1)
        if transposed:
            return (self.image - 1) * self.stride - 2 * self.padding + reach + self.output_padding + 1
        return (self.image + 2 * self.padding - reach - 1) // self.stride + 1


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
    return Work("convolution", image.dtype, flops, image.nbytes + filters.nbytes + stored(out, image.dtype))


def convolution_gradients(given: Inputs) -> Work | None:
    """Return the work of aten::convolution_backward, None where it was not recorded which gradients were wanted."""
    gradient, image, filters = (given.tensor(i) for i in range(3))
    transposed, wanted = given.flags(7), given.flags(10) or ()
    if gradient is None or image is None or filters is None or not _fit(image, filters) or not transposed:
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
    extra = given.integers(at.output_padding) if transposed and at.output_padding is not None else (0,)
    arguments = [given.integers(at.stride), given.integers(at.padding), given.integers(at.dilation), extra]
    spread = [values * count if len(values) == 1 else values for values in arguments if values is not None]
    if len(spread) < 4 or any(len(values) != count for values in spread) or min(spread[0]) < 1:
        return None
    each = map(_Dimension, image.shape[2:], filters.shape[2:], *spread)
    sizes = tuple(dimension.size(transposed=transposed) for dimension in each)
    return sizes if min(sizes) >= 0 else None


WORK = Table(
    "WORK",
    "an operator whose work follows from its shapes",
    (
        RANK,
        Column("op", "int64", "number of the operator, as in OPS"),
        Column("name", "category", "operator such as aten::mm"),
        Column("model", "category", "gemm, convolution, attention, ..., with _backward for gradients"),
        Column("dtype", "category", "type of its operands such as bf16; missing when not recorded"),
        Column("flops", "float64", "operations, FLOP; NaN for a model of bytes alone"),
        Column("bytes", "float64", "bytes of every tensor read or written, once; NaN when a type is not known"),
    ),
    ("rank", "op"),
)
_SAME_TYPE = (
    *("abs", "cos", "exp", "gelu", "log", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "sqrt"),
    *("tanh", "add", "div", "maximum", "minimum", "mul", "sub", "gelu_backward", "sigmoid_backward", "silu_backward"),
    *("tanh_backward", "threshold_backward", "relu_", "sigmoid_", "silu_", "tanh_", "add_", "div_", "mul_", "sub_"),
)
MODELS: dict[str, Callable[[Inputs], Work | None]] = {
    "aten::mm": shapes.gemm,
    "aten::mv": shapes.gemm,
    "aten::bmm": shapes.gemm,
    "aten::matmul": shapes.gemm,
    "aten::addmm": partial(shapes.gemm, first=1, added=0),
    "aten::addmv": partial(shapes.gemm, first=1, added=0),
    "aten::baddbmm": partial(shapes.gemm, first=1, added=0),
    "aten::linear": partial(shapes.gemm, added=2, turned=True),
    "aten::_scaled_mm": partial(shapes.gemm, result="unknown"),
    "aten::convolution_backward": convolution_gradients,
    **{name: partial(convolution, at=at) for name, at in PLACES.items()},
    **{name: partial(attention, form=form) for name, form in FORMS.items()},
    "aten::embedding": shapes.embedding,
    "aten::copy_": shapes.copied,
    **{f"aten::{name}": shapes.elementwise for name in _SAME_TYPE},
}
_ARGUMENTS = ["name", "shapes", "dtypes", "concrete"]
_NONE = Work("", "", None, np.nan)
_MOST = float(1 << 63)  # FLOP or bytes: no operator does as much, so the shapes are not what was run


class Counted(NamedTuple):
    """Rows of OPS that count, ascending; the row of every operator's parent; WORK of the rows, in their order."""

    row: Int
    parent: Int
    work: pd.DataFrame


def operators(ops: pd.DataFrame) -> pd.DataFrame:
    """Return operations and bytes of every operator that has a model and its shapes, the innermost such only.

    Operators call each other: aten::linear calls aten::addmm, and both could be counted. Only those count that call no
    other that computes; copies and the like that a counted one calls are part of it. Where `concrete` was not recorded
    convolutions have no model, and no mask is known to be causal.

    Returns
    -------
    pandas.DataFrame
        WORK, one row per such operator; FLOP and bytes are exact below 2**53.
    """
    return WORK.make(counted(ops).work)


def counted(ops: pd.DataFrame) -> Counted:
    """Return what `operators` does, with the rows of OPS it is about."""
    named = np.flatnonzero(where(OPS.check(ops)["name"], MODELS.__contains__))
    distinct, group = numbered(ops[_ARGUMENTS].take(named), _ARGUMENTS)
    work = pd.DataFrame([_work(row) or _NONE for row in distinct.to_dict("records")], columns=Work._fields)
    computes, moves = (known.to_numpy(bool)[group] for known in (work["flops"].notna(), work["model"] != ""))
    parent = parents(ops)
    row = _kept(parent, named[computes], named[moves & ~computes])
    work["dtype"] = work["dtype"].mask(work["dtype"] == "")
    work = work.astype({"model": "category", "dtype": "category", "flops": "float64", "bytes": "float64"})
    figures = work.take(group[np.searchsorted(named, row)]).set_axis(row)
    return Counted(row, parent, ops[["rank", "op", "name"]].take(row).set_axis(row).join(figures))


def _work(row: dict[Hashable, Any]) -> Work | None:
    """Return what an operator with these arguments does, None where it cannot be told."""
    given = parsed(row["shapes"], row["dtypes"], row["concrete"])
    found = MODELS[row["name"]](given) if given else None
    return None if found and max(found.flops or 0, found.bytes) > _MOST else found


def _kept(parent: Int, computes: Int, moves: Int) -> Int:
    """Return the rows to count, ascending: the innermost that compute, and the innermost others outside of these."""
    inner = computes[~_encloses(parent, computes)[computes]]
    marked = np.zeros(len(parent), bool)
    marked[inner] = True
    apart = np.ones(len(moves), bool)
    for who, at in enclosing(parent, parent[moves]):
        apart[who[marked[at]]] = False
    outside = moves[apart]
    around = _encloses(parent, np.concatenate([inner, outside]))
    return np.sort(np.concatenate([inner, outside[~around[outside]]]))


def _encloses(parent: Int, rows: Int) -> NDArray[np.bool_]:
    """Tell of every operator whether it encloses one of the rows."""
    found = np.zeros(len(parent), bool)
    for _, at in enclosing(parent, parent[rows]):
        found[at] = True
    return found
