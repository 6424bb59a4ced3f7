"""PyTorch memory snapshot: what a GPU's memory holds, and which line of the program asked for it.

Call ``torch.cuda.memory._record_memory_history(max_entries=1_000_000)`` before the model is built,
and ``torch.cuda.memory._dump_snapshot("rank0.pickle")`` after two or more steps, or when an
out-of-memory error is caught. Snapshots of PyTorch 2.1 and later are read, without running what is
in them. The recording may begin late: memory from before has no line. Stages come from the call
stacks, for which ``stacks="all"`` (the default) is needed.
"""

from array import array
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.dumps import pickled
from perfkit.dumps.frames import Frame, innermost, modules, stage
from perfkit.errors import ReadError
from perfkit.profile import Loader, Missing, Profile
from perfkit.readers.text import capture_table, category, head

VERSION = 2
KIND = "memory"
READS = "memory snapshots of PyTorch (_dump_snapshot)"
DIAGNOSIS = "perfkit.dumps.memory_diagnosis"
LOOKED_AT = 1 << 16  # bytes at the start of a file
RECORD = "torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE)"
AGAIN = f"Record again: {RECORD}."
MOST_STACKS = 200_000  # that are kept while the file is read
ALLOC, RELEASED, FREED, REFUSED, RESERVED, RETURNED = range(1, 7)
# What the allocator did, by its word. Memory that the program lets go is free when no stream uses
# it any more.
ACTIONS = {
    "alloc": ALLOC,
    "free_requested": RELEASED,
    "free_completed": FREED,
    "oom": REFUSED,
    "segment_alloc": RESERVED,
    "segment_map": RESERVED,
    "segment_free": RETURNED,
    "segment_unmap": RETURNED,
}
HIGHEST = 1 << 62  # address, size or time


def sniff(path: Path) -> bool:
    """Say whether `path` is a snapshot: a pickle that names its segments and their sizes, or its traces."""
    start = head(path, LOOKED_AT)
    if not start.startswith(pickled.BEGINS) or b"segments" not in start:
        return False
    return b"total_size" in start or b"device_traces" in start


def read(path: Path) -> Profile:
    """Read a snapshot: ALLOCATIONS, RESERVATIONS and SEGMENTS of each GPU."""
    events = _Events()
    try:
        content = pickled.load(path, shrink=events.shrink)
        if not isinstance(content, dict):
            raise ValueError("no dictionary")
        segments = [_segment(segment) for segment in content["segments"]]
        lengths = [len(trace) for trace in content["device_traces"]]
        if sum(lengths) != len(events.actions):
            raise ValueError("events outside of the traces of the GPUs")
        frames = _tables(events, lengths, segments)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        what = f"the key {e} is missing" if isinstance(e, KeyError) else f"a wrong value ({e})"
        raise ReadError(f"{path}: no snapshot of PyTorch's memory: {what}. {AGAIN}") from e
    begin, end = events.span
    loaders: dict[str, Loader] = {
        name: partial(frames.__getitem__, name) for name in frames if len(frames[name])
    }
    return Profile(
        reader="memory_snapshot",
        path=path,
        capture=capture_table(path, "PyTorch memory snapshot", "", begin, end - (begin or 0)),
        loaders=loaders,
        missing=tuple(_missing(events)),
    )


def _missing(events: "_Events") -> Iterator[Missing]:
    if not len(events.actions):
        yield Missing("ALLOCATIONS.event", "when was memory allocated, and by which line?", RECORD)


def _whole(value: object) -> int:
    """Return a size, an address or a time; ValueError if it cannot be one."""
    if not isinstance(value, int) or not 0 <= value < HIGHEST:
        raise ValueError(f"{str(value)[:40]!r} is no size, address or time")
    return value


class _Events:
    """The events of a snapshot, as columns: a snapshot of 1 GB holds millions."""

    def __init__(self) -> None:
        self.actions = array("b")
        self.addresses = array("q")
        self.sizes = array("q")
        self.times = array("q")
        self.free = array("q")
        self.stacks = array("q")
        self.known: dict[tuple[str, Frame, str], int] = {}
        self._seen: dict[int, tuple[object, int]] = {}

    def shrink(self, value: dict[Any, Any]) -> object:
        """Keep an event in the columns; anything else stays what it is."""
        if "action" not in value:
            return value
        self.actions.append(ACTIONS.get(str(value["action"]), 0))
        self.addresses.append(_whole(value.get("addr", 0)))
        self.sizes.append(_whole(value.get("size", 0)))
        self.times.append(_whole(value.get("time_us", 0)) * 1000 if "time_us" in value else -1)
        self.free.append(_whole(value.get("device_free", 0)))
        self.stacks.append(self.numbered(value.get("frames") or []))
        return None

    def numbered(self, frames: list[dict[str, Any]]) -> int:
        """Return the number of a stack's stage, place and modules; PyTorch writes each list of frames once."""
        seen = self._seen.get(id(frames))
        if seen is not None:
            return seen[1]
        found = stage(frames), innermost(frames), modules(frames)
        number = self.known.setdefault(found, len(self.known))
        if len(self._seen) >= MOST_STACKS:
            self._seen.clear()
        self._seen[id(frames)] = frames, number  # held, so that no other list gets its identity
        return number

    @property
    def span(self) -> tuple[int | None, int]:
        """When the first and the last event were, ns since 1970; None without times."""
        times = np.frombuffer(self.times, np.int64)
        known = times[times >= 0]
        return (int(known.min()), int(known.max())) if len(known) else (None, 0)


def _segment(segment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of SEGMENTS, with the blocks that tensors hold."""
    free = [0]
    held = []
    for block in segment["blocks"]:
        size = _whole(block["size"])
        if str(block["state"]).startswith("active"):
            held.append(
                (_whole(block["address"]), _whole(block["requested_size"]), block["frames"])
            )
        else:
            free.append(size)
    return {
        "gpu": _whole(segment["device"]),
        "address": _whole(segment["address"]),
        "bytes": _whole(segment["total_size"]),
        "allocated_bytes": _whole(segment["allocated_size"]),
        "largest_free_bytes": max(free),
        "kind": str(segment["segment_type"]),
        "held": held,
    }


def _tables(
    events: _Events, lengths: list[int], segments: list[dict[str, Any]]
) -> dict[str, pd.DataFrame]:
    """Return the tables of all GPUs."""
    begin = 0
    allocations, reservations = _Rows(), []
    for gpu in range(max([len(lengths), *(segment["gpu"] + 1 for segment in segments)])):
        length = lengths[gpu] if gpu < len(lengths) else 0
        own = [segment for segment in segments if segment["gpu"] == gpu]
        changes = list(_replayed(events, gpu, begin, length, own, allocations))
        whole = sum(segment["bytes"] for segment in own)
        first = whole - sum(size for _, size in changes)
        if first < 0:
            raise ValueError(f"GPU {gpu} reserved {-first:,} bytes more than its segments hold")
        reservations += [(gpu, -1, first)] * bool(whole or changes)
        reservations += [(gpu, event, size) for event, size in changes]
        begin += length
    rows = [{key: row[key] for key in row if key != "held"} for row in segments]
    columns = ["gpu", "event", "bytes"]
    none = pd.DataFrame(columns=["gpu", *tables.SEGMENTS.column_names[2:]])
    return {
        "ALLOCATIONS": allocations.table(events),
        "RESERVATIONS": tables.RESERVATIONS.make(
            pd.DataFrame(reservations, columns=columns).assign(rank=0)
        ),
        "SEGMENTS": tables.SEGMENTS.make((pd.DataFrame(rows) if rows else none).assign(rank=0)),
    }


class _Rows:
    """The rows of ALLOCATIONS, as columns."""

    def __init__(self) -> None:
        self.columns = {
            name: array("q")
            for name in (
                "gpu",
                "event",
                "freed_event",
                "start_ns",
                "bytes",
                "stack",
                "free",
                "released",
            )
        }

    def add(self, *values: int) -> int:
        """Add a row that the program did not let go, -1 where something is not known; return its number."""
        for column, value in zip(self.columns.values(), (*values, -1), strict=True):
            column.append(value)
        return len(self.columns["gpu"]) - 1

    def table(self, events: _Events) -> pd.DataFrame:
        """Return ALLOCATIONS."""
        made = {name: np.frombuffer(column, np.int64) for name, column in self.columns.items()}
        begin = events.span[0] or 0
        stacks = [*events.known]
        stack = made["stack"]
        line = np.array(
            [-1 if place.line is None else place.line for _, place, _ in stacks] or [-1]
        )
        lines = np.where(stack < 0, -1, line[stack])
        start, freed, free = (made[name] for name in ("start_ns", "freed_event", "free"))
        released = made["released"]
        frame = {
            "rank": 0,
            "gpu": made["gpu"],
            "event": made["event"],
            "freed_event": pd.arrays.IntegerArray(freed, freed < 0),
            "released_event": pd.arrays.IntegerArray(released, released < 0),
            "time_ns": pd.arrays.IntegerArray(start - begin, start < 0),
            "bytes": made["bytes"],
            "stage": category(stack, [name for name, _, _ in stacks]),
            "function": category(stack, [place.function for _, place, _ in stacks]),
            "file": category(stack, [place.file for _, place, _ in stacks]),
            "line": pd.arrays.IntegerArray(lines, lines < 0),
            "module": category(stack, [path or None for _, _, path in stacks]),
            "refused": free >= 0,
            "device_free_bytes": pd.arrays.IntegerArray(free, free < 0),
        }
        return tables.ALLOCATIONS.make(pd.DataFrame(frame))


def _replayed(
    events: _Events, gpu: int, begin: int, length: int, segments: list[dict[str, Any]], rows: _Rows
) -> Iterator[tuple[int, int]]:
    """Add the allocations of a GPU to `rows`, and yield the changes of its reserved memory: event and bytes.

    Addresses are used again, so an address means its allocation only while that is alive.
    """
    alive: dict[int, int] = {}
    freed, released = rows.columns["freed_event"], rows.columns["released"]
    for event in range(length):
        at = begin + event
        action, address, size = events.actions[at], events.addresses[at], events.sizes[at]
        if action == ALLOC:
            alive[address] = rows.add(gpu, event, -1, events.times[at], size, events.stacks[at], -1)
        elif action == RELEASED and address in alive:
            released[alive[address]] = event
        elif action == FREED and address in alive:
            freed[alive.pop(address)] = event
        elif action == FREED:  # a block from before the recording
            rows.add(gpu, -1, event, -1, size, -1, -1)
        elif action == REFUSED:
            free = events.free[at]
            rows.add(gpu, event, event, events.times[at], size, events.stacks[at], free)
        elif action == RESERVED:
            yield event, size
        elif action == RETURNED:
            yield event, -size
    for segment in segments:
        for address, size, frames in segment["held"]:
            if address not in alive:
                rows.add(gpu, -1, -1, -1, size, events.numbered(frames or []), -1)
