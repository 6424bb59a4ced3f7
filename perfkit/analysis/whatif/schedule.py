"""When would every operation start and end under a plan?

Conventions
-----------
The nodes of the graph are the ends of operations and the *heads* of threads: moments at which a thread goes on after
something other than its own work. These are the return of a call that waits, a call that comes after another thread or
after background work, and a thread's first call. Between two heads a thread runs by itself, so that its calls lie at
fixed distances from the head. Instants count the starts and ends of all calls: 2 x call, and 1 more for its end.

Collectives have two more sorts of nodes: the arrival of each operation, and the meeting of all that arrive.

Functions
---------
timed    start and end of each operation
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.lags import HIGH, LOW, NONE, predecessor
from perfkit.analysis.whatif.moments import Edges, moments
from perfkit.analysis.whatif.moving import moved_edges, waits_under
from perfkit.analysis.whatif.plan import GONE, Plan
from perfkit.analysis.whatif.runs import Chains, inside, runs
from perfkit.analysis.whatif.waits import HostWaits


class _Threads(NamedTuple):
    """Heads by instant; `number` is the head at an instant or -1; an instant lies `offset` ns after its head `of`."""

    heads: Int
    number: Int
    of: Int
    offset: Int
    step: Int


class _Nodes(NamedTuple):
    """First number of the heads, arrivals and meetings, which follow the operations, and of the root, the last."""

    heads: int
    arrivals: int
    meetings: int
    root: int


def timed(plan: Plan, view: int) -> tuple[Int, Int]:
    """Return when each operation starts and ends, ns, under one of `perfkit.analysis.whatif.lags.VIEWS`."""
    op, meeting = plan.meetings
    waits = waits_under(plan, view)
    threads = _threads(plan, view, waits)
    sizes = len(plan.dur), len(threads.heads), len(op), int(meeting.max(initial=-1)) + 1
    nodes = _Nodes(*np.cumsum(sizes).tolist())
    measured, met = _measured(plan, threads, sizes[-1])
    into = np.arange(len(plan.dur))
    into[op] = nodes.arrivals + np.arange(len(op))
    lag = waits.lag - plan.dur[waits.op] * waits.starts
    host = Edges(nodes.heads + threads.number[2 * waits.call + 1], waits.op, lag)
    other = [host, *_between_streams(plan, view, into), *_of_meetings(plan, nodes, met)]
    chains = _chains(plan, view, threads, nodes)
    ends_run = np.zeros(nodes.root + 1, bool)
    ends_run[np.concatenate([op, *(each.to for each in other), *(each.source for each in other)])] = True
    found = runs(chains, into, ends_run[chains.node])
    other += _of_threads(plan, view, threads, nodes, int(measured[-1]))
    other += _apart(plan, view, threads, nodes, into)
    time = moments(measured, np.repeat([3, 0, 1, 2, 0], [*sizes, 1]), [*other, *found.edges])
    time[chains.node] = inside(chains, found, time)
    end = time[: len(plan.dur)]
    start = end - plan.dur
    start[op] = time[into[op]]
    return start, end


def _measured(plan: Plan, threads: _Threads, meets: int) -> tuple[Int, Int]:
    """Return when each node was, with those of meetings after their arrivals, and when each meeting was, ns."""
    ops, calls = plan.program
    op, meeting = plan.meetings
    met = np.zeros(meets, np.int64)
    np.maximum.at(met, meeting, ops.start[op])
    begun = ops.start.copy()
    begun[op] = met[meeting]
    heads = np.ravel(np.column_stack([calls.start, calls.end]))[threads.heads]
    root = min(int(begun.min(initial=0)), int(heads.min(initial=0))) - 1
    return np.r_[begun, heads, ops.start[op], met, root], met


def _threads(plan: Plan, view: int, waits: HostWaits) -> _Threads:
    """Return the heads of the threads, and how far each instant is from its head."""
    first = 2 * np.flatnonzero(np.diff(plan.program.calls.thread, prepend=-1))
    after = 2 * plan.handovers.call
    goes_on = np.zeros(2 * len(plan.gap), bool)
    goes_on[np.r_[first, after, 2 * np.flatnonzero(plan.ready > NONE), 2 * waits.call + 1]] = True
    heads = np.flatnonzero(goes_on)
    gap = plan.gap + plan.doubtful_gap if view == HIGH else plan.gap
    step = np.ravel(np.column_stack([gap, plan.cost]))
    step[after] = 0  # the CPU's work before it follows the call of the other thread
    number = np.full(len(step), -1, np.int64)
    number[heads] = np.arange(len(heads))
    of = np.maximum.accumulate(number)
    passed = np.cumsum(step)
    return _Threads(heads, number, of, passed - passed[heads][of] if len(heads) else passed, step)


def _of_threads(plan: Plan, view: int, threads: _Threads, nodes: _Nodes, root: int) -> list[Edges]:
    """Return what heads wait for on the CPU: their own thread, another one, background work."""
    thread = plan.program.calls.thread
    inner = np.flatnonzero(np.diff(thread[threads.heads // 2], prepend=-1) == 0)
    before = threads.heads[inner] - 1
    call, after = plan.handovers.call, 2 * plan.handovers.after + 1
    ready = np.flatnonzero((plan.ready > NONE) & (view != LOW))
    return [
        Edges(nodes.heads + inner, nodes.heads + threads.of[before], threads.offset[before] + threads.step[before + 1]),
        Edges(
            nodes.heads + threads.number[2 * call],
            nodes.heads + threads.of[after],
            threads.offset[after] + plan.gap[call],
        ),
        Edges(nodes.heads + threads.number[2 * ready], np.full(len(ready), nodes.root), plan.ready[ready] - root),
    ]


def _chains(plan: Plan, view: int, threads: _Threads, nodes: _Nodes) -> Chains:
    """Return the operations that stay in their streams, with what their launch and their stream ask of them."""
    ops = plan.program.ops
    op = np.flatnonzero(plan.moved <= GONE)
    dur = _dur(plan)[op]
    before = np.r_[-1, op][: len(op)]
    space = np.where(before == op - 1, plan.space[view, op], plan.lags.typical_space[op])
    after = np.where(np.diff(ops.stream[op], prepend=-1) == 0, space + dur, 0)
    head, launch = _launches(plan, view, threads, nodes, op)
    return Chains(op, ops.stream[op], after, head, launch)


def _launches(plan: Plan, view: int, threads: _Threads, nodes: _Nodes, op: Int) -> tuple[Int, Int]:
    """Return the head that launches each of the operations, -1 without any, and the lag behind it."""
    has_call = plan.call[op] >= 0
    called = np.where(has_call, 2 * plan.call[op], -1)
    head = np.where(has_call, nodes.heads + np.append(threads.of, -1)[called], -1)
    lag = np.append(threads.offset, 0)[called] + plan.launch[view, op] + _dur(plan)[op]
    return head, np.where(has_call, lag, NONE)


def _dur(plan: Plan) -> Int:
    """Return the time of each operation; that of a collective comes after the meeting."""
    dur = plan.dur.copy()
    dur[plan.meetings.op] = 0
    return dur


def _apart(plan: Plan, view: int, threads: _Threads, nodes: _Nodes, into: Int) -> list[Edges]:
    """Return the launches of operations that do not stay in their streams."""
    op = np.flatnonzero((plan.moved > GONE) & (plan.call >= 0))
    return [Edges(into[op], *_launches(plan, view, threads, nodes, op))]


def _between_streams(plan: Plan, view: int, into: Int) -> list[Edges]:
    """Return what operations wait for in other streams."""
    dur = _dur(plan)
    before = predecessor(plan.program.ops.stream, plan.moved <= GONE)
    found = [Edges(into[e.to], e.source, e.lag + dur[e.to]) for e in moved_edges(plan, view, before)]
    op, after, lag, sure = plan.stream_waits
    kept = sure if view == LOW else (plan.moved[after] <= GONE) | (view == HIGH)
    return [*found, Edges(into[op[kept]], after[kept], lag[kept] + dur[op[kept]])]


def _of_meetings(plan: Plan, nodes: _Nodes, met: Int) -> list[Edges]:
    """Return what collectives wait for: all that take part, then what was left when the last had come."""
    ops, (op, meeting) = plan.program.ops, plan.meetings
    node = nodes.meetings + meeting
    measured = np.maximum(ops.end[op] - ops.start[op], 1)
    left = np.rint((ops.end[op] - met[meeting]) * (plan.dur[op] / measured)).astype(np.int64)
    return [
        Edges(node, nodes.arrivals + np.arange(len(op)), np.zeros(len(op), np.int64)),
        Edges(op, node, left),
    ]
