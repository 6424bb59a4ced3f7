"""The tables of the notebooks, one call each, as in `perfkit.widgets.views`: still of a choice, live of an explorer."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from perfkit import analysis, diagnosis
from perfkit.analysis.intervals import cut
from perfkit.charts.tables import card, searchable, show
from perfkit.format import number, percent
from perfkit.selection import Selection
from perfkit.widgets.asides import follows_later
from perfkit.widgets.live import Part, follows
from perfkit.widgets.needs import some

STEPS = ["rank", "step", "name", "start_ns", "dur_ns", "steady", "how"]
LEDGER = ["rank", "gpu", "phase", "kind", "cause", "owner", "ns", "share_frac"]
METRICS = ["rank", "gpu", "metric", "samples", "mean", "median", "p95", "max"]
STATISTICS = ["mean", "p50", "p95", "max"]
WAITS = ["rank", "start_ns", "dur_ns", "api", "operator", "idle_ns"]
LATENCY = ["name", "api", "count", "api_median_ns", "queue_median_ns", "dur_median_ns"]
OCCUPANCY = [
    "launch",
    "name",
    "theoretical_occupancy_frac",
    "achieved_occupancy_frac",
    "limiter",
    "waves",
    "tail_frac",
]
ACCESS = ["launch", "name", "check", "value", "target", "verdict", "sentence"]
LOSSES = ["launch", "name", "cause", "value", "lost_frac"]
TARGETS = ["launch", "name", "check", "value_frac", "target_frac", "verdict", "detail"]
RULES = ["launch", "rule", "message", "speedup_frac", "scope"]
SHAPES = [
    "name",
    "shapes",
    "count",
    "cpu_self_ns",
    "gpu_self_ns",
    "kernel_count",
    "gpu_share_frac",
]
PHASES = ["rank", "phase", "start_ns", "dur_ns", "repetitions", "kind", "gpu_total_ns", "how"]
PHASES += ["name"]
DOSSIER = ["name", "count", "total_ns", "share_frac", "matched_by", "measured_count", "dur_ns"]
DOSSIER += ["main_stall", "missing"]
RATES = ["name", "dtype", "count", "gpu_ns", "flops", "bytes", "flops_per_s", "bytes_per_s"]
RATES += ["intensity"]
REMOVABLE = ["name", "count", "cpu_total_ns", "gpu_total_ns", "why", "instead"]


@follows
def steps(view: Selection) -> list[Part]:
    """Show the steps that were found; a click on a row leads to it."""
    if view.steps.empty:
        return ["No steps were found: the program names none, and no sequence of kernels repeats."]
    caption = "Steps, as far as they were found; click a row to see it"
    return [searchable(view.steps, columns=STEPS, caption=caption)]


@follows
def phases(view: Selection) -> list[Part]:
    """Show the phases of each rank: start-up, loop, pauses and end."""
    found = diagnosis.repeating.phases(diagnosis.phases.recorded(view))
    # Of several GPUs together: it may be longer than the phase.
    totals = found.rename(columns={"busy_ns": "gpu_total_ns"})
    return [show(totals, columns=PHASES, rows=20, caption="Phases of each rank")]


@follows
def doubts(view: Selection) -> list[Part]:
    """Show why parts of the recording cannot be believed."""
    table = diagnosis.recording.table(view)
    if table.empty:
        return ["perfkit found no doubt about this recording."]
    return [show(table, caption="Doubts about the recording")]


@follows
def ledger(view: Selection) -> list[Part]:
    """Show the lines of the ledger, the longest first."""
    caption = "The ledger: the longest lines first"
    return [searchable(diagnosis.ledger.lines(view), columns=LEDGER, caption=caption)]


@follows
def busy(view: Selection) -> list[Part]:
    """Show how long each GPU works, as the union over its streams."""
    time = analysis.timeline.busy(
        view.kernels, view.copies, window=view.measured, others=view.other_kernels
    )
    return [show(time, caption="Busy time of each GPU: the union over its streams, not a sum")]


@follows
def metrics(view: Selection) -> list[Part]:
    """Show the metrics that were sampled for each device."""
    means = some(diagnosis.sampled(view), view, "SAMPLES", "hardware metrics")
    rows = [_in_units(row) for row in means[means["max"] != 0].to_dict("records")]
    caption = "Hardware metrics, sampled for the whole device"
    return [show(pd.DataFrame(rows, columns=METRICS), caption=caption)]


def _in_units(row: Mapping[Hashable, Any]) -> list[object]:
    """Return a row of `timeline.samples_mean` as METRICS: text in the unit of its metric."""
    name, _, unit = str(row["metric"]).rpartition("_")
    values = [_in_unit(float(row[statistic]), unit) for statistic in STATISTICS]
    return [row["rank"], row["gpu"], name.replace("_", " "), row["count"], *values]


def _in_unit(value: float, unit: str) -> str:
    if unit == "frac":
        return percent(value)
    return f"{number(value / 1e6)} MHz" if unit == "hz" else f"{number(value)} {unit}"


@follows
def waiting_calls(view: Selection) -> list[Part]:
    """Show the calls that wait for the GPU, by name."""
    calls = analysis.host.synchronisations(view.api_calls, window=view.window)
    return [show(calls, rows=15, caption="Calls that wait for the GPU")]


@follows_later
def longest_waits(view: Selection) -> Part:
    """Show each wait for the GPU, the longest first; a click on a row leads to it."""
    waits = analysis.operators.synchronisations(
        view.ops, view.all_kernels, view.copies, view.api_calls, window=view.window
    )
    longest = waits.sort_values("dur_ns", ascending=False, kind="stable")
    caption = "Each wait, the longest first; click a row to see it"
    return searchable(longest, columns=WAITS, caption=caption)


@follows_later
def latency(view: Selection) -> Part:
    """Show how long kernels take from the call that launches them to their start."""
    launches = analysis.host.latency(view.kernels, view.api_calls, window=view.window)
    summary = analysis.host.latency_summary(launches)
    most = summary.sort_values("count", ascending=False, kind="stable")
    return show(most, columns=LATENCY, rows=12, caption="From the call to the kernel")


@follows
def overlap(view: Selection) -> list[Part]:
    """Show how much of the communication other kernels hide; nothing where nothing communicates."""
    if not view.kernels["family"].eq("communication").any():
        return []
    hidden = analysis.communication.overlap(view.kernels, window=view.window)
    return [show(hidden, caption="Communication kernels and what hides them")]


@follows_later
def dossier(view: Selection) -> Part:
    """Show the time of each kernel on the timeline, and what counters say of it."""
    caption = "Time on the timeline, and what was measured"
    return show(_dossier(view), columns=DOSSIER, rows=10, caption=caption)


@follows_later
def longest_kernel(view: Selection) -> Part:
    """Show all that the recordings say about the kernel that takes the most time."""
    return card(_dossier(view), caption="Dossier of the kernel that takes the most time")


def _dossier(view: Selection) -> pd.DataFrame:
    traced = view.framework
    return analysis.dossier.kernels(
        cut(view.kernels, view.window),
        view.launches,
        view.stalls,
        traced.ops,
        view.run.calltree,
        view.run.call_metrics,
        devices=view.devices,
        traced=traced.kernels,
        api_calls=traced.api_calls,
        python_calls=traced.python_calls,
    )


@follows
def main_stalls(view: Selection) -> list[Part]:
    """Show the largest stall of each measured launch."""
    caption = "The largest stall of each launch, what it means, and what usually helps"
    return [show(analysis.warps.main_stall(view.stalls), rows=10, caption=caption)]


@follows
def occupancy(view: Selection) -> list[Part]:
    """Show how full the multiprocessors are in each measured launch, and what limits that."""
    filled = analysis.warps.occupancy(view.launches, view.counters)
    caption = "Occupancy, its limiter, and waves"
    return [show(filled, columns=OCCUPANCY, rows=20, caption=caption)]


@follows
def access(view: Selection) -> list[Part]:
    """Show how well each measured launch reads and writes memory."""
    checks = analysis.access.checks(view.launches, view.counters)
    caption = "Coalescing, bank conflicts and cache hits"
    return [show(checks, columns=ACCESS, rows=20, caption=caption)]


@follows
def losses(view: Selection) -> list[Part]:
    """Show the causes of lost time that counters name."""
    lost = analysis.access.losses(view.launches, view.counters)
    return [show(lost, columns=LOSSES, caption="Causes that counters name")]


@follows
def targets(view: Selection) -> list[Part]:
    """Show each measured launch beside the targets of the guide."""
    checks = analysis.access.target_checks(view.launches, view.counters, view.stalls)
    caption = "Checks against the guide's targets"
    return [show(checks, columns=TARGETS, rows=30, caption=caption)]


@follows
def vendor_rules(view: Selection) -> list[Part]:
    """Show what the rules of Nsight Compute said about the measured launches."""
    caption = "What the vendor's rules said in the report"
    return [show(view.rules, columns=RULES, rows=20, caption=caption)]


@follows_later
def operators_by_shapes(view: Selection) -> Part:
    """Show the time of operators by the shapes of their inputs."""
    time = analysis.operators.summary(
        view.ops, view.kernels, view.api_calls, by=("name", "shapes"), window=view.window
    )
    named = time.assign(name=_named(time))
    return show(named, columns=SHAPES, rows=12, caption="The same by input shapes")


def _named(time: pd.DataFrame) -> pd.Series:
    return time["name"].astype(object).fillna("no operator recorded")


@follows_later
def backward(view: Selection) -> Part:
    """Show the GPU time of operators in the forward pass beside that in the backward pass."""
    pairs = analysis.operators.backward(view.ops, view.kernels, view.api_calls, window=view.window)
    return show(pairs, rows=12, caption="Forward operators and their backward, GPU time")


@follows_later
def small_operators(view: Selection) -> Part:
    """Show the operators that launch many short kernels."""
    small = analysis.operators.many_small(
        view.ops, view.kernels, view.api_calls, steps=view.steps, window=view.window
    )
    return searchable(small, caption="Operators whose kernels last under 10 µs in the median")


@follows_later
def removable(view: Selection) -> Part:
    """Show the operators that cost more than they seem to, and what to use instead."""
    found = analysis.operators.unexpected(
        view.ops, view.kernels, view.copies, view.api_calls, window=view.window
    )
    caption = "Operators that cost more than they seem to"
    return show(found, columns=REMOVABLE, rows=15, caption=caption)


@follows_later
def operator_rates(view: Selection) -> Part:
    """Show the operations and bytes that the shapes of operators make necessary, and the rates."""
    rates = analysis.flops.roofline(view.ops, diagnosis.gpu_time(view))
    longest = rates.sort_values("gpu_ns", ascending=False, kind="stable")
    caption = "Operators with a model: work, rates, FLOP per byte"
    return show(longest, columns=RATES, rows=12, caption=caption)


@follows_later
def fusible(view: Selection) -> Part | None:
    """Show the chains of operators that a fused kernel would spare traffic; nothing without one."""
    chains = analysis.flops.fusible(view.ops, diagnosis.gpu_time(view))
    if chains.empty:
        return None
    return show(chains, rows=12, caption="Traffic that fusing saves at most")


@follows_later
def waits_by_line(view: Selection) -> Part:
    """Show the waits for the GPU by operator and line of the program."""
    waits = analysis.operators.synchronisations(
        view.ops,
        view.all_kernels,
        view.copies,
        view.api_calls,
        view.python_calls,
        window=view.window,
    )
    summary = analysis.operators.synchronisation_summary(waits)
    return searchable(summary, caption="Waits for the GPU, by operator and line")
