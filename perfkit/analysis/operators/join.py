"""Which operator was running on a thread at a moment, which operators enclose it, and which Python line called it?

Operators of one (rank, process, thread) nest. An operator runs in [start, end): one of no duration never runs, and what
starts together with an operator lies in it. Operators are named by their row (position) in OPS; -1 is none.

PyTorch names a frame ``file(line): function``, where the line is that of the function's beginning
(``torch/csrc/autograd/profiler_python.cpp``, ``CodeLocation``), a built-in ``<built-in ...>`` and a module's forward
``nn.Module: class``. The program's frames are those that are not built in, not PyTorch's own and not the standard
library's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import Axis, innermost, numbered_together, placed, started_by, where
from perfkit.analysis.grouping import grouped, in_unit, numbered, ranked
from perfkit.analysis.intervals import Int, Window, bounds, cut
from perfkit.tables import API_CALLS, KERNELS, OPS

THREAD_KEYS = ["rank", "process", "thread"]
HOW = ("launch", "outside", "none")
_NOT_A_LINE = re.compile(r"<(?:built-in|frozen|string)\b|nn\.Module: |(?:.*/)?torch/")
_MODULE = re.compile(r"(\w+)(?:/|\.py\()")


def running(ops: pd.DataFrame, parent: Int, moments: pd.DataFrame) -> Int:
    """Return the row of the innermost operator that runs on the thread of each moment, -1 where none does.

    `parent` are the `parents` of `ops`; `moments` have rank, process, thread and start_ns, the moment.

    Examples
    --------
    >>> ops = pd.DataFrame({"rank": 0, "process": 1, "thread": 1, "start_ns": [0, 10], "dur_ns": [100, 20]})
    >>> running(ops, np.array([-1, 0]), ops.assign(start_ns=[15, 30])).tolist()
    [1, 0]
    """
    of_op, of_moment = numbered_together([ops, moments], THREAD_KEYS)
    start, at = ops["start_ns"].to_numpy(), moments["start_ns"].to_numpy()
    end = start + ops["dur_ns"].to_numpy()
    axis = Axis.over(1 + int(max(of_op.max(initial=0), of_moment.max(initial=0))), start, at)
    begun, now = axis.at(of_op, start), axis.at(of_moment, at)
    order = np.argsort(begun, kind="stable")
    op = np.append(order, -1)[np.searchsorted(begun, now, side="right", sorter=order) - 1]
    op[np.append(of_op, -1)[op] != of_moment] = -1
    # The operator begun last may have ended: then the first of those around it that has not.
    open_ = np.flatnonzero(op >= 0)
    while len(open_ := open_[end[op[open_]] <= at[open_]]):
        op[open_] = parent[op[open_]]
        open_ = open_[op[open_] >= 0]
    return op


def launching(ops: pd.DataFrame, parent: Int, operations: pd.DataFrame, api_calls: pd.DataFrame) -> tuple[Int, Int]:
    """Return the call that launched each kernel or copy, and the innermost operator that made it: rows, -1 for none.

    The call is the one with the operation's correlation id; all nodes of a graph have that of the graph.
    """
    call = started_by(operations, api_calls)
    launches = np.flatnonzero(np.bincount(call[call >= 0], minlength=len(api_calls)))
    op = np.full(len(api_calls) + 1, -1, np.int64)
    op[launches] = running(ops, parent, api_calls.take(launches))
    return call, op[call]


def parents(ops: pd.DataFrame) -> Int:
    """Return the row of the operator that encloses each operator, -1 at the top or where it is not in the table."""
    rank, op, parent = (ops[column].to_numpy(np.int64) for column in ("rank", "op", "parent"))
    span = int(max(op.max(initial=0), parent.max(initial=0))) + 1
    order = np.argsort(rank * span + op, kind="stable")
    key, wanted = (rank * span + op)[order], rank * span + parent
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where((parent >= 0) & (key[place] == wanted), order[place], -1)


def enclosing(parent: Int, row: Int) -> Iterator[tuple[Int, Int]]:
    """Yield which of the `row` still lie in an operator, and that operator: first themselves, then level by level.

    Examples
    --------
    >>> [(who.tolist(), at.tolist()) for who, at in enclosing(np.array([-1, 0]), np.array([1, 0, -1]))]
    [([0, 1], [1, 0]), ([0], [0])]
    """
    who = np.flatnonzero(row >= 0)
    at = row[who]
    while len(who):
        yield who, at
        above = parent[at]
        who, at = who[above >= 0], above[above >= 0]


def rolled_up(values: Int, parent: Int) -> Int:
    """Return the value of each operator together with the values of all operators nested in it."""
    row = np.flatnonzero(values)
    total = np.zeros(len(values), np.int64)
    for who, at in enclosing(parent, row):
        np.add.at(total, at, values[row[who]])
    return total


def outermost(parent: Int, group: Int, row: Int) -> NDArray[np.bool_]:
    """Tell which of the operators in `row` lie in no operator of their own group."""
    first = np.ones(len(row), bool)
    for who, at in enclosing(parent, parent[row]):
        first[who[group[at] == group[row[who]]]] = False
    return first


def gpu_self(
    ops: pd.DataFrame, parent: Int, kernels: pd.DataFrame, api_calls: pd.DataFrame, window: Window | None
) -> Int:
    """Return the time of the kernels that each operator launched itself, ns within the window."""
    _, op = launching(ops, parent, kernels, api_calls)
    inside = cut(kernels[["start_ns", "dur_ns"]].assign(op=op), window)
    launched = inside[inside["op"] >= 0]
    return sums(launched["dur_ns"].to_numpy(), launched["op"].to_numpy(), len(ops))


def sums(values: Int, group: Int, groups: int) -> Int:
    """Return the exact sum of the integers of each of the groups 0 .. groups-1."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    return total


def named(ops: pd.DataFrame, row: Int) -> pd.Categorical:
    """Return the name of the operator in each row, missing for -1."""
    codes = np.append(ops["name"].cat.codes.to_numpy(), -1)
    return pd.Categorical.from_codes(codes[row], ops["name"].cat.categories)


def starts_inside(frame: pd.DataFrame, window: Window | None) -> NDArray[np.bool_]:
    """Tell which rows start in the window."""
    if window is None:
        return np.ones(len(frame), bool)
    first, last = bounds(window)
    start = frame["start_ns"].to_numpy()
    return np.asarray((start >= first) & (start < last))


def kernels_of(
    ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return the operator that launched each kernel: the innermost one that runs when the launch call begins.

    With a window only kernels that start in it.

    Returns
    -------
    pandas.DataFrame
        One row per kernel, with the index of `kernels`: `rank` int32; `op` int64, as in OPS, unique in its rank, -1
        where there is none; `how` category: "launch", launched in that operator; "outside", the launch call lies in no
        operator; "none", no launch call is recorded.
    """
    call, row = launching(OPS.check(ops), parents(ops), KERNELS.check(kernels), API_CALLS.check(api_calls))
    how = np.select([row >= 0, call >= 0], [0, 1], 2)
    found = kernels[["rank"]].assign(
        op=np.append(ops["op"].to_numpy(), -1)[row], how=pd.Categorical.from_codes(how, pd.Index(HOW))
    )
    return found[starts_inside(kernels, window)]


def launched(
    ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return count and time of the kernels that each operator launches itself, per operator and kernel name.

    In a window kernels count with the part inside.

    Returns
    -------
    pandas.DataFrame
        By falling `total_ns`, ties by falling count, then names: `operator` category, missing for kernels without
        operator; `kernel` category, the kernel's name; `count` int64; `total_ns`, `min_ns`, `max_ns` int64; `mean_ns`,
        `median_ns` float64; `std_ns` float64, of a sample, NaN for one launch; `share_frac` float64, total_ns over the
        time of all kernels, NaN where that is 0.
    """
    _, row = launching(OPS.check(ops), parents(ops), KERNELS.check(kernels), API_CALLS.check(api_calls))
    inside = cut(kernels.rename(columns={"name": "kernel"}).assign(operator=named(ops, row)), window)
    names, group = numbered(inside, ["operator", "kernel"])
    table = names.join(in_unit(grouped(inside["dur_ns"].to_numpy(), group, len(names)), "ns"))
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    return ranked(table, "total_ns", ["operator", "kernel"])


def lines(python_calls: pd.DataFrame, moments: pd.DataFrame) -> pd.Categorical:
    """Return the innermost frame of the program on the thread at each moment, else the innermost of all.

    A name per moment (rank, process, thread and start_ns), missing where no Python function runs.

    Examples
    --------
    >>> calls = pd.DataFrame({"rank": 0, "process": 1, "thread": 1, "start_ns": [0, 2, 3], "dur_ns": [9, 5, 2]})
    >>> names = ["train.py(3): step", "torch/_tensor.py(5): f", "<built-in method item>"]
    >>> lines(calls.assign(name=pd.Categorical(names)), calls.assign(start_ns=[4, 5, 9])).tolist()
    ['train.py(3): step', 'train.py(3): step', nan]
    """
    own = np.flatnonzero(where(python_calls["name"], _of_program))
    place = _innermost(python_calls.take(own), moments)
    row = np.where(place >= 0, np.append(own, -1)[place], _innermost(python_calls, moments))
    codes = np.append(python_calls["name"].cat.codes.to_numpy(), -1)
    return pd.Categorical.from_codes(codes[row], python_calls["name"].cat.categories)


def _of_program(name: str) -> bool:
    module = _MODULE.match(name)
    standard = module is not None and module.group(1) in sys.stdlib_module_names
    return not standard and _NOT_A_LINE.match(name) is None


def _innermost(python_calls: pd.DataFrame, moments: pd.DataFrame) -> Int:
    """Return the row of the innermost call around each moment of its thread, -1 where there is none."""
    of_call, of_moment = numbered_together([python_calls, moments], THREAD_KEYS)
    start, at = python_calls["start_ns"].to_numpy(), moments["start_ns"].to_numpy()
    threads = 1 + int(max(of_call.max(initial=0), of_moment.max(initial=0)))
    axis = Axis.over(threads, start, start + python_calls["dur_ns"].to_numpy(), at)
    first = axis.at(of_moment, at)
    return innermost(placed(python_calls, of_call, axis), first, first + 1)
