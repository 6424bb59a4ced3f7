"""How does each change alter a plan?

Functions
---------
altered    make a change to a plan, and say how much of the program it concerns
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.calls import numbered_together, where
from perfkit.analysis.intervals import Int, union
from perfkit.analysis.waits import Axis, covered
from perfkit.analysis.whatif.changes import Change, Communication, Copies, Host, Kernels, Launches, Synchronisations
from perfkit.analysis.whatif.grouping import alter_launches, launching
from perfkit.analysis.whatif.lags import NONE, predecessor
from perfkit.analysis.whatif.plan import FETCHED, GONE, SENT, Plan
from perfkit.analysis.whatif.program import EVENT_SYNC, STREAM_SYNC, Bool
from perfkit.analysis.whatif.waits import usual_launch


class Tables(NamedTuple):
    """KERNELS, COPIES, API_CALLS and RANGES of the program."""

    kernels: pd.DataFrame
    copies: pd.DataFrame
    api_calls: pd.DataFrame
    ranges: pd.DataFrame


def altered(plan: Plan, change: Change, tables: Tables) -> int:
    """Make a change to the plan; return how many kernels, copies, launches saved, gaps or calls it concerns."""
    if isinstance(change, Kernels):
        return _alter_kernels(plan, change, tables)
    if isinstance(change, Copies):
        return _alter_copies(plan, change, tables)
    if isinstance(change, Launches):
        return alter_launches(plan, change, _matching(plan, tables, change.pattern))
    if isinstance(change, Host):
        return _alter_host(plan, change, tables)
    if isinstance(change, Synchronisations):
        return _alter_synchronisations(plan, change, tables.api_calls)
    return _alter_communication(plan, change, tables)


def _matching(plan: Plan, tables: Tables, pattern: str) -> Bool:
    """Tell the operations that are kernels whose full name matches."""
    return _of_rows(plan, tables, kernels=where(tables.kernels["full_name"], re.compile(pattern).search))


def _of_rows(plan: Plan, tables: Tables, *, kernels: Bool | None = None, copies: Bool | None = None) -> Bool:
    """Tell the operations whose row of KERNELS or COPIES is chosen."""
    kernels = np.zeros(len(tables.kernels), bool) if kernels is None else kernels
    copies = np.zeros(len(tables.copies), bool) if copies is None else copies
    return np.asarray(np.r_[kernels, copies][plan.program.ops.row], np.bool_)


def _scale(plan: Plan, chosen: Bool, factor: float) -> None:
    plan.dur[chosen] = np.rint(plan.dur[chosen] * factor).astype(np.int64)


def _alter_kernels(plan: Plan, change: Kernels, tables: Tables) -> int:
    chosen = _matching(plan, tables, change.pattern)
    if change.family:
        chosen &= _of_rows(plan, tables, kernels=(tables.kernels["family"] == change.family).to_numpy())
    if change.rows is not None:
        chosen &= np.isin(plan.program.ops.row, change.rows)
    _scale(plan, chosen, change.factor)
    return int(chosen.sum())


def _alter_copies(plan: Plan, change: Copies, tables: Tables) -> int:
    direction = tables.copies["direction"]
    meant = direction == change.direction if change.direction else direction != "memset"
    chosen, to_host = (_of_rows(plan, tables, copies=rows.to_numpy()) for rows in (meant, direction == "D2H"))
    _scale(plan, chosen, change.factor)
    if change.measure == "removed":
        plan.moved[chosen] = GONE
        plan.dur[chosen] = 0
        plan.launch[:, chosen & (predecessor(plan.program.ops.stream) >= 0)] = NONE
        plan.space[:, chosen] = np.minimum(plan.space[:, chosen], 0)
    elif change.measure == "overlapped":
        plan.moved[chosen] = np.where(to_host, SENT, FETCHED)[chosen]
    if change.measure != "faster":
        _drop_waits(plan, chosen, removed=change.measure == "removed")
    return int(chosen.sum())


def _drop_waits(plan: Plan, copies: Bool, *, removed: bool) -> None:
    """Let calls that start only these copies return at once, and leave out a synchronisation that follows for them."""
    calls, waits = plan.program.calls, plan.host_waits
    own = launching(plan, copies)
    plan.cost[own] = 0 if removed else np.minimum(plan.cost[own], usual_launch(plan.program))
    follows = np.zeros(len(own), bool)
    follows[1:] = own[:-1] & (calls.thread[1:] == calls.thread[:-1]) & (calls.kind[1:] == STREAM_SYNC)
    plan.cost[follows] = 0
    plan.host_waits = waits.only(~follows[waits.call] & ~(waits.own & copies[waits.op]))


def _alter_host(plan: Plan, change: Host, tables: Tables) -> int:
    calls = plan.program.calls
    inside = plan.gap.clip(0)
    if change.pattern:
        inside = _covered(plan, tables, change.pattern)
    if not change.workers:
        plan.gap = plan.gap - np.rint(inside * (1 - change.factor)).astype(np.int64)
        return int((inside > 0).sum())
    plan.gap = plan.gap - inside
    for rank in np.unique(calls.rank[inside > 0]):
        call = np.flatnonzero((inside > 0) & (calls.rank == rank))
        call = call[np.argsort(calls.start[call], kind="stable")]
        begin = calls.start[calls.rank == rank].min()
        done = begin + np.rint(np.cumsum(inside[call]) * (change.factor / change.workers)).astype(np.int64)
        plan.ready[call] = np.maximum(plan.ready[call], done)
    return int((inside > 0).sum())


def _covered(plan: Plan, tables: Tables, pattern: str) -> Int:
    """Return how much of the work before each call lies in ranges of its thread whose name matches, ns."""
    calls = plan.program.calls
    named = tables.ranges[where(tables.ranges["name"], re.compile(pattern, re.IGNORECASE).search)]
    of_call, of_range = numbered_together([tables.api_calls, named], ["rank", "process", "thread"])
    thread = of_call[calls.row]
    first, last = calls.start - plan.gap.clip(0), calls.start
    start, end = named["start_ns"].to_numpy(), (named["start_ns"] + named["dur_ns"]).to_numpy()
    axis = Axis.over(1 + int(max(of_call.max(initial=0), of_range.max(initial=0))), first, last, start, end)
    cover = union(axis.at(of_range, start), axis.at(of_range, end))
    return covered(cover, axis.at(thread, first), axis.at(thread, last))


def _alter_synchronisations(plan: Plan, change: Synchronisations, api_calls: pd.DataFrame) -> int:
    calls, waits = plan.program.calls, plan.host_waits
    chosen = where(api_calls["name"], re.compile(change.pattern).search)[calls.row] & (calls.kind >= EVENT_SYNC)
    plan.cost[chosen] = 0
    plan.host_waits = waits.only(~chosen[waits.call])
    return int(chosen.sum())


def _alter_communication(plan: Plan, change: Communication, tables: Tables) -> int:
    chosen = _of_rows(plan, tables, kernels=(tables.kernels["family"] == "communication").to_numpy())
    _scale(plan, chosen, change.factor)
    plan.moved[chosen] = SENT
    return int(chosen.sum())
