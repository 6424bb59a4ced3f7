"""How is a trace written as PyTorch's profiler exports it: Kineto's JSON of 2022 to 2025, compressed?

A process or thread is a number, or a text such as "Spans"; the GPU's rows have its number as process and the stream as
thread. Times are int64 ns since the start of the traces.

In the traces of `ranks` every step computes in four blocks; after each the ranks average its gradients. A block is a
row of matrix products, each launched by an operator while the GPU still works on the one before. The all-reduce kernel
of a rank starts when its block is through and ends on all ranks at once, a fixed time after the last one has come. All
communication is exposed, and the clocks agree. Arrays have the shape (ranks, steps, blocks, products).
"""

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make.kernels import ALL_REDUCE, TABLE_5, Kernel
from make.timeline import Int

Place = int | str
GPU_SORT_INDEX = 5_000_000  # viewers show GPUs below the processes


class Span(NamedTuple):
    """Something that takes time: an operator, a call, a kernel, a Python function, an annotation."""

    category: str
    name: str
    process: Place
    thread: Place
    start_ns: int
    dur_ns: int
    args: Mapping[str, Any] = {}

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        return _object(
            f'"ph": "X", "cat": {_json(self.category)}, "name": {_json(self.name)}, {_place(self.process, self.thread)}'
            f',\n    "ts": {microseconds(self.start_ns + shift_ns)}, "dur": {microseconds(self.dur_ns)}',
            self.args,
        )


class Instant(NamedTuple):
    """Something that happens at a moment, such as memory that an allocator gives or takes."""

    category: str
    name: str
    process: Place
    thread: Place
    time_ns: int
    args: Mapping[str, Any]

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        return _object(
            f'"ph": "i", "cat": {_json(self.category)}, "s": "t", "name": {_json(self.name)},\n    '
            f'{_place(self.process, self.thread)},\n    "ts": {microseconds(self.time_ns + shift_ns)}',
            self.args,
        )


class Mark(NamedTuple):
    """A moment of the recording itself: its start, its end."""

    name: str
    process: Place
    thread: Place
    time_ns: int

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        return _object(
            f'"name": {_json(self.name)}, "ph": "i", "s": "g",\n    '
            f'{_place(self.process, self.thread)}, "ts": {microseconds(self.time_ns + shift_ns)}'
        )


class Flow(NamedTuple):
    """One end of an arrow between spans, at the start of its span: a forward operator and its backward, or a launch."""

    category: str
    number: int
    process: Place
    thread: Place
    time_ns: int
    arrives: bool

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        category, bound = _json(self.category), ', "bp": "e"' if self.arrives else ""
        return _object(
            f'"ph": "{"f" if self.arrives else "s"}", "id": {self.number}, {_place(self.process, self.thread)}, '
            f'"ts": {microseconds(self.time_ns + shift_ns)},\n    "cat": {category}, "name": {category}{bound}'
        )


class Label(NamedTuple):
    """What a viewer shows for a process or thread: `name` says which property `args` give."""

    name: str
    process: Place
    thread: Place
    args: Mapping[str, Any]

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, at the start of the trace."""
        place = _place(self.process, self.thread)
        return _object(
            f'"name": {_json(self.name)}, "ph": "M", "ts": {microseconds(shift_ns)}, {place}',
            self.args,
        )


Event = Span | Instant | Mark | Flow | Label


def described(
    process: int, threads: Mapping[int, str], *, program: str, gpu: bool = False
) -> Iterator[Label]:
    """Yield the labels of a process, or of a GPU and its streams; `threads` are their names by number."""
    yield Label("process_name", process, 0, {"name": program})
    yield Label("process_labels", process, 0, {"labels": f"GPU {process}" if gpu else "CPU"})
    yield Label(
        "process_sort_index",
        process,
        0,
        {"sort_index": GPU_SORT_INDEX + process if gpu else process},
    )
    for thread, name in threads.items():
        yield Label("thread_name", process, thread, {"name": name})
        yield Label("thread_sort_index", process, thread, {"sort_index": thread})


def microseconds(ns: int) -> str:
    """Return a time, not before 0, in microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _object(fields: str, args: Mapping[str, Any] | None = None) -> str:
    """Return an event; its arguments have a line of their own."""
    inner = f',\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}' if args else ""
    return f"  {{\n    {fields}{inner}\n  }}"


def _place(process: Place, thread: Place) -> str:
    return f'"pid": {_json(process)}, "tid": {_json(thread)}'


@lru_cache(maxsize=4096)
def _json(value: Place) -> str:
    return json.dumps(value)


# ns; libkineto's TimeConverter counts times from a multiple of it, so that microseconds fit a double exactly.
BASE_STEP_NS = 7_889_238_000_000_000
LEVEL = 6


def write(
    path: Path, events: Iterable[Event], *, t0_unix_ns: int, header: Mapping[str, Any]
) -> Path:
    """Write a trace to `path` and return it; an older file is replaced when the new one is complete."""
    base = t0_unix_ns // BASE_STEP_NS * BASE_STEP_NS
    keys = {"schemaVersion": 1, **header, "displayTimeUnit": "ms", "baseTimeNanoseconds": base}
    part = path.with_name(f".{path.name}.part")
    with (
        part.open("wb") as file,
        # Without a name and a time in gzip's header the same text is the same file.
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
        TextIOWrapper(packed, "utf-8", newline="\n") as out,
    ):
        out.write(
            "{\n" + "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in keys.items())
        )
        out.write('  "traceEvents": [\n')
        out.writelines(_separated(events, t0_unix_ns - base))
        out.write(f'\n  ],\n  "traceName": {json.dumps(path.name)}\n}}\n')
    os.replace(part, path)
    return path


def _separated(events: Iterable[Event], shift_ns: int) -> Iterator[str]:
    """Yield the text of the events, with a comma between two."""
    comma = ""
    for event in events:
        yield comma + event.text(shift_ns)
        comma = ",\n"


T0_UNIX_NS = 1_750_082_400_000_000_000
PROCESS = 41_000
COMPUTING, COMMUNICATING = 7, 20  # streams
GPUS = 8  # of a node
BLOCKS, PRODUCTS = 4, 8
LABELS, PER_STEP = 12, 1 + BLOCKS * (PRODUCTS * 6 + 5)  # events
PRODUCT_NS = (24_000, 90_000)
SPACING_NS, REDUCTION_NS = 1_000, 45_000
STARTED_NS = 100_000  # from the start of a step to its first kernel
ELEMENTS = 1 << 20  # of type float, averaged after each block
LATE = 3, 2  # a late rank computes half as long again
BEFORE_NS = (
    14_000,
    12_000,
    10_000,
    5_000,
    3_000,
    2_000,
)  # a kernel: two operators and a call begin, and end

PRODUCT = TABLE_5["gemm_tn"]
BATCH, INPUTS, OUTPUTS = 128, 784, 256


@dataclass(frozen=True)
class _Job:
    """When everything runs: starts of the steps, starts and durations of products, starts and ends of reductions."""

    step: Int
    product: Int
    length: Int
    reduction: Int
    done: Int


def ranks(
    folder: Path,
    *,
    ranks: int = 16,
    events: int = 100_000,
    straggler: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write the traces of a job into `folder`, ``rank-0.pt.trace.json.gz`` and so on; return what is true of them.

    Each rank has a GPU of its own and about so many `events`: whole steps, at least one. A `straggler` computes half as
    long again. The same arguments give the same traces. ValueError if there are fewer than two ranks, or the straggler
    is none of them.

    Returned are ``events``, ``steps``, ``kernels`` and ``collectives`` of each rank; ``bytes`` of a collective;
    ``latency_ns``; ``skew_ns``, the sum over the collectives; lists by rank: ``computation_ns``, ``communication_ns``,
    ``wait_ns`` (for the last rank) and ``last_count`` (collectives to which no rank came later).
    """
    if ranks < 2:
        raise ValueError(f"ranks: {ranks} is not 2 or more")
    if straggler is not None and not 0 <= straggler < ranks:
        raise ValueError(f"straggler: {straggler} is no rank from 0 to {ranks - 1}")
    steps = max(1, (events - LABELS) // PER_STEP)
    job = _job(ranks, steps, straggler, np.random.default_rng(seed))
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        path = folder / f"rank-{rank}.pt.trace.json.gz"
        write(path, _events(job, rank, ranks), t0_unix_ns=T0_UNIX_NS, header=_header(rank, ranks))
    return {"events": LABELS + steps * PER_STEP, "steps": steps, **_truth(job)}


def _job(ranks: int, steps: int, straggler: int | None, rng: np.random.Generator) -> _Job:
    length = rng.integers(*PRODUCT_NS, (ranks, steps, BLOCKS, PRODUCTS))
    if straggler is not None:
        length[straggler] = length[straggler] * LATE[0] // LATE[1]
    computed = (length + SPACING_NS).sum(axis=3)
    block = computed.max(axis=0) + REDUCTION_NS + SPACING_NS
    begin = (
        np.cumsum(block).reshape(steps, BLOCKS)
        - block
        + STARTED_NS * np.arange(1, steps + 1)[:, None]
    )
    product = begin[..., None] + np.cumsum(length + SPACING_NS, axis=3) - (length + SPACING_NS)
    done = begin + computed.max(axis=0) + REDUCTION_NS
    return _Job(begin[:, 0] - STARTED_NS, product, length, begin + computed, done)


def _truth(job: _Job) -> dict[str, Any]:
    wait = job.reduction.max(axis=0) - job.reduction
    by_step = (1, 2)
    return {
        "kernels": job.length[0].size + job.reduction[0].size,
        "collectives": job.reduction[0].size,
        "bytes": 4 * ELEMENTS,
        "latency_ns": REDUCTION_NS,
        "skew_ns": int(wait.max(axis=0).sum()),
        "computation_ns": job.length.sum(axis=(1, 2, 3)).tolist(),
        "communication_ns": (job.done - job.reduction).sum(axis=by_step).tolist(),
        "wait_ns": wait.sum(axis=by_step).tolist(),
        "last_count": (wait == 0).sum(axis=by_step).tolist(),
    }


def _header(rank: int, ranks: int) -> dict[str, Any]:
    group = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cuda:nccl",
        "pg_size": ranks,
    }
    card = {
        "name": "NVIDIA A100-SXM4-80GB",
        "computeMajor": 8,
        "computeMinor": 0,
        "numSms": 108,
        "warpSize": 32,
    }
    return {
        "SIMULATED": "make.kineto.ranks: no GPU ran",
        "deviceProperties": [{"id": rank % GPUS, **card}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": ranks,
            "pg_count": 1,
            "pg_config": [{**group, "ranks": list(range(ranks))}],
            "nccl_version": "2.21.5",
        },
    }


def _events(job: _Job, rank: int, ranks: int) -> Iterator[Event]:
    """Yield the events of a rank: `LABELS`, and `PER_STEP` of each step."""
    process, gpu = PROCESS + rank, rank % GPUS
    yield from described(process, {process: f"thread {process} (python3)"}, program="python3")
    streams = {stream: f"stream {stream} " for stream in (COMPUTING, COMMUNICATING)}
    yield from described(gpu, streams, program="python3", gpu=True)
    ends = np.append(job.step[1:], job.done[-1, -1] + SPACING_NS)
    correlation = 0
    message = {
        "Collective name": "allreduce",
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
        "Group size": ranks,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(ranks))),
    }
    for step, (begin, end) in enumerate(zip(job.step.tolist(), ends.tolist(), strict=True)):
        yield Span("user_annotation", f"ProfilerStep#{step}", process, process, begin, end - begin)
        for block in range(BLOCKS):
            at = rank, step, block
            for start, length in zip(
                job.product[at].tolist(), job.length[at].tolist(), strict=True
            ):
                correlation += 1
                yield from _operators(process, start)
                yield from _launch(
                    process, gpu, correlation, _Work(start, length, PRODUCT, COMPUTING, {})
                )
            correlation += 1
            start, length = int(job.reduction[at]), int(job.done[step, block] - job.reduction[at])
            yield _span(process, "record_param_comms", start, 0, message)
            yield from _launch(
                process, gpu, correlation, _Work(start, length, ALL_REDUCE, COMMUNICATING, message)
            )


def _operators(process: int, start: int) -> Iterator[Event]:
    inputs = [[BATCH, INPUTS], [OUTPUTS, INPUTS], [OUTPUTS]]
    yield _span(
        process, "aten::linear", start, 0, {"Input type": ["float"] * 3, "Input Dims": inputs}
    )
    inputs = [[OUTPUTS], [BATCH, INPUTS], [INPUTS, OUTPUTS]]
    yield _span(
        process, "aten::addmm", start, 1, {"Input type": ["float"] * 3, "Input Dims": inputs}
    )


def _span(process: int, name: str, start: int, depth: int, args: dict[str, Any]) -> Span:
    """Return an operator that launches the kernel that starts at `start`."""
    begin, end = BEFORE_NS[depth], BEFORE_NS[-1 - depth]
    return Span("cpu_op", name, process, process, start - begin, begin - end, args)


class _Work(NamedTuple):
    """A kernel that runs: when, which, on which stream, and what it tells beside its launch."""

    start: int
    dur: int
    kernel: Kernel
    stream: int
    message: dict[str, Any]


def _launch(process: int, gpu: int, correlation: int, work: _Work) -> Iterator[Event]:
    """Yield a call, the kernel that it starts and the arrow between the two."""
    kernel, called = work.kernel, work.start - BEFORE_NS[2]
    function, number = ("cudaLaunchKernelExC", 430) if work.message else ("cudaLaunchKernel", 211)
    args = {"cbid": number, "correlation": correlation}
    yield Span(
        "cuda_runtime", function, process, process, called, BEFORE_NS[2] - BEFORE_NS[3], args
    )
    yield Flow("ac2g", correlation, process, process, called, arrives=False)
    launched = {
        "device": gpu,
        "context": 1,
        "stream": work.stream,
        "correlation": correlation,
        "registers per thread": kernel.registers,
        "shared memory": kernel.shared_bytes,
        "grid": (*kernel.grids[0], 1),
        "block": (kernel.block, 1, 1),
    }
    yield Span(
        "kernel", kernel.full_name, gpu, work.stream, work.start, work.dur, launched | work.message
    )
    yield Flow("ac2g", correlation, gpu, work.stream, work.start, arrives=True)
