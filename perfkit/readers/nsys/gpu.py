"""KERNELS and COPIES of an Nsight Systems export."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from perfkit import names, tables
from perfkit.readers.nsys.node import Ordinals
from perfkit.readers.nsys.source import (
    DUR,
    Combined,
    Int,
    Source,
    categorical,
    ints,
    joined,
    nullable,
    process_of,
    quantity,
    texts,
)

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"

PLACE = ("start", DUR, "deviceId", "streamId", "correlationId", "globalPid")
SHAPE = (
    Combined("grid_blocks", "*", ("gridX", "gridY", "gridZ")),
    Combined("block_threads", "*", ("blockX", "blockY", "blockZ")),
    Combined("shared_bytes", "+", ("staticSharedMemory", "dynamicSharedMemory")),
)
NAMES = ("demangledName", "shortName")
KERNEL_COLUMNS = (*PLACE, *NAMES, *SHAPE, "registersPerThread", "graphNodeId")
SIDES = ("srcKind", "dstKind", "srcDeviceId", "dstDeviceId")

# CUpti_ActivityMemcpyKind; arrays and unified-memory migrations are named after where the bytes go.
DIRECTIONS = ["unknown", "H2D", "D2H", "H2D", "D2H", "D2D", "D2D", "D2D", "D2D", "H2H", "P2P", "H2D", "D2H", "D2D"]
PEER, UNIFIED = 10, (11, 12, 13)
# CUpti_ActivityMemoryKind
MEMORIES = ["pageable", "pinned", "device", "array", "managed", "device static", "managed static", "unknown"]


def kernels(source: Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return KERNELS: one row per kernel execution, named by the demangled name."""

    def part(rows: pa.Table) -> dict[str, Any]:
        full, short = (ints(rows, name) for name in NAMES)
        return {
            **_place(rows, ordinals),
            "full_name": np.where(full < 0, short, full),
            **{shape.name: quantity(rows, shape.name) for shape in SHAPE},
            "registers": quantity(rows, "registersPerThread"),
            "in_graph": ~quantity(rows, "graphNodeId")[1],
        }

    parts = source.convert(KERNEL, KERNEL_COLUMNS, part)
    codes, labels = texts(source, joined(parts, "full_name"))
    named = names.table(labels).set_index("full_name").loc[labels]
    return tables.KERNELS.make(
        _frame(
            parts,
            source,
            name=categorical(codes, named["name"].tolist()),
            full_name=categorical(codes, labels),
            family=categorical(codes, named["family"].tolist()),
            in_graph=joined(parts, "in_graph").astype(bool),
            **{q: nullable(parts, q) for q in ("grid_blocks", "block_threads", "registers", "shared_bytes")},
        )
    )


def copies(source: Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return COPIES: copies and memsets."""

    def copy(rows: pa.Table) -> dict[str, Any]:
        kind, src, dst = ints(rows, "copyKind", 0), ints(rows, SIDES[0]), ints(rows, SIDES[1])
        unified = np.isin(kind, UNIFIED)
        place = _place(rows, ordinals)
        return {
            **place,
            "bytes": ints(rows, "bytes", 0),
            "direction": kind,
            "src_memory": np.where(unified, MEMORIES.index("managed"), src),
            "dst_memory": np.where(unified, MEMORIES.index("managed"), dst),
            "peer_gpu": _peer(rows, place, ordinals, kind == PEER),
        }

    def memset(rows: pa.Table) -> dict[str, Any]:
        nothing = np.full(rows.num_rows, -1, np.int64)
        return {
            **_place(rows, ordinals),
            "bytes": ints(rows, "bytes", 0),
            "direction": nothing,
            "src_memory": nothing,
            "dst_memory": ints(rows, "memKind"),
            "peer_gpu": nothing,
        }

    parts = source.convert(MEMCPY, (*PLACE, "bytes", "copyKind", *SIDES), copy)
    parts += source.convert(MEMSET, (*PLACE, "bytes", "memKind"), memset)
    kinds, distinct = pd.factorize(joined(parts, "direction"))
    labels = ["memset" if k < 0 else DIRECTIONS[k if k < len(DIRECTIONS) else 0] for k in distinct]
    return tables.COPIES.make(
        _frame(
            parts,
            source,
            bytes=joined(parts, "bytes"),
            direction=categorical(kinds, labels),
            src_memory=_memory(joined(parts, "src_memory")),
            dst_memory=_memory(joined(parts, "dst_memory")),
            peer_gpu=joined(parts, "peer_gpu"),
        )
    )


def _place(rows: pa.Table, ordinals: Ordinals) -> dict[str, Any]:
    """Return when and where an operation ran."""
    process = process_of(ints(rows, "globalPid"))
    return {
        "start_ns": ints(rows, "start"),
        "dur_ns": ints(rows, "dur", 0),
        "process": process,
        "gpu": ordinals.of_process(process, ints(rows, "deviceId")),
        "stream": ints(rows, "streamId"),
        "correlation": ints(rows, "correlationId"),
    }


def _frame(parts: list[dict[str, Any]], source: Source, **columns: Any) -> pd.DataFrame:
    """Join the parts' places with the finished columns."""
    place = {name: joined(parts, name) for name in ("start_ns", "dur_ns", "process", "gpu", "stream", "correlation")}
    if (place["process"] < 0).all():
        place["process"] = np.full(len(place["process"]), _only_process(source))
    return pd.DataFrame({"rank": np.zeros(len(place["gpu"]), "int32"), **place, **columns}, copy=False)


def _only_process(source: Source) -> int:
    """Return the process that made CUDA calls if there is just one: exports cut down lack globalPid."""
    parts = source.convert(RUNTIME, ["globalTid"], lambda rows: {"tid": np.unique(ints(rows, "globalTid"))})
    processes = np.unique(process_of(joined(parts, "tid")))
    return int(processes[0]) if len(processes) == 1 else -1


def _peer(rows: pa.Table, place: dict[str, Any], ordinals: Ordinals, peers: np.ndarray) -> Int:
    """Return the other GPU of each peer copy, -1 for other copies."""
    src, dst = (ordinals.of_process(place["process"], ints(rows, name)) for name in SIDES[2:])
    return np.where(peers, np.where(src == place["gpu"], dst, src), np.int64(-1))


def _memory(kinds: Int) -> pd.Categorical:
    known = np.where(kinds >= len(MEMORIES), len(MEMORIES) - 1, kinds)
    return categorical(known, MEMORIES).remove_unused_categories()
