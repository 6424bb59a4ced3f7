"""Samples and captures of any size: data/ is what its maker writes, and a truth is what the rows amount to."""

import gzip
import json
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from make import SAMPLES, Shape, capture
from make.simulate import export

DATA = Path(__file__).parents[2] / "data"
MOST_BYTES = 5_000_000  # of a sample
# Captures of Nsight Systems, and where the truth of each stands in the sample's.
CAPTURES = {
    "bert_a100/bert_a100": "",
    "bert_a100_optimised/bert_a100_optimised": "",
    "mlp_a100/mlp_a100": "",
    "resnet18_a100/resnet18_a100": "",
    "resnet18_a100/inference/resnet18_a100.inference": "inference",
}
Connect = Callable[[Path], sqlite3.Connection]
Truth = Callable[[str], dict[str, Any]]
SHAPES = {
    "two processes on one GPU": Shape(processes=2),
    "three processes on two GPUs": Shape(gpus=2, processes=3),
    "NCCL in a graph on two streams": Shape(nccl=True, graph=True, streams=2),
    "no calls": Shape(calls=False),
}
CALLS = "SELECT r.globalTid, correlationId, start, end, value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s "
CALLS += "ON s.id = nameId"


def files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def rows(db: sqlite3.Connection) -> list[Any]:
    tables = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return [(name, made, db.execute(f'SELECT * FROM "{name}"').fetchall()) for name, made in tables]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_run_under_data_is_what_is_written(tmp_path: Path, connect: Connect, name: str) -> None:
    """Byte by byte or, of a database and of what is compressed, row by row; other files in the folder stay."""
    (tmp_path / "other.csv").write_text("x")
    folder, held = SAMPLES[name](tmp_path), DATA / name
    assert sorted([Path("other.csv"), *files(held)]) == files(folder)
    for file in files(held):
        both = [each / file for each in (held, folder)]
        if file.suffix == ".sqlite":
            first, second = (rows(connect(path)) for path in both)
        else:
            first, second = (
                gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()
                for p in both
            )
        assert first == second, file
    assert sum((held / file).stat().st_size for file in files(held)) < MOST_BYTES


@pytest.mark.parametrize("name", SAMPLES)
def test_it_says_that_it_is_simulated(truth_of: Truth, connect: Connect, name: str) -> None:
    label = truth_of(name)["simulated"]
    assert "no GPU ran" in label
    for file in (DATA / name / file for file in files(DATA / name)):
        if file.suffix == ".sqlite":
            query = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'SIMULATED'"
            assert [(label,)] == connect(file).execute(query).fetchall()
        elif file.suffix == ".csv":
            assert label in file.read_text().splitlines()[0]
        elif file.suffix == ".gz":
            assert label == json.loads(gzip.decompress(file.read_bytes()))["SIMULATED"]


@pytest.mark.parametrize(("name", "part"), CAPTURES.items())
def test_truth_of_a_sample_is_what_a_loop_over_the_rows_counts(
    connect: Connect, truth_of: Truth, name: str, part: str
) -> None:
    told = truth_of(name.partition("/")[0])
    check(connect(DATA / f"{name}.nsys.sqlite"), told[part] if part else told)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_truth_of_a_capture_is_what_a_loop_over_the_rows_counts(
    connect: Connect, tmp_path: Path, shape: Shape
) -> None:
    truth = capture(tmp_path / "c.sqlite", kernels=1001, shape=shape)
    assert 1001 == truth["kernels"]["count"]
    check(connect(tmp_path / "c.sqlite"), truth)


def test_file_of_an_error_does_not_appear(tmp_path: Path) -> None:
    """An error while writing leaves the old file as it was, and nothing else."""
    path = tmp_path / "capture.sqlite"
    path.write_text("old")
    with (
        pytest.raises(sqlite3.OperationalError, match="no column named colour"),
        export.writing(path) as db,
    ):
        db.append("PROCESSES", colour=["red"])
    assert [("capture.sqlite", "old")] == [(p.name, p.read_text()) for p in tmp_path.iterdir()]


def check(db: sqlite3.Connection, truth: dict[str, Any]) -> None:
    """Count what the rows of a file amount to, row by row, and compare the truth with it."""
    have = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    strings = dict(db.execute("SELECT id, value FROM StringIds"))
    calls = list(db.execute(CALLS)) if "CUPTI_ACTIVITY_KIND_RUNTIME" in have else []
    columns = "start, end, deviceId, demangledName, globalPid, correlationId, graphNodeId"
    kernels = list(db.execute(f"SELECT {columns} FROM CUPTI_ACTIVITY_KIND_KERNEL"))
    total, in_graph = (
        sum(row[1] - row[0] for row in kernels),
        sum(row[6] is not None for row in kernels),
    )
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


def _by_name(
    kernels: list[tuple[Any, ...]], strings: dict[int, str]
) -> dict[str, tuple[float, ...]]:
    durations = defaultdict(list)
    for start, end, _, name, *_ in kernels:
        durations[strings[name]].append(end - start)
    return {
        name: (len(d), sum(d), statistics.median(d), min(d), max(d))
        for name, d in durations.items()
    }


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
        work[gpu].append(
            (start, end, "communication" if "nccl" in strings[name].lower() else "kernel")
        )
    for kind in ("MEMCPY", "MEMSET"):
        if f"CUPTI_ACTIVITY_KIND_{kind}" in have:
            for start, end, gpu in db.execute(
                f"SELECT start, end, deviceId FROM CUPTI_ACTIVITY_KIND_{kind}"
            ):
                work[gpu].append((start, end, kind.lower()))
    return {str(gpu): _walk(rows) for gpu, rows in work.items()}


def _walk(work: list[tuple[int, int, str]]) -> dict[str, int]:
    """Walk along time from edge to edge and book each stretch on what runs there."""
    edges = sorted(
        [(start, 1, kind) for start, _, kind in work] + [(end, -1, kind) for _, end, kind in work]
    )
    running: dict[str, int] = defaultdict(int)
    booked: dict[str, int] = defaultdict(int)
    before = edges[0][0]
    for at, change, kind in edges:
        computing = running["kernel"] > 0 or running["memset"] > 0
        booked["kernel_busy_ns"] += (at - before) * (
            running["kernel"] > 0 or running["communication"] > 0
        )
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
