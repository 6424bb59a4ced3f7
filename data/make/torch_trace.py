"""What would PyTorch's profiler have recorded of some steps: Kineto's events, and what is true of them?

An execution of its own, with shapes, memory and stacks, hours after the one that Nsight Systems saw: the two tools
cannot record one process at once. Kernels bear the names that Nsight Systems prints. The file says that it is
simulated. "External id" numbers operators and annotations by their start; a call and the GPU's work have that of the
innermost operator around the call. An arrow leads from the forward operator that made a node to the node, and from a
call to the GPU's work.

Of the operators total is with and self without those called, on the CPU; on the GPU total is the time of the kernels
launched by them or those called, self of those they launched themselves. Counts of the GPU's work are those of `tally`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make import kineto
from make.activity import API, DIRECTIONS, STREAM, Rows
from make.execution import (
    FIRST_STEP,
    LOADER,
    SLOWER,
    STEP,
    WORKER,
    Execution,
    Ran,
    executed,
    product_flops,
)
from make.kernels import KERNELS, Kernel
from make.kineto import Event, Flow, Instant, Mark, Span, described
from make.mlp_run import Segment
from make.simulate.export import CARD
from make.spans import NODES
from make.tally import Tally

LABEL = "perfkit simulate mlp_a100: made from the figures of an A100 lab report; no GPU ran"
PROGRAM = "python3"
CUDA = 12_040


def write(
    path: Path, segments: Sequence[Segment], rng: np.random.Generator, *, t0_unix_ns: int
) -> dict[str, Any]:
    """Write the trace to `path` and return what is true of it."""
    execution = executed(segments, rng)
    header = {
        "SIMULATED": LABEL,
        "deviceProperties": [card()],
        "cuda_runtime_version": CUDA,
        "cuda_driver_version": CUDA,
        **dict.fromkeys(("record_shapes", "profile_memory", "with_stack"), 1),
    }
    kineto.write(path, trace_events(execution), t0_unix_ns=t0_unix_ns, header=header)
    return {"t0_unix_ns": t0_unix_ns, **execution_truth(execution)}


def card() -> dict[str, int | str]:
    """Return the card as PyTorch describes it."""
    same = {
        "name": "name",
        "totalGlobalMem": "totalMemory",
        "computeMajor": "computeMajor",
        "computeMinor": "computeMinor",
        "maxThreadsPerBlock": "maxThreadsPerBlock",
        "regsPerBlock": "maxRegistersPerBlock",
        "warpSize": "threadsPerWarp",
        "sharedMemPerBlock": "maxShmemPerBlock",
        "numSms": "smCount",
        "regsPerMultiprocessor": "maxRegistersPerSm",
        "sharedMemPerBlockOptin": "maxShmemPerBlockOptin",
        "sharedMemPerMultiprocessor": "maxShmemPerSm",
    }
    return {"id": WORKER.gpu, **{theirs: CARD[ours] for theirs, ours in same.items()}}


def trace_events(
    execution: Execution, kernels: Sequence[Kernel] = tuple(KERNELS.values())
) -> Iterator[Event]:
    """Yield all events in the order in which Kineto writes them; `kernels` says what the kernels' numbers mean."""
    main, autograd = WORKER.threads
    threads = {main: f"thread {main} ({PROGRAM})", autograd: f"thread {autograd} (pt_autograd_0)"}
    yield from described(WORKER.process, threads, program=PROGRAM)
    yield from described(WORKER.gpu, {STREAM: f"stream {STREAM} "}, program=PROGRAM, gpu=True)
    yield from host_events(execution)
    yield from device_events(execution, kernels)
    yield Span(
        "Trace",
        "PyTorch Profiler (0)",
        "Spans",
        "PyTorch Profiler",
        0,
        execution.end,
        {"Op count": 0},
    )
    yield Mark("Iteration Start: PyTorch Profiler", "Traces", "Trace PyTorch Profiler", 0)
    yield Mark("Record Window End", "", "", execution.end)


RESERVED_BYTES = (
    26 << 20
)  # of the allocator: a segment of 20 MiB for cuBLAS, three of 2 MiB for all else
SMS, WARPS, THREADS = (int(CARD[name]) for name in ("smCount", "maxWarpsPerSm", "threadsPerWarp"))
COPIES = {"H2D": "Memcpy HtoD (Pageable -> Device)", "D2H": "Memcpy DtoH (Device -> Pageable)"}
CBID = {  # CUPTI's numbers of the functions
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
}


def host_events(execution: Execution) -> Iterator[Event]:
    """Yield operators and annotations with their arrows, calls, changes of memory and Python's functions."""
    external = _numbered(execution, python=False)
    for n, number in external.items():
        yield _span(
            execution.ran[n], {**_arguments(execution.ran[n], number), "Ev Idx": number - 1}
        )
    yield from _links(execution)
    yield from _calls(execution, external)
    yield from _memory(execution, len(external))
    yield from _functions(execution, len(external) + len(execution.levels))


def _numbered(execution: Execution, *, python: bool) -> dict[int, int]:
    """Return the numbers, from 1 on, that the profiler gives Python's functions, or all else."""
    chosen = [
        n
        for n, ran in enumerate(execution.ran)
        if (ran.span.category == "python_function") == python
    ]
    return {n: i for i, n in enumerate(chosen, start=1)}


def _arguments(ran: Ran, number: int) -> dict[str, Any]:
    args: dict[str, Any] = {"External id": number}
    if ran.span.sequence is not None:
        args |= {"Sequence number": _sequence(ran), "Fwd thread id": int(ran.thread > 0)}
    args["Record function id"] = 0
    if inputs := ran.span.inputs:
        args |= {
            "Concrete Inputs": [i.concrete for i in inputs],
            "Input type": [i.kind for i in inputs],
        }
        args |= {
            "Input Strides": [i.strides for i in inputs],
            "Input Dims": [i.dims for i in inputs],
        }
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
        yield Span(
            "cuda_runtime", function, WORKER.process, thread, start, row["end"] - start, args
        )
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
        yield _span(
            execution.ran[n], {"Python parent id": caller, "Python id": number, "Ev Idx": i}
        )


def device_events(
    execution: Execution, kernels: Sequence[Kernel] = tuple(KERNELS.values())
) -> Iterator[Event]:
    """Yield kernels, copies and memsets, each with the arrow from its call; `kernels` says what their numbers mean."""
    external = _numbered(execution, python=False)
    block = execution.block
    for rows in (block.kernels, block.copies, block.memsets):
        for row in _rows(rows):
            category, name, args = _work(row, kernels)
            start, stream, correlation = row["start"], row["stream"], row["correlation"]
            place = {
                "device": WORKER.gpu,
                "context": 1,
                "stream": stream,
                "correlation": correlation,
            }
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
    args = {
        "bytes": row["bytes"],
        "memory bandwidth (GB/s)": row["bytes"] / (row["end"] - row["start"]),
    }
    if "direction" in row:
        return "gpu_memcpy", COPIES[DIRECTIONS[row["direction"]]], args
    return "gpu_memset", "Memset (Device)", args


FIGURES = ("count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count")


def execution_truth(execution: Execution) -> dict[str, Any]:
    """Return what is true of it, as numbers and text that JSON can hold."""
    tally = Tally(list(KERNELS.values()))
    tally.add(execution.block)
    steps = len(SLOWER)
    return {
        "dur_ns": execution.end,
        "steps": list(_steps(execution)),
        "operators": operators(execution),
        "flops": {name: steps * flops for name, flops in product_flops().items()},
        "memory": _truth_memory(execution),
        "synchronisations": _synchronisations(execution),
        "functions": sum(ran.span.category == "python_function" for ran in execution.ran),
        "gpu": tally.truth(),
    }


def _steps(execution: Execution) -> Iterator[dict[str, Any]]:
    waits = {ran.step: ran.end - ran.start for ran in execution.ran if ran.name == LOADER}
    for ran in execution.ran:
        if ran.span.name == STEP:
            yield {
                "name": ran.name,
                "start_ns": ran.start,
                "dur_ns": ran.end - ran.start,
                "wait_ns": waits[ran.step],
                "steady": bool(SLOWER[ran.step] == 1),
            }


def operators(execution: Execution) -> dict[str, dict[str, int]]:
    """Return the figures of each operator; none of them calls one of its own name."""
    found: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
    for ran in execution.ran:
        if ran.span.category == "cpu_op":
            dur = ran.end - ran.start
            figures = found[ran.name]
            figures["count"] += 1
            figures["cpu_total_ns"] += dur
            figures["cpu_self_ns"] += dur
            if ran.operator >= 0:
                found[execution.ran[ran.operator].name]["cpu_self_ns"] -= dur
    kernels = execution.block.kernels
    spent = (kernels["end"] - kernels["start"]).tolist()
    for correlation, dur in zip(kernels["correlation"].tolist(), spent, strict=True):
        number = execution.operators[correlation]
        found[execution.ran[number].name]["gpu_self_ns"] += dur
        found[execution.ran[number].name]["kernel_count"] += 1
        for ran in _around(execution, number):
            found[ran.name]["gpu_total_ns"] += dur
    return dict(sorted(found.items()))


def _around(execution: Execution, number: int) -> Iterator[Ran]:
    """Yield an operator and those that call it."""
    while number >= 0:
        yield execution.ran[number]
        number = execution.ran[number].operator


def _truth_memory(execution: Execution) -> dict[str, dict[str, int]]:
    peaks = {}
    for gpu, on_gpu in (("-1", False), ("0", True)):
        levels = [level for level in execution.levels if level.change.on_gpu == on_gpu]
        most = max(levels, key=lambda level: level.total)
        peaks[gpu] = {
            "peak_allocated_bytes": most.total,
            "peak_ns": most.time,
            "changes": len(levels),
        }
    peaks["0"]["reserved_bytes"] = RESERVED_BYTES
    return peaks


def _synchronisations(execution: Execution) -> dict[str, int]:
    """Return how many calls wait for the GPU: those that say so, and copies to pageable memory."""
    to_host = Counter(execution.block.copies["direction"].tolist())[DIRECTIONS.index("D2H")]
    return {
        "cudaStreamSynchronize": len(execution.block.syncs["start"]),
        "cudaMemcpyAsync": to_host,
    }
