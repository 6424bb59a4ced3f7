"""How much time does each operator take, on the CPU and on the GPU, itself and with what it calls?

Conventions
-----------
As in `perfkit.analysis.operators`.

Functions
---------
summary    time and kernels of the operators, per name, shapes, ...
summed     the same, once it is known which operator launched which kernel
checked    the keys to group by
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import launching, outermost, parents, rolled_up, sums
from perfkit.analysis.statistics import numbered, ranked
from perfkit.analysis.window import Window, cut
from perfkit.tables import API_CALLS, KERNELS, OPS

KEYS = ("name", "shapes", "dtypes", "strides", "rank", "process", "thread")


class _Grouping(NamedTuple):
    """The operators: the row around each, whether it is in no other of its group, its group; and how many groups."""

    parent: Int
    first: NDArray[np.bool_]
    group: Int
    groups: int


def summary(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    by: str | Sequence[str] = "name",
    window: Window | None = None,
) -> pd.DataFrame:
    """Return count, CPU time and GPU time of the operators, grouped; each with and without the operators they call.

    Totals sum over instances as PyTorch's do, with one difference: an operator nested in one of its own group, at any
    depth, adds nothing to the totals of that group. PyTorch leaves it out only if it is the outer one's only child.

    Parameters
    ----------
    ops, kernels, api_calls
        OPS, KERNELS and API_CALLS of one execution; may be empty.
    by
        One or more of name, shapes, dtypes, strides, rank, process, thread.
    window
        (start_ns, end_ns): operators count with the part that the CPU spends in it, kernels with the part that the
        GPU does, whenever they were launched; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        By falling `gpu_total_ns`, where no kernel took time by falling `cpu_self_ns`; ties by falling count, then keys.
        The key columns as in OPS; `count` int64;
        `cpu_total_ns` int64; `cpu_self_ns` int64, without child operators, calls of the CUDA API included;
        `cpu_self_mean_ns` float64, per operator, NaN where count is 0; `gpu_total_ns` int64, time of the kernels
        launched in the operators or in those nested in them; `gpu_self_ns` int64 and `kernel_count` int64, of the
        kernels they launched themselves; `gpu_share_frac` float64, 0..1, gpu_self_ns over the time of all kernels, NaN
        where that is 0. Kernels without an operator count where name, shapes, dtypes and strides are missing and
        thread is -1 (by name a row of their own, with count 0): gpu_self_ns, kernel_count and gpu_share_frac add up to
        those of all kernels. In a window count is also 0 for operators that launched before it what runs in it.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If `by` is empty or names another column, or the window does not end after it starts.

    References
    ----------
    PyTorch, ``torch.profiler``: ``key_averages``, columns Self CPU, CPU total, Self CUDA, CUDA total, # of Calls.

    Examples
    --------
    >>> summary(OPS.empty(), KERNELS.empty(), API_CALLS.empty()).columns.tolist()[:3]
    ['name', 'count', 'cpu_total_ns']
    """
    keys = checked(by)
    parent = parents(OPS.check(ops))
    _, row = launching(ops, parent, KERNELS.check(kernels), API_CALLS.check(api_calls))
    return summed(ops, parent, kernels, row, keys=keys, window=window)


def checked(by: str | Sequence[str]) -> list[str]:
    """Return the keys to group by; raise ValueError if there is none, or one that is not of KEYS."""
    keys = [by] if isinstance(by, str) else list(by)
    if not keys or not set(keys) <= set(KEYS):
        raise ValueError(f"by: {keys} is not one or more of {list(KEYS)}")
    return keys


def summed(
    ops: pd.DataFrame, parent: Int, kernels: pd.DataFrame, row: Int, *, keys: list[str], window: Window | None
) -> pd.DataFrame:
    """Return what `summary` does, given the row of the operator around each one, and of that of each kernel."""
    names, of_op, of_kernel = _groups(ops, kernels, row, keys)
    grouping = _Grouping(parent, outermost(parent, of_op, np.arange(len(ops))), of_op, len(names))
    inside = cut(kernels[["start_ns", "dur_ns"]].assign(row=row, group=of_kernel), window)
    table = names.assign(**_on_cpu(ops, grouping, window), **_on_gpu(inside, grouping))
    table["gpu_share_frac"] = table["gpu_self_ns"] / (table["gpu_self_ns"].sum() or np.nan)
    some = (table["count"] > 0) | (table["kernel_count"] > 0) | (table["gpu_total_ns"] > 0)
    return ranked(table[some], "gpu_total_ns" if table["gpu_total_ns"].any() else "cpu_self_ns", keys)


def _groups(ops: pd.DataFrame, kernels: pd.DataFrame, row: Int, keys: list[str]) -> tuple[pd.DataFrame, Int, Int]:
    """Return the combinations of keys, that of each operator, and that of each kernel: its operator's or its own."""
    lacking = np.flatnonzero(row < 0)
    own = kernels[["rank", "process"]].take(lacking).assign(thread=np.int64(-1))
    blank = {key: pd.Categorical.from_codes(np.full(len(own), -1), ops[key].cat.categories) for key in KEYS[:4]}
    names, group = numbered(pd.concat([ops[keys], own.assign(**blank)[keys]], ignore_index=True), keys)
    of_op = group[: len(ops)]
    of_kernel = np.append(of_op, -1)[row]
    of_kernel[lacking] = group[len(ops) :]
    return names, of_op, of_kernel


def _on_cpu(ops: pd.DataFrame, by: _Grouping, window: Window | None) -> dict[str, NDArray[Any]]:
    """Return the columns of the CPU: operators and their time within the window."""
    inside = cut(ops[["start_ns", "dur_ns"]].assign(row=np.arange(len(ops))), window)
    row, dur = inside["row"].to_numpy(), np.zeros(len(ops), np.int64)
    dur[row] = inside["dur_ns"].to_numpy()
    nested = by.parent >= 0
    own = ops["self_ns"].to_numpy() if window is None else dur - sums(dur[nested], by.parent[nested], len(ops))
    count, self_ns = np.bincount(by.group[row], minlength=by.groups), sums(own, by.group, by.groups)
    mean = np.divide(self_ns, count, out=np.full(by.groups, np.nan), where=count > 0)
    total = sums(dur[by.first], by.group[by.first], by.groups)
    return {"count": count, "cpu_total_ns": total, "cpu_self_ns": self_ns, "cpu_self_mean_ns": mean}


def _on_gpu(kernels: pd.DataFrame, by: _Grouping) -> dict[str, NDArray[Any]]:
    """Return the columns of the GPU: kernels and their time, per `group`; `row` is a kernel's operator."""
    time, op, group = (kernels[column].to_numpy() for column in ("dur_ns", "row", "group"))
    lacking = op < 0
    per_op = rolled_up(sums(time[~lacking], op[~lacking], len(by.group)), by.parent)
    total = sums(per_op[by.first], by.group[by.first], by.groups) + sums(time[lacking], group[lacking], by.groups)
    return {
        "gpu_total_ns": total,
        "gpu_self_ns": sums(time, group, by.groups),
        "kernel_count": np.bincount(group, minlength=by.groups),
    }
