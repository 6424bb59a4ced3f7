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
from perfkit.readers.nvidia_smi.log import Column

TEXT = bytes([*b"\t\r\n", *range(32, 127), *range(128, 256)])
BINARY = re.compile(rb"[^%s]" % re.escape(TEXT))
MESSAGES = tuple(message.encode() for message in FAILED)
DMON_HEADERS = (b"#", b"gpu ", b"Idx ", b"Date ", b"Time ", b"YYYYMMDD ", b"HH:MM:SS ")  # some logs lost their "#"
SPACE, NEWLINE = b" \n"
OTHER_SPACES = b",\t\r"
BLOCK = 1 << 22  # bytes; larger ones are slower, smaller ones have more dictionaries to unite
CUT = "the last line is cut and left out"
AGAIN = "Take it out of the log, or record the log again"


@dataclass(frozen=True)
class Lines:
    """The whole lines of a log: its headers, and its rows one after the other.

    `others` are the numbers of the lines, from 0, that are blank, a header or a message of nvidia-smi.
    """

    path: Path
    headers: tuple[bytes, ...]
    others: Sequence[int]
    rows: bytes
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.rows.count(b"\n")

    def where(self, row: int) -> str:
        """Say where a row stands, for a message."""
        lines = np.arange(self.count + len(self.others))
        return f"line {np.delete(lines, list(self.others))[row] + 1}"

    def columns(
        self, names: Sequence[str], separator: str, texts: Sequence[str], plain: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the columns in `texts` as `Column`, those in `plain` as Arrow arrays of text.

        Raises
        ------
        ReadError
            If a line has more or fewer fields than there are names.
        """
        import pyarrow as pa
        from pyarrow import csv

        kinds = {name: pa.dictionary(pa.int32(), pa.binary()) for name in texts} | dict.fromkeys(plain, pa.binary())
        try:
            table = csv.read_csv(
                BytesIO(self.rows),
                csv.ReadOptions(column_names=list(names), block_size=BLOCK),
                csv.ParseOptions(delimiter=separator, quote_char=False),
                csv.ConvertOptions(column_types=kinds, include_columns=list(kinds)),
            )
        except pa.ArrowInvalid as e:
            raise self._ragged(len(names), separator.encode(), e) from e
        return {name: _column(table[name]) if name in texts else table[name] for name in kinds}

    def _ragged(self, width: int, separator: bytes, said: Exception) -> ReadError:
        for row, line in enumerate(self.rows.splitlines()):
            count = line.count(separator) + 1
            if count != width:
                return ReadError(f"{self.path}: {self.where(row)} has {count} fields, the header has {width}. {AGAIN}.")
        return ReadError(f"{self.path}: a line is damaged ({said}). {AGAIN}.")


def lines(path: Path, spaced: bool = False) -> Lines:
    """Return the lines of a log; with `spaced` those of dmon, one space between words, else those of a query.

    Raises
    ------
    ReadError
        If the file holds bytes that are no text, or a header and no rows.
    """
    data = content(path)
    if data.translate(None, TEXT):
        raise _binary(path, data)
    data = _spaced(data) if spaced else data.replace(b"\r", b"")
    whole = data[: data.rfind(b"\n") + 1]
    starts = np.concatenate([[0], 1 + np.flatnonzero(np.frombuffer(whole, np.uint8) == NEWLINE)])
    beginnings = DMON_HEADERS if spaced else (whole.lstrip().partition(b"\n")[0],)
    others = _others(whole, starts, beginnings)
    if len(others) == len(starts) - 1:
        raise ReadError(f"{path}: the log has a header and no whole row. Let nvidia-smi run while the program does.")
    found = dict.fromkeys(others.values())
    said = [line.decode(errors="replace")[:200] for line in found if line.startswith(MESSAGES)]
    notes = [CUT] * bool(data[len(whole) :].strip()) + [f"nvidia-smi said {line!r}" for line in said]
    headers = tuple(line for line in found if line.startswith(beginnings))
    return Lines(path, headers, list(others), _without(whole, starts, list(others)), tuple(notes))


def _others(whole: bytes, starts: NDArray[np.int64], beginnings: tuple[bytes, ...]) -> dict[int, bytes]:
    """Return the lines that are no rows by their numbers."""
    first = np.frombuffer(whole, np.uint8)[starts[:-1]]
    suspects = np.isin(first, [*b" \t\n", *(text[0] for text in (*beginnings, *MESSAGES) if text)])
    found = {int(i): whole[starts[i] : starts[i + 1]].rstrip() for i in np.flatnonzero(suspects)}
    return {i: line for i, line in found.items() if not line or line.startswith((*beginnings, *MESSAGES))}


def _without(whole: bytes, starts: NDArray[np.int64], others: Sequence[int]) -> bytes:
    """Return the lines but for the others."""
    begins = [0, *(int(starts[i + 1]) for i in others)]
    ends = [*(int(starts[i]) for i in others), len(whole)]
    return b"".join([whole[begin:end] for begin, end in zip(begins, ends, strict=True)])


def _spaced(data: bytes) -> bytes:
    """Put one space, and no comma, between the words of each line."""
    if any(other in data for other in OTHER_SPACES):
        data = data.translate(bytes.maketrans(OTHER_SPACES, b" " * len(OTHER_SPACES)))
    text = np.frombuffer(data, np.uint8)
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
