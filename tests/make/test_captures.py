"""Captures of any size."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make import Shape, capture
from perfkit.simulate import export
from perfkit.simulate.export import STATEMENTS, TABLES

Connect = Callable[[Path], sqlite3.Connection]
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
HOSTILE = ("<script>alert(1)</script>", "x" * 10_000, "\N{GREEK SMALL LETTER LAMDA} \N{CHECK MARK} 'quoted' \"twice\"")

SHAPES = {
    "plain": Shape(),
    "two GPUs in one process": Shape(gpus=2),
    "two processes on one GPU": Shape(processes=2),
    "three processes on two GPUs": Shape(gpus=2, processes=3),
    "three streams": Shape(streams=3),
    "graph": Shape(graph=True),
    "NCCL": Shape(nccl=True),
    "NCCL in a graph on two streams": Shape(nccl=True, graph=True, streams=2),
    "long steps": Shape(kernels_per_step=100),
    "no calls": Shape(calls=False),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_truth_is_what_a_loop_over_the_rows_counts(
    tmp_path: Path, shape: Shape, count_rows: Callable[[Path], dict[str, Any]]
) -> None:
    """Counts, sums, busy time, breakdown, calls and queueing in the truth are those of the rows."""
    truth = capture(tmp_path / "c.sqlite", kernels=1001, shape=shape)
    found = count_rows(tmp_path / "c.sqlite")
    assert 1001 == found["kernels"]["count"]
    assert found["kernels"] == truth["kernels"]
    names = ("count", "total_ns", "median_ns", "min_ns", "max_ns")
    assert found["kernel_rows"] == {r["full_name"]: tuple(r[n] for n in names) for r in truth["kernel_rows"]}
    assert found["calls"] == truth["calls"]
    assert found["queued_total_ns"] == truth["launches"].get("queued_total_ns", 0)
    assert found["gpus"].keys() == truth["gpus"].keys()
    for number, gpu in truth["gpus"].items():
        expected = gpu["breakdown"] | {name: gpu[name] for name in ("kernel_busy_ns", "span_ns")}
        assert {name: found["gpus"][number].get(name, 0) for name in expected} == expected
        assert sum(gpu["breakdown"].values()) == gpu["span_ns"]


def test_processes_use_the_same_correlation_ids(tmp_path: Path, connect: Connect) -> None:
    """Ids are unique among a process's calls and are used again by the other process."""
    capture(tmp_path / "c.sqlite", kernels=400, shape=Shape(gpus=2, processes=2))
    query = "SELECT globalTid >> 24 & 0xFFFFFF, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    calls = connect(tmp_path / "c.sqlite").execute(query).fetchall()
    first, second = ({id for process, id in calls if process == wanted} for wanted in (40_000, 41_000))
    assert len(calls) == len(set(calls))
    assert first == second


def test_workers_of_a_process_share_its_ids_and_not_its_threads(tmp_path: Path, connect: Connect) -> None:
    """One process on two GPUs has unique ids and four threads."""
    capture(tmp_path / "c.sqlite", kernels=400, shape=Shape(gpus=2))
    query = "SELECT count(*), count(DISTINCT correlationId), count(DISTINCT globalTid) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    calls, ids, threads = connect(tmp_path / "c.sqlite").execute(query).fetchone()
    assert (calls, 4) == (ids, threads)


def test_kernels_of_a_graph_share_their_launch(tmp_path: Path, connect: Connect) -> None:
    """100 kernels in steps of 28 are four launches of 28, 28, 28 and 16 nodes, each node with an id."""
    truth = capture(tmp_path / "c.sqlite", kernels=100, shape=Shape(graph=True))
    query = f"SELECT count(*), count(DISTINCT graphNodeId) FROM {KERNEL} GROUP BY correlationId ORDER BY correlationId"
    assert [(28, 28), (28, 28), (28, 28), (16, 16)] == connect(tmp_path / "c.sqlite").execute(query).fetchall()
    assert 4 == truth["launches"]["count"]


def test_kernels_outside_graphs_have_no_node(tmp_path: Path, connect: Connect) -> None:
    """graphNodeId is NULL where nothing was replayed."""
    capture(tmp_path / "c.sqlite", kernels=100)
    query = f"SELECT count(*) FROM {KERNEL} WHERE graphNodeId IS NOT NULL"
    assert (0,) == connect(tmp_path / "c.sqlite").execute(query).fetchone()


def test_streams_overlap_and_one_does_not(tmp_path: Path) -> None:
    """Kernels on one stream are busy as long as they take, on three streams for a shorter time."""
    one, three = (capture(tmp_path / "c.sqlite", kernels=1000, shape=Shape(streams=n)) for n in (1, 3))
    assert one["kernels"]["total_ns"] == one["gpus"]["0"]["kernel_busy_ns"]
    assert three["kernels"]["total_ns"] > three["gpus"]["0"]["kernel_busy_ns"]


def test_nccl_is_partly_hidden(tmp_path: Path) -> None:
    """Some of the communication runs beside computation and some does not."""
    gpu = capture(tmp_path / "c.sqlite", kernels=1000, shape=Shape(nccl=True))["gpus"]["0"]
    assert 0 < gpu["breakdown"]["exposed_communication_ns"] < gpu["communication_ns"]


def test_hostile_names_arrive_unchanged(tmp_path: Path, connect: Connect) -> None:
    """Markup, 10,000 characters and letters beyond ASCII are names of kernels and of ranges."""
    capture(tmp_path / "c.sqlite", kernels=10, shape=Shape(hostile_names=HOSTILE))
    db = connect(tmp_path / "c.sqlite")
    kernels = {name for (name,) in db.execute(f"SELECT value FROM {KERNEL} JOIN StringIds ON id = demangledName")}
    ranges = {name for (name,) in db.execute("SELECT text FROM NVTX_EVENTS")}
    assert set(HOSTILE) <= kernels
    assert set(HOSTILE) <= ranges


@pytest.mark.parametrize(
    ("shape", "gone"),
    [
        (Shape(nvtx=False), {"NVTX_EVENTS"}),
        (Shape(calls=False), {"CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"}),
        (Shape(metrics=False), {"GPU_METRICS", "TARGET_INFO_GPU_METRICS"}),
        (
            Shape(target_info=False),
            {"TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_CUDA_CONTEXT_INFO"},
        ),
    ],
    ids=["nvtx", "calls", "metrics", "target info"],
)
def test_what_was_not_recorded_has_no_table(tmp_path: Path, connect: Connect, shape: Shape, gone: set[str]) -> None:
    """A capture without an option lacks the tables of that option and no others."""
    tables = []
    for number, each in enumerate((Shape(), shape)):
        capture(tmp_path / f"{number}.sqlite", kernels=50, shape=each)
        db = connect(tmp_path / f"{number}.sqlite")
        tables.append({name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")})
    assert gone == tables[0] - tables[1]


def test_open_range_has_no_end(tmp_path: Path, connect: Connect) -> None:
    """One range per process was never closed."""
    capture(tmp_path / "c.sqlite", kernels=100, shape=Shape(processes=2, open_ranges=True))
    query = "SELECT text, count(*) FROM NVTX_EVENTS WHERE end IS NULL GROUP BY text"
    assert [("never closed", 2)] == connect(tmp_path / "c.sqlite").execute(query).fetchall()


def test_samples_of_the_truth_are_those_written(tmp_path: Path, connect: Connect) -> None:
    """The truth's mean of a metric on the second GPU is the mean of its rows."""
    truth = capture(tmp_path / "c.sqlite", kernels=2000, shape=Shape(gpus=2))
    query = (
        "SELECT avg(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
        "WHERE metricName = 'GR Active [Throughput %]' AND typeId & 255 = 1"
    )
    (mean,) = connect(tmp_path / "c.sqlite").execute(query).fetchone()
    assert pytest.approx(mean) == truth["samples"]["1"]["GR Active [Throughput %]"]


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    """The file depends on number, seed and shape alone."""
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        capture(tmp_path / name, kernels=300, seed=seed, shape=Shape(gpus=2, nccl=True))
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_steps_are_written_in_bunches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    """Steps of three bunches have numbers 0 to 9 and do not overlap."""
    monkeypatch.setattr("make.captures.STEPS_AT_ONCE", 4)
    truth = capture(tmp_path / "c.sqlite", kernels=280)
    query = "SELECT text, start, end FROM NVTX_EVENTS WHERE text LIKE 'step %' ORDER BY start"
    steps = connect(tmp_path / "c.sqlite").execute(query).fetchall()
    assert [f"step {i}" for i in range(10)] == [text for text, _, _ in steps]
    assert all(before[2] == after[1] for before, after in pairwise(steps))
    assert {"count": 10, "total_ns": sum(end - start for _, start, end in steps)}.items() <= truth["steps"].items()


def test_too_few_kernels_raise(tmp_path: Path) -> None:
    """Every worker launches at least one kernel; nothing is written otherwise."""
    with pytest.raises(ValueError, match="kernels: 1 is not 2, the number of workers, or more"):
        capture(tmp_path / "c.sqlite", kernels=1, shape=Shape(gpus=2))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["gpus", "processes", "streams", "kernels_per_step"])
def test_impossible_shape_raises(name: str) -> None:
    """Numbers in a shape are 1 or more."""
    with pytest.raises(ValueError, match=f"{name}: 0 is not 1 or more"):
        Shape(**{name: 0})


REAL = "nsys/openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite"


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str, int]]:
    return [(name, kind, required) for _, name, kind, required, *_ in db.execute(f"PRAGMA table_info({table})")]


def test_columns_are_those_of_a_real_export(profiles: Path) -> None:
    """Every table has the columns, types and constraints that the vendor's schema 3.7.2 gives it, in order."""
    real = sqlite3.connect(f"file:{profiles / REAL}?mode=ro&immutable=1", uri=True)
    made = sqlite3.connect(":memory:")
    for table, statement in TABLES.items():
        made.execute(statement)
        assert _columns(real, table) == _columns(made, table), table
    real.close()
    made.close()


def test_codes_are_those_of_a_real_export(profiles: Path) -> None:
    """Every code means what it means in a real export."""
    real = sqlite3.connect(f"file:{profiles / REAL}?mode=ro&immutable=1", uri=True)
    made = sqlite3.connect(":memory:")
    made.executescript(";".join(STATEMENTS))
    for table in (name for name in TABLES if name.startswith("ENUM_")):
        codes = f"SELECT id, name, label FROM {table}"
        assert made.execute(codes).fetchone(), table
        assert set(made.execute(codes)) <= set(real.execute(codes)), table
    real.close()
    made.close()


def test_file_of_an_error_does_not_appear(tmp_path: Path) -> None:
    """An error while writing leaves the old file as it was, and nothing else."""
    path = tmp_path / "capture.sqlite"
    path.write_text("old")
    with pytest.raises(sqlite3.OperationalError, match="no column named colour"), export.writing(path) as db:
        db.append("PROCESSES", colour=["red"])
    assert [("capture.sqlite", "old")] == [(p.name, p.read_text()) for p in tmp_path.iterdir()]


def test_rows_and_strings_arrive(tmp_path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
    """Columns of one number and of one value per row, over several batches, end up in the rows."""
    path = tmp_path / "capture.sqlite"
    count = export.ROWS_AT_ONCE + 2
    with export.writing(path) as db:
        text = db.string("step")
        db.append("ThreadNames", nameId=text, priority=np.arange(count), globalTid=7)
        db.append("PROCESSES", globalPid=1, pid=np.zeros(0, np.int64), name=[])
    made = connect(path)
    expected = (count, count * (count - 1) // 2, 7)
    assert expected == made.execute("SELECT count(*), sum(priority), max(globalTid) FROM ThreadNames").fetchone()
    assert [("step",)] == made.execute("SELECT value FROM StringIds WHERE id = ?", (text,)).fetchall()
    assert [] == made.execute("SELECT * FROM sqlite_master WHERE name = 'PROCESSES'").fetchall()


def test_global_ids_decompose(tmp_path: Path) -> None:
    """The process is in bits 24..47 and the thread in bits 0..23, as the vendor packs them."""
    packed = export.global_id(3_799_129, 3_799_190)
    assert (3_799_129, 3_799_190) == (packed >> 24 & 0xFFFFFF, packed & 0xFFFFFF)
    assert packed & ~0xFFFFFF == export.global_id(3_799_129)
