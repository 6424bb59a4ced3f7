"""What would HPCToolkit have recorded of a DLRM that is trained on an H100 for 100 steps?

The program is the kind that a published executive summary was made from: PyTorch's DLRM with embedding bags, two MLPs
and their interaction, trained by one process that copies from pageable memory and waits. Its database has what the
public one lacks, CPU time beside GPU metrics, so that every question has an answer. All is invented and derived from
one list of operations in integer ns: call paths, durations, samples and traces agree with each other and with the truth
written beside. The database's description says that it is simulated.

CPU time is sampled every PERIOD_NS of each thread, from a phase of its own on, and a sample is worth that much. Values
of the GPU belong to the thread that asked for the operation; the stream has a trace alone. A trace of a thread has its
samples and, at the first one missed, that it does not run; a stream's has each operation and what follows it. Metrics
have the names of the database without their unit, in seconds, bytes, cycles or counts. Allocations and synchronisations
are calls of the driver, whose time HPCToolkit adds to GPUOP all the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from make import hpctoolkit
from make.dlrm_program import (
    CLOCK_MHZ,
    CPU_THREADS,
    ENGINE,
    ENGINE_THREAD,
    KERNELS,
    MAIN,
    MAIN_THREAD,
    MOST_WARPS,
    MULTIPROCESSORS,
    ON_DEVICE,
    PERIOD_CYCLES,
    STALLS,
    STEPS,
    WORKERS,
    Kernel,
    Op,
    run,
)
from make.hpctoolkit import NVIDIA, Thread, Trace, Values
from make.hpctoolkit.database import NOT_RUNNING
from make.kernels import save

NAME = "dlrm_h100"
DATABASE = "hpctoolkit-dlrm-database"
LABEL = "perfkit simulate dlrm: 100 training steps of an invented DLRM on an H100; no GPU ran"
T0_UNIX_NS = 1_752_580_800_000_000_000  # noon UTC of the day of the executive summary, 15 July 2025


def dlrm_h100(folder: Path, *, seed: int = 0) -> Path:
    """Write the database `hpctoolkit-dlrm-database` and `dlrm_h100.truth.json` into `folder`; return it.

    Files of these names are replaced, once the new ones are complete; others in the folder stay.
    """
    rng = np.random.default_rng(seed)
    ops, sites, end = run(rng)
    crew = threads(ops, end)
    order = rng.permutation(len(crew)).tolist()
    tree = sites.paths.tree()
    database = hpctoolkit.Database(
        tree=sites.paths.tree(rng.permutation(len(tree)) + 1),
        metrics=hpctoolkit.NVIDIA,
        threads=[crew[number] for number in order],
        title="python3.11",
        description=f"SIMULATED {LABEL}",
        t0_unix_ns=T0_UNIX_NS,
    )
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "simulated": LABEL,
        "seed": seed,
        "t0_unix_ns": T0_UNIX_NS,
        **run_truth(ops, end, order),
    }
    hpctoolkit.write(folder / DATABASE, database)
    save(folder / f"{NAME}.truth.json", found)
    return folder


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
    """Return the CPU's threads, by number, and then the GPU's stream."""
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


PER_S = 1_000_000_000

_ENTRIES = {MAIN_THREAD: MAIN, ENGINE_THREAD: ENGINE}


def run_truth(ops: Sequence[Op], end: int, order: Sequence[int]) -> dict[str, Any]:
    """Return what is true of the operations."""
    entries: dict[str, list[Op]] = {MAIN: [], ENGINE: [], WORKERS: []}
    for op in ops:
        entries[_ENTRIES.get(op.thread, WORKERS)].append(op)
    by_entry = {name: _metrics(own) for name, own in entries.items()}
    totals = {
        metric: sum(values.get(metric, 0) for values in by_entry.values())
        for metric in _metrics(ops)
    }
    return {
        "wall_ns": end,
        "steps": STEPS,
        "totals": _in_units(totals),
        "by_entry": {name: _in_units(values) for name, values in by_entry.items()},
        "gpu": _gpu(ops, end),
        "kernels": _kernels(ops),
        "copies": _copies(ops),
        "stalls": _stalls(totals),
        "samples": {
            name: totals[f"GSAMP:{key}"]
            for name, key in (("taken", "TOT"), ("expected", "EXP"), ("dropped", "DRP"))
        },
        "threads": [{"thread": i + 1, **_thread(ops, number)} for i, number in enumerate(order)],
    }


def _metrics(ops: Iterable[Op]) -> dict[str, int]:
    """Sum of each metric that is not zero, by its name without the unit; times in ns."""
    sums: Counter[str] = Counter()
    sampled: set[int] = set()
    for op in ops:
        for _, metric, amount in _measured(op, sampled):
            sums[metric.partition(" ")[0]] += amount
    return {metric: value for metric, value in sums.items() if value}


def _in_units(sums: dict[str, int]) -> dict[str, float]:
    """Times in seconds; those are the metrics that are no part of another, but for one."""
    times = {"CPUTIME", "GPUOP", "GKER", "GXCOPY", "GMSET", "GMEM", "GSYNC", "GSYNC:STR"}
    return {
        metric: value / PER_S if metric in times else value
        for metric, value in sorted(sums.items())
    }


def _gpu(ops: Sequence[Op], end: int) -> dict[str, float]:
    device = [op for op in ops if op.kind in ON_DEVICE]
    kernels = [op for op in device if op.kind == "kernel"]
    kernel_ns, copy_ns = (
        sum(op.dur for op in device if op.kind == kind) for kind in ("kernel", "copy")
    )
    return {
        "launches": len(kernels),
        "kernel_ns": kernel_ns,
        "kernel_busy_ns": _union(kernels),
        "copy_ns": copy_ns,
        "busy_ns": _union(device),
        "busy_share_of_wall": _union(device) / end,
        "copy_share_of_kernels_and_copies": copy_ns / (copy_ns + kernel_ns),
        "mean_kernel_ns": kernel_ns / len(kernels),
    }


def _union(ops: Iterable[Op]) -> int:
    """Time in which at least one runs."""
    total, reached = 0, 0
    for start, last in sorted((op.start, op.start + op.dur) for op in ops):
        total += max(last - max(start, reached), 0)
        reached = max(reached, last)
    return total


def _kernels(ops: Sequence[Op]) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for op in ops:
        if op.kind == "kernel":
            found.setdefault(KERNELS[op.what].name, []).append(op.dur)
    rows = [
        {"name": name, "launches": len(durs), "total_ns": sum(durs)} for name, durs in found.items()
    ]
    return sorted(rows, key=lambda row: -int(row["total_ns"]))


def _copies(ops: Sequence[Op]) -> dict[str, dict[str, int]]:
    copies = [op for op in ops if op.kind == "copy"]
    return {
        direction: {
            "count": sum(op.what == direction for op in copies),
            "bytes": sum(op.size for op in copies if op.what == direction),
            "total_ns": sum(op.dur for op in copies if op.what == direction),
        }
        for direction in sorted({op.what for op in copies})
    }


def _stalls(totals: dict[str, int]) -> dict[str, dict[str, float]]:
    every = totals["GINS:STL_ANY"]
    values = {reason.lower(): totals[f"GINS:STL_{reason}"] for reason in STALLS}
    return {
        reason: {"instructions": value, "share": value / every} for reason, value in values.items()
    }


def _thread(ops: Sequence[Op], number: int) -> dict[str, Any]:
    """A CPU thread with what it ran and asked for; the stream with what it did."""
    if number >= CPU_THREADS:
        done = [op for op in ops if op.kind in ON_DEVICE]
        return {
            "name": f"GPU context {CONTEXT} stream {STREAM}",
            "kind": "gpu",
            "operations": len(done),
        }
    own = [op for op in ops if op.thread == number]
    sampled = sum(samples_of(op) for op in own if op.kind == "cpu")
    return {
        "name": f"thread {number}",
        "kind": "cpu",
        "cpu_samples": sampled,
        "cpu_ns": sampled * PERIOD_NS,
        "launches": sum(op.kind == "kernel" for op in own),
    }
