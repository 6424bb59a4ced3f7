"""Every sample: the run under data/ is what its maker writes, the same every time, and says that no GPU ran."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from make import SAMPLES

DATA = Path(__file__).parents[2] / "data"
MOST_BYTES = 5_000_000  # of a sample
# Captures of Nsight Systems, and where the truth of each stands in the sample's.
CAPTURES = {
    "bert_a100": ("bert_a100.nsys.sqlite", ""),
    "bert_a100_optimised": ("bert_a100_optimised.nsys.sqlite", ""),
    "mlp_a100": ("mlp_a100.nsys.sqlite", ""),
    "resnet18_a100": ("resnet18_a100.nsys.sqlite", ""),
    "resnet18_a100, inference": ("inference/resnet18_a100.inference.nsys.sqlite", "inference"),
}
Made = Callable[[str], Path]
Connect = Callable[[Path], sqlite3.Connection]


def files(folder: Path) -> list[Path]:
    """The paths of all files in a folder, from there."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def truth(folder: Path, name: str) -> dict[str, Any]:
    """What the simulation says is true."""
    return json.loads((folder / f"{name}.truth.json").read_text())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_run_under_data_is_what_is_written(made: Made, connect: Connect, name: str) -> None:
    """The same files, byte by byte or, of a database and of what is compressed, row by row; small enough to commit."""
    folder, held = made(name), DATA / name
    assert files(held) == files(folder)
    for file in files(folder):
        both = [each / file for each in (held, folder)]
        if file.suffix == ".sqlite":
            first, second = (list(connect(path).iterdump()) for path in both)
        else:
            first, second = (gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in both)
        assert first == second, file
    assert sum((held / file).stat().st_size for file in files(held)) < MOST_BYTES


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "dlrm_h100"])  # test_dlrm has the command
def test_same_seed_same_bytes(made: Made, tmp_path: Path, name: str) -> None:
    """Writing again gives the same bytes, into a folder that keeps its other files."""
    (tmp_path / "other.csv").write_text("x")
    again = SAMPLES[name](tmp_path)
    assert sorted([Path("other.csv"), *files(made(name))]) == files(again)
    assert all((made(name) / file).read_bytes() == (again / file).read_bytes() for file in files(made(name)))


@pytest.mark.parametrize("name", SAMPLES)
def test_it_says_that_it_is_simulated(made: Made, connect: Connect, name: str) -> None:
    """The truth, the captures' metadata, the first line of the counters' log, and the traces."""
    folder = made(name)
    label = truth(folder, name)["simulated"]
    assert "no GPU ran" in label
    for file in files(folder):
        if file.suffix == ".sqlite":
            query = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'SIMULATED'"
            assert [(label,)] == connect(folder / file).execute(query).fetchall()
        elif file.suffix == ".csv":
            assert label in (folder / file).read_text().splitlines()[0]
        elif file.suffix == ".gz":
            assert label == json.loads(gzip.decompress((folder / file).read_bytes()))["SIMULATED"]


@pytest.mark.parametrize("capture", CAPTURES)
def test_truth_is_what_a_loop_over_the_rows_counts(
    made: Made, count_rows: Callable[[Path], dict[str, Any]], capture: str
) -> None:
    """Counts, sums, busy time, breakdown, calls and queueing in the truth are those of the rows."""
    name = capture.partition(",")[0]
    path, part = CAPTURES[capture]
    found, told = count_rows(made(name) / path), truth(made(name), name)
    told = told[part] if part else told
    assert found["kernels"] == told["kernels"]
    columns = ("count", "total_ns", "median_ns", "min_ns", "max_ns")
    assert found["kernel_rows"] == {row["full_name"]: tuple(row[c] for c in columns) for row in told["kernel_rows"]}
    assert found["calls"] == told["calls"]
    assert found["queued_total_ns"] == told["launches"]["queued_total_ns"]
    gpu, counted = told["gpus"]["0"], found["gpus"]["0"]
    expected = {**gpu["breakdown"], **{column: gpu[column] for column in ("span_ns", "kernel_busy_ns")}}
    assert expected == {column: counted.get(column, 0) for column in expected}
