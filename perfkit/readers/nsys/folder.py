"""An export with one Parquet or Arrow file per table (`nsys export -t parquetdir` or `arrowdir`).

Files are read into memory, not mapped, so that what happens to a file afterwards changes no table; what is read is
validated in full before anything looks at it, because pyarrow itself trusts the lengths and offsets in a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from perfkit.errors import ReadError
from perfkit.readers.nsys.sources import (
    MARKERS,
    NOTHING,
    Columns,
    Combined,
    Made,
    available,
    damaged,
    integers,
    ints,
    label,
    resolve,
    stored,
    unambiguous,
)

FORMS = (".parquet", ".arrow", ".arrows")
ARROW_FILE, ARROW_STREAM = b"ARROW1", b"\xff\xff\xff\xff"  # what the two forms of Arrow IPC start with
SINGLE = (types.is_integer, types.is_floating, types.is_boolean, types.is_null, types.is_binary)  # values, not nested
ROWS_PER_BYTE = 8  # a column of one bit per row: a table with more rows than this holds nothing that nsys writes
MOST_DESCRIBED = 10**6  # rows of a table that describes the node or the capture
THRIFT_LIMIT = 1 << 24  # bytes of text, and members, in the description of a Parquet file


def is_export_folder(path: Path) -> bool:
    """Say whether a folder holds Nsight Systems' tables, one file each."""
    return any(p.suffix in FORMS and p.name.startswith(MARKERS) for p in path.iterdir())


class FolderSource:
    """A parquetdir or arrowdir export."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = {p.stem: p for p in sorted(path.iterdir()) if p.suffix in FORMS and p.is_file()}
        self._fields: dict[str, dict[str, list[pa.DataType]]] = {}

    def damage(self, table: str, finding: str) -> ReadError:
        """Return the error that says what is wrong with `table`, with the path of its file."""
        name = resolve(table, self._files)
        return damaged(self._files[name] if name else self.path, "file", finding)

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""
        name = resolve(table, self._files)
        return list(self._types(name)) if name else []

    def _types(self, name: str) -> dict[str, list[pa.DataType]]:
        """Return the types of the columns of a file by their names; a name that repeats has several."""
        if name not in self._fields:
            file = self._files[name]
            fields: dict[str, list[pa.DataType]] = {}
            try:
                with pa.OSFile(os.fsencode(file)) as source:
                    schema = _parquet(source).schema_arrow if file.suffix == ".parquet" else _arrow(source).schema
                    for field in schema:
                        fields.setdefault(field.name, []).append(field.type)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
                raise damaged(file, "file", str(e)) from e
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
            raise damaged(file, "file", str(e)) from e
        return table

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""
        name = resolve(table, self._files)
        first = list(self.columns(table))[:1]
        return bool(name and first and self._read(name, first).num_rows)

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`."""
        return any(self.convert(table, [column], lambda rows: np.isin(ints(rows, column), list(values)).any()))

    def convert(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Made]) -> list[Made]:
        """Apply `make` to those numeric `columns` that exist; Arrow reads the columns on its own threads."""
        name = resolve(table, self._files)
        wanted = available(columns, self.columns(table))
        if not name or not wanted:
            return []
        part = self._read(name, stored(wanted))
        numbers = {c: self._integers(name, c, part.column(c)) for c in part.column_names}
        made = {label(c): _first(numbers, c) if isinstance(c, Combined) else numbers[c] for c in wanted}
        return [make(pa.table(made))]

    def _integers(self, table: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return integers(column, name, lambda finding: self.damage(table, f"{table}.{finding}"))

    def stacked(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Columns]) -> Columns:
        """Return what `make` returns for those numeric `columns` that exist."""
        return next(iter(self.convert(table, columns, make)), None) or make(NOTHING)

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None, present ones hold single values."""
        name = resolve(table, self._files)
        asked = list(columns)
        present = [c for c in asked if c in self.columns(table)]
        if not name or not present:
            return []
        part = self._read(name, present)
        if part.num_rows > MOST_DESCRIBED:
            raise self.damage(name, f"{name} has {part.num_rows} rows, of what every node has a few")
        values = [self._values(name, column, part.column(column)) for column in present]
        return [{**dict.fromkeys(asked), **dict(zip(present, row, strict=True))} for row in zip(*values, strict=True)]

    def _values(self, table: str, name: str, column: pa.ChunkedArray) -> list[Any]:
        """Return a column of single values as Python has them."""
        if _is_text(column.type):
            return _decoded(column)
        if not any(holds(column.type) for holds in SINGLE):
            raise self.damage(table, f"{table}.{name} holds values of type {column.type}, not numbers or text")
        return list(column.to_pylist())

    def text(self, table: str, column: str) -> list[str | None]:
        """Return a text column in the order of `convert`; an empty list if it is absent or all null."""
        name = resolve(table, self._files)
        if not name or column not in self.columns(table):
            return []
        values = self._read(name, [column]).column(column)
        if values.null_count == len(values):
            return []
        if not _is_text(values.type):
            raise self.damage(name, f"{name}.{column} holds values of type {values.type}, not text")
        return _decoded(values)

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; ids that are unknown, or that two texts have, are left out."""
        name = resolve("StringIds", self._files)
        if not name or not {"id", "value"} <= set(self.columns(name)) or self.nameless():
            return {}
        table = self._read(name, ["id", "value"])
        numbers = self._integers(name, "id", table.column("id"))
        wanted = pc.is_in(numbers, pa.array([i for i in ids if i >= 0], pa.int64()))
        values = _decoded(table.column("value").filter(wanted))
        return unambiguous(zip(numbers.filter(wanted).to_pylist(), values, strict=True))

    def nameless(self) -> str:
        """Say which values of StringIds are no text; empty if all are."""
        name = resolve("StringIds", self._files)
        kinds = self._types(name).get("value", []) if name else []
        return next((f"StringIds.value holds values of type {kind}" for kind in kinds if not _is_text(kind)), "")


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
    raise pa.ArrowInvalid(f"it starts with {head!r}, as neither an Arrow file nor an Arrow stream does")


def _validate(table: pa.Table, file: Path) -> None:
    """Raise ReadError or ArrowInvalid if a table is not what its file can hold; text need not be UTF-8."""
    size = file.stat().st_size
    if table.num_rows > ROWS_PER_BYTE * size:
        raise damaged(file, "file", f"it states {table.num_rows} rows in {size} bytes")
    table.validate()
    for column in table.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            if not _is_text(column.type):
                raise
            _undecoded(column).validate(full=True)


def _first(columns: dict[str, pa.ChunkedArray], wanted: Combined) -> pa.ChunkedArray:
    """Return the first of some columns of ids that is not null or "none" per row."""
    ids = [columns[c] for c in wanted.columns]
    return pc.coalesce(*(pc.if_else(pc.equal(column, -1), pa.scalar(None, pa.int64()), column) for column in ids))


def _is_text(kind: pa.DataType) -> bool:
    return any(holds(kind) for holds in (types.is_string, types.is_large_string, types.is_string_view))


def _undecoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text as the bytes it holds."""
    bytes_of = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    return column.cast(bytes_of[column.type])


def _decoded(column: pa.ChunkedArray) -> list[str | None]:
    """Return a column of text as Python has it, bytes that are no UTF-8 (user names, paths) replaced."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [v if v is None else v.decode("utf-8", errors="replace") for v in _undecoded(column).to_pylist()]
