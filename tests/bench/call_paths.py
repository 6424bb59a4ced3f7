"""Loading HPCToolkit databases, all tables: a real one of a CPU run, and a large simulated one.

Cold includes writing the cache.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import perfkit
from make import hpctoolkit
from tests.bench import fresh, traces
from tests.bench.captures import FOLDER
from tests.bench.table import Row

TIMES = 3
REAL = "hpctoolkit-dlrm-cpu-database"
CONTEXTS = 1_000_000


def real_rows(kernels: int) -> Iterator[Row]:
    """Measure the real database; yields the row of the table."""
    folder = traces.profiles()
    if not folder:
        yield Row(REAL, None, "PERFKIT_PROFILES names no folder of real captures", None, bar="under 1 s")
        return
    path = folder / "hpctoolkit" / REAL
    yield _row("HPCToolkit database of DLRM on the CPU", path, TIMES, most_seconds=1.0, bar="under 1 s")


def made_rows(kernels: int) -> Iterator[Row]:
    """Measure a simulated database; yields the row of the table."""
    contexts = min(kernels, CONTEXTS)
    path = FOLDER / f"contexts-{contexts}"
    shutil.rmtree(path, ignore_errors=True)
    fresh.call(make, path, contexts)
    yield _row("HPCToolkit database", path, 1, most_seconds=20.0, most_bytes=2e9, bar="under 20 s, 2 GB")


def make(path: str, contexts: str) -> None:
    """Simulate a database."""
    hpctoolkit.contexts(Path(path), contexts=int(contexts))


def counts(path: str) -> dict[str, int]:
    """Read every table; return their rows."""
    profile = perfkit.load(path).profiles[0]
    return {name: len(profile.table(name)) for name in profile.loaders}


def _row(work: str, path: Path, times: int, **bars: float | str) -> Row:
    """Measure so many times; return the row of the medians."""
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
            taken.append(fresh.call(counts, path, cache=Path(cache)))
    return Row(
        f"{work}, {taken[0].answer['CALLTREE']:,} contexts, all tables",
        median(m.wall_s for m in taken),
        "none",
        None,
        cpu_s=median(m.cpu_s for m in taken),
        peak_bytes=max(m.peak_bytes for m in taken),
        **bars,
    )
