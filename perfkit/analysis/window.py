"""What lies inside a window, and which devices a set of tables speaks of.

Conventions
-----------
A window is (start_ns, end_ns), half open, two integers; `bounds` raises ValueError for anything else. Intervals are cut
at its edges. Without a window a device is seen from the start of its first to the end of its last operation.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int

Window = tuple[int, int]


def bounds(window: Window) -> Window:
    """Return the window if it is one, else raise ValueError."""
    first, last = window
    if not all(isinstance(edge, int | np.integer) for edge in window):
        raise ValueError(f"window: {window} is not two integers, ns since the start of the capture")
    if last <= first:
        raise ValueError(f"window: {window} does not end after it starts")
    return first, last


def cut(frame: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Return the rows that overlap the window with `start_ns` and `dur_ns` cut at its edges.

    An empty interval (dur_ns 0) is kept where its start lies in the window.
    """
    if window is None:
        return frame
    first, last = bounds(window)
    start = frame["start_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    inside = (start < last) & ((end > first) | ((start == end) & (start >= first)))
    if inside.all() and (len(start) == 0 or (start.min() >= first and end.max() <= last)):
        return frame
    begin, finish = np.maximum(start[inside], first), np.minimum(end[inside], last)
    kept: pd.DataFrame = frame[inside].assign(start_ns=begin, dur_ns=finish - begin)
    return kept.reset_index(drop=True)


def ends(frame: pd.DataFrame, window: Window | None) -> tuple[Int, Int]:
    """Return start and end of every row, int64 ns, cut at the window's edges.

    What lies outside the window has ``end <= start``, which covers nothing.
    """
    start = frame["start_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    if window is None:
        return start, end
    first, last = bounds(window)
    return np.maximum(start, first), np.minimum(end, last)


def devices(*frames: pd.DataFrame) -> tuple[pd.DataFrame, list[Int]]:
    """Number the (rank, gpu) pairs of several tables: pairs, ascending, and the number of each row of each frame."""
    pairs = [(f["rank"].to_numpy(), f["gpu"].to_numpy()) for f in frames]
    stretches = [_stretches(*pair) for pair in pairs]
    keys = [_key(rank[at], gpu[at]) for (rank, gpu), at in zip(pairs, stretches, strict=True)]
    distinct = np.unique(np.concatenate(keys))
    index = pd.DataFrame({"rank": distinct >> 32, "gpu": (distinct & 0xFFFFFFFF) - 2**31}, dtype="int32")
    lengths = [np.diff(at, append=len(f)) for at, f in zip(stretches, frames, strict=True)]
    return index, [np.repeat(np.searchsorted(distinct, k), n) for k, n in zip(keys, lengths, strict=True)]


def _stretches(*columns: NDArray[np.integer]) -> Int:
    """Return the first row of every stretch of rows that agree in all columns: few where a table is sorted."""
    changed = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    return np.flatnonzero(np.r_[len(columns[0]) > 0, changed])


def _key(rank: NDArray[np.integer], gpu: NDArray[np.integer]) -> Int:
    """One integer per pair that sorts like the pair, gpu -1 before gpu 0."""
    return (rank.astype(np.int64) << 32) | (gpu.astype(np.int64) + 2**31)


def spans(frames: list[pd.DataFrame], groups: list[Int], count: int, window: Window | None) -> tuple[Int, Int]:
    """Return the start and end (int64 ns) of each device's window: the given one, else its operations' span."""
    if window is not None:
        first, last = bounds(window)
        return np.full(count, first, np.int64), np.full(count, last, np.int64)
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, np.iinfo(np.int64).min)
    for frame, group in zip(frames, groups, strict=True):
        at = _stretches(group)
        if not len(at):
            continue
        begin, finish = ends(frame, None)
        np.minimum.at(start, group[at], np.minimum.reduceat(begin, at))
        np.maximum.at(end, group[at], np.maximum.reduceat(finish, at))
    return start, end


def tiles(window: Window, bins: int) -> Int:
    """Return the edges (int64 ns) of equal bins that tile a window, one more than there are bins.

    Widths differ by at most 1 ns. There are `bins`, at least 1, and no more than the window has nanoseconds.

    Examples
    --------
    >>> tiles((10, 20), 4).tolist(), tiles((0, 2), 9).tolist()
    ([10, 12, 15, 17, 20], [0, 1, 2])
    """
    first, last = window
    count = max(min(bins, last - first), 1)
    width, rest = divmod(last - first, count)
    number = np.arange(count + 1)
    return first + width * number + rest * number // count
