"""An export in one SQLite file: numeric columns through ADBC in row ranges, text through sqlite3."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from perfkit.errors import ReadError
from perfkit.readers.nsys.source import MARKERS, NOTHING, Combined, Made, available, resolve
from perfkit.readers.nsys.stack import Columns, Stack

THREADS = 2  # more gain little: SQLite's own locks are shared
PART_ROWS = 1 << 18
BATCH_ROWS = 1 << 16
NVPROF = "StringTable"  # nvprof wrote CUPTI_ACTIVITY_KIND_ tables too, of other columns
STRINGS_AT_ONCE = 500  # below SQLite's limit on the number of parameters


def is_export(path: Path) -> bool:
    """Say whether an SQLite file holds Nsight Systems' tables; a damaged one is claimed to be explained."""
    try:
        with closing(connected(path)) as database:
            names = [n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.DatabaseError:
        return True
    return any(name.startswith(MARKERS) for name in names) and NVPROF not in names


def connected(path: Path) -> sqlite3.Connection:
    """Open `path` read-only; text that is not UTF-8 (user names, paths) is read with replacements."""
    database = sqlite3.connect(uri(path), uri=True)
    database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return database


def uri(path: Path) -> str:
    """Return the read-only address of `path`; in a folder that cannot be written no lock is tried."""
    immutable = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{immutable}"


class SqliteSource:
    """An export in one SQLite file, checked on opening for being cut or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_length(path)
        if not self._columns:
            raise ReadError(f"{path}: the database has no tables. Export the report again.")

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        names = [r["name"] for r in self._query("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: [r["name"] for r in self._query(f"PRAGMA table_info({_quoted(n)})")] for n in names}

    def _query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        names, rows = self._fetched(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _fetched(self, sql: str, parameters: tuple[Any, ...] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        try:
            with closing(connected(self.path)) as database:
                cursor = database.execute(sql, parameters)
                return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except sqlite3.DatabaseError as e:
            raise ReadError(f"{self.path}: the database is damaged ({e}). Export the report again.") from e

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""
        return self._columns.get(resolve(table, self._columns) or "", [])

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""
        name = resolve(table, self._columns)
        return bool(name and self._query(f"SELECT 1 FROM {_quoted(name)} LIMIT 1"))

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`; stops at the first."""
        name = resolve(table, self._columns)
        if not name or column not in self.columns(table):
            return False
        marks = ",".join("?" * len(values))
        sql = f"SELECT 1 FROM {_quoted(name)} WHERE {_quoted(column)} IN ({marks}) LIMIT 1"
        return bool(self._query(sql, tuple(values)))

    def convert(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Made]) -> list[Made]:
        """Apply `make` to row ranges of those numeric `columns` that exist, on two threads."""
        return self._each(table, columns, lambda _, rows: make(rows))

    def stacked(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Columns]) -> Columns:
        """Return what `make` returns for row ranges of those numeric `columns` that exist, all together."""
        rows = self._row_ids(table)
        stack = Stack(len(rows))
        self._each(table, columns, lambda first, part: stack.put(first - rows.start, make(part)))
        return stack.columns() or make(NOTHING)

    def _each(self, table: str, columns: Iterable[str | Combined], work: Callable[[int, pa.Table], Made]) -> list[Made]:
        """Do `work` on row ranges, each with the row id it starts at, on two threads."""
        wanted = available(columns, self.columns(table))
        rows = self._row_ids(table) if wanted else range(0)
        select = f"SELECT {', '.join(map(_expression, wanted))} FROM {_quoted(resolve(table, self._columns) or '')}"

        def made(first: int) -> Made:
            last = min(first + PART_ROWS, rows.stop) - 1
            return self._made(f"{select} WHERE rowid BETWEEN {first} AND {last}", partial(work, first))

        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(made, rows[::PART_ROWS]))

    def _row_ids(self, table: str) -> range:
        """Return the range that the row ids of `table` lie in."""
        name = resolve(table, self._columns)
        if not name:
            return range(0)
        # One aggregate at a time is answered from the index's ends; both in one SELECT read every row.
        ends = ", ".join(f"(SELECT {end}(rowid) FROM {_quoted(name)}) AS {end}" for end in ("min", "max"))
        low, high = self._query(f"SELECT {ends}")[0].values()
        return range(0) if low is None else range(low, high + 1)

    def _made(self, sql: str, make: Callable[[pa.Table], Made]) -> Made:
        import adbc_driver_sqlite.dbapi

        try:
            with adbc_driver_sqlite.dbapi.connect(uri(self.path)) as database, database.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                cursor.execute(sql)
                return make(cursor.fetch_arrow_table())
        except (adbc_driver_sqlite.dbapi.Error, pa.ArrowException, OSError) as e:
            raise ReadError(f"{self.path}: the database is damaged ({e}). Export the report again.") from e

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None."""
        name = resolve(table, self._columns)
        if not name:
            return []
        present = self.columns(table)
        chosen = ", ".join(_quoted(c) if c in present else f"NULL AS {_quoted(c)}" for c in columns)
        return self._query(f"SELECT {chosen} FROM {_quoted(name)}")

    def text(self, table: str, column: str) -> list[str | None]:
        """Return a text column in the order of `convert`; an empty list if it is absent or all null."""
        name = resolve(table, self._columns)
        if not name or column not in self.columns(table):
            return []
        stored, of = _quoted(column), _quoted(name)
        if not self._query(f"SELECT 1 FROM {of} WHERE {stored} IS NOT NULL LIMIT 1"):
            return []
        return [value for (value,) in self._fetched(f"SELECT {stored} FROM {of} ORDER BY rowid")[1]]

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; unknown ids are left out."""
        wanted = [i for i in ids if i >= 0] if "StringIds" in self._columns else []
        found: dict[int, str] = {}
        for first in range(0, len(wanted), STRINGS_AT_ONCE):
            some = tuple(wanted[first : first + STRINGS_AT_ONCE])
            marks = ",".join("?" * len(some))
            for row in self._query(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", some):
                if row["value"] is not None:
                    found[row["id"]] = str(row["value"])
        return found


def _expression(column: str | Combined) -> str:
    if isinstance(column, str):
        return _quoted(column)
    return f"{column.operator.join(map(_quoted, column.columns))} AS {_quoted(column.name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_length(path: Path) -> None:
    """Raise ReadError if the file is shorter than its header says (an interrupted export or copy)."""
    with path.open("rb") as file:
        head = file.read(100)
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    size = path.stat().st_size
    # The page count is only valid when the file was last written by a version that keeps it.
    if head[24:28] == head[92:96] and pages * page > size:
        raise ReadError(
            f"{path}: the file is cut, its header promises {pages * page} bytes and it has {size}. "
            "Export the report again or copy the file again."
        )
