"""`perfkit report` on the PyTorch traces of sixteen ranks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench import fresh, traces
from tests.bench.captures import FOLDER
from tests.bench.table import Row

RANKS = 16
MOST_S = 120.0
MOST_BYTES = 2e9


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the row of the table. A trace has 109 thousand events; fewer make fewer ranks."""
    bar = f"under {MOST_S:.0f} s, {MOST_BYTES / 1e9:.0f} GB"
    if not traces.profiles():
        yield Row("report of ranks", None, "PERFKIT_PROFILES names no folder of real captures", None, bar=bar)
        return
    path, events = traces.ranks(traces.OF_SIXTEEN, max(2, min(RANKS, kernels // 100_000)))
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        program = [sys.executable, "-c", "from perfkit.cli import main; main()"]
        env = {"PERFKIT_CACHE": str(Path(made, "cache"))}
        done = fresh.family([*program, "report", path, "--out", Path(made, "report")], env=env)
    yield Row(
        f"perfkit report, {len(list(path.iterdir()))} ranks of {events:,} events",
        done.wall_s,
        "none",
        None,
        most_seconds=MOST_S,
        most_bytes=MOST_BYTES,
        bar=bar,
        cpu_s=done.cpu_s,
        peak_bytes=done.peak_bytes,
    )
