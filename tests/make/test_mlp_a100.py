"""The simulated run of the lab's MLP."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from make import SAMPLES, mlp_a100
from make.kernels import TABLE_5

Connect = Callable[[Path], sqlite3.Connection]
CAPTURE, TRUTH, COUNTERS = "mlp_a100.nsys.sqlite", "mlp_a100.truth.json", "mlp_a100.inference.ncu.csv"
TRACE = "mlp_a100.pt.trace.json.gz"
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"


@pytest.fixture
def truth(mlp: Path) -> dict[str, Any]:
    """What the simulation says is true."""
    return json.loads((mlp / TRUTH).read_text())


def test_the_command_finds_it() -> None:
    """`python -m make mlp_a100` is this function."""
    assert mlp_a100 is SAMPLES["mlp_a100"]


def test_kernels_are_table_5(mlp: Path, count_rows: Callable[[Path], dict[str, Any]]) -> None:
    """Instances, total, median, minimum and maximum of the 28 names, from the file's rows, are the report's."""
    expected = {k.full_name: (k.count, k.total_ns, k.median_ns, k.min_ns, k.max_ns) for k in TABLE_5.values()}
    assert expected == count_rows(mlp / CAPTURE)["kernel_rows"]


def test_windows_are_the_reports(mlp: Path, connect: Connect) -> None:
    """The report's own query finds its own times, 9.644169424|19.447882187 and 9.5316707|19.447603756."""
    found = {}
    for table in (KERNEL, MEMCPY):
        (found[table],) = connect(mlp / CAPTURE).execute(f"SELECT MIN(start) / 1e9, MAX(end) / 1e9 FROM {table}")
    assert {KERNEL: (9.644169424, 19.447882187), MEMCPY: (9.5316707, 19.447603756)} == found


@pytest.mark.parametrize(
    ("first", "last", "sm", "read", "write"),
    [
        (9_644_000_000, 19_448_000_000, "0.17", "0.07", "0.93"),
        (9_531_400_000, 19_448_000_000, "0.17", "0.09", "0.96"),
    ],
)
def test_samples_have_the_reports_means(
    mlp: Path, connect: Connect, first: int, last: int, sm: str, read: str, write: str
) -> None:
    """Mean percentages in the report's windows, times the 1935 GB/s its script assumes, print as it prints them."""
    query = (
        "SELECT avg(value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m ON g.typeId = m.typeId AND g.metricId = "
        f"m.metricId WHERE metricName LIKE ? AND timestamp BETWEEN {first} AND {last}"
    )
    db = connect(mlp / CAPTURE)
    names = ("SMs Active%", "DRAM Read%", "DRAM Write%")
    active, reads, writes = (db.execute(query, (name,)).fetchone()[0] for name in names)
    assert [sm, read, write] == [f"{value:.2f}" for value in (active, reads * 19.35, writes * 19.35)]


def test_truth_is_what_a_loop_over_the_rows_counts(
    mlp: Path, truth: dict[str, Any], count_rows: Callable[[Path], dict[str, Any]]
) -> None:
    """Counts, sums, busy time, breakdown, calls and queueing in the truth are those of the rows."""
    found = count_rows(mlp / CAPTURE)
    assert found["kernels"] == truth["kernels"]
    assert found["calls"] == truth["calls"]
    assert found["queued_total_ns"] == truth["launches"]["queued_total_ns"]
    gpu = found["gpus"]["0"]
    parts = ("computation_ns", "exposed_copy_ns", "idle_ns")
    assert {part: gpu[part] for part in parts} | {"exposed_communication_ns": 0} == truth["gpus"]["0"]["breakdown"]
    names = ("kernel_busy_ns", "span_ns")
    assert {name: gpu[name] for name in names} == {name: truth["gpus"]["0"][name] for name in names}


def test_kernels_never_overlap(truth: dict[str, Any]) -> None:
    """One stream: busy time is the sum of Table 5, 87,363,080 ns."""
    assert 87_363_080 == truth["gpus"]["0"]["kernel_busy_ns"]


def test_copies_of_the_naive_script(truth: dict[str, Any]) -> None:
    """6 parameters, 548 batches and labels, 1 image batch go up; 469 losses, 79 counts and a mean come down."""
    assert 6 + 2 * 548 + 1 == truth["copies"]["H2D"]["count"]
    images = 60_000 + 10_000
    sizes = 4 * (784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10) + images * (784 * 4 + 8) + 128 * 784 * 4
    assert sizes == truth["copies"]["H2D"]["bytes"]
    assert (469 + 79 + 1, 469 * 4 + 79 * 8 + 4) == (truth["copies"]["D2H"]["count"], truth["copies"]["D2H"]["bytes"])


def test_steps_hold_their_phases(mlp: Path, connect: Connect) -> None:
    """469 + 79 steps tile their parts, and each step's phases lie in it, data loading first."""
    db = connect(mlp / CAPTURE)
    ranges = db.execute("SELECT start, end, text FROM NVTX_EVENTS ORDER BY start, end DESC").fetchall()
    steps = [row for row in ranges if row[2].startswith(("step ", "test step "))]
    assert 469 + 79 == len(steps)
    assert all(before[1] == after[0] for before, after in pairwise(steps))
    starts = {start for start, _, text in ranges if text == "data loading"}
    assert {start for start, _, _ in steps} == starts


def test_waiting_for_data_is_why_the_gpu_idles(truth: dict[str, Any]) -> None:
    """More than three quarters of the idle time is data loading, and step 0 is the slowest by far."""
    idle = truth["gpus"]["0"]["breakdown"]["idle_ns"]
    assert 0.75 * idle < truth["ranges"]["data loading"]["total_ns"] < idle
    assert truth["ranges"]["step"]["max_ns"] > 20 * truth["ranges"]["step"]["median_ns"]


def test_backward_is_launched_from_another_thread(mlp: Path, connect: Connect) -> None:
    """13 of a step's kernels and its memset come from the framework's thread: 469 x (15 + 1) calls."""
    query = "SELECT globalTid, count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY 1 ORDER BY 2"
    (_, backward), (main, _) = connect(mlp / CAPTURE).execute(query).fetchall()
    assert 469 * 16 == backward
    assert main & 0xFFFFFF == main >> 24 & 0xFFFFFF


def test_it_says_that_it_is_simulated(mlp: Path, truth: dict[str, Any], connect: Connect) -> None:
    """The capture's metadata and the truth both say that no GPU ran."""
    (label,) = connect(mlp / CAPTURE).execute("SELECT value FROM META_DATA_CAPTURE WHERE name = 'SIMULATED'").fetchone()
    assert label == truth["simulated"]
    assert "no GPU ran" in label


def test_it_is_small_enough_to_commit(mlp: Path) -> None:
    """The files are complete under their names, alone, and not over 5 MB."""
    assert [COUNTERS, CAPTURE, TRACE, TRUTH] == sorted(path.name for path in mlp.iterdir())
    assert sum(path.stat().st_size for path in mlp.iterdir()) <= 5_000_000


def test_same_seed_same_bytes(mlp: Path, tmp_path: Path) -> None:
    """Writing again gives the same bytes, into a folder that keeps its other files."""
    (tmp_path / "other.csv").write_text("x")
    again = mlp_a100(tmp_path)
    assert all((mlp / name).read_bytes() == (again / name).read_bytes() for name in (CAPTURE, TRACE, TRUTH, COUNTERS))
    assert (tmp_path / "other.csv").read_text() == "x"


def test_another_seed_keeps_the_table(tmp_path: Path, truth: dict[str, Any]) -> None:
    """What the report prints does not depend on the seed, and the rest does."""
    other = json.loads((mlp_a100(tmp_path, seed=1) / TRUTH).read_text())
    assert truth["kernel_rows"] == other["kernel_rows"]
    assert truth["ranges"]["step"] != other["ranges"]["step"]


def test_the_sample_run_is_this_simulation(mlp: Path, connect: Connect) -> None:
    """The run under data/ holds what the command writes today, row by row."""
    sample = Path(__file__).parents[2] / "data" / "mlp_a100"
    assert all((sample / name).read_text() == (mlp / name).read_text() for name in (TRUTH, COUNTERS))
    assert list(connect(sample / CAPTURE).iterdump()) == list(connect(mlp / CAPTURE).iterdump())
