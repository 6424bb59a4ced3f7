"""Parquet copies of what readers returned, so that a capture is read once.

A copy lives in a folder named after the source's path; within it one folder per state of the source
(size, modification time), version of its reader and of perfkit, and shape of the tables. Files are written under a
temporary name and renamed to one that holds the checksum of their content (Parquet's own checksums
cover its pages, not its headers): two processes may write at once, and a damaged file is noticed and
made anew. PERFKIT_CACHE moves the cache; ``off`` disables it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.errors import SchemaError
from perfkit.schema import INTEGERS, Table
from perfkit.tables import TABLES

DAMAGED = (pa.ArrowException, OSError, SchemaError, ValueError, KeyError)


def folder(source: Path, reader: str, version: int) -> Path | None:
    """Return where copies of `source` as read by this version of a reader live; None when caching is off."""
    top = root()
    if top is None:
        return None
    place = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    state = [reader, version, importlib.metadata.version("perfkit"), str([t.columns for t in TABLES.values()])]
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    state += [[f.name, (s := f.stat()).st_size, s.st_mtime_ns] for f in files if f.is_file()]
    return top / place / hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def root() -> Path | None:
    """Return the folder of the cache, None when caching is off."""
    setting = os.environ.get("PERFKIT_CACHE", "")
    if setting.casefold() == "off":
        return None
    if setting:
        return Path(setting)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"), "perfkit", "cache")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "perfkit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "perfkit")


def fetch(place: Path | None, table: str) -> tuple[pd.DataFrame, str] | None:
    """Return the copy of a table and the note stored with it, or None if there is none that is whole."""
    for file in place.glob(f"{table}.*.parquet") if place else ():
        with suppress(*DAMAGED):
            content = file.read_bytes()
            if file.name != _file_name(table, content):
                continue
            stored = pq.ParquetFile(pa.BufferReader(content)).read()
            note = (stored.schema.metadata or {}).get(b"perfkit", b"").decode()
            return TABLES[table].check(_frame(stored, TABLES[table])), note
    return None


def _frame(stored: pa.Table, table: Table) -> pd.DataFrame:
    """Return a frame that can be written to, like the reader's."""
    taken = {column.name: _taken(stored.column(column.name), column.dtype) for column in table.columns}
    numbers = {name: values for name, values in taken.items() if values is not None}
    rest = stored.drop_columns(list(numbers)).to_pandas(split_blocks=True).copy()
    return pd.DataFrame({n: numbers[n] if n in numbers else rest[n] for n in stored.column_names}, copy=False)


def _taken(column: pa.ChunkedArray, dtype: str) -> np.ndarray | pd.arrays.IntegerArray | None:
    """Return numbers in the memory they were decoded into: touching as much again would double the time.

    None for a column of anything else, and where the memory is not this column's own.
    """
    if dtype not in (*INTEGERS, "float64") or column.num_chunks != 1 or not len(column):
        return None
    chunk = column.chunk(0)
    memory = chunk.buffers()[1]
    if chunk.offset or not memory.is_mutable or (chunk.null_count and dtype != "Int64"):
        return None
    values = np.frombuffer(memory, chunk.type.to_pandas_dtype(), len(chunk))
    if dtype != "Int64":
        return values
    absent = chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else np.zeros(len(chunk), bool)
    return pd.arrays.IntegerArray(values, absent)


def _file_name(table: str, content: bytes) -> str:
    return f"{table}.{zlib.crc32(content):08x}.parquet"


def store(place: Path | None, table: str, frame: pd.DataFrame, note: str = "") -> None:
    """Keep a copy of a table with a note; copies of the source's earlier states are removed.

    A cache that cannot be written (disk full, no permission) is not an error: the next load reads
    the source again.
    """
    if place is None:
        return
    content = _parquet(frame, note)
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        for old in place.parent.iterdir():
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
        _write(place / _file_name(table, content), content)


def _write(target: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".partial", delete=False) as file:
        partial = Path(file.name)
        try:
            file.write(content)
            file.close()
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _parquet(frame: pd.DataFrame, note: str) -> bytes:
    columns = pa.Table.from_pandas(frame, preserve_index=False)
    for i, field in enumerate(columns.schema):
        if pa.types.is_dictionary(field.type) and pa.types.is_null(field.type.value_type):
            # A category without values has no type of its own and would come back as no category.
            columns = columns.set_column(i, field.name, pa.nulls(len(frame), pa.string()).dictionary_encode())
    columns = columns.replace_schema_metadata({**(columns.schema.metadata or {}), b"perfkit": note.encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(columns, sink, **_encoding(frame))
    return bytes(sink.getvalue().to_pybytes())


def _encoding(frame: pd.DataFrame) -> dict[str, object]:
    """Write integers as differences: times are sorted and ids repeat, so the copy is small and fast."""
    whole = [str(name) for name, dtype in frame.dtypes.items() if str(dtype) in ("int64", "int32", "Int64")]
    plain = [str(name) for name, dtype in frame.dtypes.items() if str(dtype) in ("category", "string")]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": plain,
        "column_encoding": dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
        "write_statistics": False,
    }
