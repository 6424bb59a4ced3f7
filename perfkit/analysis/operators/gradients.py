"""How much longer does the GPU work on the backward pass of an operator than on its forward pass?

Conventions
-----------
Autograd gives each node of the graph a number when a forward operator makes it; the node's backward bears the same
(`sequence`). A *node* is an operator that autograd runs in the backward pass (``evaluate_function: MmBackward0`` and
the ``MmBackward0`` in it are one). Several forward operators may bear a number, because a composite one bears that of
the next node made in it: the one that starts last made the node. Numbers count per thread, and what a backward pass
computes anew (activation checkpointing) bears numbers of another: a node finds its forward operator outside of
the backward pass, a node run within another one inside. Kernels belong to the innermost node around their launch.

Functions
---------
backward    time of forward operators and of their backward

References
----------
PyTorch, ``torch/csrc/profiler/collection.cpp``, ``generateForwardBackwardLink``: of the operators with one number "the
one with biggest start time is most likely launching backward op".
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.calls import numbered_together, where
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import enclosing, gpu_self, named, parents, rolled_up, sums
from perfkit.analysis.statistics import numbered, ranked
from perfkit.analysis.window import Window
from perfkit.tables import API_CALLS, KERNELS, OPS

ENGINE = "autograd::engine::evaluate_function: "
# "MmBackward0", "NllLossBackward", "CopyBackwards", "torch::autograd::AccumulateGrad", "torch::autograd::CppNode<...>"
NODE = re.compile(r"\w*Backwards?\d*|(?:struct )?torch::autograd::.+")


def backward(
    ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return GPU time of the forward operators and of their backward, per operator and node of autograd.

    Parameters
    ----------
    ops, kernels, api_calls
        OPS, KERNELS and API_CALLS of one execution; may be empty.
    window
        (start_ns, end_ns): kernels count with the part inside; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        By falling `backward_ns`, ties by falling count, then names: `operator` category, missing where a node has no
        number (AccumulateGrad) or its forward operator is not recorded; `node` category; `count` int64, nodes run;
        `forward_ns`, `backward_ns` int64, time of the kernels launched in them or in operators they call, without that
        of other nodes run in a node; `ratio` float64, backward_ns over forward_ns, NaN where there is no operator or
        forward_ns is 0.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> backward(OPS.empty(), KERNELS.empty(), API_CALLS.empty()).columns.tolist()
    ['operator', 'node', 'count', 'forward_ns', 'backward_ns', 'ratio']
    """
    parent = parents(OPS.check(ops))
    time = gpu_self(ops, parent, KERNELS.check(kernels), API_CALLS.check(api_calls), window)
    engine, named_node = where(ops["name"], _is_engine), where(ops["name"], NODE.fullmatch)
    node = engine | (named_node & ~np.append(engine, False)[parent])
    row, made = np.flatnonzero(node), np.flatnonzero((ops["sequence"] >= 0).to_numpy() & ~engine & ~named_node)
    forward = _forward(ops, parent, node, row, made)
    pairs = pd.DataFrame({"operator": named(ops, forward), "node": _node_names(ops["name"], row)})
    table, group = numbered(pairs, ["operator", "node"])
    table["count"] = np.bincount(group, minlength=len(table))
    table["forward_ns"] = _once(rolled_up(time, parent), forward, group, len(table))
    table["backward_ns"] = sums(_by_node(time, parent, node)[row], group, len(table))
    table["ratio"] = table["backward_ns"] / table["forward_ns"].where(table["forward_ns"] > 0)
    return ranked(table, "backward_ns", ["operator", "node"])


def _is_engine(name: str) -> bool:
    return name.startswith(ENGINE)


def _around(parent: Int, node: NDArray[np.bool_], row: Int) -> Int:
    """Return the innermost node that the operator in each row is or lies in, -1 where there is none."""
    found = np.full(len(row), -1, np.int64)
    for who, at in enclosing(parent, row):
        new = (found[who] < 0) & node[at]
        found[who[new]] = at[new]
    return found


def _by_node(time: Int, parent: Int, node: NDArray[np.bool_]) -> Int:
    """Return the time of each node, with the operators in it that lie in no other node within."""
    row = np.flatnonzero(time)
    around = _around(parent, node, row)
    return sums(time[row[around >= 0]], around[around >= 0], len(time))


def _forward(ops: pd.DataFrame, parent: Int, node: NDArray[np.bool_], row: Int, made: Int) -> Int:
    """Return the one of the operators `made` that made each of the nodes in `row`, -1 where it is not recorded."""
    keys = ["rank", "process", "sequence"]
    sides = [ops[keys].take(side).assign(within=_around(parent, node, parent[side]) >= 0) for side in (row, made)]
    wanted, there = numbered_together(sides, [*keys, "within"])
    start, number = ops["start_ns"].to_numpy(), ops["sequence"].to_numpy()
    order = np.argsort(start[made], kind="stable")
    last = np.full(int(max(wanted.max(initial=-1), there.max(initial=-1))) + 1, -1, np.int64)
    last[there[order]] = made[order]
    found = np.where(number[row] >= 0, last[wanted], -1)
    return np.where((found >= 0) & (start[found] <= start[row]), found, -1)


def _once(total: Int, forward: Int, group: Int, groups: int) -> Int:
    """Return the time of the distinct forward operators of each group."""
    matched = forward >= 0
    pairs = np.sort(group[matched] * len(total) + forward[matched])
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    return sums(total[pairs % len(total)], pairs // len(total), groups)


def _node_names(name: pd.Series, row: Int) -> pd.Categorical:
    """Return the name of the node of each row, without the engine's prefix."""
    plain, names = pd.factorize(np.array([str(text).removeprefix(ENGINE) for text in name.cat.categories], object))
    return pd.Categorical.from_codes(plain[name.cat.codes.to_numpy()[row]], pd.Index(names, dtype=object))
