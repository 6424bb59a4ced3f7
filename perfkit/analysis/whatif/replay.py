"""How long would a run take if something in it were changed?

Conventions
-----------
The program is what its threads called, with the CPU's work between the calls, and the operations that the calls
started. Streams work in order; an operation starts after its launch, after its predecessor and after what it waits
for in other streams and on other ranks; calls that wait return when what they wait for is done. Of all this only
calls and operations are recorded; the rest is inferred (`perfkit.analysis.whatif.waits`, `.streams`, `.threads`), and
delays that nothing explains are left out. A replay of the unchanged program tells how much that is: when it misses
the measured span by more than `LIMIT_FRAC` the model does not hold, and there is no answer.

The span of a rank is from the start of its first to the end of its last operation. `low` has the least latencies, no
inferred wait between streams, and background work that is never late; `high` has every unexplained delay as measured,
and what a change takes out of the way is needed at once. Neither knows of synchronisations that were not recorded:
what a thread did between two calls is the CPU's work.

Functions
---------
replay      the span under changes
prepared    a run, checked that it can be replayed
changed     the span of it under changes: for several answers about one run
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfkit.analysis.causes import determinable
from perfkit.analysis.graphs import recorded as graphs_recorded
from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.altering import Tables, altered
from perfkit.analysis.whatif.changes import Change
from perfkit.analysis.whatif.lags import HIGH, LOW, MID, VIEWS
from perfkit.analysis.whatif.plan import GONE, Plan, as_recorded
from perfkit.analysis.whatif.program import Program, recorded
from perfkit.analysis.whatif.schedule import timed
from perfkit.analysis.window import Window
from perfkit.errors import PerfkitError
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

LIMIT_FRAC = 0.02
_SPANS = ("measured_ns", "unchanged_ns", "span_ns", "low_ns", "high_ns")


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
    """A run under changes.

    Attributes
    ----------
    ranks
        One row per rank: `rank` int32; `measured_ns`, `unchanged_ns` (replayed without changes), `span_ns`, `low_ns`,
        `high_ns` (replayed with all changes), int64, low <= span <= high.
    measured_ns, unchanged_ns, span_ns, low_ns, high_ns
        The same from the first operation of all ranks to the last; 0 without any.
    touched
        How many kernels, copies, launches saved, pieces of CPU work or calls each change concerns.
    """

    ranks: pd.DataFrame
    measured_ns: int
    unchanged_ns: int
    span_ns: int
    low_ns: int
    high_ns: int
    touched: tuple[int, ...]


def replay(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    changes: Sequence[Change] = (),
    window: Window | None = None,
    ranges: pd.DataFrame | None = None,
) -> Replay:
    """Return how long the run would take with all changes made at once.

    Parameters
    ----------
    kernels, copies, api_calls
        KERNELS, COPIES and API_CALLS of one run, with aligned clocks if it has several ranks; may be empty.
    changes
        Of `perfkit.analysis.whatif.changes`, made in this order; none replays the run as it was.
    window
        (start_ns, end_ns): the operations that start in it, such as those of steady steps; all when omitted.
    ranges
        RANGES, in which `Host` finds its work; may be empty.

    Returns
    -------
    Replay
        Spans, int64 ns, per rank and of the run. A run without operations has none.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.
    PerfkitError
        If calls or the operations of graphs are not recorded, or the unchanged replay misses a measured span by more
        than 2 %.

    Examples
    --------
    >>> replay(KERNELS.empty(), COPIES.empty(), API_CALLS.empty()).span_ns
    0
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
    """Return what every replay of a run begins with; arguments and errors as in `replay`.

    Examples
    --------
    >>> changed(prepared(KERNELS.empty(), COPIES.empty(), API_CALLS.empty())).unchanged_ns
    0
    """
    ranges = RANGES.empty() if ranges is None else RANGES.check(ranges)
    tables = Tables(KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls), ranges)
    program = recorded(kernels, copies, api_calls, window=window)
    if len(program.ops.start):
        _check_calls(tables)
    plan = _plan(program, tables)
    measured = _spans(program, plan, (program.ops.start, program.ops.end))
    unchanged = _spans(program, plan, timed(plan, MID))
    _check_graphs(tables, window, int(measured[-1]))
    _check_missed(measured, unchanged)
    return Prepared(tables, program, plan, measured, unchanged)


def changed(run: Prepared, changes: Sequence[Change] = ()) -> Replay:
    """Return how long the run would take with all changes made at once: `replay` of a run that is prepared."""
    program, plan = run.program, copy.deepcopy(run.plan)
    touched = tuple(altered(plan, change, run.tables) for change in changes)
    spans = [_spans(program, plan, timed(plan, view)) for view in VIEWS]
    low, high = np.minimum(spans[LOW], spans[MID]), np.maximum(spans[HIGH], spans[MID])
    rows = np.array([run.measured, run.unchanged, spans[MID], low, high])
    ranks = pd.DataFrame(
        {"rank": np.unique(program.ops.rank).astype("int32"), **dict(zip(_SPANS, rows[:, :-1], strict=True))}
    )
    return Replay(ranks, **dict(zip(_SPANS, rows[:, -1].tolist(), strict=True)), touched=touched)


def _plan(program: Program, tables: Tables) -> Plan:
    kernels, copies = tables.kernels, tables.copies
    pageable = ((copies["src_memory"] == "pageable") | (copies["dst_memory"] == "pageable")).to_numpy()
    communicates = (kernels["family"] == "communication").to_numpy()
    row = program.ops.row
    return as_recorded(
        program,
        tables.api_calls["name"],
        pageable=np.r_[np.zeros(len(kernels), bool), pageable][row],
        communicates=np.r_[communicates, np.zeros(len(copies), bool)][row],
    )


def _spans(program: Program, plan: Plan, times: tuple[Int, Int]) -> Int:
    """Return the span of the starts and ends of each rank, ascending, and last that of the run, ns."""
    ranks, number = np.unique(program.ops.rank, return_inverse=True)
    there = plan.moved != GONE
    start, end = times
    first, last = np.full(len(ranks), np.iinfo(np.int64).max), np.full(len(ranks), np.iinfo(np.int64).min)
    np.minimum.at(first, number[there], start[there])
    np.maximum.at(last, number[there], end[there])
    spans = np.where(last >= first, last - first, 0)
    return np.append(spans, int(last.max() - first.min()) if there.any() else 0)


def _check_calls(tables: Tables) -> None:
    """Raise PerfkitError if the calls that launch operations are not recorded."""
    kernels, copies, api_calls, _ = tables
    how = "Record CUDA calls with the kernels: nsys profile --trace=cuda, or CPU and CUDA activities in torch.profiler."
    if not len(api_calls):
        raise PerfkitError(f"api_calls: the capture holds no CUDA call, without which nothing can be replayed. {how}")
    if not (able := determinable(kernels, copies, api_calls)).yes:
        raise PerfkitError(f"api_calls: {able.why}, so the replay would invent when they start. {how}")


def _check_graphs(tables: Tables, window: Window | None, span_ns: int) -> None:
    """Raise PerfkitError if a GPU was at work in graphs of which too little was recorded."""
    kernels, copies, api_calls, _ = tables
    lost = int(graphs_recorded(kernels, copies, api_calls, window=window)["idle_ns"].sum())
    if lost > LIMIT_FRAC * span_ns:
        raise PerfkitError(
            f"kernels: {lost:,} ns of {span_ns:,} ns lie inside CUDA graphs without any recorded operation. "
            "Record their nodes: nsys profile --cuda-graph-trace=node."
        )


def _check_missed(measured: Int, unchanged: Int) -> None:
    """Raise PerfkitError if the unchanged replay is not the run that was measured."""
    missed = np.abs(unchanged - measured) / np.maximum(measured, 1)
    if (missed > LIMIT_FRAC).any():
        worst = int(missed.argmax())
        raise PerfkitError(
            f"replay: the unchanged program takes {unchanged[worst]:,} ns in the model, {measured[worst]:,} ns in the "
            f"capture, more than {LIMIT_FRAC:.0%} apart: something that was not recorded held it up. Record all GPUs, "
            "processes and CUDA calls of the run, or choose a window of steady steps."
        )
