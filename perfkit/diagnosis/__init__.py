"""From figures to findings: what costs time, how much it could gain, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace

from perfkit.diagnosis import (
    baseline,
    comparison,
    framework,
    kernels,
    launching,
    monitor,
    paths,
    replayed,
    system,
    transfers,
)
from perfkit.diagnosis.confidence import weighed
from perfkit.diagnosis.finding import CONFIDENCES, HORIZONS, SEVERITIES, Figure, Finding, Gain, Refusal, kept, plain
from perfkit.diagnosis.framework import gpu_time, stragglers
from perfkit.diagnosis.kernels import Roofline, roof, shape_roofline
from perfkit.diagnosis.paths import metric as path_metric
from perfkit.diagnosis.replayed import together
from perfkit.diagnosis.timeline import doubted, sampled, system_figures, unrecorded
from perfkit.readers import kind
from perfkit.run import Run
from perfkit.selection import Selection, select

__all__ = [
    "CONFIDENCES",
    "HORIZONS",
    "SEVERITIES",
    "Figure",
    "Finding",
    "Gain",
    "Refusal",
    "Roofline",
    "baseline",
    "comparison",
    "figures",
    "findings",
    "gpu_time",
    "path_metric",
    "plain",
    "refusals",
    "roof",
    "sampled",
    "shape_roofline",
    "stragglers",
    "together",
    "unrecorded",
]

TIMELINE = Refusal(
    "Is the GPU idle, and why?",
    "no timeline was recorded",
    "nsys profile --trace=cuda,nvtx --gpu-metrics-devices=all PROGRAM",
)
# What records every operation of graphs, by the kind of capture that holds the timeline.
GRAPH_NODES = {
    "timeline": "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node PROGRAM",
    "framework": (
        "torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1)), so that no replay is "
        "lost, on a current CUDA; or nsys profile --trace=cuda,nvtx --cuda-graph-trace=node PROGRAM"
    ),
}
COUNTERS = Refusal(
    "Why are the longest kernels slow (main stall type, roofline, tensor cores)?",
    "no hardware counters of single kernels were recorded",
    "ncu --set full --launch-count 50 -o report PROGRAM, then ncu --import report.ncu-rep --csv --page raw",
)
CLOCK = Refusal(
    "Was the clock lowered by power or heat while kernels ran?",
    "neither the clock nor the reasons for lowering it were recorded",
    "nvidia-smi dmon -s pucvmet -o DT, or --query-gpu=clocks.sm,clocks.max.sm,clocks_event_reasons.active, beside it",
)
ARITHMETIC = Refusal(
    "How much of the hardware's arithmetic peak does the model use (MFU)?",
    "a recording does not say how many operations the model needs",
    "tokens or samples per second of the job, and the model's parameters",
)


def figures(run: Run | Selection, *, peaks: str = "") -> dict[str, Figure]:
    """Return the figures of a run by their id; what it cannot answer is absent.

    Parameters
    ----------
    run
        A run, or a selection of one.
    peaks
        A CSV file of peaks of GPUs (`hardware.load_peaks`); empty for the data sheets perfkit knows.

    Returns
    -------
    dict
        Ids are stable names with the unit as suffix (`kernel_busy_frac`, `idle_ns`, ...).
    """
    return dict(_figures(_view(run), peaks=peaks))


@kept
def _figures(view: Selection, *, peaks: str) -> dict[str, Figure]:
    further = (
        *kernels.figures(view, peaks=peaks),
        *paths.figures(view),
        *framework.figures(view, peaks=peaks),
        *transfers.figures(view),
    )
    further += (*monitor.figures(view), *baseline.figures(view, peaks=peaks))
    return doubted(view, {**system_figures(view), **{figure.id: figure for figure in further}})


def findings(run: Run | Selection, *, peaks: str = "") -> list[Finding]:
    """Return what costs time in a run, the most severe first.

    Parameters
    ----------
    run, peaks
        As in `figures`.

    Returns
    -------
    list of Finding
        By severity, then confidence, then gain. Each rests on figures (value, unit, definition, source), says what
        speaks against it, and gives its gain as a range: what a replay of the run and the analytic bound both
        allow. Gains overlap: they are never multiplied or added.
    """
    view = _view(run)
    known = figures(view, peaks=peaks)
    found = [
        *launching.launch_findings(view, known),
        *system.findings(view, known, launching.launch_causes(view, known)),
    ]
    found += [
        *launching.checkpoint_findings(view),
        *transfers.copy_findings(view, known),
        *transfers.balance_findings(view, known),
    ]
    found += [*system.throughput_findings(view, known), *baseline.findings(known)]
    found += [*kernels.findings(view, known, peaks=peaks), *paths.findings(view, known)]
    found += [*framework.findings(view, known), *monitor.findings(view)]
    told = [weighed(view, known, finding) for finding in found]
    return sorted(replayed.gains(view, told), key=_urgency)


def _urgency(finding: Finding) -> tuple[int, int, float]:
    return SEVERITIES.index(finding.severity), CONFIDENCES.index(finding.confidence), -finding.gain.high


def refusals(run: Run | Selection, *, peaks: str = "") -> list[Refusal]:
    """Return the questions the run cannot answer, each with what to record; arguments as in `figures`."""
    view = _view(run)
    without_stalls = replace(COUNTERS, question="Which roof bounds the longest kernels, and do they use tensor cores?")
    counters = COUNTERS if view.run.stalls.empty else without_stalls
    lacking = [Refusal(m.what[0].upper() + m.what[1:], "not recorded", m.record) for m in view.run.missing]
    told = {m.table for m in view.run.missing}
    timeline = [TIMELINE] if view.all_kernels.empty and "KERNELS" not in told else []
    measured = [counters] if view.launches.empty else []
    arithmetic = [] if view.samples["metric"].eq("training_flops_per_s").any() else [ARITHMETIC]
    sensed = view.samples["metric"].astype("string").str.startswith(("sm_clock", "throttled_")).any()
    clock = [CLOCK] if len(view.all_kernels) and not sensed else []
    return [*lacking, *timeline, *_graphs(view), *measured, *clock, *arithmetic, *baseline.refusals(view, peaks=peaks)]


def _graphs(view: Selection) -> list[Refusal]:
    """Return why it is not told how long the GPU was busy, where operations of graphs were not recorded."""
    why = unrecorded(view)
    held = next((kind(p.reader) for p in view.run.profiles if "KERNELS" in p.loaders), "timeline")
    question = "How long does the GPU compute, and how long is it idle?"
    return [Refusal(question, why, GRAPH_NODES.get(held, GRAPH_NODES["timeline"]))] if why else []


def _view(run: Run | Selection) -> Selection:
    return run if isinstance(run, Selection) else select(run)
