"""What is true of a simulated capture? Sums over its rows, made without any of perfkit's analyses.

Times are ns. Per GPU: `busy` is the time covered by kernels, `device_busy` by kernels, copies and memsets;
`span` is from the start of the first to the end of the last of these; the four parts of `breakdown` sum to the
span (memsets count as computation, a kernel named nccl as communication). The median is the mean of the two
middle values. Bandwidth, shares and other quotients are left to whoever compares.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make.activity import API, DIRECTIONS, LAUNCHES, Block, Rows
from make.kernels import Kernel
from make.timeline import Int


def covered(start: Int, end: Int) -> tuple[Int, Int]:
    """Return starts and ends of the disjoint pieces, ascending, that [start, end) cover; pieces may touch."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if len(start):
        start = np.maximum(start, np.r_[start[0], np.maximum.accumulate(end)[:-1]])
    new = end > start
    return start[new], end[new]


def covered_until(start: Int, end: Int, times: Int) -> Int:
    """Return the time that [start, end) cover before each of the ascending `times`, ns."""
    first, last = covered(start, end)
    if not len(first):
        return np.zeros(len(times), np.int64)
    before = np.r_[0, np.cumsum(last - first)]
    piece = np.searchsorted(first, times, side="right")
    reached = np.minimum(times, last[np.maximum(piece - 1, 0)]) - first[np.maximum(piece - 1, 0)]
    return np.asarray(np.where(piece, before[np.maximum(piece - 1, 0)] + reached, 0), np.int64)


KERNEL, COMMUNICATION, MEMSET, COPY = range(4)


class Tally:
    """Sums over the blocks that were written; `kernels` says what their kernel numbers mean."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._kernels = kernels
        self._communicates = np.array(["nccl" in kernel.full_name.lower() for kernel in kernels])
        self._durations: list[Int] = []
        self._kinds: list[Int] = []
        self._queued: list[Int] = []
        self._in_graph = 0
        self._work: dict[int, list[tuple[Int, Int, Int]]] = defaultdict(list)
        self._copies: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._calls: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, block: Block) -> None:
        """Add the rows of a block."""
        rows = block.kernels
        self._durations.append(_lengths(rows))
        self._kinds.append(rows["kernel"])
        self._queued.append(rows["start"] - rows["call_end"])
        self._in_graph += int((rows["node"] >= 0).sum())
        self._cover(block)
        for direction, name in enumerate(DIRECTIONS):
            _count(
                self._copies[name], block.copies, block.copies["direction"] == direction, "bytes"
            )
        _count(self._copies["memset"], block.memsets, block.memsets["bytes"] >= 0, "bytes")
        for number, name in enumerate(API):
            _count(self._calls[name], block.calls, block.calls["name"] == number)

    def _cover(self, block: Block) -> None:
        """Keep start, end and class of all GPU work for the sweep over each GPU."""
        work = self._work[block.worker.gpu]
        kernels = np.where(self._communicates[block.kernels["kernel"]], COMMUNICATION, KERNEL)
        for rows, kind in ((block.kernels, kernels), (block.copies, COPY), (block.memsets, MEMSET)):
            work.append(
                (rows["start"], rows["end"], np.broadcast_to(np.int8(kind), rows["start"].shape))
            )

    def kernels_until(self, gpu: int, times: Int) -> Int:
        """Return the time that kernels cover on a GPU before each of the ascending `times`, ns."""
        start, end, kind = (np.concatenate(parts) for parts in zip(*self._work[gpu], strict=True))
        kernels = kind <= COMMUNICATION
        return covered_until(start[kernels], end[kernels], times)

    def truth(self) -> dict[str, Any]:
        """Return all sums, as numbers and text that JSON can hold."""
        durations = np.concatenate(self._durations)
        return {
            "kernels": {
                "count": len(durations),
                "total_ns": int(durations.sum()),
                "in_graph": self._in_graph,
            },
            "kernel_rows": self._rows(durations, np.concatenate(self._kinds)),
            "gpus": {str(gpu): _device(work) for gpu, work in sorted(self._work.items())},
            "copies": {
                name: {"count": n, "total_ns": ns, "bytes": size}
                for name, (n, ns, size) in self._copies.items()
                if n
            },
            "calls": {
                name: {"count": n, "total_ns": ns} for name, (n, ns) in self._calls.items() if n
            },
            "launches": self._launches(),
        }

    def _rows(self, durations: Int, kinds: Int) -> list[dict[str, Any]]:
        order = np.argsort(kinds, kind="stable")
        found, first = np.unique(kinds[order], return_index=True)
        parts = np.split(durations[order], first[1:])
        rows = [
            _row(self._kernels[kind], part)
            for kind, part in zip(found.tolist(), parts, strict=True)
        ]
        return sorted(rows, key=lambda row: -row["total_ns"])

    def _launches(self) -> dict[str, float]:
        queued = np.concatenate(self._queued)
        return {
            "count": sum(self._calls[name][0] for name in LAUNCHES),
            "total_ns": sum(self._calls[name][1] for name in LAUNCHES),
            "queued_total_ns": int(queued.sum()),
            "queued_median_ns": float(np.median(queued)),
            "queued_max_ns": int(queued.max()),
        }


def _lengths(rows: Rows) -> Int:
    return rows["end"] - rows["start"]


def _count(sums: list[int], rows: Rows, chosen: NDArray[np.bool_], *columns: str) -> None:
    """Add number, time and further columns of the chosen rows to `sums`."""
    for i, values in enumerate(
        (chosen, _lengths(rows)[chosen], *(rows[column][chosen] for column in columns))
    ):
        sums[i] += int(values.sum())


def _row(kernel: Kernel, durations: Int) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "full_name": kernel.full_name,
        "total_ns": int(durations.sum()),
        "count": len(durations),
        "mean_ns": float(durations.mean()),
        "median_ns": float(np.median(durations)),
        "min_ns": int(durations.min()),
        "max_ns": int(durations.max()),
    }


def _device(work: list[tuple[Int, Int, Int]]) -> dict[str, Any]:
    start, end, kind = (np.concatenate(parts) for parts in zip(*work, strict=True))

    def busy(*kinds: int) -> int:
        chosen = np.isin(kind, kinds)
        first, last = covered(start[chosen], end[chosen])
        return int((last - first).sum())

    span = int(end.max() - start.min())
    computation, computing_or_communicating = (
        busy(KERNEL, MEMSET),
        busy(KERNEL, MEMSET, COMMUNICATION),
    )
    device = busy(KERNEL, MEMSET, COMMUNICATION, COPY)
    kernels = kind <= COMMUNICATION
    return {
        "kernel_busy_ns": busy(KERNEL, COMMUNICATION),
        "device_busy_ns": device,
        "communication_ns": busy(COMMUNICATION),
        "first_kernel_ns": int(start[kernels].min()),
        "last_kernel_ns": int(end[kernels].max()),
        "first_ns": int(start.min()),
        "last_ns": int(end.max()),
        "span_ns": span,
        "breakdown": {
            "computation_ns": computation,
            "exposed_communication_ns": computing_or_communicating - computation,
            "exposed_copy_ns": device - computing_or_communicating,
            "idle_ns": span - device,
        },
    }
