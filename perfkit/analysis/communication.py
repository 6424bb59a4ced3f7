"""How fast is communication between GPUs, what does computation hide of it, and which rank keeps the others waiting?

Communication is the union of the kernels of family "communication" on a device, computation the
union of all other kernels, over all streams and processes. Memsets are not in KERNELS and hide
nothing here.

Bandwidths are those of nccl-tests, 1 GB/s being 1e9 bytes/s. The algorithm bandwidth is size over
time; the bus bandwidth is that times a factor per operation and number of ranks, so that it can be
compared with the speed of the links whatever the number of ranks. The duration of a kernel on a
timeline includes the wait for the slowest rank: a bandwidth from it is a lower bound, and closest
to the truth on the rank that came last.

A collective is the k-th of its process group, operation and size on every rank that has it, in
order of start. Ranks that recorded different numbers of them are matched from the first on, as far
as all go. The clocks of the ranks must be aligned, and the recordings begin with the same
collective. The test of both is that all ranks are inside a collective at one moment, `together`:
none can leave it before all have come. What fails the test (the sender of a broadcast need not wait
either) tells nothing about who was late.
"""

import numpy as np
import pandas as pd

from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Int, Window, devices, ends, intersect, share, total, union
from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table, stretches
from perfkit.tables import COLLECTIVES, GPU, KERNELS, RANK

MATCHED = Table(
    "MATCHED",
    "a collective on one rank",
    (
        Column("collective", "int64", "number of the collective, by first start over the ranks"),
        *(RANK, GPU),
        Column("group", "category", "process group; missing when not recorded"),
        Column("operation", "category", "all_reduce, all_gather, ..."),
        Column("bytes", "int64", "message size as nccl-tests defines it, bytes"),
        Column("start_ns", "int64", "start on this rank, ns since the start of the capture"),
        Column("dur_ns", "float64", "duration on this rank, ns"),
        Column("wait_ns", "int64", "from its start on this rank to its start on the last rank, ns"),
        Column("together", "bool", "whether all ranks were inside it at one moment"),
    ),
    ("collective", "start_ns", "rank", "gpu"),
)
# What a rank sends and receives over the bus, per byte of the message, with n ranks (nccl-tests,
# PERFORMANCE.md).
_TWICE_ALL_BUT_ONE = ("all_reduce",)
_ALL_BUT_ONE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONCE = ("broadcast", "reduce", "send_recv")
_KIND = ["operation", "group", "ranks", "placement"]


def overlap(kernels: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the communication time of each device and how much of it computation covers.

    With COMM the communication kernels and COMP the others, overlapped is |COMM and COMP| and
    overlap |COMM and COMP| / |COMM|: 1 is fully hidden, 0 fully exposed.

    One row per rank and gpu of `kernels`, ascending: communication_ns, overlapped_ns, overlap_frac.

    Source: facebookresearch/HolisticTraceAnalysis, `get_comm_comp_overlap`.
    """
    index, (group,) = devices(KERNELS.check(kernels))
    start, end = ends(kernels, window)
    communicates = (kernels["family"] == "communication").to_numpy()
    communication, computation = (
        union(start[rows], end[rows], group[rows]) for rows in (communicates, ~communicates)
    )
    communication_ns = total(communication, len(index))
    overlapped_ns = total(intersect(communication, computation), len(index))
    return index.assign(
        communication_ns=communication_ns,
        overlapped_ns=overlapped_ns,
        overlap_frac=share(overlapped_ns, communication_ns),
    )


def bandwidth(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the algorithm and the bus bandwidth of each collective.

    Algorithm bandwidth is bytes / duration. Bus bandwidth is that times 2 (n - 1) / n for an
    all-reduce, (n - 1) / n for all-gather, reduce-scatter, all-to-all, gather and scatter, 1 for
    broadcast, reduce and send-receive.

    The rows and columns of `collectives`, then, float64, bytes/s: `algorithm_bytes_per_s`, NaN
    where the duration is 0 or unknown; `bus_bytes_per_s`, also NaN for an unknown number of ranks
    and for other operations (a barrier moves nothing). With one rank nothing crosses the bus: its
    all-reduce has 0.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md. With reduction in the switch (NVLS, SHARP) the
    bus bandwidth can exceed the speed of the links (nccl-tests, issue 212).
    """
    seconds = COLLECTIVES.check(collectives)["dur_ns"].where(collectives["dur_ns"] > 0) / 1e9
    algorithm = collectives["bytes"] / seconds
    return collectives.assign(
        algorithm_bytes_per_s=algorithm, bus_bytes_per_s=algorithm * _factor(collectives)
    )


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

    A benchmark times each size twice, out of place and in place, which are different work for some
    operations and never share a row.

    By operation, group, ranks, placement and bytes, missing last: these columns, as in COLLECTIVES;
    `count`, collectives whose bus bandwidth is known; float64, bytes/s, NaN where none is:
    `algorithm_bytes_per_s`, the median; `bus_bytes_per_s`, the median, `min_bus_bytes_per_s`,
    `max_bus_bytes_per_s`.
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

    Large are messages of more than half the largest size. Small ones measure the latency, not the
    links: an average over all sizes, as nccl-tests prints it, says little. Whether the curve is
    flat is seen from the growth over the messages of a quarter to half the largest size.

    By operation, group, ranks and placement (as in COLLECTIVES), missing last, where any bus
    bandwidth is known; `largest_bytes` int64; `count`, large messages; `bus_bytes_per_s`, their
    median; `growth_frac`, that over the median of the next smaller messages, less 1: about 0 on a
    plateau, NaN where there are none.
    """
    rates = bandwidth(collectives)[[*_KIND, "bytes", "bus_bytes_per_s"]]
    measured = rates[rates["bus_bytes_per_s"].notna() & (rates["bytes"] > 0)].reset_index(drop=True)
    table, group = numbered(measured, _KIND)
    tops = measured["bytes"].groupby(group).max()
    largest = tops.to_numpy()[group]
    # More than half, without a product that overflows
    large = measured["bytes"] > largest - measured["bytes"]
    smaller = ~large & (measured["bytes"] > largest // 4)
    at_top, below = (
        measured["bus_bytes_per_s"][rows].groupby(group[rows]).median() for rows in (large, smaller)
    )
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


def stragglers(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return how often each rank came last to a collective, and how long it waited for others.

    PerfkitError if the ranks were together in none of the matched collectives: nothing tells who
    was late.

    One row per rank and gpu, the most often last one first; empty for a single one. `count`,
    collectives in which all ranks were together; `last_count`, of these, those to which it came
    last, as each of several did that came last at once; `last_frac`, last_count over count;
    `wait_ns` int64, from its starts to the last ones; `wait_frac`, wait_ns over its time in them;
    both fractions NaN for no collective; `apart_count` int64, matched but not together;
    `unmatched_count` int64, not matched.
    """
    rows = matched(collectives)
    if len(rows) and not rows["together"].any():
        raise PerfkitError(
            f"stragglers: in none of {rows['collective'].nunique()} collectives all ranks were "
            "there at one moment. Record all ranks over the same steps, on nodes with "
            "synchronised clocks."
        )
    timed = with_start(collectives).groupby(["rank", "gpu"]).size()
    table = _summed(rows).reindex(timed.index, fill_value=0) if len(timed) > 1 else _summed(rows)
    table["unmatched_count"] = timed.reindex(table.index) - table["count"] - table["apart_count"]
    table = table.assign(
        last_frac=table["last_count"] / table["count"].where(table["count"] > 0),
        wait_frac=table["wait_ns"] / table["inside_ns"].where(table["inside_ns"] > 0),
    )
    ordered = table.reset_index().sort_values(
        ["last_count", "rank", "gpu"], ascending=[False, True, True]
    )
    columns = [
        "count",
        "last_count",
        "last_frac",
        "wait_ns",
        "wait_frac",
        "apart_count",
        "unmatched_count",
    ]
    return ordered[["rank", "gpu", *columns]].reset_index(drop=True)


def _summed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return counts and times per rank and GPU: of collectives with all ranks together, and of the others a count."""
    together = rows["together"]
    # The first to come waited longest
    first = stretches([rows["collective"].to_numpy()], len(rows))
    skew_ns = np.repeat(rows["wait_ns"].to_numpy()[first], np.diff(first, append=len(rows)))
    figures = rows[["rank", "gpu"]].assign(
        count=together.astype("int64"),
        last_count=(together & (rows["wait_ns"] == 0) & (skew_ns > 0)).astype("int64"),
        wait_ns=rows["wait_ns"].where(together, 0),
        inside_ns=rows["dur_ns"].where(together, 0.0),
        apart_count=(~together).astype("int64"),
    )
    return figures.groupby(["rank", "gpu"]).sum()


def imbalance(times: pd.Series) -> float:
    """Return how unevenly a time is spread over the ranks: largest over mean, less 1; 0 is even.

    It is the share of the mean by which the ranks would be done earlier with the same work spread
    evenly, if all wait for it. `times` has one value per rank; they are not all 0.

    Source: Pearce, Gamblin, de Supinski, Schulz, Amato: Quantifying the effectiveness of load
    balance algorithms, ICS 2012, "percent imbalance". (Cray's tools divide (max - mean) / max by (n
    - 1) / n instead: DeRose et al., Euro-Par 2007.)

    >>> imbalance(pd.Series([30, 10]))
    0.5
    """
    return float(times.max() / times.mean() - 1)


def matched(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return every collective that several ranks recorded, on each of these ranks: MATCHED, by start.

    A collective has at least two rows; a rank with several GPUs has a row for each. Collectives
    without a start (benchmarks) are left out, and those of a process group that more ranks have
    than it has members: several groups share its name.
    """
    timed = with_start(collectives)
    kinds, kind = numbered(timed, ["group", "operation", "bytes", "ranks"])
    members, member = numbered(timed, ["rank", "gpu"])
    by_start = np.argsort(timed["start_ns"].to_numpy(), kind="stable")
    pair = (kind * len(members) + member)[by_start]
    pairs, of, recorded = np.unique(pair, return_inverse=True, return_counts=True)
    position = pd.Series(of).groupby(of).cumcount().to_numpy()
    seen = np.bincount(pairs // max(len(members), 1), minlength=len(kinds))
    common = np.full(len(kinds), len(timed))
    np.minimum.at(common, pairs // max(len(members), 1), recorded)
    usable = (seen > 1) & ~(seen > kinds["ranks"].to_numpy("float64", na_value=np.nan))
    kept = usable[kind[by_start]] & (position < common[kind[by_start]])
    number = pd.factorize(kind[by_start][kept] * len(timed) + position[kept])[0]
    together = np.argsort(number, kind="stable")
    return MATCHED.make(_compared(timed.take(by_start[kept][together]), number[together]))


def _compared(rows: pd.DataFrame, number: Int) -> pd.DataFrame:
    """Return the columns of MATCHED for rows in which those of one collective follow each other by start."""
    first = stretches([number], len(rows))
    length = np.diff(first, append=len(rows))
    last_start = np.repeat(rows["start_ns"].to_numpy()[first + length - 1], length)
    end = (rows["start_ns"] + rows["dur_ns"]).to_numpy()
    first_end = np.repeat(np.fmin.reduceat(end, first), length) if len(first) else end
    return rows[["rank", "gpu", "group", "operation", "bytes", "start_ns", "dur_ns"]].assign(
        collective=number, wait_ns=last_start - rows["start_ns"], together=last_start < first_end
    )


def with_start(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives that have a start, as int64."""
    timed = COLLECTIVES.check(collectives)[collectives["start_ns"].notna()]
    return timed.astype({"start_ns": "int64"})
