"""How long did the GPU work for each operator that has a model?

Functions
---------
spent     time of the kernels launched in each operator
summed    exact sums of groups
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.flops.work import Counted
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import enclosing
from perfkit.schema import Column, Table
from perfkit.tables import RANK

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


def spent(ops: pd.DataFrame, found: Counted, gpu_time: pd.DataFrame) -> Int:
    """Return the time of the kernels launched in each counted operator, or in those it calls, ns."""
    launching = _rows(ops, GPU_TIME.check(gpu_time))
    own = summed(gpu_time["gpu_ns"].to_numpy()[launching >= 0], launching[launching >= 0], len(ops))
    place = np.full(len(ops), -1)
    place[found.row] = np.arange(len(found.row))
    launched = np.flatnonzero(own)
    time = np.zeros(len(found.row), np.int64)
    for who, at in enclosing(found.parent, launched):
        here = place[at] >= 0
        np.add.at(time, place[at[here]], own[launched[who[here]]])
    return time


def _rows(ops: pd.DataFrame, named: pd.DataFrame) -> Int:
    """Return the row in `ops` of each operator that `named` has by rank and op, -1 where it is not there."""
    pairs = [(frame["rank"].to_numpy(np.int64), frame["op"].to_numpy()) for frame in (ops, named)]
    span = max(int(op.max(initial=0)) for _, op in pairs) + 1
    key, wanted = (rank * span + op for rank, op in pairs)
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], wanted)
    there = (np.append(key[order], -1)[place] == wanted) & (pairs[1][1] >= 0)
    return np.where(there, np.append(order, -1)[place], -1)


def summed(values: Int, group: Int, groups: int) -> Int:
    """Return the exact sum of the int64 values of each group."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    return total
