"""`perfkit ingest` of many ranks: cost of a rank from ten to a hundred, two workers against one, a second question."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import perfkit
from tests.bench import fresh, traces
from tests.bench.captures import FOLDER
from tests.bench.table import Row

FEW, MANY = 4, 16  # ranks of 109 thousand events each
MOST_BYTES = 1.5e9


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the rows of the table."""
    if not traces.profiles():
        yield Row("ingest of ranks", None, "PERFKIT_PROFILES names no folder of real captures", None)
        return
    many = max(FEW, min(MANY, kernels // 100_000))
    of_few, of_many = (traces.ranks(traces.OF_SIXTEEN, count)[0] for count in (FEW, many))
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        few, one, two = (
            _ingested(files, Path(made, f"{number}"), workers)
            for number, (files, workers) in enumerate([(of_few, 1), (of_many, 1), (of_many, 2)])
        )
        second = fresh.call(kernels_count, Path(made, "2"))
    work = f"perfkit ingest, {many} ranks"
    yield Row(f"{work}, CPU per rank", one.cpu_s / many, f"{FEW} ranks", few.cpu_s / FEW, 1.1, bar="constant: 1.1")
    yield Row(
        f"{work}, two workers",
        two.wall_s,
        "one worker",
        one.wall_s,
        most_ratio=1 / 1.8,
        most_bytes=MOST_BYTES,
        bar="1/1.8, 1.5 GB",
        peak_bytes=two.peak_bytes,
    )
    yield Row(f"{work}, a second question", second.wall_s, "none", None, most_seconds=3.0, bar="under 3 s")


def _ingested(files: Path, out: Path, workers: int) -> fresh.Measured:
    program = [sys.executable, "-c", "from perfkit.cli import main; main()", "ingest", files, "--out", out]
    return fresh.family([*program, "--workers", str(workers)], env={"PERFKIT_CACHE": "off"})


def kernels_count(path: str) -> int:
    """Return the number of kernels of all ranks."""
    return int(perfkit.load(path).reduced.by_device()["kernels_count"].sum())
