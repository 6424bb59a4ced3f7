"""How much memory does the framework hold on each device, when is it most, and how much of it lies idle?

Conventions
-----------
Allocated is what tensors occupy, reserved what the caching allocator has taken from the driver, both after each
allocation and release that the profiler recorded (SAMPLES `memory_allocated_bytes`, `memory_reserved_bytes`). A level
holds until the next one. gpu -1 is memory of the host: only what was allocated since the profiler began counts there,
and nothing is reserved.

Fragmentation is the part of the reserved memory that no tensor occupies, (reserved - allocated) / reserved; it is
undefined where nothing is reserved. It is what the allocator keeps for later as well as what lies in pieces too small.

Functions
---------
timeline        allocated and reserved memory over time
peak            the largest of both
fragmentation   reserved and not allocated, at the peak and on average
bins            least and most of both in equal bins, from `perfkit.analysis.levels`

References
----------
PyTorch, "CUDA semantics", memory management: memory_allocated and memory_reserved.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import where
from perfkit.analysis.intervals import Int
from perfkit.analysis.levels import TIMELINE, bins, until, within
from perfkit.analysis.waits import Axis
from perfkit.analysis.window import Window, bounds, devices
from perfkit.errors import PerfkitError
from perfkit.tables import SAMPLES

__all__ = ["TIMELINE", "bins", "fragmentation", "peak", "timeline"]

METRICS = ("memory_allocated_bytes", "memory_reserved_bytes")
_DEVICE = ["rank", "gpu"]


def timeline(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the allocated and reserved memory of each device over time.

    Parameters
    ----------
    samples
        SAMPLES; may be empty. Other metrics are passed over.
    window
        (start_ns, end_ns): the levels in it, preceded by the one at its start; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        Table `TIMELINE`: rank, gpu, time_ns (from which on the level holds), allocated_bytes (int64), reserved_bytes
        (Int64, NA where not recorded).

    Raises
    ------
    SchemaError
        If `samples` is not a SAMPLES table.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> timeline(SAMPLES.empty()).columns.tolist()
    ['rank', 'gpu', 'time_ns', 'allocated_bytes', 'reserved_bytes']
    """
    metric = SAMPLES.check(samples)["metric"]
    allocated, reserved = (samples[where(metric, wanted.__eq__)] for wanted in METRICS)
    place = _places(allocated, reserved)
    level = np.append(reserved["value"].to_numpy(), 0)[place].astype(np.int64)
    found = allocated[[*_DEVICE, "time_ns"]].assign(
        allocated_bytes=allocated["value"].astype("int64"), reserved_bytes=pd.arrays.IntegerArray(level, place < 0)
    )
    return within(TIMELINE.make(found), window)


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

    Parameters
    ----------
    samples
        SAMPLES; may be empty.
    window
        (start_ns, end_ns): the levels that hold in it; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per device: `rank`, `gpu` int32; `allocated_bytes` int64, the maximum; `time_ns` int64, when it was
        first reached; `reserved_bytes` Int64, reserved at that time; `max_reserved_bytes` Int64, the maximum. NA where
        reserved memory is not recorded.

    Raises
    ------
    SchemaError
        If `samples` is not a SAMPLES table.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> peak(SAMPLES.empty()).columns.tolist()
    ['rank', 'gpu', 'allocated_bytes', 'time_ns', 'reserved_bytes', 'max_reserved_bytes']
    """
    levels = timeline(samples, window=window)
    found = _at_peak(levels)[[*_DEVICE, "allocated_bytes", "time_ns", "reserved_bytes"]]
    most = levels.groupby(_DEVICE, sort=False)["reserved_bytes"].max().rename("max_reserved_bytes")
    return found.join(most, on=_DEVICE)


def _at_peak(levels: pd.DataFrame) -> pd.DataFrame:
    """Return the first of the highest allocated levels of each device."""
    return levels.loc[levels.groupby(_DEVICE)["allocated_bytes"].idxmax()].reset_index(drop=True)


def fragmentation(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the part of the reserved memory that no tensor occupies, (reserved - allocated) / reserved, per device.

    Parameters
    ----------
    samples
        SAMPLES; may be empty.
    window
        (start_ns, end_ns): the levels that hold in it; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per device, float64 in 0..1: `rank`, `gpu` int32; `peak_frac`, when most memory is allocated;
        `mean_frac`, over the time from the first to the last level, each weighted by how long it holds; `max_frac`. NaN
        where nothing is reserved, mean_frac also where the levels span no time.

    Raises
    ------
    PerfkitError
        If more is allocated than reserved.
    SchemaError
        If `samples` is not a SAMPLES table.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> fragmentation(SAMPLES.empty()).columns.tolist()
    ['rank', 'gpu', 'peak_frac', 'mean_frac', 'max_frac']
    """
    levels = timeline(samples, window=window)
    levels["frac"] = _idle_frac(levels)
    last = None if window is None else bounds(window)[1]
    weight = pd.Series((until(levels, last) - levels["time_ns"]).where(levels["frac"].notna(), 0))
    sums = levels[_DEVICE].assign(part=levels["frac"] * weight, weight=weight).groupby(_DEVICE, sort=False).sum()
    found = _at_peak(levels)[[*_DEVICE, "frac"]].rename(columns={"frac": "peak_frac"})
    mean = (sums["part"] / sums["weight"].where(sums["weight"] > 0)).rename("mean_frac")
    return found.join(mean, on=_DEVICE).join(levels.groupby(_DEVICE)["frac"].max().rename("max_frac"), on=_DEVICE)


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
