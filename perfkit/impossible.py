"""Which rows of a table hold times that cannot be?

A GPU runs the operations of one stream one after the other, and no link moves a large copy at a
hundredth of the rate of the slowest one. A row that says otherwise has a wrong length. A profiler
that lost the time of an event writes the same one, mostly 0, for all of them. perfkit leaves such
rows out, counts them, and takes the time that they may have had for unknown.
"""

import enum
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.schema import OVERLAP_NS, order_of, overrunning

Rows = NDArray[np.bool_]
STREAM = ("rank", "gpu", "process", "stream")
FEWEST_AT_ONCE = 3  # operations of a stream without a length that start at once; real captures hold none (convention)
FEWEST_CALLS_AT_ONCE = (
    10  # the same for calls at the very start: a coarse clock puts several into one tick
)
LARGE_BYTES = 1_000_000  # of a copy, from which on its rate tells something
SLOWEST_BYTES_PER_S = 25e6  # a tenth of one lane of PCIe 1.0, 250 MB/s (PCI-SIG)
FASTEST_BYTES_PER_S = 20e12  # over twice the device memory of a B200, 8 TB/s (NVIDIA's data sheet)
HOST_FASTEST_BYTES_PER_S = (
    1e12  # over twice NVLink-C2C, 450 GB/s in each direction (NVIDIA's data sheet)
)


class Reason(enum.Enum):
    """Why the times of a row cannot be right; the value ends a sentence whose subject are the rows."""

    OVERLAP = (
        f"end more than {OVERLAP_NS / 1000:g} µs after the next operation of the same stream began"
    )
    SAME_TIME = "have no length and all start at the same time"
    RATE = "moved their bytes slower or faster than any link can"


def of_kernels(kernels: pd.DataFrame) -> Mapping[Reason, Rows]:
    """Return which rows of KERNELS cannot be, by the reason."""
    overlapping = overrunning(kernels, STREAM) & ~kernels["in_graph"].to_numpy(bool)
    return {
        Reason.OVERLAP: overlapping,
        Reason.SAME_TIME: _at_once(kernels, STREAM, FEWEST_AT_ONCE),
    }


def of_copies(copies: pd.DataFrame) -> Mapping[Reason, Rows]:
    """Return which rows of COPIES cannot be, by the reason.

    Copies of one call are nodes of a graph, which may run at once; so may pages of unified memory.
    """
    is_node = copies.duplicated(["rank", "process", "correlation"], keep=False).to_numpy()
    is_page = (copies["correlation"] <= 0).to_numpy()
    return {
        Reason.OVERLAP: overrunning(copies, STREAM) & ~is_node & ~is_page,
        Reason.SAME_TIME: _at_once(copies, STREAM, FEWEST_AT_ONCE),
        Reason.RATE: _impossible_rate(copies) & ~is_page,
    }


def of_calls(calls: pd.DataFrame) -> Mapping[Reason, Rows]:
    """Return which rows of API_CALLS or OPS cannot be: many without a length, all at the first time
    of the table.
    """
    at_once = _at_once(calls, ("rank", "process", "thread"), FEWEST_CALLS_AT_ONCE)
    if at_once.any():
        at_once &= calls["start_ns"].eq(calls["start_ns"].min()).to_numpy()
    return {Reason.SAME_TIME: at_once}


def next_start(frame: pd.DataFrame, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when the next operation of the stream starts, ns, for the chosen rows; their own end
    if none follows.
    """
    keys = [frame[key].to_numpy() for key in STREAM]
    start = frame["start_ns"].to_numpy()
    end = start + frame["dur_ns"].to_numpy()
    order = order_of([*keys, start])
    following = np.append(order[1:], order[-1:])
    is_same = np.ones(len(order), bool)
    for key in keys:
        is_same &= key[order] == key[following]
    is_same[-1:] = False
    until = end.copy()
    until[order[is_same]] = np.minimum(end[order[is_same]], start[following[is_same]])
    found: NDArray[np.int64] = until[rows]
    return found


def _at_once(frame: pd.DataFrame, lane: tuple[str, ...], fewest: int) -> Rows:
    """Return which rows have no length and start with at least `fewest` of their kind in the same
    lane.
    """
    found = np.zeros(len(frame), bool)
    empty = np.flatnonzero((frame["dur_ns"] == 0).to_numpy())
    if len(empty) < fewest:
        return found
    keys = [*lane, "start_ns"]
    count = frame[keys].take(empty).groupby(keys)["start_ns"].transform("size").to_numpy()
    found[empty[count >= fewest]] = True
    return found


def _impossible_rate(copies: pd.DataFrame) -> Rows:
    """Return which large copies moved their bytes at a rate that no link has."""
    dur = copies["dur_ns"].to_numpy()
    is_large = (
        (copies["bytes"] >= LARGE_BYTES).to_numpy()
        & (dur > 0)
        & copies["direction"].ne("memset").to_numpy()
    )
    rate = np.zeros(len(copies))
    np.divide(copies["bytes"].to_numpy() * 1e9, dur, out=rate, where=is_large)
    over_link = copies["direction"].isin(["H2D", "D2H"]).to_numpy()
    fastest = np.where(over_link, HOST_FASTEST_BYTES_PER_S, FASTEST_BYTES_PER_S)
    return is_large & ((rate < SLOWEST_BYTES_PER_S) | (rate > fastest))
