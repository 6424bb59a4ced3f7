"""Rules at the level of the system: idle time and its cause, computation, tensor cores, memory bandwidth.

Idle time that another rule tells of more precisely is not told twice: only the rest of its cause is a finding here.
Samples are held against the time in which kernels run, not against the span. A tensor pipe that works for under a tenth
of the time in which matrix work runs hardly works (convention; the guide's target for matrix kernels is 85 %). The
memory bounds the kernels from 60 % of its bandwidth on (Nsight Compute, rule SOLBottleneck), and is saturated at 80 %
(the guide).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from perfkit.analysis import causes
from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.finding import Figure, Finding, Gain, kept, removing, severity
from perfkit.diagnosis.framework import formats
from perfkit.diagnosis.rules import rules, tell
from perfkit.diagnosis.timeline import idle_gaps, idle_parts, span_ns, unrecorded
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

NOTABLE, COMPUTING = 0.1, 0.6
LOOKED_AT = 20  # longest waits of which the calls of the operating system are named
NOT_REPLAYED = "; not replayed, since nothing recorded says how much of it could go"
CAUSES = {
    "data_loading": "the host was loading data",
    "sync": "the host was waiting for the GPU before it launched more",
    "memory": "the host was allocating or freeing memory",
    "launch": "the host was inside the call that launches the next work",
    "cuda_call": "the host was inside another CUDA call",
    "system": "the host was inside a call of the operating system",
    "host_code": "the host was busy with code of its own, outside CUDA",
    "kernel_wait": "work was queued, and the gap between dependent kernels is what it costs",
    "other": "the next operation was launched, but what held it up was not recorded",
    "unattributed": "the call that ended the wait was not recorded",
    "edge": "nothing was running yet, or any more",
}
NOTABLE_THROUGHPUT, IDLE_PIPE, BOUND, SATURATED, HALF = 0.1, 0.1, 0.6, 0.8, 0.5


def findings(view: Selection, figures: dict[str, Figure], told: Mapping[str, float]) -> Iterator[Finding]:
    """Yield what the figures of a selection show, rule by rule; `told` by cause is told by others, of the span."""
    yield from _idle(view, figures, told)
    yield from _computation(figures)


def _idle(view: Selection, figures: dict[str, Figure], told: Mapping[str, float]) -> Iterator[Finding]:
    idle = figures.get("idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    found = idle_gaps(view)
    if found is None:
        why = causes.determinable(view.all_kernels, view.copies, view.api_calls).why
        rest = idle.value - told.get("idle", 0.0)
        title = f"The GPU does nothing {percent(rest)} of the time"
        if rest >= NOTABLE:
            yield _finding("idle", title, (idle,), f"The cause cannot be told: {why}", rest, idle.value)
        return
    for cause, part in idle_parts(found).items():
        share = figures[f"idle_{cause}_frac"]
        rest = share.value - told.get(str(cause), 0.0)
        if rest >= NOTABLE:
            title = f"The GPU does nothing {percent(rest)} of the time because {CAUSES[str(cause)]}"
            text = _described(found.assign(part_ns=part)[part > 0])
            if cause in ("cuda_call", "system"):
                text += _inside_calls(view, found.assign(part_ns=part)[part > 0], str(cause))
            if rest < share.value:
                text += f" Of its {share.text} of the time {percent(share.value - rest)} are told by another finding."
            yield _finding(f"idle_{cause}", title, (share, idle), text, rest, idle.value)


def _described(rows: pd.DataFrame) -> str:
    """Say how many gaps there are, how long, and in which range of the program most of the waiting happened."""
    longest = rows.iloc[int(rows["part_ns"].to_numpy().argmax())]
    by_range = rows["part_ns"].groupby(rows["range"], observed=True).sum()
    inside = "No NVTX range covers them."
    if by_range.sum():
        share = percent(by_range.max() / rows["part_ns"].sum())
        inside = f"The program was inside “{printable(by_range.idxmax(), 100)}” for {share} of that."
    return (
        f"{duration(rows['part_ns'].sum())} in {len(rows):,} gaps; the longest takes {duration(longest['part_ns'])} of "
        f"the gap of {duration(longest['dur_ns'])} that begins at {longest['start_ns'] / 1e9:.3f} s. {inside}"
    )


def _inside_calls(view: Selection, rows: pd.DataFrame, cause: str) -> str:
    """Say in which call the launching thread spent most of the waits; of calls of the system, of the longest waits."""
    if cause == "cuda_call":
        by_call = rows.groupby(rows["api"].astype("string"))["part_ns"].sum()
        return f" Most of it was spent in {printable(by_call.idxmax(), 80)}." if len(by_call) else ""
    waits, calls = rows.nlargest(LOOKED_AT, "part_ns"), view.os_calls
    keys = ["rank", "process", "thread"]
    both = waits[[*keys, "start_ns", "dur_ns"]].merge(calls, on=keys, suffixes=("", "_call"))
    last = np.minimum(both["start_ns"] + both["dur_ns"], both["start_ns_call"] + both["dur_ns_call"])
    inside = pd.Series(last - np.maximum(both["start_ns"], both["start_ns_call"]), both.index).clip(lower=0)
    by_call = inside.groupby(both["name"].astype("string")).sum()
    which = f"the {len(waits)} longest of them" if len(waits) < len(rows) else "it"
    return f" Most of {which} was spent in {printable(by_call.idxmax(), 80)}." if len(by_call) else ""


def _finding(rule: str, title: str, evidence: tuple[Figure, ...], text: str, share: float, idle: float) -> Finding:
    reason = "at most all of this time disappears; at least none, if the GPU then waits for something else"
    reason += "" if rules()[rule].change else NOT_REPLAYED
    return tell(rule, title, severity(share), text, evidence, removing(evidence[0].value, reason, idle=idle))


def _computation(figures: dict[str, Figure]) -> Iterator[Finding]:
    busy = figures.get("computation_frac")
    if busy is None or busy.value < COMPUTING:
        return
    title = f"The GPU is busy computing: {busy.text} of the time"
    reason = "at most everything but the computation disappears; more needs faster kernels"
    gain = Gain(1.0, 1 / busy.value, reason)
    text = f"{busy.label}: {busy.definition}."
    yield tell("computation", title, "low", text, (busy,), gain)


def throughput_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what the kernels leave unused or exhaust."""
    if "kernel_busy_frac" not in known or unrecorded(view):
        return
    yield from _tensor_cores(view, known)
    yield from _bandwidth(known)


@kept
def matrix(view: Selection) -> tuple[int, int]:
    """Return the time of matrix work, and of that which by its kernels' names runs without tensor cores, ns."""
    shares = formats(view)
    without = shares["tensor_cores"].astype(object).eq("no")
    return int(shares["total_ns"].sum()), int(shares.loc[without, "total_ns"].sum())


def while_running(known: Mapping[str, Figure], *sampled: str) -> float | None:
    """Return the sum of sampled shares over the share of the time in which kernels run; None where not sampled."""
    busy = known["kernel_busy_frac"].value
    found = [known[f"sample_{name}"].value for name in sampled if f"sample_{name}" in known]
    return min(sum(found) / busy, 1.0) if found and busy else None


def _tensor_cores(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Matrix work on CUDA cores, by the names of the kernels or the samples of the tensor pipe."""
    total, without = matrix(view)
    by_format = formats(view)
    pipe, span = while_running(known, "tensor_active_frac"), span_ns(view)
    idle_pipe = pipe is not None and pipe < IDLE_PIPE
    # Samples of an idle pipe say it only where the names do not say that tensor cores are used: a kernel that waits for
    # memory leaves its pipe idle too.
    named = by_format.loc[by_format["tensor_cores"].eq("yes"), "total_ns"].sum()
    unused = max(without, total if idle_pipe and named < HALF * total else 0)
    if not span or unused < NOTABLE_THROUGHPUT * span:
        return
    # Where operators are there and name full precision, the rule on number formats says it already.
    if not view.framework.ops.empty and analysis_kernels.mixed(formats(view.framework)).active is False:
        return
    share = unused / span
    definition = "time of GEMMs, convolutions and attention that use no tensor core, over the span"
    label = "Matrix work without tensor cores"
    figure = Figure("no_tensor_core_frac", label, share, "1", definition, "kernels.precision, SAMPLES")
    evidence = (figure, *(known[i] for i in ("sample_tensor_active_frac", "reduced_precision_frac") if i in known))
    names = f"by their names {percent(without / total)} of the matrix work runs on CUDA cores"
    text = f"Matrix work takes {percent(total / span)} of the time; {names}."
    if pipe is not None:
        text += f" The tensor pipe was active for {percent(pipe)} of the time in which kernels ran."
    gain = removing(min(share, 1.0), "at most the matrix work disappears; tensor cores leave some of it")
    title = f"Matrix work runs without tensor cores for {percent(share)} of the time"
    yield tell("tensor_cores", title, severity(share), text, evidence, gain)


def _bandwidth(known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The device memory is busy while kernels run, by its sampled bandwidth."""
    used = while_running(known, "dram_read_frac", "dram_write_frac")
    busy = known["kernel_busy_frac"].value
    if used is None or used < BOUND or busy < NOTABLE_THROUGHPUT:
        return
    definition = "sampled read and write bandwidth over its peak, over the share of the time in which kernels run"
    figure = Figure("dram_used_frac", "Memory bandwidth while kernels run", used, "1", definition, "SAMPLES")
    level = "low" if busy < BOUND else "high" if used >= SATURATED else "medium"
    text = f"From 60 % on the memory bounds the kernels, which run for {percent(busy)} of the time."
    high = 1 / (1 - busy) if busy < 1 else float("inf")
    gain = Gain(1.0, high, "at most the kernels disappear: with fewer bytes they take less time")
    evidence = (figure, known["kernel_busy_frac"])
    title = f"The device memory is used to {figure.text} of its bandwidth while kernels run"
    yield tell("memory_bandwidth", title, level, text, evidence, gain)


def matrix_frac(view: Selection) -> float | None:
    """Return the share of the kernel time that is matrix work; None without kernels."""
    kernels = cut(view.kernels, view.window)
    total = int(kernels["dur_ns"].sum())
    return (
        int(kernels.loc[kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES), "dur_ns"].sum()) / total
        if total
        else None
    )
