"""Loading the kernels, calls and ranges of an Nsight Systems export, cold and from the cache, in CPU seconds.

The captures are of eight GPUs in eight processes, whose rows are interleaved and nearly or not at all in order. The
peer is a loop in C over the columns that the reader asks for; of kernels pandas.read_sql of them, too. Cold includes
writing the cache. The peers of one capture are measured in turn, so that a busy machine is busy for all.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import pandas as pd

from perfkit import load
from perfkit.readers.nsys import tables
from perfkit.readers.nsys.sources import Combined
from tests.bench import captures, fresh
from tests.bench.table import Row

SIZES = (1_000_000, 3_000_000, 10_000_000)
TIMES = 1  # of each: CPU seconds hardly depend on what else runs, and ten million kernels take a minute
PANDAS_ROWS = 1_000_000
SOURCE = Path(__file__).with_name("sqlite_loop.c")


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the rows of the table."""
    loop = _compiled()
    sizes = [size for size in SIZES if size < kernels] + [min(kernels, SIZES[-1])]
    for size in sizes:
        yield from _of_capture(loop, captures.made(size, "node"), f"{size:,} kernels of 8 GPUs", list(QUERIES))
    yield from _of_capture(loop, captures.made(sizes[0], "shuffled"), f"{sizes[0]:,} shuffled kernels", list(QUERIES))
    path, some = captures.made(sizes[0], "node"), min(sizes[0], PANDAS_ROWS)
    ours = fresh.call(loaded, path, "kernels")
    read_sql = fresh.call(pandas_rows, path, some)
    work = f"nsys .sqlite, {some:,} kernels of 8 GPUs, cold, CPU"
    yield _row(work, [ours], "pandas.read_sql", read_sql.cpu_s, 1 / 6, "at most 1/6")


def _of_capture(loop: Path | None, path: Path, size: str, names: list[str]) -> Iterator[Row]:
    for name in names:
        cold, cached, floor = [], [], []
        for _ in range(TIMES):
            with tempfile.TemporaryDirectory(dir=captures.FOLDER) as cache:
                cold.append(fresh.call(loaded, path, name, cache=Path(cache)))
                cached.append(fresh.call(loaded, path, name, cache=Path(cache)))
            if loop:
                floor.append(_looped(loop, path, QUERIES[name]))
        floor_s = median(floor) if floor else None
        peer = "C loop, same columns" if floor else "C loop: no cc or no libsqlite3"
        work = f"nsys .sqlite, {size}: {name}"
        yield _row(f"{work}, cold, CPU", cold, peer, floor_s, 1.6, "at most 1.6")
        yield _row(f"{work}, cached, CPU", cached, peer, floor_s, 0.2, "at most 0.2")


def _row(work: str, ours: list[fresh.Measured], peer: str, peer_s: float | None, most: float, bar: str) -> Row:
    """Return a row of the medians of several runs."""
    cpu_s, peak = median(m.cpu_s for m in ours), max(m.peak_bytes for m in ours)
    return Row(work, cpu_s, peer, peer_s, most_ratio=most, bar=bar, peak_bytes=peak)


def loaded(path: str, name: str) -> int:
    """Load a table."""
    return len(getattr(load(path), name))


def pandas_rows(path: str, some: str) -> int:
    """Load so many kernels with pandas."""
    with closing(sqlite3.connect(path)) as database:
        return len(pd.read_sql(f"{_query()} LIMIT {some}", database))


def _query() -> str:
    """Return the query for the columns that the reader asks for, before it combines any."""
    asked = [c.columns if isinstance(c, Combined) else (c,) for c in tables.KERNEL_COLUMNS]
    once = dict.fromkeys(name for columns in asked for name in columns)
    return f"SELECT {', '.join(once)} FROM {tables.KERNEL}"


QUERIES = {
    "kernels": _query(),
    "api_calls": f"SELECT start, end, globalTid, correlationId, nameId FROM {tables.RUNTIME}",
    "ranges": f"SELECT start, end, eventType, globalTid, textId, domainId FROM {tables.NVTX}",
}


def _compiled() -> Path | None:
    """Return the loop as a program, or None if it cannot be made here."""
    compiler = shutil.which("cc")
    program = captures.FOLDER / "sqlite_loop"
    for library in ("-lsqlite3", "-l:libsqlite3.so.0") if compiler else ():
        try:
            fresh.command([compiler or "", "-O2", SOURCE, "-o", program, library])
        except RuntimeError:
            continue
        return program
    return None


def _looped(loop: Path, path: Path, query: str) -> float:
    """Return the CPU seconds that the loop took for all rows of a query's table."""
    with closing(sqlite3.connect(path)) as database:
        ((rows,),) = database.execute(f"SELECT count(*) FROM {query.rpartition(' ')[2]}")
    done = fresh.command([loop, path, query, str(rows)])
    if int(done.answer.split()[0]) != rows:
        raise RuntimeError(f"{path}: the loop read {done.answer.split()[0]} rows, not {rows}")
    return done.cpu_s
