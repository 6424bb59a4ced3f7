"""KERNELS and COPIES of a trace."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from perfkit import names, tables
from perfkit.readers.columns import category, nullable
from perfkit.readers.torch_trace.collectives import Collective, add_collectives
from perfkit.readers.torch_trace.events import (
    UNKNOWN,
    Columns,
    Event,
    Int,
    Spans,
    decoded,
    integers,
    quantities,
)

# The letters of Kineto's memcpyKindString; arrays are named after where the bytes go.
DIRECTIONS = {
    "HtoD": "H2D",
    "HtoA": "H2D",
    "DtoH": "D2H",
    "AtoH": "D2H",
    "HtoH": "H2H",
    "PtoP": "P2P",
    "DtoD": "D2D",
    "DtoA": "D2D",
    "AtoD": "D2D",
    "AtoA": "D2D",
}
COPY = re.compile(r"Memcpy\s+(\w+)\s*(?:\((.+?)\s*->\s*(.+?)\))?")
MEMSET = re.compile(r"Memset\s*(?:\((.+?)\))?")
# hipExtModuleLaunchKernel takes its grid in threads, every other launch function in blocks.
GRID_IN_THREADS = "hipExtModuleLaunchKernel"
GRAPH_LAUNCH = "GraphLaunch"
MOST = np.iinfo(np.int32).max


class KernelArguments(Collective, gc=False):
    """What is read of a kernel's arguments."""

    device: int | None = None
    stream: int | None = None
    correlation: int | None = -1
    grid: list[int] | None = None
    block: list[int] | None = None
    registers: int | None = msgspec.field(default=None, name="registers per thread")
    shared: int | None = msgspec.field(default=None, name="shared memory")
    graph: int | None = msgspec.field(default=None, name="graph id")


class CopyArguments(msgspec.Struct, gc=False):
    """What is read of a copy's or memset's arguments."""

    device: int | None = None
    stream: int | None = None
    correlation: int | None = -1
    bytes: int | None = None
    kind: str | None = None
    source: int | None = msgspec.field(default=None, name="fromDevice")
    target: int | None = msgspec.field(default=None, name="toDevice")
    within: int | None = msgspec.field(default=None, name="inDevice")


def add_kernels(kernels: Spans, collectives: Spans, events: list[Event]) -> None:
    """Append kernels, and to the collectives those that say what they sent."""
    arguments = decoded(events, KernelArguments)
    gpu = _gpu(events, [a.device for a in arguments])
    kernels.add(
        events,
        gpu=gpu,
        stream=_stream(events, [a.stream for a in arguments]),
        correlation=integers(a.correlation for a in arguments),
        graph=np.array([bool(a.graph) for a in arguments], bool),
        grid_blocks=quantities(_product(a.grid) for a in arguments),
        grid_of_threads=quantities(_blocks(a.grid, a.block) for a in arguments),
        block_threads=quantities(_product(a.block) for a in arguments),
        registers=quantities(a.registers for a in arguments),
        shared_bytes=quantities(a.shared for a in arguments),
    )
    add_collectives(collectives, events, arguments, gpu)


def add_copies(copies: Spans, events: list[Event]) -> None:
    """Append copies and memsets."""
    arguments = decoded(events, CopyArguments)
    gpu = _gpu(events, [a.within if a.device is None else a.device for a in arguments])
    copies.add(
        events,
        gpu=gpu,
        stream=_stream(events, [a.stream for a in arguments]),
        correlation=integers(a.correlation for a in arguments),
        bytes=quantities(a.bytes for a in arguments),
        kind=copies.codes("kind", [(event.name, a.kind) for event, a in zip(events, arguments, strict=True)]),
        peer_gpu=_peer(
            gpu, _device(integers(a.source for a in arguments)), _device(integers(a.target for a in arguments))
        ),
    )


def _gpu(events: list[Event], devices: list[int | None]) -> Int:
    """Return the device of each event; older traces and other writers have it as the process only."""
    gpu = integers(event.pid if d is None else d for event, d in zip(events, devices, strict=True))
    return _device(gpu)


def _device(numbers: Int) -> Int:
    """Return numbers of devices, -1 for those that no device has."""
    return np.where((numbers < 0) | (numbers > MOST), -1, numbers)


def _stream(events: list[Event], streams: list[int | None]) -> Int:
    return integers(event.tid if s is None else s for event, s in zip(events, streams, strict=True))


def _product(sizes: list[int] | None) -> int | None:
    return None if sizes is None else math.prod(sizes)


def _blocks(threads: list[int] | None, block: list[int] | None) -> int | None:
    """Return the number of blocks of a grid that is given in threads."""
    if threads is None or block is None or 0 in block:
        return None
    return math.prod(-(-n // size) for n, size in zip(threads, block, strict=False))


def _peer(gpu: Int, source: Int, target: Int) -> Int:
    """Return the other GPU of each copy between two, -1 for other copies."""
    return np.where((source < 0) | (target < 0) | (source == target), -1, np.where(source == gpu, target, source))


def kernels(spans: Spans, columns: Columns, process: int, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return KERNELS: named by the name recorded, of the one `process` that launched them."""
    labels = spans.values("name")
    named = names.table(labels).set_index("full_name").loc[labels]
    in_threads = _launched_by(columns, api_calls, GRID_IN_THREADS)
    grid = np.where(in_threads, columns["grid_of_threads"], columns["grid_blocks"])
    return tables.KERNELS.make(
        _frame(
            columns,
            process,
            name=category(columns["name"], named["name"].tolist()),
            full_name=category(columns["name"], labels),
            family=category(columns["name"], named["family"].tolist()),
            in_graph=columns["graph"] | _launched_by(columns, api_calls, GRAPH_LAUNCH),
            grid_blocks=nullable(grid, grid == UNKNOWN),
            **{
                name: nullable(columns[name], columns[name] == UNKNOWN)
                for name in ("block_threads", "registers", "shared_bytes")
            },
        )
    )


def _launched_by(columns: Columns, api_calls: pd.DataFrame, word: str) -> np.ndarray:
    """Return which operations share their correlation with a call whose name holds `word`."""
    calls = [name for name in api_calls["name"].cat.categories if word in name]
    ids = api_calls.loc[api_calls["name"].isin(calls), "correlation"].to_numpy()
    return np.isin(columns["correlation"], ids[ids >= 0])


def copies(spans: Spans, columns: Columns, process: int) -> pd.DataFrame:
    """Return COPIES: copies and memsets; the size of those without one is 0."""
    told = [_sides(name, kind) for name, kind in spans.values("kind")]
    sides = {
        column: category(columns["kind"], [side[place] for side in told])
        for place, column in enumerate(("direction", "src_memory", "dst_memory"))
    }
    size = columns["bytes"]
    return tables.COPIES.make(
        _frame(columns, process, bytes=np.where(size == UNKNOWN, 0, size), peer_gpu=columns["peer_gpu"], **sides)
    )


def _sides(name: str, kind: str | None) -> tuple[str, str | None, str | None]:
    """Return direction, source and target memory as a copy's name tells them, or its kind.

    Examples
    --------
    >>> _sides("Memcpy HtoD (Pinned -> Device)", None), _sides("Memset (Device)", None)
    (('H2D', 'pinned', 'device'), ('memset', None, 'device'))
    """
    memset = MEMSET.match(name)
    if memset:
        return "memset", None, _lower(memset[1] or kind)
    copy = COPY.match(name)
    direction = copy[1] if copy else kind
    source, target = (copy[2], copy[3]) if copy else (None, None)
    return DIRECTIONS.get(direction or "", "unknown"), _lower(source), _lower(target)


def _lower(memory: str | None) -> str | None:
    return memory.lower() if memory else None


def _frame(columns: Columns, process: int, **finished: Any) -> pd.DataFrame:
    """Return where and when operations ran, with the finished columns."""
    rows = len(columns["start_ns"])
    place = {name: columns[name] for name in ("start_ns", "dur_ns", "gpu", "stream", "correlation")}
    own = {"rank": np.zeros(rows, "int32"), "process": np.full(rows, process)}
    return pd.DataFrame({**own, **place, **finished}, copy=False)
