"""What does HPCToolkit measure of the simulated DLRM's operations, and what do its traces show?

Conventions
-----------
CPU time is sampled every PERIOD_NS of each thread, from a phase of its own on, and a sample is worth that much. Values
of the GPU belong to the thread that asked for the operation; the stream has a trace alone. A trace of a thread has its
samples and, at the first one missed, that it does not run; a stream's has each operation and what follows it, which
is nothing if the next one starts right then.

Functions
---------
samples_before, samples_of    sampling instants before a time, and in a stretch
taken                         samples of a launch: expected, taken, dropped
threads                       all threads and the stream, with values and traces
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from make.dlrm_kernels import CLOCK_MHZ, KERNELS, MOST_WARPS, MULTIPROCESSORS, PERIOD_CYCLES, STALLS, Kernel
from make.dlrm_program import CPU_THREADS, ON_DEVICE, Op
from make.hpctoolkit import NVIDIA, Thread, Trace, Values
from make.hpctoolkit.database import NOT_RUNNING

PERIOD_NS = 5_000_000
NODE = 0x5D1_0A7E
CONTEXT, STREAM = 1, 7

_METRICS = {metric.name: i for i, metric in enumerate(NVIDIA)}
_PHASE_STEP_NS = 617_283
_LEAVING_NS = 41_000

Amount = tuple[int, str, int]


def samples_before(thread: int, time: int) -> int:
    """Return the number of a thread's sampling instants before a time, ns; the main thread's first one is at 0."""
    return max(-((_phase(thread) - time) // PERIOD_NS), 0)


def samples_of(op: Op) -> int:
    """Return the number of sampling instants in a stretch of a thread."""
    return samples_before(op.thread, op.start + op.dur) - samples_before(op.thread, op.start)


def taken(kernel: Kernel, dur: int) -> tuple[int, int, int]:
    """Return samples expected, taken and dropped of a launch that lasts `dur` ns."""
    expected = MULTIPROCESSORS * (dur * CLOCK_MHZ // (1_000 * PERIOD_CYCLES))
    got = expected * kernel.sampled // 1_000
    return expected, got, (expected - got) // 16


def _phase(thread: int) -> int:
    return thread * _PHASE_STEP_NS % PERIOD_NS


def threads(ops: Sequence[Op], end: int) -> list[Thread]:
    """Return the CPU's threads, by number, and then the GPU's stream.

    Parameters
    ----------
    ops
        The program's operations.
    end
        When the main thread ends; the others end shortly before.
    """
    amounts: list[Counter[tuple[int, int]]] = [Counter() for _ in range(CPU_THREADS)]
    sampled: set[int] = set()
    for op in ops:
        for context, metric, amount in _measured(op, sampled):
            amounts[op.thread][context, _METRICS[metric]] += amount
    found = []
    for number, sums in enumerate(amounts):
        running = [op for op in ops if op.kind == "cpu" and op.thread == number]
        trace = _sampled(running, number, end - number * _LEAVING_NS)
        found.append(Thread((("NODE", NODE), ("THREAD", number)), _values(sums), trace))
    device = sorted((op for op in ops if op.kind in ON_DEVICE), key=lambda op: op.start)
    stream = (("NODE", NODE), ("GPUCONTEXT", CONTEXT), ("GPUSTREAM", STREAM))
    return [*found, Thread(stream, trace=_streamed(device))]


def _values(sums: Counter[tuple[int, int]]) -> Values:
    rows = [(*key, amount) for key, amount in sums.items() if amount]
    return Values(*np.array(rows, np.int64).reshape(-1, 3).T)


def _measured(op: Op, sampled: set[int]) -> Iterator[Amount]:
    """What an operation adds to which metric of which context; `sampled` are the kernels met before."""
    own = op.mark.context
    if op.kind == "cpu":
        yield own, "CPUTIME (sec)", samples_of(op) * PERIOD_NS
        return
    yield own, "GPUOP (sec)", op.dur
    if op.kind == "kernel":
        yield from _of_kernel(op, KERNELS[op.what])
        if own not in sampled:
            yield own, "GSAMP:PER (cyc)", PERIOD_CYCLES
        sampled.add(own)
        return
    metric = {"copy": "GXCOPY", "memset": "GMSET", "alloc": "GMEM", "sync": "GSYNC"}[op.kind]
    yield own, f"{metric} (sec)", op.dur
    yield own, f"{metric}:COUNT", 1
    if op.kind == "sync":
        yield own, "GSYNC:STR (sec)", op.dur
    else:
        yield own, f"{metric}:{op.what if op.kind == 'copy' else 'DEV'} (B)", op.size


def _of_kernel(op: Op, kernel: Kernel) -> Iterator[Amount]:
    own = op.mark.context
    yield own, "GKER (sec)", op.dur
    yield own, "GKER:COUNT", 1
    yield own, "GKER:BLKS_ACUMU", kernel.blocks
    yield own, "GKER:BLK_THR_ACUMU", kernel.threads
    yield own, "GKER:BLK_SM_ACUMU", kernel.static_bytes + kernel.dynamic_bytes
    yield own, "GKER:THR_REG_ACUMU", kernel.registers
    yield own, "GKER:FGP_ACT_ACUMU", kernel.warps
    yield own, "GKER:FGP_MAX_ACUMU", MOST_WARPS
    yield own, "GKER:STMEM_ACUMU (B)", kernel.static_bytes
    yield own, "GKER:DYMEM_ACUMU (B)", kernel.dynamic_bytes
    expected, got, dropped = taken(kernel, op.dur)
    yield own, "GSAMP:EXP", expected
    yield own, "GSAMP:TOT", got
    yield own, "GSAMP:DRP", dropped
    yield op.samples, "GINS", got * PERIOD_CYCLES
    for reason, share in zip(STALLS, kernel.stalls, strict=True):
        stalled = got * share // 1_000 * PERIOD_CYCLES
        yield op.samples, f"GINS:STL_{reason}", stalled
        yield op.samples, "GINS:STL_ANY", stalled


def _sampled(running: Sequence[Op], thread: int, end: int) -> Trace:
    """A thread's samples, until it ends."""
    elements: list[tuple[int, int]] = []
    for op in running:
        first = samples_before(thread, op.start)
        for number in range(first, first + samples_of(op)):
            at = _phase(thread) + number * PERIOD_NS
            if elements and elements[-1][0] + PERIOD_NS < at:
                elements.append((elements[-1][0] + PERIOD_NS, NOT_RUNNING))
            elements.append((at, op.mark.seen))
    last = min(elements[-1][0] + PERIOD_NS, end) if elements else end
    elements.append((last, NOT_RUNNING))
    return Trace(*np.array(elements, np.int64).T)


def _streamed(device: Sequence[Op]) -> Trace:
    """A stream's operations; nothing is said of the time between two if there is none."""
    elements = []
    for op, following in pairwise([*device, None]):
        if op is not None:
            elements.append((op.start, op.mark.seen))
            if following is None or following.start > op.start + op.dur:
                elements.append((op.start + op.dur, NOT_RUNNING))
    return Trace(*np.array(elements, np.int64).T)
