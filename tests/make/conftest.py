"""The simulated run, written once, and a count of a file's rows by plain loops."""

from __future__ import annotations

import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from make import SAMPLES

CALLS = "SELECT r.globalTid, correlationId, start, end, value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s "
CALLS += "ON s.id = nameId"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a sample by its name, written when it is first asked for."""
    return cache(lambda name: SAMPLES[name](tmp_path_factory.mktemp("samples") / name))


@pytest.fixture(scope="session")
def mlp(made: Callable[[str], Path]) -> Path:
    """The folder of the simulated training of the MLP."""
    return made("mlp_a100")


@pytest.fixture(scope="session")
def bert(made: Callable[[str], Path]) -> Path:
    """The folder of the simulated inference with BERT."""
    return made("bert_a100")


@pytest.fixture
def connect() -> Iterator[Callable[[Path], sqlite3.Connection]]:
    """Open files read-only and close them after the test."""
    opened = []

    def open_file(path: Path) -> sqlite3.Connection:
        opened.append(sqlite3.connect(f"file:{path}?mode=ro", uri=True))
        return opened[-1]

    yield open_file
    for connection in opened:
        connection.close()


@pytest.fixture
def count_rows(connect: Callable[[Path], sqlite3.Connection]) -> Callable[[Path], dict[str, Any]]:
    """Count what the rows of a file amount to, row by row."""

    def count(path: Path) -> dict[str, Any]:
        db = connect(path)
        have = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        strings = dict(db.execute("SELECT id, value FROM StringIds"))
        calls = list(db.execute(CALLS)) if "CUPTI_ACTIVITY_KIND_RUNTIME" in have else []
        kernels = list(
            db.execute(
                "SELECT start, end, deviceId, demangledName, globalPid, correlationId, graphNodeId "
                "FROM CUPTI_ACTIVITY_KIND_KERNEL"
            )
        )
        return {
            "kernels": {
                "count": len(kernels),
                "total_ns": sum(row[1] - row[0] for row in kernels),
                "in_graph": sum(row[6] is not None for row in kernels),
            },
            "kernel_rows": _by_name(kernels, strings),
            "gpus": _gpus(db, kernels, strings, have),
            "calls": _calls(calls),
            "queued_total_ns": _queued(kernels, calls),
        }

    return count


def _by_name(kernels: list[tuple[Any, ...]], strings: dict[int, str]) -> dict[str, tuple[float, ...]]:
    durations = defaultdict(list)
    for start, end, _, name, *_ in kernels:
        durations[strings[name]].append(end - start)
    return {name: (len(d), sum(d), statistics.median(d), min(d), max(d)) for name, d in durations.items()}


def _calls(calls: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for _, _, start, end, name in calls:
        sums = found.setdefault(name, {"count": 0, "total_ns": 0})
        sums["count"] += 1
        sums["total_ns"] += end - start
    return found


def _queued(kernels: list[tuple[Any, ...]], calls: list[tuple[Any, ...]]) -> int:
    ends = {(thread & ~0xFFFFFF, correlation): end for thread, correlation, _, end, _ in calls}
    return sum(row[0] - ends[row[4], row[5]] for row in kernels) if calls else 0


def _gpus(
    db: sqlite3.Connection, kernels: list[tuple[Any, ...]], strings: dict[int, str], have: set[str]
) -> dict[str, dict[str, int]]:
    work = defaultdict(list)
    for start, end, gpu, name, *_ in kernels:
        work[gpu].append((start, end, "communication" if "nccl" in strings[name].lower() else "kernel"))
    for kind in ("MEMCPY", "MEMSET"):
        if f"CUPTI_ACTIVITY_KIND_{kind}" in have:
            for start, end, gpu in db.execute(f"SELECT start, end, deviceId FROM CUPTI_ACTIVITY_KIND_{kind}"):
                work[gpu].append((start, end, kind.lower()))
    return {str(gpu): _walk(rows) for gpu, rows in work.items()}


def _walk(work: list[tuple[int, int, str]]) -> dict[str, int]:
    """Walk along time from edge to edge and book each stretch on what runs there."""
    edges = sorted([(start, 1, kind) for start, _, kind in work] + [(end, -1, kind) for _, end, kind in work])
    running: dict[str, int] = defaultdict(int)
    booked: dict[str, int] = defaultdict(int)
    before = edges[0][0]
    for at, change, kind in edges:
        computing = running["kernel"] > 0 or running["memset"] > 0
        booked["kernel_busy_ns"] += (at - before) * (running["kernel"] > 0 or running["communication"] > 0)
        if computing:
            booked["computation_ns"] += at - before
        elif running["communication"]:
            booked["exposed_communication_ns"] += at - before
        elif running["memcpy"]:
            booked["exposed_copy_ns"] += at - before
        else:
            booked["idle_ns"] += at - before
        running[kind] += change
        before = at
    return {**booked, "span_ns": edges[-1][0] - edges[0][0]}
