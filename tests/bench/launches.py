"""Launch statistics from the file, against the vendor's report of the same figures.

Both are whole programs, from their start to their end. ``nsys stats`` calls the report cuda_kern_exec_sum,
kernexecsum before 2023; it gets a copy of the capture, because it may write beside it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.bench import captures, fresh
from tests.bench.table import Row

TIMES = 3
KERNELS = 500_000
SUMMARY = """
import sys
import perfkit
from perfkit.analysis import host
run = perfkit.load(sys.argv[1])
host.latency_summary(host.latency(run.kernels, run.api_calls))
"""


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the row of the table."""
    path = captures.made(min(kernels, KERNELS))
    with tempfile.TemporaryDirectory(dir=captures.FOLDER) as folder:
        copy = Path(shutil.copy(path, folder))
        ours, theirs = [], []
        for _ in range(TIMES):
            ours.append(fresh.command([sys.executable, "-c", SUMMARY, path], env={"PERFKIT_CACHE": "off"}))
            theirs += _vendor(copy)
    name = theirs[0][0] if theirs else "nsys stats: no nsys on PATH"
    yield Row(
        f"launch statistics, {min(kernels, KERNELS):,} kernels, from the file",
        median(m.wall_s for m in ours),
        name,
        median(seconds for _, seconds in theirs) if theirs else None,
        most_ratio=1 / 50,
        bar="under 1/50",
        cpu_s=median(m.cpu_s for m in ours),
        peak_bytes=max(m.peak_bytes for m in ours),
    )


def _vendor(path: Path) -> list[tuple[str, float]]:
    """Return the vendor's program and its seconds; empty if there is none."""
    program = shutil.which("nsys")
    if not program:
        return []
    version = fresh.command([program, "--version"]).answer.split()[-1].split("-")[0]
    report = "cuda_kern_exec_sum" if int(version.split(".")[0]) >= 2023 else "kernexecsum"
    stats: list[str | Path] = [
        program,
        "stats",
        "--quiet",
        "--report",
        report,
        "--format",
        "csv",
        "--output",
        "-",
        path,
    ]
    return [(f"nsys {version} stats -r {report}", fresh.command(stats).wall_s)]
