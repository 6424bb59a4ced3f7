"""The operations of one kind of one stream, in order of their start.

A stream runs one operation after the other. A lane is either *serial*, as that says, or *tangled*: operations that
overlap, because several processes number their streams alike or the profiler did not record streams. All operations of
a lane last longer than 0 ns; the *latest end* of one is the latest end of it and all that start before it.

A work is a name of KERNELS with its full name and family. Works are numbered as the categories of the column `name`;
after these come what differs from that: further full names or families of a name, kernels without a name, and last the
directions of COPIES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.timeline import KINDS
from perfkit.names.families import FAMILIES
from perfkit.names.parsing import matching

KEPT = 4  # answers of a lane
BLOCK = 1 << 16  # rows that are worked on at once: their columns fit into a processor's cache
MOST = 1 << 16  # range of streams' numbers up to which they are looked up in a table
UNSEEN = -2  # a missing text has code -1
COLUMNS = ("name", "full_name", "family")
COMPUTATION, COMMUNICATION, COPY = range(len(KINDS))
Numbers = NDArray[np.integer]
Bool = NDArray[np.bool_]


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
        self._answers: dict[tuple[bytes, bytes], Int] = {}
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
        """Return the time (ns) in each bin in which an operation of a work of the mask runs; the last are kept."""
        asked = edges.tobytes(), b"" if mask is None else mask.tobytes()
        if asked not in self._answers:
            if len(self._answers) == KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[asked] = self._busy(edges, mask)
        return self._answers[asked]

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
        codes = [np.asarray(kernels[column].cat.codes) for column in COLUMNS]
        self._texts = [[str(text) for text in kernels[column].cat.categories] for column in COLUMNS]
        self._directions = [str(text) for text in copies["direction"].cat.categories]
        number, (self._name, self._full_name, self._family) = _numbered(codes, len(self._texts[0]))
        direction = np.asarray(copies["direction"].cat.codes, np.int64)
        # A copy without a direction is the one after the last.
        of_copies = np.where(direction < 0, len(self._directions), direction) + self.kernels
        self.of_rows = tuple(
            rows.astype(np.min_scalar_type(self.count), copy=False) for rows in (number, of_copies)
        )

    @property
    def kernels(self) -> int:
        """Number of works of kernels; the copies' come after."""
        return len(self._name)

    @property
    def count(self) -> int:
        """Number of works of kernels and copies."""
        return self.kernels + len(self._directions) + 1

    def matching(self, pattern: str, families: Sequence[str]) -> Bool:
        """Say which works of kernels have a short or full name that matches, and one of the families."""
        unknown = [one for one in families if one not in FAMILIES]
        if unknown:
            raise ValueError(
                f"families: {', '.join(map(repr, unknown))} is not one of {list(FAMILIES)}"
            )
        name, full_name, family = self._texts
        chosen = np.ones(self.kernels, bool)
        if pattern:
            # The answer for a missing name is the last.
            short, full = (
                np.array([*matching(texts, pattern), False], bool) for texts in (name, full_name)
            )
            chosen &= short[self._name] | full[self._full_name]
        if families:
            chosen &= np.array([*(text in families for text in family), False], bool)[self._family]
        return chosen

    def mask(self, names: NDArray[np.bool_] | None) -> Bool | None:
        """Return which works, copies too, a choice by name keeps; None if it keeps all."""
        if names is None:
            return None
        chosen = np.asarray(names)
        categories = len(self._texts[0])
        if chosen.dtype != bool or chosen.shape not in ((categories,), (self.kernels,)):
            raise ValueError(
                f"names: {chosen.dtype} of shape {chosen.shape} is not a bool for each of the {categories} names"
            )
        if len(chosen) != self.kernels:
            chosen = np.append(chosen, False)[self._name]
        return None if chosen.all() else np.append(chosen, np.ones(self.count - self.kernels, bool))

    def by_name(self, per_work: Int) -> Int:
        """Add up, per name, what was counted per work; what has no name comes last."""
        sums = np.zeros(len(self._texts[0]) + 1, np.int64)
        np.add.at(sums, self._name, per_work[: self.kernels])
        return sums

    def names(self, chosen: Int) -> pd.DataFrame:
        """Return name and family (missing where kernels of several families share it) of names by their number."""
        several = np.full(len(self._texts[0]) + 1, -2)
        several[self._name] = self._family
        mixed = self._name[several[self._name] != self._family]
        several[mixed] = -1
        name = np.where(chosen < len(self._texts[0]), chosen, -1)
        names = pd.Categorical.from_codes(name, pd.Index(self._texts[0]))
        family = pd.Categorical.from_codes(several[chosen], pd.Index(self._texts[2]))
        return pd.DataFrame({"name": names, "family": family})

    def described(self, work: Numbers) -> pd.DataFrame:
        """Return name, or direction of a copy, and family of works by their number."""
        names, directions = (
            np.array([*texts, None], object) for texts in (self._texts[0], self._directions)
        )
        texts = np.concatenate([names[self._name], directions])[work]
        family = np.append(self._family, np.full(self.count - self.kernels, -1))[work]
        families = pd.Categorical.from_codes(family, pd.Index(self._texts[2]))
        return pd.DataFrame({"name": pd.Categorical(texts), "family": families})


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of so many rows, block by block."""
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))


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
        _either(kernels["family"], "communication", COMMUNICATION, COMPUTATION),
        _either(copies["direction"], "memset", COMPUTATION, COPY),
    )
    columns_of: dict[Key, list[Columns]] = {}
    for frame, device, kind, work in zip(frames, devices, kinds, works.of_rows, strict=True):
        for key, columns in _split(frame, device, kind, work):
            columns_of.setdefault(key, []).append(columns)
    return [
        lane for key in sorted(columns_of) for lane in _lanes(key, columns_of.pop(key), works.count)
    ]


def _either(
    column: pd.Series, category: str, yes: int, no: int
) -> tuple[Numbers, NDArray[np.uint8]]:
    """Return the codes of a column and what each stands for: `yes` for a category, else `no`."""
    of_code = np.append(column.cat.categories == category, False)
    return column.cat.codes.to_numpy(), np.where(of_code, yes, no).astype(np.uint8)


def _split(
    frame: pd.DataFrame, device: Int, kind: tuple[Numbers, NDArray[np.uint8]], work: Numbers
) -> Iterator[tuple[Key, Columns]]:
    """Yield the operations of each device, stream and kind, in the order of their rows."""
    stream = frame["stream"].to_numpy()
    streams = _streams(stream)
    number = _places(streams)
    shape = (int(device.max(initial=0)) + 1, max(len(streams), 1), len(KINDS))
    # As narrow as can be: numpy sorts 16-bit integers by radix.
    code = np.empty(len(frame), np.min_scalar_type(shape[0] * shape[1] * shape[2]))
    for rows in blocks(len(frame)):
        code[rows] = (device[rows] * shape[1] + number(stream[rows])) * shape[2] + kind[1].take(
            kind[0][rows]
        )
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


def _streams(stream: Int) -> Int:
    """Return the streams, ascending."""
    low, high = (int(stream.min()), int(stream.max())) if len(stream) else (0, 0)
    if high - low >= MOST:
        return np.unique(stream)
    seen = np.zeros(high - low + 1, bool)
    for rows in blocks(len(stream)):
        offset = stream[rows] - low
        if not seen.take(offset).all():
            seen[offset] = True
    return low + np.flatnonzero(seen)


def _places(streams: Int) -> Callable[[Int], Int]:
    """Return what finds the number of a stream: a look-up table where their range is small."""
    if not len(streams) or streams[-1] - streams[0] >= MOST:
        return lambda stream: np.searchsorted(streams, stream)
    low = streams[0]
    number = np.zeros(int(streams[-1] - low) + 1, np.int64)
    number[streams - low] = np.arange(len(streams))
    return lambda stream: number.take(stream - low)


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


def _numbered(codes: list[Numbers], names: int) -> tuple[Numbers, list[Int]]:
    """Return the work of each kernel, and the codes of name, full name and family of each work."""
    name = codes[0]
    usual_codes = [np.full(names + 1, UNSEEN) for _ in COLUMNS[1:]]
    others = [_others(codes, usual_codes, rows) for rows in blocks(len(name))]
    other = np.concatenate([np.zeros(0, np.int64), *others])
    keys = pd.DataFrame({column: code[other] for column, code in zip(COLUMNS, codes, strict=True)})
    extra = keys.drop_duplicates().sort_values([*COLUMNS])
    number = name.astype(np.int64) if len(other) else name
    if len(other):
        number[other] = names + keys.groupby([*COLUMNS], sort=True).ngroup().to_numpy()
    usual = [np.arange(names), *(np.maximum(of_name[:names], -1) for of_name in usual_codes)]
    return number, [
        np.append(a, extra[c]).astype(np.int64) for a, c in zip(usual, COLUMNS, strict=True)
    ]


def _others(codes: list[Numbers], usual_codes: list[Int], rows: slice) -> Int:
    """Return the rows without a name, or of another full name or family than its first row, which becomes `known`."""
    name = codes[0][rows].astype(np.intp)
    other = name < 0
    for of_name, code in zip(usual_codes, codes[1:], strict=True):
        differs = of_name.take(name) != code[rows]
        if differs.any():
            new = np.flatnonzero(differs & (of_name.take(name) == UNSEEN))
            of_name[name[new]] = code[rows][new]
            differs = of_name.take(name) != code[rows]
        other |= differs
    return np.asarray(rows.start + np.flatnonzero(other), np.int64)
