"""What rates do the operators reach, and how much of the GPU time does that speak for?

Functions
---------
roofline    operations, bytes, GPU time and rates per operator name and type
coverage    share of the GPU time whose operator has a model
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.flops.attribution import spent, summed
from perfkit.analysis.flops.work import counted
from perfkit.analysis.intervals import share
from perfkit.analysis.statistics import numbered
from perfkit.schema import Column, Table
from perfkit.tables import RANK

OPERATOR_POINTS = Table(
    "OPERATOR_POINTS",
    "all operators of a name, model and type",
    (
        RANK,
        Column("name", "category", "operator such as aten::mm"),
        Column("model", "category", "gemm, convolution, attention, ..., with _backward for gradients"),
        Column("dtype", "category", "type of the operands; missing when not recorded"),
        Column("count", "int64", "operators with GPU time"),
        Column("untimed_count", "int64", "operators without GPU time, which count for nothing else here"),
        Column("flops", "float64", "operations, FLOP; NaN for a model of bytes alone"),
        Column("bytes", "float64", "bytes of every tensor read or written, once; NaN when a type is not known"),
        Column("gpu_ns", "int64", "sum of the durations of their kernels, ns"),
        Column("flops_per_s", "float64", "flops over gpu_ns, FLOP/s"),
        Column("bytes_per_s", "float64", "bytes over gpu_ns, bytes/s"),
        Column("intensity", "float64", "flops over bytes, FLOP/byte"),
    ),
    ("rank", "name", "model", "dtype"),
)


def roofline(ops: pd.DataFrame, gpu_time: pd.DataFrame) -> pd.DataFrame:
    """Return operations, bytes, GPU time and rates of all operators of a name, model and type.

    The time of an operator is that of all kernels launched in it, also by operators it calls; kernels side by side
    add up. Sums come before quotients. Operators without a kernel on the timeline are counted and left out: their
    work was done elsewhere (on the CPU, in a graph, outside the recording).

    Parameters
    ----------
    ops
        OPS, as for `operators`; may be empty.
    gpu_time
        GPU_TIME, each kernel once; such as ``operators.kernels_of(ops, kernels, api_calls)`` with
        ``gpu_ns=kernels["dur_ns"]``. The kernels of a window choose the operators, which count in full.

    Returns
    -------
    pandas.DataFrame
        OPERATOR_POINTS, by rank, name, model and type; rates and intensity NaN where a part of them is unknown or 0.

    Raises
    ------
    SchemaError
        If a table is not of its kind.

    References
    ----------
    Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009.

    Examples
    --------
    >>> from perfkit.analysis.flops import GPU_TIME
    >>> from perfkit.tables import OPS
    >>> roofline(OPS.empty(), GPU_TIME.empty()).columns.tolist()[:4]
    ['rank', 'name', 'model', 'dtype']
    """
    found = counted(ops)
    work, gpu_ns = found.work, spent(ops, found, gpu_time)
    names, group = numbered(work, ["rank", "name", "model", "dtype"])
    timed = gpu_ns > 0
    of = group[timed]
    names["count"] = np.bincount(of, minlength=len(names))
    names["untimed_count"] = np.bincount(group[~timed], minlength=len(names))
    for column in ("flops", "bytes"):
        total = np.bincount(of, work[column].to_numpy()[timed], minlength=len(names))
        names[column] = np.where(names["count"] > 0, total, np.nan)
    names["gpu_ns"] = summed(gpu_ns[timed], of, len(names))
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

    Communication kernels count too; leave them out of `gpu_time` for the share of the computation.

    Parameters
    ----------
    ops, gpu_time
        OPS and GPU_TIME, as for `roofline`; kernels without operator (-1) count as not modelled.

    Returns
    -------
    pandas.DataFrame
        One row per rank (int32) of `gpu_time`, ascending: `gpu_ns` int64, sum of the durations of all its kernels;
        `flops_ns`, `bytes_ns` int64, of those whose operator's FLOP, or bytes, are known; `flops_frac`, `bytes_frac`
        float64, these over `gpu_ns`, 0..1, NaN where that is 0.

    Raises
    ------
    SchemaError
        If a table is not of its kind.

    Examples
    --------
    >>> from perfkit.analysis.flops import GPU_TIME
    >>> from perfkit.tables import OPS
    >>> coverage(OPS.empty(), GPU_TIME.empty()).columns.tolist()
    ['rank', 'gpu_ns', 'flops_ns', 'bytes_ns', 'flops_frac', 'bytes_frac']
    """
    found = counted(ops)
    work, gpu_ns = found.work, spent(ops, found, gpu_time)
    ranks, of_kernel = np.unique(gpu_time["rank"].to_numpy(), return_inverse=True)
    table = pd.DataFrame({"rank": ranks, "gpu_ns": summed(gpu_time["gpu_ns"].to_numpy(), of_kernel, len(ranks))})
    timed = gpu_ns > 0
    of_work = np.searchsorted(ranks, work["rank"].to_numpy()[timed])
    for column in ("flops", "bytes"):
        known = work[column].notna().to_numpy(bool)[timed]
        table[f"{column}_ns"] = summed(gpu_ns[timed][known], of_work[known], len(ranks))
    for column in ("flops", "bytes"):
        table[f"{column}_frac"] = share(table[f"{column}_ns"].to_numpy(), table["gpu_ns"].to_numpy())
    return table
