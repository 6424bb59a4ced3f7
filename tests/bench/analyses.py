"""CPU seconds of every analysis on two million kernels, against one groupby and sum of pandas over them.

The capture is of eight GPUs in eight processes, with two streams and NCCL; a question that also takes copies or
CUDA calls takes all of theirs, and the number of rows is of all its tables. Transfers are of another capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import perfkit
from perfkit import analysis
from tests.bench import captures, fresh
from tests.bench.table import Row

TIMES = 3
ROWS = 2_000_000
MOST_S = 0.2
PEER = "groupby, sum"


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields a row of the table per analysis."""
    count = min(kernels, ROWS)
    seconds = fresh.call(cpu_seconds, captures.made(count, "node")).answer
    seconds |= fresh.call(transfers_seconds, captures.made(count, "copies"), count).answer
    _, peer_s = seconds.pop(PEER)
    for work, (size, cpu_s) in seconds.items():
        name = f"{work}, {size:,} rows, CPU"
        yield Row(name, cpu_s, f"pandas {PEER}", peer_s, most_seconds=MOST_S, bar=f"under {MOST_S} s")


def cpu_seconds(path: str) -> dict[str, tuple[int, float]]:
    """Return rows and CPU seconds of each analysis of a capture, and of the peer."""
    run = perfkit.load(path)
    kernels, copies, calls, ranges = run.kernels, run.copies, run.api_calls, run.ranges
    nothing = ranges.iloc[:0]
    both, launched = len(kernels) + len(copies), len(kernels) + len(calls)
    latency = analysis.launches.latency(kernels, calls)
    work: dict[str, tuple[int, Callable[[], object]]] = {
        "timeline.busy": (both, lambda: analysis.timeline.busy(kernels, copies)),
        "timeline.breakdown": (both, lambda: analysis.timeline.breakdown(kernels, copies)),
        "timeline.bins": (both, lambda: analysis.timeline.bins(kernels, copies)),
        "gaps.idle_gaps": (both + len(calls), lambda: analysis.gaps.idle_gaps(kernels, copies, calls)),
        "launches.latency": (launched, lambda: analysis.launches.latency(kernels, calls)),
        "launches.summary": (len(latency), lambda: analysis.launches.summary(latency)),
        "kernels.summary": (len(kernels), lambda: analysis.kernels.summary(kernels)),
        "communication.overlap": (len(kernels), lambda: analysis.communication.overlap(kernels)),
        "steps.detect (NVTX)": (len(ranges), lambda: analysis.steps.detect(ranges, kernels)),
        "steps.detect (no NVTX)": (len(kernels), lambda: analysis.steps.detect(nothing, kernels)),
        PEER: (len(kernels), lambda: kernels.groupby("name", observed=True)["dur_ns"].sum()),
    }
    return {name: (size, _least(question)) for name, (size, question) in work.items()}


def transfers_seconds(path: str, count: str) -> dict[str, tuple[int, float]]:
    """Return rows and CPU seconds of the summary of so many transfers."""
    copies = perfkit.load(path).copies.head(int(count))
    return {"memory.copied": (len(copies), _least(lambda: analysis.memory.copied(copies)))}


def _least(question: Callable[[], object]) -> float:
    """Return the CPU seconds of a question, the least of some times."""
    taken = []
    for _ in range(TIMES):
        began = time.process_time()
        question()
        taken.append(time.process_time() - began)
    return min(taken)
