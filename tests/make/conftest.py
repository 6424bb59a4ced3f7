"""The committed samples, and a count of a file's rows by plain loops."""

import json
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "data"
CALLS = "SELECT r.globalTid, correlationId, start, end, value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s "
CALLS += "ON s.id = nameId"


@pytest.fixture(scope="session")
def truth_of() -> Callable[[str], dict[str, Any]]:
    return lambda name: json.loads((DATA / name / f"{name}.truth.json").read_text())


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
def check_truth(connect: Callable[[Path], sqlite3.Connection]) -> Callable[[Path, dict[str, Any]], None]:
    """Count what the rows of a file amount to, row by row, and compare the truth with it."""

    def check(path: Path, truth: dict[str, Any]) -> None:
        db = connect(path)
        have = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        strings = dict(db.execute("SELECT id, value FROM StringIds"))
        calls = list(db.execute(CALLS)) if "CUPTI_ACTIVITY_KIND_RUNTIME" in have else []
        columns = "start, end, deviceId, demangledName, globalPid, correlationId, graphNodeId"
        kernels = list(db.execute(f"SELECT {columns} FROM CUPTI_ACTIVITY_KIND_KERNEL"))
        total, in_graph = sum(row[1] - row[0] for row in kernels), sum(row[6] is not None for row in kernels)
        assert {"count": len(kernels), "total_ns": total, "in_graph": in_graph} == truth["kernels"]
        names = ("count", "total_ns", "median_ns", "min_ns", "max_ns")
        told = {row["full_name"]: tuple(row[name] for name in names) for row in truth["kernel_rows"]}
        assert _by_name(kernels, strings) == told
        assert _calls(calls) == truth["calls"]
        ends = {(thread & ~0xFFFFFF, correlation): end for thread, correlation, _, end, _ in calls}
        queued = sum(row[0] - ends[row[4], row[5]] for row in kernels) if calls else 0
        assert queued == truth["launches"].get("queued_total_ns", 0)
        found = _gpus(db, kernels, strings, have)
        assert found.keys() == truth["gpus"].keys()
        for number, gpu in truth["gpus"].items():
            expected = gpu["breakdown"] | {name: gpu[name] for name in ("kernel_busy_ns", "span_ns")}
            assert {name: found[number].get(name, 0) for name in expected} == expected
            assert sum(gpu["breakdown"].values()) == gpu["span_ns"]

    return check


def _by_name(kernels: list[tuple[Any, ...]], strings: dict[int, str]) -> dict[str, tuple[float, ...]]:
    durations = defaultdict(list)
    for start, end, _, name, *_ in kernels:
        durations[strings[name]].append(end - start)
    return {name: (len(d), sum(d), statistics.median(d), min(d), max(d)) for name, d in durations.items()}


def _calls(calls: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    durations = defaultdict(list)
    for _, _, start, end, name in calls:
        durations[name].append(end - start)
    return {name: {"count": len(d), "total_ns": sum(d)} for name, d in durations.items()}


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
