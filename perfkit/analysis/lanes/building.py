"""From tables to lanes.

Functions
---------
lanes    the lanes of KERNELS and COPIES
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes.lane import Bool, Columns, Key, Lane, Numbers, Serial, Tangled, blocks
from perfkit.analysis.lanes.works import Works
from perfkit.analysis.timeline import KINDS

MOST = 1 << 16  # range of streams' numbers up to which
COMPUTATION, COMMUNICATION, COPY = range(len(KINDS))


def lanes(frames: tuple[pd.DataFrame, pd.DataFrame], devices: list[Int], works: Works) -> list[Lane]:
    """Return the lanes of KERNELS and COPIES, sorted by device (its number is given for each row), stream and kind."""
    kernels, copies = frames
    kinds = (
        _either(kernels["family"], "communication", COMMUNICATION, COMPUTATION),
        _either(copies["direction"], "memset", COMPUTATION, COPY),
    )
    found: dict[Key, list[Columns]] = {}
    for frame, device, kind, work in zip(frames, devices, kinds, works.of_rows, strict=True):
        for key, columns in _split(frame, device, kind, work):
            found.setdefault(key, []).append(columns)
    return [lane for key in sorted(found) for lane in _lanes(key, found.pop(key), works.count)]


def _either(column: pd.Series, category: str, yes: int, no: int) -> tuple[Numbers, NDArray[np.uint8]]:
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
        code[rows] = (device[rows] * shape[1] + number(stream[rows])) * shape[2] + kind[1].take(kind[0][rows])
    order = np.argsort(code, kind="stable")
    last = np.cumsum(np.bincount(code, minlength=1))
    start, dur = frame["start_ns"].to_numpy(), _narrow(frame["dur_ns"].to_numpy())
    row = np.arange(len(frame), dtype=np.min_scalar_type(len(frame)))
    for lane in np.flatnonzero(np.diff(last, prepend=0)).tolist():
        of_device, of_stream, of_kind = map(int, np.unravel_index(lane, shape))
        of_lane = order[last[lane - 1] if lane else 0 : last[lane]]
        yield Key(of_device, int(streams[of_stream]), of_kind), Columns(start, dur, work, row).taken(of_lane)


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


def _narrow(values: Int) -> Numbers:
    """Return the values in 32 bits if they fit."""
    return values.astype(np.int32) if values.max(initial=0) <= np.iinfo(np.int32).max else values


def _lanes(key: Key, parts: list[Columns], works: int) -> Iterator[Lane]:
    """Yield the lane of the operations that run one after the other, and the lane of the others."""
    columns = parts[0] if len(parts) == 1 else Columns(*map(np.concatenate, zip(*parts, strict=True)))
    if not columns.dur.all():
        columns = columns.taken(np.flatnonzero(columns.dur))
    if (columns.start[1:] < columns.start[:-1]).any():
        columns = columns.taken(np.argsort(columns.start, kind="stable"))
    overlaps = _overlaps(columns)
    if not overlaps.any():
        yield from [Serial(key, columns, works)] if len(columns.dur) else []
        return
    tangled = np.append(False, overlaps) | np.append(overlaps, False)
    yield Tangled(key, columns.taken(np.flatnonzero(tangled)), works)
    if not tangled.all():
        yield Serial(key, columns.taken(np.flatnonzero(~tangled)), works)


def _overlaps(operations: Columns) -> Bool:
    """Say of all operations but the first whether they start before all earlier ones have ended."""
    end = operations.start + operations.dur
    overlaps = operations.start[1:] < end[:-1]
    return operations.start[1:] < np.maximum.accumulate(end)[:-1] if overlaps.any() else overlaps
