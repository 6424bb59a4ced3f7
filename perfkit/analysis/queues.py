"""How many launched kernels were waiting to start?

Conventions
-----------
The queue of a stream is one longer from the start of each launch call, one shorter from the start
of its kernel. Calls and kernels are joined on (rank, process, correlation). A graph launch counts
once per device: from its call to the first of its kernels, on the stream of that kernel. A kernel
without a call only takes away: a depth below zero betrays a cut capture.

Functions
---------
queue_depth   the depth of every stream's queue, as a step function of time
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import numbered_together, started_by
from perfkit.analysis.intervals import Int
from perfkit.analysis.waits import Axis
from perfkit.analysis.window import Window, bounds, devices
from perfkit.tables import API_CALLS, KERNELS

STREAM_KEYS = ["rank", "gpu", "process", "stream"]


def queue_depth(kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how many launched kernels of each stream had not started yet, as a step function.

    Parameters
    ----------
    kernels, api_calls
        Tables KERNELS and API_CALLS; may be empty.
    window
        (start_ns, end_ns): the steps in it, preceded by the depth at its start.

    Returns
    -------
    pandas.DataFrame
        One row per step, by stream, then time: rank, gpu, process (stream ids are unique within one), stream,
        time_ns, depth (int64, from time_ns to the next row's), complete (bool, False for all rows of a stream
        whose depth is ever negative: not to be plotted).

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    References
    ----------
    Holistic Trace Analysis, ``get_queue_length_time_series``; `complete` and graphs are our convention.

    Examples
    --------
    >>> queue_depth(KERNELS.empty(), API_CALLS.empty())["depth"].tolist()
    []
    """
    call = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls))
    (stream,) = numbered_together([kernels], STREAM_KEYS)
    leading = _first_of_launch(kernels, call)
    launched = leading[call[leading] >= 0]
    time = np.r_[api_calls["start_ns"].to_numpy()[call[launched]], kernels["start_ns"].to_numpy()[leading]]
    step = np.repeat([1, -1], [len(launched), len(leading)])
    of, time, depth = _running(np.r_[stream[launched], stream[leading]], time, step)
    negative = np.zeros(len(kernels) + 1, bool)
    negative[of[depth < 0]] = True
    row = np.zeros(len(kernels), np.int64)
    row[stream] = np.arange(len(stream))
    found = kernels[STREAM_KEYS].take(row[of]).reset_index(drop=True)
    return _within(found.assign(time_ns=time, depth=depth, complete=~negative[of]), of, window)


def _first_of_launch(kernels: pd.DataFrame, call: Int) -> Int:
    """Return the rows of the kernels that are the first of their launch on their device, or have no call."""
    device = devices(kernels)[1][0]
    again = pd.Index(device * (int(call.max(initial=0)) + 1) + call).duplicated()
    return np.flatnonzero((call < 0) | ~again)


def _running(stream: Int, time: Int, step: Int) -> tuple[Int, Int, Int]:
    """Return stream, time and running sum of the steps at each time at which a stream has steps."""
    position = Axis.over(int(stream.max(initial=-1)) + 1, time).at(stream, time)
    order = np.argsort(position, kind="stable")
    position, stream, depth = position[order], stream[order], np.cumsum(step[order])
    begin = np.searchsorted(stream, np.arange(int(stream.max(initial=-1)) + 1))
    depth = depth - np.r_[0, depth][begin][stream]
    last = np.flatnonzero(np.append(position[1:] != position[:-1], np.ones(min(len(position), 1), bool)))
    return stream[last], time[order][last], depth[last]


def _within(steps: pd.DataFrame, stream: Int, window: Window | None) -> pd.DataFrame:
    """Return the steps that hold at some time of the window, those from before it moved to its start."""
    if window is None:
        return steps
    first, last = bounds(window)
    time = steps["time_ns"].to_numpy()
    until = np.append(np.where(stream[1:] == stream[:-1], time[1:], last + 1), last + 1)[: len(time)]
    holds = (time < last) & (until > first)
    return steps[holds].assign(time_ns=np.maximum(time[holds], first)).reset_index(drop=True)
