"""Operations one by one.

Functions
---------
listed    key and columns of the operations with time in a window, sorted
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes.lane import Bool, Columns, Key, Lane
from perfkit.analysis.window import Window


def listed(lanes: Sequence[Lane], window: Window, mask: Bool | None) -> tuple[Int, Columns]:
    """Return the keys (one row each) and columns of the operations with time in the window, by key and start."""
    found = [_of(lane, window, mask) for lane in lanes]
    none = np.zeros((0, len(Key._fields) + len(Columns._fields)), np.int64)
    table = np.concatenate([none, *found])
    *keys, start, _, _, row = table.T
    table = table[np.lexsort([row, start, *reversed(keys)])]
    return table[:, : len(Key._fields)], Columns(*table[:, len(Key._fields) :].T)


def _of(lane: Lane, window: Window, mask: Bool | None) -> Int:
    rows = lane.within(*window)
    if mask is not None:
        rows = rows[mask.take(lane.operations.work[rows])]
    columns = [column.astype(np.int64) for column in lane.operations.taken(rows)]
    return np.stack([*(np.full(len(rows), part) for part in lane.key), *columns], axis=1)
