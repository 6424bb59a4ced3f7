"""How sure is a finding? What speaks against it is said, and lowers the confidence by a level each.

A finding that rests on what was measured directly starts with high confidence. One that is found by
elimination (the host was outside of CUDA, a pause looks like a checkpoint), by names, by a share of
samples, or against a peak whose precision is assumed, starts with medium. The thresholds of what
speaks against are those of the rules, or half of the time (convention).
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis.alignment import clock_under_kernels
from perfkit.analysis.causes import covered_by
from perfkit.analysis.intervals import cut
from perfkit.diagnosis import paths, recording, timeline
from perfkit.diagnosis.commands import commands
from perfkit.diagnosis.computing import while_running
from perfkit.diagnosis.evidence import advice
from perfkit.diagnosis.finding import CONFIDENCES, HORIZONS, Figure, Finding, Objection
from perfkit.diagnosis.gpus import slow, spread
from perfkit.diagnosis.interconnect import growing
from perfkit.diagnosis.launching import blocking, distances, pauses
from perfkit.diagnosis.measured import binding
from perfkit.diagnosis.replayed import BLOCKED
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.rules.rule import Rule
from perfkit.diagnosis.slowing import SLOWED, by_profiler, slowed
from perfkit.diagnosis.speed import lowered
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.tiles import readings
from perfkit.diagnosis.warming import FIRST_PASS, IN_WARM_UP, ONCE, warming
from perfkit.errors import PerfkitError
from perfkit.format import number, percent
from perfkit.selection import Selection

HALF = 0.5
BUSY = 0.9
WORKING = 0.3
CLOCK_KEPT = (
    0.95  # of its maximum; a clock that never falls lower was not throttled noticeably (convention)
)
SLOWER = f"PyTorch's profiler makes launching up to {SLOWED} times as slow"
FEW_READINGS = 10  # of a log (convention)
MANY = 20  # kernels; of fewer it is not known whether they repeat (convention)
VIDEO_ENGINES = {"encoder_busy_frac": "encoder", "decoder_busy_frac": "decoder"}
MOSTLY_UNKNOWN = "less than half of the GPUs' time is known, so a gain cannot be computed"
Known = Mapping[str, Figure]
Check = Callable[[Selection, Known, Finding], str]


def _warming_up(view: Selection, _: Known, finding: Finding) -> str:
    """Idle time in the first, slow steps is paid once, and a recording without repeats may be a first step."""
    kernels = cut(view.all_kernels, view.window)
    if len(kernels) >= MANY and timeline.detected(view).empty:
        times = kernels.groupby(["rank", "gpu", "full_name"], observed=True).size()
        if times.mean() < ONCE:
            return FIRST_PASS
    gaps = timeline.idle_gaps(view)
    if gaps is None:
        return ""
    parts = timeline.idle_parts(gaps)
    of_finding = parts[[cause for cause in rules()[finding.rule].causes if cause in parts]].sum(
        axis=1
    )
    total = of_finding.sum()
    share = float(of_finding[_in_warm_up(view)].sum() / total) if total else 0.0
    return f"{percent(share)} {IN_WARM_UP}" if share >= HALF else ""


@kept
def _in_warm_up(view: Selection) -> pd.Series:
    """Return which gaps begin in a step that is not steady, by their row."""
    gaps = timeline.idle_gaps(view)
    steps = timeline.detected(view)
    assert gaps is not None
    last = steps.groupby("rank")["step"].transform("max")
    early = steps[~steps["steady"] & (steps["step"] < last)]
    spans = pd.concat([of[["rank", "start_ns", "dur_ns"]] for of in (early, warming(view).early)])
    # A gap that begins where a step ends is one of it.
    until = spans.assign(dur_ns=spans["dur_ns"] + 1)
    return pd.Series(covered_by(gaps.assign(dur_ns=1), until) > 0, gaps.index)


def _pipe_works(_: Selection, known: Known, finding: Finding) -> str:
    pipe = while_running(known, "tensor_active_frac") if "kernel_busy_frac" in known else None
    if pipe is None or pipe < WORKING:
        return ""
    return (
        f"samples show the tensor pipe active for {percent(pipe)} of the time in which kernels ran"
    )


def _low_occupancy(_: Selection, known: Known, finding: Finding) -> str:
    possible = known.get("theoretical_occupancy_frac")
    if possible is None or possible.value >= HALF or not binding(known):
        return ""
    return f"the launch configuration allows only {possible.text} of the warps, which explains the low value"


def _clock_kept(view: Selection, _: Known, finding: Finding) -> str:
    """Event reasons that say throttling, beside a clock that never fell."""
    clock = view.samples[view.samples["metric"] == "sm_clock_hz"]
    busy = clock  # its readings, but of times at which no kernel ran, where that is known
    with suppress(PerfkitError):
        under = clock_under_kernels(view.samples, view.all_kernels, window=view.window)
        if under["lowest_clock_hz"].notna().any():
            busy = under.rename(columns={"lowest_clock_hz": "value"})
    recorded = view.samples.loc[view.samples["metric"] == "sm_max_clock_hz", "value"].max()
    lowest = busy["value"].min()
    most = np.fmax(recorded, clock["value"].max())
    if not len(busy) or lowest < CLOCK_KEPT * most:
        return ""
    return f"the clock never fell below {percent(lowest / most)} of its maximum"


def _video(view: Selection, _: Known, finding: Finding) -> str:
    """A job for the video engines needs the SMs little."""
    engines = view.samples[view.samples["metric"].isin(list(VIDEO_ENGINES))]
    busy = engines.groupby("metric", observed=True)["value"].mean()
    if busy.empty or busy.max() < HALF:
        return ""
    return (
        f"the video {VIDEO_ENGINES[str(busy.idxmax())]} works for {percent(busy.max())} of the time"
    )


def _few_readings(view: Selection, _: Known, finding: Finding) -> str:
    count = readings(view)
    return (
        f"the log holds only {count} reading{'s' * (count > 1)} of the GPU"
        if count < FEW_READINGS
        else ""
    )


def _unlike(view: Selection, _: Known, finding: Finding) -> str:
    """A slow GPU slows all kernels; more data slow some of them."""
    found = slow(view)
    if found is None or found.least_ratio >= 1 + (found.ratio - 1) * HALF:
        return ""
    least = number(found.least_ratio)
    most = number(found.most_ratio)
    return (
        f"not all kernels take longer there ({least} to {most} times as long): their data may "
        "differ"
    )


def _once(view: Selection, _: Known, finding: Finding) -> str:
    """How often state is saved is known from two checkpoints on."""
    unknown = "no rank saves twice in this recording, so perfkit does not know how often it saves"
    return "" if len(distances(view)) else unknown


def _begun_apart(view: Selection, _: Known, finding: Finding) -> str:
    """Processes that begin at different times meet in the first collective; that happens once."""
    found = spread(view)
    if found is None or found.first_frac < HALF:
        return ""
    return (
        f"{percent(found.first_frac)} of this wait lies in the first collective: the GPUs may have "
        "begun apart"
    )


def _same_speed(view: Selection, _: Known, finding: Finding) -> str:
    """A lower clock makes kernels longer, unless they wait for memory."""
    found = lowered(view)
    if found is None or found.ratio >= 1 + (found.from_hz / found.to_hz - 1) * HALF:
        return ""
    if math.isnan(found.ratio):
        return (
            "no kernel ran both at the high and at the low clock, so the cost of the low clock is "
            "unknown"
        )
    return f"the same kernels take only {number(found.ratio)} times as long at the low clock"


def _by_design(view: Selection, known: Known, _: Finding) -> str:
    several = "gpu_count" in known and known["gpu_count"].value > 1
    return (
        "another GPU works at that time: perhaps the program does not use this GPU on purpose"
        if several
        else ""
    )


def _another_works(view: Selection, _: Known, finding: Finding) -> str:
    """Where the busiest GPU sets the pace, the others have time to spare, whatever their CPU code does."""
    gpus = timeline.busy(view)
    if len(gpus) < 2:
        return ""
    shares = gpus["device_busy_frac"]
    name, most = timeline.extremes(gpus, shares)[1]
    if most < BUSY or most - shares.min() < timeline.APART:
        return ""
    return f"{name} works for {percent(most)} of the time, and the others may wait for it"


def _profiled(view: Selection, known: Known, finding: Finding) -> str:
    """A CPU that launches faster without the profiler may leave no short gap on a GPU that computes for long enough."""
    # collectives wait for other ranks' launches
    busy = known["computation_frac"]
    short = min(sum(pauses(view).values()), by_profiler(view))
    if short < HALF * (finding.gain.share or 0.0) or busy.value * slowed(view) < busy.value + short:
        return ""
    return (
        f"{SLOWER}, so a GPU that computes for {busy.text} of the time here may have no short gaps "
        "without it"
    )


CHECKS: dict[Objection, Check] = {
    Objection.FEW_OPERATIONS: lambda view, known, _: paths.too_few(known),
    Objection.WARM_UP: _warming_up,
    Objection.PROFILED: _profiled,
    Objection.BLOCKED: lambda view, _, finding: (
        f"{BLOCKED}: measure again without that" if blocking(view) else ""
    ),
    Objection.PIPE_WORKS: _pipe_works,
    Objection.OCCUPANCY_EXPLAINS: _low_occupancy,
    Objection.CLOCK_KEPT: _clock_kept,
    Objection.VIDEO_ENGINE: _video,
    Objection.FEW_READINGS: _few_readings,
    Objection.BY_DESIGN: _by_design,
    Objection.ANOTHER_WORKS: _another_works,
    Objection.UNLIKE: _unlike,
    Objection.SAME_SPEED: _same_speed,
    Objection.BEGUN_APART: _begun_apart,
    Objection.ONE_PROGRAM: lambda *_: (
        "the recording is of one program, and others may use this GPU"
    ),
    Objection.STILL_GROWING: lambda view, _, finding: growing(view),
    Objection.ONE_CHECKPOINT: _once,
}


def weighed(view: Selection, known: Known, finding: Finding) -> Finding:
    """Return a finding with its confidence, what speaks against it, its advice, and what comes next."""
    rule = rules()[finding.rule]
    is_timed = finding.rests_on_times
    doubts = _doubts(view) if is_timed else []
    said = _objections(view, known, finding)
    against = (*(doubt.seen for doubt in doubts), *said.values())
    is_indirect = (bool(rule.indirect) and not finding.owner) or _uncounted(rule, known, finding)
    steps_down = min(is_indirect + len(against), len(CONFIDENCES) - 1)
    is_unsure = any(doubt.leaves_nothing_sure for doubt in doubts)
    gain = finding.gain
    if is_timed and recording.is_mostly_unknown(view):
        gain = replace(gain, low=1.0, high=math.inf, reason=MOSTLY_UNKNOWN)
    evidence = timeline.doubted(view, {figure.id: figure for figure in finding.evidence})
    return replace(
        finding,
        title=_title(known, finding),
        severity=_severity(finding, said),
        evidence=tuple(evidence.values()),
        gain=gain,
        advice=_advice(view, rule, finding),
        confidence=CONFIDENCES[-1] if is_unsure else CONFIDENCES[steps_down],
        against=against,
        objections=frozenset(said),
        next=commands(view, finding.next or rule.next),
    )


def _objections(view: Selection, known: Known, finding: Finding) -> dict[Objection, str]:
    """Return which objections of the rule hold, and why."""
    named = rules()[finding.rule].objections
    checked = {objection: CHECKS[objection](view, known, finding) for objection in named}
    return {objection: why for objection, why in checked.items() if why}


def _severity(finding: Finding, said: Collection[Objection]) -> str:
    """Return how much a finding matters: a level less where recording itself may have caused it."""
    if {Objection.PROFILED, Objection.BLOCKED}.isdisjoint(said):
        return finding.severity
    return "medium" if finding.severity == "high" else "low"


def _title(known: Known, finding: Finding) -> str:
    """Return the title, which says so where it gives a mean that may be true of no GPU."""
    gpus = known.get("gpu_count")
    if gpus is None or gpus.value <= 1 or not finding.is_mean:
        return finding.title
    return f"On average over {gpus.text} GPUs: {finding.title}"


def _advice(view: Selection, rule: Rule, finding: Finding) -> dict[str, tuple[str, ...]]:
    """Return the steps by horizon, those of the finding's own evidence first."""
    steps = advice(view, rule.advice)
    every = {
        horizon: tuple(dict.fromkeys((*finding.advice.get(horizon, ()), *steps.get(horizon, ()))))
        for horizon in HORIZONS
    }
    return {horizon: texts for horizon, texts in every.items() if texts}


def _doubts(view: Selection) -> list[recording.Doubt]:
    """Return what makes findings on times less sure, as far as it touches a tenth of these: one doubt of each kind."""
    lowering = [doubt for doubt in recording.leading(view) if doubt.lowers_confidence]
    first: dict[recording.Kind, recording.Doubt] = {}
    for doubt in lowering:
        first.setdefault(doubt.kind, doubt)
    return list(first.values())


def _uncounted(rule: Rule, known: Known, finding: Finding) -> bool:
    """Tell whether nothing is known of what would make the evidence direct."""
    seen = {*known, *(figure.id for figure in finding.evidence)}
    return bool(rule.direct_with) and seen.isdisjoint(rule.direct_with)
