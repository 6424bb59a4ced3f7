"""Who launches a kernel: which operator of the framework, and which path of calls?

Conventions
-----------
An operator is joined through the call that launched the kernel, within one execution: the operators of
another run match nothing. A call path is joined by the kernel's name. Where several call for a kernel, the one with
the most time is named.

Functions
---------
operators     the operator and the Python line of each kernel name
call_paths    the call path of each kernel name
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis.calls import started_by
from perfkit.analysis.calltree.launched import KERNEL, launched
from perfkit.analysis.calltree.paths import described, parents
from perfkit.analysis.operators.attribution import kernels_of
from perfkit.analysis.operators.lines import lines
from perfkit.tables import CALL_METRICS, PYTHON_CALLS

_TIMES = ("ns", "s")


def operators(
    kernels: pd.DataFrame,
    ops: pd.DataFrame,
    api_calls: pd.DataFrame,
    python_calls: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the framework operator, and the Python line, in which most of each kernel's time was launched.

    Parameters
    ----------
    kernels, ops, api_calls
        KERNELS, OPS and API_CALLS of one execution; may be empty.
    python_calls
        PYTHON_CALLS of the same; None or empty where no stacks were recorded.

    Returns
    -------
    pandas.DataFrame
        `operator` and `python` (string, NA where unknown) by kernel name. The innermost operator of the launching call
        counts, as in `operators.kernels_of`; the line is that of `operators.lines`.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.

    Examples
    --------
    >>> from perfkit.tables import API_CALLS, KERNELS, OPS
    >>> len(operators(KERNELS.empty(), OPS.empty(), API_CALLS.empty()))
    0
    """
    of_kernel = kernels_of(ops, kernels, api_calls)
    by_op = ops.set_index(["rank", "op"])["name"].astype("string")
    keys = pd.MultiIndex.from_frame(of_kernel[["rank", "op"]])
    site = pd.DataFrame({"operator": by_op.reindex(keys).to_numpy()}).astype("string")
    site["python"] = pd.array(_lines(kernels, api_calls, python_calls), dtype="string")
    site = site.assign(name=kernels["name"].astype("string").to_numpy(), dur_ns=kernels["dur_ns"].to_numpy())
    time = site.groupby(["name", "operator", "python"], dropna=False)["dur_ns"].sum().reset_index()
    most = time.sort_values(["dur_ns", "operator"], ascending=[False, True], kind="stable").drop_duplicates("name")
    return most.set_index("name")[["operator", "python"]]


def _lines(kernels: pd.DataFrame, api_calls: pd.DataFrame, python_calls: pd.DataFrame | None) -> Sequence[str | None]:
    """Return the Python line of each kernel's launch; None where no stack was recorded."""
    call = started_by(kernels, api_calls)
    known = call >= 0
    found: list[str | None] = [None] * len(kernels)
    if python_calls is None or python_calls.empty or not known.any():
        return found
    at = lines(PYTHON_CALLS.check(python_calls), api_calls.iloc[call[known]])
    for row, line in zip(np.flatnonzero(known), at.astype(object), strict=True):
        found[row] = None if pd.isna(line) else line
    return found


def call_paths(calltree: pd.DataFrame, call_metrics: pd.DataFrame | None = None) -> pd.Series:
    """Return the path of calls to each kernel in the call tree: its launch site.

    A kernel stands below a placeholder `<gpu kernel>`; in a tree without any it is what has no callees.

    Parameters
    ----------
    calltree
        CALLTREE; may be empty.
    call_metrics
        CALL_METRICS; of several paths the one with the most time is taken, without metrics the first.

    Returns
    -------
    pandas.Series
        Entry point and functions from the root down, joined by " > " (string), by short kernel name.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.

    Examples
    --------
    >>> from perfkit.tables import CALLTREE
    >>> len(call_paths(CALLTREE.empty()))
    0
    """
    metrics = CALL_METRICS.empty() if call_metrics is None else call_metrics
    found = launched(calltree, metrics)[["row", "full_name", "total_ns"]]
    if found.empty and not calltree["name"].eq(KERNEL).any():
        found = _leaves(calltree, metrics)
    found["kernel"] = found["full_name"].map({name: names.short(name) for name in found["full_name"].dropna().unique()})
    found = found.sort_values("total_ns", ascending=False, kind="stable").drop_duplicates("kernel")
    paths = described(calltree, parents(calltree), found["row"].to_numpy(), found["kernel"])
    return pd.Series(paths, found["kernel"], dtype="string")


def _leaves(calltree: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Return what has no callees, with the largest of the times measured there."""
    parent = parents(calltree)
    row = np.setdiff1d(np.arange(len(parent)), parent)
    timed = metrics[metrics["unit"].isin(_TIMES)].groupby(["rank", "node"])["inclusive"].max().rename("total_ns")
    table = calltree[["rank", "node", "name"]].rename(columns={"name": "full_name"}).astype({"full_name": "string"})
    return table.iloc[row].assign(row=row).join(timed, on=["rank", "node"])[["row", "full_name", "total_ns"]]
