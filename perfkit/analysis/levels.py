"""How high is memory that holds a level until the next one, in a window and in bins?

Conventions
-----------
As in `perfkit.analysis.memory`. A level holds from its time to that of the next one of its device, the last one for
ever; of several that bear one time all but the last hold for no time, and count where extremes are asked for.

Functions
---------
within    the levels that hold at some time of a window
until     the time to which each level holds
bins      least and most memory in equal bins, to draw a timeline of any size
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.analysis.statistics import numbered
from perfkit.analysis.waits import members
from perfkit.analysis.window import Window, bounds, devices, tiles
from perfkit.schema import Column, Table
from perfkit.tables import GPU, RANK

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

    The bins tile the window with integer edges, their widths differ by at most 1 ns. All levels that hold at some time
    of a bin count, the one at its start too: no peak is lost, however few the bins.

    Parameters
    ----------
    timeline
        Table `TIMELINE`, as `perfkit.analysis.memory.timeline` returns it; may be empty.
    bins
        Number of bins, at least 1; no more are made than the window has nanoseconds.
    window
        (start_ns, end_ns): what the bins tile; from the first level to the last of all devices when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per device and bin, from the bin of the device's first level on, sorted by these: `rank`, `gpu` int32;
        `start_ns`, `dur_ns` int64, of the bin; `min_allocated_bytes`, `max_allocated_bytes` int64;
        `max_reserved_bytes` Int64, NA where none is recorded.

    Raises
    ------
    SchemaError
        If `timeline` is not a TIMELINE table.
    ValueError
        If `bins` is below 1, or the window does not end after it starts.

    Examples
    --------
    >>> bins(TIMELINE.empty()).columns.tolist()[2:]
    ['start_ns', 'dur_ns', 'min_allocated_bytes', 'max_allocated_bytes', 'max_reserved_bytes']
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
