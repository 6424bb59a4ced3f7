"""What lies inside a window, and which devices a set of tables speaks of.

Conventions
-----------
A window is (start_ns, end_ns), half open. Intervals are cut at its edges. Without a window a device
is seen from the start of its first to the end of its last operation.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int

Window = tuple[int, int]
DEVICE = ["rank", "gpu"]


def cut(frame: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Return the rows that overlap the window with `start_ns` and `dur_ns` cut at its edges.

    An empty interval (dur_ns 0) is kept where its start lies in the window.

    Raises
    ------
    ValueError
        If the window ends before it starts.
    """
    if window is None:
        return frame
    first, last = window
    if last <= first:
        raise ValueError(f"window: {window} does not end after it starts")
    start = frame["start_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    inside = (start < last) & ((end > first) | ((start == end) & (start >= first)))
    if inside.all() and (len(start) == 0 or (start.min() >= first and end.max() <= last)):
        return frame
    kept = frame[inside].copy()
    kept["start_ns"] = np.maximum(start[inside], first)
    kept["dur_ns"] = np.minimum(end[inside], last) - kept["start_ns"]
    return kept.reset_index(drop=True)


def devices(*frames: pd.DataFrame) -> tuple[pd.DataFrame, list[Int]]:
    """Number the (rank, gpu) pairs of several tables.

    Returns
    -------
    index : DataFrame
        Columns rank, gpu (int32), ascending; row i is device i.
    groups : list of int64 arrays
        The device number of each row of each frame.
    """
    keys = [(f["rank"].to_numpy(np.int64) << 32) | (f["gpu"].to_numpy(np.int64) & 0xFFFFFFFF) for f in frames]
    distinct = np.unique(np.concatenate([np.unique(k) for k in keys]))
    index = pd.DataFrame(
        {"rank": (distinct >> 32).astype("int32"), "gpu": (distinct & 0xFFFFFFFF).astype("uint32").astype("int32")}
    )
    return index, [np.searchsorted(distinct, k).astype(np.int64) for k in keys]


def spans(
    frames: list[pd.DataFrame], groups: list[Int], count: int, window: Window | None
) -> tuple[Int, Int]:
    """Return the start and end (int64 ns) of each device's window: the given one, else its operations' span."""
    if window is not None:
        return np.full(count, window[0], np.int64), np.full(count, window[1], np.int64)
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, np.iinfo(np.int64).min)
    for frame, group in zip(frames, groups, strict=True):
        begin = frame["start_ns"].to_numpy()
        np.minimum.at(start, group, begin)
        np.maximum.at(end, group, begin + frame["dur_ns"].to_numpy())
    return start, end
