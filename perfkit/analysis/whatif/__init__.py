"""How long would a run take if something in it were changed?

`replay` answers with the span of the run under changes, as a range, or refuses; `prepared` and
`changed` are its two parts, for several answers about one run, and `saved` says where the changes
save time. `stretch` chooses the steps that stand for a run too long to be replayed whole, `around`
the rows that a replay of a window looks at. Tables may be empty; one that is not what its name says
raises SchemaError.

The program is what its threads called, with the CPU's work between the calls, and the operations
that the calls started. Streams work in order; an operation starts after its launch, after its
predecessor and after what it waits for in other streams and on other ranks; calls that wait return
when what they wait for is done. Of all this only calls and operations are recorded; the rest is
inferred (`program`, `plan`), and delays that nothing explains are left out. A replay of the
unchanged program tells how much that is: when it misses the measured span by more than `LIMIT_FRAC`
the model does not hold, and there is no answer.

The span of a rank is from the start of its first to the end of its last operation. `low` has the
least latencies, no inferred wait between streams, and background work that is never late; `high`
has every unexplained delay as measured, and what a change takes out of the way is needed at once.
Neither knows of synchronisations that were not recorded: what a thread did between two calls is the
CPU's work.

The nodes of the graph are the ends of operations and the *heads* of threads: moments at which a
thread goes on after something other than its own work. These are the return of a call that waits, a
call that comes after another thread or after background work, and a thread's first call. Between
two heads a thread runs by itself, so that its calls lie at fixed distances from the head. Instants
count the starts and ends of all calls: 2 x call, and 1 more for its end. Collectives have two more
sorts of nodes: the arrival of each operation, and the meeting of all that arrive.

A *run* is a stretch of operations that follow each other in their stream and are launched from one
head, none of which waits for or is waited for by anything else. Its last operation ends at the
later of two moments: the end of what was before the run, plus a lag, and the head, plus another.
Once these are known, so are the operations inside.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import determinable
from perfkit.analysis.host import recorded as graphs_recorded
from perfkit.analysis.intervals import Axis, Bool, Int, Window
from perfkit.analysis.whatif.changes import (
    Calls,
    Change,
    Communication,
    Copies,
    Host,
    Kernels,
    Launches,
    Synchronisations,
    Tables,
    altered,
    moved_edges,
    waits_under,
)
from perfkit.analysis.whatif.program import (
    HIGH,
    LOW,
    MID,
    NONE,
    VIEWS,
    HostWaits,
    Program,
    predecessor,
    recorded,
)
from perfkit.analysis.whatif.replay import (
    GONE,
    Edges,
    Plan,
    Stretch,
    around,
    as_recorded,
    moments,
    stretch,
)
from perfkit.errors import PerfkitError
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

LIMIT_FRAC = 0.02
_SPANS = ("measured_ns", "unchanged_ns", "span_ns", "low_ns", "high_ns")


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


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that can be replayed: its plan as recorded, and its spans as measured and as replayed unchanged, ns."""

    tables: Tables
    program: Program
    plan: Plan
    measured: Int
    unchanged: Int


@dataclass(frozen=True, eq=False)
class Replay:
    """A run under changes: spans in ns from the first operation of all ranks to the last, 0 without any.

    Measured, replayed without changes (`unchanged_ns`) and with all of them: low <= span <= high.
    `ranks` has the same per rank, with `rank` int32 and int64 columns. `touched` says how many
    kernels, copies, launches saved, pieces of CPU work or calls each change concerns.
    """

    ranks: pd.DataFrame
    measured_ns: int
    unchanged_ns: int
    span_ns: int
    low_ns: int
    high_ns: int
    touched: tuple[int, ...]


__all__ = [
    "HIGH",
    "LIMIT_FRAC",
    "LOW",
    "MID",
    "Calls",
    "Change",
    "Communication",
    "Copies",
    "Host",
    "Kernels",
]
__all__ += [
    "Launches",
    "Prepared",
    "Replay",
    "Stretch",
    "Synchronisations",
    "around",
    "changed",
    "prepared",
]
__all__ += ["replay", "saved", "stretch"]


def replay(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    changes: Sequence[Change] = (),
    window: Window | None = None,
    ranges: pd.DataFrame | None = None,
) -> Replay:
    """Return how long the run would take with all `changes` made at once, in this order; none replays it as it was.

    KERNELS, COPIES and API_CALLS are of one run, with aligned clocks if it has several ranks; in
    RANGES `Host` finds its work. With a window these are the operations that start in it, such as
    those of steady steps.

    PerfkitError if calls or the operations of graphs are not recorded, or the unchanged replay
    misses a measured span by more than 2 %.
    """
    return changed(prepared(kernels, copies, api_calls, window=window, ranges=ranges), changes)


def prepared(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
    ranges: pd.DataFrame | None = None,
) -> Prepared:
    """Return what every replay of a run begins with; arguments and errors as in `replay`."""
    ranges = RANGES.given(ranges)
    tables = Tables(
        KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls), ranges
    )
    program = recorded(kernels, copies, api_calls, window=window)
    how = (
        "Record CUDA calls with the kernels: nsys profile --trace=cuda -o report PROGRAM, or CPU "
        "and CUDA activities in torch.profiler."
    )
    if len(program.ops.start) and not len(api_calls):
        raise PerfkitError(
            "api_calls: the capture holds no CUDA call, without which nothing can be replayed. "
            f"{how}"
        )
    able = determinable(kernels, copies, api_calls, pages=True)
    if len(program.ops.start) and not able.yes:
        raise PerfkitError(
            f"api_calls: {able.why}, so the replay would invent when they start. {how}"
        )
    plan = as_recorded(program, kernels, copies, api_calls)
    measured = _spans(program, plan, (program.ops.start, program.ops.end))
    unchanged = _spans(program, plan, timed(plan, MID))
    lost, span_ns = (
        int(graphs_recorded(kernels, copies, api_calls, window=window)["idle_ns"].sum()),
        int(measured[-1]),
    )
    if lost > LIMIT_FRAC * span_ns:
        raise PerfkitError(
            f"kernels: {lost:,} ns of {span_ns:,} ns lie inside CUDA graphs without any recorded "
            "operation. Record their nodes: nsys profile --cuda-graph-trace=node -o report "
            "PROGRAM."
        )
    # The unchanged replay must be the run that was measured.
    missed = np.abs(unchanged - measured) / np.maximum(measured, 1)
    if (missed > LIMIT_FRAC).any():
        worst = int(missed.argmax())
        raise PerfkitError(
            f"replay: the unchanged program takes {unchanged[worst]:,} ns in the model, "
            f"{measured[worst]:,} ns in the capture, more than {LIMIT_FRAC:.0%} apart: something "
            "that was not recorded held it up. Record all GPUs, processes and CUDA calls of the "
            "run, or choose a window of steady steps."
        )
    return Prepared(tables, program, plan, measured, unchanged)


def changed(run: Prepared, changes: Sequence[Change] = ()) -> Replay:
    """Return how long the run would take with all changes made at once: `replay` of a run that is prepared."""
    program, plan = run.program, copy.deepcopy(run.plan)
    touched = tuple(altered(plan, change, run.tables) for change in changes)
    spans = [_spans(program, plan, timed(plan, view)) for view in VIEWS]
    low, high = np.minimum(spans[LOW], spans[MID]), np.maximum(spans[HIGH], spans[MID])
    rows = np.array([run.measured, run.unchanged, spans[MID], low, high])
    ranks = pd.DataFrame(
        {
            "rank": np.unique(program.ops.rank).astype("int32"),
            **dict(zip(_SPANS, rows[:, :-1], strict=True)),
        }
    )
    return Replay(ranks, **dict(zip(_SPANS, rows[:, -1].tolist(), strict=True)), touched=touched)


def saved(run: Prepared, changes: Sequence[Change], *, view: int = HIGH) -> pd.DataFrame:
    """Return by how much all changes made at once shorten each operation, and the idle time of its device before it.

    A row per operation: `rank`, `gpu` and `start_ns` as recorded, `family` of a kernel, missing for
    a copy; `idle_ns` and `dur_ns` int64: what is saved, negative where more time passes, 0 for
    operations that are gone. Both replays have the `view`, by default the one that promises least.
    """
    plan = copy.deepcopy(run.plan)
    for change in changes:
        altered(plan, change, run.tables)
    stays = plan.moved != GONE
    before, after = timed(run.plan, view), timed(plan, view)
    idle = _idle_before(run.plan, before) - _idle_before(plan, after)
    lasted = (before[1] - before[0]) - (after[1] - after[0])
    columns = ["rank", "gpu", "start_ns"]
    rows = [run.tables.kernels[[*columns, "family"]], run.tables.copies[columns]]
    place = pd.concat(rows, ignore_index=True).take(run.program.ops.row)
    return place.assign(idle_ns=idle * stays, dur_ns=lasted * stays).reset_index(drop=True)


def _idle_before(plan: Plan, times: tuple[Int, Int]) -> Int:
    """Return how long the device of each operation does nothing until it starts, ns."""
    start, end = times
    device = plan.program.ops.device
    there = np.flatnonzero(plan.moved != GONE)
    axis = Axis.over(1 + int(device.max(initial=0)), start, end)
    begin = axis.at(device[there], start[there])
    finish = axis.at(device[there], end[there])
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(finish[order])
    follows = np.diff(device[there[order]]) == 0
    idle = np.maximum(begin[order][1:] - reached[:-1], 0)
    waited = np.zeros(len(start), np.int64)
    waited[there[order[1:]]] = np.where(follows, idle, 0)
    return waited


def _spans(program: Program, plan: Plan, times: tuple[Int, Int]) -> Int:
    """Return the span of the starts and ends of each rank, ascending, and last that of the run, ns."""
    ranks, number = np.unique(program.ops.rank, return_inverse=True)
    there = plan.moved != GONE
    start, end = times
    first, last = (
        np.full(len(ranks), np.iinfo(np.int64).max),
        np.full(len(ranks), np.iinfo(np.int64).min),
    )
    np.minimum.at(first, number[there], start[there])
    np.maximum.at(last, number[there], end[there])
    spans = np.where(last >= first, last - first, 0)
    return np.append(spans, int(last.max() - first.min()) if there.any() else 0)


def runs(chains: Chains, into: Int, apart: Bool) -> Runs:
    """Return the runs.

    `into` is for each node of an operation the one that waits in its place: itself, or a
    collective's arrival; `apart` whether an operation of the chains waits for, or is waited for by,
    something else.
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


def inside(chains: Chains, of_chains: Runs, time: Int) -> Int:
    """Return the end of each operation of the chains; `time` holds the nodes, right for the last of each run."""
    passed = np.cumsum(chains.after)
    ended = time[chains.head] + chains.launch
    ended[of_chains.last] = time[chains.node[of_chains.last]]
    ended -= passed
    # Behind the one before, an operation ends no earlier than that, plus what has passed: a running
    # maximum.
    for first, stop in pairwise(
        np.flatnonzero(np.diff(chains.stream, prepend=-1, append=-1)).tolist()
    ):
        ended[first:stop] = np.maximum.accumulate(ended[first:stop])
    return ended + passed


def timed(plan: Plan, view: int) -> tuple[Int, Int]:
    """Return when each operation starts and ends, ns, under one of `perfkit.analysis.whatif.program.VIEWS`."""
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
    # Collectives wait for all that take part, then for what was left when the last had come.
    ops = plan.program.ops
    left = (ops.end[op] - met[meeting]) * (
        plan.dur[op] / np.maximum(ops.end[op] - ops.start[op], 1)
    )
    arrived = Edges(
        nodes.meetings + meeting, nodes.arrivals + np.arange(len(op)), np.zeros(len(op), np.int64)
    )
    finished = Edges(op, nodes.meetings + meeting, np.rint(left).astype(np.int64))
    other = [host, *_between_streams(plan, view, into), arrived, finished]
    chains = _chains(plan, view, threads, nodes)
    ends_run = np.zeros(nodes.root + 1, bool)
    ends_run[
        np.concatenate([op, *(edges.to for edges in other), *(edges.source for edges in other)])
    ] = True
    of_chains = runs(chains, into, ends_run[chains.node])
    other += _of_threads(plan, view, threads, nodes, int(measured[-1]))
    apart = np.flatnonzero((plan.moved > GONE) & (plan.call >= 0))
    other.append(Edges(into[apart], *_launches(plan, view, threads, nodes, apart)))
    time = moments(measured, np.repeat([3, 0, 1, 2, 0], [*sizes, 1]), [*other, *of_chains.edges])
    time[chains.node] = inside(chains, of_chains, time)
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
        Edges(
            nodes.heads + inner,
            nodes.heads + threads.of[before],
            threads.offset[before] + threads.step[before + 1],
        ),
        Edges(
            nodes.heads + threads.number[2 * call],
            nodes.heads + threads.of[after],
            threads.offset[after] + plan.gap[call],
        ),
        Edges(
            nodes.heads + threads.number[2 * ready],
            np.full(len(ready), nodes.root),
            plan.ready[ready] - root,
        ),
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


def _between_streams(plan: Plan, view: int, into: Int) -> list[Edges]:
    """Return what operations wait for in other streams."""
    dur = _dur(plan)
    before = predecessor(plan.program.ops.stream, plan.moved <= GONE)
    edges = [
        Edges(into[e.to], e.source, e.lag + dur[e.to]) for e in moved_edges(plan, view, before)
    ]
    op, after, lag, sure = plan.stream_waits
    kept = sure if view == LOW else (plan.moved[after] <= GONE) | (view == HIGH)
    return [*edges, Edges(into[op[kept]], after[kept], lag[kept] + dur[op[kept]])]
