"""rocpd: the SQLite database of ``rocprofv3`` and ``rocprof-sys``, in the schemas 3 and 4.

Names of tables end with a suffix for each process that wrote into the file; numbers and names of
one process are its own.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from perfkit.errors import ReadError
from perfkit.profile import node_of
from perfkit.readers.rocpd.recording import (
    AGAIN,
    COPIES,
    COUNTED,
    KERNELS,
    REGIONS,
    SIZES,
    Agent,
    Columns,
    Recording,
    gpus,
    numbered,
    together,
    units,
)
from perfkit.readers.text import head

MAGIC = b"SQLite format 3\0"
PAGE_SIZE, PAGES = slice(16, 18), slice(28, 32)  # in the header of a database
NAMED = re.compile(r"rocpd_([a-z_]+?)(_[0-9a-f]{8}_[0-9a-f_]{27})?")
OLD = {"rocpd_api", "rocpd_op"}  # tables of rocmProfileData, an older tool
# The table of each kind of row.
TABLES = {"kernels": "kernel_dispatch", "copies": "memory_copy", "regions": "region"}


class File(NamedTuple):
    """The tables of one process: their suffix, and the columns of each by its name without the suffix."""

    suffix: str
    columns: dict[str, tuple[str, ...]]

    def table(self, name: str) -> str:
        """Return the name of a table in SQL."""
        return f'"rocpd_{name}{self.suffix}"'


def sniff(path: Path) -> bool:
    """Say whether `path` is an SQLite database with tables of rocpd."""
    if head(path, len(MAGIC)) != MAGIC:
        return False
    try:
        with closing(_opened(path)) as database:
            return any(name.startswith("rocpd_") for name in _tables(database))
    except sqlite3.Error:
        return False


def read(path: Path) -> Recording:
    """Return what a database holds; its rows are read when asked for."""
    _check_whole(path)
    try:
        with closing(_opened(path)) as database:
            return _recording(path, database)
    except sqlite3.Error as e:
        raise _damaged(path, e) from e


def _recording(path: Path, database: sqlite3.Connection) -> Recording:
    files = _files(path, database)
    begin, end = _extent(path, database, files)
    rows = {
        kind: partial(_read, path, files, kind)
        for kind, name in TABLES.items()
        if any(_count(database, file, name) for file in files)
    }
    if any(_count(database, file, "pmc_event") for file in files):
        rows["counted"] = partial(_read, path, files, "counted")
    hosts = {str(name) for (name,) in _rows(database, files[0], "info_node", ("hostname",))}
    schema = dict(_rows(database, files[0], "metadata", ("tag", "value"))).get("schema_version")
    return Recording(
        begin,
        end,
        [agent for file in files for agent in _agents(database, file).values()],
        rows,
        _categories(database, files),
        f"schema {schema}",
        node_of(hosts.pop()) if len(hosts) == 1 else "",
    )


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode("utf-8", errors="replace")
    return database


def _tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [str(name) for (name,) in found]


def _check_whole(path: Path) -> None:
    """Refuse a database that is shorter than its header says."""
    start = head(path, 100)
    page = int.from_bytes(start[PAGE_SIZE], "big")
    size = (1 << 16 if page == 1 else page) * int.from_bytes(start[PAGES], "big")
    if path.stat().st_size < size:
        raise ReadError(
            f"{path}: the database is cut: {path.stat().st_size:,} of {size:,} bytes. "
            "Copy it again."
        )


def _damaged(path: Path, error: Exception) -> ReadError:
    return ReadError(f"{path}: the database cannot be read ({str(error)[:200]}). {AGAIN}")


def _files(path: Path, database: sqlite3.Connection) -> list[File]:
    """Return the tables of each process; ReadError for databases of other tools of AMD."""
    names = _tables(database)
    if set(names) & OLD:
        raise ReadError(
            f"{path}: a database of rocmProfileData (.rpd), which is no rocpd of rocprofv3. {AGAIN}"
        )
    by_suffix: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in names:
        match = NAMED.fullmatch(name)
        if match:
            info = database.execute(f'PRAGMA table_info("{name}")')
            columns = tuple(str(row[1]) for row in info)
            by_suffix.setdefault(match[2] or "", {})[match[1]] = columns
    files = [File(suffix, columns) for suffix, columns in sorted(by_suffix.items())]
    if not any(set(file.columns) & set(TABLES.values()) for file in files):
        raise ReadError(f"{path}: a rocpd database without a table of what ran. {AGAIN}")
    return files


def _count(database: sqlite3.Connection, file: File, name: str) -> int:
    if name not in file.columns:
        return 0
    return int(database.execute(f"SELECT count(*) FROM {file.table(name)}").fetchone()[0])


def _rows(
    database: sqlite3.Connection, file: File, name: str, columns: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return columns of a table, None for one that it lacks; nothing without the table."""
    own = file.columns.get(name)
    if own is None:
        return []
    listed = ", ".join(f'"{column}"' if column in own else "NULL" for column in columns)
    return database.execute(f"SELECT {listed} FROM {file.table(name)}").fetchall()


def _extent(path: Path, database: sqlite3.Connection, files: Iterable[File]) -> tuple[int, int]:
    """Return when the recording began and ended: as the processes say, and around all that ran."""
    begins, ends = [], []
    for file in files:
        for init, fini in _rows(database, file, "info_process", ("init", "fini")):
            if isinstance(init, int) and isinstance(fini, int) and 0 < init < fini:
                begins.append(init)
                ends.append(fini)
        for name in TABLES.values():
            if _count(database, file, name):
                start, end = _span(file, name)
                query = f"SELECT min({start}), max({end}) FROM {_joined(file, name)}"
                first, last = database.execute(query).fetchone()
                if isinstance(first, int) and isinstance(last, int):
                    begins.append(first)
                    ends.append(last)
    if not begins:
        raise ReadError(f"{path}: the database holds nothing that ran. {AGAIN}")
    return min(begins), max(max(ends), min(begins))


def _span(file: File, name: str) -> tuple[str, str]:
    """Return how SQL names the start and the end of a row: columns of it, or rows of the time stamps."""
    if "start" in file.columns[name]:
        return 'd."start"', 'd."end"'
    return "b.value", "e.value"


def _joined(file: File, name: str) -> str:
    """Return the tables of a query for what ran: `d` itself, `b` and `e` its times, `t` its track, `v` its event."""
    columns = file.columns[name]
    parts = [f"{file.table(name)} d"]
    if "start" not in columns:
        stamps = file.table("timestamp")
        parts.append(f"JOIN {stamps} b ON b.id = d.start_id JOIN {stamps} e ON e.id = d.end_id")
    if "track_id" in columns:
        parts.append(f"LEFT JOIN {file.table('track')} t ON t.id = d.track_id")
    if "event" in file.columns:
        parts.append(f"LEFT JOIN {file.table('event')} v ON v.id = d.event_id")
    return " ".join(parts)


def _selected(
    database: sqlite3.Connection, file: File, name: str, columns: Sequence[str]
) -> dict[str, list[Any]]:
    """Return start, end, link and these columns of what ran, those of its track where it has none."""
    start, end = _span(file, name)
    own = file.columns[name]
    track = file.columns.get("track", ()) if "track_id" in own else ()
    wanted = [f'{start} AS "start"', f'{end} AS "end"']
    has_event = "event" in file.columns
    # Without recorded calls a link leads nowhere: the calls were not asked for, and not lost.
    is_linked = has_event and _count(database, file, "region") > 0
    wanted.append(f"{'v.stack_id' if is_linked else 'NULL'} AS link")
    wanted.append(f"{'v.category_id' if has_event else 'NULL'} AS category")
    for column in columns:
        place = f"t.{column}" if column in track else "NULL"
        if column in own:
            place = f"d.{column}"
        wanted.append(f"{place} AS {column}")
    query = f"SELECT {', '.join(wanted)} FROM {_joined(file, name)}"
    rows = database.execute(query).fetchall()
    names = ("start", "end", "link", "category", *columns)
    found = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {name: list(values) for name, values in zip(names, found, strict=True)}


def _read(path: Path, files: Sequence[File], kind: str) -> Columns:
    """Return the columns of one kind of row, of all processes."""
    make, names = KINDS[kind]
    try:
        with closing(_opened(path)) as database:
            parts = [make(database, file) for file in files if _has(database, file, kind)]
    except sqlite3.Error as e:
        raise _damaged(path, e) from e
    return together(parts, names)


def _has(database: sqlite3.Connection, file: File, kind: str) -> bool:
    return _count(database, file, TABLES.get(kind, "pmc_event")) > 0


def _kernels(database: sqlite3.Connection, file: File) -> dict[str, Any]:
    wanted = ("id", "pid", "agent_id", "stream_id", "kernel_id", "event_id", "group_segment_size")
    columns = _selected(database, file, "kernel_dispatch", (*wanted, *SIZES))
    symbols = _symbols(database, file)
    kernels = [symbols.get(kernel, (None, None)) for kernel in columns["kernel_id"]]
    return {
        **columns,
        "process": columns["pid"],
        "stream": columns["stream_id"],
        "gpu": gpus(_agents(database, file), columns["agent_id"]),
        "name": [name for name, _ in kernels],
        "registers": [count for _, count in kernels],
    }


def _symbols(database: sqlite3.Connection, file: File) -> dict[Any, tuple[str | None, int | None]]:
    """Return name and registers of each kernel: those of the vector unit and of its accumulators."""
    wanted = ("id", "display_name", "kernel_name", "arch_vgpr_count", "accum_vgpr_count")
    found = {}
    for id, shown, mangled, vector, accumulators in _rows(
        database, file, "info_kernel_symbol", wanted
    ):
        name = str(shown or mangled or "").removesuffix(".kd").strip()
        count = vector + (accumulators or 0) if isinstance(vector, int) else None
        found[id] = name or None, count
    return found


def _agents(database: sqlite3.Connection, file: File) -> dict[Any, Agent]:
    wanted = ("id", "type", "type_index", "product_name", "name", "extdata")
    found = {}
    for id, kind, number, product, name, more in _rows(database, file, "info_agent", wanted):
        found[id] = Agent(str(kind), numbered(number), str(product or name or ""), _units(more))
    return found


def _units(more: object) -> int | None:
    """Return the number of compute units that the further data of a device state."""
    try:
        return units(json.loads(str(more)).get("cu_count"))
    except (ValueError, AttributeError, RecursionError):
        return None


def _strings(database: sqlite3.Connection, file: File) -> dict[Any, str]:
    return {id: str(text) for id, text in _rows(database, file, "string", ("id", "string"))}


def _copies(database: sqlite3.Connection, file: File) -> dict[str, Any]:
    wanted = ("pid", "stream_id", "size", "name_id", "src_agent_id", "dst_agent_id")
    columns = _selected(database, file, "memory_copy", wanted)
    text, agents = _strings(database, file), _agents(database, file)
    return {
        **columns,
        "process": columns["pid"],
        "stream": columns["stream_id"],
        "direction": [text.get(id, "") for id in columns["name_id"]],
        "source": gpus(agents, columns["src_agent_id"]),
        "target": gpus(agents, columns["dst_agent_id"]),
    }


def _regions(database: sqlite3.Connection, file: File) -> dict[str, Any]:
    columns = _selected(database, file, "region", ("pid", "tid", "name_id"))
    text = _strings(database, file)
    return {
        **columns,
        "process": columns["pid"],
        "thread": columns["tid"],
        "name": [text.get(id) for id in columns["name_id"]],
        "category": [text.get(id, "") for id in columns["category"]],
    }


def _categories(database: sqlite3.Connection, files: Iterable[File]) -> set[str]:
    """Return the categories of all regions."""
    found: set[str] = set()
    for file in files:
        if _count(database, file, "region"):
            text = _strings(database, file)
            columns = _selected(database, file, "region", ())
            found |= {text.get(id, "") for id in columns["category"]}
    return found


def _counted(database: sqlite3.Connection, file: File) -> dict[str, Any]:
    """Return the counters of dispatches, one row for each unit that counted; those of other events are left out."""
    if not _has(database, file, "kernels"):
        return {name: [] for name in COUNTED}
    kernels = _kernels(database, file)
    row_of = {event: row for row, event in enumerate(kernels["event_id"])}
    names = dict(_rows(database, file, "info_pmc", ("id", "name")))
    values = [
        (row_of[event], str(names.get(counter, counter)), value)
        for event, counter, value in _rows(
            database, file, "pmc_event", ("event_id", "pmc_id", "value")
        )
        if event in row_of
    ]
    rows = [row for row, _, _ in values]
    columns = {name: [kernels[name][row] for row in rows] for name in COUNTED if name in kernels}
    return {
        **columns,
        "dispatch": rows,
        "counter": [counter for _, counter, _ in values],
        "value": [value for _, _, value in values],
    }


# How the rows of each kind are read, and the columns that they have.
KINDS = {
    "kernels": (_kernels, KERNELS),
    "copies": (_copies, COPIES),
    "regions": (_regions, REGIONS),
    "counted": (_counted, COUNTED),
}
