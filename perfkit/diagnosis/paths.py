"""Figures and findings of a call-path profile (HPCToolkit): what CPU and GPU did, summed over the whole run.

A total is the sum over the entry points of the inclusive values at their roots: every thread, each kernel once. Metrics
hold no times of day: a window does not apply to them. CPU time is the sum over threads.

Thresholds: a GPU busy for less than 0.7 of the wall time is idle too often, copies above 0.1 and a stall above 0.3 of
their whole are worth a look, and a kernel under 10 µs is shorter than what launching it can cost (conventions; the cost
of a launch is 5 to 10 µs). Gains refer to the wall time where the trace tells it: what happens on a GPU that is idle
can gain no more than the GPU's share of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from perfkit.analysis import calltree
from perfkit.analysis.warps import ISSUING, stall_words
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.diagnosis.rules import tell
from perfkit.format import percent, printable
from perfkit.selection import Selection

BUSY, NOTABLE, SEVERE, SHORT_NS = 0.7, 0.1, 0.3, 10_000
NO_WALL = "the length of the run was not recorded, so the gain of the whole program is unknown"
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
    total = summary.drop(columns="rank").sum(min_count=1)  # over the ranks, and the quotients of the sums
    total["kernel_mean_ns"] = total["kernel_ns"] / total["launch_count"]
    total["copy_frac"] = total["copy_ns"] / (total["kernel_ns"] + total["copy_ns"])
    total["coverage_frac"] = total["sample_count"] / total["expected_sample_count"]
    for column, (label, definition) in TOTALS.items():
        if pd.notna(total[column]):
            unit = UNITS[column.rpartition("_")[2]]
            yield Figure(f"paths_{column}", label, float(total[column]), unit, definition, SOURCE)
    yield from _main_thread(view)
    yield from _stall(view)
    yield from _against_wall(view, summary, total)


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
    waiting = stalls[(stalls["node"] >= 0) & ~stalls["reason"].isin(list(ISSUING))]
    sums = waiting.groupby("reason", observed=True)["value"].sum()
    if sums.sum() > 0:
        label = f"Main stall: {sums.idxmax()}"
        definition = (
            "share of stalled samples, not of time, over all kernels; hidden stalls, which cost nothing, left out"
        )
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


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the figures of a run's call paths show, rule by rule."""
    if view.run.calltree.empty:
        return
    yield from _idle_gpu(known)
    yield from _copies(known)
    yield from _main_stall(known)
    yield from _launches(known)
    yield from _host(view, known)


def _idle_gpu(known: dict[str, Figure]) -> Iterator[Finding]:
    busy = known.get("paths_gpu_busy_frac")
    if busy is None or busy.value >= BUSY:
        return
    title = f"The GPU works for {busy.text} of the wall time"
    text = f"{known['paths_operation_ns'].text} of GPU operations in {known['paths_wall_ns'].text}: {busy.definition}."
    reason = "at most all time without GPU work disappears; this includes every other gain of the host"
    gain = removing(1 - busy.value, reason)
    severity = "high" if 1 - busy.value >= SEVERE else "medium"
    evidence = (busy, known["paths_operation_ns"], known["paths_wall_ns"])
    yield tell("paths_gpu_idle", title, severity, text, evidence, gain)


def _copies(known: dict[str, Figure]) -> Iterator[Finding]:
    share = known.get("paths_copy_frac")
    if share is None or share.value < NOTABLE:
        return
    evidence = tuple(known[f"paths_{i}"] for i in ("copy_frac", "copy_ns", "h2d_bytes") if f"paths_{i}" in known)
    title = f"Copies take {share.text} of the GPU's kernel and copy time"
    text = f"{known['paths_copy_ns'].text} in {known['paths_copy_count'].text} copies."
    shorter = min(("paths_copy_ns", "paths_kernel_ns"), key=lambda id: known[id].value if id in known else math.inf)
    what = "copies" if shorter == "paths_copy_ns" else "as much of the copies as kernels last"
    gain = _of_wall(known, shorter, f"at most {what} disappear behind computation")
    yield tell("paths_copies", title, _severity(share, gain), text, evidence, gain)


def _main_stall(known: dict[str, Figure]) -> Iterator[Finding]:
    share = known.get("paths_main_stall_frac")
    if share is None or share.value < SEVERE:
        return
    reason = share.label.rpartition(" ")[2]
    said = stall_words.get(reason)
    title = f"Warps that wait do so for {reason} in {share.text} of their samples"
    text = said.means if said else "The reason is not one perfkit has words for."
    helps = (said.helps if said else "Look at the kernel's source lines with the most samples.").rstrip(".")
    gain = _of_wall(
        known, "paths_kernel_ns", "at most the time of all kernels, since a share of samples is no share of time"
    )
    yield tell("paths_stall", title, _severity(share, gain), text, (share,), gain, first=helps)


def _launches(known: dict[str, Figure]) -> Iterator[Finding]:
    mean = known.get("paths_kernel_mean_ns")
    if mean is None or mean.value >= SHORT_NS:
        return
    cost = known.get("paths_launch_high_frac")
    evidence = tuple(f for f in (mean, known["paths_launch_count"], known.get("paths_launch_low_frac"), cost) if f)
    title = f"Kernels last {mean.text} in the mean, no longer than launching one can cost"
    text = f"{known['paths_launch_count'].text} launches. " + (
        f"At 5 to 10 µs each they cost the host at most {cost.text} of the wall time." if cost else f"{NO_WALL}."
    )
    reason = "at most the host's time in launches disappears; they overlap with kernels"
    gain = removing(min(cost.value, 1.0), reason) if cost else Gain(1.0, float("inf"), NO_WALL)
    severity = "medium" if cost and cost.value >= NOTABLE else "low"
    yield tell("paths_launches", title, severity, text, evidence, gain)


def _host(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Name the Python function in which the host spends at least half of its main thread's CPU time."""
    total = known.get("paths_host_ns")
    if total is None:
        return
    tree, metrics = view.run.calltree, view.run.call_metrics
    entry = "main thread" if tree["entry"].eq("main thread").any() else ""
    path = calltree.hot_path(tree, metrics, metric=calltree.host_metric(metrics), entry=entry)
    frames = path[path["module"].eq("<logical python>") & path["kind"].eq("function")]
    if frames.empty:
        return
    deepest = frames.iloc[-1]
    share = float(deepest["share_frac"])
    definition = "CPU time below this function over that of its entry point"
    figure = Figure("paths_host_frac", "Hottest Python call path", share, "1", definition, "calltree.hot_path")
    who = "The main thread" if entry else "The program"
    title = f"{who} spends {figure.text} of its CPU time below {printable(deepest['name'], 80)}"
    text = "On the way from the entry point each caller gives at least half of its own time to the next."
    wall, of_main = known.get("paths_wall_ns"), known.get("paths_main_thread_host_frac")
    gain = Gain(1.0, math.inf, NO_WALL)
    if wall is not None and (of_main is not None or not entry):
        cpu_ns = share * total.value * (of_main.value if of_main and entry else 1.0)
        reason = "at most this CPU time disappears from the wall time, if it was on the critical path"
        gain = removing(min(cpu_ns / wall.value, 1.0), reason)
    severity = "medium" if share >= SEVERE else "low"
    evidence = (figure, total)
    yield tell("paths_host", title, severity, text, evidence, replace(gain, share=None))


def _of_wall(known: dict[str, Figure], figure: str, reason: str) -> Gain:
    """Return the gain of removing a GPU time from the wall time, or from the GPU's time where that is all there is."""
    wall, part = known.get("paths_wall_ns"), known[figure].value
    if wall is None:
        share = part / known["paths_operation_ns"].value
        return replace(removing(share, f"of the GPU's time: {reason}; {NO_WALL}"), share=None)
    share = min(part / wall.value, 1.0)
    return removing(share, f"{reason}: {percent(share)} of the wall time")


def _severity(share: Figure, gain: Gain) -> str:
    """Return how much it matters: large shares of a GPU that hardly works gain little for the run."""
    if gain.share is not None and gain.share < NOTABLE:
        return "low"
    return "high" if share.value >= SEVERE else "medium"
