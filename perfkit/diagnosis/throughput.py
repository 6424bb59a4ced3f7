"""Rules about what the running kernels use: tensor cores for matrix work, and the bandwidth of the device memory.

Thresholds: matrix work without tensor cores for a tenth of the time is worth a look and for three tenths severe
(conventions); a tensor pipe that works for under a tenth of the time in which matrix work runs hardly works
(convention; the guide's target for matrix kernels is 85 %). The memory bounds the kernels from 60 % of its bandwidth
on (Nsight Compute, rule SOLBottleneck), and is saturated at 80 % (the guide). Samples are held against the time in
which kernels run, not against the span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfkit.analysis.precision import FAMILIES
from perfkit.analysis.window import cut
from perfkit.diagnosis import advice
from perfkit.diagnosis.figures import span_ns, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.framework import formats
from perfkit.diagnosis.kept import kept
from perfkit.format import percent
from perfkit.selection import Selection

NOTABLE, IDLE_PIPE, BOUND, SATURATED = 0.1, 0.1, 0.6, 0.8


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
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
    pipe, span = while_running(known, "tensor_active_frac"), span_ns(view)
    idle_pipe = pipe is not None and pipe < IDLE_PIPE
    unused = max(without, total if idle_pipe else 0)
    if not span or unused < NOTABLE * span or _told_by_format(view):
        return
    share = unused / span
    definition = "time of GEMMs, convolutions and attention that use no tensor core, over the span"
    label = "Matrix work without tensor cores"
    figure = Figure("no_tensor_core_frac", label, share, "1", definition, "precision.shares, SAMPLES")
    evidence = (figure, *(known[i] for i in ("sample_tensor_active_frac", "reduced_precision_frac") if i in known))
    names = f"by their names {percent(without / total)} of the matrix work runs on CUDA cores"
    text = f"Matrix work takes {percent(total / span)} of the time; {names}."
    if pipe is not None:
        text += f" The tensor pipe was active for {percent(pipe)} of the time in which kernels ran."
    gain = removing(min(share, 1.0), "at most the matrix work disappears; tensor cores leave some of it")
    title = f"Matrix work runs without tensor cores for {percent(share)} of the time"
    yield Finding("tensor_cores", title, severity(share), text, evidence, "above 85 %", gain, advice.TENSOR_CORES)


def _told_by_format(view: Selection) -> bool:
    """Tell whether the rule on number formats says it already: operators are there, and name full precision."""
    from perfkit.analysis import precision

    return not view.framework.ops.empty and precision.mixed(formats(view.framework)).active is False


def _bandwidth(known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The device memory is busy while kernels run, by its sampled bandwidth."""
    used = while_running(known, "dram_read_frac", "dram_write_frac")
    busy = known["kernel_busy_frac"].value
    if used is None or used < BOUND or busy < NOTABLE:
        return
    definition = "sampled read and write bandwidth over its peak, over the share of the time in which kernels run"
    figure = Figure("dram_used_frac", "Memory bandwidth while kernels run", used, "1", definition, "SAMPLES")
    level = "low" if busy < BOUND else "high" if used >= SATURATED else "medium"
    text = f"From 60 % on the memory bounds the kernels, which run for {percent(busy)} of the time."
    high = 1 / (1 - busy) if busy < 1 else float("inf")
    gain = Gain(1.0, high, "at most the kernels disappear: with fewer bytes they take less time")
    evidence = (figure, known["kernel_busy_frac"])
    title = f"The device memory is used to {figure.text} of its bandwidth while kernels run"
    yield Finding("memory_bandwidth", title, level, text, evidence, "fewer bytes", gain, advice.MEMORY_BOUND)


def matrix_frac(view: Selection) -> float | None:
    """Return the share of the kernel time that is matrix work; None without kernels."""
    kernels = cut(view.kernels, view.window)
    total = int(kernels["dur_ns"].sum())
    return int(kernels.loc[kernels["family"].isin(FAMILIES), "dur_ns"].sum()) / total if total else None
