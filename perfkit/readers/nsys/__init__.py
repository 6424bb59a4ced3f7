"""Nsight Systems: what `nsys export` wrote, or a report when `nsys` is on PATH.

Export with ``nsys export -t sqlite REPORT.nsys-rep`` (or ``-t parquetdir``, ``-t arrowdir``). Tried
with schemas 2.9 to 3.25, that is nsys 2022.1 to 2026.2; other versions differ in tables and columns
that are looked up by name, and a column an export lacks is read as not recorded.

A parquetdir or arrowdir is a folder with one file per table. Files are read into memory, not
mapped, so that what happens to a file afterwards changes no table; what is read is validated in
full before anything looks at it, because pyarrow itself trusts the lengths and offsets in a file.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from perfkit.errors import ReadError
from perfkit.profile import Loader, Missing, Profile, node_of
from perfkit.readers.nsys import collector, schedule, sources, tables, waits
from perfkit.readers.nsys.sources import stored
from perfkit.readers.nsys.sqlite import MAGIC, SqliteSource, exported, is_export
from perfkit.readers.nsys.stacks import Stacks
from perfkit.readers.text import capture_table, head

__all__ = ["KIND", "VERSION", "read", "sniff"]
VERSION = 6
KIND = "timeline"
ACTIVITY = {
    "KERNELS": (tables.KERNEL,),
    "COPIES": (tables.MEMCPY, tables.MEMSET),
    "API_CALLS": (tables.RUNTIME,),
    "OS_CALLS": (tables.SYSTEM,),
    "RANGES": (tables.NVTX, *tables.MPI),
    "SAMPLES": ("GPU_METRICS",),
    "DEVICES": ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"),
    "SCHEDULE": (schedule.SWITCHES,),
    "WAITS": (waits.WAIT,),
    "OVERHEAD": (collector.OWN, collector.OF_CUDA),
    "DIAGNOSTICS": (collector.MESSAGES,),
    "MEMORY_EVENTS": (tables.MEMORY_EVENT,),
}
REMEDIES = {
    "KERNELS": ("Which kernels ran on the GPU?", "nsys profile --trace=cuda -o report PROGRAM"),
    "COPIES": (
        "Which copies ran between CPU and GPU?",
        "nsys profile --trace=cuda -o report PROGRAM",
    ),
    "API_CALLS": (
        "Which CUDA calls did the CPU make (the cause of idle time)?",
        "nsys profile --trace=cuda -o report PROGRAM",
    ),
    "RANGES": (
        "Which phases does the program have (NVTX ranges)?",
        "nsys profile --trace=cuda,nvtx -o report PROGRAM, and NVTX in the program",
    ),
    "SAMPLES": (
        "How busy were SMs and DRAM (GPU metrics)?",
        "nsys profile --gpu-metrics-devices=all -o report PROGRAM",
    ),
    "DEVICES": (
        "Which GPUs were used, and what are their peaks?",
        "nsys export of the original report",
    ),
    "STACKS": (
        "Which functions did the CPU run while the GPU was idle?",
        "nsys profile --sample=process-tree -o report PROGRAM",
    ),
    "SCHEDULE": (
        "When did the CPU's threads run, and when did they sleep?",
        "nsys profile --cpuctxsw=process-tree -o report PROGRAM",
    ),
}
# What was asked for, as CAPTURE says it, when a table was: asking for it again would not record it.
ASKED = {
    "KERNELS": ("traced", "cuda"),
    "COPIES": ("traced", "cuda"),
    "API_CALLS": ("traced", "cuda"),
    "STACKS": ("sampled", "stacks"),
    "SCHEDULE": ("sampled", "schedule"),
}
NEWEST_SCHEMA = 3
HOST = "Hostname"  # in TARGET_INFO_SYSTEM_ENV, of whose other entries only the platform is kept
VERSION_ENTRY, SCHEMA_ENTRY = (
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_SCHEMA_VERSION",
)  # entries of META_DATA_EXPORT
LATEST = 7_258_118_400 * 10**9  # the year 2200, ns since 1970
FORMS = (".parquet", ".arrow", ".arrows")
ARROW_FILE, ARROW_STREAM = (
    b"ARROW1",
    b"\xff\xff\xff\xff",
)  # what the two forms of Arrow IPC start with
SINGLE = (
    types.is_integer,
    types.is_floating,
    types.is_boolean,
    types.is_null,
    types.is_binary,
)  # values, not nested
# a column of one bit per row: a table with more rows than this holds nothing that nsys writes
ROWS_PER_BYTE = 8
MOST_DESCRIBED = 10**6  # rows of a table that describes the node or the capture
THRIFT_LIMIT = 1 << 24  # bytes of text, and members, in the description of a Parquet file


def sniff(path: Path) -> bool:
    """Say whether `path` is an Nsight Systems export or report, by its first bytes and table names."""
    try:
        if path.is_dir():
            return sources.are_of_nsys(p.name for p in path.iterdir() if p.suffix in FORMS)
    except OSError:
        return False
    start = head(path, 100)
    return start.startswith(MAGIC) or (start.startswith(b"SQLite format 3\0") and is_export(path))


def read(path: Path) -> Profile:
    """Open an export; its tables are read when asked for, and ``missing`` names the option that records others."""
    if path.is_dir():
        source: sources.Source = FolderSource(path)
    else:
        source = exported(path) if head(path, len(MAGIC)) == MAGIC else SqliteSource(path)
    doubts: list[str] = []
    gpus = tables.gpus(source, doubts)
    ordinals = tables.ordinals(source, gpus, doubts)
    summary = capture(source, path, doubts)
    stacks = Stacks(source)
    makers: dict[str, Loader] = {
        "KERNELS": partial(tables.kernels, source, ordinals),
        "COPIES": partial(tables.copies, source, ordinals),
        "API_CALLS": partial(tables.api_calls, source),
        "OS_CALLS": partial(tables.os_calls, source),
        "RANGES": partial(tables.ranges, source, int(summary["dur_ns"].iloc[0])),
        "SAMPLES": partial(tables.samples, source, ordinals),
        "DEVICES": partial(tables.devices, gpus),
        "STACKS": stacks.stacks,
        "FRAMES": stacks.frames,
        "SCHEDULE": partial(schedule.schedule, source),
        "WAITS": partial(waits.waits, source, ordinals),
        "OVERHEAD": partial(collector.overhead, source),
        "DIAGNOSTICS": partial(collector.diagnostics, source),
        "MEMORY_EVENTS": partial(tables.memory_events, source, ordinals),
    }
    present = recorded(source, stacks)
    return Profile(
        reader="nsys",
        path=path,
        capture=summary,
        loaders={name: make for name, make in makers.items() if name in present},
        missing=missing(present, summary),
        notes=(*notes(source, gpus), *dict.fromkeys(doubts)),
        node=node_of(host(source)),
        is_simulated=bool(_meta(source, "SIMULATED")),
    )


def capture(source: sources.Source, path: Path, notes: list[str]) -> pd.DataFrame:
    """Return CAPTURE: one row that says which nsys exported the file, when it starts and how long it is."""
    (started,) = source.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))[:1] or [
        {"utcEpochNs": None}
    ]
    (lasted,) = source.rows("ANALYSIS_DETAILS", ("duration",))[:1] or [{"duration": None}]
    t0 = sources.whole(
        started["utcEpochNs"], "TARGET_INFO_SESSION_START_TIME.utcEpochNs", notes, most=LATEST
    )
    duration = sources.whole(
        lasted["duration"], "ANALYSIS_DETAILS.duration", notes, most=sources.LONGEST
    )
    version = sources.text(_meta(source, VERSION_ENTRY), VERSION_ENTRY, notes)
    lasted_ns = _last_end(source) if duration is None else duration
    return capture_table(path, "Nsight Systems", version, t0, lasted_ns, **collector.asked(source))


def _meta(source: sources.Source, name: str) -> object:
    """Return an entry of what the file says of itself; None if it has none."""
    tables = ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE")
    rows = [r for t in tables for r in source.rows(t, ("name", "value"))]
    return next((r["value"] for r in rows if r["name"] == name), None)


def host(source: sources.Source) -> str:
    """Return the name of the host that was recorded; empty if the export does not say, or names several."""
    entries = source.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
    names = {
        row["value"] for row in entries if row["name"] == HOST and isinstance(row["value"], str)
    }
    return names.pop() if len(names) == 1 else ""


def _last_end(source: sources.Source) -> int:
    """Return the end of the last event: exports cut down do not say how long the recording was."""

    def last(rows: pa.Table) -> int:
        ends = sources.ints(rows, "end", 0)
        return int(ends[ends <= sources.LONGEST].max(initial=0))

    stored = [
        name for table in ("KERNELS", "COPIES", "API_CALLS", "RANGES") for name in ACTIVITY[table]
    ]
    return max((end for name in stored for end in source.convert(name, ["end"], last)), default=0)


def recorded(source: sources.Source, stacks: Stacks) -> set[str]:
    """Return the names of the tables the export can fill with at least one row."""
    present = {name for name, stored in ACTIVITY.items() if any(source.has_rows(t) for t in stored)}
    if stacks.has_stacks():
        present.add("STACKS")
    if stacks.has_frames():
        present.add("FRAMES")
    # NVTX_EVENTS also holds the names of threads and domains.
    named = source.holds(tables.NVTX, "eventType", tables.KINDS) or any(
        map(source.has_rows, tables.MPI)
    )
    return present if named else present - {"RANGES"}


def missing(present: set[str], capture: pd.DataFrame) -> tuple[Missing, ...]:
    """Return what the capture did not record of what most questions need, with the option that records it.

    What was asked for and is not there is left out: the same option would not record it the next
    time either.
    """
    lacking = {name: remedy for name, remedy in REMEDIES.items() if name not in present}
    return tuple(
        Missing(name, *remedy) for name, remedy in lacking.items() if not _was_asked(name, capture)
    )


def _was_asked(name: str, capture: pd.DataFrame) -> bool:
    """Tell whether the capture says that it was asked for a table."""
    if name not in ASKED:
        return False
    column, word = ASKED[name]
    return word in str(capture[column].iloc[0]).split(",")


def notes(source: sources.Source, listed: list[tables.Gpu]) -> tuple[str, ...]:
    """Return what a reader of the figures should know about this export."""
    lines: list[str] = []
    if simulated := sources.text(_meta(source, "SIMULATED"), "SIMULATED", lines):
        lines.append(f"simulated, not measured: {simulated}")
    schema = sources.text(_meta(source, SCHEMA_ENTRY), SCHEMA_ENTRY, lines)
    version = re.match(r"(\d{1,9})(\.[\d.]*)?$", schema)
    if schema and not version:
        lines.append(f"{SCHEMA_ENTRY}: {sources.shown(schema)} is no version: read as not recorded")
    if version and int(version[1]) > NEWEST_SCHEMA:
        lines.append(
            f"schema {schema} is newer than those tried ({NEWEST_SCHEMA}.x): columns may have "
            "changed meaning"
        )
    if source.has_rows(tables.KERNEL) and "globalPid" not in source.columns(tables.KERNEL):
        lines.append(
            "kernels carry no process: they are taken to belong to the one process that made CUDA "
            "calls"
        )
    if source.has_rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        lines.append(
            "CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node to see "
            "their kernels"
        )
    if len({gpu.name for gpu in listed if not gpu.numbered}) > 1:
        lines.append(
            "the export does not say which listed GPU is which CUDA device: their listing order is "
            "used"
        )
    if nameless := source.nameless():
        lines.append(f"{nameless}: what they name is called unnamed, with the number of the string")
    return tuple(lines)


class FolderSource:
    """A parquetdir or arrowdir export."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = {
            p.stem: p for p in sorted(path.iterdir()) if p.suffix in FORMS and p.is_file()
        }
        self._fields: dict[str, dict[str, list[pa.DataType]]] = {}

    def damage(self, table: str, finding: str) -> ReadError:
        """Return the error that says what is wrong with `table`, with the path of its file."""
        name = sources.resolve(table, self._files)
        return sources.damaged(self._files[name] if name else self.path, "file", finding)

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""
        name = sources.resolve(table, self._files)
        return list(self._types(name)) if name else []

    def _types(self, name: str) -> dict[str, list[pa.DataType]]:
        """Return the types of the columns of a file by their names; a name that repeats has several."""
        if name not in self._fields:
            file = self._files[name]
            fields: dict[str, list[pa.DataType]] = {}
            try:
                with pa.OSFile(os.fsencode(file)) as source:
                    schema = (
                        _parquet(source).schema_arrow
                        if file.suffix == ".parquet"
                        else _arrow(source).schema
                    )
                    for field in schema:
                        fields.setdefault(field.name, []).append(field.type)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
                raise sources.damaged(file, "file", str(e)) from e
            self._fields[name] = fields
        return self._fields[name]

    def _read(self, name: str, columns: list[str]) -> pa.Table:
        """Read some columns of a file, valid in full but for text that is not UTF-8."""
        file = self._files[name]
        for column in columns:
            count = len(self._types(name)[column])
            if count > 1:
                raise self.damage(name, f"{name} has {count} columns {column!r}")
        try:
            table = _table(file, columns)
            _validate(table, file)
        except (pa.ArrowException, OSError) as e:
            raise sources.damaged(file, "file", str(e)) from e
        return table

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""
        name = sources.resolve(table, self._files)
        first = list(self.columns(table))[:1]
        return bool(name and first and self._read(name, first).num_rows)

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`."""
        return any(
            self.convert(
                table,
                [column],
                lambda rows: np.isin(sources.ints(rows, column), list(values)).any(),
            )
        )

    def convert(
        self,
        table: str,
        columns: Sequence[str | sources.Combined],
        make: Callable[[pa.Table], sources.Made],
    ) -> list[sources.Made]:
        """Apply `make` to those numeric `columns` that exist; Arrow reads the columns on its own threads."""
        name = sources.resolve(table, self._files)
        wanted = sources.available(columns, self.columns(table))
        if not name or not wanted:
            return []
        part = self._read(name, stored(wanted))
        numbers = {c: self._integers(name, c, part.column(c)) for c in part.column_names}
        made = {
            sources.label(c): _first(numbers, c) if isinstance(c, sources.Combined) else numbers[c]
            for c in wanted
        }
        return [make(pa.table(made))]

    def _integers(self, table: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return sources.integers(
            column, name, lambda finding: self.damage(table, f"{table}.{finding}")
        )

    def stacked(
        self,
        table: str,
        columns: Sequence[str | sources.Combined],
        make: Callable[[pa.Table], sources.Columns],
    ) -> sources.Columns:
        """Return what `make` returns for those numeric `columns` that exist."""
        return next(iter(self.convert(table, columns, make)), None) or make(pa.table({}))

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None, present ones hold single values."""
        name = sources.resolve(table, self._files)
        asked = list(columns)
        present = [c for c in asked if c in self.columns(table)]
        if not name or not present:
            return []
        part = self._read(name, present)
        if part.num_rows > MOST_DESCRIBED:
            raise self.damage(
                name, f"{name} has {part.num_rows} rows, of what every node has a few"
            )
        values = [self._values(name, column, part.column(column)) for column in present]
        return [
            {**dict.fromkeys(asked), **dict(zip(present, row, strict=True))}
            for row in zip(*values, strict=True)
        ]

    def _values(self, table: str, name: str, column: pa.ChunkedArray) -> list[Any]:
        """Return a column of single values as Python has them."""
        if _is_text(column.type):
            return _decoded(column)
        if not any(holds(column.type) for holds in SINGLE):
            raise self.damage(
                table, f"{table}.{name} holds values of type {column.type}, not numbers or text"
            )
        return list(column.to_pylist())

    def text(self, table: str, column: str) -> sources.Texts:
        """Return a text column in the order of `convert`; no texts if it is absent or all null."""
        name = sources.resolve(table, self._files)
        if not name or column not in self.columns(table):
            return sources.encoded(pa.chunked_array([], pa.binary()))
        values = self._read(name, [column]).column(column)
        if values.null_count == len(values):
            return sources.encoded(values.cast(pa.binary()))
        if not _is_text(values.type):
            raise self.damage(name, f"{name}.{column} holds values of type {values.type}, not text")
        return sources.encoded(values.cast(pa.binary()))

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; ids that are unknown, or that two texts have, are left out."""
        name = sources.resolve("StringIds", self._files)
        if not name or not {"id", "value"} <= set(self.columns(name)) or self.nameless():
            return {}
        table = self._read(name, ["id", "value"])
        numbers = self._integers(name, "id", table.column("id"))
        wanted = pc.is_in(numbers, pa.array([i for i in ids if i >= 0], pa.int64()))
        values = _decoded(table.column("value").filter(wanted))
        return sources.unambiguous(zip(numbers.filter(wanted).to_pylist(), values, strict=True))

    def nameless(self) -> str:
        """Say which values of StringIds are no text; empty if all are."""
        name = sources.resolve("StringIds", self._files)
        kinds = self._types(name).get("value", []) if name else []
        return next(
            (
                f"StringIds.value holds values of type {kind}"
                for kind in kinds
                if not _is_text(kind)
            ),
            "",
        )


def _table(file: Path, columns: list[str]) -> pa.Table:
    """Read some columns of a file, as it states them."""
    with pa.OSFile(os.fsencode(file)) as source:
        if file.suffix == ".parquet":
            return _parquet(source).read(columns)
        names = _arrow(source).schema.names
        source.seek(0)
        return _arrow(source, [names.index(column) for column in columns]).read_all()


def _parquet(source: pa.NativeFile) -> pq.ParquetFile:
    limits = {"thrift_string_size_limit": THRIFT_LIMIT, "thrift_container_size_limit": THRIFT_LIMIT}
    return pq.ParquetFile(source, page_checksum_verification=True, **limits)


def _arrow(source: pa.NativeFile, fields: list[int] | None = None) -> Any:
    """Open an Arrow file in either of its two forms, IPC file or stream."""
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    head = source.read(len(ARROW_FILE))
    source.seek(0)
    if head == ARROW_FILE:
        return pa.ipc.open_file(source, options=options)
    if head.startswith(ARROW_STREAM):
        return pa.ipc.open_stream(source, options=options)
    raise pa.ArrowInvalid(
        f"it starts with {head!r}, as neither an Arrow file nor an Arrow stream does"
    )


def _validate(table: pa.Table, file: Path) -> None:
    """Raise ReadError or ArrowInvalid if a table is not what its file can hold; text need not be UTF-8."""
    size = file.stat().st_size
    if table.num_rows > ROWS_PER_BYTE * size:
        raise sources.damaged(file, "file", f"it states {table.num_rows} rows in {size} bytes")
    table.validate()
    for column in table.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            if not _is_text(column.type):
                raise
            _undecoded(column).validate(full=True)


def _first(columns: dict[str, pa.ChunkedArray], wanted: sources.Combined) -> pa.ChunkedArray:
    """Return the first of some columns of ids that is not null or "none" per row."""
    ids = [columns[c] for c in wanted.columns]
    return pc.coalesce(
        *(pc.if_else(pc.equal(column, -1), pa.scalar(None, pa.int64()), column) for column in ids)
    )


def _is_text(kind: pa.DataType) -> bool:
    return any(
        holds(kind) for holds in (types.is_string, types.is_large_string, types.is_string_view)
    )


def _undecoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text as the bytes it holds."""
    bytes_of = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    return column.cast(bytes_of[column.type])


def _decoded(column: pa.ChunkedArray) -> list[str | None]:
    """Return a column of text as Python has it, bytes that are no UTF-8 (user names, paths) replaced."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [
            v if v is None else v.decode("utf-8", errors="replace")
            for v in _undecoded(column).to_pylist()
        ]
