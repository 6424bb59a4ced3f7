"""Reading other formats: PyTorch traces, HPCToolkit databases, logs of ``nvidia-smi dmon``; cold writes the cache too.

The peer of a trace is Holistic Trace Analysis, which PyPI has as ``traceinsight``. It may want other versions of
pandas, so that it has an environment of its own, whose Python PERFKIT_BENCH_HTA names. The peer of a log is
pandas.read_csv, which gives the words of each row as they are; the reader also brings them to the units of their
metrics and the log into the order of SAMPLES. Neither starting Python nor importing counts on any side.
"""

import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

import perfkit
from make import hpctoolkit
from perfkit.logs import nvidia_smi
from tests.bench import captures, fresh
from tests.bench.captures import FOLDER
from tests.bench.table import Row, median_row

TIMES = 3
EVENTS, KERNELS = (
    2_200_000,
    4350,
)  # of the largest trace; kernels in one repetition, as its truth.json says
STACKS = "TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz"
DATABASE, CONTEXTS = "hpctoolkit-dlrm-cpu-database", 1_000_000
LINES, GPUS, SCREEN = 1_000_000, 8, 160  # of the log; after SCREEN rows the header comes again
# Columns of `-s pucvmet`, their units, and below what their values lie.
COLUMNS = {
    name: (unit, int(most))
    for name, unit, most in re.findall(
        r"(\w+):(\S+):(\d+)",
        "pwr:W:700 gtemp:C:80 mtemp:C:80 sm:%:101 mem:%:101 enc:%:1 dec:%:1 jpg:%:1 ofa:%:1 mclk:MHz:2 pclk:MHz:1980 "
        "pviol:%:101 tviol:bool:2 fb:MB:80000 bar1:MB:4000 ccpm:MB:1 sbecc:errs:1 dbecc:errs:1 pci:errs:1 "
        "rxpci:MB/s:50000 txpci:MB/s:50000",
    )
}
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


def counts(path: str) -> dict[str, int]:
    """Read every table but Python's functions, which are read when asked for; return their rows."""
    profile = perfkit.load(path).profiles[0]
    return {name: len(profile.table(name)) for name in profile.loaders if name != "PYTHON_CALLS"}


def _cold(path: Path, times: int) -> list[fresh.Measured]:
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
            taken.append(fresh.call(counts, path, cache=Path(cache)))
    return taken


def trace_rows(kernels: int) -> Iterator[Row]:
    """Measure a trace of two million events; yields the rows of the table."""
    if not captures.profiles():
        yield Row("Kineto .json.gz", None, captures.NONE, None)
        return
    path, events, times = captures.repeated(captures.ONE_RANK, min(kernels, EVENTS))
    with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
        cold, *cached = [fresh.call(counts, path, cache=Path(cache)) for _ in range(1 + TIMES)]
    if {times * KERNELS} != {m.answer["KERNELS"] for m in (cold, *cached)}:
        raise RuntimeError(
            f"{path}: {cold.answer['KERNELS']} kernels were read, not {times * KERNELS}"
        )
    peer, peer_s = _hta(path)
    work = f"Kineto .json.gz, {events:,} events, all tables"
    bars = {"most_ratio": 0.5, "most_bytes": 1e9, "bar": "under 1/2, 1 GB"}
    yield median_row(f"{work}, CPU", [cold], peer, by="cpu_s", peer_seconds=peer_s, **bars)
    yield median_row(f"{work}, cached", cached, most_seconds=1.0, bar="under 1 s")
    yield _stacks()


def _stacks() -> Row:
    """Measure a trace of which most events are functions of Python, against the same without them."""
    trace = json.loads(
        gzip.decompress((captures.profiles() or Path()).joinpath("torch", STACKS).read_bytes())
    )
    events, taken = trace["traceEvents"], []
    others = [event for event in events if event.get("cat") != "python_function"]
    for kept in (events, others):
        (path := FOLDER / "stacks.pt.trace.json.gz").write_bytes(
            gzip.compress(json.dumps({**trace, "traceEvents": kept}).encode(), compresslevel=1)
        )
        taken.append(_cold(path, TIMES))
    ours, bare = taken
    work = f"PyTorch trace with stacks, {len(events):,} events, {len(others):,} of them no functions of Python, CPU"
    limits = {
        "peer_seconds": median(m.cpu_s for m in bare),
        "most_ratio": 1.2,
        "bar": "at most 1.2",
    }
    return median_row(work, ours, "the same without functions", by="cpu_s", **limits)


def _hta(path: Path) -> tuple[str, float | None]:
    """Return the peer's name with its memory, and its CPU seconds, None if there is none."""
    python = os.environ.get(HTA)
    if not python:
        return f"HTA: {HTA} names no Python that has traceinsight", None
    done = fresh.command([python, "-c", LOAD, path])
    version, cpu_s = json.loads(done.answer.splitlines()[-1])
    return f"HTA {version}, {done.peak_bytes / 1e9:.2g} GB", cpu_s


def database_rows(kernels: int) -> Iterator[Row]:
    """Measure a real database of a CPU run; yields the row of the table."""
    if not (folder := captures.profiles()):
        yield Row(DATABASE, None, captures.NONE, None)
        return
    taken = _cold(folder / "hpctoolkit" / DATABASE, TIMES)
    work = f"HPCToolkit database of DLRM on the CPU, {taken[0].answer['CALLTREE']:,} contexts, all tables"
    yield median_row(work, taken, most_seconds=1.0, bar="under 1 s")


def context_rows(kernels: int) -> Iterator[Row]:
    """Measure a simulated database; yields the row of the table."""
    shutil.rmtree(path := FOLDER / f"contexts-{min(kernels, CONTEXTS)}", ignore_errors=True)
    fresh.call(make, path, min(kernels, CONTEXTS))
    taken = _cold(path, 1)
    work = f"HPCToolkit database, {taken[0].answer['CALLTREE']:,} contexts, all tables"
    yield median_row(work, taken, most_seconds=20.0, most_bytes=2e9, bar="under 20 s, 2 GB")


def make(path: str, contexts: str) -> None:
    """Simulate a database."""
    hpctoolkit.contexts(Path(path), contexts=int(contexts))


def log_rows(kernels: int) -> Iterator[Row]:
    """Measure a log with every column, time stamps and eight GPUs; yields the row of the table."""
    lines = min(kernels, LINES)
    fresh.call(write_log, path := FOLDER / f"dmon-{lines}.log", lines)
    ours, peer = (
        [fresh.call(read, path) for _ in range(TIMES)] for read in (sample_rows, pandas_rows)
    )
    measured = len(COLUMNS) - 1  # ccpm is no metric
    if {lines * measured} != {m.answer for m in ours} or {lines} != {m.answer for m in peer}:
        raise RuntimeError(
            f"{path}: {ours[0].answer} samples of {peer[0].answer} rows were read, not of {lines}"
        )
    work, peer_s = (
        f"nvidia-smi dmon, {lines:,} lines, {len(COLUMNS)} columns",
        median(m.wall_s for m in peer),
    )
    yield median_row(
        work, ours, "pandas.read_csv", peer_seconds=peer_s, most_seconds=3.0, bar="under 3 s"
    )


def write_log(path: str, count: str) -> None:
    """Write a log of so many rows."""
    lines = int(count)
    random = np.random.default_rng(0)
    values = [random.integers(0, most, lines).tolist() for _, most in COLUMNS.values()]
    names, units = (
        " ".join(f"{word:>6}" for word in words)
        for words in (COLUMNS, [u for u, _ in COLUMNS.values()])
    )
    header = f"#Date       Time        gpu {names} \n#YYYYMMDD   HH:MM:SS    Idx {units} \n"
    row = " %s   %s   %4d " + "%6d " * len(COLUMNS) + "\n"
    seconds = pd.date_range("2026-01-01", periods=lines // GPUS + 1, freq="s")
    days, clocks = seconds.strftime("%Y%m%d").tolist(), seconds.strftime("%H:%M:%S").tolist()
    with Path(path).open("w", encoding="ascii") as file:
        for i, of_row in enumerate(zip(*values, strict=True)):
            file.write(header if i % SCREEN == 0 else "")
            file.write(row % (days[i // GPUS], clocks[i // GPUS], i % GPUS, *of_row))


def sample_rows(path: str) -> int:
    """Read the log."""
    return len(nvidia_smi.read(Path(path)).table("SAMPLES"))


def pandas_rows(path: str) -> int:
    """Read the log with pandas."""
    return len(pd.read_csv(path, sep=r"\s+", comment="#", header=None))
