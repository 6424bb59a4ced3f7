"""The operations of one kind of one stream, in order of their start.

A stream runs one operation after the other. A lane is either *serial*, as that says, or *tangled*:
operations that overlap, because several processes number their streams alike or the profiler did
not record streams. All operations of a lane last longer than 0 ns; the *latest end* of one is the
latest end of it and all that start before it.

A work is a name of KERNELS with its full name and family; after these come the directions of
COPIES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import where
from perfkit.analysis.grouping import numbered, shared
from perfkit.analysis.intervals import Bool, Int
from perfkit.analysis.timeline import KINDS
from perfkit.names.families import FAMILIES
from perfkit.names.parsing import matching

BLOCK = 1 << 16  # rows that are worked on at once: their columns fit into a processor's cache
COLUMNS = ("name", "full_name", "family")
COMPUTATION, COMMUNICATION, COPY = range(len(KINDS))
Numbers = NDArray[np.integer]


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


class Lane:
    """Operations in order of their start, counted and summed up per work and block; each ends before the next."""

    def __init__(self, key: Key, operations: Columns, works: int) -> None:
        self.key, self.operations = key, operations
        # With many works blocks are longer, so that the sums need less memory than the operations.
        self._block = max(BLOCK, 4 * works)
        count = len(operations.start) // self._block
        self._sums = np.zeros((count + 1, 2, works if count else 0), np.int64)
        for number, sums_before in enumerate(self._sums[:-1]):
            self._sums[number + 1] = sums_before
            self._add(self._sums[number + 1], number * self._block, (number + 1) * self._block)

    def _since(self, time: int, last: int) -> int:
        """Return a row before `last` before which all operations have ended at a time."""
        return max(last - 1, 0)

    def _latest(self, rows: Int) -> Int:
        """Return the latest ends of the rows."""
        return self._end(rows)

    def _grown(self) -> Numbers:
        """Return how far each operation's latest end is beyond its start and the latest end before it, ns."""
        return self.operations.dur

    def _masked(self, at: Int, edges: Int, mask: Bool) -> tuple[Int, Int]:
        """Return, of the works of the mask, what `busy` adds up."""
        _, dur, work, _ = self.operations
        added = [sums(dur[rows] * mask.take(work[rows]), at[bins]) for rows, bins in parts(at)]
        before = np.maximum(at - 1, 0)
        return np.concatenate(added), np.where(mask[work[before]], self._end(before), edges)

    def busy(self, edges: Int, mask: Bool | None) -> Int:
        """Return the time (ns) in each bin in which an operation of a work of the mask runs."""
        at = np.searchsorted(self.operations.start, edges)
        if mask is None:
            grown = self._grown()
            added = np.concatenate([sums(grown[rows], at[bins]) for rows, bins in parts(at)])
            latest = self._latest(np.maximum(at - 1, 0))
        else:
            added, latest = self._masked(at, edges, mask)
        # What starts in a bin, with what starts earlier and reaches into it, without what it
        # reaches beyond.
        beyond = np.where(at > 0, np.maximum(latest - edges, 0), 0)
        return np.asarray(added + beyond[:-1] - beyond[1:], np.int64)

    def within(self, first: int, last: int) -> Int:
        """Return the rows with time in the window."""
        return np.concatenate(
            [self._across(first), np.arange(self._before(first), self._before(last))]
        )

    def add_totals(self, sums: Int, first: int, last: int) -> None:
        """Add count and time (ns) of the rows with time in the window, cut at its edges, to rows 0 and 1, per work."""
        inside, work = self._before(first), self.operations.work
        self._add_between(sums, inside, self._before(last))
        earlier, later = self._across(first), self._across(last)
        later = later[later >= inside]
        np.add.at(sums[0], work[earlier], 1)
        np.add.at(sums[1], work[earlier], np.minimum(self._end(earlier), last) - first)
        np.subtract.at(sums[1], work[later], self._end(later) - last)

    def _add_between(self, sums: Int, first: int, last: int) -> None:
        """Add count and time of the rows first .. last-1, whole, per work."""
        low, high = -(-first // self._block), last // self._block
        if low >= high:
            self._add(sums, first, last)
            return
        sums += self._sums[high] - self._sums[low]
        self._add(sums, first, low * self._block)
        self._add(sums, high * self._block, last)

    def _add(self, sums: Int, first: int, last: int) -> None:
        """As `_add_between`, row by row."""
        work = self.operations.work[first:last].astype(np.intp)
        # numpy adds exactly, and fast where both are of its own integers.
        np.add.at(sums[0], work, np.ones(len(work), np.int64))
        np.add.at(sums[1], work, self.operations.dur[first:last].astype(np.int64, copy=False))

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


class Works:
    """The works of a run, and the number of the work of each row of KERNELS and COPIES."""

    def __init__(self, kernels: pd.DataFrame, copies: pd.DataFrame) -> None:
        self._works, number = numbered(kernels, [*COLUMNS])
        self._name, self._family = self._works["name"].cat, self._works["family"].cat
        self._directions = copies["direction"].cat.categories.astype(object).tolist()
        self.kernels = len(self._works)  # the works of the copies come after
        self.count = self.kernels + len(self._directions) + 1
        direction = copies["direction"].cat.codes.to_numpy(np.int64)
        # A copy without a direction is the one after the last.
        of_copies = np.where(direction < 0, len(self._directions), direction) + self.kernels
        narrow = np.min_scalar_type(self.count)
        self.of_rows = number.astype(narrow), of_copies.astype(narrow)

    def matching(self, pattern: str, families: Sequence[str]) -> Bool:
        """Say which works of kernels have a short or full name that matches, and one of the families."""
        unknown = [one for one in families if one not in FAMILIES]
        if unknown:
            listed = ", ".join(map(repr, unknown))
            raise ValueError(f"families: {listed} is not one of {list(FAMILIES)}")
        chosen = np.ones(self.kernels, bool)
        if pattern:
            chosen = _matches(self._works["name"], pattern)
            chosen |= _matches(self._works["full_name"], pattern)
        if families:
            chosen &= self._works["family"].isin(families).to_numpy()
        return chosen

    def mask(self, names: Bool | None) -> Bool | None:
        """Return which works, copies too, a choice by name keeps; None if it keeps all."""
        if names is None:
            return None
        chosen = np.asarray(names)
        if chosen.dtype != bool or chosen.shape != (self.kernels,):
            raise ValueError(
                f"names: {chosen.dtype} of shape {chosen.shape} is not what `matching` returns: "
                f"a bool for each of {self.kernels} works"
            )
        return None if chosen.all() else np.append(chosen, np.ones(self.count - self.kernels, bool))

    def by_name(self, per_work: Int) -> Int:
        """Add up, per name, what was counted per work; what has no name comes last."""
        sums = np.zeros(len(self._name.categories) + 1, np.int64)
        np.add.at(sums, self._name.codes.to_numpy(), per_work[: self.kernels])
        return sums

    def names(self, chosen: Int) -> pd.DataFrame:
        """Return name and family (missing where kernels of several families share it) of names by their number."""
        count = len(self._name.categories)
        codes = self._name.codes.to_numpy(np.int64)
        families = shared(self._works["family"], np.where(codes < 0, count, codes), count + 1)
        name = np.where(chosen < count, chosen, -1)
        names = pd.Categorical.from_codes(name, self._name.categories)
        return pd.DataFrame({"name": names, "family": families.array[chosen]})

    def described(self, work: Numbers) -> pd.DataFrame:
        """Return name, or direction of a copy, and family of works by their number."""
        names = self._works["name"].astype(object).where(self._name.codes >= 0, None)
        texts = np.array([*names, *self._directions, None], object)[work]
        none = np.full(self.count - self.kernels, -1)
        family = np.append(self._family.codes.to_numpy(), none)[work]
        families = pd.Categorical.from_codes(family, self._family.categories)
        return pd.DataFrame({"name": pd.Categorical(texts), "family": families})


def _matches(names: pd.Series, pattern: str) -> Bool:
    """Tell which names match a pattern; a missing one does not."""
    texts = [str(text) for text in names.cat.categories]
    return np.array([*matching(texts, pattern), False], bool)[names.cat.codes.to_numpy()]


def parts(at: Int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and edges of bins by bins of about a block, where bin i begins with row at[i]."""
    cuts = np.unique(
        [0, *np.searchsorted(at, np.arange(at[0], at[-1], BLOCK)), len(at) - 1]
    ).tolist()
    return ((slice(at[first], at[last]), slice(first, last + 1)) for first, last in pairwise(cuts))


def sums(values: Numbers, at: Int) -> Int:
    """Return the sum of each bin's values: bin i begins with value at[i] - at[0]."""
    total = np.zeros(len(at) - 1, np.int64)
    filled = np.flatnonzero(np.diff(at))
    if len(filled):
        total[filled] = np.add.reduceat(values, (at - at[0])[filled], dtype=np.int64)
    return total


def lanes(
    frames: tuple[pd.DataFrame, pd.DataFrame], devices: list[Int], works: Works
) -> list[Lane]:
    """Return the lanes of KERNELS and COPIES, sorted by device (its number is given for each row), stream and kind."""
    kernels, copies = frames
    kinds = (
        np.where(where(kernels["family"], "communication".__eq__), COMMUNICATION, COMPUTATION),
        np.where(where(copies["direction"], "memset".__eq__), COMPUTATION, COPY),
    )
    columns_of: dict[Key, list[Columns]] = {}
    for frame, device, kind, work in zip(frames, devices, kinds, works.of_rows, strict=True):
        for key, columns in _split(frame, device, kind, work):
            columns_of.setdefault(key, []).append(columns)
    return [
        lane for key in sorted(columns_of) for lane in _lanes(key, columns_of.pop(key), works.count)
    ]


def _split(
    frame: pd.DataFrame, device: Int, kind: Int, work: Numbers
) -> Iterator[tuple[Key, Columns]]:
    """Yield the operations of each device, stream and kind, in the order of their rows."""
    stream, streams = pd.factorize(frame["stream"].to_numpy(), sort=True)
    shape = (int(device.max(initial=0)) + 1, max(len(streams), 1), len(KINDS))
    code = (device * shape[1] + stream) * shape[2] + kind
    # As narrow as can be: numpy sorts 16-bit integers by radix.
    code = code.astype(np.min_scalar_type(shape[0] * shape[1] * shape[2]))
    order = np.argsort(code, kind="stable")
    last = np.cumsum(np.bincount(code, minlength=1))
    start, dur = frame["start_ns"].to_numpy(), frame["dur_ns"].to_numpy()
    dur = dur.astype(np.int32) if dur.max(initial=0) <= np.iinfo(np.int32).max else dur
    row = np.arange(len(frame), dtype=np.min_scalar_type(len(frame)))
    for lane in np.flatnonzero(np.diff(last, prepend=0)).tolist():
        of_device, of_stream, of_kind = map(int, np.unravel_index(lane, shape))
        of_lane = order[last[lane - 1] if lane else 0 : last[lane]]
        yield (
            Key(of_device, int(streams[of_stream]), of_kind),
            Columns(start, dur, work, row).taken(of_lane),
        )


def _lanes(key: Key, parts: list[Columns], works: int) -> Iterator[Lane]:
    """Yield the lane of the operations that run one after the other, and the lane of the others."""
    columns = (
        parts[0] if len(parts) == 1 else Columns(*map(np.concatenate, zip(*parts, strict=True)))
    )
    if not columns.dur.all():
        columns = columns.taken(np.flatnonzero(columns.dur))
    if (columns.start[1:] < columns.start[:-1]).any():
        columns = columns.taken(np.argsort(columns.start, kind="stable"))
    end = columns.start + columns.dur
    overlaps = columns.start[1:] < end[:-1]
    if overlaps.any():  # all that start before all earlier ones have ended
        overlaps = columns.start[1:] < np.maximum.accumulate(end)[:-1]
    if not overlaps.any():
        yield from [Lane(key, columns, works)] if len(columns.dur) else []
        return
    tangled = np.append(False, overlaps) | np.append(overlaps, False)
    yield Tangled(key, columns.taken(np.flatnonzero(tangled)), works)
    if not tangled.all():
        yield Lane(key, columns.taken(np.flatnonzero(~tangled)), works)
