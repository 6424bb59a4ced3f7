"""What is true of an execution of the lab's MLP under PyTorch's profiler? Sums, made without any of perfkit's analyses.

Conventions
-----------
Times are ns, since the start of the trace. Of the operators total is with and self without those called, on the CPU;
on the GPU total is the time of the kernels launched by them or those called, self of those they launched themselves.
Counts of the GPU's work are those of `tally`.

Functions
---------
truth      all of it
operators  the figures of each operator
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from make import mlp_operators
from make.activity import DIRECTIONS, KERNELS
from make.mlp_execution import SLOWER, STEP, Execution, Ran
from make.mlp_trace_events import RESERVED_BYTES
from make.tally import Tally

FIGURES = ("count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count")


def truth(execution: Execution) -> dict[str, Any]:
    """Return what is true of it, as numbers and text that JSON can hold.

    Returns
    -------
    dict
        ``dur_ns``; ``steps``: name, start_ns, dur_ns, wait_ns (in the data loader), steady; ``operators``: the
        figures of each name; ``flops``: of the matrix products, by operator; ``memory``: peaks by GPU, -1 for the CPU;
        ``synchronisations``: calls that wait, by function; ``functions``: Python's; ``gpu``: as `Tally.truth`.
    """
    tally = Tally(list(KERNELS.values()))
    tally.add(execution.block)
    steps = len(SLOWER)
    return {
        "dur_ns": execution.end,
        "steps": list(_steps(execution)),
        "operators": operators(execution),
        "flops": {name: steps * flops for name, flops in mlp_operators.flops().items()},
        "memory": _memory(execution),
        "synchronisations": _synchronisations(execution),
        "functions": sum(ran.span.category == "python_function" for ran in execution.ran),
        "gpu": tally.truth(),
    }


def _steps(execution: Execution) -> Iterator[dict[str, Any]]:
    waits = {ran.step: ran.end - ran.start for ran in execution.ran if ran.name == mlp_operators.LOADER}
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


def _memory(execution: Execution) -> dict[str, dict[str, int]]:
    peaks = {}
    for gpu, on_gpu in (("-1", False), ("0", True)):
        levels = [level for level in execution.levels if level.change.on_gpu == on_gpu]
        most = max(levels, key=lambda level: level.total)
        peaks[gpu] = {"peak_allocated_bytes": most.total, "peak_ns": most.time, "changes": len(levels)}
    peaks["0"]["reserved_bytes"] = RESERVED_BYTES
    return peaks


def _synchronisations(execution: Execution) -> dict[str, int]:
    """Return how many calls wait for the GPU: those that say so, and copies to pageable memory."""
    to_host = Counter(execution.block.copies["direction"].tolist())[DIRECTIONS.index("D2H")]
    return {"cudaStreamSynchronize": len(execution.block.syncs["start"]), "cudaMemcpyAsync": to_host}
