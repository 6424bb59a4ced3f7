"""How much memory does the framework hold on each device, and how much is copied between host and devices, how fast?

Allocated is what tensors occupy, reserved what the caching allocator has taken from the driver,
both after each allocation and release that the profiler recorded (SAMPLES `memory_allocated_bytes`,
`memory_reserved_bytes`; other metrics are passed over). gpu -1 is memory of the host: only what was
allocated since the profiler began counts there, and nothing is reserved. A level holds from its
time to that of the next one of its device, the last one for ever; of several that bear one time all
but the last hold for no time, and count where extremes are asked for. A window selects the levels
that hold in it. Fragmentation is the part of the reserved memory that no tensor occupies: what the
allocator keeps for later as well as what lies in pieces too small. It is undefined where nothing is
reserved.

Durations of copies are those on the GPU. A rate is bytes over time of the copies together (sum over
sum, so long copies weigh more), without copies of zero duration. A copy cut by the window counts
with the bytes in proportion to the time inside, to the nearest byte. Statistics pool all ranks,
devices and streams unless these are among the keys. Source: PyTorch, "CUDA semantics", memory
management: memory_allocated and memory_reserved.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from perfkit.analysis.causes import members, started_by, where
from perfkit.analysis.grouping import grouped, in_unit, keys_of, numbered, over, ranked
from perfkit.analysis.intervals import Axis, Int, Window, bounds, cut, devices, tiles
from perfkit.analysis.operators.totals import named, open_at
from perfkit.analysis.steps import STEPS
from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, COPIES, GPU, MEMORY_EVENTS, OPS, RANK, SAMPLES

TIMELINE = Table(
    "TIMELINE",
    "the memory of a device after an allocation or release",
    (
        *(RANK, GPU),
        Column("time_ns", "int64", "when, ns since the start of the capture"),
        Column("allocated_bytes", "int64", "occupied by tensors, bytes"),
        Column("reserved_bytes", "Int64", "taken from the driver, bytes; NA when not recorded"),
    ),
    ("rank", "gpu", "time_ns"),
)
METRICS = ("memory_allocated_bytes", "memory_reserved_bytes")
_DEVICE = ["rank", "gpu"]
COPY_KEYS = (
    "direction",
    "src_memory",
    "dst_memory",
    "peer_gpu",
    "rank",
    "gpu",
    "process",
    "stream",
)
# Host-to-device copies up to 64 KB return before the data has arrived: they are staged with the
# command (CUDA Runtime API, "API synchronization behavior").
SMALL_BYTES = 65_536
_ASYNC = re.compile(r"cu(?:da)?Mem(?:cpy|set).*Async")


def timeline(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return each device's memory over time, TIMELINE; the level that holds when the window starts begins there."""
    metric = SAMPLES.check(samples)["metric"]
    allocated, reserved = (samples[where(metric, wanted.__eq__)] for wanted in METRICS)
    # The place of the reserved level that was recorded with each allocated one, -1 where none was.
    index, groups = devices(allocated, reserved)
    times = [frame["time_ns"].to_numpy() for frame in (allocated, reserved)]
    axis = Axis.over(len(index), *times)
    here, there = (axis.at(group, time) for group, time in zip(groups, times, strict=True))
    new = np.flatnonzero(np.diff(here, prepend=-1))
    # Several events may bear one time: the n-th of a metric was recorded with the n-th of the
    # other.
    again = np.arange(len(here)) - np.repeat(new, np.diff(np.append(new, len(here))))
    place = np.minimum(np.searchsorted(there, here) + again, len(there))
    place = np.where(np.append(there, -1)[place] == here, place, -1)
    level = np.append(reserved["value"].to_numpy(), 0)[place].astype(np.int64)
    levels = allocated[[*_DEVICE, "time_ns"]].assign(
        allocated_bytes=allocated["value"].astype("int64"),
        reserved_bytes=pd.arrays.IntegerArray(level, place < 0),
    )
    return within(TIMELINE.make(levels), window)


def peak(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the most memory that was allocated and reserved on each device, and when.

    One row per device: `rank`, `gpu`; `allocated_bytes` int64, the maximum; `time_ns`, when it was
    first reached; `reserved_bytes` Int64, reserved at that time; `max_reserved_bytes` Int64, the
    maximum. NA where reserved memory is not recorded.
    """
    levels = timeline(samples, window=window)
    peaks = _at_peak(levels)[[*_DEVICE, "allocated_bytes", "time_ns", "reserved_bytes"]]
    most = levels.groupby(_DEVICE, sort=False)["reserved_bytes"].max().rename("max_reserved_bytes")
    return peaks.join(most, on=_DEVICE)


def _at_peak(levels: pd.DataFrame) -> pd.DataFrame:
    """Return the first of the highest allocated levels of each device."""
    return levels.loc[levels.groupby(_DEVICE)["allocated_bytes"].idxmax()].reset_index(drop=True)


def fragmentation(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the part of the reserved memory that no tensor occupies, (reserved - allocated) / reserved, per device.

    PerfkitError if more is allocated than reserved. One row per device: `rank`, `gpu`; `peak_frac`,
    when most memory is allocated; `mean_frac`, over the time from the first to the last level, each
    weighted by how long it holds; `max_frac`. NaN where nothing is reserved, mean_frac also where
    the levels span no time.
    """
    levels = timeline(samples, window=window)
    levels["frac"] = _idle_frac(levels)
    last = None if window is None else bounds(window)[1]
    weight = pd.Series((until(levels, last) - levels["time_ns"]).where(levels["frac"].notna(), 0))
    sums = (
        levels[_DEVICE]
        .assign(part=levels["frac"] * weight, weight=weight)
        .groupby(_DEVICE, sort=False)
        .sum()
    )
    table = _at_peak(levels)[[*_DEVICE, "frac"]].rename(columns={"frac": "peak_frac"})
    mean = (sums["part"] / sums["weight"].where(sums["weight"] > 0)).rename("mean_frac")
    return table.join(mean, on=_DEVICE).join(
        levels.groupby(_DEVICE)["frac"].max().rename("max_frac"), on=_DEVICE
    )


def growth(samples: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return by how much the memory that each device never gives back grows from one step to the next.

    That is the least that is allocated in a step: what lives for one operator or one backward pass
    is gone then. A program that keeps something in each step, such as a loss with its graph, or a
    key-value cache, grows every time.

    `steps` is what `analysis.steps.detect` returned, of which the steady ones count. One row per
    device with memory in two steps or more: `rank`, `gpu`; `steps_count`; `growth_bytes` float64,
    the median difference of two steps; `grew_frac`, the share of differences above 0;
    `total_bytes`, the last step's least less the first one's.
    """
    levels = timeline(samples)
    spans: dict[Any, pd.DataFrame] = dict(iter(STEPS.check(steps)[steps["steady"]].groupby("rank")))
    rows = []
    for (rank, gpu), of in levels.groupby(_DEVICE):
        if rank not in spans:
            continue
        begin, length = (spans[rank][name].to_numpy() for name in ("start_ns", "dur_ns"))
        # What holds when the step starts
        first = np.searchsorted(of["time_ns"].to_numpy(), begin, side="right") - 1
        last = np.searchsorted(of["time_ns"].to_numpy(), begin + length)
        known = (first >= 0) & (last > first)
        least = np.array(
            [
                of["allocated_bytes"].to_numpy()[i:j].min()
                for i, j in zip(first[known], last[known], strict=True)
            ]
        )
        if len(least) > 1:
            more = np.diff(least)
            rows.append(
                (
                    rank,
                    gpu,
                    len(least),
                    float(np.median(more)),
                    float((more > 0).mean()),
                    least[-1] - least[0],
                )
            )
    table = pd.DataFrame(
        rows, columns=[*_DEVICE, "steps_count", "growth_bytes", "grew_frac", "total_bytes"]
    )
    return table.astype(
        {"rank": "int32", "gpu": "int32", "steps_count": "int64", "total_bytes": "int64"}
    )


def by_operator(
    samples: pd.DataFrame, ops: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return how much memory each operator allocates and releases itself: what changed while it was the innermost one.

    The profiler tells when memory changed, not on which thread. A change while operators of several
    threads run is no operator's, as is one while none runs, such as the release of gradients. The
    first level of a device has nothing before it, so its change is not known; what an operator
    releases, another one may have allocated.

    A window selects the changes in it. By falling `allocated_bytes`, then `gpu` (-1 the host) and
    `name`: `name`, category, missing where no one operator ran; `gpu`; `count` of the changes;
    `allocated_bytes`, `released_bytes` and `net_bytes`, their difference, int64. Source: net_bytes
    is `self_cuda_memory_usage` of PyTorch's profiler for the GPUs, which takes all operators that
    run at the time, and `self_cpu_memory_usage` for the host.
    """
    levels = timeline(samples)
    change = levels.groupby(_DEVICE)["allocated_bytes"].diff()
    first, last = (-math.inf, math.inf) if window is None else bounds(window)
    changes = levels[change.notna() & levels["time_ns"].between(first, last, inclusive="left")]
    moments = changes[["rank"]].assign(start_ns=changes["time_ns"])
    row, threads = np.full(len(moments), -1), np.zeros(len(moments), int)
    _, of_op = numbered(OPS.check(ops), ["process", "thread"])
    for place in (np.flatnonzero(of_op == number) for number in range(of_op.max(initial=-1) + 1)):
        there = ops.take(place)
        found = open_at(
            there, moments.assign(process=there["process"].iloc[0], thread=there["thread"].iloc[0])
        )
        threads += found >= 0
        row = np.where(found >= 0, place[found], row)
    table = changes[["gpu"]].assign(
        name=named(ops, np.where(threads == 1, row, -1)), change=change[changes.index]
    )
    table = table.assign(
        allocated_bytes=table["change"].clip(lower=0), released_bytes=-table["change"].clip(upper=0)
    )
    groups = table.groupby(["name", "gpu"], observed=True, dropna=False)
    sums = groups[["allocated_bytes", "released_bytes"]].sum().astype("int64")
    sums.insert(0, "count", groups.size())
    sums["net_bytes"] = sums["allocated_bytes"] - sums["released_bytes"]
    return ranked(sums.reset_index(), "allocated_bytes", ["gpu", "name"])


def _idle_frac(levels: pd.DataFrame) -> pd.Series:
    """Return the unoccupied part of each level's reserved memory, NaN where nothing is reserved."""
    reserved = levels["reserved_bytes"].astype("float64")
    reserved = reserved.where(reserved > 0)
    beyond = levels[levels["allocated_bytes"] > reserved]
    if len(beyond):
        level = beyond.iloc[0]
        raise PerfkitError(
            f"samples: {level['allocated_bytes']} bytes are allocated of {level['reserved_bytes']} "
            f"reserved on gpu {level['gpu']} of rank {level['rank']} at {level['time_ns']} ns. "
            "Check how the memory was recorded."
        )
    return (reserved - levels["allocated_bytes"]) / reserved


def within(levels: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Return the levels that hold at some time of the window, those from before it moved to its start."""
    if window is None:
        return levels
    first, last = bounds(window)
    holding = levels[(levels["time_ns"] < last) & (until(levels, last + 1) > first)].reset_index(
        drop=True
    )
    return holding.assign(time_ns=holding["time_ns"].clip(lower=first))


def until(levels: pd.DataFrame, end: int | None = None) -> Int:
    """Return the time to which each level holds: the next of its device, for the last `end` or its own time."""
    time = levels["time_ns"].to_numpy()
    _, device = numbered(levels, ["rank", "gpu"])
    later, same = np.append(time[1:], 0), np.append(device[1:], -1) == device
    return np.where(same, later, time if end is None else end)


def bins(timeline: pd.DataFrame, *, bins: int = 500, window: Window | None = None) -> pd.DataFrame:
    """Return the least and the most memory of each device in equal bins of one time axis.

    `timeline` is a TIMELINE. The bins tile the window (from the first level to the last of all
    devices when omitted) with integer edges, their widths differ by at most 1 ns. There are `bins`,
    at least 1 (else ValueError), and no more than the window has nanoseconds. All levels that hold
    at some time of a bin count, the one at its start too: no peak is lost. One row per device and
    bin, from the bin of the device's first level on, sorted by these: `rank`, `gpu`; `start_ns`,
    `dur_ns` of the bin; `min_allocated_bytes`, `max_allocated_bytes` int64; `max_reserved_bytes`
    Int64, NA where none is recorded.
    """
    if bins < 1:
        raise ValueError(f"bins: {bins} is not at least 1")
    levels = within(TIMELINE.make(TIMELINE.check(timeline)), window)
    time = levels["time_ns"].to_numpy()
    edges = tiles(window or ((int(time.min()), int(time.max()) + 1) if len(time) else (0, 1)), bins)
    index, (group,) = devices(levels)
    # Device, bin and the levels [begin, end) of each row of the answer, for levels by device and
    # time.
    count = len(edges) - 1
    key = group * count + np.searchsorted(edges, time, side="right") - 1
    lowest = key[np.flatnonzero(np.diff(group, prepend=-1))]
    device, wanted = members(lowest, count * np.arange(1, len(lowest) + 1) - lowest)
    begin, end = (np.searchsorted(key, wanted, side=side) for side in ("left", "right"))
    at = wanted % count
    # The level before the bin holds in it, unless another one begins with the bin.
    replaced = (begin < end) & (np.append(time, 0)[begin] == edges[at])
    begin = begin - ((wanted > lowest[device]) & ~replaced)
    allocated, reserved = (
        levels["allocated_bytes"].to_numpy(),
        levels["reserved_bytes"].to_numpy("int64", na_value=-1),
    )
    most = over(np.maximum, reserved, begin, end)
    table = (
        index.take(device)
        .reset_index(drop=True)
        .assign(start_ns=edges[at], dur_ns=np.diff(edges)[at])
    )
    return table.assign(
        min_allocated_bytes=over(np.minimum, allocated, begin, end),
        max_allocated_bytes=over(np.maximum, allocated, begin, end),
        max_reserved_bytes=pd.arrays.IntegerArray(most, most < 0),
    )


def taken(events: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how much memory a program took from CUDA itself, by kind: the most at once, and what it kept.

    A pool such as PyTorch's takes segments, which it divides among tensors. Memory that was
    released but taken before the recording began is not known, and lowers the level. `events`:
    MEMORY_EVENTS; a window selects the allocations and releases in it, and the levels that hold
    after them.

    One row per device and kind, sorted by these: `rank`, `gpu`; `memory`, category;
    `allocations_count`, `releases_count`; `peak_bytes`, the most held after an event; `kept_bytes`,
    held after the last one, int64. Events whose operation or size was not recorded are passed over.
    Source: running sum of the bytes per kind (CUDA_GPU_MEMORY_USAGE_EVENTS; NVIDIA, Nsight Systems
    User Guide, "SQLite Schema Reference").
    """
    known = MEMORY_EVENTS.check(events).dropna(subset=["operation", "memory"])
    known = known.sort_values("time_ns", kind="stable")
    is_taken = known["operation"] == "allocation"
    known = known.assign(
        is_taken=is_taken,
        is_released=~is_taken,
        change=known["bytes"].where(is_taken, -known["bytes"]),
    )
    keys = [*_DEVICE, "memory"]
    known["level"] = known.groupby(keys, observed=True)["change"].cumsum()
    first, last = (-math.inf, math.inf) if window is None else bounds(window)
    inside = known[known["time_ns"].between(first, last, inclusive="left")]
    table = inside.groupby(keys, observed=True).agg(
        allocations_count=("is_taken", "sum"),
        releases_count=("is_released", "sum"),
        peak_bytes=("level", "max"),
        kept_bytes=("level", "last"),
    )
    return table.reset_index()


def copied(
    copies: pd.DataFrame,
    *,
    by: Sequence[str] = ("direction", "src_memory", "dst_memory"),
    window: Window | None = None,
) -> pd.DataFrame:
    """Return count, bytes, time and rate of the copies and memsets, grouped by one or more of KEYS (else ValueError).

    By falling `total_ns`, ties by falling count, then keys. The key columns as in COPIES; `count`;
    `bytes`, `total_ns` int64; `bytes_per_s` float64, NaN when no copy lasted; of the durations
    `mean_ns`, `median_ns`, `min_ns`, `max_ns`, `std_ns` (of a sample, NaN for one copy); of the
    sizes likewise `mean_bytes`, `median_bytes`, `min_bytes`, `max_bytes`, `std_bytes`. Source: With
    by=("direction",) the times are the vendor's `cuda_gpu_mem_time_sum`, the sizes its
    `cuda_gpu_mem_size_sum`.
    """
    keys = keys_of(by, COPY_KEYS)
    inside = _cut(COPIES.check(copies), window)
    names, group = numbered(inside, keys)
    times = in_unit(grouped(inside["dur_ns"].to_numpy(), group, len(names)), "ns")
    sizes = in_unit(grouped(inside["bytes"].to_numpy(), group, len(names)), "bytes").drop(
        columns="count"
    )
    head = times[["count"]].assign(bytes=sizes.pop("total_bytes"), total_ns=times["total_ns"])
    instant = inside["dur_ns"].to_numpy() == 0
    lasting = (
        head["bytes"]
        - grouped(inside["bytes"].to_numpy()[instant], group[instant], len(names))["total"]
    )
    head["bytes_per_s"] = lasting / head["total_ns"].where(head["total_ns"] > 0) * 1e9
    return ranked(
        pd.concat([names, head, times.drop(columns=["count", "total_ns"]), sizes], axis=1),
        "total_ns",
        keys,
    )


def _cut(copies: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Cut copies at the window, and their bytes in proportion."""
    if window is None:
        return copies
    numbered_rows = copies.set_axis(pd.RangeIndex(len(copies))).assign(row=np.arange(len(copies)))
    inside = cut(numbered_rows, window)
    row = inside.pop("row").to_numpy()
    before, after = copies["dur_ns"].to_numpy()[row], inside["dur_ns"].to_numpy()
    part = np.where(after < before, after / np.maximum(before, 1), 1.0)
    return inside.assign(bytes=np.rint(inside["bytes"].to_numpy() * part).astype(np.int64))


def pageable_async(copies: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the copies that an asynchronous call started from or to pageable memory, in the order of COPIES.

    The driver stages them through pinned memory, which holds the calling thread up as a synchronous
    call does, but for host-to-device copies of at most 64 KB. Copies whose call was not recorded
    are left out. Source: The vendor's rule `cuda_memcpy_async`; it joins without the process and
    leaves driver calls out.
    """
    pageable = (COPIES.check(copies)["src_memory"] == "pageable") | (
        copies["dst_memory"] == "pageable"
    )
    table = copies.loc[pageable, ["rank", "gpu", "start_ns", "dur_ns", "bytes", "direction"]]
    call = started_by(copies[pageable], API_CALLS.check(api_calls))
    table, call = table[call >= 0], call[call >= 0]
    table["api"] = api_calls["name"].iloc[call].array
    return table[where(table["api"], lambda name: _ASYNC.match(name))].reset_index(drop=True)


def small_copies(copies: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how many copies of each direction move at most SMALL_BYTES; memsets are not copies.

    A copy that the window cuts counts by its whole size. One row per direction that occurs, by
    falling `total_ns`: `direction`; `count`, `bytes`, `total_ns` of the small copies; `count_frac`,
    count over all copies of that direction.
    """
    inside = cut(COPIES.check(copies), window)
    inside = inside[inside["direction"] != "memset"]
    table, group = numbered(inside, ["direction"])
    small = inside["bytes"].to_numpy() <= SMALL_BYTES
    for name, column in (("bytes", "bytes"), ("total_ns", "dur_ns")):
        figures = grouped(inside[column].to_numpy()[small], group[small], len(table))
        table["count"], table[name] = figures["count"], figures["total"]
    table["count_frac"] = table["count"] / np.bincount(group, minlength=len(table))
    return ranked(table, "total_ns", ["direction"])
