"""Which thread had to wait for another before it went on?

Conventions
-----------
Threads of a process pass a baton: PyTorch's main thread waits while another runs the backward pass. A thread goes on
*after* another when it had been silent for at least `RUN` calls of other threads in a row, makes at least `RUN`
calls in a row itself, and began once the last of these had returned; so does, whatever their number, a
thread that makes its first call. What lies between the two calls is the CPU's work.

Functions
---------
handovers    calls that come after a call of another thread
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.program import Calls

RUN = 3


class Handovers(NamedTuple):
    """A `call` begins `lag` ns after the call `after` of another thread has returned."""

    call: Int
    after: Int
    lag: Int


def handovers(calls: Calls) -> Handovers:
    """Return the calls with which a thread goes on after another of its process.

    Examples
    --------
    >>> start, thread = np.arange(0, 80, 10), np.array([0, 0, 0, 1, 1, 1, 0, 0])
    >>> order = np.lexsort((start, thread))
    >>> other = np.zeros(8, np.int64)
    >>> handovers(Calls(start[order], start[order] + 4, other, other, thread[order], other, other))
    Handovers(call=array([5]), after=array([2]), lag=array([6]))
    """
    order = np.lexsort((calls.start, calls.process))
    thread, process = calls.thread[order], calls.process[order]
    begins = np.flatnonzero(np.diff(thread, prepend=-1))
    many = np.diff(begins, append=len(order)) >= RUN
    begins, many, before_many = begins[1:], many[1:], many[:-1]
    call, after = order[begins], order[begins - 1]
    first_of_thread = np.diff(calls.thread, prepend=-1)[call] != 0
    passed = first_of_thread | (many & before_many)
    passed &= (process[begins] == process[begins - 1]) & (calls.end[after] <= calls.start[call])
    return Handovers(call[passed], after[passed], (calls.start[call] - calls.end[after])[passed])
