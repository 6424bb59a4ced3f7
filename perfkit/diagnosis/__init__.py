"""From figures to findings: what costs time, how much it could gain, and what is unknown.

Conventions of all modules here: what was not recorded is absent, never 0. Over several GPUs a time
is the sum over the GPUs, a share the sum of the parts over the sum of the spans. A tenth of the
time is worth a look and three tenths are severe (conventions). `view` is a selection and `peaks` a
CSV file of peaks of GPUs (`hardware.load_peaks`), empty for the data sheets perfkit knows. The gain
of removing a share p of one timeline is at most 1 / (1 - p) (Amdahl), and at least none, if what
was waited for bounds the run anyway; gains overlap and are never multiplied or added.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from perfkit.diagnosis import (
    computing,
    counter_ledger,
    gpus,
    idle_time,
    job,
    kernel_loading,
    launching,
    ledger,
    lengths,
    little,
    machine,
    measured,
    operator_kernels,
    outside,
    path_ledger,
    paths,
    phases,
    picture,
    recording,
    repeating,
    rules,
    shapes,
    speed,
    tensors,
    transfers,
    unused_gpus,
    waiting,
    warming,
)
from perfkit.diagnosis.commands import ASKS
from perfkit.diagnosis.confidence import weighed
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import (
    CONFIDENCES,
    HORIZONS,
    SEVERITIES,
    Figure,
    Finding,
    Gain,
    Refusal,
    plain,
)
from perfkit.diagnosis.framework import gpu_time, has_tensor_cores
from perfkit.diagnosis.gain import gains, together
from perfkit.diagnosis.headline import ranked
from perfkit.diagnosis.kernels import Roofline, roof, shape_roofline
from perfkit.diagnosis.paths import metric as path_metric
from perfkit.diagnosis.program import is_amd
from perfkit.diagnosis.run_figures import figures, judged
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import idle_by_cause, sampled, unrecorded
from perfkit.profilers import DMON, NCU_LAUNCHES, NCU_SET
from perfkit.readers import kind
from perfkit.run import Run, share
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
    "machine",
]
__all__ += [
    "figures",
    "findings",
    "gpu_time",
    "idle_by_cause",
    "path_metric",
    "phases",
    "plain",
]
__all__ += ["counter_ledger", "monitor", "path_ledger", "picture"]
__all__ += [
    "judged",
    "ledger",
    "recording",
    "refusals",
    "repeating",
    "roof",
    "sampled",
    "shape_roofline",
    "together",
    "unrecorded",
]

TIMELINE = Refusal(
    "Is the GPU idle, and why?",
    "the recording has no timeline",
    "nsys profile --trace=cuda,nvtx --gpu-metrics-devices=all -o report PROGRAM",
    is_of_another_tool=True,
)
# What records every operation of graphs, by the kind of capture that holds the timeline.
GRAPH_NODES = {
    "timeline": "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node -o report PROGRAM",
    "framework": (
        "torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1)), so that no replay is "
        "lost, on a current CUDA; or nsys profile --trace=cuda,nvtx --cuda-graph-trace=node -o report PROGRAM"
    ),
}
COUNTERS = Refusal(
    "Why are the longest kernels slow (main stall type, roofline, tensor cores)?",
    "the recording has no hardware counters of single kernels",
    f"ncu {' '.join(NCU_SET)} --launch-count {NCU_LAUNCHES} -o report PROGRAM; "
    "where perfkit cannot read its file, then ncu --import report.ncu-rep --csv --page raw > report.csv",
    is_of_another_tool=True,
)
CLOCK = Refusal(
    "Was the clock lowered by power or heat while kernels ran?",
    "the recording has neither the clock nor the reasons for lowering it",
    f"{' '.join(DMON)} (or --query-gpu=clocks.sm,clocks.max.sm,clocks_event_reasons.active) meanwhile",
    is_of_another_tool=True,
)
# What records the same on AMD's GPUs.
AMD = {
    COUNTERS.record: "rocprof-compute profile -n run -- PROGRAM",
    "hpcrun -e gpu=nvidia,pc": "hpcrun -e gpu=rocm,pc",
    CLOCK.record: ASKS["{gpu_log}"][1] + " meanwhile",
}


OF_TENSOR_CORES = "LAUNCHES.tensor_flops"
_PREPARED: list[Selection] = []


def prepare(
    profile: str, *, job: Mapping[str, Any] | None = None, peaks: str = "", **choice: Any
) -> None:
    """Load, select and diagnose a run for all notebooks of a kernel: `load` and `select` then return it."""
    _PREPARED.append(select(share(profile, job=job or {}), **choice))
    _PREPARED.append(judged(_PREPARED[-1]))
    findings(_PREPARED[-1], peaks=peaks)


def findings(run: Run | Selection, *, peaks: str = "") -> list[Finding]:
    """Return what costs time in a run, or a selection of one: by severity, then as `headline.ranked`.

    Each finding rests on figures (value, unit, definition, source), says what speaks against it,
    and gives its gain as a range: what a replay of the run and the analytic bound both allow.
    """
    return list(_findings(judged(run), peaks=peaks))


@kept
def _findings(view: Selection, *, peaks: str) -> list[Finding]:
    by_id = figures(view, peaks=peaks)
    told = _told(view, by_id)
    of_timeline = (
        computing.too_little(view)
        if little.start_up_only(view)
        else _of_timeline(view, by_id, told)
    )
    own = [rule.find for rule in rules.rules().values() if rule.find]
    unsorted = [
        *of_timeline,
        *warming.findings(view, by_id),
        *outside.findings(view),
        *measured.findings(view, by_id, peaks=peaks),
        *paths.findings(view, by_id),
        *chain.from_iterable(part.findings(view) for part in extensions()),
        *chain.from_iterable(find(view, by_id) for find in own),
    ]
    seen = (
        replace(weighed(view, by_id, f), seen_at=f.seen_at or _seen_at(view, f)) for f in unsorted
    )
    return sorted(
        ranked(gains(view, [*seen])),
        key=lambda finding: SEVERITIES.index(finding.severity),
    )


def _told(view: Selection, by_id: dict[str, Figure]) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that more special rules tell of."""
    claimed: list[Mapping[str, float]] = []
    claimed += [launching.launch_causes(view, by_id), gpus.idle_causes(view)]
    claimed += [{"host_code": waiting.compiling(view)[0]}, waiting.preparing_causes(view)]
    claimed += [rule.claims(view) for rule in rules.rules().values() if rule.claims]
    claimed.append(transfers.idle_causes(view))
    told: dict[str, float] = {}
    for causes in claimed:
        for cause, part in causes.items():
            told[cause] = told.get(cause, 0.0) + part
    return told


def _of_timeline(
    view: Selection, by_id: dict[str, Figure], told: Mapping[str, float]
) -> list[Finding]:
    """Return the findings on what happens between the first and the last operation of the GPUs."""
    return [
        *launching.launch_findings(view, by_id),
        *idle_time.findings(view, by_id, told, kernel_loading.start_up(view)[0]),
        *computing.computation_findings(view, by_id),
        *launching.checkpoint_findings(view),
        *lengths.findings(view),
        *transfers.copy_findings(view, by_id),
        *gpus.findings(view, by_id),
        *unused_gpus.findings(view),
        *speed.findings(view, by_id),
        *transfers.communication_findings(view, by_id),
        *computing.throughput_findings(view, by_id),
        *waiting.findings(view, by_id),
        *operator_kernels.findings(view, by_id),
        *shapes.findings(view, by_id),
        *tensors.findings(view, by_id),
    ]


def _seen_at(view: Selection, finding: Finding) -> tuple[int, int] | None:
    """Return start and duration (ns) of the longest moment that a finding is about, if it has any."""
    moment = rules.rules()[finding.rule].moment
    return moment(view) if moment else None


def refusals(run: Run | Selection, *, peaks: str = "") -> list[Refusal]:
    """Return the questions the run cannot answer, each with what to record."""
    view = judged(run)
    asked = [
        Refusal(m.what[0].upper() + m.what[1:], Refusal.absent, m.record)
        for m in recording.missing(view)
        if m.table != OF_TENSOR_CORES or has_tensor_cores(view)
    ]
    if view.all_kernels.empty and "KERNELS" not in {m.table for m in view.run.missing}:
        asked.append(TIMELINE)
    if why := unrecorded(view):  # when the GPU worked, where operations of graphs were not recorded
        held = next(
            (kind(p.reader) for p in view.run.profiles if "KERNELS" in p.loaders), "timeline"
        )
        question = "How long does the GPU compute, and how long is it idle?"
        asked.append(Refusal(question, why, GRAPH_NODES.get(held, GRAPH_NODES["timeline"])))
    if view.launches.empty:
        question = "Which roof limits the longest kernels, and do they use tensor cores?"
        asked.append(COUNTERS if view.run.stalls.empty else replace(COUNTERS, question=question))
    metrics = {str(metric) for metric in view.samples["metric"].unique()}
    if len(view.all_kernels) and not any(
        m.startswith(("sm_clock", "gpc_clock", "throttled_")) for m in metrics
    ):
        asked.append(CLOCK)
    if "training_flops_per_s" not in metrics:
        unknown = job.refusal(view, figures(view), peaks=peaks)
        asked += [unknown] if unknown else []
    asked += machine.refusals(view, peaks=peaks)
    return (
        [replace(a, record=AMD.get(a.record, a.record)) for a in asked] if is_amd(view) else asked
    )
