"""Loading and summing up the kernels of many ranks: time per rank against that of one rank."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import perfkit
from perfkit import analysis
from tests.bench import captures, fresh
from tests.bench.table import Row

TIMES = 3
RANKS = 16
KERNELS = 50_000


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the row of the table."""
    each = min(kernels, KERNELS)
    folder = captures.ranks(RANKS, each)
    many, one = [], []
    for _ in range(TIMES):
        many.append(_measured(folder))
        one.append(_measured(folder / "rank_0.sqlite"))
    yield Row(
        f"{RANKS} ranks of {each:,} kernels, load and kernels.summary, per rank",
        median(m.wall_s for m in many) / RANKS,
        "perfkit on one rank",
        median(m.wall_s for m in one),
        most_ratio=1.1,
        bar="linear: at most 1.1",
        peak_bytes=max(m.peak_bytes for m in many),
    )


def kernel_summary(path: str) -> int:
    """Load the kernels and sum them up."""
    return len(analysis.kernels.summary(perfkit.load(path).kernels))


def _measured(path: Path) -> fresh.Measured:
    with tempfile.TemporaryDirectory(dir=captures.FOLDER) as cache:
        return fresh.call(kernel_summary, path, cache=Path(cache))
