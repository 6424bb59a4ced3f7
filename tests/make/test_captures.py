"""Captures of any size, and the command that writes them and the samples."""

import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make import SAMPLES, Shape, capture
from make.__main__ import main
from make.kernels import Kernel
from make.tally import covered_until
from make.timeline import draw_durations
from perfkit.simulate import export

Connect = Callable[[Path], sqlite3.Connection]
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
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


@pytest.fixture
def made(tmp_path: Path, connect: Connect) -> Callable[..., tuple[sqlite3.Connection, dict[str, Any]]]:
    """Write a capture; return its database and its truth."""

    def write(kernels: int = 100, **shape: Any) -> tuple[sqlite3.Connection, dict[str, Any]]:
        truth = capture(tmp_path / "c.sqlite", kernels=kernels, shape=Shape(**shape))
        return connect(tmp_path / "c.sqlite"), truth

    return write


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_truth_is_what_a_loop_over_the_rows_counts(tmp_path: Path, shape: Shape, check_truth: Any) -> None:
    truth = capture(tmp_path / "c.sqlite", kernels=1001, shape=shape)
    assert 1001 == truth["kernels"]["count"]
    check_truth(tmp_path / "c.sqlite", truth)


def test_each_process_has_correlation_ids_of_its_own(made: Any) -> None:
    """Ids are unique among a process's calls, whose four threads share them, and used again by another process."""
    db, _ = made(400, gpus=2, processes=2)
    calls = db.execute(f"SELECT globalTid >> 24 & 0xFFFFFF, correlationId FROM {RUNTIME}").fetchall()
    first, second = ({id for process, id in calls if process == wanted} for wanted in (40_000, 41_000))
    assert len(calls) == len(set(calls))
    assert first == second
    query = f"SELECT count(*) - count(DISTINCT correlationId), count(DISTINCT globalTid) FROM {RUNTIME}"
    assert (0, 4) == made(400, gpus=2)[0].execute(query).fetchone()


def test_kernels_of_a_graph_share_their_launch(made: Any) -> None:
    """100 kernels in steps of 28 are four launches of 28, 28, 28 and 16 nodes, each node with an id."""
    db, truth = made(graph=True)
    query = f"SELECT count(*), count(DISTINCT graphNodeId) FROM {KERNEL} GROUP BY correlationId ORDER BY correlationId"
    assert [(28, 28), (28, 28), (28, 28), (16, 16)] == db.execute(query).fetchall()
    assert 4 == truth["launches"]["count"]
    assert (0,) == made()[0].execute(f"SELECT count(graphNodeId) FROM {KERNEL}").fetchone()


def test_streams_and_communication_overlap(made: Any) -> None:
    """Kernels on one stream are busy as long as they take, on three for less time; some communication is hidden."""
    one, three, nccl = (made(1000, **shape)[1] for shape in ({}, {"streams": 3}, {"nccl": True}))
    assert one["kernels"]["total_ns"] == one["gpus"]["0"]["kernel_busy_ns"]
    assert three["kernels"]["total_ns"] > three["gpus"]["0"]["kernel_busy_ns"]
    gpu = nccl["gpus"]["0"]
    assert 0 < gpu["breakdown"]["exposed_communication_ns"] < gpu["communication_ns"]


def test_hostile_names_arrive_unchanged(made: Any) -> None:
    db, _ = made(10, hostile_names=HOSTILE)
    for query in (f"SELECT value FROM {KERNEL} JOIN StringIds ON id = demangledName", "SELECT text FROM NVTX_EVENTS"):
        assert set(HOSTILE) <= {name for (name,) in db.execute(query)}


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ("nvtx", {"NVTX_EVENTS"}),
        ("calls", {RUNTIME, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"}),
        ("metrics", {"GPU_METRICS", "TARGET_INFO_GPU_METRICS"}),
        ("target_info", {f"TARGET_INFO_{name}" for name in ("GPU", "SESSION_START_TIME", "CUDA_CONTEXT_INFO")}),
    ],
)
def test_what_was_not_recorded_has_no_table(made: Any, option: str, gone: set[str]) -> None:
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    whole, less = (set(made(50, **shape)[0].execute(query)) for shape in ({}, {option: False}))
    assert {(name,) for name in gone} == whole - less


def test_open_range_has_no_end(made: Any) -> None:
    query = "SELECT text, count(*) FROM NVTX_EVENTS WHERE end IS NULL GROUP BY text"
    assert [("never closed", 2)] == made(processes=2, open_ranges=True)[0].execute(query).fetchall()


def test_samples_of_the_truth_are_those_written(made: Any) -> None:
    db, truth = made(2000, gpus=2)
    query = "SELECT avg(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
    query += "WHERE metricName = 'GR Active [Throughput %]' AND typeId & 255 = 1"
    assert pytest.approx(db.execute(query).fetchone()[0]) == truth["samples"]["1"]["GR Active [Throughput %]"]


def test_the_command_writes_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file depends on number, seed and shape alone; a sample is what its maker writes."""
    monkeypatch.setitem(SAMPLES, "mlp_a100", lambda folder: (folder / "made").write_text("by its maker"))

    def written(name: str, *arguments: str) -> list[bytes]:
        argv = ["make", arguments[0], "--out", str(tmp_path / name), *arguments[1:]]
        monkeypatch.setattr(sys, "argv", argv)
        main()
        return [path.read_bytes() for path in sorted((tmp_path / name).glob("[!.]*"))]

    assert [b"by its maker"] == written("sample", "mlp_a100")
    command = ("capture", "--kernels", "300", "--gpus", "2", "--streams", "2", "--nccl")
    first, other = written("first", *command, "--seed", "4"), written("other", *command, "--seed", "5")
    assert first != other
    shape = Shape(gpus=2, processes=2, streams=2, nccl=True)
    capture(tmp_path / "again.sqlite", kernels=300, seed=4, shape=shape)
    assert (tmp_path / "again.sqlite").read_bytes() in first
    with pytest.raises(SystemExit, match="2"):
        written("few", "capture", "--kernels", "1", "--gpus", "2")


def test_steps_are_written_in_bunches(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of three bunches have numbers 0 to 9 and do not overlap."""
    monkeypatch.setattr("make.captures.STEPS_AT_ONCE", 4)
    db, truth = made(280)
    query = "SELECT text, start, end FROM NVTX_EVENTS WHERE text LIKE 'step %' ORDER BY start"
    steps = db.execute(query).fetchall()
    assert [f"step {i}" for i in range(10)] == [text for text, _, _ in steps]
    assert all(before[2] == after[1] for before, after in pairwise(steps))
    assert {"count": 10, "total_ns": sum(end - start for _, start, end in steps)}.items() <= truth["steps"].items()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kernels: 1 is not 2, the number of workers, or more"):
        capture(tmp_path / "c.sqlite", kernels=1, shape=Shape(gpus=2))
    assert [] == list(tmp_path.iterdir())
    for name in ("gpus", "processes", "streams", "kernels_per_step"):
        with pytest.raises(ValueError, match=f"{name}: 0 is not 1 or more"):
            Shape(**{name: 0})


def test_file_of_an_error_does_not_appear(tmp_path: Path) -> None:
    """An error while writing leaves the old file as it was, and nothing else."""
    path = tmp_path / "capture.sqlite"
    path.write_text("old")
    with pytest.raises(sqlite3.OperationalError, match="no column named colour"), export.writing(path) as db:
        db.append("PROCESSES", colour=["red"])
    assert [("capture.sqlite", "old")] == [(p.name, p.read_text()) for p in tmp_path.iterdir()]


def test_rows_and_strings_arrive(tmp_path: Path, connect: Connect) -> None:
    """Columns of one number and of one value per row, over several batches, end up in the rows."""
    path, count = tmp_path / "capture.sqlite", export.ROWS_AT_ONCE + 2
    with export.writing(path) as db:
        text = db.string("step")
        db.append("ThreadNames", nameId=text, priority=np.arange(count), globalTid=7)
        db.append("PROCESSES", globalPid=1, pid=np.zeros(0, np.int64), name=[])
    made = connect(path)
    expected = (count, count * (count - 1) // 2, 7)
    assert expected == made.execute("SELECT count(*), sum(priority), max(globalTid) FROM ThreadNames").fetchone()
    assert [("step",)] == made.execute("SELECT value FROM StringIds WHERE id = ?", (text,)).fetchall()
    assert [] == made.execute("SELECT * FROM sqlite_master WHERE name = 'PROCESSES'").fetchall()


def test_global_ids_decompose() -> None:
    """The process is in bits 24..47 and the thread in bits 0..23, as the vendor packs them."""
    packed = export.global_id(3_799_129, 3_799_190)
    assert (3_799_129, 3_799_190) == (packed >> 24 & 0xFFFFFF, packed & 0xFFFFFF)
    assert packed & ~0xFFFFFF == export.global_id(3_799_129)


def test_durations_and_covered_time_by_hand() -> None:
    """Median 7.5 of four pins 7 and 8; with 4 and 12 at the ends the total can only be 31; the longest comes first."""
    kernel = Kernel("k", "k", total_ns=31, count=4, median_ns=7.5, min_ns=4, max_ns=12)
    assert [12, 8, 7, 4] == draw_durations(kernel, np.random.default_rng(0)).tolist()
    for total in (30, 32):
        with pytest.raises(ValueError, match=f"k cannot have 4 launches of {total} ns in all"):
            draw_durations(replace(kernel, total_ns=total), np.random.default_rng(0))
    start, end = np.array([7, 2, 3]), np.array([9, 5, 4])
    assert [0, 1, 3, 3, 4, 5] == covered_until(start, end, np.array([2, 3, 5, 7, 8, 20])).tolist()
    assert [0, 0] == covered_until(start[:0], end[:0], np.array([5, 9])).tolist()
