"""Rules about launches too small for the GPU and waits that drain it, and about checkpoints.

Half of the launches short, under 10 µs, about what launching one costs (5 to 10 µs), makes launches
small; gaps from 1 ms on (`slowing.pause_ns`) are no longer the cost of launching the next
operation, nor is 50 µs of host code in a gap (conventions). `launch_causes` says how much of each
cause of idle time these rules tell of: that is no second finding.

Checkpoints should take less than a twentieth of the time (convention). A state is saved fast enough
at 2.33 GB/s, the guide's 140 GB in 60 s. What a checkpoint explains is no second finding: idle
time, copies of the state, and collectives of other ranks that last until the rank that saves comes
back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import gaps, operators, timeline
from perfkit.analysis.causes import DETAILS, is_kernel_launch, started_by, where
from perfkit.analysis.checkpoints import CHECKPOINTS, detect
from perfkit.analysis.intervals import cut, ends
from perfkit.diagnosis.finding import AT_MOST, WORST, Figure, Finding, Gain, removing
from perfkit.diagnosis.framework import avoidable, synchronisations
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.replayed import saving, uncapturable, with_others
from perfkit.diagnosis.rules.changes import NO_WAITS
from perfkit.diagnosis.rules.launches import (
    LAUNCH_BLOCKING,
    LAUNCH_OVERHEAD,
    SMALL_OPERATORS,
    SYNCHRONISATION,
)
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import CHECKPOINTING
from perfkit.diagnosis.slowing import PAUSE_NS, pause_ns
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import busy, detected, idle_gaps, idle_parts, span_ns, unrecorded
from perfkit.format import duration, percent, printable, size
from perfkit.selection import Selection
from perfkit.tables import API_CALLS

NOTABLE_CHECKPOINTS = 0.05
FAST_BYTES_PER_S = 140e9 / 60
TITLES = {
    "range": "Checkpoints take",
    "file": "Writing files takes",
    "copies": "Long pauses after copies to the host, as checkpoints make them, take",
}
# What tells a checkpoint, by the column with its time.
WITNESSES = (
    ("named", "Named as saving", "ranges or functions with a name for saving"),
    ("written", "Writing files", "operating-system calls that write files"),
)
SOURCE = "checkpoints.detect"
NOTABLE = 0.1
SHORT_SHARE = 0.5
SHORT_NS = 10_000
BLOCKING = 0.95  # share of launches that wait (convention)
FEWEST_LAUNCHES = 50  # enough launches (convention)
LONG_CODE_NS = 50_000  # five times what launching costs at most (convention)
CAUSES = ("launch", "host_code")
FUSED = "Use a fused optimizer: one kernel in place of several for each parameter (fused=True)"
PAUSES = {
    "launch": "while the CPU is inside a launch call",
    "host_code": "while the CPU runs other code",
    "kernel_wait": "between the launch and the start of the kernel",
}
# of the idle time after waits: where a replay without them saves less, what follows them holds the
# GPU up
HELD_UP = 0.1


def launch_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what launches and waits for the GPU cost."""
    if "idle_frac" not in known:
        return
    yield from _blocking(view)
    yield from _small(view, known)
    yield from _waits(view, known)


def launch_causes(view: Selection, known: Mapping[str, Figure]) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that findings of this module and checkpoints tell of."""
    shares = dict(pauses(view)) if _too_small(view) else {}
    waited = _waited(view, known)
    saved = checkpoint_causes(view)
    if blocking(view) and "idle_launch_frac" in known:
        shares["launch"] = known["idle_launch_frac"].value
    if waited is not None:
        directly = known["idle_sync_frac"].value if "idle_sync_frac" in known else 0.0
        shares["sync"] = min(max(directly - saved.get("sync", 0.0), 0.0), waited.value)
        rest = waited.value - shares["sync"]
        code = min(pauses(view).get("host_code", rest), rest)
        for cause, share in (("host_code", code), ("launch", rest - code)):
            shares[cause] = max(shares.get(cause, 0.0), share)
    return {cause: shares.get(cause, 0.0) + saved.get(cause, 0.0) for cause in {*shares, *saved}}


@kept
def blocking(view: Selection) -> tuple[float, int, int] | None:
    """Return the share of launches that return after their kernel ended, their number and the time of their calls, ns.

    None where it is not nearly all of them, or few are recorded: else at most 2 of 100 do in real
    recordings.
    """
    late, inside = _waiting(cut(view.all_kernels, view.window), view.api_calls)
    if len(late) < FEWEST_LAUNCHES or late.mean() < BLOCKING:
        return None
    return float(late.mean()), len(late), inside


def _waiting(kernels: pd.DataFrame, calls: pd.DataFrame) -> tuple[NDArray[np.bool_], int]:
    """Return which launches return after their kernel ended, and the time of all their calls, ns."""
    call = np.where(kernels["in_graph"], -1, started_by(kernels, calls))
    last = ends(kernels)[1][call >= 0]
    launches = calls[["name", "start_ns", "dur_ns"]].take(call[call >= 0])
    is_one = where(launches["name"], is_kernel_launch)
    return (ends(launches)[1] >= last)[is_one], int(launches["dur_ns"].to_numpy()[is_one].sum())


def _blocking(view: Selection) -> Iterator[Finding]:
    """A setting for debugging makes each launch wait for its kernel, so the CPU never runs ahead of the GPU."""
    found = blocking(view)
    span = span_ns(view)
    if found is None or unrecorded(view) or not span:
        return
    late, count, inside = found
    inside = min(inside, span)
    waits = Figure(
        "blocking_launch_frac",
        "Launches that wait",
        late,
        "1",
        "share of the kernel launches whose call returns only after the kernel has ended",
        "KERNELS, API_CALLS",
    )
    cost = Figure(
        "blocking_wait_frac",
        "Time in these launches",
        inside / span,
        "1",
        "share of the span that the CPU spends in these launch calls",
        "KERNELS, API_CALLS",
    )
    text = (
        f"{waits.text} of {count:,} launch calls return only after their kernel has ended. The "
        "environment variable "
    )
    text += "CUDA_LAUNCH_BLOCKING=1 does this, and so do tools for debugging."
    rest = max(span - inside, float(busy(view)["kernel_busy_ns"].sum()), 1.0)
    high = span / rest
    reason = (
        "best case: the run saves all of the time in these calls, and kernels run while the CPU "
        "prepares the next"
    )
    gain = Gain(1.0, max(high, 1.0), reason, max(1 - 1 / high, 0.0))
    title = f"Launches that wait for their kernels take {cost.text} {of_the_time(view)}"
    yield tell(LAUNCH_BLOCKING, title, text, (waits, cost), gain)


@kept
def pauses(view: Selection) -> dict[str, float]:
    """Return the share of the span in gaps before a launch that are no pause (`pause_ns`), by cause.

    Code of the host that is much longer than a launch on average is no cost of launching, unless
    operators run it.
    """
    gaps = idle_gaps(view)
    span = span_ns(view)
    if gaps is None or not span:
        return {}
    columns = {f"{part}_ns" for part in (*DETAILS, *CAUSES, "kernel_wait")}
    short = gaps.loc[gaps["dur_ns"] < pause_ns(view), sorted(columns)]
    pauses = {cause: float(short[f"{cause}_ns"].sum() / span) for cause in CAUSES}
    if blocking(view):  # a finding of its own
        pauses["launch"] = 0.0
    code = short.loc[short["host_code_ns"] > 0, "host_code_ns"]
    if view.framework.ops.empty and len(code) and code.mean() >= LONG_CODE_NS:
        pauses["host_code"] = 0.0
    # A launch that came late arrives later still; what was queued before the gap began waits for
    # nothing of the host.
    late = short[[f"{detail}_ns" for detail in DETAILS]].sum(axis=1) > 0
    return {**pauses, "kernel_wait": float(short.loc[late, "kernel_wait_ns"].sum() / span)}


@kept
def _small_launches(view: Selection) -> tuple[float, str]:
    """Return the share of launches, but of graphs, that are small, and whose they are.

    Operators where recorded.
    """
    of_ops = view.framework
    if not of_ops.ops.empty:
        alone = of_ops.kernels[~of_ops.kernels["in_graph"]]
        small = operators.many_small(
            of_ops.ops, alone, of_ops.api_calls, window=view.window
        ).dropna(subset=["name"])
        return float(small["count_frac"].sum()), ", ".join(
            printable(name, 40) for name in small["name"].head(3)
        )
    inside = cut(
        view.kernels.loc[~view.kernels["in_graph"], ["name", "start_ns", "dur_ns"]], view.window
    )
    short = inside[inside["dur_ns"] < SHORT_NS]
    names = short["name"].astype("string").value_counts().index[:3]
    return len(short) / max(len(inside), 1), ", ".join(printable(name, 40) for name in names)


def _too_small(view: Selection) -> bool:
    return (
        not unrecorded(view)
        and sum(pauses(view).values()) >= NOTABLE
        and len(view.kernels) > 0
        and _small_launches(view)[0] >= SHORT_SHARE
    )


def _small(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The program is made of kernels too small for the GPU, and the GPU waits for their launches."""
    if not _too_small(view):
        return
    share, names = _small_launches(view)
    by_cause = pauses(view)
    idle = sum(by_cause.values())
    limit_ns = pause_ns(view)
    longest = "1 ms" if limit_ns == PAUSE_NS else duration(limit_ns)
    pause = Figure(
        "launch_pause_frac",
        "Idle between launches",
        idle,
        "1",
        (
            f"share of the span during which the GPU was idle in gaps under {longest}, until the "
            "CPU launched more work"
        ),
        "gaps.idle_gaps",
    )
    framework = not view.framework.ops.empty
    what, source = ("operators", "operators.many_small") if framework else ("kernels", "KERNELS")
    whose = "operators with a median kernel under 10 µs" if framework else "kernels under 10 µs"
    figure = Figure(
        "small_op_frac",
        f"Launches of small {what}",
        share,
        "1",
        f"share of all launches outside graphs that come from {whose}",
        source,
    )
    title = f"Launching small {what} keeps the GPU idle {pause.text} {of_the_time(view)}"
    those = "operators with kernels under 10 µs" if framework else "kernels under 10 µs"
    text = f"{figure.text} of the launches start {those}, most often {names}."
    if parts := [
        f"{percent(by_cause[cause])} {what}"
        for cause, what in PAUSES.items()
        if by_cause.get(cause)
    ]:
        text += f" In these gaps the GPU is idle, as shares of the whole time: {'. '.join(parts)}."
    if why := uncapturable(view):
        text += f" {why[0].upper()}{why[1:]}."
    rule = SMALL_OPERATORS if framework else LAUNCH_OVERHEAD
    optimizer = _of_optimizer(view)
    gain = removing(idle, AT_MOST, worst=WORST)
    first = ""
    if optimizer:
        gain = with_others(gain, {"computation": optimizer})
        first = FUSED
    yield tell(rule, title, text, (pause, figure), gain, first=first, is_mean=True)


def _of_optimizer(view: Selection) -> float:
    """Return the share of the span that small kernels of an optimizer take, if most small kernels are of one."""
    inside = cut(view.kernels, view.window)
    small = inside[(inside["dur_ns"] < SHORT_NS) & ~inside["in_graph"]]
    of_optimizer = small["family"].eq("optimizer")
    if not len(small) or of_optimizer.mean() < SHORT_SHARE:
        return 0.0
    return float(small.loc[of_optimizer, "dur_ns"].sum() / span_ns(view))


def _waited(view: Selection, known: Mapping[str, Figure]) -> Figure | None:
    """Return the idle time after waits that other causes do not explain.

    None where it is little, or told already. A replay without the waits judges whether they hold
    the GPU up. What the host does for `slowing.PAUSE_NS` or more is not what a wait costs, also where it
    follows one.
    """
    idle = known.get("sync_idle_frac")
    directly = known.get("idle_sync_frac")
    if (
        idle is None
        or idle.value < NOTABLE
        or (directly is not None and directly.value >= idle.value)
    ):
        return None
    gained = saving(view, NO_WAITS)
    saved = checkpoint_causes(view)
    share = idle.value
    if gained is not None and gained < HELD_UP * share:
        return None  # what follows the waits holds the GPU up, not the waits
    inside = directly.value if directly is not None else 0.0
    if directly is not None:
        share = min(share, max(inside - saved.get("sync", 0.0), 0.0) + sum(pauses(view).values()))
    # Where the gaps show most of it to lie inside the waits, the system's finding on these tells
    # it.
    if share - (inside if inside >= NOTABLE else 0.0) < NOTABLE:
        return None
    if share == idle.value:
        return idle
    definition = (
        f"{idle.definition}; without idle time that other causes, or CPU code of 1 ms or more, "
        "explain"
    )
    return Figure(
        "wait_idle_frac",
        "Idle after waits, not explained otherwise",
        share,
        "1",
        definition,
        idle.source,
    )


def _waits(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The host waits for the GPU, has nothing queued, and the GPU waits for it in turn."""
    idle = _waited(view, known)
    if idle is None:
        return
    of_op = view.framework
    per_cause = operators.synchronisation_summary(avoidable(synchronisations(of_op)))
    most = per_cause.iloc[int(per_cause[["idle_ns", "total_ns"]].min(axis=1).to_numpy().argmax())]
    origin = next(
        (str(most[c]) for c in ("outermost", "operator", "api") if pd.notna(most[c])), "a call"
    )
    line = f" at {printable(most['line'], 120)}" if pd.notna(most["line"]) else ""
    title = f"Waits of the CPU for the GPU leave the GPU idle up to {percent(idle.value)} {of_the_time(view)}"
    count = int(most["count"])
    where_most = f"{printable(origin, 80)}{line}"
    text = f"The CPU waits {known['sync_count'].text} times. "
    text += (
        f"The most costly waits are {count:,} by {where_most}."
        if count > 1
        else f"The most costly wait is one by {where_most}."
    )
    evidence = (idle, known["sync_count"])
    gain = removing(idle.value, AT_MOST, worst=WORST)
    yield tell(SYNCHRONISATION, title, text, evidence, gain)


@kept
def checkpoints(view: Selection) -> pd.DataFrame:
    """Return `analysis.checkpoints.detect` of a selection.

    Empty where they take too little time for a finding. Empty too where it is not known when the
    GPU worked.
    """
    if unrecorded(view) or view.all_kernels.empty:
        return CHECKPOINTS.empty()
    tables = view.all_kernels, view.copies, view.api_calls
    calls = {"python_calls": view.python_calls, "os_calls": view.os_calls}
    found = detect(*tables, ranges=view.ranges, steps=detected(view), window=view.window, **calls)
    return (
        found if len(found) and _share(view, found) >= NOTABLE_CHECKPOINTS else CHECKPOINTS.empty()
    )


def checkpoint_causes(view: Selection) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that lies in checkpoints.

    "idle" where no cause is known.
    """
    found = checkpoints(view)
    span = span_ns(view)
    if found.empty:
        return {}
    idle = idle_gaps(view)
    if idle is None:
        tables = view.all_kernels, view.copies, API_CALLS.empty()
        idle = gaps.idle_gaps(*tables, window=view.measured)
        return {"idle": float(idle.loc[inside(view, idle), "dur_ns"].sum() / span)}
    by_cause = idle_parts(idle[inside(view, idle)]).sum()
    return {str(cause): float(ns / span) for cause, ns in by_cause.items() if ns}


def inside(view: Selection, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which rows of a table with rank, gpu and start_ns begin in a checkpoint of their device."""
    found = checkpoints(view)
    if found.empty or rows.empty:
        return np.zeros(len(rows), bool)
    keys = ["rank", "gpu", "start_ns"]
    places = rows[keys].assign(row=np.arange(len(rows))).sort_values("start_ns", kind="stable")
    until = (
        found[keys]
        .assign(end_ns=found["start_ns"] + found["dur_ns"])
        .sort_values("start_ns", kind="stable")
    )
    joined = pd.merge_asof(places, until, on="start_ns", by=["rank", "gpu"]).sort_values(
        "row", kind="stable"
    )
    return np.asarray(joined["start_ns"] < joined["end_ns"])


@kept
def waiting(view: Selection) -> float:
    """Return the share of the span in which ranks only communicate while another one saves."""
    return _waiting_ns(view, checkpoints(view)) / max(span_ns(view), 1)


def _share(view: Selection, found: pd.DataFrame) -> float:
    return (int(found["dur_ns"].sum()) + _waiting_ns(view, found)) / max(span_ns(view), 1)


def _waiting_ns(view: Selection, found: pd.DataFrame) -> int:
    """Return the time in which GPUs only communicate while another one saves, summed over them."""
    total = 0
    devices = view.all_kernels[["rank", "gpu"]].drop_duplicates()
    if found.empty or len(devices) < 2:
        return total
    for rank, gpu, start, dur in found[["rank", "gpu", "start_ns", "dur_ns"]].itertuples(
        index=False
    ):
        parts = timeline.breakdown(
            view.all_kernels, view.copies, window=(int(start), int(start + dur))
        )
        is_another = parts["rank"].ne(rank) | parts["gpu"].ne(gpu)
        total += int(parts.loc[is_another, "exposed_communication_ns"].sum())
    return total


def checkpoint_findings(view: Selection) -> Iterator[Finding]:
    """Yield what it costs that state is saved, or files are written, while the GPU waits."""
    found = checkpoints(view)
    if found.empty:
        return
    share = min(_share(view, found), 1.0)
    evidence = tuple(_evidence(view, found, share))
    witness = str(found.groupby("witness", observed=True)["dur_ns"].sum().idxmax())
    title = f"{TITLES[witness]} {percent(share)} {of_the_time(view)}"
    gain = removing(
        share, "best case: the run saves all of this time; copying the state to the CPU remains"
    )
    # The GPU that saves most holds up the others for longer than they wait idly.
    longest_ns = found.groupby(["rank", "gpu"])["dur_ns"].sum().max()
    whole = min(float(longest_ns) * len(busy(view)) / span_ns(view), 1.0)
    gain = with_others(gain, {"collective": whole - share})
    text = _described(found, {figure.id: figure for figure in evidence})
    finding = tell(CHECKPOINTING, title, text, evidence, gain)
    longest = found.iloc[int(found["dur_ns"].to_numpy().argmax())]
    yield replace(finding, seen_at=(int(longest["start_ns"]), int(longest["dur_ns"])))


def _evidence(view: Selection, found: pd.DataFrame, share: float) -> Iterator[Figure]:
    """Yield how long checkpoints take, how far apart they are, what they save, and how that is known."""
    lasted = found["dur_ns"]
    what = "periods without a kernel in which the program saves its state or writes files"
    waits = " and of other ranks' collectives during them" if waiting(view) else ""
    of_span = f"share of the span: time of {what}{waits}"
    median = f"median length of the {what}"
    yield Figure("checkpoint_frac", "Checkpoints", share, "1", of_span, SOURCE)
    number = f"number of {what}, on all GPUs"
    yield Figure("checkpoint_count", "Checkpoints seen", len(found), "count", number, SOURCE)
    yield Figure("checkpoint_ns", "A checkpoint", float(lasted.median()), "ns", median, SOURCE)
    apart = distances(view)
    if len(apart):
        between = "median number of steps between two checkpoints of a rank"
        count = float(np.median(apart))
        yield Figure("checkpoint_steps_count", "Steps between", count, "count", between, SOURCE)
    saved = found[found["bytes"] > 0]
    if len(saved):
        value = float(saved["bytes"].median())
        copied = "median of the bytes that a checkpoint copies to the CPU"
        yield Figure("checkpoint_bytes", "State saved", value, "bytes", copied, SOURCE)
        rate = float((saved["bytes"] / saved["dur_ns"]).median() * 1e9)
        per_s = (
            "bytes of a checkpoint per second of its length; the guide asks for 140 GB in 60 s, "
        )
        per_s += "2.3 GB/s"
        yield Figure("checkpoint_bytes_per_s", "Rate of saving", rate, "bytes/s", per_s, SOURCE)
    for column, label, by in WITNESSES:
        part = float(found[f"{column}_ns"].sum() / lasted.sum())
        if part:
            inside_it = f"share of the checkpoints' time inside {by}"
            yield Figure(f"checkpoint_{column}_frac", label, part, "1", inside_it, SOURCE)


def distances(view: Selection) -> NDArray[np.int64]:
    """Return the numbers of steps from each checkpoint of a rank to its next, all ranks together."""
    known = checkpoints(view)[["rank", "step"]]
    known = known[known["step"] >= 0].drop_duplicates()
    return np.asarray(known.groupby("rank")["step"].diff().dropna(), np.int64)


def _described(found: pd.DataFrame, known: dict[str, Figure]) -> str:
    """Return how many checkpoints there are, how fast they save, and what the program calls them."""
    text = f"{len(found):,} of them, {known['checkpoint_ns'].text} in the median"
    if "checkpoint_steps_count" in known:
        text += f", {known['checkpoint_steps_count'].text} steps apart"
    text += f"; the first begins at {found['start_ns'].iloc[0] / 1e9:.3f} s."
    if "checkpoint_bytes" in known:
        rate = known["checkpoint_bytes_per_s"]
        slower = "slower" if rate.value < FAST_BYTES_PER_S else "no slower"
        text += (
            f" {known['checkpoint_bytes'].text} are copied to the host in each, {rate.text} of its "
            f"time: {slower} than the guide's {size(FAST_BYTES_PER_S)}/s."
        )
    for name in found.loc[found["name"] != "", "name"].head(1):
        text += f" The program was inside “{printable(str(name), 100)}”."
    return text
