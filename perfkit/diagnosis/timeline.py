"""The figures of a run at the level of the system: where its GPU time went.

Without a window a GPU's span lasts from its first to its last operation. Where graphs were launched whose operations
were not recorded, how the span splits up is not known: neither busy nor idle time is a figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis import causes as analysis_causes
from perfkit.analysis import communication, gaps, host, memory, steps, timeline
from perfkit.analysis.causes import LACKING_LIMIT_FRAC
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.finding import Figure, kept
from perfkit.format import percent
from perfkit.run import Recorded, Run
from perfkit.schema import OVERLAP_NS, overrunning
from perfkit.selection import Selection, covers
from perfkit.tables import KERNELS

PARTS = {
    "computation": ("GPU computing", "union of compute kernels and memsets"),
    "exposed_communication": ("Exposed communication", "communication kernels while nothing computes"),
    "exposed_copy": ("Exposed copies", "copies while no kernel runs"),
    "other_kernels": ("Kernels not selected", "kernels outside the selection while none of the selected runs"),
    "idle": ("GPU idle", "no kernel, copy or memset on the GPU"),
}
INSIDE_LIMIT_FRAC = 0.1  # of the span; idle time inside graphs from which on nodes must be missing (convention)
METRICS = {
    "sm_active_frac": (
        "SM active",
        "mean over samples of the share of cycles an SM has a resident warp, mean over SMs",
    ),
    "tensor_active_frac": ("Tensor pipe active", "mean over samples of the share of cycles a tensor pipe works"),
    "dram_read_frac": ("DRAM read", "mean over samples of read bandwidth over its peak"),
    "dram_write_frac": ("DRAM write", "mean over samples of write bandwidth over its peak"),
}
# How the source of a figure begins that rests on how long kernels ran.
KERNEL_TIMES = (
    *("KERNELS", "communication.overlap", "communication.plateau", "communication.summary", "gaps.", "operators."),
    *("kernels.", "flops.", "dossier.", "host."),
)
COUNTED = ("count", "bytes", "FLOP")  # units of figures that no duration enters


@kept
def impossible_durations(view: Selection) -> str:
    """Return why the times of kernels cannot be relied upon, empty if they can: some end long after the next began."""
    every = view.all_kernels
    late = cut(every[overrunning(every, KERNELS.serial)], view.window)
    if late.empty:
        return ""
    share = late["dur_ns"].sum() / cut(every, view.window)["dur_ns"].sum()
    return (
        f"{len(late):,} kernels, with {percent(share)} of the kernel time, end more than {OVERLAP_NS / 1000:g} µs "
        "after the next kernel of their stream began, which cannot be"
    )


def doubted(view: Selection, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return figures; where the times of kernels cannot be relied upon, each that rests on them has a doubt."""
    why = impossible_durations(view)
    if not why:
        return dict(figures)
    of_times = {id for id, f in figures.items() if f.source.startswith(KERNEL_TIMES) and f.unit not in COUNTED}
    return {id: replace(f, doubt=why) if id in of_times else f for id, f in figures.items()}


def system_figures(view: Selection) -> dict[str, Figure]:
    """Return the system-level figures of a selection by their id; what it cannot answer is absent."""
    found, span = busy(view), span_ns(view)
    made: list[Figure] = []
    if span:
        source, of = "KERNELS, COPIES; timeline.busy", "window, or first to last operation; summed over GPUs"
        made.append(Figure("gpu_count", "GPUs seen", len(found), "count", "GPUs with at least one operation", source))
        made.append(Figure("span_ns", "Span", span, "ns", of, source))
    if span and not unrecorded(view):
        for part, label, of in (
            ("kernel", "Kernels running", "union of kernels over"),
            ("device", "GPU busy", "union of kernels, copies and memsets over"),
        ):
            value = int(found[f"{part}_busy_ns"].sum())
            made.append(Figure(f"{part}_busy_ns", f"{label} (time)", value, "ns", f"{of} all streams", source))
            made.append(Figure(f"{part}_busy_frac", label, value / span, "1", f"{of} the span", source))
        made += [*_parts(view, span), *_idle(view, span)]
    made += [*_kernels(view), *_copies(view)]
    if len(steady := steps.steady(detected(view))):
        source, median = f"steps.detect ({steady['how'].iloc[0]})", float(steady["dur_ns"].median())
        made.append(Figure("step_count", "Steady steps", len(steady), "count", "iterations, warm-up left out", source))
        definition = "median duration of the steady steps"
        made.append(Figure("step_median_ns", "Median step", median, "ns", definition, source))
    made += _samples(view)
    return {figure.id: figure for figure in made}


@kept
def busy(view: Selection) -> pd.DataFrame:
    """Return `timeline.busy` of a selection."""
    return timeline.busy(view.kernels, view.copies, window=view.window, others=view.other_kernels)


def span_ns(view: Selection) -> int:
    """Return the time that is looked at, ns: the window, or from the first to the last operation, over all GPUs."""
    return int(busy(view)["span_ns"].sum())


@kept
def breakdown(view: Selection) -> pd.DataFrame:
    """Return `timeline.breakdown` of a selection."""
    return timeline.breakdown(view.kernels, view.copies, window=view.window, others=view.other_kernels)


def timelines(run: Run) -> list[Recorded]:
    """Return from when to when operations of GPUs were recorded."""
    traced = {p.path.name for p in run.profiles if {"KERNELS", "COPIES"} & set(p.loaders)}
    return [span for span in run.recorded if span.name in traced]


@kept
def unrecorded(view: Selection) -> str:
    """Return why it is not known when the GPU worked, empty if it is.

    The timeline does not cover the window, or operations of graphs were not recorded. A graph launch does not say on
    which GPU: all GPUs of the run are looked at, whichever were chosen.
    """
    run = view.run
    if view.window is not None and not covers(timelines(run), view.window):
        return "no timeline of the GPU was recorded during all of the window"
    found = host.recorded(run.kernels, run.copies, run.api_calls, window=view.window)
    launched, empty, idle = (int(found[column].sum()) for column in ("launch_count", "empty_count", "idle_ns"))
    if empty > LACKING_LIMIT_FRAC * launched:
        return f"{empty:,} of {launched:,} graph launches have no operation in the recording"
    span = int(timeline.busy(run.kernels, run.copies, window=view.window)["span_ns"].sum()) if idle else 0
    if idle > INSIDE_LIMIT_FRAC * span:
        return f"graphs were recorded in part: inside them nothing runs for {percent(idle / span)} of the time"
    return ""


def _parts(view: Selection, span: int) -> Iterator[Figure]:
    parts = breakdown(view)
    for name, (label, definition) in PARTS.items():
        value = int(parts[f"{name}_ns"].sum())
        if value or name != "other_kernels":
            source = "KERNELS, COPIES; timeline.breakdown"
            yield Figure(f"{name}_ns", f"{label} (time)", value, "ns", definition, source)
            yield Figure(f"{name}_frac", label, value / span, "1", f"{definition}, over the span", source)
    overlap = communication.overlap(view.kernels, window=view.window)
    total = int(overlap["communication_ns"].sum())
    if total:
        hidden = int(overlap["overlapped_ns"].sum()) / total
        definition = "communication time under computing kernels over all communication time"
        yield Figure("overlap_frac", "Communication overlapped", hidden, "1", definition, "communication.overlap")


def _kernels(view: Selection) -> Iterator[Figure]:
    kernels = cut(view.kernels, view.window)
    if not len(kernels):
        return
    source = "KERNELS"
    duration = kernels["dur_ns"]
    yield Figure("kernel_count", "Kernel launches", len(kernels), "count", "kernel executions in the window", source)
    yield Figure("kernel_sum_ns", "Kernel time", int(duration.sum()), "ns", "sum of kernel durations", source)
    yield Figure("kernel_mean_ns", "Mean kernel", float(duration.mean()), "ns", "kernel time over launches", source)
    yield Figure("kernel_median_ns", "Median kernel", float(duration.median()), "ns", "median kernel duration", source)
    short = float((duration < 10_000).mean())
    definition = "share of launches shorter than 10 µs, about what launching one costs"
    yield Figure("short_kernel_frac", "Kernels under 10 µs", short, "1", definition, source)


@kept
def detected(view: Selection) -> pd.DataFrame:
    """Return `steps.detect` of a selection."""
    return steps.detect(view.ranges, view.all_kernels, window=view.window)


def _copies(view: Selection) -> Iterator[Figure]:
    moved = memory.copied(view.copies, by=("direction",), window=view.window).set_index("direction")
    for direction in moved.index.intersection(["H2D", "D2H", "P2P"]):
        row, name, source = moved.loc[direction], str(direction).lower(), "COPIES; memory.copied"
        yield Figure(f"{name}_count", f"{direction} copies", int(row["count"]), "count", "copies in the window", source)
        yield Figure(f"{name}_bytes", f"{direction} volume", int(row["bytes"]), "bytes", "bytes copied", source)
        yield Figure(f"{name}_ns", f"{direction} time", int(row["total_ns"]), "ns", "sum of copy durations", source)
        if np.isfinite(row["bytes_per_s"]):
            definition = "bytes over copy time, copies without duration left out"
            rate = float(row["bytes_per_s"])
            yield Figure(f"{name}_bytes_per_s", f"{direction} bandwidth", rate, "bytes/s", definition, source)


def _idle(view: Selection, span: int) -> Iterator[Figure]:
    found = idle_gaps(view)
    if found is None:
        return
    for cause, total in idle_parts(found).sum().items():
        label = f"Idle: {str(cause).replace('_', ' ')}"
        definition = (
            "idle time with this cause, by what the thread did that launched the end of each gap, moment by moment, "
            "over the span"
        )
        yield Figure(f"idle_{cause}_frac", label, float(total / span), "1", definition, "gaps.idle_gaps")


@kept
def idle_gaps(view: Selection) -> pd.DataFrame | None:
    """Return `gaps.idle_gaps` of a selection; None where the causes cannot be told."""
    operations = (view.all_kernels, view.copies, view.api_calls)
    if not analysis_causes.determinable(*operations).yes:
        return None
    return gaps.idle_gaps(*operations, window=view.window, ranges=view.ranges, os_calls=view.os_calls)


def idle_parts(found: pd.DataFrame) -> pd.DataFrame:
    """Return what each cause has of each gap, ns: a column per detail of a wait for the host, and per other cause."""
    parts = found[list(analysis_causes.PARTS)].rename(columns=lambda name: name.removesuffix("_ns"))
    whole = {cause: found["dur_ns"].where(found["cause"].eq(cause), 0) for cause in ("unattributed", "edge")}
    return parts.assign(**whole)


def sampled(view: Selection) -> pd.DataFrame:
    """Return `timeline.samples_mean` over the window, or over the time from the first to the last operation.

    The other figures speak of that time too; readings before the program used the GPU would dilute it.
    """
    window = view.window
    if window is None and len(found := busy(view)):
        window = int(found["start_ns"].min()), int((found["start_ns"] + found["span_ns"]).max()) + 1
    return timeline.samples_mean(view.samples, window=window)


def _samples(view: Selection) -> Iterator[Figure]:
    means = sampled(view)
    for metric, (label, definition) in METRICS.items():
        rows = means[means["metric"] == metric]
        if len(rows):
            value = float((rows["mean"] * rows["count"]).sum() / rows["count"].sum())
            yield Figure(
                f"sample_{metric}", f"{label} (sampled)", value, "1", definition, "SAMPLES; timeline.samples_mean"
            )
