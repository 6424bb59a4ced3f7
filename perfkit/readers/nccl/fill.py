"""COLLECTIVES, LINKS, DEVICES and CAPTURE from what a log said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from perfkit import tables
from perfkit.profile import Missing
from perfkit.readers.nccl import operations
from perfkit.readers.nccl.benchmark import Table
from perfkit.readers.nccl.calls import Call
from perfkit.readers.nccl.links import Edge

REMEDIES = {
    "COLLECTIVES": (
        "no collective was timed or logged",
        "run `all_reduce_perf -b 8 -e 8G -f 2` of nccl-tests, or record with NCCL_DEBUG=INFO "
        "NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING",
    ),
    "LINKS": (
        "no rings, trees and transports",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,SHM,NET",
    ),
}


def which(table: Table, path: Path) -> str | None:
    """Return the collective of a table: what it says, else what its rows tell, with a command's or the file's name."""
    if table.program or not table.rows:
        return operations.operation(table.program)
    options = operations.told(table.rows, table.ranks)
    hints = [name for name in (operations.operation(table.named), operations.operation(path.name)) if name in options]
    return options[0] if len(options) == 1 else next(iter(hints), None)


def collectives(benchmarks: Sequence[Table], calls: Sequence[Call], path: Path) -> pd.DataFrame:
    """Return COLLECTIVES: both halves of each row of the tables, then the calls."""
    columns = ["rank", "operation", "bytes", "dtype", "ranks", "dur_ns", "algorithm", "protocol", "placement", "source"]
    rows: list[tuple[object, ...]] = []
    for table in benchmarks:
        name = which(table, path)
        for row in table.rows:
            told = (0, name, row.bytes, row.dtype, table.ranks)
            chosen = (row.algorithm, row.protocol)
            rows += [(*told, timing.dur_ns, *chosen, timing.placement, "benchmark") for timing in row.timings]
    for call in calls:
        said = (call.rank, call.operation, call.bytes, call.dtype, call.ranks)
        rows.append((*said, float("nan"), call.algorithm, call.protocol, None, "log"))
    frame = pd.DataFrame(rows, columns=columns).astype({"ranks": "Int64"})
    nothing = pd.array([pd.NA] * len(frame), dtype="Int64")
    return tables.COLLECTIVES.make(frame.assign(gpu=-1, start_ns=nothing, group=None))


def links(edges: dict[Edge, str | None]) -> pd.DataFrame:
    """Return LINKS."""
    frame = pd.DataFrame(
        [(0, *edge, transport) for edge, transport in edges.items()],
        columns=["rank", "kind", "channel", "from_rank", "to_rank", "transport"],
    )
    return tables.LINKS.make(frame)


def devices(benchmarks: Sequence[Table]) -> pd.DataFrame:
    """Return DEVICES: the GPUs of rank 0's node, as the first table lists them."""
    listed = next((table.devices for table in benchmarks if table.devices), [])
    names = {device.gpu: device.name for device in reversed(listed) if device.host == listed[0].host}
    unknown = pd.array([pd.NA] * len(names), dtype="Int64")
    return tables.DEVICES.make(
        pd.DataFrame(
            {
                "rank": 0,
                "gpu": list(names),
                "name": list(names.values()),
                "compute_capability": "",
                "sm_count": unknown,
                "memory_bytes": unknown,
                "memory_bytes_per_s": float("nan"),
                "clock_hz": float("nan"),
            }
        )
    )


def capture(path: Path, tool: str, version: str, t0_unix_ns: int | None) -> pd.DataFrame:
    """Return CAPTURE."""
    frame = {"rank": 0, "tool": tool, "tool_version": version, "path": str(path), "dur_ns": 0}
    return tables.CAPTURE.make(pd.DataFrame({**frame, "t0_unix_ns": pd.array([t0_unix_ns], dtype="Int64")}))


def missing(present: set[str]) -> tuple[Missing, ...]:
    """Return what the log cannot answer, with what records it."""
    return tuple(Missing(table, *remedy) for table, remedy in REMEDIES.items() if table not in present)
