"""The operations of one kind of one stream, in order of their start.

Conventions
-----------
A stream runs one operation after the other. A lane is either *serial*, as that says, or *tangled*: operations that
overlap, because several processes number their streams alike or the profiler did not record streams. All operations
of a lane last longer than 0 ns; the *latest end* of one is the latest end of it and all that start before it.

Classes
-------
Key                what the operations of a lane have in common
Columns            the operations
Serial, Tangled    the operations with what was summed up of them

Functions
---------
blocks             slices of rows that fit into a processor's cache
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int

KEPT = 4  # answers of a lane
BLOCK = 1 << 16  # rows that are worked on at once: their columns fit into a processor's cache
Numbers = NDArray[np.integer]
Bool = NDArray[np.bool_]


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of so many rows, block by block."""
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))


class Key(NamedTuple):
    """Device (its number), stream and kind (its number) of a lane; they sort like these."""

    device: int
    stream: int
    kind: int


class Columns(NamedTuple):
    """Start and duration (ns), work and row in its table of some operations."""

    start: Int
    dur: Numbers
    work: Numbers
    row: Numbers

    def taken(self, rows: Int) -> Columns:
        """Return these rows."""
        return Columns(self.start[rows], self.dur[rows], self.work[rows], self.row[rows])


class Lane(ABC):
    """Operations in order of their start, counted and summed up per work and block."""

    def __init__(self, key: Key, operations: Columns, works: int) -> None:
        self.key, self.operations = key, operations
        self._told: dict[tuple[bytes, bytes], Int] = {}
        # With many works blocks are longer, so that the sums need less memory than the operations.
        self._block = max(BLOCK, 4 * works)
        count = len(operations.start) // self._block
        self._sums = np.zeros((count + 1, 2, works if count else 0), np.int64)
        for number, sums_before in enumerate(self._sums[:-1]):
            self._sums[number + 1] = sums_before
            self._add(self._sums[number + 1], number * self._block, (number + 1) * self._block)

    @abstractmethod
    def _since(self, time: int, last: int) -> int:
        """Return a row before `last` before which all operations have ended at a time."""

    @abstractmethod
    def _latest(self, rows: Int) -> Int:
        """Return the latest ends of the rows."""

    @abstractmethod
    def _grown(self) -> Numbers:
        """Return how far each operation's latest end is beyond its start and the latest end before it, ns."""

    @abstractmethod
    def _masked(self, at: Int, edges: Int, mask: Bool) -> tuple[Int, Int]:
        """Return, of the works of the mask, what `busy` adds up."""

    def busy(self, edges: Int, mask: Bool | None) -> Int:
        """Return the time (ns) in each bin in which an operation of a work of the mask runs.

        The last answers are kept: several pictures of one choice ask alike.
        """
        asked = edges.tobytes(), b"" if mask is None else mask.tobytes()
        if asked not in self._told:
            if len(self._told) == KEPT:
                del self._told[next(iter(self._told))]
            self._told[asked] = self._busy(edges, mask)
        return self._told[asked]

    def _busy(self, edges: Int, mask: Bool | None) -> Int:
        at = np.searchsorted(self.operations.start, edges)
        if mask is None:
            grown = self._grown()
            added = np.concatenate([sums(grown[rows], at[bins]) for rows, bins in parts(at)])
            latest = self._latest(np.maximum(at - 1, 0))
        else:
            added, latest = self._masked(at, edges, mask)
        # What starts in a bin, with what starts earlier and reaches into it, without what it reaches beyond.
        beyond = np.where(at > 0, np.maximum(latest - edges, 0), 0)
        return np.asarray(added + beyond[:-1] - beyond[1:], np.int64)

    def within(self, first: int, last: int) -> Int:
        """Return the rows with time in the window."""
        return np.concatenate([self._across(first), np.arange(self._before(first), self._before(last))])

    def add_totals(self, found: Int, first: int, last: int) -> None:
        """Add count and time (ns) of the rows with time in the window, cut at its edges, to rows 0 and 1, per work."""
        inside, work = self._before(first), self.operations.work
        self._add_between(found, inside, self._before(last))
        earlier, later = self._across(first), self._across(last)
        later = later[later >= inside]
        np.add.at(found[0], work[earlier], 1)
        np.add.at(found[1], work[earlier], np.minimum(self._end(earlier), last) - first)
        np.subtract.at(found[1], work[later], self._end(later) - last)

    def _add_between(self, found: Int, first: int, last: int) -> None:
        """Add count and time of the rows first .. last-1, whole, per work."""
        low, high = -(-first // self._block), last // self._block
        if low >= high:
            self._add(found, first, last)
            return
        found += self._sums[high] - self._sums[low]
        self._add(found, first, low * self._block)
        self._add(found, high * self._block, last)

    def _add(self, found: Int, first: int, last: int) -> None:
        """As `_add_between`, row by row."""
        work = self.operations.work[first:last].astype(np.intp)
        # numpy adds exactly, and fast where both are of its own integers.
        np.add.at(found[0], work, np.ones(len(work), np.int64))
        np.add.at(found[1], work, self.operations.dur[first:last].astype(np.int64, copy=False))

    def _before(self, time: int) -> int:
        """Return the number of operations that start before a time."""
        return int(np.searchsorted(self.operations.start, time))

    def _across(self, time: int) -> Int:
        """Return the rows that start before a time and end after it."""
        last = self._before(time)
        rows = np.arange(self._since(time, last), last)
        return rows[self._end(rows) > time]

    def _end(self, rows: Int | slice) -> Int:
        return np.asarray(self.operations.start[rows] + self.operations.dur[rows], np.int64)


class Serial(Lane):
    """Operations of which each ends before the next one starts."""

    def _since(self, time: int, last: int) -> int:
        return max(last - 1, 0)

    def _latest(self, rows: Int) -> Int:
        return self._end(rows)

    def _grown(self) -> Numbers:
        return self.operations.dur

    def _masked(self, at: Int, edges: Int, mask: Bool) -> tuple[Int, Int]:
        _, dur, work, _ = self.operations
        added = [sums(dur[rows] * mask.take(work[rows]), at[bins]) for rows, bins in parts(at)]
        before = np.maximum(at - 1, 0)
        return np.concatenate(added), np.where(mask[work[before]], self._end(before), edges)


class Tangled(Lane):
    """Operations of which some overlap."""

    def __init__(self, key: Key, operations: Columns, works: int) -> None:
        super().__init__(key, operations, works)
        start, dur, *_ = operations
        self._reach = np.maximum.accumulate(start + dur)
        self._growth = np.diff(self._reach, prepend=start[:1])
        self._growth[1:] -= np.maximum(start[1:] - self._reach[:-1], 0)

    def _since(self, time: int, last: int) -> int:
        return min(int(np.searchsorted(self._reach, time, side="right")), last)

    def _latest(self, rows: Int) -> Int:
        return self._reach[rows]

    def _grown(self) -> Numbers:
        return self._growth

    def _masked(self, at: Int, edges: Int, mask: Bool) -> tuple[Int, Int]:
        first = self._since(int(edges[0]), int(at[0]))
        ends = self._end(slice(first, at[0]))[mask.take(self.operations.work[first : at[0]])]
        reach, added, latest = ends.max(initial=edges[0]), [], np.empty_like(edges)
        for rows, bins in parts(at):
            start = self.operations.start[rows]
            end = np.where(mask.take(self.operations.work[rows]), self._end(rows), reach)
            latest_end = np.maximum.accumulate(np.append(reach, end))
            added.append(sums(np.maximum(end - np.maximum(start, latest_end[:-1]), 0), at[bins]))
            latest[bins], reach = latest_end[at[bins] - rows.start], latest_end[-1]
        return np.concatenate(added), latest


def parts(at: Int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and edges of bins by bins of about a block, where bin i begins with row at[i]."""
    cuts = np.unique([0, *np.searchsorted(at, np.arange(at[0], at[-1], BLOCK)), len(at) - 1]).tolist()
    return ((slice(at[first], at[last]), slice(first, last + 1)) for first, last in pairwise(cuts))


def sums(values: Numbers, at: Int) -> Int:
    """Return the sum of each bin's values: bin i begins with value at[i] - at[0]."""
    found = np.zeros(len(at) - 1, np.int64)
    filled = np.flatnonzero(np.diff(at))
    if len(filled):
        found[filled] = np.add.reduceat(values, (at - at[0])[filled], dtype=np.int64)
    return found
