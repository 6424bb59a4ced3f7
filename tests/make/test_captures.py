"""Captures of any size, and the command that writes them and the samples."""

import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
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
def test_truth_is_what_a_loop_over_the_rows_counts(tmp_path: Path, shape: Shape, check_truth: Any) -> None:
    truth = capture(tmp_path / "c.sqlite", kernels=1001, shape=shape)
    assert 1001 == truth["kernels"]["count"]
    check_truth(tmp_path / "c.sqlite", truth)


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
