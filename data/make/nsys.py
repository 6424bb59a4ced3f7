"""How is a capture written as Nsight Systems exports it?

Conventions
-----------
The file is a `Database` of `perfkit.simulate.export`. Its bytes depend on the rows alone, so the same capture is the
same file with the same version of SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from make.activity import API, DIRECTIONS, STREAM, Block, Ranges, Rows
from make.kernels import Kernel
from make.timeline import Int
from perfkit.simulate.export import CONTEXT, COPY_KIND, Database, Worker, global_id

NO_EVENT = 0xFFFF_FFFF
MEMORY = {"H2D": (0, 2), "D2H": (2, 0), "D2D": (2, 2)}


def write_block(db: Database, block: Block, kernels: Sequence[Kernel], *, calls: bool = True) -> None:
    """Write a block; `kernels` says what its kernel numbers mean, `calls` whether calls were traced."""
    _write_kernels(db, block, kernels)
    _write_copies(db, block)
    sets, context = block.memsets, _context(block.worker)
    db.append("CUPTI_ACTIVITY_KIND_MEMSET", **_work(sets), **context, value=0, bytes=sets["bytes"], memKind=2)
    if calls:
        _write_calls(db, block)


def _write_kernels(db: Database, block: Block, kernels: Sequence[Kernel]) -> None:
    rows = block.kernels
    kind = rows["kernel"]
    most = max(len(k.grids) for k in kernels)
    grid = np.array([(*k.grids, *[k.grids[-1]] * (most - len(k.grids))) for k in kernels], np.int64)[kind, rows["slot"]]
    db.append(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        **_work(rows),
        **_context(block.worker),
        demangledName=_strings(db, [k.full_name for k in kernels], kind),
        shortName=_strings(db, [k.name for k in kernels], kind),
        registersPerThread=np.array([k.registers for k in kernels])[kind],
        gridX=grid[:, 0],
        gridY=grid[:, 1],
        blockX=np.array([k.block for k in kernels])[kind],
        staticSharedMemory=np.array([k.shared_bytes for k in kernels])[kind],
        dynamicSharedMemory=np.array([k.dynamic_shared_bytes for k in kernels])[kind],
        gridId=rows["correlation"],
        **_nodes(rows["node"]),
        **dict.fromkeys(("gridZ", "blockY", "blockZ", "launchType"), 1),
        **dict.fromkeys(("localMemoryPerThread", "localMemoryTotal", "cacheConfig"), 0),
    )


def _strings(db: Database, texts: Sequence[str], chosen: Int) -> Int:
    """Ids of the chosen texts; the others do not enter the file."""
    ids = np.zeros(len(texts), np.int64)
    for i in np.unique(chosen).tolist():
        ids[i] = db.string(texts[i])
    return np.asarray(ids[chosen], np.int64)


def _nodes(node: Int) -> dict[str, Int]:
    """Ids of graph nodes as the vendor numbers them; no column where no kernel is in a graph."""
    return {"graphNodeId": (1 << 32) + node} if (node >= 0).any() else {}


def _write_copies(db: Database, block: Block) -> None:
    rows = block.copies
    codes = np.array([(COPY_KIND[d], *MEMORY[d]) for d in DIRECTIONS])[rows["direction"]]
    db.append(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **_work(rows),
        **_context(block.worker),
        bytes=rows["bytes"],
        copyKind=codes[:, 0],
        srcKind=codes[:, 1],
        dstKind=codes[:, 2],
    )


def _write_calls(db: Database, block: Block) -> None:
    calls, syncs = block.calls, block.syncs
    process = global_id(block.worker.process)
    db.append(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=calls["start"],
        end=calls["end"],
        globalTid=process | calls["thread"],
        correlationId=calls["correlation"],
        nameId=_strings(db, API, calls["name"]),
        **dict.fromkeys(("eventClass", "returnValue"), 0),
    )
    db.append(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=syncs["start"],
        end=syncs["end"],
        correlationId=syncs["correlation"],
        **_context(block.worker),
        streamId=STREAM,
        syncType=np.where(syncs["name"] == API.index("cudaDeviceSynchronize_v3020"), 4, 3),
        eventId=NO_EVENT,
    )


def _work(rows: Rows) -> dict[str, Int]:
    columns = {"start": "start", "end": "end", "streamId": "stream", "correlationId": "correlation"}
    return {vendor: rows[ours] for vendor, ours in columns.items()}


def _context(worker: Worker) -> dict[str, int]:
    return {"deviceId": worker.gpu, "contextId": CONTEXT, "globalPid": global_id(worker.process)}


def write_ranges(db: Database, ranges: Ranges) -> None:
    """Write ranges; those that were never closed (end -1) have no end."""
    for closed in (True, False):
        chosen = np.flatnonzero((ranges.end >= 0) == closed)
        thread = global_id(ranges.worker.process, ranges.worker.threads[0])
        end = {"end": ranges.end[chosen]} if closed else {}
        text = [ranges.names[i] for i in chosen.tolist()]
        start = ranges.start[chosen]
        db.append("NVTX_EVENTS", start=start, **end, eventType=59, text=text, globalTid=thread, domainId=0)
