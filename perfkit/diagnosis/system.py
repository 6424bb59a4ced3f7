"""Rules at the level of the system: idle time and its cause, computation, warm-up.

Thresholds: a share of the span above 0.3 is severe and above 0.1 worth a look (convention). Idle time that another
rule tells of more precisely is not told twice: only the rest of its cause is a finding here.
Gains: removing a share p of one timeline gives at most 1 / (1 - p) (Amdahl); nothing is gained if
what was waited for bounds the run anyway. Gains of several findings are never multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from perfkit.analysis import gaps, steps
from perfkit.diagnosis import advice
from perfkit.diagnosis.figures import causes, detected, idle_gaps
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.replayed import CHANGES
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

NOTABLE, COMPUTING = 0.1, 0.6
NOT_REPLAYED = "; not replayed, since nothing recorded says how much of it could go"
CAUSES = {
    "data_loading": ("the host was loading data", advice.DATA_LOADING),
    "sync": ("the host was waiting for the GPU before it launched more", advice.SYNC),
    "memory": ("the host was allocating or freeing memory", advice.MEMORY),
    "launch": ("the host was launching, slower than the GPU worked off", advice.LAUNCH),
    "host_code": ("the host was busy with code of its own, outside CUDA", advice.HOST_CODE),
    "kernel_wait": ("work was queued, and the gap between dependent kernels is what it costs", advice.KERNEL_WAIT),
    "other": ("the next operation was launched, but what held it up was not recorded", advice.OTHER_WAIT),
    "unattributed": ("the call that ended the wait was not recorded", advice.UNKNOWN),
    "edge": ("nothing was running yet, or any more", advice.EDGE),
}


def findings(view: Selection, figures: dict[str, Figure], told: Mapping[str, float]) -> Iterator[Finding]:
    """Yield what the figures of a selection show, rule by rule; `told` by cause is told by others, of the span."""
    yield from _idle(view, figures, told)
    yield from _computation(figures)
    yield from _warm_up(view, figures)


def _idle(view: Selection, figures: dict[str, Figure], told: Mapping[str, float]) -> Iterator[Finding]:
    idle = figures.get("idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    found = idle_gaps(view)
    if found is None:
        why = gaps.determinable(view.all_kernels, view.copies, view.api_calls).why
        rest = idle.value - told.get("idle", 0.0)
        title = f"The GPU does nothing {percent(rest)} of the time"
        if rest >= NOTABLE:
            yield _finding("idle", title, (idle,), f"The cause cannot be told: {why}", advice.UNKNOWN, rest)
        return
    for cause, rows in found.groupby(causes(found), observed=True):
        share = figures[f"idle_{cause}_frac"]
        rest = share.value - told.get(str(cause), 0.0)
        if rest >= NOTABLE:
            reason, remedies = CAUSES[str(cause)]
            title = f"The GPU does nothing {percent(rest)} of the time because {reason}"
            text = _described(rows)
            if rest < share.value:
                text += f" Of its {share.text} of the time {percent(share.value - rest)} are told by another finding."
            yield _finding(f"idle_{cause}", title, (share, idle), text, remedies, rest)


def _described(rows: pd.DataFrame) -> str:
    longest = rows.iloc[int(rows["dur_ns"].to_numpy().argmax())]
    return (
        f"{len(rows):,} gaps, {duration(rows['dur_ns'].sum())} in all; the longest lasts "
        f"{duration(longest['dur_ns'])} and begins at {longest['start_ns'] / 1e9:.3f} s. {_inside(rows)}"
    )


def _inside(rows: pd.DataFrame) -> str:
    """Say in which range of the program most of the waiting happened."""
    by_range = rows["dur_ns"].groupby(rows["range"], observed=True).sum()
    if not by_range.sum():
        return "No NVTX range covers them."
    name, total = by_range.idxmax(), by_range.max()
    return f"The program was inside “{printable(name, 100)}” for {percent(total / rows['dur_ns'].sum())} of that."


def _finding(
    rule: str,
    title: str,
    evidence: tuple[Figure, ...],
    text: str,
    remedies: advice.Advice,
    share: float | None = None,
) -> Finding:
    share = evidence[0].value if share is None else share
    reason = "at most all of this time disappears; at least none, if the GPU then waits for something else"
    reason += "" if rule in CHANGES else NOT_REPLAYED
    return Finding(rule, title, severity(share), text, evidence, "under 10 %", removing(share, reason), remedies)


def _computation(figures: dict[str, Figure]) -> Iterator[Finding]:
    busy = figures.get("computation_frac")
    if busy is None or busy.value < COMPUTING:
        return
    title = f"The GPU is busy computing: {busy.text} of the time"
    reason = "at most everything but the computation disappears; more needs faster kernels"
    gain = Gain(1.0, 1 / busy.value, reason)
    text = f"{busy.label}: {busy.definition}."
    yield Finding("computation", title, "low", text, (busy,), "near 100 %", gain, advice.COMPUTATION)


def _warm_up(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    found = detected(view)
    early = found[~found["steady"]]
    if not len(early) or "span_ns" not in figures or early["dur_ns"].sum() < NOTABLE * figures["span_ns"].value:
        return
    steady = steps.steady(found)["dur_ns"].median()
    excess = float((early["dur_ns"] - steady).clip(lower=0).sum() / figures["span_ns"].value)
    value = float(early["dur_ns"].sum() / figures["span_ns"].value)
    definition = "time of the steps marked not steady over the span"
    share = Figure("warm_up_frac", "Warm-up in the window", value, "1", definition, "steps.detect")
    text = (
        f"{len(early)} of {len(found)} steps (found by {found['how'].iloc[0]}) are slower than the rest: "
        f"{duration(early['dur_ns'].median())} instead of {duration(steady)} in the median."
    )
    gain = Gain(1.0, 1.0, "warm-up is paid once: leaving it out makes the figures true, not the program faster")
    text += f" They take {percent(excess)} of the time more than as many steady ones would."
    title = f"The measurement contains warm-up: {share.text} of the time"
    yield Finding("warm_up", title, severity(excess), text, (share,), "0 %", gain, advice.WARM_UP)
