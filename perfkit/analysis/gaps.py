"""When does a GPU do nothing, and what was it waiting for?

A gap is a maximal interval in which no kernel, copy or memset of any process runs on the device.
Gaps and their causes are found on the whole recording; a window cuts them afterwards, so that a gap
at its edge keeps its cause. What lies before the first or after the last operation of a device is
an edge; without a window a device that works from the start to the end of its rank's operations has
none. The operation that starts at a gap's end decides the cause, through its launch call, joined on
(rank, process, correlation); of several that start together, the one whose call comes first in
API_CALLS. No call launches a page of unified memory that the driver moves: the thread of the last
call before the gap is taken to touch it. A window that begins and ends with a step of the program
has no edges: the gap before the first operation is one as any other, and the thread of the last
call before it decides the cause of the gap after the last operation. The causes are those of
`perfkit.analysis.causes`.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    CAUSES,
    DETAILS,
    PARTS,
    members,
    migrated,
    numbered_together,
    started_by,
)
from perfkit.analysis.gap_parts import Host, attributed, cut_off
from perfkit.analysis.grouping import counted, numbered
from perfkit.analysis.intervals import (
    Axis,
    Bool,
    Int,
    Intervals,
    Windows,
    devices,
    ends,
    share,
    spans,
    subtract,
    union,
)
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, COPIES, DUR, GPU, KERNELS, OS_CALLS, RANGES, RANK, START

GAPS = Table(
    "GAPS",
    "an interval in which a device does nothing",
    (
        *(RANK, GPU, START, DUR),
        Column("cause", "category", "one of CAUSES: that of the largest part of the whole gap"),
        Column("detail", "category", "one of DETAILS; missing unless the cause is host_wait"),
        Column(
            "api", "category", "CUDA call that covers most of the wait; missing if none covers any"
        ),
        Column(
            "range",
            "category",
            "innermost range over at least half of the wait; missing if there is none",
        ),
        Column(
            "process",
            "int64",
            "process of the launch call; -1 if the gap is unattributed or an edge",
        ),
        Column(
            "thread", "int64", "thread of the launch call; -1 if the gap is unattributed or an edge"
        ),
        Column("launch", "category", "the launch call; missing if none launched what ends the gap"),
        Column(
            "before_ns",
            "int64",
            "part of the gap before the launch call, ns; all of it without one",
        ),
        Column("inside_ns", "int64", "part of the gap inside the launch call, ns"),
        *(
            Column(part, "int64", f"part of the gap with this cause or detail, ns: {part[:-3]}")
            for part in PARTS
        ),
    ),
    ("rank", "gpu", "start_ns"),
)


class _Gaps(NamedTuple):
    """Gaps as arrays: device number, times, and the places in `order` of the operations that end each of them."""

    device: Int
    start: Int
    end: Int
    place: Int
    places: Int
    order: Int


def idle_gaps(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    at_least_ns: int = 0,
    window: Windows | None = None,
    ranges: pd.DataFrame | None = None,
    os_calls: pd.DataFrame | None = None,
    stepped: Collection[int] = (),
) -> pd.DataFrame:
    """Return the times at which a device does nothing, with what it was waiting for: table `GAPS`.

    The lengths of all gaps of a device add up to its idle time. A device that does nothing in the
    whole window is one edge. `at_least_ns` is the shortest gap to return, 0 or more, else
    ValueError; without `window` each device is seen over the span of the operations of all devices
    of its rank. The window of `stepped` ranks is that of their steps.

    Source: Holistic Trace Analysis, ``get_idle_time_breakdown``.
    """
    if at_least_ns < 0:
        raise ValueError(f"at_least_ns: {at_least_ns} is negative. Give 0 or more.")
    API_CALLS.check(api_calls)
    ranges = RANGES.given(ranges)
    os_calls = OS_CALLS.given(os_calls)
    tables = [KERNELS.check(kernels), COPIES.check(copies)]
    index, groups = devices(*tables)
    first, last = spans(tables, groups, len(index), window)
    start, end = (np.concatenate(times) for times in zip(*(ends(t) for t in tables), strict=True))
    operations = [
        np.arange(len(start)),
        np.concatenate(groups),
        start,
        end,
    ]  # row in the tables laid end to end
    if window is not None and not isinstance(window, Mapping):
        reach = _reach(operations, first, last)
    else:
        none = np.zeros(len(first), bool)
        reach = _Reach(first, last, none, none)
    usual = _usual_waits(operations, tables, groups, api_calls)
    operations = _within(operations, reach)
    gaps = (_between if len(api_calls) else _free)(operations, reach.first, reach.last)
    gaps = _long(gaps, first, last, max(at_least_ns, 1))
    del operations, groups, start, end  # columns of all operations, when those of all gaps are made
    edge = ~reach.begun[gaps.device] & (gaps.start == reach.first[gaps.device])
    edge |= ~reach.continued[gaps.device] & (gaps.end == reach.last[gaps.device])
    edge &= ~np.isin(index["rank"].to_numpy(), list(stepped))[gaps.device]
    call = _launch_call(gaps._replace(places=np.where(edge, 0, gaps.places)), tables, api_calls)
    touching = np.where(edge | (call >= 0), -1, _touching(gaps, tables, api_calls))
    table = (
        index.take(gaps.device)
        .reset_index(drop=True)
        .assign(start_ns=gaps.start, dur_ns=gaps.end - gaps.start)
    )
    host = Host(api_calls, ranges, os_calls)
    called = np.maximum(call, touching)
    ended = called, touching >= 0
    kinds = gaps.device, usual
    table = table.assign(**attributed(gaps.start, gaps.end, edge, *ended, api_calls, host, *kinds))
    return cut_off(table, first[gaps.device], last[gaps.device], host)


class _Reach(NamedTuple):
    """From when to when each device is looked at, so that no gap of its window is cut."""

    first: Int
    last: Int
    begun: Bool  # whether the device worked before its window
    continued: Bool  # whether it works after it


def _reach(operations: list[Int], first: Int, last: Int) -> _Reach:
    """Return the end of the last operation before, and the start of the first one after, each device's window."""
    _, device, start, end = operations
    lasting = end > start
    before = np.flatnonzero(lasting & (end <= first[device]))
    after = np.flatnonzero(lasting & (start >= last[device]))
    none = np.iinfo(np.int64)
    earlier, later = np.full(len(first), none.min), np.full(len(first), none.max)
    np.maximum.at(earlier, device[before], end[before])
    np.minimum.at(later, device[after], start[after])
    begun, continued = earlier > none.min, later < none.max
    return _Reach(
        np.where(begun, earlier, first), np.where(continued, later, last), begun, continued
    )


def _within(operations: list[Int], reach: _Reach) -> list[Int]:
    """Return the operations inside the reach of their device, or at its end; cut at both sides."""
    row, device, start, end = operations
    first, last = reach.first[device], reach.last[device]
    there = (end > start) & (end > first) & (start <= last)
    if there.all() and (start >= first).all() and (end <= last).all():
        return operations
    row, device, first, last = row[there], device[there], first[there], last[there]
    return [row, device, np.maximum(start[there], first), np.minimum(end[there], last)]


def _long(gaps: _Gaps, first: Int, last: Int, at_least_ns: int) -> _Gaps:
    """Return the gaps of which at least so much lies in the window of their device."""
    inside = np.minimum(gaps.end, last[gaps.device]) - np.maximum(gaps.start, first[gaps.device])
    long = inside >= at_least_ns
    if long.all():
        return gaps
    kept = (column[long] for column in (gaps.device, gaps.start, gaps.end, gaps.place, gaps.places))
    device, start, end, place, places = kept
    return _Gaps(device, start, end, place, places, gaps.order)


def _between(operations: list[Int], first: Int, last: Int) -> _Gaps:
    """Return the gaps before, between and after the operations of each device in [first, last)."""
    axis, every = Axis.over(len(first), first, last), np.arange(len(first))
    # An empty interval at either end of each window turns the edges into gaps between neighbours.
    of_edges = axis.at(every, first), axis.at(every, last)
    rows, device, *times = operations
    begin, finish = (np.r_[axis.at(device, time), *of_edges] for time in times)
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    finish = finish[order]
    np.maximum.accumulate(finish, out=finish)
    idle = np.subtract(begin[1:], finish[:-1], out=finish[:-1])
    idle[np.searchsorted(begin, every[1:] * axis.span) - 1] = (
        0  # between the windows of two devices
    )
    place = 1 + np.flatnonzero(idle > 0)
    places = np.searchsorted(begin, begin[place], side="right") - place
    device = begin[place] // axis.span
    until = begin[place] - device * axis.span + axis.low
    row = np.append(rows, np.full(2 * len(first), -1))
    return _Gaps(device, until - idle[place - 1], until, place, places, row[order])


def _free(operations: list[Int], first: Int, last: Int) -> _Gaps:
    """Return the same gaps, without the operations that end them, for which nobody asks where no call is recorded."""
    _, device, start, end = operations
    begun, ended, of = subtract(
        Intervals(first, last, np.arange(len(first))), union(start, end, device)
    )
    none = np.zeros(len(of), np.int64)
    return _Gaps(of, begun, ended, none, none, none[:0])


def _launch_call(gaps: _Gaps, tables: list[pd.DataFrame], api_calls: pd.DataFrame) -> Int:
    """Return the row of the first call that launched an operation at the end of each gap, else -1."""
    gap, place = members(gaps.place, gaps.places)
    ended = _keys(tables, gaps.order[place], ["rank", "process", "correlation"])
    call = started_by(ended, api_calls)
    first = np.full(len(gaps.start), len(api_calls))
    np.minimum.at(first, gap[call >= 0], call[call >= 0])
    return np.where(first < len(api_calls), first, -1)


def _keys(tables: list[pd.DataFrame], row: Int, keys: list[str]) -> pd.DataFrame:
    """Return the keys of rows of the tables laid end to end; -1 of row -1, which is the end of a device's reach."""
    in_second = row >= len(tables[0])
    in_first = (row >= 0) & ~in_second
    values = {key: np.full(len(row), -1, np.int64) for key in keys}
    for table, mine, shift in zip(tables, (in_first, in_second), (0, len(tables[0])), strict=True):
        for key, column in values.items():
            column[mine] = table[key].to_numpy()[row[mine] - shift]
    return pd.DataFrame(values)


def _usual_waits(
    operations: list[Int], tables: list[pd.DataFrame], groups: list[Int], api_calls: pd.DataFrame
) -> pd.Series:
    """Return the median wait from the return of a launch call to the end of a gap, ns, by device and code of the call.

    It is that of the whole recording, so that no window changes it.
    """
    count = 1 + int(operations[1].max(initial=-1))
    first, last = spans(tables, groups, count, None, own=True)
    none = np.zeros(count, bool)
    whole = _between(_within(operations, _Reach(first, last, none, none)), first, last)
    call = _launch_call(whole, tables, api_calls)
    launched = np.flatnonzero(call >= 0)
    call = call[launched]
    start, end = whole.start[launched], whole.end[launched]
    wait = end - np.maximum(ends(api_calls)[1][call], start)
    launch = api_calls["name"].cat.codes.to_numpy()[call]
    waits = pd.DataFrame({"device": whole.device[launched], "launch": launch, "wait": wait})
    median: pd.Series = waits[wait > 0].groupby(["device", "launch"])["wait"].median()
    return median


def _touching(gaps: _Gaps, tables: list[pd.DataFrame], api_calls: pd.DataFrame) -> Int:
    """Return the last call before each gap that no call ends, of the process whose work borders on it; else -1.

    A page of unified memory ends such a gap, or the end of what is looked at: there the operation before counts.
    """
    kernels, copies = tables
    found = np.full(len(gaps.start), -1, np.int64)
    if not len(api_calls):
        return found
    row = gaps.order[gaps.place]
    is_page = np.append(migrated(copies).to_numpy(bool), False)[np.maximum(row - len(kernels), -1)]
    beside = np.where(row < 0, gaps.order[gaps.place - 1], row)
    gap = np.flatnonzero(is_page | ((row < 0) & (beside >= 0)))
    if not len(gap):
        return found
    keys = ["rank", "process"]
    of_gap, of_call = numbered_together([_keys(tables, beside[gap], keys), api_calls], keys)
    begin = api_calls["start_ns"].to_numpy()
    axis = Axis.over(1 + int(max(of_gap.max(), of_call.max())), gaps.start[gap], begin)
    order = np.argsort(axis.at(of_call, begin), kind="stable")
    place = (
        np.searchsorted(
            axis.at(of_call, begin)[order], axis.at(of_gap, gaps.start[gap]), side="right"
        )
        - 1
    )
    last = order[np.maximum(place, 0)]
    found[gap] = np.where((place >= 0) & (of_call[last] == of_gap), last, -1)
    return found


def idle_by_cause(gaps: pd.DataFrame) -> pd.DataFrame:
    """Return how much of each device's idle time each cause accounts for; the parts of a gap count apart.

    One row per rank, gpu, cause and detail that occur (detail missing unless host_wait), by falling
    total_ns within a device: count (gaps with a part of this cause), total_ns, max_ns (the longest
    part) and share_frac, the part of the device's idle time in `gaps`.
    """
    table, device = numbered(GAPS.check(gaps), ["rank", "gpu"])
    length, cause = gaps["dur_ns"].to_numpy(), gaps["cause"].astype(object).to_numpy()
    rows = [table.iloc[:0].assign(cause="", detail="", count=0, total_ns=0, max_ns=0)]
    parts: list[tuple[str, str | None, Int]] = []
    parts += [("host_wait", detail, gaps[f"{detail}_ns"].to_numpy()) for detail in DETAILS]
    parts += [(of, None, gaps[f"{of}_ns"].to_numpy()) for of in ("kernel_wait", "other")]
    parts += [(of, None, np.where(cause == of, length, 0)) for of in ("unattributed", "edge")]
    for of, detail, part in parts:
        there = part > 0
        count, total_ns, longest = counted(part[there], device[there], len(table))
        of_part = table.assign(
            cause=of, detail=detail, count=count, total_ns=total_ns, max_ns=longest
        )
        rows.append(of_part[of_part["count"] > 0])
    found = pd.concat(rows, ignore_index=True)
    found["cause"] = pd.Categorical(found["cause"], CAUSES)
    found["detail"] = pd.Categorical(found["detail"], DETAILS)
    idle = found.groupby(["rank", "gpu"])["total_ns"].transform("sum").to_numpy()
    found = found.assign(share_frac=share(found["total_ns"].to_numpy(), idle))
    return found.sort_values(
        ["rank", "gpu", "total_ns"], ascending=[True, True, False], ignore_index=True
    )


def longest(gaps: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the rows of the `most` longest gaps, with their index: longest first, ties in order."""
    order = np.argsort(-GAPS.check(gaps)["dur_ns"].to_numpy(), kind="stable")
    return gaps.iloc[order[:most]]


def histogram(gaps: pd.DataFrame) -> pd.DataFrame:
    """Return how many gaps of each length there are, and how long they are together, per cause over all devices.

    Bins are half open, with edges at 1, 2 and 5 times powers of ten ns, from the shortest to the
    longest gap.

    One row per bin and cause that occurs, by lower_ns, then cause: lower_ns, upper_ns, cause, count
    (gaps, may be 0), total_ns.
    """
    length = GAPS.check(gaps)["dur_ns"].to_numpy()
    edges = np.array([step * 10**power for power in range(18) for step in (1, 2, 5)])
    bin_ = np.searchsorted(edges, length, side="right") - 1
    shown = np.arange(bin_.min(initial=len(edges)), bin_.max(initial=-1) + 1)
    cause = gaps["cause"].cat.codes.to_numpy()
    causes = np.unique(cause)
    cell = (bin_ - shown[0]) * len(causes) + np.searchsorted(causes, cause) if len(shown) else bin_
    count, total_ns, _ = counted(length, cell, len(shown) * len(causes))
    columns = {
        "lower_ns": np.repeat(edges[shown], len(causes)),
        "upper_ns": np.repeat(edges[shown + 1], len(causes)),
        "cause": pd.Categorical.from_codes(np.tile(causes, len(shown)), pd.Index(CAUSES)),
        "count": count,
        "total_ns": total_ns,
    }
    return pd.DataFrame(columns)
