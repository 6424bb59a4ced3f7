"""Which events of Kineto are an execution of the lab's MLP?

Conventions
-----------
"External id" numbers operators and annotations by their start; a call and the GPU's work have that of the innermost
operator around the call. Autograd numbers its nodes one by one; an arrow leads from the forward operator that made a
node to the node, and from a call to the GPU's work.

Functions
---------
host      what threads do: operators, annotations, calls, memory, Python's functions
device    what the GPU does
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from make.activity import API, DIRECTIONS, KERNELS, Rows
from make.kineto import Event, Flow, Instant, Span
from make.mlp_execution import FIRST_STEP, WORKER, Execution, Ran
from make.mlp_parts import NODES
from make.table5 import Kernel
from perfkit.simulate.export import CARD

RESERVED_BYTES = 26 << 20  # of the allocator: a segment of 20 MiB for cuBLAS, three of 2 MiB for all else
SMS, WARPS, THREADS = (int(CARD[name]) for name in ("smCount", "maxWarpsPerSm", "threadsPerWarp"))
COPIES = {"H2D": "Memcpy HtoD (Pageable -> Device)", "D2H": "Memcpy DtoH (Device -> Pageable)"}
CBID = {  # CUPTI's numbers of the functions
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
}


def host(execution: Execution) -> Iterator[Event]:
    """Yield operators and annotations with their arrows, calls, changes of memory and Python's functions."""
    external = _numbered(execution, python=False)
    for n, number in external.items():
        yield _span(execution.ran[n], {**_arguments(execution.ran[n], number), "Ev Idx": number - 1})
    yield from _links(execution)
    yield from _calls(execution, external)
    yield from _memory(execution, len(external))
    yield from _functions(execution, len(external) + len(execution.levels))


def _numbered(execution: Execution, *, python: bool) -> dict[int, int]:
    """Return the numbers, from 1 on, that the profiler gives Python's functions, or all else."""
    chosen = [n for n, ran in enumerate(execution.ran) if (ran.span.category == "python_function") == python]
    return {n: i for i, n in enumerate(chosen, start=1)}


def _arguments(ran: Ran, number: int) -> dict[str, Any]:
    args: dict[str, Any] = {"External id": number}
    if ran.span.sequence is not None:
        args |= {"Sequence number": _sequence(ran), "Fwd thread id": int(ran.thread > 0)}
    args["Record function id"] = 0
    if inputs := ran.span.inputs:
        args |= {"Concrete Inputs": [i.concrete for i in inputs], "Input type": [i.kind for i in inputs]}
        args |= {"Input Strides": [i.strides for i in inputs], "Input Dims": [i.dims for i in inputs]}
    return args


def _sequence(ran: Ran) -> int:
    """Return autograd's number of an operator that has one."""
    return (FIRST_STEP + ran.step) * NODES + (ran.span.sequence or 0)


def _span(ran: Ran, args: dict[str, Any]) -> Span:
    place = WORKER.process, WORKER.threads[ran.thread]
    return Span(ran.span.category, ran.name, *place, ran.start, ran.end - ran.start, args)


def _links(execution: Execution) -> Iterator[Flow]:
    """Yield arrows to nodes, each from the last of the operators with its number that ran before."""
    made: dict[int, Ran] = {}
    links = 0
    for ran in execution.ran:
        if ran.span.sequence is None:
            continue
        if ran.thread == 0:
            made[_sequence(ran)] = ran
        elif ran.operator >= 0:
            links += 1
            for end in (made[_sequence(ran)], ran):
                thread = WORKER.threads[end.thread]
                yield Flow("fwdbwd", links, WORKER.process, thread, end.start, arrives=end is ran)


def _calls(execution: Execution, external: dict[int, int]) -> Iterator[Event]:
    for row in _rows(execution.block.calls):
        function = API[row["name"]].rsplit("_", 1)[0]
        start, thread, correlation = row["start"], row["thread"], row["correlation"]
        args = {"External id": external[execution.operators[correlation]], "cbid": CBID[function]}
        args |= {"correlation": correlation}
        yield Span("cuda_runtime", function, WORKER.process, thread, start, row["end"] - start, args)
        yield Flow("ac2g", correlation, WORKER.process, thread, start, arrives=False)


def _memory(execution: Execution, first: int) -> Iterator[Instant]:
    for i, level in enumerate(execution.levels, start=first):
        on_gpu = level.change.on_gpu
        args = {
            "Total Reserved": RESERVED_BYTES if on_gpu else 0,
            "Total Allocated": level.total,
            "Bytes": level.change.size,
            "Addr": level.address,
            "Device Id": WORKER.gpu if on_gpu else -1,
            "Device Type": int(on_gpu),
            "Ev Idx": i,
        }
        thread = WORKER.threads[level.thread]
        yield Instant("cpu_instant_event", "[memory]", WORKER.process, thread, level.time, args)


def _functions(execution: Execution, first: int) -> Iterator[Span]:
    numbers = _numbered(execution, python=True)
    for i, (n, number) in enumerate(numbers.items(), start=first):
        caller = numbers.get(execution.ran[n].function)
        yield _span(execution.ran[n], {"Python parent id": caller, "Python id": number, "Ev Idx": i})


def device(execution: Execution, kernels: Sequence[Kernel] = tuple(KERNELS.values())) -> Iterator[Event]:
    """Yield kernels, copies and memsets, each with the arrow from its call; `kernels` says what their numbers mean."""
    external = _numbered(execution, python=False)
    block = execution.block
    for rows in (block.kernels, block.copies, block.memsets):
        for row in _rows(rows):
            category, name, args = _work(row, kernels)
            start, stream, correlation = row["start"], row["stream"], row["correlation"]
            place = {"device": WORKER.gpu, "context": 1, "stream": stream, "correlation": correlation}
            args = {"External id": external[execution.operators[correlation]], **place, **args}
            yield Span(category, name, WORKER.gpu, stream, start, row["end"] - start, args)
            yield Flow("ac2g", correlation, WORKER.gpu, stream, start, arrives=True)


def _rows(rows: Rows) -> Iterator[dict[str, int]]:
    for values in zip(*(column.tolist() for column in rows.values()), strict=True):
        yield dict(zip(rows, values, strict=True))


def _work(row: dict[str, int], kernels: Sequence[Kernel]) -> tuple[str, str, dict[str, Any]]:
    """Return category, name and arguments of a kernel, copy or memset."""
    if "kernel" in row:
        kernel = kernels[row["kernel"]]
        grid = (*kernel.grids[row["slot"]], 1)
        blocks = grid[0] * grid[1] / SMS
        warps = blocks * kernel.block / THREADS
        return (
            "kernel",
            kernel.full_name,
            {
                "queued": 0,
                "registers per thread": kernel.registers,
                "shared memory": kernel.shared_bytes,
                "blocks per SM": round(blocks, 6),
                "warps per SM": round(warps, 6),
                "grid": grid,
                "block": (kernel.block, 1, 1),
                "est. achieved occupancy %": round(100 * warps / WARPS),
            },
        )
    args = {"bytes": row["bytes"], "memory bandwidth (GB/s)": row["bytes"] / (row["end"] - row["start"])}
    if "direction" in row:
        return "gpu_memcpy", COPIES[DIRECTIONS[row["direction"]]], args
    return "gpu_memset", "Memset (Device)", args
