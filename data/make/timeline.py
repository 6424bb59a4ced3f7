"""When does everything of a step happen, given what the host does and how long the GPU works?

Conventions
-----------
A plan is what the host does in one step, in order, phase by phase; many steps of one plan are laid out at
once. Arrays are int64 ns of shape (operations of the plan, steps); time 0 is where the step's first phase
starts. A stream runs its work in order, one at a time; work starts when the host has called for it and the
stream is free. Every plan ends with the GPU drained, so that steps can be put one behind the other.

Functions
---------
lay_out    starts and ends of calls and of the work they start
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]

SPACING_NS = 900
RETURN_NS = 2_500


class Op(NamedTuple):
    """One thing the host does; `what` is a kernel's key, a copy's direction or a function's name.

    A ``node`` is a kernel of the CUDA graph that the last ``graph`` operation launched.
    """

    kind: Literal["kernel", "node", "copy", "memset", "sync", "graph", "call"]
    what: str
    phase: str
    slot: int = 0
    thread: int = 0
    stream: int = 0
    size: int = 0

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU has work from it."""
        return self.kind in ("kernel", "node", "copy", "memset")

    @property
    def called(self) -> bool:
        """Whether the host makes a call of its own for it."""
        return self.kind != "node"


Plan = tuple[Op, ...]


class Times(NamedTuple):
    """How long things take, int64 ns of shape (operations, steps).

    ``gap`` before a call, ``call`` in it (at least), ``delay`` from its end until the GPU can start, ``work``.
    """

    gap: Int
    call: Int
    delay: Int
    work: Int


@dataclass(frozen=True)
class Laid:
    """A plan on the time axis; rows of operations without a call or without GPU work hold zeros."""

    call_start: Int
    call_end: Int
    start: Int
    end: Int
    length: Int
    phases: dict[str, tuple[Int, Int]]


def lay_out(plan: Plan, times: Times) -> Laid:
    """Return when calls and GPU work of all steps start and end; a copy may start while its call still runs.

    Examples
    --------
    >>> plan = (Op("kernel", "relu", "forward"), Op("sync", "cudaStreamSynchronize", "forward"))
    >>> laid = lay_out(plan, Times(*(np.array([[ns], [ns]]) for ns in (10, 100, 2000, 4000))))
    >>> laid.start.tolist(), laid.end.tolist(), laid.call_end.tolist()
    ([[2110], [0]], [[6110], [0]], [[110], [8610]])
    """
    steps = times.gap.shape[1]
    blank = np.zeros((4, len(plan), steps), np.int64)
    laid = Laid(blank[0], blank[1], blank[2], blank[3], np.zeros(steps, np.int64), {})
    free = np.zeros((1 + max(op.stream for op in plan), steps), np.int64)
    host = called = np.zeros(steps, np.int64)
    for i, op in enumerate(plan):
        begun = laid.phases.get(op.phase, (host, host))[0]
        if op.called:
            laid.call_start[i] = host + times.gap[i]
            called = laid.call_start[i] + times.call[i]
        if op.on_gpu:
            ready = (laid.call_start[i] + called) // 2 if op.size else called + times.delay[i]
            laid.start[i] = np.maximum(ready, free[op.stream] + SPACING_NS)
            laid.end[i] = free[op.stream] = laid.start[i] + times.work[i]
        if op.called:
            host = laid.call_end[i] = np.maximum(called, _awaited(op, laid.end[i], free))
        laid.phases[op.phase] = (begun, host)
    laid.length[:] = host
    return laid


def _awaited(op: Op, end: Int, free: Int) -> Int:
    """When the work a call waits for is done: all of it for a synchronisation, its own for a copy to the host."""
    if op.kind == "sync":
        return np.asarray(free.max(axis=0) + RETURN_NS, np.int64)
    return end + RETURN_NS if op.what == "D2H" else np.zeros_like(end)
