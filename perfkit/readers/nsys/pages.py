"""Columns of numbers or text straight from the pages of an SQLite file (https://www.sqlite.org/fileformat2.html).

SQLite decodes one cell after the other. Here NumPy does each step for all rows of a thousand pages,
in a third of the time. Only the plain case is read: a table with row ids, each row in one page,
whole numbers or text in the columns asked for. All else, damage too, raises Unusual, and the caller
asks SQLite.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from perfkit.schema import unique

Bytes = NDArray[np.uint8]
Int = NDArray[np.int64]
HEADER = 100  # bytes of the file's header
INTERIOR, LEAF = 5, 13  # kinds of pages
PLACES = {INTERIOR: 12, LEAF: 8}  # where a page says where its cells are
# levels of pages: no table has so many, but those of a damaged file may lead to each other in
# circles
DEEPEST = 20
LARGEST = 2**62  # row ids; their differences fit
OVERFLOW = 35  # a longer row than the page less these bytes goes on elsewhere
BATCH = 1024  # pages at once: what is made of them fits the processor's cache
MARGIN = 256  # bytes behind the pages, for what is read where a row should end
# By serial type, of those of one or two bytes: bytes in the row, and how far a word from there on
# is shifted to be the number.
WIDE = 128  # serial types from here on have two bytes: of texts of more than 57
SIZES = np.r_[0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, (np.arange(12, WIDE * WIDE) - 12) // 2]
SHIFTS = np.clip(64 - 8 * SIZES, 0, 63)
NULL, ZERO, ONE, TEXT = 0, 8, 9, 13
IS_WHOLE = np.isin(np.arange(len(SIZES)), [NULL, *range(1, 7), ZERO, ONE])
ENCODING, UTF_8 = slice(56, 60), (1).to_bytes(4, "big")  # of texts, in the file's header


class Unusual(Exception):
    """The file or the table is not the plain case, or damaged."""


class Pages:
    """The pages of a file, numbered from 1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            head = file.read(HEADER)
        self._size = page_size(head)
        _require(self._size >= 512 and self._size & self._size - 1 == 0)
        _require(not any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal")))
        self._is_utf_8 = head[ENCODING] == UTF_8
        self._longest = self._size - head[20] - OVERFLOW
        self._count = path.stat().st_size // self._size

    def leaves(self, root: object, first: object, last: object) -> tuple[Int, Int]:
        """Return the pages with the rows of a table, and how many rows lie before each of them, and in all.

        `root`: its first page; `first`, `last`: its least and largest row id. There must be a row
        of each id between.
        """
        if not (isinstance(root, int) and isinstance(first, int) and isinstance(last, int)):
            raise Unusual
        _require(root > 1 and -LARGEST < first <= last < LARGEST)
        level, keys = np.array([root]), np.array([last])
        for depth in range(1 + DEEPEST):
            _require(depth < DEEPEST and level.min() > 1 and level.max() <= self._count)
            if self._read(level[:1])[0] == LEAF:
                break
            data, count, cells = self._cells(level, INTERIOR)
            ends, right = np.cumsum(count), np.arange(len(level)) * self._size + 8
            keys = np.insert(_varint(data, cells + 4)[0], ends, keys)
            level = np.insert(_words(data, cells) >> 32, ends, _words(data, right) >> 32).astype(
                np.int64
            )
            _require(len(level) <= self._count)
        rows = np.r_[0, keys - (first - 1)]
        _require((np.diff(rows) > 0).all() and len(unique(level)) == len(level))
        return level, rows

    def columns(self, leaves: Int, rows: int, wanted: Sequence[int], width: int) -> list[pa.Array]:
        """Return columns, each by its place among the `width` of a table, of the `rows` rows on some pages."""
        data, places = self._places(leaves, rows, width)
        return [_numbers(data, *places[number]) for number in wanted]

    def texts(self, leaves: Int, rows: int, wanted: int, width: int) -> pa.DictionaryArray:
        """Return a column of text as the bytes of its distinct texts, and which of them each row has."""
        _require(self._is_utf_8)
        data, places = self._places(leaves, rows, width)
        at, kind = places[wanted]
        return _texts(data, at, np.broadcast_to(kind, len(at)))

    def _places(
        self, leaves: Int, rows: int, width: int
    ) -> tuple[Bytes, list[tuple[Int, NDArray[Any] | int]]]:
        """Return pages, and of each column where its cells begin and their serial type, or one for each cell."""
        data, count, cells = self._cells(leaves, LEAF)
        payload, after = _varint(data, cells)
        _require(count.sum() == rows and payload.max() <= self._longest and width < WIDE // 2)
        _, header = _varint(data, after)
        length = data[header].astype(np.int64)
        longest = int(length.max())
        _require(length.min() > width and longest < WIDE)
        heads = [
            _stored(data, header + 1 + start).view(np.uint8).reshape(rows, 8)
            for start in range(0, longest, 8)
        ]
        kinds = np.concatenate(heads, axis=1)
        at, places = header + length, []
        read = np.ones(rows, np.int64)  # bytes of the header
        for number in range(width):
            every = _kinds(kinds, number, read)
            kind = int(every[0]) if every.min() == every.max() else every
            places.append((at, kind))
            at = at + SIZES[kind]
        _require((read + width == length).all())
        _require((at == header + payload).all() and (at <= (cells | self._size - 1) + 1).all())
        return data, places

    def _cells(self, pages: Int, kind: int) -> tuple[Bytes, Int, Int]:
        """Return pages of one kind, how many cells each has, and where all cells begin."""
        data = self._read(pages)
        heads = data[:-MARGIN].reshape(len(pages), self._size)[:, :5].astype(np.int64)
        count = heads[:, 3] << 8 | heads[:, 4]
        _require((heads[:, 0] == kind).all() and (PLACES[kind] + 2 * count <= self._size).all())
        page = np.repeat(np.arange(len(pages)) * self._size, count)
        place = (
            page
            + 2 * (np.arange(len(page)) - np.repeat(np.cumsum(count) - count, count))
            + PLACES[kind]
        )
        inside = data[place].astype(np.int64) << 8 | data[place + 1]
        _require(inside.max(initial=0) < self._size)
        return data, count, page + inside

    def _read(self, pages: Int) -> Bytes:
        """Return the bytes of pages, and MARGIN more."""
        data = np.empty(len(pages) * self._size + MARGIN, np.uint8)
        ends = [*(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        with self._path.open("rb", buffering=0) as file:
            for start, end in zip([0, *ends], ends, strict=False):
                file.seek((int(pages[start]) - 1) * self._size)
                part = data[start * self._size : end * self._size].data
                _require(file.readinto(part) == len(part))
        return data


def page_size(head: bytes) -> int:
    """Return the bytes of a page, by the header of its file."""
    size = int.from_bytes(head[16:18], "big")
    return 65536 if size == 1 else size


def _require(holds: object) -> None:
    if not holds:
        raise Unusual


def _stored(data: Bytes, at: Int) -> NDArray[np.uint64]:
    """Return the eight bytes from each place on as a number, stored as in the file."""
    words: NDArray[np.uint64] = np.ndarray(len(data) - 7, ">u8", data, strides=(1,))
    return words[at]


def _words(data: Bytes, at: Int) -> NDArray[np.uint64]:
    """Return the eight bytes from each place on as a number."""
    words = _stored(data, at)
    # `astype` takes four times as long
    return words.byteswap(inplace=True).view(words.dtype.newbyteorder())


def _varint(data: Bytes, at: Int) -> tuple[Int, Int]:
    """Return the numbers that are stored from each place on, seven bits a byte, and where they end."""
    word = _words(data, at)
    number, more = word >> 56 & 127, word >> 63
    length = np.ones(len(at), np.int64)
    for shift in range(48, -1, -8):
        if not more.any():
            break
        number = np.where(more, number << 7 | word >> shift & 127, number)
        length += more.astype(np.int64)
        more &= word >> (shift + 7)
    _require(not more.any())
    return number.astype(np.int64), at + length


def _kinds(kinds: Bytes, number: int, read: Int) -> NDArray[Any]:
    """Return the serial types in a column of the headers, of two bytes moved together, which `read` counts."""
    kind = kinds[:, number]
    if kind.max() < WIDE:
        return kind
    wide = np.flatnonzero(kind >= WIDE)
    low = kinds[wide, number + 1]
    _require((low < WIDE).all())
    long = kind.astype(np.int64)
    long[wide] = (long[wide] - WIDE) << 7 | low
    kinds[wide, number + 1 : -1] = kinds[wide, number + 2 :]
    read[wide] += 1
    return long


def _texts(data: Bytes, at: Int, kind: NDArray[Any]) -> pa.DictionaryArray:
    """Return the texts from each place on.

    Arrow reads the pages as what they are: a text, what lies between, the next text, and so on.
    """
    is_text = kind != NULL
    _require(((kind >= TEXT) & (kind % 2 == 1) | ~is_text).all())
    order = np.argsort(at, kind="stable")
    ends = np.column_stack([at[order], (at + SIZES[kind])[order]]).ravel()
    _require((np.diff(ends) >= 0).all())
    place = np.empty(len(at), np.int64)
    place[order] = np.arange(0, len(ends), 2)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
    return pieces.take(pa.array(place, mask=~is_text)).dictionary_encode()


def _numbers(data: Bytes, at: Int, kind: NDArray[Any] | int) -> pa.Array:
    """Return the numbers from each place on, of one serial type or one for each."""
    _require(IS_WHOLE[kind].all())
    if isinstance(kind, int) and not SIZES[kind]:
        return (
            pa.nulls(len(at), pa.int64())
            if kind == NULL
            else pa.array(np.full(len(at), kind - ZERO))
        )
    numbers = _words(data, at).view(np.int64)
    numbers >>= SHIFTS[kind]
    if isinstance(kind, int) or SIZES[kind].all():
        return pa.array(numbers)
    numbers[kind == ZERO], numbers[kind == ONE] = 0, 1
    return pa.array(numbers, mask=kind == NULL)
