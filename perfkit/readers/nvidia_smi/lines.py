"""The rows of a log as columns, read fast; what is damaged is found slowly, with its line.

No line is looked at by itself unless its first character may be that of a header or a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError
from perfkit.readers.nvidia_smi.forms import FAILED, content
from perfkit.readers.nvidia_smi.grid import NEWLINE, SPACE, grid
from perfkit.readers.nvidia_smi.log import Column

WHITE = [*b"\t\r\n"]
DELETE = b"\x7f"
BINARY = re.compile(rb"[^\t\r\n\x20-\x7e\x80-\xff]")
MESSAGES = tuple(message.encode() for message in FAILED)
DMON_HEADERS = (b"#", b"gpu ", b"Idx ", b"Date ", b"Time ", b"YYYYMMDD ", b"HH:MM:SS ")  # some logs lost their "#"
OTHER_SPACES = b",\t\r"
BLOCK = 1 << 22  # bytes; larger ones are slower, smaller ones have more dictionaries to unite
INDENT = 8  # spaces before a word that are passed over fast
CUT = "the last line is cut and left out"
AGAIN = "Take it out of the log, or record the log again"


@dataclass(frozen=True)
class Lines:
    """The whole lines of a log: its headers, and its rows one after the other.

    `others` are the numbers of the lines, from 0, that are blank, a header or a message of nvidia-smi; `spaced` are
    rows with any number of spaces between their words.
    """

    path: Path
    headers: tuple[bytes, ...]
    others: Sequence[int]
    rows: bytes
    notes: tuple[str, ...]
    spaced: bool = False

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.rows.count(b"\n")

    def where(self, row: int) -> str:
        """Say where a row stands, for a message."""
        lines = np.arange(self.count + len(self.others))
        return f"line {np.delete(lines, list(self.others))[row] + 1}"

    def columns(self, names: Sequence[str], texts: Sequence[str], plain: Sequence[str] = ()) -> dict[str, Any]:
        """Return the columns in `texts` as `Column`, those in `plain` as Arrow arrays of text.

        Raises
        ------
        ReadError
            If a line has more or fewer fields than there are names.
        """
        if self.spaced:
            return grid(self.rows, names, texts) or self._separated(_squeezed(self.rows), " ", names, texts, plain)
        return self._separated(self.rows, ",", names, texts, plain)

    def _separated(
        self, rows: bytes, separator: str, names: Sequence[str], texts: Sequence[str], plain: Sequence[str]
    ) -> dict[str, Any]:
        import pyarrow as pa
        from pyarrow import csv

        kinds = {name: pa.dictionary(pa.int32(), pa.binary()) for name in texts} | dict.fromkeys(plain, pa.binary())
        try:
            table = csv.read_csv(
                BytesIO(rows),
                csv.ReadOptions(column_names=list(names), block_size=BLOCK),
                csv.ParseOptions(delimiter=separator, quote_char=False),
                csv.ConvertOptions(column_types=kinds, include_columns=list(kinds)),
            )
        except pa.ArrowInvalid as e:
            raise self._ragged(rows, separator.encode(), len(names), e) from e
        return {name: _column(table[name]) if name in texts else table[name] for name in kinds}

    def _ragged(self, rows: bytes, separator: bytes, width: int, said: Exception) -> ReadError:
        for row, line in enumerate(rows.splitlines()):
            count = line.count(separator) + 1
            if count != width:
                return ReadError(f"{self.path}: {self.where(row)} has {count} fields, the header has {width}. {AGAIN}.")
        return ReadError(f"{self.path}: a line is damaged ({said}). {AGAIN}.")


def lines(path: Path, spaced: bool = False) -> Lines:
    """Return the lines of a log; with `spaced` those of dmon, words between spaces, else those of a query.

    Raises
    ------
    ReadError
        If the file holds bytes that are no text, or a header and no rows.
    """
    data = content(path)
    data = _with_spaces(data) if spaced else data.replace(b"\r", b"")
    starts = np.append(0, 1 + _ends(path, data))
    whole = data[: starts[-1]]
    beginnings = DMON_HEADERS if spaced else (whole.lstrip().partition(b"\n")[0].rstrip(),)
    others = _others(whole, starts, beginnings)
    if len(others) == len(starts) - 1:
        raise ReadError(f"{path}: the log has a header and no whole row. Let nvidia-smi run while the program does.")
    found = dict.fromkeys(others.values())
    said = [line.decode(errors="replace")[:200] for line in found if line.startswith(MESSAGES)]
    notes = [CUT] * bool(data[len(whole) :].strip()) + [f"nvidia-smi said {line!r}" for line in said]
    headers = tuple(line for line in found if line.startswith(beginnings))
    return Lines(path, headers, list(others), _without(whole, starts, list(others)), tuple(notes), spaced)


def _ends(path: Path, data: bytes) -> NDArray[np.int64]:
    """Return where lines end.

    Raises
    ------
    ReadError
        If there are bytes that are no text.
    """
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(data), BLOCK):
        text = np.frombuffer(data, np.uint8, min(BLOCK, len(data) - begin), begin)
        controls = np.flatnonzero(text < SPACE)
        kinds = text[controls]
        if not np.isin(kinds, WHITE).all():
            raise _binary(path, data)
        found.append(controls[kinds == NEWLINE] + begin)
    if DELETE in data:
        raise _binary(path, data)
    return np.concatenate(found)


def _others(whole: bytes, starts: NDArray[np.int64], beginnings: tuple[bytes, ...]) -> dict[int, bytes]:
    """Return the lines that are no rows by their numbers, without blanks around them."""
    text = np.frombuffer(whole, np.uint8)
    first = starts[:-1].copy()
    for _ in range(INDENT):
        blank = text[first] == SPACE
        if not blank.any():
            break
        first[blank] += 1
    suspects = np.isin(text[first], [*b" \t\n", *(begin[0] for begin in (*beginnings, *MESSAGES) if begin)])
    found = {int(i): whole[first[i] : starts[i + 1]].strip() for i in np.flatnonzero(suspects)}
    return {i: line for i, line in found.items() if not line or line.startswith((*beginnings, *MESSAGES))}


def _without(whole: bytes, starts: NDArray[np.int64], others: Sequence[int]) -> bytes:
    """Return the lines but for the others."""
    begins = [0, *(int(starts[i + 1]) for i in others)]
    ends = [*(int(starts[i]) for i in others), len(whole)]
    view = memoryview(whole)
    return b"".join([view[begin:end] for begin, end in zip(begins, ends, strict=True)])


def _with_spaces(data: bytes) -> bytes:
    """Put a space in the place of what else separates words."""
    if any(other in data for other in OTHER_SPACES):
        return data.translate(bytes.maketrans(OTHER_SPACES, b" " * len(OTHER_SPACES)))
    return data


def _squeezed(rows: bytes) -> bytes:
    """Leave one space between the words of each line."""
    text = np.frombuffer(rows, np.uint8)
    blank = text == SPACE
    kept = ~blank
    kept[:-1] |= blank[:-1] & ~blank[1:] & (text[1:] != NEWLINE)
    squeezed: bytes = text[kept].tobytes()
    return squeezed.replace(b"\n ", b"\n").removeprefix(b" ")


def _column(values: Any) -> Column:
    """Return an Arrow column of texts, however many chunks it came in."""
    whole = values.unify_dictionaries().combine_chunks()
    texts = [text.decode(errors="replace").strip() for text in whole.dictionary.to_pylist()]
    return Column(whole.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False), texts)


def _binary(path: Path, data: bytes) -> ReadError:
    found = BINARY.search(data)
    at = found.start() if found else 0
    line = data.count(b"\n", 0, at) + 1
    return ReadError(f"{path}: line {line} holds bytes that are no text ({data[at : at + 8]!r}). {AGAIN}.")
