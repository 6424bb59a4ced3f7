"""Parquet copies of what readers returned, so that a capture is read once.

A copy lives in a folder named after the source's path; within it one folder per reader and state of the source (size,
times, samples of its content), version of its reader and of perfkit, and shape of the tables. Files are written under a
temporary name and renamed to one that holds the checksum of their content (Parquet's own checksums cover its pages, not
its headers): two processes may write at once, and a damaged file is noticed and made anew. PERFKIT_CACHE moves the
cache; ``off`` disables it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.errors import ReadError, SchemaError
from perfkit.format import size
from perfkit.profile import Missing, Profile
from perfkit.readers import is_from_perfkit, origin, reader
from perfkit.readers.text import put
from perfkit.schema import INTEGERS, Checked, labelled
from perfkit.tables import TABLES

SAMPLE, SAMPLES = (
    4096,
    16,
)  # bytes of a file's content, and at how many places, that tell it from another
MADE_BY = importlib.metadata.version("perfkit"), str([table.columns for table in TABLES.values()])
MANY = 64  # files of a profile; of more only head and tail are looked at
DAMAGED = (pa.ArrowException, OSError, SchemaError, ValueError, KeyError)


class Source:
    """The profile as its reader opens it, opened at most once and only if a copy is missing."""

    def __init__(self, path: Path, name: str, *, is_cached: bool = True) -> None:
        self.path, self.reader = path, name
        self.state = state(path, name, reader(name).VERSION)
        self.place = folder(path, name, self.state) if is_cached else None
        self._profile: Profile | None = None

    def profile(self) -> Profile:
        """Return what the reader makes of the file, with a CAPTURE that can be and a note on what could not."""
        if self._profile is None:
            # A file that is larger than its reader's LARGEST would have to be held whole.
            largest, size_bytes = (
                getattr(reader(self.reader), "LARGEST", None),
                self.path.stat().st_size,
            )
            if largest is not None and self.path.is_file() and size_bytes > largest:
                raise ReadError(
                    f"{self.path}: the file has {size(size_bytes)}, and a file of this kind is read up to "
                    f"{size(largest)}. Cut it into parts."
                )
            read = reader(self.reader).read(self.path)
            capture, doubts = TABLES["CAPTURE"].checked(read.capture)
            capture = capture.assign(
                path=pd.array([shown(self.path)] * len(capture), dtype="string")
            )
            self._profile = replace(read, capture=capture, notes=(*read.notes, *doubts))
            self.check()
        return self._profile

    @property
    def is_held(self) -> bool:
        """Whether tables of the file may be in memory."""
        return self._profile is not None

    def release(self, copies: Mapping[str, _Copy]) -> None:
        """Forget what the reader made of the file if the cache holds all of it."""
        if all(copy.is_stored() for copy in copies.values()):
            self._profile = None

    def table(self, table: str) -> Checked:
        """Read a table from the file, which must still be the one that was opened."""
        self.check()
        checked = self.profile().checked(table)
        self.check()
        return checked

    def check(self) -> None:
        """Refuse a file that changed: tables of two recordings would be mixed, and the wrong ones kept."""
        try:
            now = state(self.path, self.reader, reader(self.reader).VERSION)
        except OSError as e:
            raise ReadError(
                f"{self.path}: the file is gone since it was loaded ({e.strerror}). Load it again."
            ) from e
        if now != self.state:
            raise ReadError(f"{self.path}: the file changed after it was loaded. Load it again.")


class _Copy:
    """A table of a profile: its copy in the cache, or else what the file says, which is then copied."""

    def __init__(self, source: Source, table: str) -> None:
        self._source, self._table = source, table
        self.place = source.place

    def __call__(self) -> Checked:
        """Return the table and the notes on what was left out of it."""
        copy = fetch(self._source.place, self._table)
        notes = None if copy is None else _notes(copy[1])
        if copy is not None and notes is not None:
            return Checked(copy[0], notes)
        checked = self._source.table(self._table)
        store(self._source.place, self._table, checked.frame, json.dumps(checked.notes))
        return checked

    def is_stored(self) -> bool:
        """Whether the cache has a copy, so that the table need not stay in memory."""
        return bool(_copies(self._source.place, self._table))

    def notes(self) -> tuple[str, ...]:
        """Return the notes alone: the copy's, which is not read for them, or those of the table."""
        text = note(self._source.place, self._table)
        notes = None if text is None else _notes(text)
        return self().notes if notes is None else notes


def place(profile: Profile) -> Path | None:
    """Return the folder that holds copies of the tables of a profile; None if it is not read through the cache."""
    loader = next(iter(profile.loaders.values()), None)
    return loader.place if isinstance(loader, _Copy) else None


def state(source: Path, reader: str, version: int) -> str:
    """Return what tells this state of a source (size, times, samples) and of its reader from any other."""
    is_folder = stat.S_ISDIR(source.stat().st_mode)
    files = [
        file for file in (sorted(source.iterdir()) if is_folder else [source]) if file.is_file()
    ]
    samples = SAMPLES if len(files) <= MANY else 2
    of_files = [[os.fsencode(file.name).hex(), *_print(file, samples)] for file in files]
    made_by = (
        MADE_BY if is_from_perfkit(reader) else [*MADE_BY, origin(reader)]
    )  # with the version of its package
    return hashlib.sha256(json.dumps([reader, version, *made_by, *of_files]).encode()).hexdigest()[
        :16
    ]


def _print(file: Path, samples: int) -> tuple[int, int, int, str]:
    """Return size, times and a checksum of samples of a file."""
    about = file.stat()
    checksum = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        for number in range(samples):
            opened.seek(max(0, about.st_size - SAMPLE) * number // (samples - 1))
            checksum.update(opened.read(SAMPLE))
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, checksum.hexdigest()


def folder(source: Path, reader: str, state: str) -> Path | None:
    """Return where copies of `source` in this `state` live, as a reader read it; None when caching is off."""
    top = root()
    if top is None:
        return None
    return (
        top / hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:16] / f"{reader}-{state}"
    )


def root() -> Path | None:
    """Return the folder of the cache, None when caching is off."""
    setting = os.environ.get("PERFKIT_CACHE", "")
    if setting.casefold() == "off":
        return None
    if setting:
        return Path(setting)
    if sys.platform == "win32":
        return Path(
            os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"), "perfkit", "cache"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "perfkit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "perfkit")


def fetch(place: Path | None, table: str) -> tuple[pd.DataFrame, str] | None:
    """Return the copy of a table and the note stored with it, or None if there is none that is whole."""
    for file in _copies(place, table):
        with suppress(*DAMAGED):
            with pa.OSFile(os.fsencode(file)) as opened:
                content = (
                    opened.read_buffer()
                )  # no bytes: a thread of pyarrow that frees those at exit aborts
            if file.name != file_name(table, content):
                continue
            return from_parquet(content, table)
    return None


def from_parquet(content: bytes | pa.Buffer, table: str) -> tuple[pd.DataFrame, str]:
    """Return a table and the note stored with it; one of DAMAGED if the content is not that table."""
    stored = pq.ParquetFile(pa.BufferReader(content)).read()
    note = (stored.schema.metadata or {}).get(b"perfkit", b"").decode()
    if not len(stored):
        return TABLES[table].empty(), note
    # A frame that can be written to, like the reader's.
    taken = {
        column.name: _taken(stored.column(column.name), column.dtype)
        for column in TABLES[table].columns
    }
    numbers = {name: values for name, values in taken.items() if values is not None}
    rest = stored.drop_columns(list(numbers)).to_pandas(split_blocks=True).copy()
    frame = pd.DataFrame(
        {n: numbers[n] if n in numbers else labelled(rest[n]) for n in stored.column_names},
        copy=False,
    )
    # Parquet keeps no kind of a column that has no value.
    texts = [column.name for column in TABLES[table].columns if column.dtype == "category"]
    empty = [name for name in texts if name in frame and frame[name].isna().all()]
    return TABLES[table].check(frame.astype(dict.fromkeys(empty, "category"))), note


def note(place: Path | None, table: str) -> str | None:
    """Return the note stored with the copy of a table without reading the copy; None if there is none."""
    for file in _copies(place, table):
        with suppress(*DAMAGED):
            return str((pq.read_schema(file).metadata or {}).get(b"perfkit", b"").decode())
    return None


def is_own(status: os.stat_result) -> bool:
    """Say whether a file or folder belongs to this user, and nobody else may write it."""
    if sys.platform == "win32":
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def content(file: Path, longest: int = -1) -> bytes:
    """Return the first `longest` bytes of a regular file that is this user's own, all by default; none of any other."""
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    with suppress(OSError), open(os.open(file, os.O_RDONLY | flags), "rb") as opened:
        status = os.fstat(opened.fileno())  # of what is open: the name may lead elsewhere by now
        return opened.read(longest) if stat.S_ISREG(status.st_mode) and is_own(status) else b""
    return b""


def _copies(place: Path | None, table: str) -> list[Path]:
    """Return the files that may be copies of a table: this user's own; a link may lead to something without an end."""
    named = (
        [(file, file.lstat()) for file in sorted(place.glob(f"{table}.*.parquet"))] if place else []
    )
    # Whoever else can write to the cache could plant wrong tables.
    own = [
        (file, about)
        for file, about in named
        if sys.platform == "win32" or about.st_uid == os.getuid()
    ]
    return [file for file, about in own if stat.S_ISREG(about.st_mode)]


def _taken(column: pa.ChunkedArray, dtype: str) -> np.ndarray | pd.arrays.IntegerArray | None:
    """Return a column's numbers in the memory they were decoded into; None for others, and where it is shared."""
    if dtype not in (*INTEGERS, "float64") or column.num_chunks != 1 or not len(column):
        return None
    chunk = column.chunk(0)
    memory = chunk.buffers()[1]
    if chunk.offset or not memory.is_mutable or (chunk.null_count and dtype != "Int64"):
        return None
    values = np.frombuffer(memory, chunk.type.to_pandas_dtype(), len(chunk))
    if dtype != "Int64":
        return values
    absent = (
        chunk.is_null().to_numpy(zero_copy_only=False)
        if chunk.null_count
        else np.zeros(len(chunk), bool)
    )
    return pd.arrays.IntegerArray(values, absent)


def file_name(table: str, content: bytes | pa.Buffer, kind: str = "parquet") -> str:
    """Return the name of a file of the cache or of a store, which holds the checksum of its content."""
    return f"{table}.{zlib.crc32(content):08x}.{kind}"


def store(place: Path | None, table: str, frame: pd.DataFrame, note: str = "") -> None:
    """Keep a copy of a table with a note, removing those of earlier states; where none can be written, do nothing."""
    if place is None:
        return
    content = parquet(frame, note)
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        for old in place.parent.glob(f"{place.name.rpartition('-')[0]}-*"):
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
        put(place / file_name(table, content), content)


def parquet(frame: pd.DataFrame, note: str = "", **more: object) -> bytes:
    """Return a table as a Parquet file with a note; `more` are options of pyarrow."""
    columns = pa.Table.from_pandas(frame, preserve_index=False)
    for i, field in enumerate(columns.schema):
        column = columns.column(i)
        if pa.types.is_dictionary(field.type) and pa.types.is_null(field.type.value_type):
            # A category without values has no type of its own and would come back as no category.
            column = pa.nulls(len(frame), pa.string()).dictionary_encode()
        # A column that is said to lack no value is read in half the time.
        columns = columns.set_column(
            i, pa.field(field.name, column.type, nullable=column.null_count > 0), column
        )
    columns = columns.replace_schema_metadata(
        {**(columns.schema.metadata or {}), b"perfkit": note.encode()}
    )
    sink = pa.BufferOutputStream()
    # Times are sorted and ids repeat: integers as differences make the copy small and fast.
    kinds = {str(name): str(dtype) for name, dtype in frame.dtypes.items()}
    encodings = {name: "DELTA_BINARY_PACKED" for name, kind in kinds.items() if kind in INTEGERS}
    texts = [name for name, kind in kinds.items() if kind in ("category", "string")]
    options = {
        "compression": "lz4",
        "use_dictionary": texts,
        "column_encoding": encodings,
        "write_statistics": False,
    }
    pq.write_table(columns, sink, **{**options, **more})
    return bytes(sink.getvalue().to_pybytes())


def opened(path: Path, name: str) -> Profile:
    """Open a profile through the cache; ReadError if it cannot be read, or has changed when a table is read."""
    source = Source(path, name)
    profile = _recalled(source)
    if profile is None:
        profile = source.profile()
        stated = {
            "rank": profile.rank,
            "node": profile.node,
            "world_size": profile.world_size,
            "is_simulated": profile.is_simulated,
            "failure": profile.failure,
            "notes": profile.notes,
        }
        description = {
            "tables": list(profile.loaders),
            "missing": [asdict(m) for m in profile.missing],
            **stated,
        }
        store(source.place, "CAPTURE", profile.capture, json.dumps(description))
    copies = {table: _Copy(source, table) for table in profile.loaders}
    if source.is_held and getattr(reader(name), "ONE_PASS", False):
        for copy in copies.values():
            copy()
        source.release(copies)
    return replace(profile, loaders=copies)


def _recalled(source: Source) -> Profile | None:
    """Return a profile as its copy in the cache describes it; None if there is none, or its description is damaged."""
    copy = fetch(source.place, "CAPTURE")
    if copy is None or copy[0].empty:
        return None
    try:
        described = json.loads(copy[1])
        missing = tuple(Missing(**m) for m in described["missing"])
        notes = tuple(str(note) for note in described["notes"])
        rank, world_size = (
            None if described[n] is None else int(described[n]) for n in ("rank", "world_size")
        )
        node, is_simulated = str(described["node"]), bool(described["is_simulated"])
        failure = str(described["failure"])
        tables = [table for table in described["tables"] if table in TABLES]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    # It may be stored under another name of the file.
    capture = copy[0].assign(path=pd.array([shown(source.path)] * len(copy[0]), dtype="string"))
    loaders = {table: _Copy(source, table) for table in tables}
    return Profile(
        source.reader,
        source.path,
        capture,
        loaders,
        missing,
        notes,
        rank,
        node,
        world_size,
        is_simulated,
        failure,
    )


def shown(path: Path) -> str:
    """Return a path as text: bytes of a name that are no text are written as escapes, as no table can hold them."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _notes(text: str) -> tuple[str, ...] | None:
    """Return the notes stored with a table; None if they are damaged."""
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(notes, list) and all(isinstance(note, str) for note in notes)
    return tuple(notes) if is_list else None
