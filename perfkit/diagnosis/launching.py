"""Rules about launches: kernels too small for the GPU, which waits for the next of them, and waits that drain it.

Thresholds: half of the launches short, under 10 µs, about what launching one costs (facts of the sources: 5 to 10 µs);
a tenth of the time is worth a look and three tenths are severe (conventions). Gaps from 1 ms on are no longer the
cost of launching the next operation (convention). What these rules tell of is no second finding of idle time: `told`
says how much of each cause of idle time they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from perfkit.analysis import operators
from perfkit.analysis.window import cut
from perfkit.diagnosis import advice, checkpointing
from perfkit.diagnosis.figures import idle_gaps, span_ns, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, removing, severity
from perfkit.diagnosis.framework import avoidable, synchronisations
from perfkit.diagnosis.kept import kept
from perfkit.format import percent, printable
from perfkit.selection import Selection

NOTABLE = 0.1
SHORT_SHARE, SHORT_NS = 0.5, 10_000
PAUSE_NS = 1_000_000
CAUSES = ("launch", "host_code")
AT_MOST = "at most all of this time disappears; at least none, if the GPU then waits for something else"


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what launches and waits for the GPU cost."""
    if "idle_frac" not in known:
        return
    yield from _small(view, known)
    yield from _waits(view, known)


def told(view: Selection, known: Mapping[str, Figure]) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that findings of this module and checkpoints tell of."""
    shares = dict(_pauses(view)) if _too_small(view) else {}
    waited = _waited(view, known)
    if waited is not None:
        directly = known["idle_sync_frac"].value if "idle_sync_frac" in known else 0.0
        shares["host_code"] = max(shares.get("host_code", 0.0), waited.value - directly)
    saved = checkpointing.told(view)
    return {cause: shares.get(cause, 0.0) + saved.get(cause, 0.0) for cause in {*shares, *saved}}


@kept
def _pauses(view: Selection) -> dict[str, float]:
    """Return the share of the span in gaps under 1 ms that end when the host launches the next kernel, by cause."""
    gaps, span = idle_gaps(view), span_ns(view)
    if gaps is None or not span:
        return {}
    short = gaps[gaps["dur_ns"] < PAUSE_NS]
    total = short["dur_ns"].groupby(short["detail"], observed=True).sum()
    return {cause: float(total.get(cause, 0) / span) for cause in CAUSES}


@kept
def _small_launches(view: Selection) -> tuple[float, str]:
    """Return the share of launches, but of graphs, that are small, and whose they are; operators where recorded."""
    of_ops = view.framework
    if not of_ops.ops.empty:
        alone = of_ops.kernels[~of_ops.kernels["in_graph"]]
        small = operators.many_small(of_ops.ops, alone, of_ops.api_calls, window=view.window).dropna(subset=["name"])
        return float(small["count_frac"].sum()), ", ".join(printable(name, 40) for name in small["name"].head(3))
    inside = cut(view.kernels[~view.kernels["in_graph"]], view.window)
    short = inside[inside["dur_ns"] < SHORT_NS]
    names = short["name"].astype("string").value_counts().index[:3]
    return len(short) / max(len(inside), 1), ", ".join(printable(name, 40) for name in names)


def _too_small(view: Selection) -> bool:
    return (
        not unrecorded(view)
        and sum(_pauses(view).values()) >= NOTABLE
        and len(view.kernels) > 0
        and _small_launches(view)[0] >= SHORT_SHARE
    )


def _small(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The program is made of kernels too small for the GPU, and the GPU waits for their launches."""
    if not _too_small(view):
        return
    share, names = _small_launches(view)
    by_cause = _pauses(view)
    idle = sum(by_cause.values())
    definition = "idle time in gaps under 1 ms that end when the host launches the next operation, over the span"
    pause = Figure("launch_pause_frac", "Idle between launches", idle, "1", definition, "gaps.idle_gaps")
    framework = not view.framework.ops.empty
    what, source = ("operators", "operators.many_small") if framework else ("kernels", "KERNELS")
    whose = "by operators whose kernels last under 10 µs in the median" if framework else "of kernels under 10 µs"
    definition = f"launches {whose}, over all launches but of graphs"
    figure = Figure("small_op_frac", f"Launches of small {what}", share, "1", definition, source)
    title = f"The GPU is idle for {pause.text} of the time between the launches of small {what}"
    those = "of operators whose kernels last under 10 µs" if framework else "of kernels under 10 µs"
    text = f"{figure.text} of the launches are {those}, most often {names}."
    text += _part_of(known, by_cause)
    rule = "small_operators" if framework else "launch_overhead"
    gain = removing(idle, AT_MOST)
    yield Finding(rule, title, severity(idle), text, (pause, figure), "under 10 %", gain, advice.LAUNCH)


def _part_of(known: Mapping[str, Figure], by_cause: Mapping[str, float]) -> str:
    """Say of which idle time these pauses are a part; empty where that is not known."""
    cause = max(by_cause, key=lambda name: by_cause[name])
    whole = known.get(f"idle_{cause}_frac")
    called = "the host runs code of its own" if cause == "host_code" else "the host is launching"
    return f" It is a part of the {whole.text} in which the GPU is idle while {called}." if whole else ""


def _waited(view: Selection, known: Mapping[str, Figure]) -> Figure | None:
    """Return the idle time after waits that other causes do not explain; None where it is little, or told already."""
    idle, directly = known.get("sync_idle_frac"), known.get("idle_sync_frac")
    if idle is None or (directly is not None and directly.value >= idle.value):
        return None
    saved = checkpointing.told(view)
    causes = {c: known[f"idle_{c}_frac"].value for c in ("sync", *CAUSES) if f"idle_{c}_frac" in known}
    rest = sum(max(share - saved.get(cause, 0.0), 0.0) for cause, share in causes.items())
    share = min(idle.value, rest) if causes else idle.value
    if share < NOTABLE or share == idle.value:
        return idle if share >= NOTABLE else None
    definition = f"{idle.definition}; less what other causes of idle time explain"
    return Figure("wait_idle_frac", "Idle after waits, not explained otherwise", share, "1", definition, idle.source)


def _waits(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The host waits for the GPU, has nothing queued, and the GPU waits for it in turn."""
    idle = _waited(view, known)
    if idle is None:
        return
    of_op = view.framework
    per_cause = operators.synchronisation_summary(avoidable(synchronisations(of_op)))
    most = per_cause.iloc[int(per_cause[["idle_ns", "total_ns"]].min(axis=1).to_numpy().argmax())]
    origin = next((str(most[c]) for c in ("outermost", "operator", "api") if pd.notna(most[c])), "a call")
    line = f" at {printable(most['line'], 120)}" if pd.notna(most["line"]) else ""
    title = f"The GPU runs dry because the CPU waits for it, for up to {percent(idle.value)} of the time"
    where_most = f"{int(most['count'])} by {printable(origin, 80)}{line}"
    text = f"{known['sync_count'].text} waits; the most costly are {where_most}."
    evidence = (idle, known["sync_count"])
    gain = removing(idle.value, AT_MOST)
    yield Finding("synchronisation", title, severity(idle.value), text, evidence, "under 10 %", gain, advice.SYNC)
