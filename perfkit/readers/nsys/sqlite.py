"""An export in one SQLite file: numeric columns through ADBC in row ranges, text through sqlite3.

A cell of SQLite holds any type, whatever its column declares: ADBC refuses what is no number where numbers began, and
`integers` what it took for another type; then the first such cell is looked for, to name it.
"""

import os
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from perfkit.errors import ReadError
from perfkit.readers.nsys import sources

THREADS = 2  # more gain little: SQLite's own locks are shared
PART_ROWS = 1 << 17
BATCH_ROWS = PART_ROWS  # one batch a part: its columns need no joining
NVPROF = "StringTable"  # nvprof wrote CUPTI_ACTIVITY_KIND_ tables too, of other columns
STRINGS_AT_ONCE = 500  # below SQLite's limit on the number of parameters
ROW_IDS = range(-(2**63), 2**63)
ROW_BYTES = 4  # a row takes at least so many bytes of the file
MOST_ROWS = 2**31 - 2  # that sqlite3 fetches at once
MAGIC = b"NVIDIA Tegra Profiler Report"
LAST_WORDS = 300  # characters of the last line that nsys printed
# What sqlite3 raises on a damaged file; the last where the message holds damaged bytes of a name.
FAULTS = (sqlite3.Error, UnicodeDecodeError)


class Part(NamedTuple):
    """A range of row ids, both ends in it, and the most rows that it holds."""

    first: int
    last: int
    rows: int


class SqliteSource:
    """An export in one SQLite file, checked on opening for being cut or damaged; errors call it `named`."""

    def __init__(self, path: Path, named: Path | None = None) -> None:
        self.path = path
        self._named = named or path
        self._size = path.stat().st_size
        _check_length(path, self._named)
        if not self._columns:
            raise ReadError(f"{self._named}: the database has no tables. Export the report again.")

    def damage(self, table: str, finding: str) -> ReadError:
        """Return the error that says what is wrong, with the path of the file; every table is in that one."""
        return sources.damaged(self._named, "database", finding)

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        names = [str(name) for (name,) in self._fetched("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: [str(row[1]) for row in self._fetched(f"PRAGMA table_info({_quoted(n)})")] for n in names}

    def _fetched(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        # Pages of a damaged file may refer to each other in circles.
        most = min(self._size // ROW_BYTES, MOST_ROWS)
        try:
            with closing(connected(self.path)) as database:
                rows = database.execute(sql, parameters).fetchmany(most + 1)
        except UnicodeDecodeError as e:  # sqlite3 quotes the damaged bytes in its message
            raise self.damage("", f"names in its description are no text, {e.reason}") from e
        except sqlite3.Error as e:
            raise self.damage("", str(e)) from e
        if len(rows) > most:
            raise self.damage("", f"more than {most} rows in {self._size} bytes")
        return rows

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""
        return self._columns.get(sources.resolve(table, self._columns) or "", [])

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""
        name = sources.resolve(table, self._columns)
        return bool(name and self._fetched(f"SELECT 1 FROM {_quoted(name)} LIMIT 1"))

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`; stops at the first."""
        name = sources.resolve(table, self._columns)
        if not name or column not in self.columns(table):
            return False
        marks = ",".join("?" * len(values))
        sql = f"SELECT 1 FROM {_quoted(name)} WHERE {_quoted(column)} IN ({marks}) LIMIT 1"
        return bool(self._fetched(sql, tuple(values)))

    def convert(
        self, table: str, columns: Iterable[str | sources.Combined], make: Callable[[pa.Table], sources.Made]
    ) -> list[sources.Made]:
        """Apply `make` to row ranges of those numeric `columns` that exist, on two threads."""
        return self._each(table, columns, lambda _, rows: make(rows))

    def stacked(
        self, table: str, columns: Iterable[str | sources.Combined], make: Callable[[pa.Table], sources.Columns]
    ) -> sources.Columns:
        """Return what `make` returns for row ranges of those numeric `columns` that exist, all together."""
        stack = sources.Stack(sum(part.rows for part in self._parts(table)))
        self._each(table, columns, lambda place, rows: stack.put(place, make(rows)))
        return stack.columns() or make(sources.NOTHING)

    def _each(
        self, table: str, columns: Iterable[str | sources.Combined], work: Callable[[int, pa.Table], sources.Made]
    ) -> list[sources.Made]:
        """Do `work` on row ranges, each with the most rows that can lie before it, on two threads."""
        name = sources.resolve(table, self._columns) or ""
        wanted = sources.available(columns, self.columns(table))
        parts = self._parts(table) if wanted else []
        places = list(accumulate((part.rows for part in parts), initial=0))[:-1]
        read: list[int] = []

        def one(place: int, part: Part) -> sources.Made:
            rows = self._read(name, wanted, part)
            read.append(rows.num_rows)
            return work(place, rows)

        with ThreadPoolExecutor(THREADS) as pool:
            made = list(pool.map(one, places, parts))
        if wanted and (not parts or sum(read) < sum(part.rows for part in parts)):
            # The row ids of a damaged file may be out of order: by them, not all rows are found.
            ((count,),) = self._fetched(f"SELECT count(*) FROM {_quoted(name)}")
            if count > sum(read):
                raise self.damage(name, f"{sum(read):,} of the {count:,} rows of {name} are found by their row ids")
        return made

    def _read(self, name: str, columns: list[str | sources.Combined], part: Part) -> pa.Table:
        """Return columns of a range of rows, int64."""
        import adbc_driver_sqlite.dbapi

        def finding(problem: object) -> ReadError:
            return self.damage(name, self._foreign(name, columns) or str(problem))

        select = f"SELECT {', '.join(map(_expression, columns))} FROM {_quoted(name)}"
        sql = f"{select} WHERE rowid BETWEEN {part.first} AND {part.last} LIMIT {part.rows + 1}"
        try:
            with adbc_driver_sqlite.dbapi.connect(uri(self.path)) as database, database.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                cursor.execute(sql)
                rows = cursor.fetch_arrow_table()
        except (adbc_driver_sqlite.dbapi.Error, pa.ArrowException, OSError, UnicodeDecodeError) as e:
            raise finding(e) from e
        if rows.num_rows > part.rows:
            raise self.damage(name, f"{name} has more rows than its row ids allow: {part.rows:,} in one part of it")
        labels = map(sources.label, columns)
        return pa.table({n: sources.integers(rows.column(i), n, finding) for i, n in enumerate(labels)})

    def _foreign(self, name: str, columns: list[str | sources.Combined]) -> str:
        """Say which is the first cell of these columns that is no whole number; empty if all are."""
        for column in sources.stored(columns):
            cell = _quoted(column)
            start = f"CASE typeof({cell}) WHEN 'real' THEN {cell} ELSE substr({cell}, 1, 40) END"
            others = f"typeof({cell}) NOT IN ('integer', 'null')"
            cells = self._fetched(f"SELECT rowid, typeof({cell}), {start} FROM {_quoted(name)} WHERE {others} LIMIT 1")
            for row, kind, value in cells:
                return f"{name}.{column} holds {sources.shown(value)} ({kind}) in row {row}, not a whole number"
        return ""

    def _parts(self, table: str) -> list[Part]:
        """Return ranges that hold the rows of `table`, one after the other."""
        name = sources.resolve(table, self._columns)
        if not name:
            return []
        # One aggregate at a time is answered from the index's ends; both in one SELECT read every row.
        ends = ", ".join(f"(SELECT {end}(rowid) FROM {_quoted(name)})" for end in ("min", "max"))
        low, high = self._fetched(f"SELECT {ends}")[0]
        if low is None:
            return []
        if not (isinstance(low, int) and isinstance(high, int) and low <= high):
            raise self.damage(name, f"{name} has row ids from {sources.shown(low)} to {sources.shown(high)}")
        if high - low > self._size // ROW_BYTES:
            parts = self._sparse(name, low, high)
        else:
            starts = range(low, high + 1, PART_ROWS)
            lasts = (min(first + PART_ROWS - 1, high) for first in starts)
            parts = [Part(first, last, last - first + 1) for first, last in zip(starts, lasts, strict=True)]
        # In a damaged table the ends need not be the least and the largest id: what lies before or after is read too.
        parts[0] = parts[0]._replace(first=ROW_IDS.start)
        parts[-1] = parts[-1]._replace(last=ROW_IDS.stop - 1)
        return parts

    def _sparse(self, name: str, low: int, high: int) -> list[Part]:
        """Return ranges of PART_ROWS rows each, where most row ids belong to no row."""
        parts: list[Part] = []
        sql = f"SELECT rowid FROM {_quoted(name)} WHERE rowid >= ? ORDER BY rowid LIMIT 1 OFFSET {PART_ROWS}"
        while low <= high:
            ((following,),) = self._fetched(sql, (low,)) or [(high + 1,)]
            if following <= low:
                raise self.damage(name, f"{name} has row id {following} after {low}")
            parts.append(Part(low, following - 1, PART_ROWS))
            low = following
        return parts

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None, present ones hold anything."""
        name = sources.resolve(table, self._columns)
        if not name:
            return []
        present, asked = self.columns(table), list(columns)
        chosen = ", ".join(_quoted(c) if c in present else "NULL" for c in asked)
        return [dict(zip(asked, row, strict=True)) for row in self._fetched(f"SELECT {chosen} FROM {_quoted(name)}")]

    def text(self, table: str, column: str) -> list[str | None]:
        """Return a text column in the order of `convert`, None where a cell is no text; empty if absent or all null."""
        name = sources.resolve(table, self._columns)
        if not name or column not in self.columns(table):
            return []
        cell, of = _quoted(column), _quoted(name)
        if not self._fetched(f"SELECT 1 FROM {of} WHERE {cell} IS NOT NULL LIMIT 1"):
            return []
        cells = self._fetched(f"SELECT {cell} FROM {of} ORDER BY rowid")
        return [value if isinstance(value, str) else None for (value,) in cells]

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; ids that are unknown, or that two texts have, are left out."""
        name = sources.resolve("StringIds", self._columns)
        if not name or not {"id", "value"} <= set(self.columns(name)):
            return {}
        wanted = [i for i in ids if i >= 0]
        pairs: list[tuple[Any, ...]] = []
        for first in range(0, len(wanted), STRINGS_AT_ONCE):
            some = tuple(wanted[first : first + STRINGS_AT_ONCE])
            marks = ",".join("?" * len(some))
            pairs += self._fetched(f"SELECT id, value FROM {_quoted(name)} WHERE id IN ({marks})", some)
        return sources.unambiguous((number, value) for number, value in pairs)

    def nameless(self) -> str:
        """Say which values of StringIds are no text; empty if all are."""
        name = sources.resolve("StringIds", self._columns)
        if not name or "value" not in self.columns(name):
            return ""
        ((count,),) = self._fetched(f"SELECT count(*) FROM {_quoted(name)} WHERE typeof(value) NOT IN ('text', 'null')")
        return f"{count} values of StringIds are no text" if count else ""


def is_export(path: Path) -> bool:
    """Say whether an SQLite file holds Nsight Systems' tables; a damaged one is claimed to be explained."""
    try:
        with closing(connected(path)) as database:
            names = [str(n) for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except FAULTS:
        return True
    return any(name.startswith(sources.MARKERS) for name in names) and NVPROF not in names


def connected(path: Path) -> sqlite3.Connection:
    """Open `path` read-only; text that is not UTF-8 (user names, paths) is read with replacements."""
    database = sqlite3.connect(uri(path), uri=True)
    database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return database


def uri(path: Path) -> str:
    """Return the read-only address of `path`; in a folder that cannot be written no lock is tried."""
    immutable = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{immutable}"


def _expression(column: str | sources.Combined) -> str:
    if isinstance(column, str):
        return _quoted(column)
    chosen = ", ".join(map(_quoted, column.columns))
    return f"{chosen if len(column.columns) == 1 else f'COALESCE({chosen})'} AS {_quoted(column.name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_length(path: Path, named: Path) -> None:
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
            f"{named}: the file is cut, its header promises {pages * page} bytes and it has {size}. "
            "Export the report again or copy the file again."
        )


def exported(report: Path) -> SqliteSource:
    """Export `report` with the `nsys` on PATH to a temporary folder, which goes away with what this returns."""
    command = shlex.join(["nsys", "export", "-t", "sqlite", "-o", f"{report.stem}.sqlite", report.name])
    program = shutil.which("nsys")
    if not program:
        raise ReadError(
            f"{report}: an Nsight Systems report, which only `nsys` itself can open, and `nsys` is not on PATH. "
            f"Export it where Nsight Systems is installed: `{command}`."
        )
    with ExitStack() as cleanup:
        target = Path(tempfile.mkdtemp(prefix="perfkit-"), "report.sqlite")
        cleanup.callback(shutil.rmtree, target.parent, ignore_errors=True)
        _export(program, report, target, command)
        source = SqliteSource(target, report)
        weakref.finalize(source, cleanup.pop_all().close)
        return source


def _export(program: str, report: Path, target: Path, command: str) -> None:
    """Run `nsys export`; raise ReadError with its last words if it fails."""
    try:
        done = subprocess.run(
            [program, "export", "-t", "sqlite", "-o", str(target), str(report.absolute())],
            stdin=subprocess.DEVNULL,  # an nsys that asks something gets no answer instead of waiting for one
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as e:
        raise ReadError(f"{report}: `{command}` cannot be run ({e}). Export it where Nsight Systems works.") from e
    if done.returncode or not target.is_file():
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        last = "".join(c if c.isprintable() else "?" for c in words[0][:LAST_WORDS])
        raise ReadError(
            f"{report}: `{command}` failed with status {done.returncode}: {last}. "
            "A report newer than the installed nsys needs the nsys it was recorded with."
        )
