"""The binary files of a database: a header with sections, a footer, and pointers into the file.

Every number is little endian, every pointer an absolute offset. How far the entries of an array are
apart is stored in the file, because a later minor version may append fields to them.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike, NDArray

from perfkit import tables
from perfkit.errors import ReadError

MAGIC = b"HPCTOOLKIT"
MAJOR = 4
HEADER = struct.Struct("<10s4sBB")
SECTION = struct.Struct("<QQ")
AGAIN = "Copy the database again, or make it anew with `hpcprof`."
Ints = NDArray[np.int64]
Records = NDArray[np.void]


@dataclass(frozen=True)
class Kind:
    """One of the files: its name, what it says of itself in its header and footer, and its number of sections."""

    name: str
    format: bytes
    footer: bytes
    sections: int


META = Kind("meta.db", b"meta", b"_meta.db", 8)
PROFILE = Kind("profile.db", b"prof", b"_prof.db", 2)
CCT = Kind("cct.db", b"ctxt", b"__ctx.db", 1)
TRACE = Kind("trace.db", b"trce", b"trace.db", 1)
KINDS = (META, PROFILE, CCT, TRACE)


class File:
    """One file of a database, whole as far as its header and footer tell."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.path = folder / kind.name
        self._content: bytes | None = None
        try:
            self.size = self.path.stat().st_size
        except OSError as e:
            raise self._closed(e) from e
        self._check(kind)

    def _check(self, kind: Kind) -> None:
        if not self.size:
            raise ReadError(f"{self.path}: the file is empty (0 bytes). {AGAIN}")
        magic, form, major, self.minor = HEADER.unpack(self.take(0, HEADER.size, "the header"))
        if (magic, form) != (MAGIC, kind.format):
            raise self.damaged(
                f"the file starts with {magic + form!r}, not {MAGIC + kind.format!r}"
            )
        if major != MAJOR:
            raise ReadError(
                f"{self.path}: the format is {major}.{self.minor}, perfkit reads {MAJOR}.x. "
                f"Make the database with an `hpcprof` that writes format {MAJOR}."
            )
        raw = self.take(HEADER.size, kind.sections * SECTION.size, "the list of sections")
        self.sections = [(start, start + size) for size, start in SECTION.iter_unpack(raw)]
        last = max(end for _, end in self.sections)
        if last > self.size:
            raise self.damaged(
                f"a section ends at byte {last}, the file has {self.size}: it is cut"
            )
        footer = bytes(self.take(self.size - len(kind.footer), len(kind.footer), "the footer"))
        if footer != kind.footer:
            raise self.damaged(f"the file ends with {footer!r}, not {kind.footer!r}: it is cut")

    def _closed(self, why: OSError) -> ReadError:
        return ReadError(
            f"{self.path}: the file cannot be opened ({why.strerror}). Check its permissions."
        )

    def damaged(self, what: str) -> ReadError:
        """Return the error that says what is wrong with this file."""
        return ReadError(f"{self.path}: {what}. {AGAIN}")

    def keep(self) -> bytes:
        """Return the whole content and answer from it until `forget`."""
        if self._content is None:
            self._content = bytes(self.take(0, self.size, "the content"))
        return self._content

    def forget(self) -> None:
        """Give the memory of `keep` back."""
        self._content = None

    def take(self, at: int, size: int, what: str) -> bytes | memoryview:
        """Return `size` bytes from offset `at`; `what` stands in the error if the file has no such bytes."""
        if not 0 <= at <= at + size <= self.size:
            raise self.damaged(f"{what} would end at byte {at + size}, the file has {self.size}")
        if self._content is not None:
            return memoryview(self._content)[at : at + size]
        try:
            with self.path.open("rb") as file:
                file.seek(at)
                taken = file.read(size)
        except OSError as e:
            raise self._closed(e) from e
        if len(taken) != size:
            raise self.damaged(
                f"{what} has {len(taken)} bytes of {size}: the file was cut while it was read"
            )
        return taken

    def fields(self, at: int, form: str, what: str) -> tuple[int, ...]:
        """Return the numbers of one structure of the little-endian form `form`."""
        return struct.unpack(f"<{form}", self.take(at, struct.calcsize(f"<{form}"), what))

    def records(
        self, at: int, count: int, stride: int, parts: Mapping[str, tuple[str, int]], what: str
    ) -> Records:
        """Return an array of structures `stride` bytes apart, of which the named parts are known: (type, offset)."""
        least = max(np.dtype(form).itemsize + offset for form, offset in parts.values())
        if count and stride < least:
            raise self.damaged(
                f"{what} are {stride} bytes apart, fewer than the {least} each takes"
            )
        layout: DTypeLike = {
            "names": list(parts),
            "formats": [form for form, _ in parts.values()],
            "offsets": [offset for _, offset in parts.values()],
            "itemsize": max(stride, least),
        }
        return np.frombuffer(self.take(at, count * stride, what), np.dtype(layout), count)

    def numbered(
        self, pointers: NDArray[np.uint64], first: int, stride: int, count: int, what: str
    ) -> Ints:
        """Return the positions in an array that pointers point at, -1 for a pointer of 0."""
        if not len(pointers):
            return np.zeros(0, np.int64)
        far = pointers - np.uint64(first)  # wraps below `first`, and is then too large
        position, rest = np.divmod(far, np.uint64(max(stride, 1)))
        wrong = (pointers != 0) & ((rest != 0) | (position >= count))
        if wrong.any():
            raise self.damaged(
                f"a pointer to {what} ({int(pointers[wrong][0]):#x}) points at none of the {count}"
            )
        return np.where(pointers == 0, -1, position.astype(np.int64))

    def text(self, at: int) -> str:
        """Return the text at an offset, empty for 0; bytes that are not UTF-8 are replaced."""
        content = self.keep()
        end = content.find(b"\0", at) if 0 < at < len(content) else 0
        if end < 0 or (at and not end):
            raise self.damaged(
                f"a text would start at byte {at} and has no end, the file has {self.size} bytes"
            )
        return content[at:end].decode("utf-8", errors="replace")


TRACES = 0  # section of trace.db
TRACE_PARTS = {"profile": ("<u4", 0), "start": ("<u8", 8), "end": ("<u8", 16)}
ELEMENT_BYTES, ELEMENT = 12, {"time": ("<u8", 0), "node": ("<u4", 8)}
IDLE = 0  # the context that stands for not running
LATEST = 2**63


class Traces:
    """The traces of a database: one per thread and stream that was seen running."""

    def __init__(self, file: File, profiles: int) -> None:
        self._file = file
        first, count, stride, self.start, self.end = file.fields(
            file.sections[TRACES][0], "QIBxxxQQ", "the traces"
        )
        self._lines = file.records(first, count, stride, TRACE_PARTS, "the traces")
        # Traces without elements have no times: their first is then after their last (2^63 - 1 and
        # 2^63).
        is_empty = (self._lines["start"] == self._lines["end"]).all()
        if not is_empty and not self.start <= self.end < LATEST:
            raise file.damaged(f"the traces last from {self.start} to {self.end} ns")
        beyond = self._lines["profile"][self._lines["profile"] >= profiles]
        if len(beyond):
            raise file.damaged(f"a trace is of profile {beyond[0]}, the database has {profiles}")

    @property
    def exist(self) -> bool:
        """Whether any thread was seen running; of two successive elements at least one is not idle."""
        return any((self._elements(line, 2)["node"] != IDLE).any() for line in self._lines)

    def _elements(self, line: Records, at_most: int | None = None) -> Records:
        start, end = int(line["start"]), int(line["end"])
        count, rest = divmod(end - start, ELEMENT_BYTES)
        if count < 0 or rest:
            raise self._file.damaged(f"a trace would be from byte {start} to {end}")
        count = count if at_most is None else min(count, at_most)
        return self._file.records(start, count, ELEMENT_BYTES, ELEMENT, "a trace")

    def table(self) -> pd.DataFrame:
        """Return TRACE; being idle is no row."""
        lines = [(int(line["profile"]), self._elements(line)) for line in self._lines]
        thread = np.repeat([thread for thread, _ in lines], [len(e) for _, e in lines]).astype(
            np.int64
        )
        time = np.concatenate([e["time"] for _, e in lines])
        node = np.concatenate([e["node"] for _, e in lines])
        if ((time < self.start) | (time > self.end)).any():
            raise self._file.damaged(
                "an element of a trace is before the first or after the last of them"
            )
        last = np.cumsum([len(e) for _, e in lines if len(e)]) - 1
        dur = np.diff(time.astype(np.int64), append=0)  # to the next element of the same trace
        dur[last] = 0
        if (dur < 0).any():
            raise self._file.damaged("the elements of a trace are not in order of time")
        ended = np.append(node[1:] == IDLE, False)
        ended[last] = False
        seen = node != IDLE
        frame = {
            "rank": np.zeros(np.count_nonzero(seen), np.int32),
            "thread": thread[seen],
            "start_ns": time[seen].astype(np.int64) - self.start,
            "dur_ns": dur[seen],
            "node": node[seen].astype(np.int64),
            "ended": ended[seen],
        }
        return tables.TRACE.make(pd.DataFrame(frame, copy=False))


PROFILES = 0  # section of profile.db
SUMMARY = 0  # the first profile adds up all threads
IS_SUMMARY = 1
PARTS = {
    "values": ("<u8", 0),
    "p_values": ("<u8", 8),
    "contexts": ("<u4", 16),
    "p_contexts": ("<u8", 24),
    "identity": ("<u8", 32),
    "flags": ("<u4", 40),
}
VALUE_BYTES, VALUE = 10, {"metric": ("<u2", 0), "value": ("<f8", 2)}
INDEX_BYTES, INDEX = 12, {"context": ("<u4", 0), "start": ("<u8", 4)}
IDENTITY_BYTES, IDENTITY = 16, {"kind": ("u1", 0), "number": ("<u4", 4)}


@dataclass(frozen=True)
class Values:
    """Stored values: the context, the metric's number and the value of each, contexts ascending."""

    context: Ints
    metric: NDArray[np.uint16]
    value: NDArray[np.float64]


class Profiles:
    """The profiles of a database: position 0 is the sum over all threads, most others are one thread or stream."""

    def __init__(self, file: File) -> None:
        self.file = file

    @cached_property
    def _infos(self) -> Records:
        first, count, stride = self.file.fields(
            self.file.sections[PROFILES][0], "QIB", "the profiles"
        )
        infos = self.file.records(first, count, stride, PARTS, "the profiles")
        if not count or not infos["flags"][SUMMARY] & IS_SUMMARY:
            raise self.file.damaged(
                f"the first of {count} profiles is not the sum over all threads"
            )
        return infos

    def __len__(self) -> int:
        return len(self._infos)

    @cached_property
    def threads(self) -> list[int]:
        """Positions of the profiles that are one thread or stream."""
        return np.flatnonzero(self._infos["flags"] & IS_SUMMARY == 0).tolist()

    def identity(self, position: int) -> list[tuple[int, int]]:
        """Return what tells a thread from the others: (kind of identity, number), the widest first."""
        at = int(self._infos["identity"][position])
        if not at:
            return []
        (count,) = self.file.fields(at, "H", "an identity")
        rows = self.file.records(at + 8, count, IDENTITY_BYTES, IDENTITY, "an identity")
        return [(kind, number) for kind, number in rows.tolist()]

    def all(self, position: int = SUMMARY) -> Values:
        """Return every stored value of a profile."""
        context, bounds = self._index(position)
        return self._values(position, context, bounds)

    def of(self, contexts: Ints, position: int = SUMMARY) -> Values:
        """Return the stored values of a few contexts, without reading those of the others."""
        context, bounds = self._index(position)
        rows = np.flatnonzero(np.isin(context, contexts))
        parts = [self._values(position, context[i : i + 1], bounds[i : i + 2]) for i in rows]
        return Values(
            np.concatenate([np.zeros(0, np.int64), *(part.context for part in parts)]),
            np.concatenate([np.zeros(0, np.uint16), *(part.metric for part in parts)]),
            np.concatenate([np.zeros(0), *(part.value for part in parts)]),
        )

    def _index(self, position: int) -> tuple[Ints, Ints]:
        """Return the contexts that have values, and between which positions their values are."""
        info, what = self._infos[position], f"the contexts of profile {position}"
        rows = self.file.records(
            int(info["p_contexts"]), int(info["contexts"]), INDEX_BYTES, INDEX, what
        )
        context = rows["context"].astype(np.int64)
        bounds = np.append(rows["start"], info["values"])
        if (np.diff(context) <= 0).any() or (bounds[1:] < bounds[:-1]).any():
            raise self.file.damaged(f"{what} are not in order")
        return context, bounds.astype(np.int64)

    def _values(self, position: int, context: Ints, bounds: Ints) -> Values:
        """Return the values that lie between consecutive bounds."""
        at = int(self._infos["p_values"][position]) + VALUE_BYTES * int(bounds[0])
        count, what = int(bounds[-1] - bounds[0]), f"the values of profile {position}"
        rows = self.file.records(at, count, VALUE_BYTES, VALUE, what)
        if not np.isfinite(rows["value"]).all():
            raise self.file.damaged(f"{what} are not all numbers")
        return Values(np.repeat(context, np.diff(bounds)), rows["metric"], rows["value"])
