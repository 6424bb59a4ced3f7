"""What does the CPU spend its time on: CUDA calls, named ranges, waiting for data, and waiting for the GPU?

Statistics pool all ranks, processes and threads unless these are among the keys. Nested calls and ranges count in
their own row and in that of what encloses them: totals are inclusive and shares are of the sum of the totals in the
table, never of wall time. The wait for data is the time in the loader's ``__next__``, which PyTorch records as a range
``enumerate(DataLoader)#...__next__``, and in ranges a person named for data loading (`causes.DATA_LOADING`), of the
rank's thread that spends most time in such ranges; time that several of them cover counts once.

One graph launch starts many operations, joined with the call on (rank, process, correlation). Profilers lose them in
two ways. A launch is *empty* when none of its operations was recorded: nsys with ``--cuda-graph-trace=graph`` records
none, and others drop replays when their buffers overflow. Or some nodes are not recorded: then the GPU seems to do
nothing *inside* a graph, after the launch call returned and before one of the recorded operations, though nodes follow
one another within microseconds. In both cases the GPU worked, and its idle time is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    DATA_LOADING,
    KERNEL_WAIT_NS,
    Axis,
    covered,
    is_graph_launch,
    numbered_together,
    started_by,
    where,
)
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.grouping import grouped, in_unit, numbered, ranked
from perfkit.analysis.intervals import Int, Intervals, Window, cut, total, union
from perfkit.analysis.intervals import spans as extent
from perfkit.analysis.steps import STEPS
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

SPAN_KEYS = ("domain", "name", "kind", "rank", "process", "thread", "depth")
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
    r"(cuda|hip)DeviceReset|cuCtxDestroy|cuDevicePrimaryCtxRe(set|lease)": "waits, then destroys the context",
}
_BLOCKING = re.compile("|".join(f"(?:{pattern})" for pattern in BLOCKING))
_VARIANT = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def calls(api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return count, statistics of the durations and share of the CUDA calls per function.

    By falling `total_ns`, ties by falling count, then name: `name`, `count`, `total_ns`, `mean_ns`, `median_ns`,
    `min_ns`, `max_ns`, `std_ns` (of a sample, NaN for one call), `share_frac`, total_ns over the sum of this table.
    Source: The vendor's `cuda_api_sum`.
    """
    return _summed(cut(API_CALLS.check(api_calls), window), ["name"])


def spans(
    ranges: pd.DataFrame, *, window: Window | None = None, by: Sequence[str] = ("domain", "name", "kind")
) -> pd.DataFrame:
    """Return count, statistics of the durations and share of the ranges, grouped; marks are left out.

    `by` is one or more of SPAN_KEYS, else ValueError. The key columns are as in RANGES, the others and the order those
    of `calls`. Source: The vendor's `nvtx_sum`, whose Range is "domain:name".
    """
    keys = list(by)
    if not keys or not set(keys) <= set(SPAN_KEYS):
        raise ValueError(f"by: {keys} is not one or more of {list(SPAN_KEYS)}")
    inside = cut(RANGES.check(ranges), window)
    return _summed(inside[inside["kind"] != "mark"], keys)


def _summed(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    names, group = numbered(frame, keys)
    figures = in_unit(grouped(frame["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures], axis=1)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    return ranked(table, "total_ns", keys)


def synchronisations(api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how long each thread is blocked in calls that wait for the GPU (`BLOCKING`).

    Without `window` a thread is seen from its first call's start to its last call's end. By falling `total_ns`, ties by
    falling count, then keys: `rank`, `process`, `thread`, `name`, `count`, `total_ns`, `max_ns`; `share_frac`, total_ns
    over the thread's window.
    """
    keys = ["rank", "process", "thread", "name"]
    inside = cut(API_CALLS.check(api_calls), window)
    threads, thread = numbered(inside, keys[:3])
    first, last = extent([inside], [thread], len(threads), window)
    blocking = where(inside["name"], lambda name: _BLOCKING.fullmatch(_VARIANT.sub("", name)))
    waits = inside[blocking]
    names, group = numbered(waits, keys)
    figures = in_unit(grouped(waits["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures[["count", "total_ns", "max_ns"]]], axis=1)
    of_group = np.zeros(len(names), np.int64)
    of_group[group] = thread[blocking]
    table["share_frac"] = table["total_ns"] / np.where(last > first, last - first, np.nan)[of_group]
    return ranked(table, "total_ns", keys)


def input_wait(ranges: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return how long the training thread of each step waits for data.

    `steps` is what `steps.detect` returned. The share of a run is the sum of wait_ns over the sum of dur_ns, best of
    the steady steps. A row per step, in their order: `rank`; `step`, `start_ns`, `dur_ns` int64; `wait_ns` Int64,
    within the step; `wait_frac`, wait_ns over dur_ns. NA and NaN where the rank records no data loading at all.
    """
    spans = _of_one_thread(ranges[where(RANGES.check(ranges)["name"], DATA_LOADING.search)])
    table = STEPS.check(steps)[["rank", "step", "start_ns", "dur_ns"]].reset_index(drop=True)
    of_span, of_step = numbered_together([spans, table], ["rank"])
    wait = _covered(spans, of_span, table, of_step)
    unrecorded = ~np.isin(of_step, of_span)
    table["wait_ns"] = pd.arrays.IntegerArray(wait, unrecorded)
    length = table["dur_ns"].to_numpy()
    table["wait_frac"] = np.divide(wait, length, out=np.full(len(table), np.nan), where=~unrecorded & (length > 0))
    return table


def _of_one_thread(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the spans of the thread of each rank that spends most time in them."""
    threads, thread = numbered(spans, ["rank", "process", "thread"])
    start = spans["start_ns"].to_numpy()
    threads["time"] = total(union(start, start + spans["dur_ns"].to_numpy(), thread), len(threads))
    most = threads.sort_values("time", ascending=False, kind="stable").drop_duplicates("rank").index
    return spans[np.isin(thread, most)].reset_index(drop=True)


def _covered(spans: pd.DataFrame, of_span: np.ndarray, steps: pd.DataFrame, of_step: np.ndarray) -> np.ndarray:
    """Return how much of each step the spans of its rank cover, ns."""
    edges = [(frame["start_ns"].to_numpy(), frame["dur_ns"].to_numpy()) for frame in (spans, steps)]
    (begin, end), (first, last) = ((start, start + dur) for start, dur in edges)
    axis = Axis.over(1 + int(max(of_span.max(initial=0), of_step.max(initial=0))), begin, end, first, last)
    waiting: Intervals = union(axis.at(of_span, begin), axis.at(of_span, end))
    return covered(waiting, axis.at(of_step, first), axis.at(of_step, last))


def recorded(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return how many graphs were launched, how many of them started nothing, and the idle time inside the others.

    A window selects the graphs launched at least partly in it, and the idle time in it. One row per rank that launched
    a graph, ascending: `rank`; `launch_count`; `empty_count`, launches without any operation; `idle_ns` int64, sum over
    the rank's devices of the gaps of at least 30 us that an operation of a graph ends whose launch call had returned
    before they began. Source: AMD-AGI/TraceLens, issue 728: 26 % idle on a GPU that was active for 99 %.
    """
    calls = api_calls[where(API_CALLS.check(api_calls)["name"], is_graph_launch)]
    frames = [KERNELS.check(kernels), COPIES.check(copies)]
    rows = [started_by(frame, calls) for frame in frames]
    empty = np.ones(len(calls) + 1, bool)  # the last for operations of no graph
    for row in rows:
        empty[row] = False
    launches = cut(calls.assign(empty=empty[:-1]), window)
    table = launches.groupby("rank").agg(launch_count=("empty", "size"), empty_count=("empty", "sum")).astype("int64")
    inside = pd.Series(dtype="int64")
    if not empty[:-1].all():
        gaps = idle_gaps(kernels, copies, API_CALLS.empty(), at_least_ns=KERNEL_WAIT_NS, window=window)
        inside = _inside(gaps, frames, rows, (calls["start_ns"] + calls["dur_ns"]).to_numpy())
    table["idle_ns"] = inside.reindex(table.index, fill_value=0)
    return table.reset_index()


def _inside(gaps: pd.DataFrame, frames: list[pd.DataFrame], rows: list[Int], returned: Int) -> pd.Series:
    """Return the sum per rank of the gaps that a graph's operation ends whose launch had returned before they began."""
    place = ["rank", "gpu", "start_ns"]
    ended = gaps[place].assign(begin_ns=gaps["start_ns"], start_ns=gaps["start_ns"] + gaps["dur_ns"])
    nodes = []
    for frame, row in zip(frames, rows, strict=True):
        at = np.flatnonzero((row >= 0) & np.isin(frame["start_ns"].to_numpy(), ended["start_ns"].to_numpy()))
        nodes.append(frame[place].take(at).assign(returned_ns=returned[row[at]]))
    endings = ended.merge(pd.concat(nodes), on=place)
    within = endings[endings["returned_ns"] <= endings["begin_ns"]].drop_duplicates(place)
    return (within["start_ns"] - within["begin_ns"]).groupby(within["rank"]).sum()
