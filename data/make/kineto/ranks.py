"""How do the traces of a data-parallel job of any size look, one file per rank?

Conventions
-----------
Every step computes in four blocks; after each the ranks average its gradients. A block is a row of matrix products,
each launched by an operator while the GPU still works on the one before. The all-reduce kernel of a rank starts when
its block is through and ends on all ranks at once, a fixed time after the last one has come. Nothing else runs then:
all communication is exposed. The ranks' clocks agree. Times are int64 ns since the start of the traces; arrays have
the shape (ranks, steps, blocks, products).

Functions
---------
ranks    a folder of traces, with what is true of them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make.kineto.events import Event, Flow, Span, described
from make.kineto.file import write
from make.table5 import ALL_REDUCE, TABLE_5, Kernel
from make.timeline import Int

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
BEFORE_NS = (14_000, 12_000, 10_000, 5_000, 3_000, 2_000)  # a kernel: two operators and a call begin, and end

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
    folder: Path, *, ranks: int = 16, events: int = 100_000, straggler: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Write the traces of a job into `folder`, ``rank-0.pt.trace.json.gz`` and so on; return what is true of them.

    Parameters
    ----------
    folder
        Made if it does not exist; files of these names are replaced.
    ranks
        Number of processes, each with a GPU of its own.
    events
        Events of each trace, about: whole steps, at least one.
    straggler
        The rank that computes half as long again; none does when omitted.
    seed
        The same seed and numbers give the same traces.

    Returns
    -------
    dict
        ``events``, ``steps``, ``kernels`` and ``collectives`` of each rank; ``bytes`` of a collective; ``latency_ns``;
        ``skew_ns``, the sum over the collectives; lists by rank: ``computation_ns``, ``communication_ns``,
        ``wait_ns`` (for the last rank) and ``last_count`` (collectives to which no rank came later).

    Raises
    ------
    ValueError
        If there are fewer than two ranks, or the straggler is none of them.
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
    begin = np.cumsum(block).reshape(steps, BLOCKS) - block + STARTED_NS * np.arange(1, steps + 1)[:, None]
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
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks}
    card = {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "warpSize": 32}
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
    message = _message(ranks)
    for step, (begin, end) in enumerate(zip(job.step.tolist(), ends.tolist(), strict=True)):
        yield Span("user_annotation", f"ProfilerStep#{step}", process, process, begin, end - begin)
        for block in range(BLOCKS):
            at = rank, step, block
            for start, length in zip(job.product[at].tolist(), job.length[at].tolist(), strict=True):
                correlation += 1
                yield from _operators(process, start)
                yield from _launch(process, gpu, correlation, _Work(start, length, PRODUCT, COMPUTING, {}))
            correlation += 1
            start, length = int(job.reduction[at]), int(job.done[step, block] - job.reduction[at])
            yield _span(process, "record_param_comms", start, 0, message)
            yield from _launch(process, gpu, correlation, _Work(start, length, ALL_REDUCE, COMMUNICATING, message))


def _message(ranks: int) -> dict[str, Any]:
    """Return what PyTorch tells of an all-reduce."""
    return {
        "Collective name": "allreduce",
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
        "Group size": ranks,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(ranks))),
    }


def _operators(process: int, start: int) -> Iterator[Event]:
    inputs = [[BATCH, INPUTS], [OUTPUTS, INPUTS], [OUTPUTS]]
    yield _span(process, "aten::linear", start, 0, {"Input type": ["float"] * 3, "Input Dims": inputs})
    inputs = [[OUTPUTS], [BATCH, INPUTS], [INPUTS, OUTPUTS]]
    yield _span(process, "aten::addmm", start, 1, {"Input type": ["float"] * 3, "Input Dims": inputs})


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
    yield Span("cuda_runtime", function, process, process, called, BEFORE_NS[2] - BEFORE_NS[3], args)
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
    yield Span("kernel", kernel.full_name, gpu, work.stream, work.start, work.dur, launched | work.message)
    yield Flow("ac2g", correlation, gpu, work.stream, work.start, arrives=True)
