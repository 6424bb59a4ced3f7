"""How much memory does the framework hold on each device, when is it most, and how much of it lies idle?

Conventions
-----------
Allocated is what tensors occupy, reserved what the caching allocator has taken from the driver, both after each
allocation and release that the profiler recorded (SAMPLES `memory_allocated_bytes`, `memory_reserved_bytes`; other
metrics are passed over). gpu -1 is memory of the host: only what was allocated since the profiler began counts there,
and nothing is reserved.

A level holds from its time to that of the next one of its device, the last one for ever; of several that bear one time
all but the last hold for no time, and count where extremes are asked for. A window selects the levels that hold in it.

Fragmentation is the part of the reserved memory that no tensor occupies: what the allocator keeps for later as well as
what lies in pieces too small. It is undefined where nothing is reserved.

References
----------
PyTorch, "CUDA semantics", memory management: memory_allocated and memory_reserved.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.causes import Axis, members, where
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Int, Window, bounds, devices, tiles
from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table
from perfkit.tables import GPU, RANK, SAMPLES

TIMELINE = Table(
    "TIMELINE",
    "the memory of a device after an allocation or release",
    (
        RANK,
        GPU,
        Column("time_ns", "int64", "when, ns since the start of the capture"),
        Column("allocated_bytes", "int64", "occupied by tensors, bytes"),
        Column("reserved_bytes", "Int64", "taken from the driver, bytes; NA when not recorded"),
    ),
    ("rank", "gpu", "time_ns"),
)
METRICS = ("memory_allocated_bytes", "memory_reserved_bytes")
_DEVICE = ["rank", "gpu"]


def timeline(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the allocated and reserved memory of each device over time: table `TIMELINE`.

    The level that holds when the window starts is moved to its start.
    """
    metric = SAMPLES.check(samples)["metric"]
    allocated, reserved = (samples[where(metric, wanted.__eq__)] for wanted in METRICS)
    place = _places(allocated, reserved)
    level = np.append(reserved["value"].to_numpy(), 0)[place].astype(np.int64)
    levels = allocated[[*_DEVICE, "time_ns"]].assign(
        allocated_bytes=allocated["value"].astype("int64"), reserved_bytes=pd.arrays.IntegerArray(level, place < 0)
    )
    return within(TIMELINE.make(levels), window)


def _places(allocated: pd.DataFrame, reserved: pd.DataFrame) -> Int:
    """Return the place of the reserved level that was recorded with each allocated one, -1 where none was."""
    index, groups = devices(allocated, reserved)
    times = [frame["time_ns"].to_numpy() for frame in (allocated, reserved)]
    axis = Axis.over(len(index), *times)
    here, there = (axis.at(group, time) for group, time in zip(groups, times, strict=True))
    new = np.flatnonzero(np.diff(here, prepend=-1))
    # Several events may bear one time: the n-th of a metric was recorded with the n-th of the other.
    again = np.arange(len(here)) - np.repeat(new, np.diff(np.append(new, len(here))))
    place = np.minimum(np.searchsorted(there, here) + again, len(there))
    return np.where(np.append(there, -1)[place] == here, place, -1)


def peak(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the most memory that was allocated and reserved on each device, and when.

    Returns
    -------
    pandas.DataFrame
        One row per device: `rank`, `gpu`; `allocated_bytes` int64, the maximum; `time_ns`, when it was
        first reached; `reserved_bytes` Int64, reserved at that time; `max_reserved_bytes` Int64, the maximum. NA where
        reserved memory is not recorded.
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

    Returns
    -------
    pandas.DataFrame
        One row per device: `rank`, `gpu`; `peak_frac`, when most memory is allocated;
        `mean_frac`, over the time from the first to the last level, each weighted by how long it holds; `max_frac`. NaN
        where nothing is reserved, mean_frac also where the levels span no time.

    Raises
    ------
    PerfkitError
        If more is allocated than reserved.
    """
    levels = timeline(samples, window=window)
    levels["frac"] = _idle_frac(levels)
    last = None if window is None else bounds(window)[1]
    weight = pd.Series((until(levels, last) - levels["time_ns"]).where(levels["frac"].notna(), 0))
    sums = levels[_DEVICE].assign(part=levels["frac"] * weight, weight=weight).groupby(_DEVICE, sort=False).sum()
    table = _at_peak(levels)[[*_DEVICE, "frac"]].rename(columns={"frac": "peak_frac"})
    mean = (sums["part"] / sums["weight"].where(sums["weight"] > 0)).rename("mean_frac")
    return table.join(mean, on=_DEVICE).join(levels.groupby(_DEVICE)["frac"].max().rename("max_frac"), on=_DEVICE)


def _idle_frac(levels: pd.DataFrame) -> pd.Series:
    """Return the unoccupied part of each level's reserved memory, NaN where nothing is reserved."""
    reserved = levels["reserved_bytes"].astype("float64")
    reserved = reserved.where(reserved > 0)
    beyond = levels[levels["allocated_bytes"] > reserved]
    if len(beyond):
        level = beyond.iloc[0]
        raise PerfkitError(
            f"samples: {level['allocated_bytes']} bytes are allocated of {level['reserved_bytes']} reserved on gpu "
            f"{level['gpu']} of rank {level['rank']} at {level['time_ns']} ns. Check how the memory was recorded."
        )
    return (reserved - levels["allocated_bytes"]) / reserved


def within(levels: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Return the levels that hold at some time of the window, those from before it moved to its start."""
    if window is None:
        return levels
    first, last = bounds(window)
    holding = levels[(levels["time_ns"] < last) & (until(levels, last + 1) > first)].reset_index(drop=True)
    return holding.assign(time_ns=holding["time_ns"].clip(lower=first))


def until(levels: pd.DataFrame, end: int | None = None) -> Int:
    """Return the time to which each level holds: the next of its device, for the last `end` or its own time."""
    time = levels["time_ns"].to_numpy()
    _, device = numbered(levels, ["rank", "gpu"])
    later, same = np.append(time[1:], 0), np.append(device[1:], -1) == device
    return np.where(same, later, time if end is None else end)


def bins(timeline: pd.DataFrame, *, bins: int = 500, window: Window | None = None) -> pd.DataFrame:
    """Return the least and the most memory of each device in equal bins of one time axis.

    `timeline` is a TIMELINE. The bins tile the window (from the first level to the last of all devices when omitted)
    with integer edges, their widths differ by at most 1 ns. There are `bins`, at least 1 (else ValueError), and no more
    than the window has nanoseconds. All levels that hold at some time of a bin count, the one at its start too: no peak
    is lost.

    Returns
    -------
    pandas.DataFrame
        One row per device and bin, from the bin of the device's first level on, sorted by these: `rank`, `gpu`;
        `start_ns`, `dur_ns` of the bin; `min_allocated_bytes`, `max_allocated_bytes` int64;
        `max_reserved_bytes` Int64, NA where none is recorded.
    """
    if bins < 1:
        raise ValueError(f"bins: {bins} is not at least 1")
    levels = within(TIMELINE.make(TIMELINE.check(timeline)), window)
    time = levels["time_ns"].to_numpy()
    edges = tiles(window or _span(time), bins)
    index, (group,) = devices(levels)
    device, at, begin, end = _runs(group, time, edges)
    allocated, reserved = levels["allocated_bytes"].to_numpy(), levels["reserved_bytes"].to_numpy("int64", na_value=-1)
    most = _over(np.maximum, reserved, begin, end)
    table = index.take(device).reset_index(drop=True).assign(start_ns=edges[at], dur_ns=np.diff(edges)[at])
    return table.assign(
        min_allocated_bytes=_over(np.minimum, allocated, begin, end),
        max_allocated_bytes=_over(np.maximum, allocated, begin, end),
        max_reserved_bytes=pd.arrays.IntegerArray(most, most < 0),
    )


def _span(time: Int) -> tuple[int, int]:
    """Return the shortest interval that holds all times."""
    return (int(time.min()), int(time.max()) + 1) if len(time) else (0, 1)


def _runs(group: Int, time: Int, edges: Int) -> tuple[Int, Int, Int, Int]:
    """Return device, bin and the levels [begin, end) of each row of the answer, for levels by device and time."""
    count = len(edges) - 1
    key = group * count + np.searchsorted(edges, time, side="right") - 1
    lowest = key[np.flatnonzero(np.diff(group, prepend=-1))]
    device, wanted = members(lowest, count * np.arange(1, len(lowest) + 1) - lowest)
    begin, end = (np.searchsorted(key, wanted, side=side) for side in ("left", "right"))
    at = wanted % count
    # The level before the bin holds in it, unless another one begins with the bin.
    replaced = (begin < end) & (np.append(time, 0)[begin] == edges[at])
    return device, at, begin - ((wanted > lowest[device]) & ~replaced), end


def _over(extreme: np.ufunc, values: Int, begin: Int, end: Int) -> Int:
    """Return the extreme of values[begin:end] for each of these ranges, none of them empty."""
    # reduceat answers for what lies between two ranges as well; 0 stands behind the last value for its end.
    return np.asarray(extreme.reduceat(np.append(values, 0), np.stack([begin, end], axis=1).ravel())[::2], np.int64)
