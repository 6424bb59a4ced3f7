"""Small files as Nsight Systems exports them: tables are lists of rows, so every version can be made.

`sqlite`, `parquet` and `arrow` write ``{table: rows}``. Text in a column that holds ids of StringIds
is given an id of its own, so tests write names as names. Leave keys out of the rows (`without`) to
write an export that lacks the column.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfkit.profile import Profile
from perfkit.readers import nsys

Row = dict[str, Any]
Tables = dict[str, list[Row]]
Write = Callable[[Path, Tables], Path]

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYSTEM = "OSRT_API"
WAIT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"

HOST = 1 << 48  # upper bits of global ids: host and virtual machine
NONE = 2**32 - 1  # no stream, no event
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
IDS = (
    "demangledName",
    "shortName",
    "mangledName",
    "nameId",
    "textId",
    "symbol",
    "module",
)  # columns of StringIds ids
UNSIGNED = (
    "globalPid",
    "globalTid",
    "streamId",
    "typeId",
    "graphNodeId",
    "bytes",
    "copyKind",
    "domainId",
    *IDS[:4],
)


def process(pid: int) -> int:
    return HOST | pid << 24


def kernel(start: int, end: int, name: str = "work", pid: int = 1, **changes: Any) -> Row:
    shape = {"gridX": 2, "gridY": 3, "gridZ": 4, "blockX": 32, "blockY": 2, "blockZ": 1}
    memory = {"staticSharedMemory": 16, "dynamicSharedMemory": 1024}
    named = {
        "demangledName": name,
        "shortName": "Kernel",
        "registersPerThread": 40,
        "graphNodeId": None,
    }
    return {**_place(start, end, pid), **named, **shape, **memory, **changes}


def copy(start: int, end: int, kind: int = 1, pid: int = 1, **changes: Any) -> Row:
    sides = {"srcKind": 0, "dstKind": 2, "srcDeviceId": None, "dstDeviceId": None}
    return {**_place(start, end, pid), "bytes": 4096, "copyKind": kind, **sides, **changes}


def memset(start: int, end: int, pid: int = 1, **changes: Any) -> Row:
    return {**_place(start, end, pid), "value": 0, "bytes": 256, "memKind": 2, **changes}


def _place(start: int, end: int, pid: int) -> Row:
    ids = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 100}
    return {"start": start, "end": end, **ids, "globalPid": process(pid)}


def call(
    start: int,
    end: int,
    name: str = "cudaLaunchKernel_v7000",
    pid: int = 1,
    tid: int = 1,
    **changes: Any,
) -> Row:
    made = {"globalTid": process(pid) | tid, "correlationId": 100, "nameId": name, "returnValue": 0}
    return {"start": start, "end": end, "eventClass": 0, **made, **changes}


def system_call(
    start: int, end: int | None, name: str = "write", pid: int = 1, tid: int = 1
) -> Row:
    return {
        "start": start,
        "end": end,
        "eventClass": 27,
        "globalTid": process(pid) | tid,
        "nameId": name,
    }


def event(
    start: int,
    end: int | None,
    text: str | None = "step",
    pid: int = 1,
    tid: int = 1,
    **changes: Any,
) -> Row:
    made = {"eventType": PUSH_POP, "text": text, "textId": None, "domainId": 0}
    return {"start": start, "end": end, **made, "globalTid": process(pid) | tid, **changes}


def gpu(number: int = 0, **changes: Any) -> Row:
    made = {"id": number, "name": "NVIDIA A100-SXM4-80GB", "cuDevice": number, "smCount": 108}
    rates = {"totalMemory": 85 * 10**9, "memoryBandwidth": 2039 * 10**9, "clockRate": 1_410_000_000}
    return {**made, **rates, "computeMajor": 8, "computeMinor": 0, **changes}


def sample(time: int, value: int, metric: int = 1, kind: int = HOST, **changes: Any) -> Row:
    return {"timestamp": time, "typeId": kind, "metricId": metric, "value": value, **changes}


def metric(name: str, number: int = 1, kind: int = HOST) -> Row:
    return {
        "typeId": kind,
        "sourceId": 1,
        "typeName": "set",
        "metricId": number,
        "metricName": name,
    }


def cpu_sample(number: int, time: int, pid: int = 1, tid: int = 1, cpu: int | None = 3) -> Row:
    made = {"threadState": 1, "globalTid": process(pid) | tid, "cpuCycles": 1}
    return {"id": number, "start": time, "cpu": cpu, **made}


def chain(
    number: int, *frames: tuple[str, str] | str, unresolved: tuple[int, ...] = ()
) -> list[Row]:
    """The frames of a call chain from the innermost, each a function and its module, or a marker alone."""
    rows = []
    for depth, frame in enumerate(frames):
        symbol, module = (frame, frame) if isinstance(frame, str) else frame
        flag = 1 if depth in unresolved else None  # NULL means 0
        rows.append(
            {
                "id": number,
                "symbol": symbol,
                "module": module,
                "unresolved": flag,
                "stackDepth": depth,
            }
        )
    return rows


def switch(time: int, on: int, pid: int = 1, tid: int = 1, cpu: int = 3, state: int = 0) -> Row:
    made = {"globalTid": process(pid) | tid, "threadState": state, "threadBlock": None}
    return {"start": time, "cpu": cpu, "isSchedIn": on, **made}


def wait(start: int, end: int, correlation: int, pid: int = 1, **changes: Any) -> Row:
    made = {
        "deviceId": 0,
        "contextId": 1,
        "streamId": NONE,
        "correlationId": correlation,
        "globalPid": process(pid),
    }
    return {
        "start": start,
        "end": end,
        **made,
        "syncType": 9,
        "eventId": NONE,
        "eventSyncId": NONE,
        **changes,
    }


def overhead(start: int, end: int, name: str, pid: int = 1, tid: int = 1, **changes: Any) -> Row:
    return {"start": start, "end": end, "globalTid": process(pid) | tid, "nameId": name, **changes}


def message(time: int, severity: int, text: str | None, **changes: Any) -> Row:
    made = {
        "timestampType": 1,
        "source": 2,
        "severity": severity,
        "text": text,
        "globalPid": process(1),
    }
    return {"timestamp": time, **made, **changes}


def allocation(time: int, size: int, kind: int = 2, operation: int = 0, **changes: Any) -> Row:
    ids = {"globalPid": process(1), "deviceId": 0, "contextId": 1, "correlationId": 0}
    made = {
        "address": 4096,
        "pc": 0,
        "bytes": size,
        "memKind": kind,
        "memoryOperationType": operation,
        "name": None,
    }
    return {"start": time, **ids, **made, **changes}


def asked(*traces: str, **options: str) -> Tables:
    """What the recording was asked for: traces, and options whose names have a colon for each two underscores."""
    rows = [{"name": "CAPTURE_EVENT_TYPE", "value": trace} for trace in traces]
    rows += [{"name": name.replace("__", ":"), "value": value} for name, value in options.items()]
    return {"META_DATA_CAPTURE": rows}


def session(
    version: str = "2024.2.3.38", t0: int = 1_700_000_000 * 10**9, duration: int = 10**6
) -> Tables:
    """The tables that say which version exported a capture, when it started and how long it is."""
    return {
        "META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_VERSION", "value": version}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": t0, "utcTime": "", "localTime": ""}],
        "ANALYSIS_DETAILS": [
            {"globalVid": HOST, "duration": duration, "startTime": 5, "stopTime": 5 + duration}
        ],
    }


def capture(**changes: Any) -> Tables:
    return {
        **session(**changes),
        "TARGET_INFO_GPU": [gpu()],
        "TARGET_INFO_GPU_METRICS": [metric("SMs Active [Throughput %]")],
        "GPU_METRICS": [sample(0, 40), sample(100, 60)],
        KERNEL: [kernel(1000, 1500, "void gemm<float>(float*)"), kernel(2000, 2250, "scale")],
        MEMCPY: [copy(500, 900)],
        MEMSET: [memset(950, 960)],
        RUNTIME: [call(100, 200), call(300, 310, "cudaStreamSynchronize_v3020")],
        SYSTEM: [system_call(400, 450)],
        NVTX: [event(0, 3000, "step"), event(50, 400, "forward")],
    }


def without(rows: list[Row], *columns: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


def sqlite(path: Path, tables: Tables) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for table, rows in _with_strings(tables).items():
            columns = ", ".join(f'"{name}"' for name in rows[0])
            database.execute(f'CREATE TABLE "{table}" ({columns})')
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(
                f'INSERT INTO "{table}" VALUES ({marks})', [tuple(row.values()) for row in rows]
            )
    return path


def parquet(folder: Path, tables: Tables) -> Path:
    """Write an export as `nsys export -t parquetdir` does, ids unsigned."""
    _emptied(folder)
    for name, table in _arrow_tables(tables).items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def arrow(folder: Path, tables: Tables, form: str = "file") -> Path:
    """Write an export as `nsys export -t arrowdir` does, as Arrow IPC files or streams."""
    _emptied(folder)
    write = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form]
    for name, table in _arrow_tables(tables).items():
        with write(str(folder / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    return folder


def read(folder: Path, tables: Tables, write: Write = sqlite) -> Profile:
    path = folder / ("run.sqlite" if write is sqlite else "run")
    return nsys.read(write(path, {**session(), **tables}))


STORED = {
    "KERNELS": KERNEL,
    "COPIES": MEMCPY,
    "API_CALLS": RUNTIME,
    "OS_CALLS": SYSTEM,
    "RANGES": NVTX,
}
STORED |= {"SAMPLES": "GPU_METRICS", "DEVICES": "TARGET_INFO_GPU"}


def table(
    folder: Path, name: str, *rows: Row, write: Write = sqlite, **others: list[Row]
) -> pd.DataFrame:
    return read(folder, {STORED[name]: list(rows), **others}, write).table(name)


def handed_on(
    folder: Path, name: str, *rows: Row, write: Write = sqlite, **others: list[Row]
) -> pd.DataFrame:
    """The table as the reader hands it on, before the schema takes out what cannot be."""
    return read(folder, {STORED[name]: list(rows), **others}, write).loaders[name]()


def values(frame: pd.DataFrame, *columns: str) -> list[Any]:
    cells = frame[[*columns]].astype(object).where(frame[[*columns]].notna(), None)
    return cells[columns[0]].tolist() if len(columns) == 1 else cells.to_numpy().tolist()


def stored(file: Path) -> pa.Table:
    if file.suffix == ".parquet":
        return pq.ParquetFile(file).read()
    with pa.OSFile(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


def store(file: Path, table: pa.Table) -> None:
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


every_form = pytest.mark.parametrize("write", [sqlite, parquet, arrow])


def _arrow_tables(tables: Tables) -> dict[str, pa.Table]:
    columns = {
        t: {c: [row[c] for row in rows] for c in rows[0]}
        for t, rows in _with_strings(tables).items()
    }
    typed = {
        t: {c: pa.array(v, pa.uint64() if c in UNSIGNED else None) for c, v in cs.items()}
        for t, cs in columns.items()
    }
    return {t: pa.table(cs) for t, cs in typed.items()}


def _with_strings(tables: Tables) -> Tables:
    """Replace names by ids and add StringIds, unless the tables bring their own."""
    numbers = count(1)
    ids: dict[str, int] = {}
    made: Tables = {}
    for table, rows in tables.items():
        made[table] = [
            {
                c: ids.setdefault(v, next(numbers)) if c in IDS and isinstance(v, str) else v
                for c, v in row.items()
            }
            for row in rows
        ]
    strings = [{"id": number, "value": text} for text, number in ids.items()]
    return {"StringIds": strings, **made} if strings else made
