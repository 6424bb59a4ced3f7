"""What does the CPU spend its time on: CUDA calls, launches, named ranges, waiting for data, and for the GPU?

Statistics pool all ranks, processes and threads unless these are among the keys. Nested calls and
ranges count in their own row and in that of what encloses them: totals are inclusive and shares are
of the sum of the totals in the table, never of wall time. The wait for data is the time in the
loader's ``__next__``, which PyTorch records as a range ``enumerate(DataLoader)#...__next__``, and
in ranges a person named for data loading (`causes.DATA_LOADING`), of the rank's thread that spends
most time in such ranges; time that several of them cover counts once.

One graph launch starts many operations, joined with the call on (rank, process, correlation).
Profilers lose them in two ways. A launch is *empty* when none of its operations was recorded: nsys
with ``--cuda-graph-trace=graph`` records none, and others drop replays when their buffers overflow.
Or some nodes are not recorded: then the GPU seems to do nothing *inside* a graph, after the launch
call returned and before one of the recorded operations, though nodes follow one another within
microseconds. In both cases the GPU worked, and its idle time is not known.

A kernel is joined to the call that launched it on (rank, process, correlation); all nodes of a
graph have the one call that launched the graph. Kernels without a call are left out, as Nsight
Systems does; `LATENCY` has what is measured.

Source: Nsight Systems, report ``cuda_kern_exec_sum``.
"""

import re
from typing import Any

import numpy as np
import pandas as pd

from perfkit.analysis import causes
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.grouping import grouped, in_unit, numbered, ranked
from perfkit.analysis.intervals import Bool, Int, Window, bounds, cut, ends, total, union
from perfkit.analysis.intervals import spans as extent
from perfkit.analysis.steps import STEPS
from perfkit.schema import Column, Table
from perfkit.tables import (
    API_CALLS,
    COPIES,
    CORRELATION,
    GPU,
    KERNELS,
    PROCESS,
    RANGES,
    RANK,
    STREAM,
    THREAD,
)

# Calls that return only when the GPU is done, and why (CUDA Runtime and Driver API references, "API
# synchronization behavior"; HIP follows the same rules). Suffixes _ptsz and _ptds do not matter.
BLOCKING = {
    r"(cuda|hip)(Device|Thread)Synchronize|cuCtxSynchronize": "waits for all work of the device",
    r"(cuda|cu|hip)StreamSynchronize": "waits for all work of a stream",
    r"(cuda|cu|hip)EventSynchronize": "waits for an event",
    r"(cuda|cu|hip)Memcpy(?!.*(Async|Peer)).*": (
        "returns after the copy (host to device up to 64 KB: once staged); peer copies do not wait"
    ),
    r"(cuda|hip)Free(?!.*Async).*|cu(MemFree|MipmappedArrayDestroy|ArrayDestroy)(?!.*Async).*": (
        "waits until no running work can use the memory"
    ),
    r"(cuda|hip)DeviceReset|cuCtxDestroy|cuDevicePrimaryCtxRe(set|lease)": (
        "waits, then destroys the context"
    ),
}
_BLOCKING = re.compile("|".join(f"(?:{pattern})" for pattern in BLOCKING))
LATENCY = Table(
    "LATENCY",
    "a kernel with the call that launched it",
    (
        *(RANK, GPU, PROCESS, THREAD, STREAM, CORRELATION),
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
OF_KERNEL = (
    "rank",
    "gpu",
    "process",
    "stream",
    "correlation",
    "name",
    "full_name",
)  # what a latency says of it


def synchronisations(api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how long each thread is blocked in calls that wait for the GPU (`BLOCKING`).

    Without `window` a thread is seen from its first call's start to its last call's end. By falling
    `total_ns`, ties by falling count, then keys: `rank`, `process`, `thread`, `name`, `count`,
    `total_ns`, `max_ns`; `share_frac`, total_ns over the thread's window.
    """
    keys = ["rank", "process", "thread", "name"]
    inside = cut(API_CALLS.check(api_calls), window)
    threads, thread = numbered(inside, keys[:3])
    first, last = extent([inside], [thread], len(threads), window, own=True)
    blocking = blocks(inside)
    waits = inside[blocking]
    names, group = numbered(waits, keys)
    figures = in_unit(grouped(waits["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures[["count", "total_ns", "max_ns"]]], axis=1)
    of_group = np.zeros(len(names), np.int64)
    of_group[group] = thread[blocking]
    table["share_frac"] = table["total_ns"] / np.where(last > first, last - first, np.nan)[of_group]
    return ranked(table, "total_ns", keys)


def blocks(api_calls: pd.DataFrame) -> Bool:
    """Return which calls are `BLOCKING`."""
    return causes.where(
        api_calls["name"], lambda name: _BLOCKING.fullmatch(causes.VARIANT.sub("", name))
    )


def input_wait(
    ranges: pd.DataFrame, steps: pd.DataFrame, copies: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return how long the training thread of each step waits for data, and how much data reaches the GPUs.

    `steps` is what `steps.detect` returned. The share of a run is the sum of wait_ns over the sum
    of dur_ns, best of the steady steps. A row per step, in their order: `rank`; `step`, `start_ns`,
    `dur_ns` int64; `wait_ns` Int64, within the step; `wait_frac`, wait_ns over dur_ns. NA and NaN
    where the rank records no data loading at all. With `copies` also `input_bytes` int64: what the
    rank's copies from the CPU to its GPUs move that start in the step. Over dur_ns it is the rate
    at which the loader delivers; files may hold fewer bytes, since images are compressed there.
    """
    spans = ranges[causes.where(RANGES.check(ranges)["name"], causes.DATA_LOADING.search)]
    # Of the thread of each rank that spends most time in them.
    threads, thread = numbered(spans, ["rank", "process", "thread"])
    threads["time"] = total(union(*ends(spans), thread), len(threads))
    longest = (
        threads.sort_values("time", ascending=False, kind="stable").drop_duplicates("rank").index
    )
    spans = spans[np.isin(thread, longest)].reset_index(drop=True)
    table = STEPS.check(steps)[["rank", "step", "start_ns", "dur_ns"]].reset_index(drop=True)
    wait, unrecorded = (
        causes.covered_by(table, spans),
        ~table["rank"].isin(spans["rank"]).to_numpy(),
    )
    table["wait_ns"] = pd.arrays.IntegerArray(wait, unrecorded)
    length = table["dur_ns"].to_numpy()
    table["wait_frac"] = np.divide(
        wait, length, out=np.full(len(table), np.nan), where=~unrecorded & (length > 0)
    )
    if copies is not None:
        sent = COPIES.check(copies)[copies["direction"] == "H2D"]
        (first, last), (at, _) = causes.on_one_axis(
            [table, sent[["rank", "start_ns"]].assign(dur_ns=0)], ["rank"]
        )
        order = np.argsort(at, kind="stable")
        before = np.r_[0, np.cumsum(sent["bytes"].to_numpy()[order])]
        table["input_bytes"] = np.diff(before[np.searchsorted(at[order], [first, last])], axis=0)[0]
    return table


def recorded(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return how many graphs were launched, how many of them started nothing, and the idle time inside the others.

    A window selects the graphs launched at least partly in it, and the idle time in it. One row per
    rank that launched a graph, ascending: `rank`; `launch_count`; `empty_count`, launches without
    any operation; `idle_ns` int64, sum over the rank's devices of the gaps of at least 30 us that
    an operation of a graph ends whose launch call had returned before they began. Source:
    AMD-AGI/TraceLens, issue 728: 26 % idle on a GPU that was active for 99 %.
    """
    calls = api_calls[causes.where(API_CALLS.check(api_calls)["name"], causes.is_graph_launch)]
    frames = [KERNELS.check(kernels), COPIES.check(copies)]
    rows = [causes.started_by(frame, calls) for frame in frames]
    empty = np.ones(len(calls) + 1, bool)  # the last for operations of no graph
    for row in rows:
        empty[row] = False
    launches = cut(calls.assign(empty=empty[:-1]), window)
    table = (
        launches.groupby("rank")
        .agg(launch_count=("empty", "size"), empty_count=("empty", "sum"))
        .astype("int64")
    )
    inside = pd.Series(dtype="int64")
    if not empty[:-1].all():
        gaps = idle_gaps(
            kernels, copies, API_CALLS.empty(), at_least_ns=causes.KERNEL_WAIT_NS, window=window
        )
        inside = _inside(gaps, frames, rows, (calls["start_ns"] + calls["dur_ns"]).to_numpy())
    table["idle_ns"] = inside.reindex(table.index, fill_value=0)
    return table.reset_index()


def _inside(
    gaps: pd.DataFrame, frames: list[pd.DataFrame], rows: list[Int], returned: Int
) -> pd.Series:
    """Return the sum per rank of the gaps that a graph's operation ends whose launch had returned before they began."""
    place = ["rank", "gpu", "start_ns"]
    ended = gaps[place].assign(
        begin_ns=gaps["start_ns"], start_ns=gaps["start_ns"] + gaps["dur_ns"]
    )
    nodes = []
    for frame, row in zip(frames, rows, strict=True):
        at = np.flatnonzero((row >= 0) & frame["start_ns"].isin(ended["start_ns"]).to_numpy())
        nodes.append(frame[place].take(at).assign(returned_ns=returned[row[at]]))
    endings = ended.merge(pd.concat(nodes), on=place)
    within = endings[endings["returned_ns"] <= endings["begin_ns"]].drop_duplicates(place)
    return (within["start_ns"] - within["begin_ns"]).groupby(within["rank"]).sum()


def latency(
    kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return for every kernel how long its call took, how long it queued and how long it ran: table `LATENCY`.

    The rows are in the order of `kernels`; a window selects kernels that start in it and cuts none.
    delay_ns is below 0 only if the clocks of host and device disagree.
    """
    call = causes.started_by(KERNELS.check(kernels), API_CALLS.check(api_calls))
    inside = (
        True if window is None else kernels["start_ns"].between(*bounds(window), inclusive="left")
    )
    row = np.flatnonzero((call >= 0) & inside)
    call = call[row]
    start, dur = (kernels[name].to_numpy()[row] for name in ("start_ns", "dur_ns"))
    called, api_ns = (api_calls[name].to_numpy()[call] for name in ("start_ns", "dur_ns"))
    queue = start - called - api_ns
    columns: dict[str, Any] = {
        **{name: kernels[name].array.take(row) for name in OF_KERNEL},
        "thread": api_calls["thread"].to_numpy()[call],
        "api": api_calls["name"].array.take(call),
        "start_ns": called,
        "api_ns": api_ns,
        "queue_ns": pd.arrays.IntegerArray(queue, queue < 0),
        "dur_ns": dur,
        "delay_ns": start - called,
    }
    columns["total_ns"] = np.maximum(api_ns, columns["delay_ns"] + dur)
    return pd.DataFrame({name: columns[name] for name in LATENCY.column_names}, copy=False)


def latency_summary(latency: pd.DataFrame) -> pd.DataFrame:
    """Return the statistics of launches per rank, process, thread, gpu, call and kernel name.

    One row per group, by falling total_mean_ns: rank, process, thread, gpu, api, name, count
    (launches), queue_count (those with a queue time), then for each of total, api, queue and dur
    the columns <quantity>_mean_ns, _median_ns, _min_ns, _max_ns, _std_ns (float64; std of a sample,
    NaN for one value, all of queue NaN where queue_count is 0).
    """
    keys = ["rank", "process", "thread", "gpu", "api", "name"]
    table, group = numbered(LATENCY.check(latency), keys)
    for quantity in ("total", "api", "queue", "dur"):
        column = latency[f"{quantity}_ns"]
        valid = column.notna().to_numpy()
        column, of = (column, group) if valid.all() else (column[valid], group[valid])
        statistics = grouped(column.to_numpy(np.int64), of, len(table))
        if quantity in ("total", "queue"):
            table["count" if quantity == "total" else "queue_count"] = statistics["count"]
        for statistic in ("mean", "median", "min", "max", "std"):
            table[f"{quantity}_{statistic}_ns"] = statistics[statistic]
    table.insert(7, "queue_count", table.pop("queue_count"))
    return table.sort_values("total_mean_ns", ascending=False, kind="stable", ignore_index=True)
