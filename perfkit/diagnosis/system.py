"""Rules at the level of the system: idle time and its cause, copies, communication, warm-up.

Thresholds: a share of the span above 0.3 is severe and above 0.1 worth a look (convention); exposed
communication above 0.2 of the span follows the guide's target of less than 20 to 30 % (step 3).
Gains: removing a share p of one timeline gives at most 1 / (1 - p) (Amdahl); nothing is gained if
what was waited for bounds the run anyway. Gains of several findings are never multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis import gaps, steps
from perfkit.diagnosis import advice
from perfkit.diagnosis.figures import causes, idle_gaps
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

SEVERE, NOTABLE = 0.3, 0.1
CAUSES = {
    "data_loading": ("the host was loading data", advice.DATA_LOADING),
    "sync": ("the host was waiting for the GPU before it launched more", advice.SYNC),
    "memory": ("the host was allocating or freeing memory", advice.MEMORY),
    "launch": ("the host was launching, slower than the GPU worked off", advice.LAUNCH),
    "host_code": ("the host was busy with code of its own, outside CUDA", advice.HOST_CODE),
    "kernel_wait": ("work was queued, and the gap between dependent kernels is what it costs", advice.KERNEL_WAIT),
    "other": ("the next operation was launched, but waited for something else than the GPU", advice.OTHER_WAIT),
    "unattributed": ("the call that ended the wait was not recorded", advice.UNKNOWN),
    "edge": ("nothing was running yet, or any more", advice.EDGE),
}


def findings(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the figures of a selection show, rule by rule."""
    yield from _idle(view, figures)
    yield from _share(figures, "exposed_copy", "Copies hold up the GPU", "under 5 %", advice.COPIES)
    yield from _share(
        figures,
        "exposed_communication",
        "Communication is not hidden by computation",
        "under 20 %",
        advice.COMMUNICATION,
    )
    yield from _share(figures, "computation", "The GPU is busy computing", "near 100 %", advice.COMPUTATION, above=0.6)
    yield from _warm_up(view, figures)


def _idle(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    idle = figures.get("idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    found = idle_gaps(view)
    if found is None:
        why = gaps.determinable(view.all_kernels, view.copies, view.api_calls).why
        title = f"The GPU does nothing {idle.text} of the time"
        yield _finding("idle", title, (idle,), f"The cause cannot be told: {why}", advice.UNKNOWN)
        return
    for cause, rows in found.groupby(causes(found)):
        share = figures[f"idle_{cause}_frac"]
        if share.value >= NOTABLE:
            reason, remedies = CAUSES[str(cause)]
            title = f"The GPU does nothing {share.text} of the time because {reason}"
            yield _finding(share.id.removesuffix("_frac"), title, (share, idle), _described(rows), remedies)


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


def _finding(rule: str, title: str, evidence: tuple[Figure, ...], text: str, remedies: advice.Advice) -> Finding:
    share = evidence[0].value
    reason = "at most all of this time disappears; at least none, if the GPU then waits for something else"
    severity = "high" if share >= SEVERE else "medium"
    return Finding(rule, title, severity, text, evidence, "under 10 %", removing(share, reason), remedies)


def _share(
    figures: dict[str, Figure], part: str, title: str, target: str, remedies: advice.Advice, *, above: float = NOTABLE
) -> Iterator[Finding]:
    figure = figures.get(f"{part}_frac")
    if figure is None or figure.value < above:
        return
    severity = "low" if part == "computation" else "high" if figure.value >= SEVERE else "medium"
    explanation = f"{figure.label}: {figure.definition}."
    reason = "at most all of this time disappears"
    if part == "computation":
        reason = "at most everything but the computation disappears; more needs faster kernels"
        gain = Gain(1.0, 1 / figure.value, reason)
    else:
        gain = removing(figure.value, reason)
    yield Finding(part, f"{title}: {figure.text} of the time", severity, explanation, (figure,), target, gain, remedies)


def _warm_up(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    found = steps.detect(view.ranges, view.all_kernels, window=view.window)
    early = found[~found["steady"]]
    if not len(early) or "span_ns" not in figures or early["dur_ns"].sum() < NOTABLE * figures["span_ns"].value:
        return
    steady = steps.steady(found)["dur_ns"].median()
    value = float(early["dur_ns"].sum() / figures["span_ns"].value)
    definition = "time of the steps marked not steady over the span"
    share = Figure("warm_up_frac", "Warm-up in the window", value, "1", definition, "steps.detect")
    text = (
        f"{len(early)} of {len(found)} steps (found by {found['how'].iloc[0]}) are slower than the rest: "
        f"{duration(early['dur_ns'].median())} instead of {duration(steady)} in the median."
    )
    gain = Gain(1.0, 1.0, "warm-up is paid once: leaving it out makes the figures true, not the program faster")
    yield Finding("warm_up", "The measurement contains warm-up", "low", text, (share,), "0 %", gain, advice.WARM_UP)
