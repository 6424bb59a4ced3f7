"""The gaps of all GPUs laid end to end on one axis, and what covers stretches of it."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import members
from perfkit.analysis.intervals import Int
from perfkit.schema import unique


class Pieces(NamedTuple):
    """Stretches on the axis of gaps, ascending, and the row that each is a part of."""

    start: Int
    end: Int
    row: Int

    def rows_at(self, moment: Int) -> Int:
        """Return the row whose stretch holds each moment, -1 where none does."""
        place = np.searchsorted(self.start, moment, side="right") - 1
        inside = (place >= 0) & (np.append(self.end, 0)[place] > moment)
        return np.where(inside, np.append(self.row, -1)[place], -1)


class GapAxis:
    """The gaps laid end to end, each with the thread that decides it on an axis of all threads."""

    def __init__(self, gaps: pd.DataFrame, start: Int, end: Int) -> None:
        self.length = gaps["dur_ns"].to_numpy()
        self.offset = np.cumsum(self.length) - self.length
        self.start, self.end = start, end
        self.called = start + gaps["before_ns"].to_numpy()
        self.returned = self.called + gaps["inside_ns"].to_numpy()

    def near(self, start: Int, end: Int) -> Int:
        """Return the rows of a table by start, some of which overlap a gap before its launch call: all that do."""
        latest = np.maximum.accumulate(end)
        low = np.searchsorted(latest, self.start, side="right")
        high = np.maximum(np.searchsorted(start, self.called, side="left"), low)
        change = np.zeros(len(start) + 1, np.int64)
        np.add.at(change, low, 1)
        np.add.at(change, high, -1)
        return np.flatnonzero(np.cumsum(change[:-1]) > 0)

    def pieces(self, start: Int, end: Int, row: Int, *, whole: bool = False) -> Pieces:
        """Return what stretches on the axis of threads cover of the gaps before the launch call, or of `whole` gaps."""
        order = (
            np.lexsort([-end, start]) if (start[1:] <= start[:-1]).any() else np.arange(len(start))
        )
        order = order[end[order] > start[order]]
        latest = np.maximum.accumulate(end[order])
        order = order[end[order] > np.append(np.iinfo(np.int64).min, latest[:-1])[: len(order)]]
        begin, finish = start[order], end[order]
        until = self.end if whole else self.called
        low = np.searchsorted(finish, self.start, side="right")
        count = np.maximum(np.searchsorted(begin, until, side="left") - low, 0)
        gap, place = members(low, np.where(until > self.start, count, 0))
        first = np.maximum(begin[place], self.start[gap])
        last = np.minimum(finish[place], until[gap])
        shift = self.offset[gap] - self.start[gap]
        return Pieces(first + shift, last + shift, row[order[place]])


class Names:
    """Names of several tables as codes of one list."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def add(self, names: Any) -> int:
        """Add names; return what is added to their codes."""
        first = len(self._names)
        self._names += [str(name) for name in names]
        return first

    def column(self, codes: Int) -> "pd.Categorical[Any]":
        """Return the names of codes, missing where the code is -1."""
        used = unique(codes[codes >= 0])
        of_used, names = pd.factorize(np.array([self._names[code] for code in used], dtype=object))
        place = np.searchsorted(used, codes) if len(used) else np.zeros(len(codes), np.int64)
        found = np.append(of_used, -1)[np.where(codes >= 0, place, len(used))]
        return pd.Categorical.from_codes(found, pd.Index(names, dtype="str"))
