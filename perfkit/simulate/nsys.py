"""How is a capture written as Nsight Systems exports it?

Conventions
-----------
The file is SQLite in the vendor's schema 3.7.2; a table exists only if something was written to it. Columns
that nothing is known about are NULL. The bytes depend on the rows alone, so the same capture is the same file
with the same version of SQLite. A file appears under its name only when it is complete.

Functions
---------
writing       open a new file
write_block   kernels, copies, memsets, calls and synchronisations
write_ranges  NVTX ranges
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from perfkit.simulate.activity import API, DIRECTIONS, STREAM, Block, Ranges, Rows, Worker
from perfkit.simulate.nsys_schema import ENUMS, EXPORT, TABLES
from perfkit.simulate.table5 import Kernel
from perfkit.simulate.timeline import Int

VM = 1 << 48
CONTEXT = 1
NO_EVENT = 0xFFFF_FFFF
ROWS_AT_ONCE = 65_536

COPY_KIND = {"H2D": 1, "D2H": 2, "D2D": 8}
MEMORY = {"H2D": (0, 2), "D2H": (2, 0), "D2D": (2, 2)}


class Database:
    """A file that is being written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._made: set[str] = set()
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        """Return the id of a text in the file's StringIds."""
        return self._strings.setdefault(text, len(self._strings))

    def append(self, table: str, **columns: int | Int | Sequence[object]) -> None:
        """Append rows: a column is one number for all rows, or one value per row."""
        varying = [value for value in columns.values() if not isinstance(value, int)]
        if not len(varying[0]):
            return
        if table not in self._made:
            self._connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            self._made.add(table)
        marks = [str(value) if isinstance(value, int) else "?" for value in columns.values()]
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(marks)})"
        for first in range(0, len(varying[0]), ROWS_AT_ONCE):
            parts = [value[first : first + ROWS_AT_ONCE] for value in varying]
            lists = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
            self._connection.executemany(statement, zip(*lists, strict=True))

    def finish(self) -> None:
        """Write the tables that every export has."""
        for table, entries in ENUMS.items():
            self.append(table, **dict(zip(("id", "name", "label"), zip(*entries, strict=True), strict=True)))
        self.append("META_DATA_EXPORT", name=list(EXPORT), value=list(EXPORT.values()))
        self.append("StringIds", id=list(self._strings.values()), value=list(self._strings))
        self._connection.commit()


@contextmanager
def writing(path: Path) -> Iterator[Database]:
    """Open a new file at `path`, which appears, or is replaced, when the block ends without an error."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(part)
    try:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        database = Database(connection)
        yield database
        database.finish()
        connection.close()
        os.replace(part, path)
    finally:
        connection.close()
        part.unlink(missing_ok=True)


def global_id(process: int, thread: int = 0) -> int:
    """Return the vendor's global id of a process or of one of its threads."""
    return VM | process << 24 | thread


def write_block(db: Database, block: Block, kernels: Sequence[Kernel], *, calls: bool = True) -> None:
    """Write a block; `kernels` says what its kernel numbers mean, `calls` whether calls were traced."""
    _write_kernels(db, block, kernels)
    _write_copies(db, block)
    sets, context = block.memsets, _context(block.worker)
    db.append("CUPTI_ACTIVITY_KIND_MEMSET", **_work(sets), **context, value=0, bytes=sets["bytes"], memKind=2)
    if calls:
        _write_calls(db, block)


def _write_kernels(db: Database, block: Block, kernels: Sequence[Kernel]) -> None:
    rows = block.kernels
    kind = rows["kernel"]
    most = max(len(k.grids) for k in kernels)
    grid = np.array([(*k.grids, *[k.grids[-1]] * (most - len(k.grids))) for k in kernels], np.int64)[kind, rows["slot"]]
    db.append(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        **_work(rows),
        **_context(block.worker),
        demangledName=_strings(db, [k.full_name for k in kernels], kind),
        shortName=_strings(db, [k.name for k in kernels], kind),
        registersPerThread=np.array([k.registers for k in kernels])[kind],
        gridX=grid[:, 0],
        gridY=grid[:, 1],
        blockX=np.array([k.block for k in kernels])[kind],
        staticSharedMemory=np.array([k.shared_bytes for k in kernels])[kind],
        dynamicSharedMemory=np.array([k.dynamic_shared_bytes for k in kernels])[kind],
        gridId=rows["correlation"],
        **_nodes(rows["node"]),
        **dict.fromkeys(("gridZ", "blockY", "blockZ", "launchType"), 1),
        **dict.fromkeys(("localMemoryPerThread", "localMemoryTotal", "cacheConfig"), 0),
    )


def _strings(db: Database, texts: Sequence[str], chosen: Int) -> Int:
    """Ids of the chosen texts; the others do not enter the file."""
    ids = np.zeros(len(texts), np.int64)
    for i in np.unique(chosen).tolist():
        ids[i] = db.string(texts[i])
    return np.asarray(ids[chosen], np.int64)


def _nodes(node: Int) -> dict[str, Int]:
    """Ids of graph nodes as the vendor numbers them; no column where no kernel is in a graph."""
    return {"graphNodeId": (1 << 32) + node} if (node >= 0).any() else {}


def _write_copies(db: Database, block: Block) -> None:
    rows = block.copies
    codes = np.array([(COPY_KIND[d], *MEMORY[d]) for d in DIRECTIONS])[rows["direction"]]
    db.append(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **_work(rows),
        **_context(block.worker),
        bytes=rows["bytes"],
        copyKind=codes[:, 0],
        srcKind=codes[:, 1],
        dstKind=codes[:, 2],
    )


def _write_calls(db: Database, block: Block) -> None:
    calls, syncs = block.calls, block.syncs
    process = global_id(block.worker.process)
    db.append(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=calls["start"],
        end=calls["end"],
        globalTid=process | calls["thread"],
        correlationId=calls["correlation"],
        nameId=_strings(db, API, calls["name"]),
        **dict.fromkeys(("eventClass", "returnValue"), 0),
    )
    db.append(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=syncs["start"],
        end=syncs["end"],
        correlationId=syncs["correlation"],
        **_context(block.worker),
        streamId=STREAM,
        syncType=np.where(syncs["name"] == API.index("cudaDeviceSynchronize_v3020"), 4, 3),
        eventId=NO_EVENT,
    )


def _work(rows: Rows) -> dict[str, Int]:
    columns = {"start": "start", "end": "end", "streamId": "stream", "correlationId": "correlation"}
    return {vendor: rows[ours] for vendor, ours in columns.items()}


def _context(worker: Worker) -> dict[str, int]:
    return {"deviceId": worker.gpu, "contextId": CONTEXT, "globalPid": global_id(worker.process)}


def write_ranges(db: Database, ranges: Ranges) -> None:
    """Write ranges; those that were never closed (end -1) have no end."""
    for closed in (True, False):
        chosen = np.flatnonzero((ranges.end >= 0) == closed)
        thread = global_id(ranges.worker.process, ranges.worker.threads[0])
        end = {"end": ranges.end[chosen]} if closed else {}
        text = [ranges.names[i] for i in chosen.tolist()]
        start = ranges.start[chosen]
        db.append("NVTX_EVENTS", start=start, **end, eventType=59, text=text, globalTid=thread, domainId=0)
