"""Operations of a stream that nothing but their launches and each other hold up, as one node of the graph.

Conventions
-----------
A *run* is a stretch of operations that follow each other in their stream and are launched from one head, none of which
waits for or is waited for by anything else. Its last operation ends at the later of two moments: the end of what was
before the run, plus a lag, and the head, plus another. Once these are known, so are the operations inside.

Functions
---------
runs        the runs of all streams
inside      the ends of all operations, given those of the runs
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.moments import Edges
from perfkit.analysis.whatif.program import Bool


class Chains(NamedTuple):
    """Operations in order of their streams: node, stream, lag behind the one before, launching node and lag behind it.

    `after` is 0 for the first of a stream; `head` is -1, and `launch` NONE, without a call.
    """

    node: Int
    stream: Int
    after: Int
    head: Int
    launch: Int


class Runs(NamedTuple):
    """Position of the first and last operation of each run, and the edges to the last."""

    first: Int
    last: Int
    edges: list[Edges]


def runs(chains: Chains, into: Int, apart: Bool) -> Runs:
    """Return the runs.

    Parameters
    ----------
    chains
        The operations.
    into
        For each node of an operation the one that waits in its place: itself, or a collective's arrival.
    apart
        For each of the chains' operations whether it waits for, or is waited for by, something else.
    """
    node, stream, after, head, launch = chains
    alone = apart | (head < 0)
    begins = np.diff(stream, prepend=-1) != 0
    new = begins | alone | (np.diff(head, prepend=-2) != 0)
    new[1:] |= alone[:-1]
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(node))[: len(first)] - 1
    passed = np.cumsum(after)
    launched = np.maximum.reduceat(launch - passed, first) + passed[last] if len(first) else first
    called = head[first] >= 0
    behind = np.flatnonzero(~begins[first])
    before = first[behind]
    lag = passed[last[behind]] - passed[before - 1]
    edges = [
        Edges(into[node[last[called]]], head[first[called]], launched[called]),
        Edges(into[node[last[behind]]], node[before - 1], lag),
    ]
    return Runs(first, last, edges)


def inside(chains: Chains, found: Runs, time: Int) -> Int:
    """Return the end of each operation of the chains; `time` holds the nodes, right for the last of each run."""
    passed = np.cumsum(chains.after)
    known = time[chains.head] + chains.launch
    known[found.last] = time[chains.node[found.last]]
    known -= passed
    # Behind the one before, an operation ends no earlier than that, plus what has passed: a running maximum.
    for first, stop in pairwise(np.flatnonzero(np.diff(chains.stream, prepend=-1, append=-1)).tolist()):
        known[first:stop] = np.maximum.accumulate(known[first:stop])
    return known + passed
