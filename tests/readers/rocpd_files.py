"""Databases of rocpd, made: one process of one GPU, in the layouts of the schemas 3 and 4."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

SUFFIX = "_00000bc4_4f2a_7c11_9d3e_5a0c7e1b2d33"
INIT, FINI = 1_000_000, 2_000_000  # ns since the machine booted
STRINGS = {
    1: "KERNEL_DISPATCH",
    2: "HIP_RUNTIME_API",
    3: "MARKER_CORE_RANGE_API",
    4: "hipLaunchKernel",
    5: "step",
    6: "forward",
    7: "MEMORY_COPY_HOST_TO_DEVICE",
    8: "MEMORY_COPY_DEVICE_TO_DEVICE",
}
AGENTS = ((0, "CPU", 0, "AMD EPYC"), (1, "GPU", 0, "MI300X"), (2, "GPU", 1, "MI300X"))
# Start and end in ns after INIT, and the columns of each row.
KERNELS: Sequence[Mapping[str, Any]] = (
    {"start": 200, "end": 300, "kernel_id": 1, "link": 11},
    {"start": 400, "end": 700, "kernel_id": 2, "link": 12},
)
COPIES: Sequence[Mapping[str, Any]] = (
    {"start": 50, "end": 150, "name_id": 7, "src_agent_id": 0, "dst_agent_id": 1, "size": 4096},
    {"start": 800, "end": 900, "name_id": 8, "src_agent_id": 1, "dst_agent_id": 2, "size": 64},
)
REGIONS: Sequence[Mapping[str, Any]] = (
    {"start": 100, "end": 120, "name_id": 4, "category": 2, "link": 11},
    {"start": 300, "end": 310, "name_id": 4, "category": 2, "link": 12},
    {"start": 10, "end": 950, "name_id": 5, "category": 3, "link": 0},
    {"start": 90, "end": 320, "name_id": 6, "category": 3, "link": 0},
)
PLACE = {"nid": 1, "pid": 42, "tid": 43, "agent_id": 1, "queue_id": 1, "stream_id": 7}
SIZES = {
    **{f"workgroup_size_{axis}": size for axis, size in zip("xyz", (256, 1, 1), strict=True)},
    **{f"grid_size_{axis}": size for axis, size in zip("xyz", (1000, 2, 1), strict=True)},
}


class Writer:
    """Writes the rows of one database."""

    def __init__(self, database: sqlite3.Connection, schema: int, suffix: str) -> None:
        self.database, self.schema, self.suffix = database, schema, suffix
        self.events: list[dict[str, Any]] = []
        self.stamps: list[dict[str, Any]] = []

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table with the columns of its first row."""
        columns = list(rows[0])
        quoted = ", ".join(f'"{column}"' for column in columns)
        table = f"rocpd_{name}{self.suffix}"
        self.database.execute(f'CREATE TABLE "{table}" ({quoted})')
        self.database.execute(f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM "{table}"')
        marks = ", ".join("?" * len(columns))
        self.database.executemany(
            f'INSERT INTO "{table}" VALUES ({marks})', [tuple(row.values()) for row in rows]
        )

    def ran(self, name: str, rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
        """Write what ran, with its times and place in the layout of the schema."""
        made = []
        for number, row in enumerate(rows, 1):
            event = len(self.events) + 1
            link = row.get("link", 0)
            self.events.append(
                {"id": event, "stack_id": link, "category_id": row.get("category", 1)}
            )
            own = {key: row[key] for key in row if key not in ("start", "end", "link", "category")}
            made.append({"id": number, **self.times(row), **more, **own, "event_id": event})
        self.table(name, made)

    def times(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row's times and place."""
        times = {key: INIT + row[key] for key in ("start", "end")}
        if self.schema == 3:
            return {**times, **PLACE}
        for value in times.values():
            self.stamps.append({"id": len(self.stamps) + 1, "value": value, "track_id": 1})
        return {"start_id": len(self.stamps) - 1, "end_id": len(self.stamps), "track_id": 1}


def rocpd(path: Path, schema: int = 3, **changes: Any) -> Path:
    """A database with kernels, copies, calls and ranges; `changes` replace rows, or leave a table out."""
    rows = {"kernels": KERNELS, "copies": COPIES, "regions": REGIONS, **changes}
    with closing(sqlite3.connect(path)) as database:
        writer = Writer(database, schema, SUFFIX)
        writer.table("metadata", [{"id": 1, "tag": "schema_version", "value": str(schema)}])
        writer.table("string", [{"id": id, "string": text} for id, text in STRINGS.items()])
        columns = ("id", "type", "type_index", "product_name", "extdata")
        more = '{"cu_count": 304}'
        agents = [dict(zip(columns, (*agent, more), strict=True)) for agent in AGENTS]
        writer.table("info_agent", agents)
        writer.table("info_process", [{"id": 42, "pid": 42, "init": INIT, "fini": FINI}])
        symbols = [("Cijk_Ailk_Bljk.kd", 100, 28), ("vectorized_elementwise_kernel.kd", 12, 0)]
        names = ("display_name", "arch_vgpr_count", "accum_vgpr_count")
        kernels = [dict(zip(names, symbol, strict=True)) for symbol in symbols]
        writer.table("info_kernel_symbol", [{"id": n, **row} for n, row in enumerate(kernels, 1)])
        if rows["kernels"]:
            writer.ran("kernel_dispatch", rows["kernels"], {**SIZES, "group_segment_size": 512})
        if rows["copies"]:
            writer.ran("memory_copy", rows["copies"], {"stream_id": 7} if schema == 4 else {})
        if rows["regions"]:
            writer.ran("region", rows["regions"], {})
        writer.table("event", writer.events)
        if schema == 4:
            writer.table("timestamp", writer.stamps)
            writer.table("track", [{"id": 1, **PLACE}])
        database.commit()
    return path
