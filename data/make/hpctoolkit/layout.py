"""How do HPCToolkit's files begin, end and point at their parts?

Conventions
-----------
A file starts with magic, format and version, then size and absolute offset of each section; it ends with a footer of
eight bytes. Structures are written as words of eight bytes, which is what they are aligned to; a pointer is the
absolute offset in the file, 0 for none.

Functions
---------
header      the first bytes of a file
packed      small fields of one word
padded      bytes up to the next multiple of a size
replacing   a file that takes its name when it is complete
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Words = NDArray[np.uint64]

MAGIC = b"HPCTOOLKIT"
MAJOR = 4
WORD = 8
SECTION = struct.Struct("<QQ")


class Form(NamedTuple):
    """What may differ in later minor versions of the format; the default is what version 4.0 writes.

    Parameters
    ----------
    minor
        The minor version the files state.
    spare_words
        Words of eight bytes that every structure that may grow has more than in version 4.0.
    first_statistic
        What the ids of statistics in summary profiles start at; the ids of other profiles' metrics start at 0.
    """

    minor: int = 0
    spare_words: int = 0
    first_statistic: int = 0


class Strings:
    """Texts that end with a NUL, one behind the other; each is there once."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = {text: text.encode() + b"\0" for text in texts}
        ends = np.cumsum([len(raw) for raw in encoded.values()], dtype=np.int64)
        self._at = dict(zip(encoded, (ends - [len(raw) for raw in encoded.values()]).tolist(), strict=True))
        self.bytes = b"".join(encoded.values())

    def at(self, text: str | None, base: int) -> int:
        """Return where a text is if the first one is at `base`; 0 for None."""
        return 0 if text is None else base + self._at[text]


def header(kind: bytes, sections: Sequence[tuple[int, int]], form: Form) -> bytes:
    """Return the first bytes of a file whose sections have these sizes and offsets."""
    return MAGIC + kind + bytes([MAJOR, form.minor]) + b"".join(SECTION.pack(*section) for section in sections)


def header_size(sections: int) -> int:
    """Return the size of a header with so many sections."""
    return len(MAGIC) + 6 + SECTION.size * sections


def packed(fmt: str, *fields: int) -> int:
    """Return small fields as one word.

    Examples
    --------
    >>> packed("<HB", 2, 32) == 2 + 32 * 0x10000
    True
    """
    return int.from_bytes(struct.pack(fmt, *fields), "little")


def padded(raw: bytes, size: int = WORD) -> bytes:
    """Return bytes with zeros behind them up to the next multiple of `size`.

    Examples
    --------
    >>> padded(b"abc", 4)
    b'abc\\x00'
    """
    return raw + bytes(-len(raw) % size)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name, and the place of an older one, when the block ends well."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        yield file
    os.replace(part, path)
