"""Figures of a call-path profile (HPCToolkit): what CPU and GPU did, summed over the whole run.

Conventions
-----------
A total is the sum over the entry points of the inclusive values at their roots: every thread, each kernel once.
Metrics hold no times of day: a window does not apply to them. CPU time is the sum over threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis import calltree
from perfkit.diagnosis.finding import Figure
from perfkit.selection import Selection

SOURCE = "calltree.gpu_summary"
TOTALS = {
    "host_ns": ("CPU time", "sampled CPU time, summed over all threads"),
    "operation_ns": ("GPU operations", "time of kernels, copies and all other GPU operations, summed over streams"),
    "kernel_ns": ("Kernel time", "sum of kernel durations"),
    "copy_ns": ("Copy time", "sum of the durations of explicit copies"),
    "synchronisation_ns": ("Synchronisation time", "time in GPU synchronisations"),
    "launch_count": ("Kernel launches", "kernel executions of all threads"),
    "kernel_mean_ns": ("Mean kernel", "kernel time over launches"),
    "copy_count": ("Copies", "explicit copies of all threads"),
    "h2d_bytes": ("H2D volume", "bytes copied from host to device"),
    "d2h_bytes": ("D2H volume", "bytes copied from device to host"),
    "d2d_bytes": ("D2D volume", "bytes copied inside the device"),
    "p2p_bytes": ("P2P volume", "bytes copied between devices"),
    "copy_frac": ("Copies in GPU time", "copy time over kernel time plus copy time"),
    "coverage_frac": ("Samples taken", "instruction samples taken over samples expected"),
}
UNITS = {"ns": "ns", "bytes": "bytes", "frac": "1", "count": "count"}


def figures(view: Selection) -> Iterator[Figure]:
    """Yield the figures of a run's call paths; what was not measured is absent."""
    run = view.run
    if run.calltree.empty:
        return
    summary = calltree.gpu_summary(run.calltree, run.call_metrics)
    total = _over_ranks(summary)
    for column, (label, definition) in TOTALS.items():
        if pd.notna(total[column]):
            unit = UNITS[column.rpartition("_")[2]]
            yield Figure(f"paths_{column}", label, float(total[column]), unit, definition, SOURCE)
    yield from _main_thread(view)
    yield from _stall(view)
    yield from _against_wall(view, summary, total)


def _over_ranks(summary: pd.DataFrame) -> pd.Series:
    """Return the sums over the ranks, and the quotients of the sums."""
    total = summary.drop(columns="rank").sum(min_count=1)
    total["kernel_mean_ns"] = total["kernel_ns"] / total["launch_count"]
    total["copy_frac"] = total["copy_ns"] / (total["kernel_ns"] + total["copy_ns"])
    total["coverage_frac"] = total["sample_count"] / total["expected_sample_count"]
    return total


def _main_thread(view: Selection) -> Iterator[Figure]:
    parts = calltree.gpu_summary(view.run.calltree, view.run.call_metrics, by="entry").set_index("entry")
    for column, label in (("kernel_ns", "Kernel time"), ("host_ns", "CPU time")):
        total = parts[column].sum()
        if total > 0 and "main thread" in parts.index:
            share = float(parts[column].fillna(0.0)["main thread"] / total)
            definition = "what the main thread caused over what all threads caused"
            text = f"{label} of the main thread"
            yield Figure(f"paths_main_thread_{column.removesuffix('_ns')}_frac", text, share, "1", definition, SOURCE)


def _stall(view: Selection) -> Iterator[Figure]:
    stalls = view.run.stalls
    sums = stalls[stalls["node"] >= 0].groupby("reason", observed=True)["value"].sum()
    if sums.sum() > 0:
        label = f"Main stall: {sums.idxmax()}"
        definition = "share of stalled samples, not of time, over all kernels"
        yield Figure("paths_main_stall_frac", label, float(sums.max() / sums.sum()), "1", definition, "STALLS")


def _against_wall(view: Selection, summary: pd.DataFrame, total: pd.Series) -> Iterator[Figure]:
    """Yield what needs the length of the run: it is in the trace only."""
    wall = wall_ns(view)
    if wall is None:
        return
    yield Figure("paths_wall_ns", "Wall time", wall, "ns", "first to last sample of the trace, all threads", "TRACE")
    run = view.run
    if not total["operation_ns"] > 0:
        return
    used = calltree.utilisation(run.calltree, run.call_metrics, run.trace, run.threads, wall_ns=wall)
    gpu_time, gpus = float(used["denominator_ns"].sum()), int(used["gpus"].sum())
    source, counted = "calltree.utilisation", "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    definition = f"time in which a kernel, copy or memset ran over wall time of {counted}; at most this"
    busy = float(used["high_ns"].sum() / gpu_time)
    yield Figure("paths_gpu_busy_frac", "GPU utilisation (time)", busy, "1", definition, source)
    share = float(total["kernel_ns"] / gpu_time)
    definition = f"sum of kernel durations over wall time of {counted}"
    yield Figure("paths_kernel_wall_frac", "Kernels in wall time", share, "1", definition, source)
    cost = calltree.launch_cost(summary, wall_ns=wall).sum(numeric_only=True)
    for end, per in (("low", 5), ("high", 10)):
        definition = f"launches times {per} µs on the host over wall time; an estimate, launches run beside kernels"
        label = f"Launches at {per} µs each"
        yield Figure(f"paths_launch_{end}_frac", label, float(cost[f"{end}_frac"]), "1", definition, SOURCE)


def wall_ns(view: Selection) -> int | None:
    """Return the length of the trace of the call-path profile, ns; None where none was recorded."""
    capture = view.run.capture
    lasted = capture.loc[capture["tool"] == "HPCToolkit", "dur_ns"]
    return int(lasted.max()) if len(lasted) and lasted.max() > 0 else None


def metric(view: Selection) -> str:
    """Return the metric that says where the time of the GPU went, or else that of the CPU; empty where neither."""
    recorded = set(view.run.call_metrics["metric"].astype(str))
    return "GPUOP" if "GPUOP" in recorded else calltree.host_metric(view.run.call_metrics)
