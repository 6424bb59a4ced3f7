"""Figures of the framework: operators, synchronisation, number formats, input, memory, arithmetic.

Shares of matrix work are of the time of GEMM, convolution and attention kernels. Operations are
counted from the shapes of the operators' inputs; what has no model counts for nothing, so that
rates and utilisation are lower bounds.
"""

import re
from collections.abc import Iterator

import pandas as pd

from perfkit import hardware
from perfkit.analysis import causes, communication, flops, host, memory, operators, steps
from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.intervals import (
    cut,
)
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import detected, span_ns, unrecorded
from perfkit.diagnosis.timeline import idle_gaps as gaps_of
from perfkit.errors import PerfkitError
from perfkit.selection import Selection

# Peaks by the type of an operator's inputs; fp32 may run as TF32, whose peak is then the bound.
PRECISIONS = {
    "fp16": ("fp16_tensor",),
    "bf16": ("bf16_tensor",),
    "fp32": ("tf32_tensor", "fp32"),
    "fp64": ("fp64_tensor", "fp64"),
}
# compute capability of the first with tensor cores, and with bfloat16 and TF32 in them
VOLTA = 7.0
AMPERE = 8.0
FEWEST_STEPS = 8  # steady steps (convention)


def figures(view: Selection, *, peaks: str = "") -> Iterator[Figure]:
    """Yield the framework-level figures of a selection; what was not recorded is absent."""
    view = view.framework
    yield from _memory(view)
    yield from _collectives(view)
    span = 0 if unrecorded(view) else span_ns(view)
    yield from _synchronisation(view, span)
    if view.ops.empty:
        return
    yield Figure(
        "op_count",
        "Operators",
        len(view.ops),
        "count",
        "number of operators of all threads in the recording",
        "OPS",
    )
    spent = gpu_time(view)
    if total := int(spent["gpu_ns"].sum()):
        share = float(spent.loc[spent["op"] >= 0, "gpu_ns"].sum() / total)
        yield Figure(
            "op_kernel_frac",
            "Kernel time with operator",
            share,
            "1",
            "share of the kernel time that kernels launched inside an operator take",
            "operators.kernels_of",
        )
    yield from _precision(view)
    waits = host.input_wait(view.ranges, steps.steady(detected(view)), view.copies).dropna(
        subset=["wait_frac"]
    )
    if total := int(waits["dur_ns"].sum()):
        definition = (
            "share of the steady steps' time that the training thread spends in the data loader"
        )
        share = float(waits["wait_ns"].sum() / total)
        yield Figure(
            "input_wait_frac", "Waiting for input", share, "1", definition, "host.input_wait"
        )
        if rate := waits["input_bytes"].sum() / total * 1e9:
            yield Figure(
                "input_bytes_per_s",
                "Input of the GPU",
                rate,
                "bytes/s",
                (
                    "bytes that copies from the CPU to the GPU move in the steady steps, over their "
                    "time (mean rank)"
                ),
                "host.input_wait",
            )
    yield from _arithmetic(view, spent, peaks, span)


@kept
def gpu_time(view: Selection) -> pd.DataFrame:
    """Return each kernel's operator and its time in the window, as `analysis.flops` takes it."""
    view = view.framework
    inside = cut(view.kernels, view.window)
    return operators.kernels_of(view.ops, inside, view.api_calls).assign(gpu_ns=inside["dur_ns"])


def _synchronisation(view: Selection, span: int) -> Iterator[Figure]:
    if view.api_calls.empty:
        return
    waits = synchronisations(view)
    source = "operators.synchronisations"
    yield Figure(
        "sync_count",
        "Waits for the GPU",
        len(waits),
        "count",
        "number of calls that return only when the GPU has finished",
        source,
    )
    costly = avoidable(waits)
    per_gpu = costly.groupby(["rank", "gpu"])[["idle_ns", "dur_ns"]].sum().astype("int64")
    idle = int(per_gpu.min(axis=1).sum())
    if len(costly) and span and idle <= span:
        yield Figure(
            "sync_idle_frac",
            "Idle after waits",
            idle / span,
            "1",
            (
                "share of the span during which the GPU was idle because the CPU waited for it, "
                "until its next operation (upper limit: at most as long as the waits; waits that "
                "free memory excluded)"
            ),
            source,
        )


@kept
def formats(view: Selection) -> pd.DataFrame:
    """Return `kernels.precision` of a selection."""
    return analysis_kernels.precision(view.ops, view.kernels, view.api_calls, window=view.window)


def capability(view: Selection) -> float:
    """Return the lowest compute capability of the GPUs; NaN where none is recorded, as of AMD's."""
    return float(
        pd.to_numeric(view.devices["compute_capability"].astype(str), errors="coerce").min()
    )


# Turing chips without tensor cores (TU116, TU117) have the compute capability of those that have
# them.
WITHOUT_TENSOR_CORES = re.compile(
    r"GTX 16\d\d|MX[45]50|\bT(?:400|500|550|600|1000|1200|2000)\b|TU11[67]"
)


def has_tensor_cores(view: Selection) -> bool:
    """Tell whether the GPUs have tensor cores, as far as is known.

    A GPU that names neither itself nor more may.
    """
    names = view.devices["name"].astype("string").fillna("")
    if names.str.contains(WITHOUT_TENSOR_CORES).any():
        return False
    return not capability(view) < VOLTA


@kept
def synchronisations(view: Selection) -> pd.DataFrame:
    """Return `operators.synchronisations` of a selection, with the lines that wait."""
    tables = view.ops, view.all_kernels, view.copies, view.api_calls, view.python_calls
    known = gaps_of(view) if view.window is None else None
    return operators.synchronisations(*tables, window=view.window, gaps=known)


def avoidable(waits: pd.DataFrame) -> pd.DataFrame:
    """Return the waits after which idle time is known and that ask for a result, not for memory.

    Without a wait the host would go on earlier by what it lasted: that bounds the idle time that it
    causes.
    """
    return waits[waits["idle_ns"].notna() & ~causes.where(waits["api"], causes.is_memory)]


def _precision(view: Selection) -> Iterator[Figure]:
    shares = formats(view)
    found = analysis_kernels.mixed(shares)
    if not found.total_ns:
        return
    source = "kernels.precision, kernels.mixed"
    yield Figure(
        "reduced_precision_frac",
        "Matrix work in 16 or 8 bits",
        found.reduced_frac,
        "1",
        (
            "share of the time of GEMMs, convolutions and attention that uses fp16, bf16, fp8 or int8"
        ),
        source,
    )
    yield Figure(
        "unknown_precision_frac",
        "Matrix work in unknown format",
        found.unknown_frac,
        "1",
        ("share of the time of GEMMs, convolutions and attention with an unknown number format"),
        source,
    )


def _memory(view: Selection) -> Iterator[Figure]:
    peak = memory.peak(view.samples, window=view.window)
    peak = peak[peak["gpu"] >= 0]
    if peak.empty:
        return
    definition = "largest amount of memory that tensors occupied on one GPU at one time"
    most = float(peak["allocated_bytes"].max())
    yield Figure(
        "memory_peak_bytes", "Peak allocated memory", most, "bytes", definition, "memory.peak"
    )
    if peak["max_reserved_bytes"].notna().any():
        definition = "largest amount of memory that the framework's allocator held on one GPU"
        held = float(peak["max_reserved_bytes"].max())
        yield Figure(
            "memory_reserved_bytes",
            "Peak reserved memory",
            held,
            "bytes",
            definition,
            "memory.peak",
        )
    for row in memory_growth(view).head(1).to_dict("records"):
        yield Figure(
            "memory_growth_bytes",
            "Memory growth per step",
            row["growth_bytes"],
            "bytes",
            (
                "median growth of the least allocated memory from one steady step to the next, GPU "
                f"{row['gpu']}"
            ),
            "memory.growth",
        )
    try:
        unused = memory.fragmentation(view.samples, window=view.window)
    except PerfkitError:  # more allocated than reserved
        return
    share = float(unused.loc[unused["gpu"] >= 0, "peak_frac"].max())
    if pd.notna(share):
        yield Figure(
            "memory_unused_frac",
            "Reserved but unused",
            share,
            "1",
            (
                "share of the reserved memory that no tensor occupied at the peak of allocation; the "
                "worst GPU"
            ),
            "memory.fragmentation",
        )


@kept
def memory_growth(view: Selection) -> pd.DataFrame:
    """Return `memory.growth` of the GPUs with FEWEST_STEPS steady steps or more, the fastest growth first."""
    found = memory.growth(view.samples, detected(view))
    found = found[found["gpu"].ge(0) & found["steps_count"].ge(FEWEST_STEPS)]
    return found.sort_values("growth_bytes", ascending=False, kind="stable", ignore_index=True)


def _arithmetic(view: Selection, spent: pd.DataFrame, peaks: str, span: int) -> Iterator[Figure]:
    """Yield operations counted from shapes, and their share of the peak where they cover most of the matrix work."""
    points = flops.roofline(view.ops, spent)
    covered = flops.coverage(view.ops, spent)
    total = float(points["flops"].sum())
    modelled = int(covered["flops_ns"].sum())
    if not total:
        return
    yield Figure(
        "model_flops",
        "Operations by shape",
        total,
        "FLOP",
        (
            "number of operations, computed from the shapes of all operators with a model and GPU time"
        ),
        "flops.roofline",
    )
    definition = "share of the kernel time of operators with a model of their operations"
    share = modelled / int(covered["gpu_ns"].sum())
    yield Figure(
        "model_coverage_frac", "Kernel time with a model", share, "1", definition, "flops.coverage"
    )
    kernels = cut(view.kernels, view.window)
    matrix = int(
        kernels.loc[kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES), "dur_ns"].sum()
    )
    bound = peak(view, points, peaks) if span and 2 * modelled >= matrix else None
    if bound is None:
        return
    rate, name = bound
    try:
        value = flops.mfu(points, peak_flops_per_s=rate, span_ns=span)
    except PerfkitError:  # more than the peak: it is not that of what ran
        return
    definition = (
        f"share of the dense {name} peak that the operations by shape reach over the span; a lower "
        "limit"
    )
    yield Figure(
        "shape_flops_frac", "Arithmetic utilisation by shape", value, "1", definition, "flops.mfu"
    )


def data_sheet(view: Selection, peaks: str = "") -> hardware.Peaks | None:
    """Return the peaks of the only kind of GPU, as `hardware.peaks`; None if they are unknown."""
    names = view.devices["name"].unique()
    if len(names) != 1:
        return None
    return hardware.peaks(str(names[0]), table=hardware.load_peaks(peaks) if peaks else None)


def peak(view: Selection, points: pd.DataFrame, peaks: str = "") -> tuple[float, str] | None:
    """Return the dense peak of one GPU in the type of most operations, FLOP/s, with its name.

    None if unknown.
    """
    sheet = data_sheet(view, peaks)
    by_type = points.astype({"dtype": "string"}).groupby("dtype")["flops"].sum()
    if sheet is None or by_type.empty:
        return None
    known = [
        name for name in PRECISIONS.get(str(by_type.idxmax()), ()) if name in sheet.flops_per_s
    ]
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
        yield Figure(
            "bus_bytes_per_s",
            "Bus bandwidth",
            value,
            "bytes/s",
            definition,
            "communication.summary",
        )
