"""What is true of the simulated DLRM, counted from its operations and not from what was written of them?

Conventions
-----------
Times are ns unless a name says otherwise. Metrics have the names of the database without their unit, in seconds, bytes,
cycles or counts. What the GPU does is kernels, copies and memsets; allocations and synchronisations are calls of the
driver, whose time HPCToolkit adds to GPUOP all the same.

Functions
---------
truth    everything, as JSON can hold it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from make.dlrm_kernels import KERNELS, MOST_WARPS, PERIOD_CYCLES, STALLS
from make.dlrm_program import CPU_THREADS, ENGINE_THREAD, MAIN_THREAD, ON_DEVICE, STEPS, Op
from make.dlrm_sites import ENGINE, MAIN, WORKERS
from make.dlrm_values import CONTEXT, PERIOD_NS, STREAM, samples_of, taken

NS = 1_000_000_000

_ENTRIES = {MAIN_THREAD: MAIN, ENGINE_THREAD: ENGINE}


def truth(ops: Sequence[Op], end: int, order: Sequence[int]) -> dict[str, Any]:
    """Return what is true of the operations.

    Parameters
    ----------
    ops, end
        As `dlrm_program.run` returns them.
    order
        Which thread each profile of the database is of, the stream being the last thread.

    Returns
    -------
    dict
        ``wall_ns``, ``steps``, ``totals`` and ``by_entry`` (metric to value), ``gpu`` (busy time and shares),
        ``kernels`` (by name, the longest in total first), ``copies`` (by direction), ``stalls`` (by reason),
        ``samples``, ``threads`` (in the database's order).
    """
    entries: dict[str, list[Op]] = {MAIN: [], ENGINE: [], WORKERS: []}
    for op in ops:
        entries[_ENTRIES.get(op.thread, WORKERS)].append(op)
    by_entry = {name: _metrics(own) for name, own in entries.items()}
    totals = {metric: sum(values.get(metric, 0) for values in by_entry.values()) for metric in _metrics(ops)}
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
            name: totals[f"GSAMP:{key}"] for name, key in (("taken", "TOT"), ("expected", "EXP"), ("dropped", "DRP"))
        },
        "threads": [{"thread": i + 1, **_thread(ops, number)} for i, number in enumerate(order)],
    }


def _metrics(ops: Iterable[Op]) -> dict[str, int]:
    """Sum of each metric that is not zero; times in ns."""
    sums: dict[str, int] = defaultdict(int)
    contexts = set()
    for op in ops:
        if op.kind == "cpu":
            sums["CPUTIME"] += samples_of(op) * PERIOD_NS
            continue
        name = {"kernel": "GKER", "copy": "GXCOPY", "memset": "GMSET", "alloc": "GMEM", "sync": "GSYNC"}[op.kind]
        part = {"copy": op.what, "memset": "DEV", "alloc": "DEV"}.get(op.kind)
        sums["GPUOP"] += op.dur
        sums[name] += op.dur
        sums[f"{name}:COUNT"] += 1
        if part:
            sums[f"{name}:{part}"] += op.size
        if op.kind == "sync":
            sums["GSYNC:STR"] += op.dur
        if op.kind == "kernel":
            contexts.add(op.mark.context)
            _add_launch(sums, op)
    sums["GSAMP:PER"] = PERIOD_CYCLES * len(contexts)
    return {metric: value for metric, value in sums.items() if value}


def _add_launch(sums: dict[str, int], op: Op) -> None:
    kernel = KERNELS[op.what]
    of_launch = {
        "BLKS": kernel.blocks,
        "BLK_THR": kernel.threads,
        "BLK_SM": kernel.static_bytes + kernel.dynamic_bytes,
        "THR_REG": kernel.registers,
        "FGP_ACT": kernel.warps,
        "FGP_MAX": MOST_WARPS,
        "STMEM": kernel.static_bytes,
        "DYMEM": kernel.dynamic_bytes,
    }
    for name, value in of_launch.items():
        sums[f"GKER:{name}_ACUMU"] += value
    expected, got, dropped = taken(kernel, op.dur)
    for name, value in (("EXP", expected), ("TOT", got), ("DRP", dropped)):
        sums[f"GSAMP:{name}"] += value
    sums["GINS"] += got * PERIOD_CYCLES
    for reason, share in zip(STALLS, kernel.stalls, strict=True):
        sums[f"GINS:STL_{reason}"] += got * share // 1_000 * PERIOD_CYCLES
        sums["GINS:STL_ANY"] += got * share // 1_000 * PERIOD_CYCLES


def _in_units(sums: dict[str, int]) -> dict[str, float]:
    """Times in seconds; those are the metrics that are no part of another, but for one."""
    times = {"CPUTIME", "GPUOP", "GKER", "GXCOPY", "GMSET", "GMEM", "GSYNC", "GSYNC:STR"}
    return {metric: value / NS if metric in times else value for metric, value in sorted(sums.items())}


def _gpu(ops: Sequence[Op], end: int) -> dict[str, float]:
    device = [op for op in ops if op.kind in ON_DEVICE]
    kernels = [op for op in device if op.kind == "kernel"]
    kernel_ns, copy_ns = (sum(op.dur for op in device if op.kind == kind) for kind in ("kernel", "copy"))
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
    rows = [{"name": name, "launches": len(durs), "total_ns": sum(durs)} for name, durs in found.items()]
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
    return {reason: {"instructions": value, "share": value / every} for reason, value in values.items()}


def _thread(ops: Sequence[Op], number: int) -> dict[str, Any]:
    """A CPU thread with what it ran and asked for; the stream with what it did."""
    if number >= CPU_THREADS:
        done = [op for op in ops if op.kind in ON_DEVICE]
        return {"name": f"GPU context {CONTEXT} stream {STREAM}", "kind": "gpu", "operations": len(done)}
    own = [op for op in ops if op.thread == number]
    sampled = sum(samples_of(op) for op in own if op.kind == "cpu")
    return {
        "name": f"thread {number}",
        "kind": "cpu",
        "cpu_samples": sampled,
        "cpu_ns": sampled * PERIOD_NS,
        "launches": sum(op.kind == "kernel" for op in own),
    }
