"""What does it cost to launch kernels, and how long do they queue?

Conventions
-----------
A kernel is joined to the call that launched it on (rank, process, correlation): runtime, driver,
graph and HIP calls alike. All nodes of a graph have the one call that launched the graph. Kernels
without a call are left out, as Nsight Systems leaves them out, and counted by `unlaunched`.

quantities of one launch, ns
    api     the call: its end - its start
    queue   kernel start - call end; missing where the kernel started before the call returned
    delay   kernel start - call start
    dur     the kernel: its end - its start
    total   the later of call end and kernel end - call start

Functions
---------
latency       these quantities for every kernel
summary       their statistics per thread, call and kernel name, as cuda_kern_exec_sum of Nsight Systems
unlaunched    kernels without a call
queue_depth   kernels that are launched and have not started, over time

References
----------
NVIDIA Nsight Systems User Guide, report ``cuda_kern_exec_sum``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import GRAPH_LAUNCH_CALLS as GRAPH_LAUNCH_CALLS
from perfkit.analysis.calls import LAUNCH_CALLS as LAUNCH_CALLS
from perfkit.analysis.calls import is_launch as is_launch
from perfkit.analysis.calls import started_by
from perfkit.analysis.queues import queue_depth as queue_depth
from perfkit.analysis.statistics import grouped, numbered
from perfkit.analysis.window import Window, bounds, devices
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, CORRELATION, GPU, KERNELS, PROCESS, RANK, STREAM, THREAD

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
    """Return for every kernel how long its call took, how long it queued and how long it ran.

    Parameters
    ----------
    kernels, api_calls
        Tables KERNELS and API_CALLS; may be empty.
    window
        (start_ns, end_ns): only kernels that start in it; none is cut.

    Returns
    -------
    pandas.DataFrame
        Table `LATENCY`, in the order of `kernels`: rank, gpu, process, thread (of the call), stream, correlation,
        name, full_name, api (categories), start_ns (of the call), api_ns, queue_ns (Int64, 0 and up, NA where the
        kernel started before the call returned), dur_ns, total_ns, delay_ns (all ns; delay_ns below 0 only if
        the clocks of host and device disagree).

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> latency(KERNELS.empty(), API_CALLS.empty()).columns.tolist() == LATENCY.column_names
    True
    """
    call = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls))
    row = np.flatnonzero((call >= 0) & _starts_inside(kernels, window))
    kernel, api = kernels.take(row).reset_index(drop=True), api_calls.take(call[row]).reset_index(drop=True)
    start, called = kernel["start_ns"], api["start_ns"]
    end, returned = start + kernel["dur_ns"], called + api["dur_ns"]
    queue = (start - returned).to_numpy()
    found = kernel[["rank", "gpu", "process", "stream", "correlation", "name", "full_name", "dur_ns"]].assign(
        thread=api["thread"],
        api=api["name"],
        start_ns=called,
        api_ns=api["dur_ns"],
        queue_ns=pd.arrays.IntegerArray(queue, queue < 0),
        total_ns=np.maximum(returned, end) - called,
        delay_ns=start - called,
    )
    return found[LATENCY.column_names]


def _starts_inside(kernels: pd.DataFrame, window: Window | None) -> pd.Series | bool:
    if window is None:
        return True
    first, last = bounds(window)
    return (kernels["start_ns"] >= first) & (kernels["start_ns"] < last)


def summary(latency: pd.DataFrame, *, by: str = "name") -> pd.DataFrame:
    """Return the statistics of launches per rank, process, thread, gpu, call and kernel name.

    Means and medians are over the launches of a group, medians and sample standard deviations as in
    `perfkit.analysis.statistics`.

    Parameters
    ----------
    latency
        Table `LATENCY`; may be empty.
    by
        "name" or "full_name".

    Returns
    -------
    pandas.DataFrame
        One row per group, by falling total_mean_ns: rank, process, thread, gpu, api, `by`, count (launches),
        queue_count (those with a queue time), then for each of total, api, queue and dur the columns
        <quantity>_mean_ns, _median_ns, _min_ns, _max_ns, _std_ns (float64, ns; std NaN for one value, all of
        queue NaN where queue_count is 0).

    Raises
    ------
    SchemaError
        If `latency` does not match its schema.
    ValueError
        If `by` is neither of the two.

    Examples
    --------
    >>> summary(LATENCY.empty())["queue_count"].tolist()
    []
    """
    if by not in _BY:
        raise ValueError(f"by: {by!r} is not one of {', '.join(_BY)}")
    found, group = numbered(LATENCY.check(latency), ["rank", "process", "thread", "gpu", "api", by])
    for quantity in ("total", "api", "queue", "dur"):
        column = latency[f"{quantity}_ns"]
        valid = column.notna().to_numpy()
        statistics = grouped(column[valid].to_numpy(np.int64), group[valid], len(found))
        if quantity in ("total", "queue"):
            found["count" if quantity == "total" else "queue_count"] = statistics["count"]
        for statistic in ("mean", "median", "min", "max", "std"):
            found[f"{quantity}_{statistic}_ns"] = statistics[statistic]
    found.insert(7, "queue_count", found.pop("queue_count"))
    return found.sort_values("total_mean_ns", ascending=False, kind="stable", ignore_index=True)


def unlaunched(kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return how many kernels have no launch call: a cut capture, or calls that were not recorded.

    Parameters
    ----------
    kernels, api_calls
        Tables KERNELS and API_CALLS; may be empty.

    Returns
    -------
    pandas.DataFrame
        One row per device: rank, gpu, count (int64, 0 and up).

    Raises
    ------
    SchemaError
        If a table does not match its schema.

    Examples
    --------
    >>> unlaunched(KERNELS.empty(), API_CALLS.empty()).columns.tolist()
    ['rank', 'gpu', 'count']
    """
    lacking = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls)) < 0
    index, (device,) = devices(kernels)
    return index.assign(count=np.bincount(device[lacking], minlength=len(index)))
