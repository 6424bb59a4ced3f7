"""What the files of a database have in common: a header with sections, a footer, and pointers into the file.

Every number is little endian, every pointer an absolute offset. How far the entries of an array are apart is
stored in the file, because a later minor version may append fields to them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
            raise self.damaged(f"the file starts with {magic + form!r}, not {MAGIC + kind.format!r}")
        if major != MAJOR:
            raise ReadError(
                f"{self.path}: the format is {major}.{self.minor}, perfkit reads {MAJOR}.x. "
                f"Make the database with an `hpcprof` that writes format {MAJOR}."
            )
        raw = self.take(HEADER.size, kind.sections * SECTION.size, "the list of sections")
        self.sections = [(start, start + size) for size, start in SECTION.iter_unpack(raw)]
        last = max(end for _, end in self.sections)
        if last > self.size:
            raise self.damaged(f"a section ends at byte {last}, the file has {self.size}: it is cut")
        footer = bytes(self.take(self.size - len(kind.footer), len(kind.footer), "the footer"))
        if footer != kind.footer:
            raise self.damaged(f"the file ends with {footer!r}, not {kind.footer!r}: it is cut")

    def _closed(self, why: OSError) -> ReadError:
        return ReadError(f"{self.path}: the file cannot be opened ({why.strerror}). Check its permissions.")

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
            raise self.damaged(f"{what} has {len(taken)} bytes of {size}: the file was cut while it was read")
        return taken

    def fields(self, at: int, form: str, what: str) -> tuple[int, ...]:
        """Return the numbers of one structure of the little-endian form `form`."""
        return struct.unpack(f"<{form}", self.take(at, struct.calcsize(f"<{form}"), what))

    def records(self, at: int, count: int, stride: int, parts: Mapping[str, tuple[str, int]], what: str) -> Records:
        """Return an array of structures `stride` bytes apart, of which the named parts are known: (type, offset)."""
        known = max(np.dtype(form).itemsize + offset for form, offset in parts.values())
        if count and stride < known:
            raise self.damaged(f"{what} are {stride} bytes apart, fewer than the {known} each takes")
        layout: DTypeLike = {
            "names": list(parts),
            "formats": [form for form, _ in parts.values()],
            "offsets": [offset for _, offset in parts.values()],
            "itemsize": max(stride, known),
        }
        return np.frombuffer(self.take(at, count * stride, what), np.dtype(layout), count)

    def numbered(self, pointers: NDArray[np.uint64], first: int, stride: int, count: int, what: str) -> Ints:
        """Return the positions in an array that pointers point at, -1 for those that are 0."""
        if not len(pointers):
            return np.zeros(0, np.int64)
        far = pointers - np.uint64(first)  # wraps below `first`, and is then too large
        position, rest = np.divmod(far, np.uint64(max(stride, 1)))
        wrong = (pointers != 0) & ((rest != 0) | (position >= count))
        if wrong.any():
            raise self.damaged(f"a pointer to {what} ({int(pointers[wrong][0]):#x}) points at none of the {count}")
        return np.where(pointers == 0, -1, position.astype(np.int64))

    def text(self, at: int) -> str:
        """Return the text at an offset, empty for 0; bytes that are not UTF-8 are replaced."""
        content = self.keep()
        end = content.find(b"\0", at) if 0 < at < len(content) else 0
        if end < 0 or (at and not end):
            raise self.damaged(f"a text would start at byte {at} and has no end, the file has {self.size} bytes")
        return content[at:end].decode("utf-8", errors="replace")
