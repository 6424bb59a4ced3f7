"""What did the program do: which calls did its threads make in order, and what did they start?

Conventions
-----------
Calls made inside another call (the driver's inside the runtime's) are part of it: only the outermost are kept, and what
a nested call started or waited for is theirs. Queries of events in a row, at most `POLL_NS` apart and together longer
than the GPU's own delay, are one call that waits. Operations (kernels, copies, memsets) are in the order of their
streams, calls in that of their threads; times are int64 ns. Streams, threads and processes are numbered from 0 over all
ranks.

Threads of a process pass a baton: PyTorch's main thread waits while another runs the backward pass. A thread goes on
*after* another when it had been silent for at least `RUN` calls of other threads in a row, makes at least `RUN` calls
in a row itself, and began once the last of these had returned; so does, whatever their number, a thread that makes its
first call. What lies between the two calls is the CPU's work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import KERNEL_WAIT_NS, Axis, is_launch, is_memory, is_sync, numbered_together, started_by
from perfkit.analysis.intervals import Int
from perfkit.analysis.window import Window, bounds

Bool = NDArray[np.bool_]
# What a call does, by rising weight: of a call and those nested in it the greatest counts.
OTHER, QUERY, LAUNCH, BLOCKING_COPY, MEMORY, FREE, EVENT_SYNC, STREAM_SYNC, DEVICE_SYNC = range(9)
POLL_NS = 100_000
RUN = 3


class Operations(NamedTuple):
    """Operations by stream and start.

    `call` is that of Calls, -1 where not recorded; `row` counts through KERNELS, then COPIES; `name` is the code of a
    kernel's full name, -1 of a copy.
    """

    start: Int
    end: Int
    rank: Int
    process: Int
    device: Int
    stream: Int
    call: Int
    row: Int
    name: Int

    @property
    def is_copy(self) -> Bool:
        """Whether it is a copy or memset."""
        return self.name < 0


class Calls(NamedTuple):
    """Outermost calls by thread and start; `row` is that of API_CALLS, `kind` one of the constants above."""

    start: Int
    end: Int
    rank: Int
    process: Int
    thread: Int
    row: Int
    kind: Int


class Program(NamedTuple):
    """Operations and the calls that started them."""

    ops: Operations
    calls: Calls

    @property
    def launched(self) -> Int:
        """When the call of each operation began; its own start where the call was not recorded."""
        return np.where(self.ops.call >= 0, np.append(self.calls.start, 0)[self.ops.call], self.ops.start)


class Handovers(NamedTuple):
    """A `call` begins `lag` ns after the call `after` of another thread has returned."""

    call: Int
    after: Int
    lag: Int


def recorded(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> Program:
    """Return the program of KERNELS, COPIES and API_CALLS.

    With a window these are the operations that start in it, and the calls from the first that launched one of them, or
    the start of the window, to its end.
    """
    process = numbered_together([kernels, copies, api_calls], ["rank", "process"])
    calls, outer = _outermost(api_calls, process[2])
    call = np.concatenate([started_by(table, api_calls) for table in (kernels, copies)])
    program = Program(_operations(kernels, copies, np.concatenate(process[:2]), outer[call]), calls)
    return program if window is None else _inside(program, bounds(window))


def _outermost(api_calls: pd.DataFrame, process: Int) -> tuple[Calls, Int]:
    """Return the outermost calls, and for each row of API_CALLS, and last for row -1, the number of its own."""
    (thread,) = numbered_together([api_calls], ["rank", "process", "thread"])
    start = api_calls["start_ns"].to_numpy()
    end = start + api_calls["dur_ns"].to_numpy()
    order = np.lexsort((-end, start, thread))
    start, end, thread, kind = start[order], end[order], thread[order], _kinds(api_calls["name"])[order]
    axis = Axis.over(1 + int(thread.max(initial=0)), start, end)
    begin, finish = axis.at(thread, start), axis.at(thread, end)
    before = np.r_[-1, np.maximum.accumulate(finish)][: len(order)]
    polls = np.r_[False, (kind[1:] == QUERY) & (kind[:-1] == QUERY) & (begin[1:] - before[1:] <= POLL_NS)][: len(order)]
    first = np.flatnonzero(((finish > before) | (begin >= before)) & ~polls)
    outer = np.full(len(order) + 1, -1, np.int64)
    outer[order] = np.cumsum(np.isin(np.arange(len(order)), first)) - 1
    if not len(first):
        return Calls(*[np.zeros(0, np.int64)] * 7), outer
    start, end, kind = start[first], np.maximum.reduceat(end, first), np.maximum.reduceat(kind, first)
    kind[(kind == QUERY) & (end - start > KERNEL_WAIT_NS) & np.logical_or.reduceat(polls, first)] = EVENT_SYNC
    row = order[first]
    return Calls(start, end, api_calls["rank"].to_numpy(np.int64)[row], process[row], thread[first], row, kind), outer


def _kinds(names: pd.Series) -> Int:
    """Return what each call does by itself."""

    def kind(name: str) -> int:
        if is_sync(name):
            words = (("EventSync", EVENT_SYNC), ("StreamSync", STREAM_SYNC), ("Sync", DEVICE_SYNC), ("", BLOCKING_COPY))
            return next(kind for word, kind in words if word in name)
        if is_memory(name):
            return FREE if "Free" in name else MEMORY
        return LAUNCH if is_launch(name) else QUERY if "EventQuery" in name or "StreamQuery" in name else OTHER

    kinds = np.array([kind(str(name)) for name in names.cat.categories] + [OTHER], np.int64)
    return kinds[names.cat.codes.to_numpy()]


def _operations(kernels: pd.DataFrame, copies: pd.DataFrame, process: Int, call: Int) -> Operations:
    """Return the operations of both tables by stream and start."""
    rank, start, dur = (
        np.concatenate([table[column].to_numpy(np.int64) for table in (kernels, copies)])
        for column in ("rank", "start_ns", "dur_ns")
    )
    device, stream = (
        np.concatenate(numbered_together([kernels, copies], keys))
        for keys in (["rank", "gpu"], ["rank", "process", "gpu", "stream"])
    )
    name = np.r_[kernels["full_name"].cat.codes.to_numpy(np.int64), np.full(len(copies), -1)]
    order = np.lexsort((start + dur, start, stream))
    columns = (start, start + dur, rank, process, device, stream, call, np.arange(len(start)), name)
    return Operations(*(column[order] for column in columns))


def _inside(program: Program, window: Window) -> Program:
    """Return what belongs to the operations that start in the window."""
    ops, calls = program
    keep = (ops.start >= window[0]) & (ops.start < window[1])
    first = min(window[0], int(program.launched[keep].min(initial=window[0])))
    kept = (calls.start >= first) & (calls.start < window[1])
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
    ops = Operations(*(column[keep] for column in ops))
    return Program(ops._replace(call=number[ops.call]), Calls(*(column[kept] for column in calls)))


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
