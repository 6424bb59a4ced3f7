"""How much arithmetic and traffic do the framework's operators ask for, and what rates does the GPU reach in them?

Analytic: everything follows from the shapes that the trace recorded (`shapes`), nothing is counted
by hardware. Real traffic is at least the bytes given here. What the shapes do not tell has no
model, and the share of the GPU time that has one is always stated. The types are those of the
operands: fp32 may have been computed in TF32. Tables may be empty; another table raises
SchemaError.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from perfkit.analysis.causes import where
from perfkit.analysis.efficiency import credible
from perfkit.analysis.flops import shapes
from perfkit.analysis.flops.shapes import Inputs, Work, parsed
from perfkit.analysis.grouping import numbered, ranked
from perfkit.analysis.intervals import Bool, Int, share
from perfkit.analysis.operators.totals import enclosing, parents, rows_of, sums
from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table, unique
from perfkit.tables import OPS, RANK

_SAME_TYPE = (
    *(
        "abs",
        "cos",
        "exp",
        "gelu",
        "log",
        "neg",
        "reciprocal",
        "relu",
        "rsqrt",
        "sigmoid",
        "silu",
        "sin",
        "sqrt",
    ),
    *(
        "tanh",
        "add",
        "div",
        "maximum",
        "minimum",
        "mul",
        "sub",
        "gelu_backward",
        "sigmoid_backward",
        "silu_backward",
    ),
    *(
        "tanh_backward",
        "threshold_backward",
        "relu_",
        "sigmoid_",
        "silu_",
        "tanh_",
        "add_",
        "div_",
        "mul_",
        "sub_",
    ),
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
    "aten::convolution_backward": shapes.convolution_gradients,
    **{name: partial(shapes.convolution, at=at) for name, at in shapes.PLACES.items()},
    **{name: partial(shapes.attention, form=form) for name, form in shapes.FORMS.items()},
    "aten::embedding": shapes.embedding,
    "aten::copy_": shapes.copied,
    **{f"aten::{name}": shapes.elementwise for name in _SAME_TYPE},
}
_ARGUMENTS = ["name", "shapes", "dtypes", "concrete"]
_NONE = Work("", "", None, np.nan)
# FLOP or bytes: no operator does as much, so the shapes are not what was run
_MOST = float(1 << 63)


GPU_TIME = Table(
    "GPU_TIME",
    "a kernel, or all kernels that an operator itself launched",
    (
        RANK,
        Column("op", "int64", "innermost operator that launched it, as in OPS; -1 none"),
        Column("gpu_ns", "int64", "duration of the kernels, ns"),
    ),
    ("rank", "op"),
)
OPERATOR_POINTS = Table(
    "OPERATOR_POINTS",
    "all operators of a name, model and type",
    (
        RANK,
        Column("name", "category", "operator such as aten::mm"),
        Column(
            "model", "category", "gemm, convolution, attention, ..., with _backward for gradients"
        ),
        Column("dtype", "category", "type of the operands; missing when not recorded"),
        Column("count", "int64", "operators with GPU time"),
        Column(
            "untimed_count",
            "int64",
            "operators without GPU time, which count for nothing else here",
        ),
        Column("flops", "float64", "operations, FLOP; NaN for a model of bytes alone"),
        Column(
            "bytes",
            "float64",
            "bytes of every tensor read or written, once; NaN when a type is not known",
        ),
        Column("gpu_ns", "int64", "sum of the durations of their kernels, ns"),
        Column("flops_per_s", "float64", "flops over gpu_ns, FLOP/s"),
        Column("bytes_per_s", "float64", "bytes over gpu_ns, bytes/s"),
        Column("intensity", "float64", "flops over bytes, FLOP/byte"),
    ),
    ("rank", "name", "model", "dtype"),
)
__all__ = [
    "GPU_TIME",
    "OPERATOR_POINTS",
    "coverage",
    "fusible",
    "mfu",
    "roofline",
]


def counted(ops: pd.DataFrame) -> tuple[Int, Int, pd.DataFrame]:
    """Return the rows of OPS that count, ascending, the row of every operator's parent, and the former's work.

    An operator counts that has a model and its shapes, the innermost such only: aten::linear calls
    aten::addmm, and both could be counted. Copies and the like that a counted one calls are part of
    it. Where `concrete` was not recorded convolutions have no model, and no mask is known to be
    causal. Work is rank, op, name, model, dtype, flops and bytes, exact below 2**53.
    """
    named = np.flatnonzero(where(OPS.check(ops)["name"], MODELS.__contains__))
    distinct, group = numbered(ops[_ARGUMENTS].take(named), _ARGUMENTS)
    work = pd.DataFrame(
        [_work(row) or _NONE for row in distinct.to_dict("records")], columns=Work._fields
    )
    computes, moves = (
        column.to_numpy(bool)[group] for column in (work["flops"].notna(), work["model"] != "")
    )
    parent = parents(ops)
    # The rows to count, ascending: the innermost that compute, and the innermost others outside of
    # these.
    working, others = named[computes], named[moves & ~computes]
    inner = working[~_encloses(parent, working)[working]]
    marked = np.zeros(len(parent), bool)
    marked[inner] = True
    apart = np.ones(len(others), bool)
    for who, at in enclosing(parent, parent[others]):
        apart[who[marked[at]]] = False
    outside = others[apart]
    around = _encloses(parent, np.concatenate([inner, outside]))
    row = np.sort(np.concatenate([inner, outside[~around[outside]]]))
    work["dtype"] = work["dtype"].mask(work["dtype"] == "")
    work = work.astype(
        {"model": "category", "dtype": "category", "flops": "float64", "bytes": "float64"}
    )
    figures = work.take(group[np.searchsorted(named, row)]).set_axis(row)
    return row, parent, ops[["rank", "op", "name"]].take(row).set_axis(row).join(figures)


def _work(row: dict[Hashable, Any]) -> Work | None:
    """Return what an operator with these arguments does, None if that is unknown."""
    given = parsed(row["shapes"], row["dtypes"], row["concrete"])
    work = MODELS[row["name"]](given) if given else None
    return None if work and max(work.flops or 0, work.bytes) > _MOST else work


def _encloses(parent: Int, rows: Int) -> Bool:
    """Tell of every operator whether it encloses one of the rows."""
    encloses = np.zeros(len(parent), bool)
    for _, at in enclosing(parent, parent[rows]):
        encloses[at] = True
    return encloses


def roofline(ops: pd.DataFrame, gpu_time: pd.DataFrame) -> pd.DataFrame:
    """Return operations, bytes, GPU time and rates of all operators of a name, model and type.

    The time of an operator is that of all kernels launched in it, also by operators it calls;
    kernels side by side add up. Sums come before quotients. Operators without a kernel on the
    timeline are counted and left out: their work was done elsewhere (on the CPU, in a graph,
    outside the recording).

    `gpu_time`: GPU_TIME, each kernel once; such as ``operators.kernels_of(ops, kernels,
    api_calls)`` with ``gpu_ns=kernels["dur_ns"]``. The kernels of a window choose the operators,
    which count in full.

    OPERATOR_POINTS, by rank, name, model and type; rates and intensity NaN where a part of them is
    unknown or 0.

    Source: Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009.
    """
    work, gpu_ns = spent(ops, gpu_time)
    names, group = numbered(work, ["rank", "name", "model", "dtype"])
    timed = gpu_ns > 0
    of = group[timed]
    names["count"] = np.bincount(of, minlength=len(names))
    names["untimed_count"] = np.bincount(group[~timed], minlength=len(names))
    for column in ("flops", "bytes"):
        total = np.bincount(of, work[column].to_numpy()[timed], minlength=len(names))
        names[column] = np.where(names["count"] > 0, total, np.nan)
    names["gpu_ns"] = sums(gpu_ns[timed], of, len(names))
    seconds = names["gpu_ns"].where(names["gpu_ns"] > 0) / 1e9
    return OPERATOR_POINTS.make(
        names.assign(
            flops_per_s=names["flops"] / seconds,
            bytes_per_s=names["bytes"] / seconds,
            intensity=names["flops"] / names["bytes"].where(names["bytes"] > 0),
        )
    )


def coverage(ops: pd.DataFrame, gpu_time: pd.DataFrame) -> pd.DataFrame:
    """Return the share of each rank's kernel time whose operator has a model: what `roofline` and `mfu` speak for.

    Kernels without operator (-1) count as not modelled. Communication kernels count too; leave them
    out of `gpu_time` for the share of the computation. One row per rank (int32), ascending:
    `gpu_ns` int64, sum of the durations of all its kernels; `flops_ns`, `bytes_ns` int64, of those
    whose operator's FLOP, or bytes, are known; `flops_frac`, `bytes_frac` float64, these over
    `gpu_ns`, 0..1, NaN where that is 0.
    """
    work, gpu_ns = spent(ops, gpu_time)
    ranks, of_kernel = np.unique(gpu_time["rank"].to_numpy(), return_inverse=True)
    table = pd.DataFrame(
        {"rank": ranks, "gpu_ns": sums(gpu_time["gpu_ns"].to_numpy(), of_kernel, len(ranks))}
    )
    timed = gpu_ns > 0
    of_work = np.searchsorted(ranks, work["rank"].to_numpy()[timed])
    for column in ("flops", "bytes"):
        modelled = work[column].notna().to_numpy(bool)[timed]
        table[f"{column}_ns"] = sums(gpu_ns[timed][modelled], of_work[modelled], len(ranks))
    for column in ("flops", "bytes"):
        table[f"{column}_frac"] = share(
            table[f"{column}_ns"].to_numpy(), table["gpu_ns"].to_numpy()
        )
    return table


def spent(ops: pd.DataFrame, gpu_time: pd.DataFrame) -> tuple[pd.DataFrame, Int]:
    """Return the work of `counted`, and the time of the kernels launched in each operator, ns.

    Kernels launched in operators that it calls count too.
    """
    row, parent, work = counted(ops)
    of_kernels = GPU_TIME.check(gpu_time)
    launching = rows_of(ops, of_kernels["rank"].to_numpy(np.int64), of_kernels["op"].to_numpy())
    own = sums(gpu_time["gpu_ns"].to_numpy()[launching >= 0], launching[launching >= 0], len(ops))
    place = np.full(len(ops), -1)
    place[row] = np.arange(len(row))
    launched = np.flatnonzero(own)
    time = np.zeros(len(row), np.int64)
    for who, at in enclosing(parent, launched):
        here = place[at] >= 0
        np.add.at(time, place[at[here]], own[launched[who[here]]])
    return work, time


def fusible(ops: pd.DataFrame, gpu_time: pd.DataFrame) -> pd.DataFrame:
    """Return operators on single elements that follow one another, and the bytes that one fused kernel does not move.

    With a kernel per operator each intermediate result is written and read again: n operators in
    one kernel save n - 1 writes and reads. A sequence are neighbours among the operators of a
    thread that launched kernels, where the next one reads a tensor of the shape and type that the
    one before it writes. The trace does not say which tensor it is, and an intermediate result may
    be needed again: this is an upper bound. `gpu_time` is as for `roofline`.

    One row per rank and sequence, by falling `saved_bytes`, ties by falling count: `rank`; `name`,
    the operators in order; `count` of the sequences; `gpu_ns` int64, the time of their kernels;
    `bytes` float64, what they read and write now; `saved_bytes` float64, 0 to bytes. Both NaN where
    a type is not known.
    """
    kernels = GPU_TIME.check(gpu_time)
    row = rows_of(ops, kernels["rank"].to_numpy(np.int64), kernels["op"].to_numpy(np.int64))
    time = sums(kernels["gpu_ns"].to_numpy()[row >= 0], row[row >= 0], len(ops))
    launching = unique(row[row >= 0])
    _, _, work = counted(ops)
    single = np.isin(launching, work.index[work["model"] == "elementwise"])
    distinct, group = numbered(ops[_ARGUMENTS].take(launching), _ARGUMENTS)
    # the tensors that an operator on single elements reads, and the one that it writes
    traffic = []
    for of in distinct.to_dict("records"):
        given = parsed(of["shapes"], of["dtypes"], of["concrete"])
        tensors = shapes.operands(given) if given else []
        copied = tensors[1:], next(iter(tensors), None)
        traffic.append(copied if of["name"] == "aten::copy_" else (tensors, shapes.result(tensors)))
    _, thread = numbered(ops.take(launching), ["rank", "process", "thread"])
    follows, saved = np.zeros(len(launching), bool), np.zeros(len(launching))
    for i in np.flatnonzero(single[1:] & single[:-1] & (thread[1:] == thread[:-1])):
        written, read = traffic[group[i]][1], traffic[group[i + 1]][0]
        if written in read:
            follows[i + 1], saved[i] = True, 2 * written.nbytes
    table = pd.DataFrame(
        {"rank": ops["rank"].to_numpy()[launching], "sequence": np.cumsum(~follows)}
    )
    name = ops["name"].astype(object).to_numpy()[launching]
    table = table.assign(name=name, gpu_ns=time[launching], saved_bytes=saved)
    table["bytes"] = work["bytes"].reindex(launching).to_numpy()
    table = table[follows | np.append(follows[1:], False)]
    unknown = (
        table["bytes"].isna().groupby([table["rank"], table["sequence"]]).any().rename("unknown")
    )
    each = table.groupby(["rank", "sequence"]).agg(
        {"name": " > ".join, "gpu_ns": "sum", "bytes": "sum", "saved_bytes": "sum"}
    )
    groups = each.join(unknown).groupby(["rank", "name"])
    found = groups.sum().assign(count=groups.size()).reset_index()
    found[["bytes", "saved_bytes"]] = found[["bytes", "saved_bytes"]].where(found["unknown"] == 0)
    return ranked(
        found[["rank", "name", "count", "gpu_ns", "bytes", "saved_bytes"]],
        "saved_bytes",
        ["rank", "name"],
    )


def mfu(points: pd.DataFrame, *, peak_flops_per_s: float, span_ns: int) -> float:
    """Return the FLOP utilisation: operations of the operators per second, over the dense peak of the GPU.

    flops / (span x peak) counts all that the operators executed, also what is computed a second
    time for the backward pass (checkpointing). It is a lower bound: operators without a model count
    for nothing.

    `points` is of `roofline`; `peak_flops_per_s` is the dense peak of the GPU in the precision of
    the operators; `span_ns` is the wall time in which the kernels ran, above 0, such as that of
    some whole steps. PerfkitError if no operator has both FLOP and GPU time, or the result is above
    1, which cannot be.

    Source: Chowdhery et al.: PaLM, arXiv 2204.02311, appendix B.
    """
    flops = float(OPERATOR_POINTS.check(points)["flops"].sum())
    if not flops > 0:
        raise PerfkitError(
            "mfu: no operator has both known operations and GPU time. "
            "Record with `record_shapes=True`, and with CUDA activities."
        )
    share = flops / (span_ns / 1e9 * peak_flops_per_s)
    credible(share, what="mfu")
    return share
