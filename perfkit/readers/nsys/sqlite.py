"""An export in one SQLite file: numeric columns from its pages, or through sqlite3; text through sqlite3.

sqlite3 makes an object of each cell, which takes six times as long as the pages do. It reads the
tables that are not the plain case of `pages`. A cell of SQLite holds any type, whatever its column
declares: where one is no whole number, the first such cell is looked for, to name it.
"""

import hashlib
import os
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.allocator import use_freed_memory_again
from perfkit.errors import ReadError
from perfkit.readers.nsys import pages, sources

THREADS = 2  # more gain little
BATCH_ROWS = 1 << 16
NVPROF = "StringTable"  # nvprof wrote CUPTI_ACTIVITY_KIND_ tables too, of other columns
STRINGS_AT_ONCE = 500  # below SQLite's limit on the number of parameters
LISTED = "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
# A view is a program: it may never end, or make texts that no file of this size holds.
STEPS = 10**6  # of SQLite's machine between two looks at how many there were
STEPS_PER_BYTE = 100
LEAST_STEPS, LEAST_LENGTH = 10**8, 10**6
MOST_LENGTH = 10**9  # bytes of a text that SQLite makes
ROW_BYTES = 4  # a row takes at least so many bytes of the file
MOST_ROWS = 2**31 - 2  # that sqlite3 fetches at once
KEPT_TEXTS = 100_000
MAGIC = b"NVIDIA Tegra Profiler Report"
LAST_WORDS = 300  # characters of the last line that nsys printed
# Environment variable: the folder for exports that whoever started this process removes.
EXPORTS = "PERFKIT_EXPORTS"
# What sqlite3 raises on a damaged file; the last where the message holds damaged bytes of a name.
FAULTS = (sqlite3.Error, UnicodeDecodeError)


Work = Callable[[int, pa.Table], sources.Made]  # what to do with rows, and how many lie before them


class SqliteSource:
    """An export in one SQLite file, checked on opening for being cut or damaged; errors call it `named`."""

    def __init__(self, path: Path, named: Path | None = None) -> None:
        self.path = path
        self._named = named or path
        self._size = path.stat().st_size
        self._views: set[str] = set()
        _check_length(path, self._named)
        if not self._columns:
            raise ReadError(f"{self._named}: the database has no tables. Export the report again.")

    def damage(self, table: str, finding: str) -> ReadError:
        """Return the error that says what is wrong, with the path of the file; every table is in that one."""
        return sources.damaged(self._named, "database", finding)

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        kinds = {str(name): kind for name, kind in self._fetched(LISTED)}
        self._views = {name for name, kind in kinds.items() if kind == "view"}
        return {
            n: [str(row[1]) for row in self._fetched(f"PRAGMA table_info({_quoted(n)})")]
            for n in kinds
        }

    def _rows_of(self, name: str) -> str:
        """Return what SQL selects the rows of a table or view from; each has a `rowid`.

        SQLite may return the rows of a view in another order for other columns, so a view is made
        whole first.
        """
        if name not in self._views:
            return _quoted(name)
        most = min(self._size // ROW_BYTES, MOST_ROWS) + 1
        whole = f"every AS MATERIALIZED (SELECT * FROM {_quoted(name)} LIMIT {most})"
        return f"(WITH {whole} SELECT row_number() OVER () AS rowid, * FROM every)"

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
        return bool(name and self._fetched(f"SELECT 1 FROM {self._rows_of(name)} LIMIT 1"))

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`; stops at the first."""
        name = sources.resolve(table, self._columns)
        if not name or column not in self.columns(table):
            return False
        marks = ",".join("?" * len(values))
        cell = _quoted(column)
        sql = f"SELECT 1 FROM {self._rows_of(name)} WHERE {cell} IN ({marks}) LIMIT 1"
        return bool(self._fetched(sql, tuple(values)))

    def convert(
        self,
        table: str,
        columns: Sequence[str | sources.Combined],
        make: Callable[[pa.Table], sources.Made],
    ) -> list[sources.Made]:
        """Apply `make` to row ranges of those numeric `columns` that exist, on two threads."""
        return self._each(table, columns, lambda _: lambda _, rows: make(rows))

    def stacked(
        self,
        table: str,
        columns: Sequence[str | sources.Combined],
        make: Callable[[pa.Table], sources.Columns],
    ) -> sources.Columns:
        """Return what `make` returns for row ranges of those numeric `columns` that exist, all together."""
        stacks: list[sources.Stack] = []

        def start(rows: int) -> Work[None]:
            use_freed_memory_again(rows)
            stacks[:] = [sources.Stack(rows)]
            return lambda place, part: stacks[0].put(place, make(part))

        self._each(table, columns, start)
        return (stacks[0].columns if stacks else {}) or make(pa.table({}))

    def _each(
        self,
        table: str,
        columns: Sequence[str | sources.Combined],
        start: Callable[[int], Work[sources.Made]],
    ) -> list[sources.Made]:
        """Do what `start` returns, for so many rows, on row ranges; where SQLite must be asked it starts again."""
        name = sources.resolve(table, self._columns) or ""
        wanted = sources.available(columns, self.columns(table))
        try:
            return self._from_pages(name, wanted, start) if wanted else []
        except (pages.Unusual, OSError):  # SQLite tells what is wrong
            return self._from_rows(name, wanted, start)

    def _from_pages(
        self,
        name: str,
        columns: list[str | sources.Combined],
        start: Callable[[int], Work[sources.Made]],
    ) -> list[sources.Made]:
        """Do what `_each` does without SQLite, on two threads."""
        stored, paged = sources.stored(columns), self._paged(name)
        work = start(int(paged.rows[-1]))
        inside = [column for column in stored if column != paged.row_id]
        wanted = [paged.places[column] for column in inside]

        def one(leaves: pages.Int, before: pages.Int) -> sources.Made:
            count = int(before[-1] - before[0])
            read = paged.file.columns(leaves, count, wanted, len(paged.places))
            found = dict(zip(inside, read, strict=True))
            if paged.row_id in stored:  # every id from the first to the last is there
                found[paged.row_id] = pa.array(np.arange(before[0], before[-1]) + paged.first)
            made = [
                found[c] if isinstance(c, str) else pc.coalesce(*(found[s] for s in c.columns))
                for c in columns
            ]
            return work(int(before[0]), pa.table(made, [*map(sources.label, columns)]))

        return paged.each(one)

    def _paged(self, name: str) -> "_Paged":
        """Return the pages of a table; Unusual where they are not the plain case."""
        of = _quoted(name)
        described = self._fetched(f"PRAGMA table_xinfo({of})")
        if name in self._views or any(hidden for *_, hidden in described):
            raise pages.Unusual  # computed
        places = {column: number for number, column, *_ in described}
        # One aggregate at a time is answered from the index's ends; both in one SELECT read every
        # row.
        ends = ", ".join(f"(SELECT {end}(rowid) FROM {of})" for end in ("min", "max"))
        where = "FROM sqlite_master WHERE type = 'table' AND name = ?"
        ((root, first, last),) = self._fetched(f"SELECT rootpage, {ends} {where}", (name,))
        file = pages.Pages(self.path)
        return _Paged(file, places, _row_id(described), first, *file.leaves(root, first, last))

    def _from_rows(
        self,
        name: str,
        columns: list[str | sources.Combined],
        start: Callable[[int], Work[sources.Made]],
    ) -> list[sources.Made]:
        """Do what `_each` does through sqlite3."""

        def finding(problem: object) -> ReadError:
            return self.damage(name, self._foreign(name, columns) or str(problem))

        of = self._rows_of(name)
        if name not in self._views:
            of = f"{of} NOT INDEXED"  # an index of a damaged file may lack rows
        most = self._size // ROW_BYTES
        ((count,),) = self._fetched(f"SELECT count(*) FROM (SELECT 1 FROM {of} LIMIT {most + 1})")
        if count > most:
            raise self.damage(name, f"more than {most} rows in {self._size} bytes")
        work, made, read = start(count), [], 0
        sql = (
            f"SELECT {', '.join(map(_expression, columns))} FROM {of} ORDER BY rowid LIMIT {count}"
        )
        labels = [sources.label(column) for column in columns]
        try:
            with closing(connected(self.path)) as database:
                cursor = database.execute(sql)
                while batch := cursor.fetchmany(BATCH_ROWS):
                    cells = dict(zip(labels, zip(*batch, strict=True), strict=True))
                    parts = {
                        name: pa.chunked_array([pa.array(column)]) for name, column in cells.items()
                    }
                    numbers = {
                        name: sources.integers(part, name, finding) for name, part in parts.items()
                    }
                    made.append(work(read, pa.table(numbers)))
                    read += len(batch)
        except (*FAULTS, pa.ArrowException, OverflowError) as e:
            raise finding(e) from e
        if read != count:
            raise self.damage(name, f"{read:,} of the {count:,} rows of {name} are found")
        return made

    def _foreign(self, name: str, columns: list[str | sources.Combined]) -> str:
        """Say which is the first cell of these columns that is no whole number; empty if all are."""
        for column in sources.stored(columns):
            cell = _quoted(column)
            start = f"CASE typeof({cell}) WHEN 'real' THEN {cell} ELSE substr({cell}, 1, 40) END"
            others = f"typeof({cell}) NOT IN ('integer', 'null')"
            cells = self._fetched(
                f"SELECT rowid, typeof({cell}), {start} FROM {self._rows_of(name)} "
                f"WHERE {others} LIMIT 1"
            )
            for row, kind, value in cells:
                return (
                    f"{name}.{column} holds {sources.shown(value)} ({kind}) in row {row}, not a "
                    "whole number"
                )
        return ""

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None, present ones hold anything."""
        name = sources.resolve(table, self._columns)
        if not name:
            return []
        present, asked = self.columns(table), list(columns)
        chosen = ", ".join(_quoted(c) if c in present else "NULL" for c in asked)
        return [
            dict(zip(asked, row, strict=True))
            for row in self._fetched(f"SELECT {chosen} FROM {self._rows_of(name)}")
        ]

    def text(self, table: str, column: str) -> sources.Texts:
        """Return a text column in the order of `convert`, no text where a cell is none."""
        name = sources.resolve(table, self._columns)
        if not name or column not in self.columns(table):
            return sources.encoded(pa.chunked_array([], pa.binary()))
        try:
            paged = self._paged(name)
            place, width = paged.places[column], len(paged.places)

            def one(leaves: pages.Int, before: pages.Int) -> pa.Array:
                return paged.file.texts(leaves, int(before[-1] - before[0]), place, width)

            return sources.encoded(pa.chunked_array(paged.each(one)))
        except (pages.Unusual, OSError):
            cells = self._fetched(
                f"SELECT {_quoted(column)} FROM {self._rows_of(name)} ORDER BY rowid"
            )
            texts = [value if isinstance(value, str) else None for (value,) in cells]
            return sources.encoded(pa.chunked_array([pa.array(texts, pa.string())]))

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
            pairs += self._fetched(
                f"SELECT id, value FROM {self._rows_of(name)} WHERE id IN ({marks})", some
            )
        return sources.unambiguous((number, value) for number, value in pairs)

    def nameless(self) -> str:
        """Say which values of StringIds are no text; empty if all are."""
        name = sources.resolve("StringIds", self._columns)
        if not name or "value" not in self.columns(name):
            return ""
        ((count,),) = self._fetched(
            f"SELECT count(*) FROM {self._rows_of(name)} "
            "WHERE typeof(value) NOT IN ('text', 'null')"
        )
        return f"{count} values of StringIds are no text" if count else ""


@dataclass(frozen=True)
class _Paged:
    """The pages of a table: where its columns are in a row, its leaves, and how many rows lie before each."""

    file: pages.Pages
    places: dict[str, int]
    row_id: str
    first: int
    leaves: pages.Int
    rows: pages.Int

    def each(self, work: Callable[[pages.Int, pages.Int], sources.Made]) -> list[sources.Made]:
        """Do something with all leaves, some at a time, on two threads."""

        def one(i: int) -> sources.Made:
            return work(self.leaves[i : i + pages.BATCH], self.rows[i : i + pages.BATCH + 1])

        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(one, range(0, len(self.leaves), pages.BATCH)))


def is_export(path: Path) -> bool:
    """Say whether an SQLite file holds Nsight Systems' tables; a damaged one is claimed to be explained."""
    try:
        with closing(connected(path)) as database:
            names = [str(name) for name, _ in database.execute(LISTED)]
    except FAULTS:
        return True
    return sources.are_of_nsys(names) and NVPROF not in names


class _Texts(dict[bytes, str]):
    """Texts by their bytes: most are decoded once, however many rows hold them."""

    def __missing__(self, raw: bytes) -> str:
        if len(self) >= KEPT_TEXTS:  # where each row has one of its own, all would be held twice
            self.clear()
        self[raw] = text = raw.decode("utf-8", errors="replace")
        return text


def connected(path: Path) -> sqlite3.Connection:
    """Open `path` read-only; text that is not UTF-8 (user names, paths) is read with replacements.

    A query that takes more steps, or makes a longer text, than a file of this size explains is an
    sqlite3.Error.
    """
    database = sqlite3.connect(uri(path), uri=True)
    database.text_factory = _Texts().__getitem__
    size = path.stat().st_size
    length = min(max(size, LEAST_LENGTH), MOST_LENGTH)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)
    looks = iter(range(max(STEPS_PER_BYTE * size, LEAST_STEPS) // STEPS))
    database.set_progress_handler(lambda: next(looks, None) is None, STEPS)
    return database


def uri(path: Path) -> str:
    """Return the read-only address of `path`; in a folder that cannot be written no lock is tried."""
    immutable = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    return f"{path.resolve().as_uri()}?mode=ro{immutable}"


def _expression(column: str | sources.Combined) -> str:
    if isinstance(column, str):
        return _quoted(column)
    chosen = ", ".join(map(_quoted, column.columns))
    return (
        f"{chosen if len(column.columns) == 1 else f'COALESCE({chosen})'} AS {_quoted(column.name)}"
    )


def _row_id(described: list[tuple[Any, ...]]) -> str:
    """Return the column that is the row's id, which is not stored with the others; empty if none is."""
    keys = [(column, kind) for _, column, kind, *_, key, _ in described if key]
    return keys[0][0] if len(keys) == 1 and keys[0][1].upper() == "INTEGER" else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_length(path: Path, named: Path) -> None:
    """Raise ReadError if the file is shorter than its header says (an interrupted export or copy)."""
    with path.open("rb") as file:
        head = file.read(100)
    promised = int.from_bytes(head[28:32], "big") * pages.page_size(head)
    size = path.stat().st_size
    # The page count is only valid when the file was last written by a version that keeps it.
    if head[24:28] == head[92:96] and promised > size:
        raise ReadError(
            f"{named}: the file is cut, its header promises {promised} bytes and it has {size}. "
            "Export the report again or copy the file again."
        )


def exported(report: Path) -> SqliteSource:
    """Export `report` with the `nsys` on PATH to a temporary folder, which goes away with what this returns."""
    command = shlex.join(
        ["nsys", "export", "-t", "sqlite", "-o", f"{report.stem}.sqlite", report.name]
    )
    program = shutil.which("nsys")
    if not program:
        raise ReadError(
            f"{report}: an Nsight Systems report, which only `nsys` itself can open, and `nsys` is "
            f"not on PATH. Export it where Nsight Systems is installed: `{command}`."
        )
    lent = os.environ.get(EXPORTS)
    if lent:
        target = Path(lent, f"{_state(report)}.sqlite")
        if not target.is_file():
            unfinished = target.with_suffix(".part.sqlite")
            _export(program, report, unfinished, command)
            unfinished.replace(target)
        return SqliteSource(target, report)
    with ExitStack() as cleanup:
        target = Path(tempfile.mkdtemp(prefix="perfkit-"), "report.sqlite")
        cleanup.callback(_remove, target.parent, os.getpid())
        _export(program, report, target, command)
        source = SqliteSource(target, report)
        weakref.finalize(source, cleanup.pop_all().close)
        return source


def _state(report: Path) -> str:
    """Return what tells this report with its content from others."""
    stat = report.stat()
    told = f"{report.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    return hashlib.sha256(os.fsencode(told)).hexdigest()[:16]


def _remove(folder: Path, process: int) -> None:
    """Remove a folder at the end of the process that made it; others, which were forked from it, may end before."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _export(program: str, report: Path, target: Path, command: str) -> None:
    """Run `nsys export`; raise ReadError with its last words if it fails."""
    try:
        done = subprocess.run(
            [program, "export", "-t", "sqlite", "-o", str(target), str(report.absolute())],
            # an nsys that asks something gets no answer instead of waiting for one
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as e:
        raise ReadError(
            f"{report}: `{command}` cannot be run ({e}). Export it where Nsight Systems works."
        ) from e
    if done.returncode or not target.is_file():
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        last = "".join(c if c.isprintable() else "?" for c in words[0][:LAST_WORDS])
        raise ReadError(
            f"{report}: `{command}` failed with status {done.returncode}: {last}. "
            "A report newer than the installed nsys needs the nsys it was recorded with."
        )
