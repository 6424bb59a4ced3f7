"""Loading the kernels of an Nsight Systems export, cold and from the cache.

Peers: a loop in C over the source columns that the reader asks for, and pandas.read_sql of them. Cold includes
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

import perfkit
from perfkit.readers.nsys import tables
from perfkit.readers.nsys.sources import Combined
from tests.bench import captures, fresh
from tests.bench.table import Row

TIMES = 3
PANDAS_ROWS = 1_000_000
SOURCE = Path(__file__).with_name("sqlite_loop.c")


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the rows of the table."""
    path = captures.made(kernels)
    loop = _compiled()
    cold, cached, floor = [], [], []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory(dir=captures.FOLDER) as cache:
            cold.append(fresh.call(kernel_rows, path, cache=Path(cache)))
            cached.append(fresh.call(kernel_rows, path, cache=Path(cache)))
        if loop:
            floor.append(_looped(loop, path, kernels))
    some = min(kernels, PANDAS_ROWS)
    read_sql = fresh.call(pandas_rows, path, some).wall_s * kernels / some
    if not {kernels} == {m.answer for m in (*cold, *cached)}:
        raise RuntimeError(f"{path}: {cold[0].answer} kernels were read, not {kernels}")

    floor_s = median(floor) if floor else None
    size = f"nsys .sqlite, {kernels:,} kernels"
    named = "C loop, same columns" if floor else "C loop: no cc or no libsqlite3"
    scaled = f"pandas.read_sql ({some:,} rows, scaled)"
    yield _row(f"{size}, cold", cold, named, floor_s, 1.5, "at most 1.5")
    yield _row(f"{size}, cold", cold, scaled, read_sql, 1 / 6, "at most 1/6")
    yield _row(f"{size}, cached", cached, named, floor_s, 0.2, "at most 0.2")


def _row(work: str, ours: list[fresh.Measured], peer: str, peer_s: float | None, most: float, bar: str) -> Row:
    """Return a row of the medians of several runs."""
    wall_s, cpu_s = median(m.wall_s for m in ours), median(m.cpu_s for m in ours)
    peak = max(m.peak_bytes for m in ours)
    return Row(work, wall_s, peer, peer_s, most_ratio=most, bar=bar, cpu_s=cpu_s, peak_bytes=peak)


def kernel_rows(path: str) -> int:
    """Load the kernels."""
    return len(perfkit.load(path).kernels)


def pandas_rows(path: str, some: str) -> int:
    """Load so many kernels with pandas."""
    with closing(sqlite3.connect(path)) as database:
        return len(pd.read_sql(f"{_query()} LIMIT {some}", database))


def _query() -> str:
    """Return the query for the columns that the reader asks for, before it combines any."""
    asked = [c.columns if isinstance(c, Combined) else (c,) for c in tables.KERNEL_COLUMNS]
    once = dict.fromkeys(name for columns in asked for name in columns)
    return f"SELECT {', '.join(once)} FROM {tables.KERNEL}"


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


def _looped(loop: Path, path: Path, kernels: int) -> float:
    """Return the seconds the loop took."""
    count, seconds = fresh.command([loop, path, _query(), str(kernels)]).answer.split()
    if int(count) != kernels:
        raise RuntimeError(f"{path}: the loop read {count} rows, not {kernels}")
    return float(seconds)
