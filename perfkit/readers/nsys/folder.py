"""An export with one Parquet or Arrow file per table (`nsys export -t parquetdir` or `arrowdir`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfkit.errors import ReadError
from perfkit.readers.nsys.source import MARKERS, NOTHING, Combined, Made, available, ints, resolve
from perfkit.readers.nsys.stack import Columns

FORMS = (".parquet", ".arrow", ".arrows")


def is_export_folder(path: Path) -> bool:
    """Say whether a folder holds Nsight Systems' tables, one file each."""
    return any(p.suffix in FORMS and p.name.startswith(MARKERS) for p in path.iterdir())


class FolderSource:
    """A parquetdir or arrowdir export."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = {p.stem: p for p in sorted(path.iterdir()) if p.suffix in FORMS}

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""
        name = resolve(table, self._files)
        return self._read(name, []).schema.names if name else []

    def _read(self, name: str, columns: list[str] | None) -> pa.Table:
        """Read a table; `columns` None reads all, an empty list only the schema."""
        file = self._files[name]
        try:
            if file.suffix == ".parquet":
                return pq.read_schema(file).empty_table() if columns == [] else pq.read_table(file, columns=columns)
            table = _arrow_table(file)
            return table if columns is None else table.select(columns) if columns else table.slice(0, 0)
        except (pa.ArrowException, OSError) as e:
            raise ReadError(f"{file}: the file is damaged ({e}). Export the report again.") from e

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""
        name = resolve(table, self._files)
        return name is not None and self._read(name, list(self.columns(table))[:1]).num_rows > 0

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`."""
        return any(self.convert(table, [column], lambda rows: np.isin(ints(rows, column), list(values)).any()))

    def convert(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Made]) -> list[Made]:
        """Apply `make` to those numeric `columns` that exist; Arrow reads the columns on its own threads."""
        name = resolve(table, self._files)
        wanted = available(columns, self.columns(table))
        if not name or not wanted:
            return []
        stored = [s for c in wanted for s in (c.columns if isinstance(c, Combined) else (c,))]
        part = self._read(name, list(dict.fromkeys(stored)))
        for column in wanted:
            if isinstance(column, Combined):
                part = part.append_column(column.name, _combined(part, column))
        return [make(part)]

    def stacked(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Columns]) -> Columns:
        """Return what `make` returns for those numeric `columns` that exist."""
        return next(iter(self.convert(table, columns, make)), None) or make(NOTHING)

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None."""
        name = resolve(table, self._files)
        if not name:
            return []
        columns = list(columns)
        present = [c for c in columns if c in self.columns(table)]
        return [{**dict.fromkeys(columns), **row} for row in self._read(name, present or None).to_pylist()]

    def text(self, table: str, column: str) -> list[str | None]:
        """Return a text column in the order of `convert`; an empty list if it is absent or all null."""
        name = resolve(table, self._files)
        if not name or column not in self.columns(table):
            return []
        values = self._read(name, [column]).column(0)
        return [] if values.null_count == len(values) else list(values.to_pylist())

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; unknown ids are left out."""
        if "StringIds" not in self._files:
            return {}
        table = self._read("StringIds", ["id", "value"]).drop_null()
        wanted = pa.array([i for i in ids if i >= 0], pa.int64())
        kept = table.filter(pc.is_in(pc.cast(table.column("id"), pa.int64()), wanted))
        return dict(zip(kept.column("id").to_pylist(), kept.column("value").to_pylist(), strict=True))


def _combined(part: pa.Table, column: Combined) -> pa.ChunkedArray:
    operation = {"*": pc.multiply, "+": pc.add, "-": pc.subtract}[column.operator]
    return reduce(operation, (pc.cast(part.column(c), pa.int64()) for c in column.columns))


def _arrow_table(file: Path) -> pa.Table:
    """Read an Arrow file in either of its two forms, IPC file or stream."""
    with pa.memory_map(str(file)) as memory:
        try:
            return pa.ipc.open_file(memory).read_all()
        except pa.ArrowInvalid:
            memory.seek(0)
            return pa.ipc.open_stream(memory).read_all()
