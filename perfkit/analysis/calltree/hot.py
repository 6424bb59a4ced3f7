"""Down which calls does most of a metric go?

Functions
---------
hot_path    the chain of the largest callees
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.paths import parents
from perfkit.analysis.calltree.values import Floats, measured
from perfkit.analysis.intervals import Int
from perfkit.schema import Column, Table
from perfkit.tables import NODE, RANK

AT_LEAST = 0.5  # hpcviewer's and Hatchet's threshold

HOT_PATH = Table(
    "HOT_PATH",
    "a context on the hot path",
    (
        RANK,
        Column("depth", "int32", "distance from the root"),
        NODE,
        Column("kind", "category", "kind of context"),
        Column("name", "category", "name of the context"),
        Column("file", "category", "source file; missing when unknown"),
        Column("line", "Int64", "source line; NA when unknown"),
        Column("module", "category", "load module; missing when unknown"),
        Column("unit", "category", "unit of the metric"),
        Column("inclusive", "float64", "value with everything called from here"),
        Column("share_frac", "float64", "share of the root's value"),
    ),
    ("depth",),
)


def hot_path(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str, entry: str = "", at_least: float = AT_LEAST
) -> pd.DataFrame:
    """Return the way down from the root with the largest value, always into the child with the largest.

    It ends where the largest child has less than `at_least` of its parent's inclusive value: from there on the value
    is spread over several children or is the context's own.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.
    metric
        A metric of `call_metrics`.
    entry
        Start at the root of this entry point; empty for the largest of all entry points and ranks.
    at_least
        Part of the parent's value, 0 to 1.

    Returns
    -------
    pandas.DataFrame
        HOT_PATH, root first; without rows where no root has a value above 0. `inclusive` float64 in `unit`;
        `share_frac` float64 of the root's value.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
    ValueError
        If `metric` was not recorded, `entry` is none of the tree, or `at_least` lies outside 0..1.

    References
    ----------
    HPCToolkit's hpcviewer, "hot path"; Hatchet, GraphFrame.hot_path(threshold=0.5).

    Examples
    --------
    >>> from perfkit.tables import CALL_METRICS, CALLTREE
    >>> len(hot_path(CALLTREE.empty(), CALL_METRICS.empty(), metric="CPUTIME"))
    0
    """
    if not 0 <= at_least <= 1:
        raise ValueError(f"at_least: {at_least} is not within 0 to 1")
    found = measured(calltree, call_metrics, metric)
    value = np.full(len(calltree), np.nan)
    value[found.row] = found.inclusive
    parent = parents(calltree)
    root = _root(calltree, value, entry)
    rows = np.array(list(_down(root, value, _largest_child(parent, value), at_least)), np.int64)
    table = calltree.iloc[rows][["rank", "depth", "node", "kind", "name", "file", "line", "module"]]
    return HOT_PATH.make(table.assign(unit=found.unit, inclusive=value[rows], share_frac=value[rows] / value[rows[:1]]))


def _root(calltree: pd.DataFrame, value: Floats, entry: str) -> int:
    """Return the row of the root with the largest value; -1 where none has one above 0."""
    roots = calltree["parent"].isna().to_numpy()
    if entry and len(calltree):
        named = calltree["entry"].astype("string")
        if entry not in (known := sorted(named[roots].unique())):
            raise ValueError(f"entry: {entry!r} is not one of {known}")
        roots = roots & named.eq(entry).to_numpy(bool)
    candidates = np.flatnonzero(roots & (value > 0))
    return int(candidates[np.argmax(value[candidates])]) if len(candidates) else -1


def _largest_child(parent: Int, value: Floats) -> Int:
    """Return the row of the child with the largest value of each context, the first of equals; -1 for none."""
    rows = np.flatnonzero((parent >= 0) & ~np.isnan(value))[::-1]
    most = np.full(len(parent), -np.inf)
    np.maximum.at(most, parent[rows], value[rows])
    rows = rows[value[rows] == most[parent[rows]]]
    largest = np.full(len(parent), -1, np.int64)
    largest[parent[rows]] = rows  # of several that are written to one place the last stays
    return largest


def _down(row: int, value: Floats, largest: Int, at_least: float) -> Iterator[int]:
    while row >= 0:
        yield row
        child = int(largest[row])
        row = child if child >= 0 and value[child] > 0 and value[child] >= at_least * value[row] else -1
