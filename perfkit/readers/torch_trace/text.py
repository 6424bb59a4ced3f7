"""A trace's text as bytes: decompressed as it is read, and where its brackets are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError

GZIP = b"\x1f\x8b"
BLOCK = 16 << 20
PACKED = 1 << 20
# Bytes of text that any packed file may hold, and how many times its own size beyond: real traces reach 35 times.
MOST, TIMES = 256 << 20, 50

ESCAPED = re.compile(rb'\\+"')
MARK = np.zeros(256, bool)
MARK[list(b'"{}[]')] = True
STEP = np.zeros(256, np.int8)
STEP[list(b"{[")] = 1
STEP[list(b"}]")] = -1


class Text:
    """A file's text in chunks, unpacked if its first bytes are gzip's; `cut` once it ended within a gzip member."""

    def __init__(self, path: Path, size: int = BLOCK) -> None:
        self.path = path
        self.cut = False
        self._size = size

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                packed = file.read(len(GZIP)) == GZIP
                file.seek(0)
                yield from self._unpacked(file) if packed else iter(partial(file.read, self._size), b"")
        except OSError as e:
            raise ReadError(f"{self.path}: the file cannot be read ({e}). Check its permissions and the disk.") from e

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        from isal import igzip_lib

        size, unpacked = self.path.stat().st_size, 0
        packed = file.read(PACKED)
        while packed.startswith(GZIP):
            member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            while not member.eof:
                if member.needs_input and not packed:
                    self.cut = True
                    return
                try:
                    text = member.decompress(packed, self._size)
                except igzip_lib.IsalError as e:  # type: ignore[misc]  # the stub declares an instance of it
                    raise ReadError(f"{self.path}: the gzip stream is damaged ({e}). Copy the file again.") from e
                unpacked += len(text)
                if unpacked > max(MOST, TIMES * size):
                    raise ReadError(
                        f"{self.path}: its {size} bytes unpack to more than {unpacked}, as no trace does. "
                        "If you trust the file, unpack it with `gunzip` and load that."
                    )
                if text:
                    yield text
                packed = file.read(PACKED) if member.needs_input else b""
            packed = member.unused_data or file.read(PACKED)


def ends(text: bytes | bytearray) -> tuple[int, bool]:
    """Find where the whole events of the array that begins `text` end, by counting brackets outside strings.

    Returns
    -------
    tuple
        The position after the last whole event and False; or, if `text` holds the end of the array, the
        position of the bracket that closes it and True. -1 if not one event is whole.
    """
    marks, depth = depths(text)
    closing = np.flatnonzero(depth == 0)[:1]
    if closing.size:
        return int(marks[closing[0]]), True
    whole = marks[depth == 1]
    return (int(whole[-1]) + 1 if len(whole) > 1 else -1), False


def depths(text: bytes | bytearray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the brackets outside strings, and how many are open after each."""
    characters = np.frombuffer(text, np.uint8)
    marked = MARK[characters]
    if b"\\" in text:
        within = [m.end() - 1 for m in ESCAPED.finditer(text) if (m.end() - m.start()) % 2 == 0]
        marked[within] = False
    marks = np.flatnonzero(marked)
    quotes = characters[marks] == ord('"')
    outside = ~quotes & (np.cumsum(quotes) % 2 == 0)
    marks = marks[outside]
    return marks, np.cumsum(STEP[characters[marks]], dtype=np.int64)
