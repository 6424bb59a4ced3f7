"""What was a device waiting for when it did nothing?

Conventions
-----------
The *launch call* of a gap is that of the operation which ends it. The *wait* is the stretch of the
launching thread from the gap's start to the launch call.

cause (classes of HTA's idle-time breakdown, here per device)
    host_wait     the launch call began after the device ran dry, and that explains the gap
    kernel_wait   it began before, and the gap is shorter than 30 us
    other         it began before, and the gap is longer; or it ended so soon that it leaves most of the gap
                  unexplained: what held the operation up, another stream, device or process, is not known
    unattributed  no launch call is recorded
    edge          before the first or after the last operation of the window

detail of a host_wait: the first of these that covers at least half of the wait, else host_code
    sync          calls that wait for the GPU
    data_loading  ranges whose name matches DATA_LOADING
    memory        calls that reserve or release memory
    launch        launch calls, back to back

Functions
---------
attributed     cause, detail, call, range and thread of gaps whose launch call is known
determinable   whether a capture holds enough calls to speak of causes
judged         the same of counts

References
----------
Holistic Trace Analysis, ``get_idle_time_breakdown``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.calls import is_graph_launch, is_launch, is_memory, is_sync, numbered_together, started_by, where
from perfkit.analysis.intervals import Int, Intervals, union
from perfkit.analysis.waits import Axis, Placed, covered, innermost, longest, placed
from perfkit.tables import API_CALLS, COPIES, KERNELS

CAUSES = ("host_wait", "kernel_wait", "other", "unattributed", "edge")
DETAILS = ("sync", "data_loading", "memory", "launch", "host_code")
KERNEL_WAIT_NS = 30_000  # HTA's consecutive_kernel_delay, 30; its text says ns, its data are us
SLIVER_FRAC = 0.1  # of a gap; a shorter wait of the host does not explain it (convention)
LACKING_LIMIT_FRAC = 0.2
WAITS = 1 << 17  # explained at once, so that of millions of calls only those around them are sorted
THREAD = ["rank", "process", "thread"]
# "enumerate(DataLoader)#..." of PyTorch, "Data loading", "data_loading", "next batch", "get_batch", "batch-generator"
DATA_LOADING = re.compile(r"data[ _-]?load|(?:next|get|load|fetch)[ _-]?batch|batch[ _-]?generator", re.IGNORECASE)


def attributed(
    start: Int, end: Int, edge: NDArray[np.bool_], call: Int, *, api_calls: pd.DataFrame, ranges: pd.DataFrame
) -> dict[str, pd.Categorical[Any] | Int]:
    """Return why the device did nothing in each of the gaps [start, end).

    Parameters
    ----------
    start, end
        int64 ns.
    edge
        Whether a gap lies before the first or after the last operation of the window.
    call
        Row of the launch call in `api_calls`; -1 where none is recorded, and at an edge.
    api_calls, ranges
        Tables API_CALLS and RANGES; may be empty.

    Returns
    -------
    dict of columns
        cause (of CAUSES); detail (of DETAILS), api and range (names from the tables), missing unless the cause
        is host_wait and one applies; process and thread of the call, int64, -1 without one.

    Examples
    --------
    >>> none = np.array([-1])
    >>> why = attributed(none, none, none == 0, none, api_calls=API_CALLS.empty(), ranges=API_CALLS.empty())
    >>> why["cause"].tolist(), why["thread"].tolist()
    (['unattributed'], [-1])
    """
    called, returned = (np.append(times, 0)[call] for times in _ends(api_calls))
    held_up = (end - returned >= KERNEL_WAIT_NS) & (returned - start < SLIVER_FRAC * (end - start))
    of_host = (called > start) & ~held_up
    cause = np.select([edge, call < 0, of_host, end - start < KERNEL_WAIT_NS], [4, 3, 0, 1], 2)
    why = np.full((3, len(cause)), -1)
    host = np.flatnonzero(cause == 0)
    host = host[np.argsort(start[host], kind="stable")]
    for first in range(0, len(host), WAITS):
        part = host[first : first + WAITS]
        why[:, part] = _explained(start[part], np.minimum(called, end)[part], call[part], api_calls, ranges)
    return {
        "cause": pd.Categorical.from_codes(cause, pd.Index(CAUSES)),
        "detail": pd.Categorical.from_codes(why[0], pd.Index(DETAILS)),
        "api": pd.Categorical.from_codes(why[1], api_calls["name"].cat.categories),
        "range": pd.Categorical.from_codes(why[2], ranges["name"].cat.categories),
        "process": np.append(api_calls["process"].to_numpy(), -1)[call],
        "thread": np.append(api_calls["thread"].to_numpy(), -1)[call],
    }


def _ends(calls: pd.DataFrame) -> tuple[Int, Int]:
    """Return when calls begin and return."""
    begin = calls["start_ns"].to_numpy()
    return begin, begin + calls["dur_ns"].to_numpy()


def _explained(start: Int, end: Int, call: Int, api_calls: pd.DataFrame, ranges: pd.DataFrame) -> tuple[Int, Int, Int]:
    """Return the codes of detail, call name and range name of the waits [start, end) of the calling threads."""
    waiting = api_calls[THREAD].take(call)
    api_calls, ranges = (_between(frame, int(start.min()), int(end.max())) for frame in (api_calls, ranges))
    of_wait, of_call, of_range = numbered_together([waiting, api_calls, ranges], THREAD)
    begins = [frame["start_ns"].to_numpy() for frame in (api_calls, ranges)]
    ends = [begin + frame["dur_ns"].to_numpy() for begin, frame in zip(begins, (api_calls, ranges), strict=True)]
    threads = 1 + int(max(of_wait.max(), of_call.max(initial=0), of_range.max(initial=0)))
    axis = Axis.over(threads, start, end, *begins, *ends)
    on_cpu, named = placed(api_calls, of_call, axis), placed(ranges, of_range, axis)
    first, last = axis.at(of_wait, start), axis.at(of_wait, end)
    covers = (
        _cover(on_cpu, api_calls["name"], is_sync),
        _cover(named, ranges["name"], DATA_LOADING.search),
        _cover(on_cpu, api_calls["name"], is_memory),
        _cover(on_cpu, api_calls["name"], is_launch),
    )
    detail = np.select([2 * covered(cover, first, last) >= end - start for cover in covers], range(4), 4)
    api, name = (np.append(frame["name"].cat.codes.to_numpy(), -1) for frame in (api_calls, ranges))
    return detail, api[longest(on_cpu, first, last)], name[innermost(named, first, last)]


def _between(frame: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    """Return the rows that overlap [first, last): of a small part of a run only these need to be sorted."""
    start = frame["start_ns"].to_numpy()
    near = (start < last) & (start + frame["dur_ns"].to_numpy() > first)
    return frame if near.all() else frame.take(np.flatnonzero(near))


def _cover(intervals: Placed, names: pd.Series, fulfils: Callable[[str], object]) -> Intervals:
    """Return the time covered by the intervals whose name fulfils a condition."""
    keep = where(names, fulfils)[intervals.row]
    return union(intervals.start[keep], intervals.end[keep])


@dataclass(frozen=True)
class Determinable:
    """Whether a capture can say what its gaps wait for; if not, `why` says what it lacks."""

    yes: bool
    why: str = ""


def determinable(kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame) -> Determinable:
    """Return whether enough operations have their launch call for `idle_gaps` to speak of causes.

    Not so if more than a fifth of the operations have no launch call, or more than a fifth of the graph
    launches no operation: then gaps are an artefact of what was not recorded.

    Parameters
    ----------
    kernels, copies, api_calls
        Tables KERNELS, COPIES and API_CALLS; may be empty.

    Returns
    -------
    Determinable
        `yes`, and a sentence `why` where it is False.

    Raises
    ------
    SchemaError
        If a table does not match its schema.

    Examples
    --------
    >>> determinable(KERNELS.empty(), COPIES.empty(), API_CALLS.empty()).why
    'the capture holds no operation of a GPU'
    """
    columns = ["rank", "process", "correlation"]
    tables = [KERNELS.check(kernels)[columns], COPIES.check(copies)[columns]]
    call = started_by(pd.concat(tables, ignore_index=True), API_CALLS.check(api_calls))
    graphs = np.flatnonzero(where(api_calls["name"], is_graph_launch))
    return judged(len(call), int((call < 0).sum()), len(graphs), int((~np.isin(graphs, call)).sum()))


def judged(operations: int, without_call: int, graphs: int, without_operation: int) -> Determinable:
    """Return what `determinable` says of these counts: operations, graph launches, and those of each that lack a part.

    Examples
    --------
    >>> judged(10, 3, 0, 0).why
    '3 of 10 operations have no launch call'
    """
    if not operations:
        return Determinable(False, "the capture holds no operation of a GPU")
    for what, lacking, of in (
        ("operations have no launch call", without_call, operations),
        ("graph launches have no operation", without_operation, graphs),
    ):
        if lacking > LACKING_LIMIT_FRAC * of:
            return Determinable(False, f"{lacking:,} of {of:,} {what}")
    return Determinable(True)
