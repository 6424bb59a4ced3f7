"""How long does a GPU stay idle after the CPU waited for it?

Conventions
-----------
As in `perfkit.analysis.operators.synchronising`.

Functions
---------
idle_after    device and idle time of calls that wait
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import numbered_together, started_by
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import THREAD_KEYS
from perfkit.analysis.waits import Axis
from perfkit.analysis.window import devices, spans
from perfkit.tables import API_CALLS


def idle_after(
    row: Int, kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[Int, pd.arrays.IntegerArray]:
    """Return the device that each of the calls in `row` waits for, -1 unknown, and the idle time it costs, ns."""
    index, groups = devices(kernels, copies)
    device = _waited_for(row, index, groups, [kernels, copies], api_calls)
    first, last = (np.append(ends, 0) for ends in spans([kernels, copies], groups, len(index), None))
    start = api_calls["start_ns"].to_numpy()[row]
    end = start + api_calls["dur_ns"].to_numpy()[row]
    known = (device >= 0) & (end >= first[device]) & (end < last[device])
    idle = np.zeros(len(row), np.int64)
    gaps = idle_gaps(kernels, copies, API_CALLS.empty())
    _, (of_gap, _) = devices(gaps, index)
    idle[known] = _idle(start[known], end[known], device[known], gaps, of_gap)
    return np.append(index["gpu"].to_numpy(), -1)[device], pd.arrays.IntegerArray(idle, ~known)


def _waited_for(
    row: Int, index: pd.DataFrame, groups: list[Int], tables: list[pd.DataFrame], api_calls: pd.DataFrame
) -> Int:
    """Return the number of the device on which the thread of each call last started an operation, else -1."""
    used = np.full(len(api_calls), -1, np.int64)
    for table, group in zip(tables, groups, strict=True):
        call = started_by(table, api_calls)
        used[call[call >= 0]] = group[call >= 0]
    last = np.maximum.accumulate(np.where(used >= 0, np.arange(len(used)), -1))[row]
    (thread,) = numbered_together([api_calls], THREAD_KEYS)
    own = (last >= 0) & (thread[last] == thread[row])
    only = index.reset_index(drop=True).drop_duplicates("rank", keep=False)
    alone = pd.Series(only.index, only["rank"]).reindex(api_calls["rank"].to_numpy()[row]).fillna(-1)
    return np.where(own, used[last], alone.to_numpy(np.int64))


def _idle(start: Int, end: Int, device: Int, gaps: pd.DataFrame, of_gap: Int) -> Int:
    """Return the part of the gap in which each wait ends that lies after its start and before the next wait's."""
    begin = gaps["start_ns"].to_numpy()
    finish = begin + gaps["dur_ns"].to_numpy()
    axis = Axis.over(1 + int(max(of_gap.max(initial=0), device.max(initial=0))), begin, finish, start, end)
    gap = np.searchsorted(axis.at(of_gap, begin), axis.at(device, end), side="right") - 1
    inside = np.flatnonzero((gap >= 0) & (np.append(of_gap, -1)[gap] == device) & (end < np.append(finish, 0)[gap]))
    inside = inside[np.lexsort((start[inside], gap[inside]))]
    gap, start = gap[inside], start[inside]
    until = finish[gap]
    same = gap[1:] == gap[:-1]
    until[:-1][same] = np.minimum(start[1:][same], until[:-1][same])
    idle = np.zeros(len(end), np.int64)
    idle[inside] = np.maximum(until - np.maximum(start, begin[gap]), 0)
    return idle
