"""What may be changed in a program before it is replayed.

A factor multiplies a time: 0.5 is twice as fast, 1 changes nothing. Patterns are regular
expressions searched for in names; an empty one matches every name. What a change promises is taken
as given: whether it can be had is another question. Moved operations of one sort follow each other
on a stream of their own per device. What comes after a moved operation in its old stream waits for
it no longer, except in the view HIGH, in which it is needed at once. A call that waited for a moved
copy waits for what came before it; in HIGH, for a copy to the host itself.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import DATA_LOADING, THREAD, covered_by, where
from perfkit.analysis.intervals import Bool, Int
from perfkit.analysis.whatif import program
from perfkit.analysis.whatif.replay import FETCHED, GONE, SENT, STAYS, Edges, Plan
from perfkit.names.families import FAMILIES

COPY_MEASURES = ("faster", "overlapped", "removed")
DIRECTIONS = ("H2D", "D2H", "D2D", "P2P", "H2H", "memset", "unknown", "")


class _Checked:
    """What all changes are checked for: numbers of 0 and up, patterns, and words that are legal, by field."""

    LEGAL: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, legal in self.LEGAL.items():
            if (word := getattr(self, name)) not in legal:
                raise ValueError(f"{name}: {word!r} is not one of {', '.join(legal)}")
        for name in ("factor", "at_most", "at_most_gap_ns", "workers"):
            number = getattr(self, name, 0)
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"{name}: {number} is not 0 or more")
        pattern = getattr(self, "pattern", "")
        try:
            re.compile(pattern)
        except re.error as e:
            raise ValueError(f"pattern: {pattern!r} is not a regular expression: {e}") from e


@dataclass(frozen=True)
class Kernels(_Checked):
    """The time of kernels x factor: those whose full name matches, of the family, and among the rows of KERNELS.

    `factor` is 0 and up; `family` is one of `perfkit.names.FAMILIES`, or empty for all; `rows` are
    positions, all when omitted.
    """

    factor: float
    pattern: str = ""
    family: str = ""
    rows: NDArray[np.integer] | Sequence[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family and self.family not in FAMILIES:
            raise ValueError(f"family: {self.family!r} is not one of {', '.join(FAMILIES)}")


@dataclass(frozen=True)
class Copies(_Checked):
    """Copies of a direction x factor; "overlapped": on a stream of their own with calls that do not wait; or "removed".

    `measure` is one of COPY_MEASURES; `factor` is 0 and up; `direction` is as in COPIES, or empty
    for all; memsets are no copies unless named.
    """

    LEGAL = MappingProxyType({"measure": COPY_MEASURES, "direction": DIRECTIONS})
    measure: str = "faster"
    factor: float = 1.0
    direction: str = ""


@dataclass(frozen=True)
class Launches(_Checked):
    """Launches that follow each other on a thread become one: its call, and the CPU's work before it, remain.

    A call that waits for the GPU or reserves memory, another kernel or copy, and more than
    `at_most_gap_ns` of work between two launches end a group (work of 1 ms and more is not that of
    launching), and so does the number `at_most` of launches, unless 0. "graph" keeps the kernels
    and their distances on the GPU, as far as these are its own; "fused" makes one kernel of them,
    as long as they were together. `pattern` is of the full name of the kernels.
    """

    LEGAL = MappingProxyType({"measure": ("fused", "graph")})
    measure: str = "graph"
    pattern: str = ""
    at_most: int = 0
    at_most_gap_ns: int = 1_000_000


@dataclass(frozen=True)
class Host(_Checked):
    """The CPU's work between calls x factor inside ranges whose name matches, or all of it for an empty pattern.

    `factor` is 0 and up. Calls keep their time. `pattern` is of names in RANGES, by default those
    of data loading. `workers` are processes that do this work in the background, ahead of the
    program, which waits if they are too slow; 0: the program does it itself.
    """

    factor: float = 1.0
    pattern: str = DATA_LOADING.pattern
    workers: int = 0


@dataclass(frozen=True)
class Synchronisations(_Checked):
    """Calls that wait for the GPU, and whose name matches, are gone; copies that wait keep waiting (see `Copies`)."""

    pattern: str = ""


@dataclass(frozen=True)
class Calls(_Checked):
    """Calls whose name matches, launches excepted, take no time and wait for nothing."""

    pattern: str = ""


@dataclass(frozen=True)
class Communication(_Checked):
    """Communication x factor runs on a stream of its own, after what it communicates; no kernel waits for it."""

    factor: float = 1.0


Change = Kernels | Copies | Launches | Host | Synchronisations | Calls | Communication


class Tables(NamedTuple):
    """KERNELS, COPIES, API_CALLS and RANGES of the program."""

    kernels: pd.DataFrame
    copies: pd.DataFrame
    api_calls: pd.DataFrame
    ranges: pd.DataFrame


def altered(plan: Plan, change: Change, tables: Tables) -> int:
    """Make a change to the plan; return how many kernels, copies, launches saved, gaps or calls it concerns."""
    if isinstance(change, Kernels):
        chosen = _matching(plan, tables, change.pattern)
        if change.family:
            chosen &= _of_rows(
                plan, tables, kernels=(tables.kernels["family"] == change.family).to_numpy()
            )
        if change.rows is not None:
            chosen &= np.isin(plan.program.ops.row, change.rows)
        _scale(plan, chosen, change.factor)
        return int(chosen.sum())
    if isinstance(change, Copies):
        return _alter_copies(plan, change, tables)
    if isinstance(change, Launches):
        return alter_launches(plan, change, _matching(plan, tables, change.pattern))
    if isinstance(change, Host):
        return _alter_host(plan, change, tables)
    if isinstance(change, Synchronisations | Calls):
        return _drop_calls(plan, change, tables)
    chosen = _of_rows(
        plan, tables, kernels=(tables.kernels["family"] == "communication").to_numpy()
    )
    _scale(plan, chosen, change.factor)
    plan.moved[chosen] = SENT
    return int(chosen.sum())


def _drop_calls(plan: Plan, change: Synchronisations | Calls, tables: Tables) -> int:
    """Let calls by name take no time and wait for nothing: synchronisations, or all calls but launches."""
    calls, waits = plan.program.calls, plan.host_waits
    chosen = where(tables.api_calls["name"], re.compile(change.pattern).search)[calls.row]
    waiting = calls.kind >= program.EVENT_SYNC
    chosen &= waiting if isinstance(change, Synchronisations) else calls.kind != program.LAUNCH
    plan.cost[chosen] = 0
    plan.host_waits = waits.only(~chosen[waits.call])
    return int(chosen.sum())


def _matching(plan: Plan, tables: Tables, pattern: str) -> Bool:
    """Tell the operations that are kernels whose full name matches."""
    return _of_rows(
        plan, tables, kernels=where(tables.kernels["full_name"], re.compile(pattern).search)
    )


def _of_rows(
    plan: Plan,
    tables: Tables,
    *,
    kernels: Bool | None = None,
    copies: Bool | None = None,
) -> Bool:
    """Tell the operations whose row of KERNELS or COPIES is chosen."""
    kernels = np.zeros(len(tables.kernels), bool) if kernels is None else kernels
    copies = np.zeros(len(tables.copies), bool) if copies is None else copies
    return np.asarray(np.r_[kernels, copies][plan.program.ops.row], np.bool_)


def _scale(plan: Plan, chosen: Bool, factor: float) -> None:
    plan.dur[chosen] = np.rint(plan.dur[chosen] * factor).astype(np.int64)


def _alter_copies(plan: Plan, change: Copies, tables: Tables) -> int:
    direction = tables.copies["direction"]
    meant = direction == change.direction if change.direction else direction != "memset"
    chosen, to_host = (
        _of_rows(plan, tables, copies=rows.to_numpy()) for rows in (meant, direction == "D2H")
    )
    _scale(plan, chosen, change.factor)
    if change.measure == "removed":
        plan.moved[chosen] = GONE
        plan.dur[chosen] = 0
        plan.launch[:, chosen & (program.predecessor(plan.program.ops.stream) >= 0)] = program.NONE
        plan.space[:, chosen] = np.minimum(plan.space[:, chosen], 0)
    elif change.measure == "overlapped":
        plan.moved[chosen] = np.where(to_host, SENT, FETCHED)[chosen]
    if change.measure != "faster":
        _drop_waits(plan, chosen, to_host & (change.measure == "overlapped"))
    return int(chosen.sum())


def _drop_waits(plan: Plan, copies: Bool, to_host: Bool) -> None:
    """Let calls that start only these copies return at once, and leave out a synchronisation that follows for them.

    In HIGH the host still waits for copies `to_host`: what it does next may need their data.
    """
    calls, waits = plan.program.calls, plan.host_waits
    own, reads = launching(plan, copies), launching(plan, copies & to_host)
    plan.cost[own] = np.minimum(
        plan.cost[own],
        0 if (plan.moved[copies] == GONE).any() else program.usual_launch(plan.program),
    )
    follows = np.zeros(len(own), bool)
    follows[1:] = (
        own[:-1] & (calls.thread[1:] == calls.thread[:-1]) & (calls.kind[1:] == program.STREAM_SYNC)
    )
    plan.cost[follows] = 0
    reads[1:] |= reads[:-1] & follows[1:]
    dropped = follows[waits.call] | (waits.own & copies[waits.op])
    needed = dropped & reads[waits.call]
    plan.host_waits = waits._replace(sure=waits.sure & ~needed).only(~dropped | needed)


def _alter_host(plan: Plan, change: Host, tables: Tables) -> int:
    calls = plan.program.calls
    inside = plan.gap.clip(0)
    if change.pattern:
        # How much of the work before each call lies in ranges of its thread whose name matches.
        named = tables.ranges[
            where(tables.ranges["name"], re.compile(change.pattern, re.IGNORECASE).search)
        ]
        work = (
            tables.api_calls[THREAD]
            .take(calls.row)
            .assign(start_ns=calls.start - inside, dur_ns=inside)
        )
        inside = covered_by(work, named, THREAD)
    if not change.workers:
        plan.gap = plan.gap - np.rint(inside * (1 - change.factor)).astype(np.int64)
        return int((inside > 0).sum())
    plan.gap = plan.gap - inside
    for rank in np.unique(calls.rank[inside > 0]):
        call = np.flatnonzero((inside > 0) & (calls.rank == rank))
        call = call[np.argsort(calls.start[call], kind="stable")]
        begin = calls.start[calls.rank == rank].min()
        done = begin + np.rint(np.cumsum(inside[call]) * (change.factor / change.workers)).astype(
            np.int64
        )
        plan.ready[call] = np.maximum(plan.ready[call], done)
    return int((inside > 0).sum())


def alter_launches(plan: Plan, change: Launches, kernels: Bool) -> int:
    """Let one call launch what a group of calls did; return how many calls are saved.

    `kernels` tells the operations that may be in a group; a graph takes all copies and memsets
    nobody waits for, too.
    """
    calls, waits = plan.program.calls, plan.host_waits
    members = launching(plan, kernels | (plan.program.ops.is_copy & (change.measure == "graph")))
    members &= calls.kind == program.LAUNCH
    members[waits.call[waits.own]] = False
    call, first = _groups(plan, change, members)
    follows = np.flatnonzero(first != call)
    leader = np.arange(len(members) + 1)
    leader[call[follows]] = first[follows]
    between = np.zeros(len(members) + 1, np.int64)
    np.add.at(between, call[follows - 1] + 1, 1)
    np.add.at(between, call[follows] + 1, -1)
    gone = np.cumsum(between)[:-1] > 0
    if change.measure == "fused":
        plan.doubtful_gap[gone] += plan.gap[gone]
    plan.gap[gone] = plan.cost[gone] = 0
    plan.host_waits = waits.only(~gone[waits.call])  # of a full queue
    _relaunch(plan, np.append(leader[:-1], -1), fused=change.measure == "fused")
    return len(follows)


def launching(plan: Plan, ops: Bool) -> Bool:
    """Tell the calls that launch such operations and no others."""
    called = plan.call >= 0
    calls = len(plan.program.calls.start)
    launched, meant = (
        np.bincount(plan.call[rows], minlength=calls) for rows in (called, ops & called)
    )
    return np.asarray((launched > 0) & (launched == meant), np.bool_)


def _groups(plan: Plan, change: Launches, members: Bool) -> tuple[Int, Int]:
    """Return the calls that are members, in order, and the first of the group of each."""
    calls = plan.program.calls
    ends_group = ((calls.kind >= program.LAUNCH) & ~members) | (calls.kind >= program.MEMORY)
    ends_group[plan.handovers.call] = True
    call = np.flatnonzero(members)
    broken, worked = np.cumsum(ends_group)[call], np.cumsum(plan.gap)[call]
    new = np.diff(calls.thread[call], prepend=-1) != 0
    new[1:] |= (np.diff(broken) != 0) | (np.diff(worked) > change.at_most_gap_ns)
    place = np.arange(len(call))
    if change.at_most:
        new |= (place - np.maximum.accumulate(np.where(new, place, 0))) % change.at_most == 0
    return call, call[np.maximum.accumulate(np.where(new, place, 0))]


def _relaunch(plan: Plan, leader: Int, *, fused: bool) -> None:
    """Launch operations by the leaders of their calls, and keep no more than the usual distance between them."""
    ops = plan.program.ops
    op = np.flatnonzero((plan.call >= 0) & (leader[plan.call] != plan.call) & (plan.moved == STAYS))
    plan.call[op] = leader[plan.call[op]]
    held = ops.start[op] - plan.program.calls.start[plan.call[op]]
    for view in range(len(plan.launch)):
        led = np.flatnonzero((ops.call >= 0) & ~plan.lags.held & (plan.launch[view] > program.NONE))
        latency = np.full(len(leader), np.iinfo(np.int64).max)
        np.minimum.at(latency, ops.call[led], plan.launch[view, led])
        latency[latency == np.iinfo(np.int64).max] = 0
        plan.launch[view, op] = np.where(plan.lags.held[op], held, latency[plan.call[op]])
        plan.space[view, op] = np.minimum(
            plan.space[view, op], 0 if fused else plan.lags.typical_space[op]
        )


def moved_edges(plan: Plan, view: int, before: Int) -> list[Edges]:
    """Return the edges from and to moved operations, without their own time.

    `before` is the last operation that stays, before each one in its old stream; -1 without any.
    """
    ops, moved = plan.program.ops, plan.moved
    apart = np.flatnonzero(moved > GONE)
    line = (ops.device[apart] * 2 + ops.is_copy[apart]) * 4 + moved[apart]
    order = np.lexsort((ops.start[apart], line))
    line, apart = line[order], apart[order]
    behind = np.flatnonzero(np.diff(line, prepend=-1) == 0)
    follows = apart[(before[apart] >= 0) & ((moved[apart] == SENT) | (view == program.HIGH))]
    needs = np.flatnonzero((moved <= GONE) & (view == program.HIGH))
    needed = program.predecessor(ops.stream)[needs]
    needs = needs[(needed >= 0) & (np.append(moved, GONE)[needed] > GONE)]
    # What is first now may not start before what was first, where that found the stream at work.
    was = np.flatnonzero(plan.lags.held & (moved > GONE))
    first = np.flatnonzero((moved <= GONE) & (before < 0) & np.isin(ops.stream, ops.stream[was]))
    was = was[np.searchsorted(ops.stream[was], ops.stream[first])]
    return [
        Edges(apart[behind], apart[behind - 1], np.zeros(len(behind), np.int64)),
        Edges(follows, before[follows], np.maximum(plan.lags.typical_space[follows], 0)),
        Edges(needs, needs - 1, plan.lags.typical_space[needs]),
        Edges(first, was, -plan.dur[was]),
    ]


def waits_under(plan: Plan, view: int) -> program.HostWaits:
    """Return the waits that hold under a view: waits that are not sure hold only in HIGH."""
    ops = plan.program.ops
    waits = plan.host_waits.only(plan.host_waits.sure | (view == program.HIGH))
    moved = plan.moved[waits.op]
    instead = waits._replace(op=program.predecessor(ops.stream, plan.moved <= GONE)[waits.op])
    replaced = (moved > GONE) & ~waits.own & (instead.op >= 0)
    kept = (moved <= GONE) | ~ops.is_copy[waits.op] | (view == program.HIGH)
    return program.joined([waits.only(kept), instead.only(replaced)])
