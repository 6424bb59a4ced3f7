"""Every sample: data/ is what its maker writes, says that no GPU ran, and its truth is what the rows amount to."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from make import SAMPLES, bert_a100, mlp_a100, resnet18_a100

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
            first, second = (gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in both)
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


@pytest.mark.parametrize(("capture", "part"), CAPTURES.items())
def test_truth_is_what_a_loop_over_the_rows_counts(
    truth_of: Truth, check_truth: Callable[[Path, dict[str, Any]], None], capture: str, part: str
) -> None:
    told = truth_of(capture.partition("/")[0])
    check_truth(DATA / f"{capture}.nsys.sqlite", told[part] if part else told)


@pytest.mark.parametrize(
    ("make", "printed", "drawn"),
    [
        (mlp_a100, lambda t: (t["kernel_rows"], [s["steady"] for s in t["torch"]["steps"]]), lambda t: t["ranges"]),
        (bert_a100, lambda t: [p["median_ns"] for p in t["phases"].values()], lambda t: t["kernels"]["total_ns"]),
        (resnet18_a100, lambda t: [round(v, 2) for v in list(t["report_window"].values())[2:]], lambda t: t["steps"]),
    ],
    ids=["mlp", "bert", "resnet18"],
)
def test_another_seed_keeps_what_the_report_prints(
    tmp_path: Path,
    truth_of: Truth,
    make: Callable[..., Path],
    printed: Callable[[Any], Any],
    drawn: Callable[[Any], Any],
) -> None:
    name = make.__name__
    told, other = truth_of(name), json.loads((make(tmp_path, seed=1) / f"{name}.truth.json").read_text())
    assert printed(told) == printed(other)
    assert drawn(told) != drawn(other)
