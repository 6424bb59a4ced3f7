"""What does it cost to launch kernels, and how long do they queue?

A kernel is joined to the call that launched it on (rank, process, correlation); all nodes of a graph have the one call
that launched the graph. Kernels without a call are left out, as Nsight Systems does, and counted by `unlaunched`.

quantities of one launch, ns
    api     the call: its end - its start
    queue   kernel start - call end; missing where the kernel started before the call returned
    delay   kernel start - call start
    dur     the kernel: its end - its start
    total   the later of call end and kernel end - call start

The queue of a stream is one longer from the start of each launch call, one shorter from the start of its kernel. A
graph launch counts once per device: from its call to the first of its kernels, on that one's stream. A kernel without a
call only takes away: a depth below zero betrays a cut capture. Source: Nsight Systems, report ``cuda_kern_exec_sum``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.causes import Axis, numbered_together, started_by
from perfkit.analysis.grouping import grouped, numbered
from perfkit.analysis.intervals import Int, Window, bounds, devices
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, CORRELATION, GPU, KERNELS, PROCESS, RANK, STREAM, THREAD

STREAM_KEYS = ["rank", "gpu", "process", "stream"]
LATENCY = Table(
    "LATENCY",
    "a kernel with the call that launched it",
    (
        RANK,
        GPU,
        PROCESS,
        THREAD,
        STREAM,
        CORRELATION,
        Column("name", "category", "short name of the kernel, as in KERNELS"),
        Column("full_name", "category", "demangled name of the kernel, as in KERNELS"),
        Column("api", "category", "name of the call"),
        Column("start_ns", "int64", "start of the call, ns since the start of the capture"),
        Column("api_ns", "int64", "duration of the call, ns"),
        Column("queue_ns", "Int64", "kernel start - call end, ns; NA where that is negative"),
        Column("dur_ns", "int64", "duration of the kernel, ns"),
        Column("total_ns", "int64", "later of call end and kernel end - call start, ns"),
        Column("delay_ns", "int64", "kernel start - call start, ns"),
    ),
    (),
)
_BY = ("name", "full_name")


def latency(kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return for every kernel how long its call took, how long it queued and how long it ran: table `LATENCY`.

    The rows are in the order of `kernels`; a window selects kernels that start in it and cuts none. delay_ns is below 0
    only if the clocks of host and device disagree.
    """
    call = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls))
    inside = True if window is None else kernels["start_ns"].between(*bounds(window), inclusive="left")
    row = np.flatnonzero((call >= 0) & inside)
    kernel, api = kernels.take(row).reset_index(drop=True), api_calls.take(call[row]).reset_index(drop=True)
    start, called = kernel["start_ns"], api["start_ns"]
    end, returned = start + kernel["dur_ns"], called + api["dur_ns"]
    queue = (start - returned).to_numpy()
    launches = kernel[["rank", "gpu", "process", "stream", "correlation", "name", "full_name", "dur_ns"]].assign(
        thread=api["thread"],
        api=api["name"],
        start_ns=called,
        api_ns=api["dur_ns"],
        queue_ns=pd.arrays.IntegerArray(queue, queue < 0),
        total_ns=np.maximum(returned, end) - called,
        delay_ns=start - called,
    )
    return launches[LATENCY.column_names]


def summary(latency: pd.DataFrame, *, by: str = "name") -> pd.DataFrame:
    """Return the statistics of launches per rank, process, thread, gpu, call and kernel name ("name" or "full_name").

    One row per group, by falling total_mean_ns: rank, process, thread, gpu, api, `by`, count (launches), queue_count
    (those with a queue time), then for each of total, api, queue and dur the columns <quantity>_mean_ns, _median_ns,
    _min_ns, _max_ns, _std_ns (float64; std of a sample, NaN for one value, all of queue NaN where queue_count is 0).
    """
    if by not in _BY:
        raise ValueError(f"by: {by!r} is not one of {', '.join(_BY)}")
    table, group = numbered(LATENCY.check(latency), ["rank", "process", "thread", "gpu", "api", by])
    for quantity in ("total", "api", "queue", "dur"):
        column = latency[f"{quantity}_ns"]
        valid = column.notna().to_numpy()
        statistics = grouped(column[valid].to_numpy(np.int64), group[valid], len(table))
        if quantity in ("total", "queue"):
            table["count" if quantity == "total" else "queue_count"] = statistics["count"]
        for statistic in ("mean", "median", "min", "max", "std"):
            table[f"{quantity}_{statistic}_ns"] = statistics[statistic]
    table.insert(7, "queue_count", table.pop("queue_count"))
    return table.sort_values("total_mean_ns", ascending=False, kind="stable", ignore_index=True)


def unlaunched(kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return how many kernels of each device (rank, gpu, count) have no launch call: cut off, or not recorded."""
    lacking = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls)) < 0
    index, (device,) = devices(kernels)
    return index.assign(count=np.bincount(device[lacking], minlength=len(index)))


def queue_depth(kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how many launched kernels of each stream had not started yet, as a step function.

    A row per step in the window and at its start, by stream, then time: rank, gpu, process, stream, time_ns, depth
    (int64, up to the next row's time), complete (False for all of a stream whose depth is ever negative: not to be
    plotted). Source: Holistic Trace Analysis, ``get_queue_length_time_series``; `complete` and graphs are our own.
    """
    call = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls))
    (stream,) = numbered_together([kernels], STREAM_KEYS)
    leading = _first_of_launch(kernels, call)
    launched = leading[call[leading] >= 0]
    time = np.r_[api_calls["start_ns"].to_numpy()[call[launched]], kernels["start_ns"].to_numpy()[leading]]
    step = np.repeat([1, -1], [len(launched), len(leading)])
    of, time, depth = _running(np.r_[stream[launched], stream[leading]], time, step)
    negative = np.zeros(len(kernels) + 1, bool)
    negative[of[depth < 0]] = True
    row = np.zeros(len(kernels), np.int64)
    row[stream] = np.arange(len(stream))
    steps = kernels[STREAM_KEYS].take(row[of]).reset_index(drop=True)
    return _within(steps.assign(time_ns=time, depth=depth, complete=~negative[of]), of, window)


def _first_of_launch(kernels: pd.DataFrame, call: Int) -> Int:
    """Return the rows of the kernels that are the first of their launch on their device, or have no call."""
    device = devices(kernels)[1][0]
    again = pd.Index(device * (int(call.max(initial=0)) + 1) + call).duplicated()
    return np.flatnonzero((call < 0) | ~again)


def _running(stream: Int, time: Int, step: Int) -> tuple[Int, Int, Int]:
    """Return stream, time and running sum of the steps at each time at which a stream has steps."""
    position = Axis.over(int(stream.max(initial=-1)) + 1, time).at(stream, time)
    order = np.argsort(position, kind="stable")
    position, stream, depth = position[order], stream[order], np.cumsum(step[order])
    begin = np.searchsorted(stream, np.arange(int(stream.max(initial=-1)) + 1))
    depth = depth - np.r_[0, depth][begin][stream]
    last = np.flatnonzero(np.append(position[1:] != position[:-1], np.ones(min(len(position), 1), bool)))
    return stream[last], time[order][last], depth[last]


def _within(steps: pd.DataFrame, stream: Int, window: Window | None) -> pd.DataFrame:
    """Return the steps that hold at some time of the window, those from before it moved to its start."""
    if window is None:
        return steps
    first, last = bounds(window)
    time = steps["time_ns"].to_numpy()
    until = np.append(np.where(stream[1:] == stream[:-1], time[1:], last + 1), last + 1)[: len(time)]
    holds = (time < last) & (until > first)
    return steps[holds].assign(time_ns=np.maximum(time[holds], first)).reset_index(drop=True)
