"""Wall seconds of `perfkit report` on a run of 10,000 kernels."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench import captures, fresh
from tests.bench.table import Row

KERNELS = 10_000
MOST_S = 30.0


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the row of the table."""
    path = captures.made(min(kernels, KERNELS))
    with tempfile.TemporaryDirectory(dir=captures.FOLDER) as folder:
        program = [sys.executable, "-c", "from perfkit.cli import main; main()"]
        env = {"PERFKIT_CACHE": str(Path(folder, "cache"))}
        done = fresh.command([*program, "report", path, "--out", Path(folder, "report")], env=env)
    work = f"perfkit report, {min(kernels, KERNELS):,} kernels"
    bar = f"under {MOST_S:.0f} s on two cores"
    yield Row(work, done.wall_s, "none", None, most_seconds=MOST_S, bar=bar, cpu_s=done.cpu_s)
