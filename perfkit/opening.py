"""Profiles opened through the cache: what has a copy is not read again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from perfkit import cache
from perfkit.errors import ReadError
from perfkit.format import size
from perfkit.profile import Missing, Profile
from perfkit.readers import reader
from perfkit.schema import Checked
from perfkit.tables import TABLES


def opened(path: Path, name: str) -> Profile:
    """Open a profile through the cache: what has a copy is not read again.

    Raises
    ------
    ReadError
        If the file cannot be read; when a table is read, also if the file has changed since.
    """
    source = _Source(path, name)
    profile = _recalled(source)
    if profile is None:
        profile = source.profile()
        source.store("CAPTURE", profile.capture, _description(profile))
    return replace(profile, loaders={table: _Copy(source, table) for table in profile.loaders})


def _description(profile: Profile) -> str:
    """Return what `_recalled` needs beside CAPTURE, as stored with its copy."""
    missing = [asdict(m) for m in profile.missing]
    stated = {"rank": profile.rank, "node": profile.node}
    return json.dumps({"tables": list(profile.loaders), "missing": missing, "notes": profile.notes, **stated})


def _recalled(source: _Source) -> Profile | None:
    """Return a profile as its copy in the cache describes it; None if there is none, or its description is damaged."""
    copy = cache.fetch(source.place, "CAPTURE")
    if copy is None or copy[0].empty:
        return None
    try:
        described = json.loads(copy[1])
        missing = tuple(Missing(**m) for m in described["missing"])
        notes = tuple(str(note) for note in described["notes"])
        rank = None if described["rank"] is None else int(described["rank"])
        node, tables = str(described["node"]), [table for table in described["tables"] if table in TABLES]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    # It may be stored under another name of the file.
    capture = copy[0].assign(path=pd.array([shown(source.path)] * len(copy[0]), dtype="string"))
    loaders = {table: _Copy(source, table) for table in tables}
    return Profile(source.reader, source.path, capture, loaders, missing, notes, rank, node)


def shown(path: Path) -> str:
    """Return a path as text: bytes of a name that are no text are written as escapes, as no table can hold them."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class _Source:
    """The profile as its reader opens it, opened at most once and only if a copy is missing."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.reader = path, name
        self._state = cache.state(path, name, reader(name).VERSION)
        self.place = cache.folder(path, name, self._state)
        self._profile: Profile | None = None

    def profile(self) -> Profile:
        """Return what the reader makes of the file, with a CAPTURE that can be and a note on what could not."""
        if self._profile is None:
            self._check_size()
            read = reader(self.reader).read(self.path)
            capture, doubts = TABLES["CAPTURE"].checked(read.capture)
            capture = capture.assign(path=pd.array([shown(self.path)] * len(capture), dtype="string"))
            notes = (*read.notes, *doubts)
            self._profile = replace(read, capture=capture, notes=notes)
            self._check()
        return self._profile

    def _check_size(self) -> None:
        """Refuse a file that its reader would have to hold whole, and that is larger than any log.

        Raises
        ------
        ReadError
            If it is larger than the reader's LARGEST.
        """
        largest = getattr(reader(self.reader), "LARGEST", None)
        size_bytes = self.path.stat().st_size
        if largest is not None and self.path.is_file() and size_bytes > largest:
            raise ReadError(
                f"{self.path}: the file has {size(size_bytes)}, and a file of this kind is read up to {size(largest)}. "
                "Cut it into parts."
            )

    def table(self, table: str) -> Checked:
        """Read a table from the file, which must still be the one that was opened."""
        self._check()
        checked = self.profile().checked(table)
        self._check()
        return checked

    def store(self, table: str, frame: pd.DataFrame, note: str) -> None:
        """Keep a copy of a table with a note on it."""
        cache.store(self.place, table, frame, note)

    def _check(self) -> None:
        """Refuse a file that changed: tables of two recordings would be mixed, and the wrong ones kept.

        Raises
        ------
        ReadError
            If the file is another than when the run was loaded.
        """
        try:
            state = cache.state(self.path, self.reader, reader(self.reader).VERSION)
        except OSError as e:
            raise ReadError(f"{self.path}: the file is gone since it was loaded ({e.strerror}). Load it again.") from e
        if state != self._state:
            raise ReadError(f"{self.path}: the file changed after it was loaded. Load it again.")


class _Copy:
    """A table of a profile: its copy in the cache, or else what the file says, which is then copied."""

    def __init__(self, source: _Source, table: str) -> None:
        self._source, self._table = source, table

    def __call__(self) -> Checked:
        """Return the table and the notes on what was left out of it."""
        copy = cache.fetch(self._source.place, self._table)
        notes = None if copy is None else _notes(copy[1])
        if copy is not None and notes is not None:
            return Checked(copy[0], notes)
        checked = self._source.table(self._table)
        self._source.store(self._table, checked.frame, json.dumps(checked.notes))
        return checked

    def notes(self) -> tuple[str, ...]:
        """Return the notes alone: the copy's, which is not read for them, or those of the table."""
        note = cache.note(self._source.place, self._table)
        notes = None if note is None else _notes(note)
        return self().notes if notes is None else notes


def _notes(text: str) -> tuple[str, ...] | None:
    """Return the notes stored with a table; None if they are damaged."""
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(notes, list) and all(isinstance(note, str) for note in notes)
    return tuple(notes) if is_list else None
