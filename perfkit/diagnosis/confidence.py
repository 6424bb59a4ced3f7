"""How sure is a finding? What speaks against it is said, and lowers the confidence by a level each.

Conventions
-----------
A finding that rests on what was measured directly starts with high confidence. One that is found by elimination (the
host was outside of CUDA, a pause looks like a checkpoint), by names, by a share of samples, or against a peak whose
precision is assumed, starts with medium. The thresholds of what speaks against are those of the rules, or half of the
time (convention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import monitoring
from perfkit.diagnosis.baseline import growing
from perfkit.diagnosis.finding import CONFIDENCES, Figure, Finding, kept
from perfkit.diagnosis.kernels import binding
from perfkit.diagnosis.launching import CAUSES, distances
from perfkit.diagnosis.rules import measure_next, threshold
from perfkit.diagnosis.system import matrix_frac, while_running
from perfkit.diagnosis.timeline import KERNEL_TIMES, causes, detected, doubted, idle_gaps, impossible_durations
from perfkit.diagnosis.transfers import excess
from perfkit.errors import PerfkitError
from perfkit.format import percent
from perfkit.selection import Selection

HALF, BUSY, NEAR_ROOF, WORKING = 0.5, 0.9, 0.6, 0.3
CLOCK_KEPT = 0.95  # of its maximum; a clock that never falls lower was not throttled noticeably (convention)
BY_ELIMINATION = {"idle_host_code", "idle_other", "idle_unattributed", "idle_kernel_wait", "idle"}
BY_NAMES = {"preparation"}
BY_ASSUMPTION = {"training_mfu", "training_mfu_suspicious"}  # of the precision, which logs do not say
# The causes of gaps that rules about launches tell of.
OF_LAUNCHES = {
    "synchronisation": {"sync", *CAUSES},
    "launch_overhead": {*CAUSES},
    "small_operators": {*CAUSES},
}
BY_SAMPLES = {"paths_stall", "paths_host", "paths_launches"}
Known = Mapping[str, Figure]


def _warming_up(view: Selection, _: Known, finding: Finding) -> str:
    """Idle time in the first, slow steps is paid once."""
    gaps = idle_gaps(view)
    if gaps is None:
        return ""
    rows = gaps[causes(gaps).isin(OF_LAUNCHES.get(finding.rule, {finding.rule.removeprefix("idle_")}))]
    total = rows["dur_ns"].sum()
    share = float(rows.loc[_in_warm_up(view).loc[rows.index], "dur_ns"].sum() / total) if total else 0.0
    return f"{percent(share)} of this time lies in steps that are warm-up" if share >= HALF else ""


@kept
def _in_warm_up(view: Selection) -> pd.Series:
    """Return which gaps begin in a step that is not steady, by their row."""
    gaps, steps = idle_gaps(view), detected(view)
    assert gaps is not None
    early = steps[~steps["steady"] & (steps["step"] < steps.groupby("rank")["step"].transform("max"))]
    found: NDArray[np.bool_] = np.zeros(len(gaps), bool)
    for rank, start, dur in early[["rank", "start_ns", "dur_ns"]].itertuples(index=False):
        found |= (gaps["rank"] == rank).to_numpy() & gaps["start_ns"].between(start, start + dur).to_numpy()
    return pd.Series(found, gaps.index)


def _busy(_: Selection, known: Known, finding: Finding) -> str:
    busy = known.get("device_busy_frac", known.get("paths_gpu_busy_frac"))
    if busy is None or busy.value < BUSY:
        return ""
    return f"the GPU is busy for {busy.text} of the time all the same"


def _no_matrix_work(view: Selection, _: Known, finding: Finding) -> str:
    share = matrix_frac(view)
    return "" if share is None or share >= WORKING else f"matrix work is only {percent(share)} of the kernel time"


def _pipe_works(_: Selection, known: Known, finding: Finding) -> str:
    pipe = while_running(known, "tensor_active_frac") if "kernel_busy_frac" in known else None
    if pipe is None or pipe < WORKING:
        return ""
    return f"the tensor pipe was sampled active for {percent(pipe)} of the time in which kernels ran"


def _latency(_: Selection, known: Known, finding: Finding) -> str:
    share = known.get("roof_share_frac")
    return f"the kernels measured reach only {share.text} of their roof" if share and share.value < WORKING else ""


def _near_roof(_: Selection, known: Known, finding: Finding) -> str:
    share = known.get("roof_share_frac")
    return f"the kernels reach {share.text} of their roof all the same" if share and share.value >= NEAR_ROOF else ""


def _few_measured(_: Selection, known: Known, finding: Finding) -> str:
    share = known.get("measured_frac")
    if share is None or share.value >= HALF:
        return ""
    return f"the kernels measured are {share.text} of the kernel time of the recording"


def _low_occupancy(_: Selection, known: Known, finding: Finding) -> str:
    limit = known.get("theoretical_occupancy_frac")
    if limit is None or limit.value >= HALF or not binding(known):
        return ""
    return f"the launch configuration allows no more than {limit.text} of the warps, which explains it"


def _clock_kept(view: Selection, _: Known, finding: Finding) -> str:
    """Event reasons that say throttling, beside a clock that never fell."""
    clock = view.samples[view.samples["metric"] == "sm_clock_hz"]
    busy = _while_running(view, clock)
    lowest, most = busy["value"].min(), clock["value"].max()
    if not len(busy) or lowest < CLOCK_KEPT * most:
        return ""
    return f"the clock never fell below {percent(lowest / most)} of its maximum"


def _while_running(view: Selection, clock: pd.DataFrame) -> pd.DataFrame:
    """Return the readings of the clock, but of times at which no kernel ran, where that is known."""
    try:
        under = monitoring.clock_under_kernels(view.samples, view.all_kernels, window=view.window)
    except PerfkitError:
        return clock
    return clock if under["lowest_clock_hz"].isna().all() else under.rename(columns={"lowest_clock_hz": "value"})


def _uneven(view: Selection, known: Known, finding: Finding) -> str:
    waiting = excess(view, known)
    return f"{percent(waiting)} of the time ranks wait for the slowest, not for the links" if waiting else ""


def _growing(view: Selection, _: Known, finding: Finding) -> str:
    return growing(view)


def _once(view: Selection, _: Known, finding: Finding) -> str:
    """How often state is saved is known from two checkpoints on."""
    return "" if len(distances(view)) else "no rank saves twice in steps of this recording: how often is not known"


def _irregular(view: Selection, _: Known, finding: Finding) -> str:
    apart = distances(view)
    if len(apart) < 2 or apart.max() - apart.min() <= 1:
        return ""
    return f"it does not happen every so many steps: {apart.min()} to {apart.max()} lie between"


CHECKS: tuple[tuple[str, Callable[[Selection, Known, Finding], str]], ...] = (
    ("idle_", _warming_up),
    ("synchronisation", _warming_up),
    ("launch_overhead", _warming_up),
    ("small_operators", _warming_up),
    ("paths_launches", _busy),
    ("input", _busy),
    ("small_operators", _busy),
    ("tensor_cores", _no_matrix_work),
    ("tensor_cores", _pipe_works),
    ("precision", _pipe_works),
    ("memory_bandwidth", _latency),
    ("low_occupancy", _near_roof),
    ("latency_bound", _low_occupancy),
    ("memory_bound", _few_measured),
    ("compute_bound", _few_measured),
    ("log_throttling", _clock_kept),
    ("exposed_communication", _uneven),
    ("bus_bandwidth", _growing),
    ("checkpointing", _once),
    ("checkpointing", _irregular),
)


def weighed(view: Selection, known: Known, finding: Finding) -> Finding:
    """Return a finding with its confidence, what speaks against it, what to measure next, and its threshold."""
    impossible = _impossible(view, finding)
    against = (*impossible, *_against(view, known, finding))
    start = (
        1 if finding.rule in BY_ELIMINATION | BY_NAMES | BY_SAMPLES | BY_ASSUMPTION or _uncounted(known, finding) else 0
    )
    level = "low" if impossible else CONFIDENCES[min(start + len(against), len(CONFIDENCES) - 1)]
    rule = finding.rule
    evidence = tuple(doubted(view, {figure.id: figure for figure in finding.evidence}).values())
    finding = replace(finding, evidence=evidence, confidence=level, against=against)
    return replace(finding, next=measure_next(rule), threshold=threshold(rule))


def _impossible(view: Selection, finding: Finding) -> tuple[str, ...]:
    """Return why no finding can rest on the times of kernels, where these contradict each other."""
    why = impossible_durations(view)
    return (why,) if why and any(f.source.startswith(KERNEL_TIMES) for f in finding.evidence) else ()


def _uncounted(known: Known, finding: Finding) -> bool:
    """Tell whether less is known than would tell: how well a busy GPU runs its kernels, or what a long pause is."""
    if finding.rule == "checkpointing":
        return not {"checkpoint_named_frac", "checkpoint_written_frac"} & {figure.id for figure in finding.evidence}
    return finding.rule == "computation" and "roof_share_frac" not in known


def _against(view: Selection, known: Known, finding: Finding) -> Iterator[str]:
    for start, check in CHECKS:
        if finding.rule.startswith(start):
            said = check(view, known, finding)
            if said:
                yield said
