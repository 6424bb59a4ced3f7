"""How fast do messages cross the links, and which rank comes late?

A rank that comes early to a collective waits in it for the last one, and its time contains that
wait. The transfer is the shortest time over the ranks of one collective; the rest of each rank's
time is waiting. The last rank to come has the shortest time: one that has it again and again is
late. Collectives that not all ranks of their communicator recorded, or that the CPU timed, tell
nothing.
"""

import numpy as np
import pandas as pd

from perfkit.analysis import communication
from perfkit.schema import Column, Table
from perfkit.tables import COLLECTIVES, INSPECTED

OF_MESSAGE = ["operation", "bytes", "ranks"]
LATE = 0.75  # of the collectives of a kind, and from which on a rank is late (convention)
FEWEST = 3  # collectives of a kind
TRANSFERS = Table(
    "TRANSFERS",
    "a kind of collective: operation, message size and number of ranks",
    (
        Column("operation", "category", "all_reduce, all_gather, ..."),
        Column("bytes", "int64", "message size as nccl-tests defines it, bytes"),
        Column("ranks", "int64", "ranks of the communicator, count"),
        Column("count", "int64", "collectives that all ranks recorded"),
        Column("transfer_ns", "float64", "median of the shortest times over the ranks, ns"),
        Column("wait_ns", "float64", "median of the longest time less the shortest one, ns"),
        Column("bus_bytes_per_s", "float64", "bus bandwidth of the transfer, bytes/s"),
        Column("min_bus_bytes_per_s", "float64", "that of the slowest of them, bytes/s"),
        Column("max_bus_bytes_per_s", "float64", "that of the fastest of them, bytes/s"),
        Column("late_member", "Int64", "rank that came last in most of them; NA if none did"),
        Column("late_frac", "float64", "share of them in which that rank came last; NaN if none"),
    ),
    ("operation", "bytes", "ranks"),
)


def whole(inspected: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of collectives that all ranks of their communicator recorded and their GPUs timed."""
    rows = INSPECTED.check(inspected)
    rows = rows[rows["on_gpu"]]
    recorded = rows.groupby(["group", "number"], observed=True)["member"].transform("nunique")
    return rows[recorded.eq(rows["ranks"])]


def transfers(inspected: pd.DataFrame) -> pd.DataFrame:
    """Return TRANSFERS: the transfer time and the waiting of each kind of collective."""
    rows = whole(inspected)
    keys = ["group", "number", *OF_MESSAGE]
    ordered = rows.sort_values(["dur_ns", "member"])
    times = ordered.groupby(keys, observed=True)
    each = times["dur_ns"].agg(["min", "max"]).assign(member=times["member"].first()).reset_index()
    found = []
    for kind, same in each.groupby(OF_MESSAGE, observed=True):
        counts = same["member"].value_counts()
        late, often = int(counts.index[0]), float(counts.iloc[0] / len(same))
        wait = float((same["max"] - same["min"]).median())
        transfer = float(same["min"].median())
        is_late = often >= LATE and len(same) >= FEWEST and wait > transfer / 10
        last = (late, often) if is_late else (None, None)
        ends = same["min"].max(), same["min"].min()
        found.append((*kind, len(same), transfer, wait, *last, *ends))
    names = [name for name in TRANSFERS.column_names if not name.endswith("_per_s")]
    table = pd.DataFrame(found, columns=[*names, "slowest", "fastest"])
    known = table[names].astype({"late_member": "Int64", "late_frac": "float64"})
    return TRANSFERS.make(
        known.assign(
            bus_bytes_per_s=_rates(table, table["transfer_ns"]),
            min_bus_bytes_per_s=_rates(table, table["slowest"]),
            max_bus_bytes_per_s=_rates(table, table["fastest"]),
        )
    )


def waits(inspected: pd.DataFrame) -> pd.DataFrame:
    """Return the time of each rank in collectives: rank, transfer_ns (the shortest over the ranks), wait_ns."""
    rows = whole(inspected)
    shortest = rows.groupby(["group", "number"], observed=True)["dur_ns"].transform("min")
    parts = rows[["rank"]].assign(transfer_ns=shortest, wait_ns=rows["dur_ns"] - shortest)
    return parts.groupby("rank", as_index=False).sum()


def _rates(table: pd.DataFrame, dur_ns: pd.Series) -> np.ndarray:
    """Return the bus bandwidths of the transfers if they lasted so long, in their order."""
    rows = table[["operation", "bytes", "ranks"]].astype({"operation": object})
    none = pd.Series(None, rows.index, dtype=object)
    texts = dict.fromkeys(("dtype", "algorithm", "protocol", "placement", "group"), none)
    made = COLLECTIVES.make(
        rows.assign(rank=0, gpu=-1, start_ns=range(len(rows)), dur_ns=dur_ns, source="log", **texts)
    )
    return communication.bandwidth(made)["bus_bytes_per_s"].to_numpy()
