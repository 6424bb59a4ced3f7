"""ROCm profiler (rocpd): the SQLite database of ``rocprofv3`` and ``rocprof-sys``, one per process.

Record with ``rocprofv3 --sys-trace --output-format rocpd -- PROGRAM`` on AMD's GPUs; load the folder of several ranks.
Databases of the schemas 3 and 4 are read, also those of several processes in one file. Times are those of the
machine's clock since it booted, so that ranks of two nodes share no axis.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.names.families import family, short
from perfkit.profile import Loader, Missing, Profile, node_of
from perfkit.readers.text import capture_table, category, head

VERSION = 1
KIND = "timeline"
MAGIC = b"SQLite format 3\0"
PAGE_SIZE, PAGES = slice(16, 18), slice(28, 32)  # in the header of a database
NAMED = re.compile(r"rocpd_([a-z_]+?)(_[0-9a-f]{8}_[0-9a-f_]{27})?")
OLD = {"rocpd_api", "rocpd_op"}  # tables of rocmProfileData, an older tool
AGAIN = "Record again: rocprofv3 --sys-trace --output-format rocpd -- PROGRAM."
ASKED = {
    "kernel_dispatch": ("KERNELS", "when did kernels run?", "rocprofv3 --kernel-trace"),
    "memory_copy": ("COPIES", "what was copied?", "rocprofv3 --memory-copy-trace"),
    "region": (
        "API_CALLS",
        "which HIP calls did the CPU make?",
        "rocprofv3 --hip-trace --marker-trace",
    ),
}
# What a copy's name says, without "MEMORY_COPY_".
DIRECTIONS = {
    "HOST_TO_DEVICE": "H2D",
    "DEVICE_TO_HOST": "D2H",
    "DEVICE_TO_DEVICE": "D2D",
    "HOST_TO_HOST": "H2H",
}
CALLS = ("HIP", "HSA")  # begin the categories of calls of the runtime; the others are ranges
LARGEST = 1 << 62


class Agent(NamedTuple):
    """A device of the machine."""

    kind: str
    number: int
    name: str
    units: int | None


def sniff(path: Path) -> bool:
    """Say whether `path` is an SQLite database with tables of rocpd."""
    if head(path, len(MAGIC)) != MAGIC:
        return False
    try:
        with closing(_opened(path)) as database:
            return any(name.startswith("rocpd_") for name in _tables(database))
    except sqlite3.Error:
        return False


def read(path: Path) -> Profile:
    """Read a database; its tables are read when asked for."""
    _check_whole(path)
    try:
        with closing(_opened(path)) as database:
            return _profile(path, database)
    except sqlite3.Error as e:
        raise _damaged(path, e) from e


def _profile(path: Path, database: sqlite3.Connection) -> Profile:
    files = _files(path, database)
    begin, end = _extent(path, database, files)
    rows = {name: sum(_count(database, file, name) for file in files) for name in ASKED}
    loaders: dict[str, Loader] = {}
    for name, maker in (("kernel_dispatch", _kernels), ("memory_copy", _copies)):
        if rows[name]:
            loaders[ASKED[name][0]] = partial(_loaded, path, files, begin, maker)
    if rows["region"]:
        kinds = _categories(database, files)
        if any(_is_call(kind) for kind in kinds):
            loaders["API_CALLS"] = partial(_loaded, path, files, begin, _calls)
        if any(not _is_call(kind) for kind in kinds):
            loaders["RANGES"] = partial(_loaded, path, files, begin, _ranges)
    devices = _devices(database, files)
    if len(devices):
        loaders["DEVICES"] = partial(_same, devices)
    hosts = {str(name) for (name,) in _rows(database, files[0], "info_node", ("hostname",))}
    schema = dict(_rows(database, files[0], "metadata", ("tag", "value"))).get("schema_version")
    return Profile(
        reader="rocpd",
        path=path,
        capture=capture_table(path, "rocpd", f"schema {schema}"[:40], None, end - begin),
        loaders=loaders,
        missing=tuple(Missing(*ASKED[name]) for name in ASKED if not rows[name]),
        node=node_of(hosts.pop()) if len(hosts) == 1 else "",
    )


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


class File(NamedTuple):
    """The tables of one process: their suffix, and the columns of each by its name without the suffix."""

    suffix: str
    columns: dict[str, tuple[str, ...]]

    def table(self, name: str) -> str:
        """Return the name of a table in SQL."""
        return f'"rocpd_{name}{self.suffix}"'


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
    if not any(set(file.columns) & set(ASKED) for file in files):
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


def _extent(path: Path, database: sqlite3.Connection, files: Sequence[File]) -> tuple[int, int]:
    """Return when the recording began and ended: as the processes say, and around all that ran."""
    begins, ends = [], []
    for file in files:
        for init, fini in _rows(database, file, "info_process", ("init", "fini")):
            if isinstance(init, int) and isinstance(fini, int) and 0 < init < fini:
                begins.append(init)
                ends.append(fini)
        for name in ASKED:
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
        place = f"d.{column}" if column in own else f"t.{column}" if column in track else "NULL"
        wanted.append(f"{place} AS {column}")
    query = f"SELECT {', '.join(wanted)} FROM {_joined(file, name)}"
    rows = database.execute(query).fetchall()
    names = ("start", "end", "link", "category", *columns)
    found = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {name: list(values) for name, values in zip(names, found, strict=True)}


def _whole(values: Sequence[Any], absent: int = -1) -> np.ndarray:
    """Return whole numbers; ValueError for anything else."""
    taken = [absent if value is None else value for value in values]
    if any(type(value) is not int or abs(value) >= LARGEST for value in taken):
        raise ValueError("a number, a time or an id is no whole number")
    return np.array(taken, np.int64)


def _loaded(path: Path, files: Sequence[File], begin: int, make: Any) -> pd.DataFrame:
    """Return one table of all processes."""
    try:
        with closing(_opened(path)) as database:
            frames = [frame for file in files for frame in make(database, file, begin)]
    except sqlite3.Error as e:
        raise _damaged(path, e) from e
    except (ValueError, TypeError, KeyError, OverflowError) as e:
        raise ReadError(f"{path}: the database holds a wrong value ({e}). {AGAIN}") from e
    table = frames[0][0]
    columns = [frame.astype(dict.fromkeys(_texts(frame), object)) for _, frame in frames]
    made: pd.DataFrame = table.make(pd.concat(columns, ignore_index=True))
    return made


def _texts(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name, dtype in frame.dtypes.items() if str(dtype) == "category"]


Made = Iterator[tuple[Any, pd.DataFrame]]


def _times(columns: dict[str, list[Any]], begin: int) -> dict[str, Any]:
    start, end = _whole(columns["start"]), _whole(columns["end"])
    return {"rank": 0, "start_ns": start - begin, "dur_ns": end - start}


def _correlation(columns: dict[str, list[Any]]) -> np.ndarray:
    """Return the stack id of events, which a call shares with what it started; 0 is none."""
    link = _whole(columns["link"])
    return np.where(link > 0, link, -1)


def _kernels(database: sqlite3.Connection, file: File, begin: int) -> Made:
    """Yield KERNELS of a process; the size of a grid is in work-items."""
    if not _count(database, file, "kernel_dispatch"):
        return
    sizes = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
    columns = _selected(
        database,
        file,
        "kernel_dispatch",
        ("pid", "agent_id", "stream_id", "kernel_id", "group_segment_size", *sizes),
    )
    symbols = {row[0]: row[1:] for row in _symbols(database, file)}
    kernels = [symbols.get(kernel, (None, None)) for kernel in columns["kernel_id"]]
    names = sorted({name for name, _ in kernels if name is not None})
    number = {name: code for code, name in enumerate(names)}
    codes = np.array([number.get(name, -1) for name, _ in kernels], np.int64)
    group = [np.maximum(_whole(columns[f"workgroup_size_{axis}"], 1), 1) for axis in "xyz"]
    grid = [np.maximum(_whole(columns[f"grid_size_{axis}"], 1), 1) for axis in "xyz"]
    blocks = [-(-items // threads) for items, threads in zip(grid, group, strict=True)]
    registers = _whole([count for _, count in kernels])
    yield (
        tables.KERNELS,
        pd.DataFrame(
            {
                **_times(columns, begin),
                "gpu": _gpus(database, file, columns["agent_id"]),
                "process": _whole(columns["pid"]),
                "stream": _whole(columns["stream_id"]),
                "name": category(codes, [short(name) for name in names]),
                "full_name": category(codes, names),
                "family": category(codes, [family(name) for name in names]),
                "correlation": _correlation(columns),
                "grid_blocks": blocks[0] * blocks[1] * blocks[2],
                "block_threads": group[0] * group[1] * group[2],
                "registers": pd.arrays.IntegerArray(registers, registers < 0),
                "shared_bytes": _whole(columns["group_segment_size"], 0),
                "in_graph": False,
            }
        ),
    )


def _symbols(database: sqlite3.Connection, file: File) -> Iterator[tuple[Any, ...]]:
    """Yield id, name and registers of each kernel: those of the vector unit and of its accumulators."""
    wanted = ("id", "display_name", "kernel_name", "arch_vgpr_count", "accum_vgpr_count")
    for id, shown, mangled, vector, accumulators in _rows(
        database, file, "info_kernel_symbol", wanted
    ):
        name = str(shown or mangled or "").removesuffix(".kd").strip()
        count = vector + (accumulators or 0) if isinstance(vector, int) else None
        yield id, name or None, count


def _agents(database: sqlite3.Connection, file: File) -> dict[Any, Agent]:
    wanted = ("id", "type", "type_index", "product_name", "name", "extdata")
    found = {}
    for id, kind, number, product, name, more in _rows(database, file, "info_agent", wanted):
        place = number if isinstance(number, int) and 0 <= number < 1 << 31 else -1
        found[id] = Agent(str(kind), place, str(product or name or ""), _units(more))
    return found


def _units(more: object) -> int | None:
    """Return the number of compute units that the further data of a device state."""
    try:
        count = json.loads(str(more)).get("cu_count")
    except (ValueError, AttributeError, RecursionError):
        return None
    return count if isinstance(count, int) and 0 < count < 1 << 31 else None


def _gpus(database: sqlite3.Connection, file: File, agents: Sequence[Any]) -> np.ndarray:
    """Return the number among the GPUs of each agent, -1 for one that is no GPU."""
    known = _agents(database, file)
    number = {id: agent.number for id, agent in known.items() if agent.kind == "GPU"}
    return np.array([number.get(id, -1) for id in agents], np.int64)


def _devices(database: sqlite3.Connection, files: Sequence[File]) -> pd.DataFrame:
    gpus: dict[int, Agent] = {}
    for file in files:
        for agent in _agents(database, file).values():
            if agent.kind == "GPU" and agent.number >= 0:
                gpus.setdefault(agent.number, agent)
    ordered = [gpus[number] for number in sorted(gpus)]
    columns = {
        "rank": 0,
        "compute_capability": "",
        "memory_bytes": pd.array([None] * len(ordered), dtype="Int64"),
        "memory_bytes_per_s": np.nan,
        "clock_hz": np.nan,
        "gpu": [agent.number for agent in ordered],
        "name": [agent.name for agent in ordered],
        "sm_count": pd.array([agent.units for agent in ordered], dtype="Int64"),
    }
    return tables.DEVICES.make(pd.DataFrame(columns))


def _strings(database: sqlite3.Connection, file: File) -> dict[Any, str]:
    return {id: str(text) for id, text in _rows(database, file, "string", ("id", "string"))}


def _copies(database: sqlite3.Connection, file: File, begin: int) -> Made:
    """Yield COPIES of a process, at the GPU that receives, or else at the one that sends."""
    if not _count(database, file, "memory_copy"):
        return
    columns = _selected(
        database,
        file,
        "memory_copy",
        ("pid", "stream_id", "size", "name_id", "src_agent_id", "dst_agent_id"),
    )
    source = _gpus(database, file, columns["src_agent_id"])
    target = _gpus(database, file, columns["dst_agent_id"])
    gpu = np.where(target >= 0, target, source)
    is_between = (source >= 0) & (target >= 0) & (source != target)
    text = _strings(database, file)
    named = [text.get(id, "").removeprefix("MEMORY_COPY_") for id in columns["name_id"]]
    direction = [DIRECTIONS.get(name, "unknown") for name in named]
    peers = np.where(is_between, "P2P", np.array(direction, dtype=object))
    yield (
        tables.COPIES,
        pd.DataFrame(
            {
                **_times(columns, begin),
                "gpu": gpu,
                "process": _whole(columns["pid"]),
                "stream": _whole(columns["stream_id"]),
                "direction": peers,
                "bytes": _whole(columns["size"], 0),
                "src_memory": _memory(source),
                "dst_memory": _memory(target),
                "peer_gpu": np.where(is_between, source, -1),
                "correlation": _correlation(columns),
            }
        ),
    )


def _memory(gpu: np.ndarray) -> list[str | None]:
    """Return where memory is: rocpd does not say which kind of memory of the CPU it is."""
    return ["device" if number >= 0 else None for number in gpu]


def _is_call(kind: str) -> bool:
    return kind.startswith(CALLS)


def _categories(database: sqlite3.Connection, files: Sequence[File]) -> set[str]:
    """Return the categories of all regions."""
    found: set[str] = set()
    for file in files:
        if _count(database, file, "region"):
            text = _strings(database, file)
            columns = _selected(database, file, "region", ())
            found |= {text.get(id, "") for id in columns["category"]}
    return found


def _regions(
    database: sqlite3.Connection, file: File, begin: int, *, calls: bool
) -> tuple[pd.DataFrame, list[str]]:
    """Return the calls or the ranges of a process, with the category of each."""
    columns = _selected(database, file, "region", ("pid", "tid", "name_id"))
    text = _strings(database, file)
    kinds = [text.get(id, "") for id in columns["category"]]
    frame = pd.DataFrame(
        {
            **_times(columns, begin),
            "process": _whole(columns["pid"]),
            "thread": _whole(columns["tid"]),
            "name": [text.get(id) for id in columns["name_id"]],
            "correlation": _correlation(columns),
        }
    )
    wanted = np.array([_is_call(kind) == calls for kind in kinds], bool)
    kept = [kind for kind, is_wanted in zip(kinds, wanted, strict=True) if is_wanted]
    return frame[wanted].reset_index(drop=True), kept


def _calls(database: sqlite3.Connection, file: File, begin: int) -> Made:
    if _count(database, file, "region"):
        yield tables.API_CALLS, _regions(database, file, begin, calls=True)[0]


def _ranges(database: sqlite3.Connection, file: File, begin: int) -> Made:
    """Yield RANGES of a process: roctx, and calls of libraries such as RCCL, which are their domain."""
    if not _count(database, file, "region"):
        return
    frame, kinds = _regions(database, file, begin, calls=False)
    domains = ["" if kind.startswith("MARKER") else kind for kind in kinds]
    yield (
        tables.RANGES,
        frame.drop(columns="correlation").assign(
            domain=domains, kind="push_pop", depth=_depths(frame)
        ),
    )


def _depths(frame: pd.DataFrame) -> np.ndarray:
    """Return how many ranges of its thread are around each range."""
    depth = np.zeros(len(frame), np.int32)
    order = frame.assign(end=-frame["dur_ns"]).sort_values(["process", "thread", "start_ns", "end"])
    open_ends: list[int] = []
    last = None
    columns = (order["process"], order["thread"], order["start_ns"], order["dur_ns"])
    for row, process, thread, start, length in zip(order.index, *columns, strict=True):
        if (process, thread) != last:
            open_ends = []
            last = process, thread
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depth[row] = len(open_ends)
        open_ends.append(start + length)
    return depth
