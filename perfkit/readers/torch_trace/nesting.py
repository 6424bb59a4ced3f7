"""Which span encloses which on one thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.torch_trace.events import Int


@dataclass(frozen=True)
class Nesting:
    """Spans of threads and their places in each other.

    ``order`` sorts the spans by process, thread, start, the longer first, then as given; ``parent`` is the position
    in that order of the innermost span that encloses one (-1 if none), ``depth`` how many do, and ``crossing`` whether
    a span overlaps another of its thread without one lying in the other.
    """

    order: Int
    parent: Int
    depth: Int
    crossing: NDArray[np.bool_]


def nesting(process: Int, thread: Int, start: Int, dur: Int) -> Nesting:
    """Find the enclosing span of each, as PyTorch does: spans are half open, and one without length encloses nothing.

    A span that crosses the end of another is not in it, and ends its part of the stack: what follows is
    looked for in the spans further out.
    """
    order = np.lexsort((-dur, start, thread, process))
    process, thread, start = process[order], thread[order], start[order]
    last = (start + dur[order]).tolist()
    fresh = np.concatenate([[True], (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])])[: len(order)].tolist()
    parent = [-1] * len(last)
    depth = [0] * len(last)
    crossing = np.zeros(len(last), bool)
    around: list[int] = []
    until: list[int] = []
    for i, (begin, end, new) in enumerate(zip(start.tolist(), last, fresh, strict=True)):
        if new:
            around, until = [], []
        while until and (end > until[-1] or begin >= until[-1]):
            if begin < until.pop():
                crossing[[i, around[-1]]] = True
            around.pop()
        if around:
            parent[i] = around[-1]
            depth[i] = len(around)
        around.append(i)
        until.append(end)
    return Nesting(order, np.array(parent, np.int64), np.array(depth, np.int64), crossing)
