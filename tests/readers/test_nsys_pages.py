"""Numbers read from the pages of an export, against what SQLite reads from the same file."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfkit.errors import ReadError
from perfkit.readers.nsys import pages, sqlite
from perfkit.readers.nsys.sqlite import SqliteSource

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
TABLE = f"CREATE TABLE {KERNEL} (start INTEGER, note TEXT, end INTEGER, grid INTEGER, name BLOB, block INTEGER)"
INSERT = f"INSERT INTO {KERNEL} VALUES (?, ?, ?, ?, ?, ?)"
WANTED = ["block", "start", "grid", "end"]
EDGES = [
    n
    for size in (7, 15, 23, 31, 47, 63)
    for edge in (2**size,)
    for n in (edge - 1, -edge, 1 - edge)
]


def _cells(random: random.Random) -> tuple[Any, ...]:
    number = [None, 0, 1, -1, 2, 127, 128, *EDGES, random.getrandbits(63), random.getrandbits(40)]
    text = [None, "", "a" * random.randrange(57), b"\xff" * random.randrange(57), 0.5]
    return tuple(random.choice(text if place in (1, 4) else number) for place in range(6))


def _made(path: Path, rows: list[tuple[Any, ...]], page: int = 512, *further: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute("PRAGMA synchronous = off")
        database.execute("CREATE TABLE other (n INTEGER)")
        database.execute(TABLE)
        for row in rows:  # pages of two tables take turns in the file
            database.execute(INSERT, row)
            database.execute("INSERT INTO other VALUES (1)")
        for statement in further:
            database.execute(statement)
        database.commit()
    return path


def _stored(path: Path) -> list[tuple[int | None, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.execute(f"SELECT {', '.join(WANTED)} FROM {KERNEL} ORDER BY rowid"))


def _converted(path: Path) -> list[tuple[int | None, ...]]:
    parts = SqliteSource(path).convert(KERNEL, WANTED, lambda rows: rows)
    return list(
        zip(*(pa.concat_tables(parts).column(name).to_pylist() for name in WANTED), strict=True)
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables of which SQLite was asked."""
    names: list[str] = []
    through = SqliteSource._from_rows

    def from_rows(source: SqliteSource, name: str, *given: Any) -> Any:
        names.append(name)
        return through(source, name, *given)

    monkeypatch.setattr(SqliteSource, "_from_rows", from_rows)
    return names


@pytest.mark.parametrize(("page", "rows"), [(512, 1), (512, 5000), (4096, 20_000), (65536, 5000)])
def test_pages_hold_what_sqlite_reads(
    page: int, rows: int, tmp_path: Path, asked: list[str]
) -> None:
    draw = random.Random(page + rows)
    path = _made(tmp_path / "a.sqlite", [_cells(draw) for _ in range(rows)], page)
    assert _converted(path) == _stored(path)
    assert asked == []


@pytest.mark.parametrize(("page", "longest"), [(512, 60), (4096, 3000), (65536, 8000)])
def test_texts_of_pages_are_those_that_were_stored(
    page: int, longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    draw = random.Random(page)
    sizes = [0, 1, 56, 57, 58, 59, draw.randrange(longest), longest]
    texts = [None, *("\xe4" * (size // 2) + "b" * (size % 2) for size in sizes)]
    rows = [(n, draw.choice(texts), n, -n, "b", 1) for n in range(2000)]
    path = _made(tmp_path / "a.sqlite", rows, page)
    assert _converted(path) == _stored(path)
    assert asked == []
    monkeypatch.setattr(SqliteSource, "_rows_of", None)  # SQLite cannot be asked
    assert _texts(path, KERNEL, "note") == [row[1] for row in rows]


@pytest.mark.parametrize("other", ["zeroblob(3)", "0.5", "7"])
def test_what_is_no_text_is_none(other: str, tmp_path: Path) -> None:
    change = f"UPDATE {KERNEL} SET name = {other} WHERE rowid = 2"
    path = _made(tmp_path / "a.sqlite", [(1, "a", 1, 1, "b", 1)] * 3, 512, change)
    assert _texts(path, KERNEL, "name") == ["b", None, "b"]


def test_bytes_that_are_no_utf_8_are_replaced(tmp_path: Path) -> None:
    change = f"UPDATE {KERNEL} SET note = CAST(x'61ff' AS TEXT) WHERE rowid = 2"
    path = _made(tmp_path / "a.sqlite", [(1, "a", 1, 1, "b", 1)] * 3, 512, change)
    assert _texts(path, KERNEL, "note") == ["a", "a\ufffd", "a"]


def test_values_all_of_one_size(tmp_path: Path, asked: list[str]) -> None:
    for value in (None, 0, 1, *EDGES):
        path = _made(tmp_path / f"{value}.sqlite", [(value, "", value, value, None, value)] * 3)
        assert _converted(path) == [(value,) * 4] * 3
    assert asked == []


ROWS = [(n, None, n + 1, 2, None, 3) for n in range(3000)]


@pytest.mark.parametrize(
    "further",
    [
        (f"DELETE FROM {KERNEL} WHERE rowid % 7 = 0",),
        (f"INSERT INTO {KERNEL} (rowid, start) VALUES (-5, 1), (9999, 1)",),
        (f"UPDATE {KERNEL} SET note = printf('%.*c', 500, 'x') WHERE rowid = 2000",),
        (f"UPDATE {KERNEL} SET name = zeroblob(5000) WHERE rowid = 2000",),
        (f"ALTER TABLE {KERNEL} DROP COLUMN block", f"ALTER TABLE {KERNEL} ADD COLUMN block INTEGER DEFAULT 8"),
        (f"ALTER TABLE {KERNEL} ADD COLUMN more AS (start + 1)",),
    ],
)  # fmt: skip
def test_sqlite_is_asked_of_all_that_is_not_plain(
    further: tuple[str, ...], tmp_path: Path, asked: list[str]
) -> None:
    path = _made(tmp_path / "a.sqlite", ROWS, 512, *further)
    assert _converted(path) == _stored(path)
    assert asked == [KERNEL]


@pytest.mark.parametrize("first", [1, 70])
def test_the_id_of_a_row_is_known_without_being_stored(
    first: int, tmp_path: Path, asked: list[str]
) -> None:
    with_id = TABLE.replace("block INTEGER", "block INTEGER PRIMARY KEY")
    moved = (
        f"INSERT INTO {KERNEL} SELECT start, note, end, grid, name, rowid + {first - 1} FROM old"
    )
    path = _made(
        tmp_path / "a.sqlite", ROWS, 512, f"ALTER TABLE {KERNEL} RENAME TO old", with_id, moved
    )
    assert _converted(path) == _stored(path)
    assert asked == []


def test_columns_that_are_a_key_together_are_stored(tmp_path: Path, asked: list[str]) -> None:
    with_key = TABLE.replace("block INTEGER", "block INTEGER, PRIMARY KEY (start, block)")
    moved = f"INSERT INTO {KERNEL} SELECT * FROM old"
    path = _made(
        tmp_path / "a.sqlite", ROWS, 512, f"ALTER TABLE {KERNEL} RENAME TO old", with_key, moved
    )
    assert _converted(path) == _stored(path)
    assert asked == []


def test_rows_that_only_the_log_of_an_open_database_holds(tmp_path: Path, asked: list[str]) -> None:
    path = _made(tmp_path / "a.sqlite", ROWS)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = wal")
        database.execute(INSERT, (-1, None, -1, -1, None, -1))
        database.commit()
        assert _converted(path) == [*_stored(path)]
        assert len(_converted(path)) == len(ROWS) + 1
    assert set(asked) == {KERNEL}


def test_a_damaged_file_is_read_as_sqlite_reads_it_or_refused(tmp_path: Path) -> None:
    whole = _made(tmp_path / "a.sqlite", ROWS).read_bytes()
    draw, refused = random.Random(5), 0
    for number in range(300):
        damaged = bytearray(whole)
        page = draw.randrange(2, len(whole) // 512) * 512
        for _ in range(draw.choice((1, 1, 3))):
            damaged[page + draw.choice((draw.randrange(12), draw.randrange(512)))] = draw.randrange(
                256
            )
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(damaged)
        try:
            read = _converted(path)
        except ReadError:
            refused += 1
            continue
        assert read == _stored(path)
    assert 10 < refused < 290


def test_pages_that_lead_to_each_other_in_a_circle(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.sqlite", ROWS)
    with closing(sqlite3.connect(path)) as database:
        ((root,),) = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNEL}'")
    content = bytearray(path.read_bytes())
    start = (root - 1) * 512  # the root has no cell, and is the last of the pages below it
    content[start + 3 : start + 5], content[start + 8 : start + 12] = (
        bytes(2),
        root.to_bytes(4, "big"),
    )
    path.write_bytes(content)
    with pytest.raises(pages.Unusual):
        pages.Pages(path).leaves(root, 1, len(ROWS))
    with pytest.raises(ReadError, match="malformed"):
        _converted(path)


def test_rows_that_are_not_found_again_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _made(tmp_path / "a.sqlite", ROWS, 512, f"DELETE FROM {KERNEL} WHERE rowid = 7")
    fetched = SqliteSource._fetched

    def one_more(source: SqliteSource, sql: str, *given: Any) -> list[tuple[Any, ...]]:
        rows = fetched(source, sql, *given)
        return [(rows[0][0] + 1,)] if sql.startswith("SELECT count(*)") else rows

    monkeypatch.setattr(SqliteSource, "_fetched", one_more)
    with pytest.raises(
        ReadError, match=rf"is damaged \(2,999 of the 3,000 rows of {KERNEL} are found\)"
    ):
        _converted(path)


@pytest.mark.parametrize("row", [-(2**63), 2**63 - 1])
def test_row_ids_at_the_ends_of_what_fits(row: int, tmp_path: Path, asked: list[str]) -> None:
    path = _made(
        tmp_path / "a.sqlite",
        ROWS[:3],
        512,
        f"INSERT INTO {KERNEL} (rowid, start) VALUES ({row}, 7)",
    )
    assert _converted(path) == _stored(path)
    assert asked == [KERNEL]


def test_a_page_of_another_table_in_place_of_one(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.sqlite", ROWS)
    with closing(sqlite3.connect(path)) as database:
        ((root,),) = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNEL}'")
    file = pages.Pages(path)
    leaves, rows = file.leaves(root, 1, len(ROWS))
    assert [0, len(ROWS)] == [rows[0], rows[-1]]
    with pytest.raises(pages.Unusual):
        file.columns(leaves[:2], int(rows[1]), [0], 6)
    with pytest.raises(pages.Unusual):
        file.columns(leaves[:1], int(rows[1]), [0], 5)
    with pytest.raises(pages.Unusual):
        file.leaves(root, 1, len(ROWS) * 2 - int(rows[-2]) * 2)


def test_texts_are_whole_with_few_or_many_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made.sqlite"
    texts = ["a", "b", "a", "c", None, "d", "a", "b"]
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (text TEXT)")
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?)", [(text,) for text in texts])
        database.commit()
    for kept in (1, 2, 100):
        monkeypatch.setattr(sqlite, "KEPT_TEXTS", kept)
        assert texts == _texts(path, "NVTX_EVENTS", "text")


def _texts(path: Path, table: str, column: str) -> list[str | None]:
    codes, texts = SqliteSource(path).text(table, column)
    return [texts[code] if code >= 0 else None for code in codes]
