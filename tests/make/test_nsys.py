"""Files in the schema of Nsight Systems."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfkit.simulate import export
from perfkit.simulate.export import ENUMS, TABLES

REAL = "nsys/openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite"


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str, int]]:
    return [(name, kind, required) for _, name, kind, required, *_ in db.execute(f"PRAGMA table_info({table})")]


def test_columns_are_those_of_a_real_export(profiles: Path) -> None:
    """Every table has the columns, types and constraints that the vendor's schema 3.7.2 gives it, in order."""
    real = sqlite3.connect(f"file:{profiles / REAL}?mode=ro&immutable=1", uri=True)
    made = sqlite3.connect(":memory:")
    for table, columns in TABLES.items():
        made.execute(f"CREATE TABLE {table} ({columns})")
        assert _columns(real, table) == _columns(made, table), table
    real.close()
    made.close()


def test_codes_are_those_of_a_real_export(profiles: Path) -> None:
    """Every code means what it means in a real export."""
    real = sqlite3.connect(f"file:{profiles / REAL}?mode=ro&immutable=1", uri=True)
    for table, entries in ENUMS.items():
        assert set(entries) <= set(real.execute(f"SELECT id, name, label FROM {table}")), table
    real.close()


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
