"""Recordings of rocprofv3, made: one process of one GPU, as databases of the schemas 3 and 4, as JSON and as CSV."""

import csv
import json
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
COUNTERS = ((1, "SQ_WAVES"), (2, "FETCH_SIZE"), (3, "WRITE_SIZE"))
# The row of KERNELS, the counter, and its value in one of two units.
COUNTED = ((0, 1, 10.0), (0, 1, 6.0), (0, 2, 3.0), (0, 3, 1.0), (1, 1, 2.0))
SYMBOLS = (("Cijk_Ailk_Bljk.kd", 100, 28), ("vectorized_elementwise_kernel.kd", 12, 0))
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
    rows = {"kernels": KERNELS, "copies": COPIES, "regions": REGIONS, "counted": (), **changes}
    with closing(sqlite3.connect(path)) as database:
        writer = Writer(database, schema, SUFFIX)
        writer.table("metadata", [{"id": 1, "tag": "schema_version", "value": str(schema)}])
        writer.table("string", [{"id": id, "string": text} for id, text in STRINGS.items()])
        columns = ("id", "type", "type_index", "product_name", "extdata")
        more = '{"cu_count": 304}'
        agents = [dict(zip(columns, (*agent, more), strict=True)) for agent in AGENTS]
        writer.table("info_agent", agents)
        writer.table("info_process", [{"id": 42, "pid": 42, "init": INIT, "fini": FINI}])
        names = ("display_name", "arch_vgpr_count", "accum_vgpr_count")
        kernels = [dict(zip(names, symbol, strict=True)) for symbol in SYMBOLS]
        writer.table("info_kernel_symbol", [{"id": n, **row} for n, row in enumerate(kernels, 1)])
        if rows["kernels"]:
            writer.ran("kernel_dispatch", rows["kernels"], {**SIZES, "group_segment_size": 512})
        if rows["copies"]:
            writer.ran("memory_copy", rows["copies"], {"stream_id": 7} if schema == 4 else {})
        if rows["regions"]:
            writer.ran("region", rows["regions"], {})
        if rows["counted"]:
            names = [{"id": id, "name": name} for id, name in COUNTERS]
            writer.table("info_pmc", names)
            keys = ("event_id", "pmc_id", "value")
            values = [(row + 1, counter, value) for row, counter, value in rows["counted"]]
            writer.table("pmc_event", [dict(zip(keys, one, strict=True)) for one in values])
        writer.table("event", writer.events)
        if schema == 4:
            writer.table("timestamp", writer.stamps)
            writer.table("track", [{"id": 1, **PLACE}])
        database.commit()
    return path


def _ran(row: Mapping[str, Any]) -> dict[str, Any]:
    """What all records of the JSON have."""
    return {
        "start_timestamp": INIT + row["start"],
        "end_timestamp": INIT + row["end"],
        "correlation_id": {"internal": row.get("link", 0), "external": 0},
        "thread_id": PLACE["tid"],
        "stream_id": {"handle": PLACE["stream_id"]},
    }


def _dispatch(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        name: {axis: SIZES[f"{name}_{axis}"] for axis in "xyz"}
        for name in ("workgroup_size", "grid_size")
    }
    info = {"agent_id": {"handle": 1 << 60}, "kernel_id": row["kernel_id"], "dispatch_id": number}
    return {**_ran(row), "dispatch_info": {**info, **sizes, "group_segment_size": 512}}


def process(**changes: Any) -> dict[str, Any]:
    """One process of the JSON; `changes` replace its parts."""
    kinds = ["", "KERNEL_DISPATCH", "HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "MEMORY_COPY"]
    operations = [STRINGS[4], STRINGS[7], STRINGS[8]]
    strings = {
        "buffer_records": [{"kind": kind, "operations": operations} for kind in kinds],
        "marker_api": [{"key": 900 + id, "value": STRINGS[id]} for id in (5, 6)],
    }
    calls = [{**_ran(row), "kind": 2, "operation": 0} for row in REGIONS if row["category"] == 2]
    ranges = [
        {**_ran({**row, "link": 900 + row["name_id"]}), "kind": 3, "operation": 0}
        for row in REGIONS
        if row["category"] == 3
    ]
    handles = {id: (1 << 60) + id - 1 for id, *_ in AGENTS}
    agents = [
        {
            "id": {"handle": handles[id]},
            "type": 1 + (kind == "GPU"),
            "logical_node_type_id": number,
            "product_name": name,
            "cu_count": 304,
        }
        for id, kind, number, name in AGENTS
    ]
    copies = [
        {
            **_ran(row),
            "kind": 4,
            "operation": row["name_id"] - 6,
            "bytes": row["size"],
            "src_agent_id": {"handle": handles[row["src_agent_id"]]},
            "dst_agent_id": {"handle": handles[row["dst_agent_id"]]},
        }
        for row in COPIES
    ]
    kernels = [_dispatch(number, row) for number, row in enumerate(KERNELS, 1)]
    names = ("kernel_id", "formatted_kernel_name", "arch_vgpr_count", "accum_vgpr_count")
    symbols = [dict(zip(names, (id, *one), strict=True)) for id, one in enumerate(SYMBOLS, 1)]
    collected = [
        {
            "dispatch_data": kernels[row],
            "records": [
                {"counter_id": {"handle": counter}, "value": value}
                for own, counter, value in COUNTED
                if own == row
            ],
        }
        for row in range(len(KERNELS))
    ]
    return {
        "metadata": {"pid": PLACE["pid"], "init_time": INIT, "fini_time": FINI},
        "agents": agents,
        "counters": [{"id": {"handle": id}, "name": name} for id, name in COUNTERS],
        "kernel_symbols": symbols,
        "strings": strings,
        "buffer_records": {
            "kernel_dispatch": kernels,
            "memory_copy": copies,
            "hip_api": calls,
            "marker_api": ranges,
        },
        "callback_records": {"counter_collection": collected},
        **changes,
    }


def results(path: Path, *processes: Mapping[str, Any]) -> Path:
    """The JSON of some processes, of one without any."""
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes or (process(),))}))
    return path


PAGES = ("kernel_trace", "memory_copy_trace", "hip_api_trace", "marker_api_trace")


def pages(folder: Path, *ends: str, prefix: str = "42") -> Path:
    """The CSV files of a process with these ends, of all without any, and the first of them."""
    folder.mkdir(exist_ok=True)
    made = {
        "kernel_trace": [_kernel(number, row) for number, row in enumerate(KERNELS, 1)],
        "counter_collection": [_count(*one) for one in COUNTED],
        "memory_copy_trace": [_copy(row) for row in COPIES],
        "hip_api_trace": [_call(row) for row in REGIONS if row["category"] == 2],
        "marker_api_trace": [_call(row) for row in REGIONS if row["category"] == 3],
        "agent_info": [_agent(id, *one) for id, *one in AGENTS],
    }
    for end in ends or (*PAGES, "counter_collection", "agent_info"):
        with (folder / f"{prefix}_{end}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(made[end][0]), quoting=csv.QUOTE_NONNUMERIC)
            writer.writeheader()
            writer.writerows(made[end])
    return folder / f"{prefix}_{ends[0] if ends else PAGES[0]}.csv"


def _page(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"Start_Timestamp": INIT + row["start"], "End_Timestamp": INIT + row["end"]}


def _kernel(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    name, vector, accumulators = SYMBOLS[row["kernel_id"] - 1]
    own = {"Kind": "KERNEL_DISPATCH", "Agent_Id": "Agent 1", "Queue_Id": 1, "Stream_Id": 7}
    size = {"LDS_Block_Size": 512, "VGPR_Count": vector, "Accum_VGPR_Count": accumulators}
    links = {"Dispatch_Id": number, "Kernel_Name": name, "Correlation_Id": row["link"]}
    return {**own, **links, **_page(row), **size, **{key.title(): SIZES[key] for key in SIZES}}


def _count(row: int, counter: int, value: float) -> dict[str, Any]:
    kernel = _kernel(row + 1, KERNELS[row])
    names = ("Agent_Id", "Dispatch_Id", "Kernel_Name", "VGPR_Count", "Accum_VGPR_Count")
    own = {name: kernel[name] for name in (*names, "LDS_Block_Size", "Correlation_Id")}
    counted = {"Counter_Name": dict(COUNTERS)[counter], "Counter_Value": value}
    sizes = {"Grid_Size": 2000, "Workgroup_Size": 256, "Process_Id": PLACE["pid"]}
    return {**own, **sizes, **counted, **_page(KERNELS[row])}


def _copy(row: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"Source_Agent_Id": "src_agent_id", "Destination_Agent_Id": "dst_agent_id"}
    named = {name: f"Agent {row[column]}" for name, column in ends.items()}
    own = {"Kind": "MEMORY_COPY", "Direction": STRINGS[row["name_id"]], "Stream_Id": 7}
    return {**own, **named, "Correlation_Id": 0, **_page(row)}


def _call(row: Mapping[str, Any]) -> dict[str, Any]:
    own = {"Domain": STRINGS[row["category"]], "Function": STRINGS[row["name_id"]]}
    place = {"Process_Id": PLACE["pid"], "Thread_Id": PLACE["tid"]}
    return {**own, **place, "Correlation_Id": row["link"], **_page(row)}


def _agent(id: int, kind: str, _: int, name: str) -> dict[str, Any]:
    own = {"Node_Id": id, "Logical_Node_Id": id, "Agent_Type": kind}
    return {**own, "Cu_Count": 304, "Name": "gfx942", "Product_Name": name}
