"""Rules at the level of the system: idle time and its cause, computation, tensor cores, memory bandwidth.

Idle time that another rule tells of more precisely is not told twice: only the rest of its cause is a finding here, if
it is a tenth of the time, or half of an idle time of a tenth (conventions).
Samples are held against the time in which kernels run, not against the span. A tensor pipe that works for under a tenth
of the time in which matrix work runs hardly works (convention; the guide's target for matrix kernels is 85 %). The
memory bounds the kernels from 60 % of its bandwidth on (Nsight Compute, rule SOLBottleneck), and is saturated at 80 %
(the guide).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut
from perfkit.analysis.operators import totals
from perfkit.diagnosis import timeline
from perfkit.diagnosis.finding import HORIZONS, Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.framework import VOLTA, capability, formats
from perfkit.diagnosis.replayed import slowed
from perfkit.diagnosis.rules import rules, tell
from perfkit.diagnosis.speed import by_operator, operated
from perfkit.diagnosis.timeline import busy
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

NOTABLE, COMPUTING = 0.1, 0.6
LOOKED_AT = 20  # longest waits of which the calls of the operating system are named
PLANS = "Find out why this operator takes so long on the CPU: perhaps it makes a new plan for each new shape"
STEP = re.compile("ProfilerStep#")
NOT_REPLAYED = "; not replayed, since nothing recorded says how much of it could go"
# What keeps a GPU idle, by the cause of a gap; the last has no cause that can be told.
CAUSES = {
    "data_loading": "Data loading keeps",
    "sync": "CPU calls that wait for the GPU keep",
    "memory": "CPU calls that allocate or free memory keep",
    "launch": "CPU calls that launch work keep",
    "cuda_call": "Other CUDA calls of the CPU keep",
    "mpi": "MPI calls of the CPU keep",
    "system": "Calls of the operating system keep",
    "host_code": "CPU code outside CUDA keeps",
    "kernel_wait": "Gaps between dependent kernels keep",
    "other": "A wait that was not recorded keeps",
    "unattributed": "Launches that were not recorded keep",
    "edge": "Start and end of the work keep",
    "": "A cause that is unknown keeps",
}
NOTABLE_THROUGHPUT, IDLE_PIPE, BOUND, SATURATED, HALF = 0.1, 0.1, 0.6, 0.8, 0.5


def findings(
    view: Selection, figures: dict[str, Figure], told: Mapping[str, float], once: Mapping[str, float]
) -> Iterator[Finding]:
    """Yield what the figures show, rule by rule.

    `told`: shares of the span that other findings cover, by cause; `once`: shares that are paid once, which is no gain.
    """
    yield from _idle(view, figures, told, once)
    yield from _computation(view, figures)


def _idle(
    view: Selection, figures: dict[str, Figure], told: Mapping[str, float], once: Mapping[str, float]
) -> Iterator[Finding]:
    idle = figures.get("idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    found = timeline.idle_gaps(view)
    if found is None:
        why = timeline.explained(view).why
        rest = idle.value - told.get("idle", 0.0)
        title = _who(view, "", rest)
        if rest >= NOTABLE:
            yield _finding("idle", title, (idle,), f"The recording does not show the cause: {why}", rest, idle.value)
        return
    recurring = idle.value - sum(once.values())
    for cause, part in timeline.idle_parts(found).items():
        share = figures[f"idle_{cause}_frac"]
        covered, loaded = (shares.get(str(cause), 0.0) for shares in (told, once))
        rest = share.value - covered - loaded
        if rest >= NOTABLE or rest >= HALF * recurring >= HALF * NOTABLE:
            title = _who(view, str(cause), rest)
            rows = found[part > 0].assign(part_ns=part)  # the profiler's marks of steps are no place in a program
            rows["range"] = rows["range"].mask(where(rows["range"], STEP.match))
            text = _described(rows)
            if cause in ("cuda_call", "system"):
                text += _inside_calls(view, rows, str(cause))
            inside = _inside_operator(view, rows) if cause == "host_code" and slowed(view) > 1 else ""
            text += inside
            if rest < share.value:
                text += f" In all, this cause takes {share.text} of the time."
                text += f" Another finding covers {percent(covered)} of the time." if covered else ""
                text += f" Loading kernels, which a process does once, takes {percent(loaded)}." if loaded else ""
            by_range = rows["part_ns"].groupby(rows["range"], observed=True).sum()
            is_most = len(by_range) and by_range.max() >= HALF * rows["part_ns"].sum()
            yield replace(
                _finding(f"idle_{cause}", title, (share, idle), text, rest, idle.value, loaded),
                place=f"range “{printable(by_range.idxmax(), 100)}”" if is_most else "",
                advice={HORIZONS[0]: (PLANS,)} if inside else {},
            )


def _who(view: Selection, cause: str, rest: float) -> str:
    """Return what keeps which GPU idle, and how long; of several the idlest one, or all where they agree."""
    gpus, keeps = busy(view), CAUSES[cause]
    if len(gpus) < 2:
        return f"{keeps} the GPU idle {percent(rest)} of the time"
    (least_of, least), (most_of, most) = timeline.extremes(gpus, timeline.idle_shares(view, cause))
    if most - least < NOTABLE:
        reach = " to ".join(dict.fromkeys((percent(least), percent(most))))
        return f"{keeps} each of {len(gpus)} GPUs idle {reach} of the time"
    return f"{keeps} {most_of} idle {percent(most)} of the time ({least_of}: {percent(least)})"


def _described(rows: pd.DataFrame) -> str:
    """Say how many gaps there are, how long, and in which range of the program most of the waiting happened."""
    longest = rows.iloc[int(rows["part_ns"].to_numpy().argmax())]
    by_range = rows["part_ns"].groupby(rows["range"], observed=True).sum()
    inside = "No NVTX range covers these gaps."
    if by_range.sum():
        share = float(by_range.max() / rows["part_ns"].sum())
        inside = f"The program was inside “{printable(by_range.idxmax(), 100)}” for {percent(share)} of that."
        inside = inside if share >= NOTABLE else "No range of the program covers 10 % of that."
    return (
        f"This takes {duration(rows['part_ns'].sum())} in {len(rows):,} gaps. The longest part is "
        f"{duration(longest['part_ns'])}, in a gap of {duration(longest['dur_ns'])} that begins at "
        f"{longest['start_ns'] / 1e9:.3f} s. {inside}"
    )


def _inside_calls(view: Selection, rows: pd.DataFrame, cause: str) -> str:
    """Say in which call the launching thread spent most of the waits; of calls of the system, of the longest waits."""
    if cause == "cuda_call":
        by_call = rows.groupby(rows["api"].astype("string"))["part_ns"].sum()
        return f" The CPU spent most of it in {printable(by_call.idxmax(), 80)}." if len(by_call) else ""
    waits, calls = rows.nlargest(LOOKED_AT, "part_ns"), view.os_calls
    keys = ["rank", "process", "thread"]
    both = waits[[*keys, "start_ns", "dur_ns"]].merge(calls, on=keys, suffixes=("", "_call"))
    last = np.minimum(both["start_ns"] + both["dur_ns"], both["start_ns_call"] + both["dur_ns_call"])
    inside = pd.Series(last - np.maximum(both["start_ns"], both["start_ns_call"]), both.index).clip(lower=0)
    by_call = inside.groupby(both["name"].astype("string")).sum()
    which = f"the {len(waits)} longest of them" if len(waits) < len(rows) else "it"
    return f" The CPU spent most of {which} in {printable(by_call.idxmax(), 80)}." if len(by_call) else ""


def _inside_operator(view: Selection, rows: pd.DataFrame) -> str:
    """Say in which operator the CPU was in the middle of most of this time, or in none."""
    ops, place = view.framework.ops, rows.assign(start_ns=rows["start_ns"] + rows["part_ns"] // 2)
    name = np.asarray(totals.named(ops, totals.open_at(ops, place)).astype(object))
    shares = rows["part_ns"].groupby(name).sum() / rows["part_ns"].sum()
    if shares.empty or shares.max() < HALF:
        return ""
    inside = printable(str(shares.idxmax()), 80)
    return f" For {percent(float(shares.max()))} of it the CPU worked inside the operator “{inside}”."


def _finding(
    rule: str, title: str, evidence: tuple[Figure, ...], text: str, share: float, idle: float, once: float = 0.0
) -> Finding:
    most = evidence[0].value - once  # of the whole cause, also where another finding tells a part
    saved = f"the {percent(most)} with this cause" if most > share else "this time"
    reason = f"best case: the run saves all of {saved}; worst case: none, because the GPU then waits for something else"
    reason += "" if rules()[rule].change else NOT_REPLAYED
    level = "low" if rule == "idle_edge" else severity(share)
    gain = removing(most, reason, idle=idle)
    return tell(rule, title, level, text, evidence, replace(gain, share=share))


def _computation(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    computing = figures.get("computation_frac")
    if computing is None or computing.value < COMPUTING:
        return
    title, parts = f"The GPU computes {computing.text} of the time", timeline.breakdown(view)
    if len(parts) > 1:
        (_, least), (_, most) = timeline.extremes(parts, parts["computation_ns"] / parts["span_ns"])
        title = f"{len(parts)} GPUs compute {percent(least)} to {percent(most)} of the time"
    reason = "best case: only the computation remains; saving more needs faster kernels"
    edge = figures["idle_edge_frac"].value if "idle_edge_frac" in figures else 0.0  # a GPU may have no work yet
    gain = Gain(1.0, 1 / (computing.value + edge), reason)
    text = f"{computing.label}: {computing.definition}."
    if slowed(view) > 1 and len(kernels := operated(view.framework)):  # shares of what the operators are known of
        share = kernels["dur_ns"] / kernels["dur_ns"].sum() * figures["kernel_busy_frac"].value
        text += f" {by_operator(kernels, share)}."
    yield tell("computation", title, "low", text, (computing,), gain)


def throughput_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what the kernels leave unused or exhaust."""
    if "kernel_busy_frac" not in known or timeline.unrecorded(view):
        return
    yield from _tensor_cores(view, known)
    yield from _bandwidth(known)


def while_running(known: Mapping[str, Figure], *sampled: str) -> float | None:
    """Return the sum of sampled shares over the share of the time in which kernels run; None where not sampled."""
    busy = known["kernel_busy_frac"].value
    found = [known[f"sample_{name}"].value for name in sampled if f"sample_{name}" in known]
    return min(sum(found) / busy, 1.0) if found and busy else None


def _tensor_cores(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Matrix work on CUDA cores, by the names of the kernels or the samples of the tensor pipe."""
    times = formats(view).astype({"tensor_cores": str}).groupby("tensor_cores")["total_ns"].sum()
    total, without, named = int(times.sum()), int(times.get("no", 0)), int(times.get("yes", 0))
    pipe, span = while_running(known, "tensor_active_frac"), timeline.span_ns(view)
    idle_pipe = pipe is not None and pipe < IDLE_PIPE
    # Samples of an idle pipe say it only where the names do not say that tensor cores are used: a kernel that waits for
    # memory leaves its pipe idle too.
    unused = max(without, total if idle_pipe and named < HALF * total else 0)
    if not span or unused < NOTABLE_THROUGHPUT * span or capability(view) < VOLTA:
        return
    # Where operators are there and name full precision, the rule on number formats says it already.
    if not view.framework.ops.empty and analysis_kernels.mixed(formats(view.framework)).active is False:
        return
    share = unused / span
    definition = "share of the span: time of GEMMs, convolutions and attention that use no tensor core"
    label = "Matrix work without tensor cores"
    figure = Figure("no_tensor_core_frac", label, share, "1", definition, "kernels.precision, SAMPLES")
    evidence = (figure, *(known[i] for i in ("sample_tensor_active_frac", "reduced_precision_frac") if i in known))
    names = f"kernel names say that {percent(without / total)} of it runs on CUDA cores"
    text = f"Matrix work takes {percent(total / span)} of the time; {names}."
    if pipe is not None:
        text += f" The tensor pipe was active for {percent(pipe)} of the time in which kernels ran."
    gain = removing(
        min(share, 1.0), "best case: the run saves all of the matrix work's time; tensor cores save only a part of it"
    )
    title = f"Matrix work runs without tensor cores {percent(share)} of the time"
    yield tell("tensor_cores", title, severity(share), text, evidence, gain)


def _bandwidth(known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The device memory is busy while kernels run, by its sampled bandwidth."""
    used = while_running(known, "dram_read_frac", "dram_write_frac")
    busy = known["kernel_busy_frac"].value
    if used is None or used < BOUND or busy < NOTABLE_THROUGHPUT:
        return
    definition = "share of the peak bandwidth that reads and writes use while kernels run, from samples"
    figure = Figure("dram_used_frac", "Memory bandwidth while kernels run", used, "1", definition, "SAMPLES")
    level = "low" if busy < BOUND else "high" if used >= SATURATED else "medium"
    text = f"From 60 % on, memory limits the kernels. They run {percent(busy)} of the time."
    high = 1 / (1 - busy) if busy < 1 else float("inf")
    gain = Gain(1.0, high, "best case: the run saves all of the kernels' time; moving fewer bytes saves a part of it")
    evidence = (figure, known["kernel_busy_frac"])
    title = f"Kernels use {figure.text} of the bandwidth of the device memory"
    yield tell("memory_bandwidth", title, level, text, evidence, gain)


def matrix_frac(view: Selection) -> float | None:
    """Return the share of the kernel time that is matrix work; None without kernels."""
    kernels = cut(view.kernels, view.window)
    matrix = kernels["dur_ns"].where(kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES), 0)
    return float(matrix.sum() / kernels["dur_ns"].sum()) if kernels["dur_ns"].sum() else None
