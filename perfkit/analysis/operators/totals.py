"""How much time does each operator take, on the CPU and on the GPU, itself and with the operators nested in it?

Operators of one (rank, process, thread) nest. An operator runs in [start, end): one of no duration
never runs, and what starts together with an operator lies in it. Operators are named by their row
(position) in OPS; -1 is none.

PyTorch names a frame ``file(line): function``, where the line is that of the function's beginning
(``torch/csrc/autograd/profiler_python.cpp``, ``CodeLocation``), a built-in ``<built-in ...>`` and a
module's forward ``nn.Module: class``. The program's frames are neither built in, nor PyTorch's own,
nor the standard library's.

Autograd gives each node of the graph a number when a forward operator makes it; the node's backward
bears the same (`sequence`). A *node* is an operator that autograd runs in the backward pass
(``evaluate_function: MmBackward0`` and the ``MmBackward0`` in it are one). Several forward
operators may bear a number, because a composite one bears that of the next node made in it: the one
that starts last made the node (PyTorch, ``torch/csrc/profiler/collection.cpp``,
``generateForwardBackwardLink``). Numbers count per thread, and what a backward pass computes anew
(activation checkpointing) bears numbers of another: a node finds its forward operator outside of
the backward pass, a node run within another one inside. Kernels belong to the innermost node around
their launch.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import grouping
from perfkit.analysis.causes import (
    THREAD,
    numbered_together,
    on_one_axis,
    placed,
    started_by,
    where,
)
from perfkit.analysis.grouping import keys_of, numbered, ranked
from perfkit.analysis.intervals import Bool, Int, Window, bounds, cut, last_open, maxima
from perfkit.schema import unique
from perfkit.tables import API_CALLS, KERNELS, OPS

HOW = ("launch", "outside", "none")
_NOT_A_LINE = re.compile(r"<(?:built-in|frozen|string)\b|nn\.Module: |(?:.*/)?torch/")
ENGINE = "autograd::engine::evaluate_function: "
# "MmBackward0", "NllLossBackward", "CopyBackwards", "torch::autograd::AccumulateGrad",
# "torch::autograd::CppNode<...>"
NODE = re.compile(r"\w*Backwards?\d*|(?:struct )?torch::autograd::.+")
KEYS = ("name", "shapes", "dtypes", "strides", "rank", "process", "thread")


class _Grouping(NamedTuple):
    """The operators: the row around each, whether it is in no other of its group, its group; and how many groups."""

    parent: Int
    first: Bool
    group: Int
    groups: int


class Operators:
    """What `summary` says of any window and kernels, joined once: 8 bytes per operator and kernel are kept."""

    def __init__(self, ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> None:
        self._ops, self._kernels = OPS.check(ops), KERNELS.check(kernels)
        self._parent = parents(ops)
        _, self._row = launching(ops, kernels, API_CALLS.check(api_calls))

    def summary(
        self,
        *,
        by: str | Sequence[str] = "name",
        window: Window | None = None,
        ops: Int | None = None,
        kernels: Int | None = None,
    ) -> pd.DataFrame:
        """Return the function `summary` of some operators and kernels, and the calls of their ranks.

        `ops` and `kernels` are positions in OPS and KERNELS, ascending: operators of whole ranks
        with any of their kernels; all when omitted.
        """
        of_ops, parent, of_kernels, row, keys = (
            self._ops,
            self._parent,
            self._kernels,
            self._row,
            keys_of(by, KEYS),
        )
        if kernels is not None:
            of_kernels, row = of_kernels.take(kernels), row[kernels]
        if ops is not None:
            number = np.full(len(of_ops) + 1, -1, np.int64)  # the last one answers for no operator
            number[ops] = np.arange(len(ops))
            of_ops, parent, row = of_ops.take(ops), number[parent[ops]], number[row]
        # The combinations of keys, that of each operator, and that of each kernel: its operator's
        # or its own.
        lacking = np.flatnonzero(row < 0)
        own = of_kernels[["rank", "process"]].take(lacking).assign(thread=np.int64(-1))
        blank = {
            key: pd.Categorical.from_codes(np.full(len(own), -1), of_ops[key].cat.categories)
            for key in KEYS[:4]
        }
        names, group = numbered(
            pd.concat([of_ops[keys], own.assign(**blank)[keys]], ignore_index=True), keys
        )
        of_op = group[: len(of_ops)]
        of_kernel = np.append(of_op, -1)[row]
        of_kernel[lacking] = group[len(of_ops) :]
        groups = _Grouping(
            parent, outermost(parent, of_op, np.arange(len(of_ops))), of_op, len(names)
        )
        inside = cut(of_kernels[["start_ns", "dur_ns"]].assign(row=row, group=of_kernel), window)
        table = names.assign(**_on_cpu(of_ops, groups, window), **_on_gpu(inside, groups))
        table["gpu_share_frac"] = table["gpu_self_ns"] / (table["gpu_self_ns"].sum() or np.nan)
        some = (table["count"] > 0) | (table["kernel_count"] > 0) | (table["gpu_total_ns"] > 0)
        return ranked(
            table[some], "gpu_total_ns" if table["gpu_total_ns"].any() else "cpu_self_ns", keys
        )


def with_moments(frames: pd.DataFrame, moments: pd.DataFrame) -> tuple[tuple[Int, Int], Int]:
    """Return start and end of what ran on threads, and moments (rank, process, thread, start_ns), on one axis."""
    columns = {
        name: moments[name] for name in (*THREAD, "start_ns")
    }  # `DataFrame.assign` would copy all of them
    no_time = pd.DataFrame({**columns, "dur_ns": np.zeros(len(moments), np.int64)}, copy=False)
    intervals, (at, _) = on_one_axis([frames, no_time], THREAD)
    return intervals, at


def open_at(frames: pd.DataFrame, moments: pd.DataFrame) -> Int:
    """Return the row of the frame that is open on the thread of each moment, the one begun last; -1 where none is."""
    intervals, now = with_moments(frames, moments)
    there = placed(*intervals)
    begun = np.searchsorted(there.start, now, side="right")
    return np.append(there.row, -1)[last_open(maxima(there.end), begun, now)]


def launching(
    ops: pd.DataFrame, operations: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[Int, Int]:
    """Return the call that launched each kernel or copy, and the innermost operator that made it: rows, -1 for none.

    The call is the one with the operation's correlation id; all nodes of a graph have that of the
    graph.
    """
    call = started_by(operations, api_calls)
    if not len(ops):
        return call, np.full(len(call), -1, np.int64)
    launches = np.flatnonzero(np.bincount(call[call >= 0], minlength=len(api_calls)))
    op = np.full(len(api_calls) + 1, -1, np.int64)
    op[launches] = open_at(ops, api_calls.take(launches))
    return call, op[call]


def parents(ops: pd.DataFrame) -> Int:
    """Return the row of the operator that encloses each operator, -1 at the top or where it is not in the table."""
    return rows_of(ops, ops["rank"].to_numpy(np.int64), ops["parent"].to_numpy(np.int64))


def rows_of(ops: pd.DataFrame, rank: Int, op: Int) -> Int:
    """Return the row in OPS of each operator (`rank`, `op`), -1 where it is not there."""
    return grouping.rows_of(ops, "op", rank, op)


def enclosing(parent: Int, row: Int) -> Iterator[tuple[Int, Int]]:
    """Yield which of the `row` still lie in an operator, and that operator: first themselves, then level by level.

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


def outermost(parent: Int, group: Int, row: Int) -> Bool:
    """Tell which of the operators in `row` lie in no operator of their own group."""
    first = np.ones(len(row), bool)
    for who, at in enclosing(parent, parent[row]):
        first[who[group[at] == group[row[who]]]] = False
    return first


def sums(values: Int, group: Int, groups: int) -> Int:
    """Return the exact sum of the integers of each of the groups 0 .. groups-1."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    return total


def named(calls: pd.DataFrame, row: Int) -> pd.Categorical:
    """Return the name of the operator or Python function in each row, missing for -1."""
    codes = np.append(calls["name"].cat.codes.to_numpy(), -1)
    return pd.Categorical.from_codes(codes[row], calls["name"].cat.categories)


def starts_inside(frame: pd.DataFrame, window: Window | None) -> Bool:
    """Tell which rows start in the window."""
    if window is None:
        return np.ones(len(frame), bool)
    first, last = bounds(window)
    start = frame["start_ns"].to_numpy()
    return np.asarray((start >= first) & (start < last))


def kernels_of(ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the operator that launched each kernel: the innermost one that runs when the launch call begins.

    One row per kernel, with the index of `kernels`: `rank` int32; `op` int64, as in OPS, unique in
    its rank, -1 where there is none; `how` category: "launch", launched in that operator;
    "outside", the launch call lies in no operator; "none", no launch call is recorded.
    """
    call, row = launching(OPS.check(ops), KERNELS.check(kernels), API_CALLS.check(api_calls))
    how = np.select([row >= 0, call >= 0], [0, 1], 2)
    return kernels[["rank"]].assign(
        op=np.append(ops["op"].to_numpy(), -1)[row],
        how=pd.Categorical.from_codes(how, pd.Index(HOW)),
    )


def lines(python_calls: pd.DataFrame, moments: pd.DataFrame) -> pd.Categorical:
    """Return the innermost frame of the program on the thread at each moment, else the innermost of all.

    A name per moment (rank, process, thread and start_ns), missing where no Python function runs.
    """
    own = np.flatnonzero(where(python_calls["name"], of_program))
    place = open_at(python_calls.take(own), moments)
    row = np.where(place >= 0, np.append(own, -1)[place], open_at(python_calls, moments))
    return named(python_calls, row)


def of_program(name: str) -> bool:
    """Tell whether a Python function is the program's: neither built in, PyTorch's nor the standard library's."""
    module = re.match(r"(\w+)(?:/|\.py\()", name)
    standard = module is not None and module.group(1) in sys.stdlib_module_names
    return not standard and _NOT_A_LINE.match(name) is None


def summary(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    by: str | Sequence[str] = "name",
    window: Window | None = None,
) -> pd.DataFrame:
    """Return count, CPU time and GPU time of the operators, grouped; each with and without the operators they call.

    Totals sum over instances as PyTorch's do, with one difference: an operator nested in one of its
    own group, at any depth, adds nothing to the totals of that group. PyTorch leaves it out only if
    it is the outer one's only child.

    `by`: One or more of name, shapes, dtypes, strides, rank, process, thread; else ValueError.
    `window`: Operators count with the part that the CPU spends in it, kernels with the part that
    the GPU does, whenever they were launched.

    By falling `gpu_total_ns`, where no kernel took time by falling `cpu_self_ns`; ties by falling
    count, then keys. The key columns as in OPS; `count` int64; `cpu_total_ns` int64; `cpu_self_ns`
    int64, without child operators, calls of the CUDA API included; `cpu_self_mean_ns` float64, per
    operator, NaN where count is 0; `gpu_total_ns` int64, time of the kernels launched in the
    operators or in those nested in them; `gpu_self_ns` int64 and `kernel_count` int64, of the
    kernels they launched themselves; `gpu_share_frac` float64, gpu_self_ns over the time of all
    kernels, NaN where that is 0. Kernels without an operator count where name, shapes, dtypes and
    strides are missing and thread is -1 (by name a row of their own, with count 0): gpu_self_ns,
    kernel_count and gpu_share_frac add up to those of all kernels. In a window count is also 0 for
    operators that launched before it what runs in it.

    Source: PyTorch, ``torch.profiler``: ``key_averages``, columns Self CPU, CPU total, Self CUDA,
    CUDA total, # of Calls.
    """
    return Operators(ops, kernels, api_calls).summary(by=by, window=window)


def _on_cpu(ops: pd.DataFrame, by: _Grouping, window: Window | None) -> dict[str, NDArray[Any]]:
    """Return the columns of the CPU: operators and their time within the window."""
    inside = cut(ops[["start_ns", "dur_ns"]].assign(row=np.arange(len(ops))), window)
    row, dur = inside["row"].to_numpy(), np.zeros(len(ops), np.int64)
    dur[row] = inside["dur_ns"].to_numpy()
    nested = by.parent >= 0
    own = (
        ops["self_ns"].to_numpy()
        if window is None
        else dur - sums(dur[nested], by.parent[nested], len(ops))
    )
    count, self_ns = np.bincount(by.group[row], minlength=by.groups), sums(own, by.group, by.groups)
    mean = np.divide(self_ns, count, out=np.full(by.groups, np.nan), where=count > 0)
    total = sums(dur[by.first], by.group[by.first], by.groups)
    return {"count": count, "cpu_total_ns": total, "cpu_self_ns": self_ns, "cpu_self_mean_ns": mean}


def _on_gpu(kernels: pd.DataFrame, by: _Grouping) -> dict[str, NDArray[Any]]:
    """Return the columns of the GPU: kernels and their time, per `group`; `row` is a kernel's operator."""
    time, op, group = (kernels[column].to_numpy() for column in ("dur_ns", "row", "group"))
    lacking = op < 0
    per_op = rolled_up(sums(time[~lacking], op[~lacking], len(by.group)), by.parent)
    total = sums(per_op[by.first], by.group[by.first], by.groups) + sums(
        time[lacking], group[lacking], by.groups
    )
    return {
        "gpu_total_ns": total,
        "gpu_self_ns": sums(time, group, by.groups),
        "kernel_count": np.bincount(group, minlength=by.groups),
    }


def backward(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return GPU time of the forward operators and of their backward, per operator and node of autograd.

    In a window kernels count with the part inside.

    By falling `backward_ns`, ties by falling count, then names: `operator` category, missing where
    a node has no number (AccumulateGrad) or its forward operator is not recorded; `node` category;
    `count` int64, nodes run; `forward_ns`, `backward_ns` int64, time of the kernels launched in
    them or in operators they call, without that of other nodes run in a node; `ratio` float64,
    backward_ns over forward_ns, NaN where there is no operator or forward_ns is 0.
    """
    parent = parents(OPS.check(ops))
    _, launcher = launching(ops, KERNELS.check(kernels), API_CALLS.check(api_calls))
    inside = cut(kernels[["start_ns", "dur_ns"]].assign(op=launcher), window)
    inside = inside[inside["op"] >= 0]
    time = sums(inside["dur_ns"].to_numpy(), inside["op"].to_numpy(), len(ops))
    node, row, forward = _nodes(ops, parent)
    plain, nodes = pd.factorize(
        np.array([str(t).removeprefix(ENGINE) for t in ops["name"].cat.categories], object)
    )
    of_row = pd.Categorical.from_codes(
        plain[ops["name"].cat.codes.to_numpy()[row]], pd.Index(nodes, dtype=object)
    )
    pairs = pd.DataFrame({"operator": named(ops, forward), "node": of_row})
    table, group = numbered(pairs, ["operator", "node"])
    table["count"] = np.bincount(group, minlength=len(table))
    matched = forward >= 0
    # Each forward operator counts once in its group
    once = unique(group[matched] * len(time) + forward[matched])
    table["forward_ns"] = sums(
        rolled_up(time, parent)[once % len(time)], once // len(time), len(table)
    )
    launched = np.flatnonzero(time)
    # What a node runs in it counts without the other nodes within
    around = node_around(parent, node, launched)
    of_node = sums(time[launched[around >= 0]], around[around >= 0], len(time))
    table["backward_ns"] = sums(of_node[row], group, len(table))
    table["ratio"] = table["backward_ns"] / table["forward_ns"].where(table["forward_ns"] > 0)
    return ranked(table, "backward_ns", ["operator", "node"])


def _nodes(ops: pd.DataFrame, parent: Int) -> tuple[Bool, Int, Int]:
    """Return which operators are nodes of autograd, their rows, and the row of the operator that made each, or -1."""
    engine, named_node = (
        where(ops["name"], one) for one in (lambda name: name.startswith(ENGINE), NODE.fullmatch)
    )
    node = engine | (named_node & ~np.append(engine, False)[parent])
    row, made = (
        np.flatnonzero(node),
        np.flatnonzero((ops["sequence"] >= 0).to_numpy() & ~engine & ~named_node),
    )
    # The one of the operators `made` that made each of the nodes in `row`, -1 where it is not
    # recorded.
    keys = ["rank", "process", "sequence"]
    sides = [
        ops[keys].take(side).assign(within=node_around(parent, node, parent[side]) >= 0)
        for side in (row, made)
    ]
    wanted, there = numbered_together(sides, [*keys, "within"])
    start, number = ops["start_ns"].to_numpy(), ops["sequence"].to_numpy()
    order = np.argsort(start[made], kind="stable")
    last = np.full(int(max(wanted.max(initial=-1), there.max(initial=-1))) + 1, -1, np.int64)
    last[there[order]] = made[order]
    forward = np.where(number[row] >= 0, last[wanted], -1)
    return node, row, np.where((forward >= 0) & (start[forward] <= start[row]), forward, -1)


def forward_of(ops: pd.DataFrame, op: Int) -> Int:
    """Return the row of the operator that made the node of autograd around each operator in `op`, -1 without one."""
    parent = parents(ops)
    node, row, forward = _nodes(ops, parent)
    made = np.full(len(ops) + 1, -1, np.int64)
    made[row] = forward
    return made[node_around(parent, node, op)]


def node_around(parent: Int, node: Bool, row: Int) -> Int:
    """Return the innermost node that the operator in each row is or lies in, -1 where there is none."""
    around = np.full(len(row), -1, np.int64)
    for who, at in enclosing(parent, row):
        new = (around[who] < 0) & node[at]
        around[who[new]] = at[new]
    return around
