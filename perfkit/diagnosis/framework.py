"""Figures at the level of the framework: operators, synchronisation, number formats, input, memory, arithmetic.

Conventions
-----------
What was not recorded is absent, never 0. Shares of matrix work are of the time of GEMM, convolution and attention
kernels. Operations are counted from the shapes of the operators' inputs; what has no model counts for nothing, so that
rates and utilisation are lower bounds. Over several GPUs a share is the sum of the parts over the sum of the spans.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfkit import hardware
from perfkit.analysis import (
    communication,
    flops,
    input_wait,
    memory,
    operators,
    precision,
    steps,
)
from perfkit.analysis.calls import is_memory, where
from perfkit.analysis.window import cut
from perfkit.diagnosis.figures import detected, span_ns, unrecorded
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.kept import kept
from perfkit.errors import PerfkitError
from perfkit.selection import Selection
from perfkit.tables import COLLECTIVES

# Peaks by the type of an operator's inputs; fp32 may run as TF32, whose peak is then the bound.
PRECISIONS = {
    "fp16": ("fp16_tensor",),
    "bf16": ("bf16_tensor",),
    "fp32": ("tf32_tensor", "fp32"),
    "fp64": ("fp64_tensor", "fp64"),
}


def figures(view: Selection, *, peaks: str = "") -> Iterator[Figure]:
    """Yield the framework-level figures of a selection; what was not recorded is absent."""
    view = view.framework
    yield from _memory(view)
    yield from _collectives(view)
    span = 0 if unrecorded(view) else span_ns(view)
    yield from _synchronisation(view, span)
    if view.ops.empty:
        return
    yield Figure("op_count", "Operators", len(view.ops), "count", "operators of all threads in the recording", "OPS")
    spent = gpu_time(view)
    yield from _attributed(spent)
    yield from _precision(view)
    yield from _input(view)
    yield from _arithmetic(view, spent, peaks, span)


@kept
def gpu_time(view: Selection) -> pd.DataFrame:
    """Return each kernel's operator and its time in the window, as `analysis.flops` takes it."""
    view = view.framework
    inside = cut(view.kernels, view.window)
    return operators.kernels_of(view.ops, inside, view.api_calls).assign(gpu_ns=inside["dur_ns"])


def _attributed(spent: pd.DataFrame) -> Iterator[Figure]:
    total = int(spent["gpu_ns"].sum())
    if total:
        share = float(spent.loc[spent["op"] >= 0, "gpu_ns"].sum() / total)
        definition = "time of kernels launched inside an operator over all kernel time"
        yield Figure("op_kernel_frac", "Kernel time with operator", share, "1", definition, "operators.kernels_of")


def _synchronisation(view: Selection, span: int) -> Iterator[Figure]:
    if view.api_calls.empty:
        return
    waits = synchronisations(view)
    source = "operators.synchronisations"
    definition = "calls that return when the GPU is done"
    yield Figure("sync_count", "Waits for the GPU", len(waits), "count", definition, source)
    costly = avoidable(waits)
    per_gpu = costly.groupby(["rank", "gpu"])[["idle_ns", "dur_ns"]].sum().astype("int64")
    idle = int(per_gpu.min(axis=1).sum())
    if len(costly) and span and idle <= span:
        definition = (
            "idle time of the GPU in and after each wait, until its next operation, no longer than the waits lasted, "
            "over the span; waits for memory to be freed left out; at most this disappears without them"
        )
        yield Figure("sync_idle_frac", "Idle after waits", idle / span, "1", definition, source)


@kept
def formats(view: Selection) -> pd.DataFrame:
    """Return `precision.shares` of a selection."""
    return precision.shares(view.ops, view.kernels, view.api_calls, window=view.window)


@kept
def synchronisations(view: Selection) -> pd.DataFrame:
    """Return `operators.synchronisations` of a selection, with the lines that wait."""
    tables = view.ops, view.all_kernels, view.copies, view.api_calls, view.python_calls
    return operators.synchronisations(*tables, window=view.window)


def avoidable(waits: pd.DataFrame) -> pd.DataFrame:
    """Return the waits after which idle time is known and that ask for a result, not for memory.

    Without a wait the host would go on earlier by what it lasted: that bounds the idle time that it causes.
    """
    return waits[waits["idle_ns"].notna() & ~where(waits["api"], is_memory)]


def _precision(view: Selection) -> Iterator[Figure]:
    shares = formats(view)
    found = precision.mixed(shares)
    if not found.total_ns:
        return
    source = "precision.shares, precision.mixed"
    definition = "time of GEMMs, convolutions and attention in fp16, bf16, fp8 or int8 over that in any format"
    yield Figure("reduced_precision_frac", "Matrix work in 16 or 8 bits", found.reduced_frac, "1", definition, source)
    definition = "time of these kernels whose format neither name nor operands say"
    yield Figure("unknown_precision_frac", "Matrix work in unknown format", found.unknown_frac, "1", definition, source)


def _input(view: Selection) -> Iterator[Figure]:
    steady = steps.steady(detected(view))
    waits = input_wait.summary(view.ranges, steady).dropna(subset=["wait_frac"])
    total = int(waits["dur_ns"].sum())
    if total:
        definition = "time of the training thread in the data loader over the time of the steady steps"
        share = float(waits["wait_ns"].sum() / total)
        yield Figure("input_wait_frac", "Waiting for input", share, "1", definition, "input_wait.summary")


def _memory(view: Selection) -> Iterator[Figure]:
    peak = memory.peak(view.samples, window=view.window)
    peak = peak[peak["gpu"] >= 0]
    if peak.empty:
        return
    definition = "most memory that tensors occupied on one GPU at one time"
    most = float(peak["allocated_bytes"].max())
    yield Figure("memory_peak_bytes", "Peak allocated memory", most, "bytes", definition, "memory.peak")
    if peak["max_reserved_bytes"].notna().any():
        definition = "most memory that the framework's allocator held on one GPU"
        held = float(peak["max_reserved_bytes"].max())
        yield Figure("memory_reserved_bytes", "Peak reserved memory", held, "bytes", definition, "memory.peak")
    try:
        unused = memory.fragmentation(view.samples, window=view.window)
    except PerfkitError:  # more allocated than reserved
        return
    share = float(unused.loc[unused["gpu"] >= 0, "peak_frac"].max())
    if pd.notna(share):
        definition = "reserved memory that no tensor occupied when most was allocated; the worst GPU"
        yield Figure("memory_unused_frac", "Reserved but unused", share, "1", definition, "memory.fragmentation")


def _arithmetic(view: Selection, spent: pd.DataFrame, peaks: str, span: int) -> Iterator[Figure]:
    """Yield operations counted from shapes, and their share of the peak where they cover most of the matrix work."""
    points, covered = flops.roofline(view.ops, spent), flops.coverage(view.ops, spent)
    total, modelled = float(points["flops"].sum()), int(covered["flops_ns"].sum())
    if not total:
        return
    definition = "operations of all operators with a model and GPU time, counted from their shapes"
    yield Figure("model_flops", "Operations by shape", total, "FLOP", definition, "flops.roofline")
    definition = "kernel time whose operator has a model of its operations, over all kernel time"
    share = modelled / int(covered["gpu_ns"].sum())
    yield Figure("model_coverage_frac", "Kernel time with a model", share, "1", definition, "flops.coverage")
    kernels = cut(view.kernels, view.window)
    matrix = int(kernels.loc[kernels["family"].isin(precision.FAMILIES), "dur_ns"].sum())
    bound = peak(view, points, peaks) if span and 2 * modelled >= matrix else None
    if bound is None:
        return
    rate, name = bound
    try:
        used = flops.mfu(points, covered, peak_flops_per_s=rate, span_ns=span)
    except PerfkitError:  # more than the peak: it is not that of what ran
        return
    definition = f"operations by shape over the span of the GPUs and the dense {name} peak of one; a lower bound"
    value = float(used["hfu_frac"].iloc[0])
    yield Figure("shape_flops_frac", "Arithmetic utilisation by shape", value, "1", definition, "flops.mfu")


def peak(view: Selection, points: pd.DataFrame, peaks: str = "") -> tuple[float, str] | None:
    """Return the dense peak of one GPU in the type of most operations, FLOP/s, with its name; None if unknown."""
    names = view.devices["name"].unique()
    if len(names) != 1:
        return None
    sheet = hardware.peaks(str(names[0]), table=hardware.load_peaks(peaks) if peaks else None)
    by_type = points.astype({"dtype": "string"}).groupby("dtype")["flops"].sum()
    if sheet is None or by_type.empty:
        return None
    known = [name for name in PRECISIONS.get(str(by_type.idxmax()), ()) if name in sheet.flops_per_s]
    return (sheet.flops(known[0]), f"{known[0]} of {sheet.name}") if known else None


def _collectives(view: Selection) -> Iterator[Figure]:
    rows = view.collectives
    rows = rows[rows["start_ns"].notna()]  # a benchmark's are figures of the machine
    if view.window is not None:
        rows = rows[rows["start_ns"].between(*view.window, inclusive="left")]
    rates = communication.summary(rows)
    crossing = rates[rates["bus_bytes_per_s"] > 0]
    if len(crossing):
        largest = crossing.nlargest(1, "bytes").iloc[0]
        definition = (
            f"median bus bandwidth of {largest['count']} {largest['operation']} of {int(largest['bytes']):,} B, the "
            f"largest, over {largest['ranks']} ranks, as in nccl-tests; a lower bound, since waits for ranks count"
        )
        value = float(largest["bus_bytes_per_s"])
        yield Figure("bus_bytes_per_s", "Bus bandwidth", value, "bytes/s", definition, "communication.summary")


def stragglers(view: Selection) -> pd.DataFrame:
    """Return `communication.stragglers` of a selection; empty where the ranks never met, as with clocks apart."""
    on_one_clock = view.framework.run.is_on_one_clock
    try:
        return communication.stragglers(view.framework.collectives if on_one_clock else COLLECTIVES.empty())
    except PerfkitError:
        return communication.stragglers(COLLECTIVES.empty())
