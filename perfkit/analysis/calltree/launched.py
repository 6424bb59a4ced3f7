"""Which contexts are kernels, how long did they run, and from where were they launched?

Conventions
-----------
A kernel is what stands directly below the placeholder `<gpu kernel>`. Its time and launches are the inclusive GKER
and GKER:COUNT there; what a placeholder has alone belongs to its kernel if it has exactly one, else to a kernel without
a name, called `<gpu kernel>`. Contexts without time and launches, which only a trace refers to, are left out.

Functions
---------
launched     the kernels' contexts with their time, launches and launch site
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.paths import PYTHON, called, labelled, nearest, of_kind, parents, text, within
from perfkit.analysis.calltree.values import Floats, measured, recorded
from perfkit.analysis.intervals import Int
from perfkit.tables import CALL_METRICS, CALLTREE

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


def launched(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return one row per context of a kernel.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.

    Returns
    -------
    pandas.DataFrame
        In order of the tree. `row` int64, position in `calltree`; `entry`, `full_name` string; `total_ns`,
        `launch_count` float64, NaN where the metric was not recorded at all; `file` string and `line` Int64 of the
        nearest Python line above, `function` string, the Python function it is in; `site` string, the nearest PyTorch
        operator above, else the nearest function that is no call of the GPU's runtime. NA where there is none.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
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
