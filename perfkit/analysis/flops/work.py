"""What does each operator have to do: operations and bytes that follow from its shapes.

Functions
---------
operators    operations and bytes of every operator that has a model
counted      the same with the rows of OPS
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.flops import attention, convolutions, models
from perfkit.analysis.flops.models import Work
from perfkit.analysis.flops.shapes import Inputs, parsed
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import enclosing, parents
from perfkit.analysis.statistics import numbered
from perfkit.schema import Column, Table
from perfkit.tables import OPS, RANK

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
    "aten::mm": models.gemm,
    "aten::mv": models.gemm,
    "aten::bmm": models.gemm,
    "aten::matmul": models.gemm,
    "aten::addmm": partial(models.gemm, first=1, added=0),
    "aten::addmv": partial(models.gemm, first=1, added=0),
    "aten::baddbmm": partial(models.gemm, first=1, added=0),
    "aten::linear": partial(models.gemm, added=2, turned=True),
    "aten::_scaled_mm": partial(models.gemm, result="unknown"),
    "aten::convolution_backward": convolutions.convolution_gradients,
    **{name: partial(convolutions.convolution, at=at) for name, at in convolutions.PLACES.items()},
    **{name: partial(attention.attention, form=form) for name, form in attention.FORMS.items()},
    "aten::embedding": models.embedding,
    "aten::copy_": models.copied,
    **{f"aten::{name}": models.elementwise for name in _SAME_TYPE},
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

    Operators call each other: aten::linear calls aten::addmm, and both could be counted. Only those count that call
    no other that computes; copies and the like that a counted one calls are part of it.

    Parameters
    ----------
    ops
        OPS; may be empty. Where `concrete` was not recorded convolutions have no model, and no mask is known to be
        causal.

    Returns
    -------
    pandas.DataFrame
        WORK, one row per such operator: `flops` FLOP, a multiplication and an addition being 2; `bytes`; both
        float64, exact below 2**53, NaN as the table says.

    Raises
    ------
    SchemaError
        If `ops` is not an OPS table.

    References
    ----------
    See the modules `models`, `convolutions` and `attention`.

    Examples
    --------
    >>> operators(OPS.empty()).columns.tolist()
    ['rank', 'op', 'name', 'model', 'dtype', 'flops', 'bytes']
    """
    return WORK.make(counted(ops).work)


def counted(ops: pd.DataFrame) -> Counted:
    """Return what `operators` does, with the rows of OPS it is about."""
    named = np.flatnonzero(_in_registry(OPS.check(ops)["name"]))
    distinct, group = numbered(ops[_ARGUMENTS].take(named), _ARGUMENTS)
    work = pd.DataFrame([_work(row) or _NONE for row in distinct.to_dict("records")], columns=Work._fields)
    computes, moves = (known.to_numpy(bool)[group] for known in (work["flops"].notna(), work["model"] != ""))
    parent = parents(ops)
    row = _kept(parent, named[computes], named[moves & ~computes])
    work["dtype"] = work["dtype"].mask(work["dtype"] == "")
    work = work.astype({"model": "category", "dtype": "category", "flops": "float64", "bytes": "float64"})
    figures = work.take(group[np.searchsorted(named, row)]).set_axis(row)
    return Counted(row, parent, ops[["rank", "op", "name"]].take(row).set_axis(row).join(figures))


def _in_registry(names: pd.Series) -> NDArray[np.bool_]:
    """Tell which rows are of an operator with a model."""
    known = [name in MODELS for name in names.cat.categories]
    return np.append(np.array(known, bool), False)[names.cat.codes.to_numpy()]


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
