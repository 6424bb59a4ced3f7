"""Rules for a call-path profile: an idle GPU, copies, waiting warps, small kernels, and the hottest host code.

Thresholds: a GPU busy for less than 0.7 of the wall time is idle too often, copies above 0.1 and a stall above
0.3 of their whole are worth a look, and a kernel under 10 µs is shorter than what launching it can cost
(conventions; the cost of a launch is 5 to 10 µs). Gains refer to the wall time where the trace tells it: what
happens on a GPU that is idle can gain no more than the GPU's share of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfkit.analysis import calltree
from perfkit.analysis.stalls import words
from perfkit.diagnosis import advice
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.format import percent, printable
from perfkit.selection import Selection

BUSY, NOTABLE, SEVERE, SHORT_NS = 0.7, 0.1, 0.3, 10_000
NO_WALL = "the length of the run was not recorded, so the gain of the whole program is unknown"


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the figures of a run's call paths show, rule by rule."""
    if view.run.calltree.empty:
        return
    yield from _idle(known)
    yield from _copies(known)
    yield from _stall(known)
    yield from _launches(known)
    yield from _host(view, known)


def _idle(known: dict[str, Figure]) -> Iterator[Finding]:
    busy = known.get("paths_gpu_busy_frac")
    if busy is None or busy.value >= BUSY:
        return
    title = f"The GPU works for {busy.text} of the wall time"
    text = f"{known['paths_operation_ns'].text} of GPU operations in {known['paths_wall_ns'].text}: {busy.definition}."
    reason = "at most all time without GPU work disappears; this includes every other gain of the host"
    gain = removing(1 - busy.value, reason)
    severity = "high" if 1 - busy.value >= SEVERE else "medium"
    evidence = (busy, known["paths_operation_ns"], known["paths_wall_ns"])
    yield Finding("paths_gpu_idle", title, severity, text, evidence, "above 70 %", gain, advice.IDLE_GPU)


def _copies(known: dict[str, Figure]) -> Iterator[Finding]:
    share = known.get("paths_copy_frac")
    if share is None or share.value < NOTABLE:
        return
    evidence = tuple(known[f"paths_{i}"] for i in ("copy_frac", "copy_ns", "h2d_bytes") if f"paths_{i}" in known)
    title = f"Copies take {share.text} of the GPU's kernel and copy time"
    text = f"{known['paths_copy_ns'].text} in {known['paths_copy_count'].text} copies."
    gain = _of_wall(known, "paths_copy_ns", "at most all copies disappear behind computation")
    yield Finding("paths_copies", title, _severity(share, gain), text, evidence, "under 10 %", gain, advice.COPIES)


def _stall(known: dict[str, Figure]) -> Iterator[Finding]:
    share = known.get("paths_main_stall_frac")
    if share is None or share.value < SEVERE:
        return
    reason = share.label.rpartition(" ")[2]
    said = words.get(reason)
    title = f"Warps that wait do so for {reason} in {share.text} of their samples"
    text = said.means if said else "The reason is not one perfkit has words for."
    helps = advice.stall(said.helps if said else "Look at the kernel's source lines with the most samples.")
    gain = _of_wall(
        known, "paths_kernel_ns", "at most the time of all kernels, since a share of samples is no share of time"
    )
    yield Finding("paths_stall", title, _severity(share, gain), text, (share,), "under 30 %", gain, helps)


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
    yield Finding("paths_launches", title, severity, text, evidence, "longer kernels", gain, advice.LAUNCH)


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
    gain = removing(share, "at most this CPU time disappears, if it was on the critical path")
    severity = "medium" if share >= SEVERE else "low"
    evidence = (figure, total)
    yield Finding("paths_host", title, severity, text, evidence, "less", replace(gain, share=None), advice.HOST_PATH)


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
