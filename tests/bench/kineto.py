"""Reading a PyTorch trace of two million events, all its tables, cold and from the cache.

Peer: Holistic Trace Analysis, which PyPI has as ``traceinsight``. It lives in an environment of its own, because it
may want other versions of pandas; PERFKIT_BENCH_HTA names that environment's Python. Cold includes writing the cache.
The CPU time is that of reading: on neither side do starting Python and importing count.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import perfkit
from tests.bench import fresh, traces
from tests.bench.captures import FOLDER
from tests.bench.table import Row

TIMES = 3
EVENTS = 2_200_000
KERNELS = 4350  # in one repetition, as its truth.json says
HTA = "PERFKIT_BENCH_HTA"
LOAD = """
import importlib.metadata, json, resource, sys
from hta.trace_analysis import TraceAnalysis
def cpu_s():
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
began = cpu_s()
TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
print(json.dumps([importlib.metadata.version("traceinsight"), cpu_s() - began]))
"""


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the rows of the table."""
    if not traces.profiles():
        yield Row("Kineto .json.gz", None, "PERFKIT_PROFILES names no folder of real captures", None)
        return
    path, events, times = traces.repeated(traces.ONE_RANK, min(kernels, EVENTS))
    with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
        cold = fresh.call(counts, path, cache=Path(cache))
        cached = [fresh.call(counts, path, cache=Path(cache)) for _ in range(TIMES)]
    if {times * KERNELS} != {m.answer["KERNELS"] for m in (cold, *cached)}:
        raise RuntimeError(f"{path}: {cold.answer['KERNELS']} kernels were read, not {times * KERNELS}")
    peer, peer_s = _hta(path)
    work = f"Kineto .json.gz, {events:,} events, all tables"
    yield Row(
        f"{work}, CPU",
        cold.cpu_s,
        peer,
        peer_s,
        most_ratio=0.5,
        most_bytes=1e9,
        bar="under 1/2, 1 GB",
        peak_bytes=cold.peak_bytes,
    )
    yield Row(
        f"{work}, cached",
        median(m.wall_s for m in cached),
        "none",
        None,
        most_seconds=1.0,
        bar="under 1 s",
        cpu_s=median(m.cpu_s for m in cached),
        peak_bytes=max(m.peak_bytes for m in cached),
    )


def counts(path: str) -> dict[str, int]:
    """Read every table but Python's functions, which are read when asked for; return their rows."""
    profile = perfkit.load(path).profiles[0]
    return {name: len(profile.table(name)) for name in profile.loaders if name != "PYTHON_CALLS"}


def _hta(path: Path) -> tuple[str, float | None]:
    """Return the peer's name with its memory, and its CPU seconds, None if there is none."""
    python = os.environ.get(HTA)
    if not python:
        return f"HTA: {HTA} names no Python that has traceinsight", None
    done = fresh.command([python, "-c", LOAD, path])
    version, cpu_s = json.loads(done.answer.splitlines()[-1])
    return f"HTA {version}, {done.peak_bytes / 1e9:.2g} GB", cpu_s
