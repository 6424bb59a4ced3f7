"""The rows of a log whose words stand below each other, read column by column without looking at a row.

Conventions
-----------
A grid has rows of equal length, in which the same places are blank in every row; between these stands one word per row
and column, of at most 8 bytes. What is no grid is left to a reading of words, which is exact for every layout.

Functions
---------
grid    the columns of a grid, None for rows that are none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.readers.nvidia_smi.log import Column

SPACE, NEWLINE = b" \n"
WORD = 8  # bytes of a number of the machine, as which a cell is compared

ROWS, TOGETHER = 2048, 6  # rows and columns that are looked at together: few enough for the processor's cache

Bytes = NDArray[np.uint8]
Cells = NDArray[np.uint64]


def grid(rows: bytes, names: Sequence[str], wanted: Sequence[str]) -> dict[str, Column] | None:
    """Return the columns `wanted` of `names`, None if the rows are no grid with as many columns.

    Examples
    --------
    >>> [column.texts for column in grid(b"    0    35 \\n    1   140 \\n", ["gpu", "pwr"], ["pwr"]).values()]
    [['35', '140']]
    >>> grid(b"0 35\\n1 140\\n", ["gpu", "pwr"], ["pwr"]) is None
    True
    """
    width = rows.find(b"\n") + 1
    if width < WORD or len(rows) % width:
        return None
    table = np.frombuffer(rows, np.uint8).reshape(-1, width)
    places = _places(table)
    if places is None or len(places) != len(names) or any(end - start > WORD for start, end in places):
        return None
    read = (_column(cells, end - start) for cells, (start, end) in zip(_cells(table, places), places, strict=True))
    found = {name: column for name, column in zip(names, read, strict=True) if column}
    return {name: found[name] for name in names if name in wanted} if len(found) == len(names) else None


def _places(table: Bytes) -> list[tuple[int, int]] | None:
    """Return where the columns begin and end, None if a row of the table does not end a line."""
    if (table[:, -1] != NEWLINE).any():
        return None
    # Of all bytes that a text may have only the space itself has no bit beside the space's.
    used = np.bitwise_or.reduce(table[:, :-1], axis=0) != SPACE
    edges = np.flatnonzero(np.diff(used, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _cells(table: Bytes, places: Sequence[tuple[int, int]]) -> Iterator[Cells]:
    """Yield the cells of each column as numbers, the first character in the lowest byte, each until the next.

    Some columns are looked at together, since they are in the same lines of the processor's cache.
    """
    count, width = table.shape
    cells = np.empty((TOGETHER, count), np.uint64)
    for number in range(0, len(places), TOGETHER):
        some = places[number : number + TOGETHER]
        for begin in range(0, count, ROWS):
            rows = table[begin : begin + ROWS]
            for into, (start, end) in zip(cells, some, strict=False):
                first = min(start, width - WORD)
                words = np.ndarray((len(rows),), "<u8", rows, first, (width,))
                into[begin : begin + ROWS] = words >> 8 * (start - first) & (1 << 8 * (end - start)) - 1
        yield from cells[: len(some)]


def _column(cells: Cells, width: int) -> Column | None:
    """Return the words in the cells of a column, None if there is none or more than one in some cell."""
    codes, distinct = np.zeros(len(cells), np.int64), cells[:1]
    if (cells != distinct).any():  # much of a log never changes
        codes, distinct = pd.factorize(cells)
    text = np.full((len(distinct), width + 1), SPACE, np.uint8)
    text[:, :-1] = distinct.astype("<u8").view(np.uint8).reshape(-1, WORD)[:, :width]
    begins = np.diff(text != SPACE, axis=1, prepend=False) & (text != SPACE)
    if (begins.sum(axis=1) != 1).any() or (text == NEWLINE).any():
        return None
    words = b" ".join(text.tobytes().split()).decode(errors="replace").split(" ")
    return Column(codes.astype(np.int32), words)
