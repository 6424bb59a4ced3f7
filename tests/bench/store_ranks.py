"""`perfkit ingest` of many ranks: the cost of a rank, two workers against one, a second question, files opened.

Up to 16 ranks are a real trace of 109 thousand events. Up to 1,000 are made ones of 20 thousand kernels, with a rank of
their own written into each of eight traces.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import perfkit
from make import kineto
from tests.bench import fresh, traces
from tests.bench.captures import FOLDER
from tests.bench.table import Row

THOUSAND, EVENTS, MADE = 1000, 120_000, 8
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
    yield from _compared(f"perfkit ingest, {many} ranks", FEW, many, (few, one, two, second))
    count = max(20, min(THOUSAND, kernels // 10_000))
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        of_few, of_many = (fresh.call(write, Path(made, f"of {n}"), n).answer for n in (count // 10, count))
        opened = fresh.call(open_headers, of_many)
        few, one, two = (
            _ingested(Path(files), Path(made, f"{number}"), workers)
            for number, (files, workers) in enumerate([(of_few, 1), (of_many, 1), (of_many, 2)])
        )
        second = fresh.call(kernels_count, Path(made, "2"))
    yield from _compared(f"perfkit ingest, {count} made ranks", count // 10, count, (few, one, two, second))
    yield Row(f"{count} traces opened", opened.wall_s, "none", None, most_seconds=10, bar="10 s for 1,000")


def _compared(work: str, fewer: int, many: int, measured: tuple[fresh.Measured, ...]) -> Iterator[Row]:
    few, one, two, second = measured
    yield Row(f"{work}, CPU per rank", one.cpu_s / many, f"{fewer} ranks", few.cpu_s / fewer, 1.1, bar="constant: 1.1")
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


def write(folder: str, count: str) -> str:
    """Write so many traces: those of eight ranks, with another rank in each copy."""
    kineto.ranks(Path(folder), ranks=MADE, events=EVENTS)
    texts = [gzip.decompress(Path(folder, f"rank-{rank}.pt.trace.json.gz").read_bytes()) for rank in range(MADE)]
    for rank in range(MADE, int(count)):
        text = re.sub(rb'("rank": ?)\d+', rb"\g<1>%d" % rank, texts[rank % MADE], count=1)
        Path(folder, f"rank-{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text, 1))
    return folder


def open_headers(path: str) -> int:
    """Open the files as far as their headers; return how many ranks they state."""
    return int(perfkit.load(path).headers()["rank"].nunique())


def kernels_count(path: str) -> int:
    """Return the number of kernels of all ranks."""
    return int(perfkit.load(path).reduced.by_device()["kernels_count"].sum())
