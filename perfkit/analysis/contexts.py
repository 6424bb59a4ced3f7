"""Who launches a kernel: which operator of the framework, and which path of calls?

Conventions
-----------
An operator is joined by rank, process and correlation id, which hold within one execution: the operators of
another run match nothing. A call path is joined by the kernel's name. Where several call for a kernel, the one with
the most time is named.

Functions
---------
operators     the operator of each kernel name
call_paths    the call path of each kernel name
"""

from __future__ import annotations

import pandas as pd

from perfkit import names
from perfkit.tables import CALL_METRICS, CALLTREE, OPS

SEPARATOR = " > "
_TIMES = ("ns", "s")


def operators(kernels: pd.DataFrame, ops: pd.DataFrame) -> pd.Series:
    """Return the framework operator in which most of each kernel's time was launched.

    Parameters
    ----------
    kernels
        KERNELS; may be empty.
    ops
        OPS; may be empty. Of operators that share a correlation id the innermost counts.

    Returns
    -------
    pandas.Series
        Operator (string) by kernel name; a name that none launched is not in it.

    Raises
    ------
    SchemaError
        If `ops` is not an OPS table.

    Examples
    --------
    >>> from perfkit.tables import KERNELS
    >>> len(operators(KERNELS.empty(), OPS.empty()))
    0
    """
    keys = ["rank", "process", "correlation"]
    launching = OPS.check(ops)[ops["correlation"] >= 0].drop_duplicates(keys, keep="last")
    launching = launching[[*keys, "name"]].rename(columns={"name": "operator"})
    joined = kernels[[*keys, "name", "dur_ns"]].merge(launching, on=keys)
    joined = joined.astype({"name": "string", "operator": "string"})
    time = joined.groupby(["name", "operator"])["dur_ns"].sum().reset_index()
    most = time.sort_values(["dur_ns", "operator"], ascending=[False, True], kind="stable").drop_duplicates("name")
    return most.set_index("name")["operator"]


def call_paths(calltree: pd.DataFrame, call_metrics: pd.DataFrame | None = None) -> pd.Series:
    """Return the path of calls to each name in the call tree that has no callees: its launch site.

    Parameters
    ----------
    calltree
        CALLTREE; may be empty.
    call_metrics
        CALL_METRICS; of several paths the one with the most time is taken, without metrics the first.

    Returns
    -------
    pandas.Series
        Path from the root, names joined by " > " (string), by short kernel name.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.

    Examples
    --------
    >>> len(call_paths(CALLTREE.empty()))
    0
    """
    keys = ["rank", "node"]
    tree = CALLTREE.check(calltree)[[*keys, "parent", "name"]].astype({"parent": "Int64", "name": "string"})
    parents = pd.MultiIndex.from_frame(tree[["rank", "parent"]].dropna().astype("int64"))
    nodes = pd.MultiIndex.from_frame(tree[keys].astype("int64"))
    leaf = tree[~nodes.isin(parents)].copy()
    metrics = (CALL_METRICS.empty() if call_metrics is None else CALL_METRICS.check(call_metrics)).astype(
        {"unit": "string"}
    )
    time = metrics[metrics["unit"].isin(_TIMES)].groupby(keys)["inclusive"].max().rename("time")
    leaf = leaf.merge(time.reset_index(), on=keys, how="left").sort_values("time", ascending=False, kind="stable")
    leaf["kernel"] = [names.short(name) for name in leaf["name"].fillna("")]
    leaf = leaf.drop_duplicates("kernel").reset_index(drop=True)
    return pd.Series(_paths(leaf, tree).to_numpy(), leaf["kernel"], dtype="string")


def _paths(leaf: pd.DataFrame, tree: pd.DataFrame) -> pd.Series:
    """Walk up from the leaves, all of them one step at a time."""
    above = tree.rename(columns={"node": "at", "parent": "next", "name": "called"}).astype({"at": "Int64"})
    path, at = leaf["name"].fillna(""), leaf[["rank"]].assign(at=leaf["parent"])
    for _ in range(len(tree)):
        if at["at"].isna().all():
            break
        step = at.merge(above, on=["rank", "at"], how="left")
        path = (step["called"].fillna("") + SEPARATOR + path).where(step["called"].notna(), path)
        at = at.assign(at=step["next"])
    return path
