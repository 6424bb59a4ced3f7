"""Tables of Nsight Systems that are views, or named in another case (made files)."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from readers import nsys_files as made

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nsys

ENDLESS = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)"


def _altered(path: Path, change: Callable[[sqlite3.Connection, str], None]) -> Profile:
    """Write an export, change each of its tables, and read it."""
    made.sqlite(path, {**made.session(), **made.capture()})
    with closing(sqlite3.connect(path)) as database, database:
        listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in listed:
            change(database, name)
    return nsys.read(path)


def _to_view(database: sqlite3.Connection, name: str) -> None:
    database.execute(f'ALTER TABLE "{name}" RENAME TO "stored_{name}"')
    database.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "stored_{name}"')


def _to_lower_case(database: sqlite3.Connection, name: str) -> None:
    database.execute(f'ALTER TABLE "{name}" RENAME TO "between"')  # SQLite knows one case
    database.execute(f'ALTER TABLE "between" RENAME TO "{name.lower()}"')


@pytest.mark.parametrize("change", [_to_view, _to_lower_case])
def test_every_table_reads_as_view_and_in_lower_case_as_it_does_otherwise(
    tmp_path: Path, change: Callable[[sqlite3.Connection, str], None]
) -> None:
    plain = _altered(tmp_path / "plain.sqlite", lambda database, name: None)
    altered = _altered(tmp_path / "run.sqlite", change)
    assert sorted(altered.loaders) == sorted(plain.loaders)
    for name in plain.loaders:
        assert altered.table(name).equals(plain.table(name)), name


@pytest.mark.parametrize("write", [made.parquet, made.arrow])
def test_files_of_a_folder_may_be_named_in_lower_case(tmp_path: Path, write: made.Write) -> None:
    folder = write(tmp_path / "run", {**made.session(), **made.capture()})
    plain = nsys.read(folder).table("KERNELS")
    for file in folder.iterdir():
        file.rename(file.with_name(file.name.lower()))
    assert nsys.sniff(folder)
    assert nsys.read(folder).table("KERNELS").equals(plain)


def test_of_two_spellings_the_one_of_nsys_is_read(tmp_path: Path) -> None:
    folder = made.parquet(tmp_path / "run", {**made.session(), **made.capture()})
    other = folder / f"{made.KERNEL.lower()}.parquet"
    made.store(other, made.stored(folder / f"{made.KERNEL}.parquet").slice(0, 0))
    assert len(nsys.read(folder).table("KERNELS"))


def test_a_database_of_views_alone_is_recognised(tmp_path: Path) -> None:
    _altered(tmp_path / "run.sqlite", _to_view)
    assert nsys.sniff(tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    "query",
    [
        f"{ENDLESS} SELECT start, start + 1 AS end FROM n",
        f"{ENDLESS} SELECT start, start + 1 AS end FROM n WHERE start < 0",
        "SELECT zeroblob(1000000000) AS start, 1 AS end",
    ],
    ids=["endless rows", "endless search", "1 GB in a cell"],
)
def test_a_view_that_no_file_explains_is_refused(tmp_path: Path, query: str) -> None:
    def change(database: sqlite3.Connection, name: str) -> None:
        if name == made.KERNEL:
            database.execute(f'DROP TABLE "{name}"')
            database.execute(f'CREATE VIEW "{name}" AS {query}')

    with pytest.raises(ReadError, match=r"run\.sqlite: the database is damaged"):
        _altered(tmp_path / "run.sqlite", change).table("KERNELS")
