"""Which rows does a profiler record of steps that were laid out in time, and how does an nsys export hold them?

A block is a bunch of rows of one worker, one dict of int64 columns per kind of row. Times are ns since the start of the
capture. Correlation ids are shared by a call and the work it started; they are unique within a process, and a CUDA
graph's kernels share that of its launch. Kernels, directions and functions are given by their position in KERNELS, or
in what stands for it, DIRECTIONS and API. The bytes of a file depend on the rows alone, and on the version of SQLite.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from make.kernels import KERNELS, Kernel
from make.simulate import export
from make.simulate.export import CONTEXT, COPY_KIND, Database, Worker, global_id
from make.timeline import Int, Laid, Op, Plan

DIRECTIONS = ("H2D", "D2H", "D2D")
API = (
    "cudaLaunchKernel_v7000",
    "cudaLaunchKernelExC_v11060",
    "cudaGraphLaunch_v10000",
    "cudaMemcpyAsync_v3020",
    "cudaMemsetAsync_v3020",
    "cudaStreamSynchronize_v3020",
    "cudaDeviceSynchronize_v3020",
    "cudaMalloc_v3020",
)
LAUNCHES = API[:3]
STREAM = 7

Rows = dict[str, Int]


class Block(NamedTuple):
    """Rows of each kind."""

    worker: Worker
    kernels: Rows
    copies: Rows
    memsets: Rows
    calls: Rows
    syncs: Rows


class Ranges(NamedTuple):
    """Named ranges of a worker's first thread; an end of -1 was never written."""

    worker: Worker
    names: Sequence[str]
    start: Int
    end: Int


def named_ranges(worker: Worker, spans: Iterable[tuple[int, int, str]]) -> Ranges:
    """Return ranges of start, end and name in order of their starts, those that hold others first."""
    starts, ends, names = zip(*sorted(spans, key=lambda span: (span[0], -span[1])), strict=True)
    return Ranges(worker, names, np.array(starts), np.array(ends))


def calls_in(plan: Plan) -> int:
    """Return the number of calls that a step of the plan makes."""
    return sum(op.called for op in plan)


def rows(
    plan: Plan,
    laid: Laid,
    worker: Worker,
    begin: Int,
    correlation: int,
    *,
    kernels: Iterable[str] = KERNELS,
) -> Block:
    """Return the rows of the steps whose operations begin at `begin`, ns."""
    steps = _Steps(
        plan, laid, worker, begin, correlation, {key: i for i, key in enumerate(kernels)}
    )
    return Block(
        worker, steps.kernels(), steps.copies(), steps.memsets(), steps.calls(), steps.calls("sync")
    )


@dataclass(frozen=True)
class _Steps:
    """Steps of one plan, laid out; its methods flatten (operation, step) into rows in order of time."""

    plan: Plan
    laid: Laid
    worker: Worker
    begin: Int
    correlation: int
    numbers: dict[str, int]

    def kernels(self) -> Rows:
        chosen = self._of("kernel", "node")
        node = [i if op.kind == "node" else -1 for i, op in enumerate(self.plan)]
        return self._work(chosen) | {
            "kernel": self._each(chosen, [self.numbers.get(op.what, -1) for op in self.plan]),
            "slot": self._each(chosen, [op.slot for op in self.plan]),
            "node": self._each(chosen, node),
            "call_end": self._flat(self.laid.call_end, [self._launch[i] for i in chosen]),
        }

    def copies(self) -> Rows:
        chosen = self._of("copy")
        direction = [DIRECTIONS.index(op.what) if op.kind == "copy" else -1 for op in self.plan]
        return self._work(chosen) | {
            "direction": self._each(chosen, direction),
            "bytes": self._sizes(chosen),
        }

    def memsets(self) -> Rows:
        chosen = self._of("memset")
        return self._work(chosen) | {"bytes": self._sizes(chosen)}

    def calls(self, *kinds: str) -> Rows:
        chosen = self._of(*kinds) if kinds else [i for i, op in enumerate(self.plan) if op.called]
        return {
            "start": self._flat(self.laid.call_start, chosen),
            "end": self._flat(self.laid.call_end, chosen),
            "correlation": self._ids(chosen),
            "thread": self._each(chosen, [self.worker.threads[op.thread] for op in self.plan]),
            "name": self._each(
                chosen, [API.index(_function(op)) if op.called else -1 for op in self.plan]
            ),
        }

    def _work(self, chosen: list[int]) -> Rows:
        return {
            "start": self._flat(self.laid.start, chosen),
            "end": self._flat(self.laid.end, chosen),
            "correlation": self._ids([self._launch[i] for i in chosen]),
            "stream": self._each(chosen, [STREAM + 6 * op.stream for op in self.plan]),
        }

    @cached_property
    def _launch(self) -> list[int]:
        """Which operation's call started each operation: its own, or the last graph launch."""
        called = [i if op.called else -1 for i, op in enumerate(self.plan)]
        return list(accumulate(called, max))

    def _of(self, *kinds: str) -> list[int]:
        return [i for i, op in enumerate(self.plan) if op.kind in kinds]

    def _ids(self, chosen: list[int]) -> Int:
        ordinal = np.cumsum([op.called for op in self.plan])[chosen] - 1
        first = self.correlation + np.arange(len(self.begin), dtype=np.int64) * calls_in(self.plan)
        return np.asarray((first[:, None] + ordinal).ravel(), np.int64)

    def _sizes(self, chosen: list[int]) -> Int:
        return self._each(chosen, [op.size for op in self.plan])

    def _each(self, chosen: list[int], values: list[int]) -> Int:
        return np.tile(np.array(values, np.int64)[chosen], len(self.begin))

    def _flat(self, times: Int, chosen: list[int]) -> Int:
        return np.asarray((times[chosen] + self.begin).T.ravel(), np.int64)


def _function(op: Op) -> str:
    """The function the host calls for an operation; libraries that tune launches use the extended one."""
    if op.kind == "kernel":
        return LAUNCHES[op.what in ("split_k", "all_reduce")]
    return {"copy": API[3], "memset": API[4], "graph": API[2]}.get(op.kind, op.what)


NO_EVENT = 0xFFFF_FFFF
MEMORY = {"H2D": (0, 2), "D2H": (2, 0), "D2D": (2, 2)}


def write(
    path: Path,
    blocks: Iterable[Block],
    kernels: Sequence[Kernel],
    ranges: Ranges,
    samples: tuple[Int, Mapping[str, Int]] | None = None,
    *,
    label: str,
    arguments: str,
    dur_ns: int,
    t0_unix_ns: int,
) -> None:
    """Write an export of one worker on one GPU; `samples` are the times and values of the GPU's metrics."""
    workers = [ranges.worker]
    with export.writing(path) as db:
        for block in blocks:
            write_block(db, block, kernels)
        write_ranges(db, ranges)
        export.write_session(db, label=label, arguments=arguments, dur_ns=dur_ns, workers=workers)
        export.write_gpus(db, t0_unix_ns=t0_unix_ns, gpus=1, workers=workers)
        if samples:
            export.write_samples(db, gpu=0, times=samples[0], values=samples[1])


def write_block(
    db: Database, block: Block, kernels: Sequence[Kernel], *, calls: bool = True
) -> None:
    """Write a block; `kernels` says what its kernel numbers mean, `calls` whether calls were traced."""
    _write_kernels(db, block, kernels)
    _write_copies(db, block)
    sets, context = block.memsets, _context(block.worker)
    db.append(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        **_work(sets),
        **context,
        value=0,
        bytes=sets["bytes"],
        memKind=2,
    )
    if calls:
        _write_calls(db, block)


def _write_kernels(db: Database, block: Block, kernels: Sequence[Kernel]) -> None:
    rows = block.kernels
    kind = rows["kernel"]
    most = max(len(k.grids) for k in kernels)
    grid = np.array(
        [(*k.grids, *[k.grids[-1]] * (most - len(k.grids))) for k in kernels], np.int64
    )[kind, rows["slot"]]
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
        db.append(
            "NVTX_EVENTS", start=start, **end, eventType=59, text=text, globalTid=thread, domainId=0
        )
