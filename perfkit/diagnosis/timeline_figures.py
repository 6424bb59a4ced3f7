"""The figures of a run at the level of the system: where its GPU time went.

Over several GPUs a time is their sum and a share their mean; the definition says from which to
which the GPUs' shares reach. Where graphs were launched whose operations were not recorded, how the
span splits up is not known: neither busy nor idle time is a figure.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfkit.analysis import (
    communication,
    completeness,
    memory,
    steps,
)
from perfkit.analysis.intervals import cut
from perfkit.diagnosis import phases, recording
from perfkit.diagnosis.doubt import spans
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.timeline import (
    ahead_ns,
    among,
    breakdown,
    busy,
    detected,
    idle_gaps,
    idle_of_gpus,
    idle_shares,
    sampled,
    span_ns,
    summed,
    unrecorded,
    without_pauses,
)
from perfkit.diagnosis.words import words
from perfkit.format import duration
from perfkit.names.parts import IDLE
from perfkit.selection import Selection

PARTS = words("parts")
METRICS = words("sampled")


def system_figures(view: Selection) -> dict[str, Figure]:
    """Return the system-level figures of a selection by their id.

    What it cannot answer is absent.
    """
    found = busy(view)
    span = span_ns(view)
    made: list[Figure] = []
    if span:
        source = "KERNELS, COPIES; timeline.busy"
        of = _measured(view, found)
        made.append(
            Figure(
                "gpu_count",
                "GPUs seen",
                len(found),
                "count",
                "GPUs with at least one operation",
                source,
            )
        )
        whole = _judged_ns(view, found)
        made.append(Figure("span_ns", "Span", int(whole.max()), "ns", of, source))
        made += _unknown(view, whole)
    if span and not unrecorded(view):
        for part, label, of in (
            ("kernel", "Kernels running", "during which a kernel ran on any stream"),
            ("device", "GPU busy", "during which a kernel, copy or memset ran on any stream"),
        ):
            value = int(found[f"{part}_busy_ns"].sum())
            several = f"time {of}{summed(found)}"
            made.append(Figure(f"{part}_busy_ns", f"{label} (time)", value, "ns", several, source))
            several = (
                f"share of {_whole(view, found)} {of}{among(found, found[f'{part}_busy_frac'])}"
            )
            made.append(Figure(f"{part}_busy_frac", label, value / span, "1", several, source))
        made += [*_parts(view, span), *_idle(view, span)]
    made += [*_kernels(view), *_copies(view)]
    if len(steady := steps.steady(detected(view))):
        source = f"steps.detect ({steady['how'].iloc[0]})"
        made.append(
            Figure(
                "step_count",
                "Steady steps",
                steps.count(steady),
                "count",
                "iterations without warm-up; what several ranks do together is one",
                source,
            )
        )
        made.append(Figure("step_median_ns", "Median step", *_step(view, steady), source))
    made += _samples(view)
    return {figure.id: figure for figure in made}


def _measured(view: Selection, found: pd.DataFrame) -> str:
    """Return over which time the GPUs are measured, as a definition."""
    of = "window, or from the first to the last operation of a rank's GPUs"
    if view.window is not None:
        return of
    if len(found["rank"].unique()) > 1:
        if view.run.is_on_one_clock:
            of = (
                "from the first to the last operation of all ranks, of each rank the part that it "
                "recorded"
            )
        else:
            of += "; the ranks have no common clock, so perfkit measures each over its own time"
    if view.stepped:
        of += "; as long as the marked steps, because they last longer"
    return of


def _judged_ns(view: Selection, found: pd.DataFrame) -> pd.Series:
    """Return how long each GPU is looked at, ns, in the order of `busy`: without pauses that happen once."""
    once = completeness.within(phases.pauses(view), spans(view))
    paused = once.groupby(["rank", "gpu"])["dur_ns"].sum()
    of_gpu = paused.reindex(
        pd.MultiIndex.from_frame(found[["rank", "gpu"]]), fill_value=0
    ).to_numpy()
    judged: pd.Series = found["end_ns"] - found["start_ns"] - of_gpu
    return judged


def _unknown(view: Selection, whole: pd.Series) -> Iterator[Figure]:
    """Yield the share of the GPUs' judged time (`whole`, ns) that is unknown, where some of it is."""
    lost = completeness.length_ns(recording.unknown(view))
    if lost:
        definition = "share of the span of which the recording does not tell whether the GPU worked"
        source = "KERNELS, COPIES; timeline.busy"
        yield Figure(
            "unknown_frac", "Time unknown", lost / int(whole.sum()), "1", definition, source
        )


def _whole(view: Selection, found: pd.DataFrame) -> str:
    """Return what shares are shares of: the span, or what is known of it, or what is left without pauses."""
    if not found["unknown_ns"].any():
        return "the span"
    is_known = recording.unknown(view).empty
    return "the span without its pauses" if is_known else "the known time of the span"


def _step(view: Selection, steady: pd.DataFrame) -> tuple[float, str, str]:
    """Return the median steady step of the last phase, unit and definition.

    The GPU's step where the CPU runs ahead.
    """
    steady = steady.assign(dur_ns=without_pauses(view, steady, steady["dur_ns"]))
    phase = steps.last_phase(steady)
    median = float(phase["dur_ns"].median())
    definition = "median duration of the steady steps"
    if len(phase) < len(steady):
        earlier = steady.loc[~steady["start_ns"].isin(phase["start_ns"]), "dur_ns"].quantile(
            [0.1, 0.9]
        )
        definition = (
            f"median duration of the last {steps.count(phase):,} of {steps.count(steady):,} steady steps; "
            "the steps before take "
        )
        definition += (
            f"{' to '.join(dict.fromkeys(map(duration, earlier)))}: the program changes its work"
        )
    of_gpu = ahead_ns(view, phase)
    if of_gpu > median:
        definition += ", on the GPU from the first kernel of a step to the first of the next; "
        definition += f"the CPU runs ahead, and its own step takes {duration(median)}"
        median = of_gpu
    return median, "ns", definition


def _parts(view: Selection, span: int) -> Iterator[Figure]:
    parts = breakdown(view)
    recorded = {"other_kernels": len(view.other_kernels), "exposed_copy": len(view.run.copies)}
    for name, (label, definition) in PARTS.items():
        value = int(parts[f"{name}_ns"].sum())
        if recorded.get(name, 1):
            source = "KERNELS, COPIES; timeline.breakdown"
            several = f"time {definition}{summed(parts)}"
            yield Figure(f"{name}_ns", f"{label} (time)", value, "ns", several, source)
            shares = parts[f"{name}_ns"] / parts["span_ns"]
            several = f"share of {_whole(view, busy(view))} {definition}{among(parts, shares)}"
            yield Figure(f"{name}_frac", label, value / span, "1", several, source)
    overlap = communication.overlap(view.kernels, window=view.window)
    total = int(overlap["communication_ns"].sum())
    if total:
        hidden = int(overlap["overlapped_ns"].sum()) / total
        yield Figure(
            "overlap_frac",
            "Communication overlapped",
            hidden,
            "1",
            "share of the communication time during which compute kernels ran too",
            "communication.overlap",
        )


def _kernels(view: Selection) -> Iterator[Figure]:
    kernels = cut(view.kernels, view.window)
    if not len(kernels):
        return
    lasted = kernels["dur_ns"]
    short = "share of kernels that ran for less than 10 µs; one launch costs about as much"
    for id, label, value, unit, definition in (
        (
            "kernel_count",
            "Kernel launches",
            len(kernels),
            "count",
            "number of kernel executions in the window",
        ),
        ("kernel_sum_ns", "Kernel time", int(lasted.sum()), "ns", "sum of kernel durations"),
        ("kernel_mean_ns", "Mean kernel", float(lasted.mean()), "ns", "kernel time per launch"),
        (
            "kernel_median_ns",
            "Median kernel",
            float(lasted.median()),
            "ns",
            "median kernel duration",
        ),
        ("short_kernel_frac", "Kernels under 10 µs", float((lasted < 10_000).mean()), "1", short),
    ):
        yield Figure(id, label, value, unit, definition, "KERNELS")


def _copies(view: Selection) -> Iterator[Figure]:
    moved = memory.copied(view.copies, by=("direction",), window=view.window).set_index("direction")
    for direction in moved.index.intersection(["H2D", "D2H", "P2P"]):
        row = moved.loc[direction]
        name = str(direction).lower()
        source = "COPIES; memory.copied"
        yield Figure(
            f"{name}_count",
            f"{direction} copies",
            int(row["count"]),
            "count",
            "number of copies in the window",
            source,
        )
        yield Figure(
            f"{name}_bytes",
            f"{direction} volume",
            int(row["bytes"]),
            "bytes",
            "bytes copied",
            source,
        )
        yield Figure(
            f"{name}_ns",
            f"{direction} time",
            int(row["total_ns"]),
            "ns",
            "sum of copy durations",
            source,
        )
        if np.isfinite(row["bytes_per_s"]):
            definition = "bytes per copy time; copies without a duration do not count"
            rate = float(row["bytes_per_s"])
            yield Figure(
                f"{name}_bytes_per_s", f"{direction} bandwidth", rate, "bytes/s", definition, source
            )


def _idle(view: Selection, span: int) -> Iterator[Figure]:
    if idle_gaps(view) is None:
        return
    gpus = busy(view)
    for cause, total in idle_of_gpus(view).sum().items():
        label = f"Idle: {IDLE.get(str(cause), str(cause).replace('_', ' '))}"
        yield Figure(
            f"idle_{cause}_frac",
            label,
            float(total / span),
            "1",
            (
                f"share of {_whole(view, gpus)} during which the GPU was idle for this reason; at each "
                "moment, perfkit looks at the thread that launched the next operation"
                f"{among(gpus, idle_shares(view, str(cause)))}"
            ),
            "gaps.idle_gaps",
        )


def _samples(view: Selection) -> Iterator[Figure]:
    means = sampled(view)
    for metric, (label, definition) in METRICS.items():
        rows = means[means["metric"] == metric]
        if len(rows):
            value = float((rows["mean"] * rows["count"]).sum() / rows["count"].sum())
            yield Figure(
                f"sample_{metric}",
                f"{label} (sampled)",
                value,
                "1",
                definition,
                "SAMPLES; timeline.samples_mean",
            )
