"""When is each node of a graph of lags: the longest path to it.

Functions
---------
moments    the time of each node
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.lags import NONE

_SLICE = 200_000  # edges as Python integers at a time: they take ten times the memory


class Edges(NamedTuple):
    """Node `to` is at least `lag` ns after node `source`."""

    to: Int
    source: Int
    lag: Int


def moments(measured: Int, sort: Int, edges: Iterable[Edges]) -> Int:
    """Return the earliest time of each node that satisfies all edges, ns.

    Parameters
    ----------
    measured
        When each node was. Edges point forward in this order; those that do not are left out. A node without any
        edge stays where it was.
    sort
        Order of the nodes that were at the same time.
    edges
        Any number of sets; those of lag NONE do not count.

    Examples
    --------
    >>> one = np.array([1])
    >>> moments(np.array([5, 9]), np.array([0, 0]), [Edges(one, one - 1, one + 9)]).tolist()
    [5, 15]
    """
    to, source, lag = (np.concatenate(columns) for columns in zip(*edges, strict=True))
    used = np.zeros(len(measured), bool)
    used[to] = used[source] = True
    node = np.flatnonzero(used)
    node = node[np.lexsort((sort[node], measured[node]))]
    position = np.zeros(len(measured), np.int64)
    position[node] = np.arange(len(node))
    to, source = position[to], position[source]
    kept = np.flatnonzero((source < to) & (lag > NONE // 2))
    kept = kept[np.argsort(to[kept], kind="stable")]
    to, source, lag = to[kept], source[kept], lag[kept]
    free = np.ones(len(node), bool)
    free[to] = False
    time = np.where(free, measured[node], NONE).tolist()
    for first in range(0, len(to), _SLICE):
        part = slice(first, first + _SLICE)
        for at, before, after in zip(to[part].tolist(), source[part].tolist(), lag[part].tolist(), strict=True):
            if (reached := time[before] + after) > time[at]:
                time[at] = reached
    found = measured.copy()
    found[node] = time
    return found
