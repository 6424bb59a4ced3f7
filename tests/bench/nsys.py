"""Loading the kernels, calls and ranges of an Nsight Systems export, cold and from the cache.

The captures are of eight GPUs in eight processes, whose rows are interleaved and nearly or not at all in order. The
peer is a loop in C over the columns that the reader asks for; of kernels pandas.read_sql of them, too. Cold includes
writing the cache. The peers of one capture are measured in turn, so that a busy machine is busy for all.

Launch statistics from the file are whole programs. ``nsys stats`` calls the report cuda_kern_exec_sum, kernexecsum
before 2023; it gets a copy of the capture, because it may write beside it.
"""

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import pandas as pd

from perfkit import load
from perfkit.readers.nsys import sources, tables
from tests.bench import captures, fresh
from tests.bench.table import Row, median_row

SIZES = (1_000_000, 3_000_000, 10_000_000)
PANDAS_ROWS = 1_000_000
LAUNCHED = 500_000
SOURCE = Path(__file__).with_name("sqlite_loop.c")
SUMMARY = """
import sys
import perfkit
from perfkit.analysis import host
run = perfkit.load(sys.argv[1])
host.latency_summary(host.latency(run.kernels, run.api_calls))
"""


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the rows of the table."""
    loop = _compiled()
    sizes = [size for size in SIZES if size < kernels] + [min(kernels, SIZES[-1])]
    for size in sizes:
        yield from _of_capture(
            loop, captures.made(size, "node"), f"{size:,} kernels of 8 GPUs", list(QUERIES)
        )
    yield from _of_capture(
        loop, captures.made(sizes[0], "shuffled"), f"{sizes[0]:,} shuffled kernels", list(QUERIES)
    )
    path, some = captures.made(sizes[0], "node"), min(sizes[0], PANDAS_ROWS)
    ours = fresh.call(loaded, path, "kernels")
    read_sql = fresh.call(pandas_rows, path, some)
    work = f"nsys .sqlite, {some:,} kernels of 8 GPUs, cold, CPU"
    limits = {"peer_seconds": read_sql.cpu_s, "most_ratio": 1 / 6, "bar": "at most 1/6"}
    yield median_row(work, [ours], "pandas.read_sql", by="cpu_s", **limits)


def _of_capture(loop: Path | None, path: Path, size: str, names: list[str]) -> Iterator[Row]:
    for name in names:
        floor = (
            _looped(loop, path, QUERIES[name]) if loop else None
        )  # first: it brings the file into the page cache
        # Once each: CPU seconds hardly depend on what else runs, and ten million kernels take a minute.
        with tempfile.TemporaryDirectory(dir=captures.FOLDER) as cache:
            cold, cached = (fresh.call(loaded, path, name, cache=Path(cache)) for _ in range(2))
        peer = "C loop, same columns" if loop else "C loop: no cc or no libsqlite3"
        work = f"nsys .sqlite, {size}: {name}"
        for when, ours, by, most in (
            ("cold, CPU", cold, "cpu_s", 1.6),
            ("cold, on the clock", cold, "wall_s", 1.0),
            ("cached, CPU", cached, "cpu_s", 0.1),
        ):
            limits = {
                "peer_seconds": floor and getattr(floor, by),
                "most_ratio": most,
                "bar": f"at most {most}",
            }
            yield median_row(f"{work}, {when}", [ours], peer, by=by, **limits)


def loaded(path: str, name: str) -> int:
    """Load a table."""
    return len(getattr(load(path), name))


def pandas_rows(path: str, some: str) -> int:
    """Load so many kernels with pandas."""
    with closing(sqlite3.connect(path)) as database:
        return len(pd.read_sql(f"{_query()} LIMIT {some}", database))


def _query() -> str:
    """Return the query for the columns that the reader asks for, before it combines any."""
    asked = sources.asked(tables.kernel_map(tables.Ordinals({}, {})))
    return f"SELECT {', '.join(sources.stored(asked))} FROM {tables.KERNEL}"


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


def _looped(loop: Path, path: Path, query: str) -> fresh.Measured:
    """Return what the loop took for all rows of a query's table."""
    with closing(sqlite3.connect(path)) as database:
        ((rows,),) = database.execute(f"SELECT count(*) FROM {query.rpartition(' ')[2]}")
    done = fresh.command([loop, path, query, str(rows)])
    if int(done.answer.split()[0]) != rows:
        raise RuntimeError(f"{path}: the loop read {done.answer.split()[0]} rows, not {rows}")
    return done


def launch_rows(kernels: int) -> Iterator[Row]:
    """Measure launch statistics from the file; yields the row of the table."""
    path = captures.made(min(kernels, LAUNCHED))
    with tempfile.TemporaryDirectory(dir=captures.FOLDER) as folder:
        copy = Path(shutil.copy(path, folder))
        ours, theirs = [], []
        for _ in range(3):
            ours.append(
                fresh.command([sys.executable, "-c", SUMMARY, path], env={"PERFKIT_CACHE": "off"})
            )
            theirs += _vendor(copy)
    name = theirs[0][0] if theirs else "nsys stats: no nsys on PATH"
    peer_s = median(seconds for _, seconds in theirs) if theirs else None
    work = f"launch statistics, {min(kernels, LAUNCHED):,} kernels, from the file"
    yield median_row(work, ours, name, peer_seconds=peer_s, most_ratio=1 / 50, bar="under 1/50")


def _vendor(path: Path) -> list[tuple[str, float]]:
    """Return the vendor's program and its seconds; empty if there is none."""
    program = shutil.which("nsys")
    if not program:
        return []
    version = fresh.command([program, "--version"]).answer.split()[-1].split("-")[0]
    report = "cuda_kern_exec_sum" if int(version.split(".")[0]) >= 2023 else "kernexecsum"
    stats = [program, *f"stats --quiet --report {report} --format csv --output -".split(), path]
    return [(f"nsys {version} stats -r {report}", fresh.command(stats).wall_s)]
