"""Reading what an Nsight Systems export holds beside kernels: each table against API_CALLS of as many stored rows.

The export is made by SQL, with a million rows of each table: sixteen threads whose rows are interleaved, stacks of
eight frames of which most are alike, and samples as many as stacks.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from perfkit import load
from perfkit.readers.nsys import collector, schedule, tables, waits
from perfkit.readers.nsys.stacks import SAMPLED
from tests.bench import captures, fresh
from tests.bench.table import Row, median_row

ROWS = 1_000_000
DEPTH = 8  # frames of a stack
FUNCTIONS = 500
THREAD = "(1 << 48 | 7 << 24 | 100 + n % 16)"
PROCESS = "(1 << 48 | 7 << 24)"
# Columns of each stored table and their values in row n.
STORED = {
    tables.RUNTIME: f"start=n * 1000, end=n * 1000 + 400, globalTid={THREAD}, correlationId=n, nameId=1 + n % 3",
    tables.SYSTEM: f"start=n * 1000, end=n * 1000 + 400, globalTid={THREAD}, nameId=9, callchainId=0",
    schedule.SWITCHES: f"start=n * 900, cpu=n % 64, isSchedIn=n / 16 % 2, globalTid={THREAD}",
    waits.WAIT: f"start=n * 1000, end=n * 1000 + 9, deviceId=0, contextId=1, streamId=7, correlationId=n, "
    f"globalPid={PROCESS}, syncType=3, eventId=4294967295",
    collector.OWN: f"start=n * 1000, end=n * 1000 + 9, globalTid={THREAD}, nameId=10 + n % 5",
    tables.MEMORY_EVENT: f"start=n * 1000, globalPid={PROCESS}, deviceId=0, address=n * 4096, bytes=4096, memKind=2, "
    "memoryOperationType=n % 2, name=NULL, correlationId=n",
    "SAMPLING_CALLCHAINS": f"id=1 + n / {DEPTH}, stackDepth=n % {DEPTH}, "
    f"symbol=20 + (n / {DEPTH} % 997 * (n % {DEPTH})) % {FUNCTIONS}, module=1, unresolved=n % {DEPTH} = 0",
}
# The tables to read, and the stored rows that are read for each.
READ = {
    "schedule": ROWS,
    "waits": 2 * ROWS,  # with the calls, whose names tell the kinds
    "overhead": ROWS,
    "memory_events": ROWS,
    "frames": ROWS,
    "stacks": ROWS + ROWS // DEPTH,
}


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the rows of the table."""
    path = captures.FOLDER / "beside.sqlite"
    path.unlink(missing_ok=True)
    fresh.call(made, path)
    calls = fresh.call(loaded, path, "api_calls")
    for name, stored in READ.items():
        ours = fresh.call(loaded, path, name)
        limits = {
            "peer_seconds": calls.cpu_s * stored / ROWS,
            "most_ratio": 1.0,
            "bar": "at most 1",
        }
        work = f"nsys .sqlite, {stored:,} stored rows: {name}, cold, CPU"
        yield median_row(work, [ours], "api_calls, as many rows", by="cpu_s", **limits)


def loaded(path: str, name: str) -> int:
    """Load a table."""
    return len(getattr(load(path), name))


def made(path: str) -> None:
    """Write the export."""
    count = f"WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS - 1})"
    with closing(sqlite3.connect(Path(path))) as database, database:
        database.execute(f"CREATE TABLE numbers AS {count} SELECT n FROM c")
        for table, columns in STORED.items():
            pairs = [pair.partition("=")[::2] for pair in columns.split(", ")]
            names = ", ".join(f'"{name}" INTEGER' for name, _ in pairs)
            database.execute(f"CREATE TABLE {table} ({names})")
            database.execute(
                f"INSERT INTO {table} SELECT {', '.join(value for _, value in pairs)} FROM numbers"
            )
        database.execute(
            f"CREATE TABLE {SAMPLED} (id INTEGER PRIMARY KEY, start INTEGER, cpu INTEGER, globalTid INTEGER)"
        )
        samples = f"SELECT 1 + n, n * 8000, n % 64, {THREAD} FROM numbers WHERE n < {ROWS // DEPTH}"
        database.execute(f"INSERT INTO {SAMPLED} {samples}")
        database.execute("DROP TABLE numbers")
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        named = {1: "cudaLaunchKernel", 2: "cudaStreamSynchronize", 3: "cudaMemcpyAsync"}
        texts = [(i, named.get(i, f"function_{i}")) for i in range(1, 20 + FUNCTIONS)]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", texts)
