"""What do the kernels of a GPU that computes leave unused, or exhaust?

Samples are held against the time in which kernels run, not against the span. A tensor pipe that
works for under a tenth of the time in which matrix work runs hardly works (convention; the guide's
target for matrix kernels is 85 %). The memory bounds the kernels from 60 % of its bandwidth on
(Nsight Compute, rule SOLBottleneck), and is saturated at 80 % (the guide).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut, ends, subtract, total, union
from perfkit.diagnosis import ledger, timeline
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.diagnosis.framework import VOLTA, capability, data_sheet, formats
from perfkit.diagnosis.operator_kernels import by_operator, operated
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.kernels import (
    COMPUTATION,
    MEMORY_BANDWIDTH,
    SLOW_PATHS,
    TENSOR_CORES,
    TOO_LITTLE,
)
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.slowing import slowed
from perfkit.diagnosis.timeline import busy
from perfkit.format import duration, number, percent, printable, size
from perfkit.names.parsing import base
from perfkit.names.parts import SMALL, told
from perfkit.selection import Selection

COMPUTING = 0.6
LONGEST_NAME = (
    60  # characters of a kernel's name in a sentence; of a longer one its function is told
)
NEARLY = 0.95  # of a kernel's time without another kernel: it runs alone (convention)
WORTH_TIMES = 1.1  # of a speed-up that is told as a factor; a smaller one is told in percent
NOTABLE_THROUGHPUT = 0.1
IDLE_PIPE = 0.1
BOUND = 0.6
SATURATED = 0.8
THIRD = 1 / 3
HALF = 0.5


def too_little(view: Selection) -> Iterator[Finding]:
    """Yield that too little was recorded to judge a program, in place of what its start-up costs."""
    gpus = busy(view)
    span = int(gpus["span_ns"].sum())
    worked = int(gpus["device_busy_ns"].sum())
    working = Figure(
        "start_up_busy_frac",
        "GPU busy",
        worked / span,
        "1",
        "share of the span during which a kernel, copy or memset ran",
        "timeline.busy",
    )
    count = len(view.all_kernels)
    number_of = Figure(
        "start_up_kernel_count", "Kernels", count, "count", "number of kernel executions", "KERNELS"
    )
    text = (
        f"The GPU works for {duration(worked)} of {duration(span)}, and no sequence of kernels "
        "repeats. This is the "
    )
    text += "start of a program: no step of it was recorded."
    gain = Gain(1.0, 1.0, "no step was recorded that could get faster")
    title = "The recording holds too little work of the GPU to judge the program"
    yield tell(TOO_LITTLE, title, text, (working, number_of), gain, level="medium")


def computation_findings(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    """Yield how much the GPU computes, and the slow paths that take a third of it."""
    computing = figures.get("computation_frac")
    if computing is None or computing.value < COMPUTING:
        return
    title = f"The GPU computes {computing.text} {of_the_time(view)}"
    parts = timeline.breakdown(view)
    if len(parts) > 1:
        (_, least), (_, most) = timeline.extremes(parts, parts["computation_ns"] / parts["span_ns"])
        reach = " to ".join(dict.fromkeys((percent(least), percent(most))))
        title = f"{len(parts)} GPUs compute {reach} {of_the_time(view)}"
    gain = Gain(1.0, math.inf, "the recording does not show how much faster the kernels can be")
    text = f"{computing.label}: {computing.definition}."
    kernels = cut(view.kernels, view.window)
    called_by = "name"
    # Shares of what the operators are known of.
    if slowed(view) > 1 and len(operated(view.framework)):
        kernels = operated(view.framework)
        called_by = "outermost"
        text += _of_operators(view, kernels, figures["kernel_busy_frac"].value)
    first = place = ""
    for path in SLOW_PATHS.values():
        is_slow = where(kernels["full_name"], path.kernels.search)
        found = kernels["dur_ns"][is_slow] / float(kernels["dur_ns"].sum())
        part = float(found.sum())
        if part < THIRD:
            continue
        names = kernels[called_by][is_slow].astype("string").fillna("kernels without operator")
        by = found.groupby(names).sum()
        text += f" {percent(part)} of the kernel time goes into {path.what}."
        first = path.remedy
        place = printable(" and ".join(by.index[by >= THIRD * part]), 120)
        title += f", {percent(part)} of the kernel time in {place}"
        reason = "the recording does not show a faster path"
        gain = Gain(1.0, math.inf, reason, part * computing.value)
    level = "medium" if first else "low"
    finding = tell(
        COMPUTATION,
        title,
        text,
        (computing,),
        gain,
        level=level,
        first=first,
        place=place,
        is_mean=len(parts) == 1,
    )
    yield replace(finding, because=_twice_as_fast(view))


def _of_operators(view: Selection, kernels: pd.DataFrame, busy: float) -> str:
    """Return which operators take the kernels' time, and the shapes of one that takes a third of it."""
    share = kernels["dur_ns"] / kernels["dur_ns"].sum() * busy
    by = share.groupby(kernels["outermost"].astype("string")).sum()
    text = f" {by_operator(kernels, share)}."
    if by.max() < THIRD * share.sum():
        return text
    most = kernels[(kernels["outermost"] == by.idxmax()).to_numpy()]
    shapes = view.framework.ops["shapes"].take(most["outer"].to_numpy()).to_numpy(object)
    inputs = most["dur_ns"].groupby(shapes).sum()
    longest = printable(str(inputs.idxmax()), 120) if len(inputs) else ""
    if not longest:
        return text
    return f"{text} Of the inputs of {by.idxmax()}, the shapes {longest} take the most time."


def _twice_as_fast(view: Selection) -> str:
    """Say what the run gains where the kernel with the most time takes half of it (Amdahl's law).

    Of GPUs that do not share this work evenly, the one that has most of it sets the length of the run. Time in which
    another kernel runs too gets no shorter.
    """
    lines = told(ledger.judged(view))
    computing = lines[lines["kind"].eq("computation") & lines["cause"].ne("memset")]
    by_kernel = computing.groupby("owner", observed=True)["ns"].sum()
    if by_kernel.empty:
        return ""
    name = str(by_kernel.idxmax())
    devices = ["rank", "gpu"]
    whole = lines.groupby(devices)["ns"].sum()
    of_gpus = computing[computing["owner"].eq(name)].groupby(devices)["ns"].sum()
    alone = _alone(view, name)
    is_alone = alone.sum() >= NEARLY * of_gpus.sum()
    of_gpus = of_gpus if is_alone else alone
    shares = (of_gpus.reindex(whole.index, fill_value=0) / whole).fillna(0.0)
    share = float(of_gpus.sum() / whole.sum())
    time = of_the_time(view)
    if shares.max() - shares.min() >= timeline.APART:
        share = float(shares.max())
        gpus = whole.index.to_frame(index=False)
        time += f" of {timeline.named(gpus.iloc[int(shares.to_numpy().argmax())], gpus)}"
    if share < SMALL:
        return "Kernels of several streams run at the same time, so none of them alone decides"
    kernel = printable(name if len(name) <= LONGEST_NAME else base(name), LONGEST_NAME)
    times = 1 / (1 - share / 2)
    faster = f"{number(times)} times" if times >= WORTH_TIMES else percent(times - 1)
    verb = "takes" if is_alone else "runs alone"
    return (
        f"{kernel} {verb} {percent(share)} {time}; twice as fast, it makes the run {faster} faster"
    )


def _alone(view: Selection, name: str) -> pd.Series:
    """Return how long each GPU runs this kernel and no other, ns, by rank and GPU."""
    kernels = cut(view.all_kernels, view.window)
    is_it = kernels["name"].astype(object).eq(name)
    found = {}
    for gpu, mine in kernels.groupby(["rank", "gpu"], observed=True):
        own, others = (union(*ends(mine[of])) for of in (is_it[mine.index], ~is_it[mine.index]))
        found[gpu] = int(total(subtract(own, others), 1).sum())
    index = pd.MultiIndex.from_tuples(list(found), names=["rank", "gpu"])
    return pd.Series(list(found.values()), index, dtype="int64")


def throughput_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what the kernels leave unused or exhaust."""
    if "kernel_busy_frac" not in known or timeline.unrecorded(view):
        return
    yield from _tensor_cores(view, known)
    yield from _bandwidth(view, known)


def while_running(known: Mapping[str, Figure], *sampled: str) -> float | None:
    """Return the sum of sampled shares over the share of the time in which kernels run.

    None where not sampled.
    """
    busy = known["kernel_busy_frac"].value
    found = [known[f"sample_{name}"].value for name in sampled if f"sample_{name}" in known]
    return min(sum(found) / busy, 1.0) if found and busy else None


def _tensor_cores(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Matrix work on CUDA cores, by the names of the kernels or the samples of the tensor pipe."""
    times = formats(view).astype({"tensor_cores": str}).groupby("tensor_cores")["total_ns"].sum()
    total = int(times.sum())
    without = int(times.get("no", 0))
    named = int(times.get("yes", 0))
    pipe = while_running(known, "tensor_active_frac")
    span = timeline.span_ns(view)
    idle_pipe = pipe is not None and pipe < IDLE_PIPE
    # Samples of an idle pipe say it only where the names do not say that tensor cores are used: a
    # kernel that waits for memory leaves its pipe idle too.
    unused = max(without, total if idle_pipe and named < HALF * total else 0)
    if not span or unused < NOTABLE_THROUGHPUT * span or capability(view) < VOLTA:
        return
    # Where operators are there and name full precision, the rule on number formats says it already.
    if (
        not view.framework.ops.empty
        and analysis_kernels.mixed(formats(view.framework)).active is False
    ):
        return
    share = unused / span
    definition = (
        "share of the span: time of GEMMs, convolutions and attention that use no tensor core"
    )
    label = "Matrix work without tensor cores"
    figure = Figure(
        "no_tensor_core_frac", label, share, "1", definition, "kernels.precision, SAMPLES"
    )
    evidence = (
        figure,
        *(known[i] for i in ("sample_tensor_active_frac", "reduced_precision_frac") if i in known),
    )
    names = f"kernel names say that {percent(without / total)} of it runs on CUDA cores"
    text = f"Matrix work takes {percent(total / span)} of the time; {names}."
    if pipe is not None:
        text += f" The tensor pipe was active for {percent(pipe)} of the time in which kernels ran."
    gain = removing(
        min(share, 1.0),
        "best case: the run saves all of the matrix work's time; tensor cores save only a part of it",
    )
    title = f"Matrix work runs without tensor cores {percent(share)} {of_the_time(view)}"
    yield tell(TENSOR_CORES, title, text, evidence, gain)


def _bandwidth(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The device memory is busy while kernels run, by its sampled bandwidth."""
    used = while_running(known, "dram_read_frac", "dram_write_frac")
    busy = known["kernel_busy_frac"].value
    if used is None or used < BOUND or busy < NOTABLE_THROUGHPUT:
        return
    figure = Figure(
        "dram_used_frac",
        "Memory bandwidth while kernels run",
        used,
        "1",
        ("share of the peak bandwidth that reads and writes use while kernels run, from samples"),
        "SAMPLES",
    )
    level = "high" if used >= SATURATED else "medium"
    if busy < BOUND:
        level = "low"
    sheet = data_sheet(view)
    peak = sheet.memory_bytes_per_s if sheet else None
    rate = f", {size(used * peak)}/s," if peak else ""
    text = f"From 60 % on, memory limits the kernels. They run {percent(busy)} of the time."
    high = 1 / (1 - busy) if busy < 1 else float("inf")
    gain = Gain(
        1.0,
        high,
        "best case: the run saves all of the kernels' time; moving fewer bytes saves a part of it",
    )
    evidence = (figure, known["kernel_busy_frac"])
    title = f"Kernels use {figure.text}{rate} of the bandwidth of the device memory"
    yield tell(MEMORY_BANDWIDTH, title, text, evidence, gain, level=level)
