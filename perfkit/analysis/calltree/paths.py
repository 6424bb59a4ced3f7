"""Down which calls does most of a metric go, and from where was each kernel launched?

A kernel is what stands directly below the placeholder `<gpu kernel>`. Its time and launches are the inclusive GKER and
GKER:COUNT there; what a placeholder has alone belongs to its kernel if it has exactly one, else to a kernel without a
name, called `<gpu kernel>`. Contexts without time and launches, which only a trace refers to, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.totals import (
    PYTHON,
    Floats,
    called,
    labelled,
    measured,
    nearest,
    of_kind,
    parents,
    recorded,
    text,
    within,
)
from perfkit.analysis.intervals import Int
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALLTREE, NODE, RANK

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
KERNEL = "<gpu kernel>"
TIME, LAUNCHES = "GKER", "GKER:COUNT"
OPERATOR = "at::_ops::"  # PyTorch's dispatcher has one such function per operator
_STEP = re.compile(r"::(?:call|redispatch)$")
# The CUDA, HIP and Level Zero calls above a launch, nvcc's stub of the kernel, and what has no name.
_LAUNCHING = re.compile(r"cuda|hip|__device_stub_|ze[A-Z]|cu[A-Z]|<|\[|.*@0x")


class Found(NamedTuple):
    """Rows of kernels, and of the placeholder each belongs to: its own for one without a name."""

    row: Int
    placeholder: Int


def hot_path(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str, entry: str = "", at_least: float = AT_LEAST
) -> pd.DataFrame:
    """Return the way down from the root with the largest value, always into the child with the largest.

    It ends where the largest child has less than `at_least` of its parent's inclusive value: from there on the value is
    spread over several children or is the context's own.

    Parameters
    ----------
    metric
        A metric of `call_metrics`.
    entry
        Start at the root of this entry point; empty for the largest of all entry points and ranks.
    at_least
        Part of the parent's value, 0..1.

    Returns
    -------
    pandas.DataFrame
        HOT_PATH, root first; without rows where no root has a value above 0.

    Raises
    ------
    ValueError
        If `metric` was not recorded, `entry` is none of the tree, or `at_least` lies outside 0..1.

    References
    ----------
    HPCToolkit's hpcviewer, "hot path"; Hatchet, GraphFrame.hot_path(threshold=0.5).
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


def launched(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return one row per context of a kernel, in order of the tree.

    `row` int64 is its position in `calltree`; `entry`, `full_name` string; `total_ns`, `launch_count` float64, NaN
    where not recorded at all; `file` string, `line` Int64 and `function` string of the nearest Python line above;
    `site` string, the nearest PyTorch operator above, else the nearest function that is no call of the GPU's runtime;
    NA without one.
    """
    CALLTREE.check(calltree)
    known = recorded(CALL_METRICS.check(call_metrics))
    parent = parents(calltree)
    found = _contexts(calltree, parent)
    amounts = {m: _amount(calltree, call_metrics, m, found) for m in (TIME, LAUNCHES) if m in known}
    if amounts:
        did = np.any([amount > 0 for amount in amounts.values()], axis=0)
        found = Found(found.row[did], found.placeholder[did])
        amounts = {metric: amount[did] for metric, amount in amounts.items()}
    unknown = np.full(len(found.row), np.nan)
    table = calltree.iloc[found.row][["entry", "name"]].rename(columns={"name": "full_name"}).astype("string")
    table = table.reset_index(drop=True).assign(row=found.row)
    table["total_ns"] = amounts.get(TIME, unknown) * 1e9
    table["launch_count"] = amounts.get(LAUNCHES, unknown)
    owner = within(calltree, parent)
    python = _python(calltree, parent, owner, found.placeholder)
    return table.assign(site=_sites(calltree, parent, found.placeholder), **python)


def _contexts(calltree: pd.DataFrame, parent: Int) -> Found:
    """Return the contexts of kernels: what is below placeholders, and placeholders that have not one kernel."""
    holds = labelled(calltree["name"], calltree["name"].cat.categories == KERNEL)
    below = np.flatnonzero(np.append(holds, False)[parent])
    children = np.bincount(parent[below], minlength=len(parent))
    row = np.union1d(below, np.flatnonzero(holds & (children != 1)))
    return Found(row, np.where(holds[row], row, parent[row]))


def _amount(calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str, found: Found) -> Floats:
    """Return a metric's value of each kernel, 0 where none was stored."""
    values = measured(calltree, call_metrics, metric)
    inclusive, alone = np.zeros((2, len(calltree)))
    inclusive[values.row] = np.nan_to_num(values.inclusive)
    alone[values.row] = np.nan_to_num(values.exclusive)
    nameless = found.row == found.placeholder
    single = np.bincount(found.placeholder, minlength=len(calltree))[found.placeholder] == 1
    return np.where(nameless, 0.0, inclusive[found.row]) + np.where(nameless | single, alone[found.placeholder], 0.0)


def _python(calltree: pd.DataFrame, parent: Int, owner: Int, start: Int) -> dict[str, pd.Series]:
    """Return file, line and function of the nearest line of Python at or above each row of `start`."""
    module, file = calltree["module"], calltree["file"]
    frame = labelled(module, module.cat.categories == PYTHON)
    script = labelled(file, [str(name).endswith(".py") for name in file.cat.categories])
    line = of_kind(calltree, "line") & (script | np.append(frame, False)[owner])
    at = nearest(parent, line)[start]
    function = np.where(at >= 0, np.append(owner, -1)[at], -1)
    function[~np.append(frame, False)[function]] = -1
    return {
        "file": text(file, at),
        "line": calltree["line"].iloc[np.maximum(at, 0)].mask(at < 0).reset_index(drop=True),
        "function": text(calltree["name"], function),
    }


def _sites(calltree: pd.DataFrame, parent: Int, start: Int) -> pd.Series:
    """Return what launched, for each row of `start`."""
    names, module = calltree["name"], calltree["module"]
    host = of_kind(calltree, "function") & ~labelled(module, module.cat.categories == PYTHON)
    operator = host & labelled(names, [str(name).startswith(OPERATOR) for name in names.cat.categories])
    other = host & ~labelled(names, [bool(_LAUNCHING.match(str(name))) for name in names.cat.categories])
    at = nearest(parent, operator)[start]
    at = np.where(at >= 0, at, nearest(parent, other)[start])
    found = text(names, at)
    said = {name: _STEP.sub("", called(name)) for name in found.dropna().unique()}
    return found.map(said).astype("string")
