"""How fast is the communication between GPUs, and how much of it is hidden behind computation?

Conventions
-----------
Communication is the union of the kernels of family "communication" on a device, computation the union of all other
kernels, over all streams and processes. Memsets are not in KERNELS and hide nothing here.

Bandwidths are those of nccl-tests, 1 GB/s being 1e9 bytes/s. The algorithm bandwidth is size over time; the bus
bandwidth is that times a factor per operation and number of ranks, so that it can be compared with the speed of the
links whatever the number of ranks. The duration of a kernel on a timeline includes the wait for the slowest rank: a
bandwidth from it is a lower bound, and closest to the truth on the rank that came last (see `skew`).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.collectives import skew, stragglers
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Window, devices, ends, intersect, share, total, union
from perfkit.tables import COLLECTIVES, KERNELS

__all__ = [
    "bandwidth",
    "overlap",
    "plateau",
    "skew",
    "stragglers",
    "summary",
]

# What a rank sends and receives over the bus, per byte of the message, with n ranks (nccl-tests, PERFORMANCE.md).
_TWICE_ALL_BUT_ONE = ("all_reduce",)
_ALL_BUT_ONE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONCE = ("broadcast", "reduce", "send_recv")
_KIND = ["operation", "group", "ranks", "placement"]


def overlap(kernels: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the communication time of each device and how much of it computation covers.

    With COMM the communication kernels and COMP the others, overlapped is |COMM and COMP| and
    overlap |COMM and COMP| / |COMM|: 1 is fully hidden, 0 fully exposed.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu of `kernels`, ascending: communication_ns, overlapped_ns, overlap_frac.

    References
    ----------
    facebookresearch/HolisticTraceAnalysis, `get_comm_comp_overlap`.
    """
    index, (group,) = devices(KERNELS.check(kernels))
    start, end = ends(kernels, window)
    communicates = (kernels["family"] == "communication").to_numpy()
    communication, computation = (union(start[rows], end[rows], group[rows]) for rows in (communicates, ~communicates))
    communication_ns = total(communication, len(index))
    overlapped_ns = total(intersect(communication, computation), len(index))
    return index.assign(
        communication_ns=communication_ns,
        overlapped_ns=overlapped_ns,
        overlap_frac=share(overlapped_ns, communication_ns),
    )


def bandwidth(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the algorithm and the bus bandwidth of each collective.

    Algorithm bandwidth is bytes / duration. Bus bandwidth is that times 2 (n - 1) / n for an all-reduce, (n - 1) / n
    for all-gather, reduce-scatter, all-to-all, gather and scatter, 1 for broadcast, reduce and send-receive.

    Returns
    -------
    pandas.DataFrame
        The rows and columns of `collectives`, then, float64, bytes/s: `algorithm_bytes_per_s`, NaN where the duration
        is 0 or unknown; `bus_bytes_per_s`, also NaN for an unknown number of ranks and for other operations (a barrier
        moves nothing). With one rank nothing crosses the bus: its all-reduce has 0.

    References
    ----------
    NVIDIA/nccl-tests, doc/PERFORMANCE.md. With reduction in the switch (NVLS, SHARP) the bus bandwidth can exceed the
    speed of the links (nccl-tests, issue 212).
    """
    seconds = COLLECTIVES.check(collectives)["dur_ns"].where(collectives["dur_ns"] > 0) / 1e9
    algorithm = collectives["bytes"] / seconds
    return collectives.assign(algorithm_bytes_per_s=algorithm, bus_bytes_per_s=algorithm * _factor(collectives))


def _factor(collectives: pd.DataFrame) -> pd.Series:
    """Return bus over algorithm bandwidth, NaN where it is not known."""
    operation = collectives["operation"]
    ranks = collectives["ranks"].astype("float64")
    ranks = ranks.where(ranks >= 1)
    others = (ranks - 1) / ranks
    chosen = np.select(
        [operation.isin(_TWICE_ALL_BUT_ONE), operation.isin(_ALL_BUT_ONE), operation.isin(_ONCE)],
        [2 * others, others, ranks / ranks],
        np.nan,
    )
    return pd.Series(chosen, collectives.index)


def summary(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return count and bandwidths of the collectives of each operation, process group, placement and message size.

    A benchmark times each size twice, out of place and in place, which are different work for some operations and
    never share a row.

    Returns
    -------
    pandas.DataFrame
        By operation, group, ranks, placement and bytes, missing last: these columns, as in COLLECTIVES; `count`,
        collectives whose bus bandwidth is known; float64, bytes/s, NaN where none is: `algorithm_bytes_per_s`, the
        median; `bus_bytes_per_s`, the median, `min_bus_bytes_per_s`, `max_bus_bytes_per_s`.
    """
    rates = bandwidth(collectives)
    table, group = numbered(rates, [*_KIND, "bytes"])
    of = rates.groupby(group)
    bus = of["bus_bytes_per_s"]
    table = table.assign(
        count=bus.count().astype("int64"),
        algorithm_bytes_per_s=of["algorithm_bytes_per_s"].median(),
        bus_bytes_per_s=bus.median(),
        min_bus_bytes_per_s=bus.min(),
        max_bus_bytes_per_s=bus.max(),
    )
    return table.sort_values([*_KIND, "bytes"], key=_text, ignore_index=True)


def plateau(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the bus bandwidth that the largest messages of each operation, process group and placement reach.

    Large are messages of more than half the largest size. Small ones measure the latency, not the links: an average
    over all sizes, as nccl-tests prints it, says little. Whether the curve is flat is seen from the growth over the
    messages of a quarter to half the largest size.

    Returns
    -------
    pandas.DataFrame
        By operation, group, ranks and placement (as in COLLECTIVES), missing last, where any bus bandwidth is known;
        `largest_bytes` int64; `count`, large messages; `bus_bytes_per_s`, their median; `growth_frac`, that over the
        median of the next smaller messages, less 1: about 0 on a plateau, NaN where there are none.
    """
    rates = bandwidth(collectives)[[*_KIND, "bytes", "bus_bytes_per_s"]]
    measured = rates[rates["bus_bytes_per_s"].notna() & (rates["bytes"] > 0)].reset_index(drop=True)
    table, group = numbered(measured, _KIND)
    tops = measured["bytes"].groupby(group).max()
    largest = tops.to_numpy()[group]
    large = measured["bytes"] > largest - measured["bytes"]  # more than half, without a product that overflows
    smaller = ~large & (measured["bytes"] > largest // 4)
    at_top, below = (measured["bus_bytes_per_s"][rows].groupby(group[rows]).median() for rows in (large, smaller))
    table = table.assign(
        largest_bytes=tops,
        count=np.bincount(group[large], minlength=len(table)),
        bus_bytes_per_s=at_top,
        growth_frac=at_top / below.where(below > 0) - 1,
    )
    return table.sort_values(_KIND, key=_text, ignore_index=True)


def _text(column: pd.Series) -> pd.Series:
    """Return what a column is sorted by: names by their text, not by the order in which they were met."""
    return column.astype("string") if isinstance(column.dtype, pd.CategoricalDtype) else column
