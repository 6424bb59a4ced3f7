"""Figures at the level of the framework: operators, synchronisation, number formats, input, memory, arithmetic.

Conventions
-----------
Shares of matrix work are of the time of GEMM, convolution and attention kernels. Operations are counted from the shapes
of the operators' inputs; what has no model counts for nothing, so that rates and utilisation are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfkit import hardware
from perfkit.analysis import (
    collectives,
    communication,
    flops,
    input_wait,
    memory,
    operators,
    precision,
    steps,
    timeline,
)
from perfkit.analysis.window import cut
from perfkit.diagnosis.finding import Figure
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
    if view.ops.empty:
        return
    yield Figure("op_count", "Operators", len(view.ops), "count", "operators of all threads in the recording", "OPS")
    yield from _attributed(view)
    yield from _synchronisation(view)
    yield from _precision(view)
    yield from _input(view)
    yield from _arithmetic(view, peaks)
    yield from _imbalance(view)


def gpu_time(view: Selection) -> pd.DataFrame:
    """Return each kernel's operator and its time in the window, as `analysis.flops` takes it."""
    view = view.framework
    inside = cut(view.kernels, view.window)
    return operators.kernels_of(view.ops, inside, view.api_calls).assign(gpu_ns=inside["dur_ns"])


def _attributed(view: Selection) -> Iterator[Figure]:
    spent = gpu_time(view)
    total = int(spent["gpu_ns"].sum())
    if total:
        share = float(spent.loc[spent["op"] >= 0, "gpu_ns"].sum() / total)
        definition = "time of kernels launched inside an operator over all kernel time"
        yield Figure("op_kernel_frac", "Kernel time with operator", share, "1", definition, "operators.kernels_of")


def _synchronisation(view: Selection) -> Iterator[Figure]:
    waits = operators.synchronisations(view.ops, view.all_kernels, view.copies, view.api_calls, window=view.window)
    source = "operators.synchronisations"
    yield Figure(
        "sync_count", "Waits for the GPU", len(waits), "count", "calls that return when the GPU is done", source
    )
    busy = timeline.busy(view.all_kernels, view.copies, window=view.window)
    span, idle = int(busy["span_ns"].sum()), int(waits["idle_ns"].fillna(0).sum())
    if len(waits) and span and idle <= span:
        definition = "idle time of the GPU from the end of each wait to its next operation, over the span; at most this"
        yield Figure("sync_idle_frac", "Idle after waits", idle / span, "1", definition, source)


def _precision(view: Selection) -> Iterator[Figure]:
    shares = precision.shares(view.ops, view.kernels, view.api_calls, window=view.window)
    found = precision.mixed(shares)
    if not found.total_ns:
        return
    source = "precision.shares, precision.mixed"
    definition = "time of GEMMs, convolutions and attention in fp16, bf16, fp8 or int8 over that in any format"
    yield Figure("reduced_precision_frac", "Matrix work in 16 or 8 bits", found.reduced_frac, "1", definition, source)
    definition = "time of these kernels whose format neither name nor operands say"
    yield Figure("unknown_precision_frac", "Matrix work in unknown format", found.unknown_frac, "1", definition, source)


def _input(view: Selection) -> Iterator[Figure]:
    steady = steps.steady(steps.detect(view.ranges, view.all_kernels, window=view.window))
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
        except PerfkitError:
            return
        share = float(unused.loc[unused["gpu"] >= 0, "peak_frac"].max())
        definition = "reserved memory that no tensor occupied when most was allocated; the worst GPU"
        yield Figure("memory_unused_frac", "Reserved but unused", share, "1", definition, "memory.fragmentation")


def _arithmetic(view: Selection, peaks: str) -> Iterator[Figure]:
    """Yield operations counted from shapes, and their share of the peak where the GPU and its peak are known."""
    spent = gpu_time(view)
    points, covered = flops.roofline(view.ops, spent), flops.coverage(view.ops, spent)
    total = float(points["flops"].sum())
    if not total:
        return
    share = float(covered["flops_ns"].sum() / covered["gpu_ns"].sum())
    definition = "operations of all operators with a model and GPU time, counted from their shapes"
    yield Figure("model_flops", "Operations by shape", total, "FLOP", definition, "flops.roofline")
    definition = "kernel time whose operator has a model, over all kernel time"
    yield Figure("model_coverage_frac", "Kernel time with a model", share, "1", definition, "flops.coverage")
    bound = peak(view, points, peaks)
    busy = timeline.busy(view.all_kernels, view.copies, window=view.window)
    if bound is None or busy.empty:
        return
    rate, name = bound
    try:
        span = int(busy["span_ns"].max())
        used = flops.mfu(points, covered, peak_flops_per_s=rate, span_ns=span, gpus=len(busy))
    except PerfkitError:
        return
    definition = f"operations by shape over span, GPUs and the dense {name} peak of one; a lower bound"
    value = float(used["hfu_frac"].iloc[0])
    yield Figure("shape_flops_frac", "Arithmetic utilisation by shape", value, "1", definition, "flops.mfu")


def peak(view: Selection, points: pd.DataFrame, peaks: str = "") -> tuple[float, str] | None:
    """Return the dense peak of one GPU in the type of most operations, FLOP/s, with its name; None if unknown."""
    sheet = hardware.peaks(next(iter(view.devices["name"]), ""), table=hardware.load_peaks(peaks) if peaks else None)
    by_type = points.astype({"dtype": "string"}).groupby("dtype")["flops"].sum()
    if sheet is None or by_type.empty:
        return None
    names = [name for name in PRECISIONS.get(str(by_type.idxmax()), ()) if name in sheet.flops_per_s]
    return (sheet.flops(names[0]), f"{names[0]} of {sheet.name}") if names else None


def _collectives(view: Selection) -> Iterator[Figure]:
    rates = communication.summary(view.collectives)
    known = rates.dropna(subset=["bus_bytes_per_s"])
    if len(known):
        largest = known.sort_values("bytes").iloc[-1]
        definition = (
            f"median bus bandwidth of the largest {largest['operation']} of {int(largest['bytes']):,} B, as nccl-tests"
        )
        value = float(largest["bus_bytes_per_s"])
        yield Figure("bus_bytes_per_s", "Bus bandwidth", value, "bytes/s", definition, "communication.summary")


def _imbalance(view: Selection) -> Iterator[Figure]:
    parts = timeline.breakdown(view.kernels, view.copies, window=view.window, others=view.other_kernels)
    by_rank = parts.groupby("rank")[["computation_ns"]].sum().reset_index()
    if len(by_rank) > 1 and by_rank["computation_ns"].sum():
        row = collectives.imbalance(by_rank, value="computation_ns").iloc[0]
        definition = f"largest computing time of a rank (rank {row['max_rank']}) over the mean, less 1"
        value = float(row["imbalance_frac"])
        yield Figure("rank_imbalance_frac", "Imbalance of ranks", value, "1", definition, "collectives.imbalance")


def stragglers(view: Selection) -> pd.DataFrame:
    """Return `communication.stragglers` of a selection; empty where the ranks never met, as with clocks apart."""
    try:
        return communication.stragglers(view.framework.collectives)
    except PerfkitError:
        return communication.stragglers(COLLECTIVES.empty())
