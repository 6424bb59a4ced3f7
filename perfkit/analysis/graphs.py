"""Were the operations of CUDA graphs recorded, so that a time without any is idle time?

Conventions
-----------
One graph launch starts many operations; they are joined with the call on (rank, process, correlation). Profilers lose
them in two ways. A launch is *empty* when none of its operations was recorded: nsys with ``--cuda-graph-trace=graph``
records none, and others drop replays when their buffers overflow. Or some nodes are recorded and others are not: then
the GPU seems to do nothing *inside* a graph, after the launch call returned and before one of the recorded operations,
where nodes of a graph follow one another within microseconds. In both cases the GPU worked while nothing was recorded,
and its idle time is not known.

Functions
---------
recorded    graph launches, those without operations, and idle time inside graphs, per rank
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import is_graph_launch, started_by, where
from perfkit.analysis.causes import KERNEL_WAIT_NS
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.intervals import Int
from perfkit.analysis.window import Window, cut
from perfkit.tables import API_CALLS, COPIES, KERNELS


def recorded(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return how many graphs were launched, how many of them started nothing, and the idle time inside the others.

    Parameters
    ----------
    kernels, copies, api_calls
        KERNELS, COPIES and API_CALLS of one execution; may be empty.
    window
        (start_ns, end_ns): graphs launched at least partly in it, and idle time in it; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per rank that launched a graph, ascending: `rank` int32; `launch_count` int64; `empty_count` int64,
        launches without any operation, at most launch_count; `idle_ns` int64, sum over the rank's devices of the gaps
        of at least 30 us that an operation of a graph ends whose launch call had returned before they began.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    References
    ----------
    AMD-AGI/TraceLens, issue 728: 26 % idle on a GPU that was active for 99 %.

    Examples
    --------
    >>> recorded(KERNELS.empty(), COPIES.empty(), API_CALLS.empty()).columns.tolist()
    ['rank', 'launch_count', 'empty_count', 'idle_ns']
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
    found = ended.merge(pd.concat(nodes), on=place)
    within = found[found["returned_ns"] <= found["begin_ns"]].drop_duplicates(place)
    return (within["start_ns"] - within["begin_ns"]).groupby(within["rank"]).sum()
