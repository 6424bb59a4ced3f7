"""Figures and findings of the framework: operators, synchronisation, number formats, input, memory, arithmetic.

Shares of matrix work are of the time of GEMM, convolution and attention kernels. Operations are counted from the shapes
of the operators' inputs; what has no model counts for nothing, so that rates and utilisation are lower bounds.

Four rules are the case studies of the course's chapter on GPU profiling: input that is waited for (case 1; where the
GPU's gaps show it, the system's rule for idle time says so), operators that are too small (case 2, in `launching`),
attention that is computed step by step (case 3, in `speed`) and preparation on the CPU (case 4). Functions, ranges and
operators are known by their names. One that launches kernels is more than preparation and does not count; nor does what
a data loader does inside its own range. Only idle time of the GPU counts: data that is prepared while it works cost
nothing.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit import hardware
from perfkit.analysis import causes, communication, flops, host, memory, operators, steps, timeline
from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.intervals import Int, Intervals, cut, devices, intersect, subtract, total, union
from perfkit.analysis.operators import totals
from perfkit.analysis.operators.totals import ENGINE
from perfkit.diagnosis.finding import Figure, Finding, Gain, kept, removing, severity
from perfkit.diagnosis.rules.operators import COMPILATION, MEMORY_GROWTH, RECOMPUTATION
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import INPUT, PREPARATION
from perfkit.diagnosis.timeline import STEADY, detected, of_steps, span_ns, unrecorded
from perfkit.diagnosis.timeline import idle_gaps as gaps_of
from perfkit.errors import PerfkitError
from perfkit.format import percent, printable, size
from perfkit.selection import Selection
from perfkit.tables import API_CALLS

# Peaks by the type of an operator's inputs; fp32 may run as TF32, whose peak is then the bound.
PRECISIONS = {
    "fp16": ("fp16_tensor",),
    "bf16": ("bf16_tensor",),
    "fp32": ("tf32_tensor", "fp32"),
    "fp64": ("fp64_tensor", "fp64"),
}
WORDS = re.compile(r"tokeni[sz]|preprocess|collate|augment|imdecode|jpeg|image\.open|transforms?[/\\.]", re.IGNORECASE)
COMPILER = re.compile(r"\(dynamo_timed\)")  # what PyTorch notes of the phases of torch.compile
# Operators of forward passes; no gradient's formula is one of them.
FORWARD = re.compile(
    r"aten::(?:linear|conv[123]d|(?:layer|group|batch)_norm|scaled_dot_product_attention|gelu|silu|relu_?|dropout_?|embedding)"
)
PLACE = ["rank", "process", "thread"]
NOTABLE = 0.1
IN_OPS = "RANGES, PYTHON_CALLS, OPS; gaps.idle_gaps"
AT_MOST = "best case: the run saves all of this time; worst case: none, because the GPU then waits for something else"
VOLTA, AMPERE = 7.0, 8.0  # compute capability of the first with tensor cores, and with bfloat16 and TF32 in them
FEWEST_STEPS, NEARLY_ALL, LITTLE = 8, 0.9, 0.01  # steady steps; share of them; of the peak in all (conventions)

NO_TIME = "memory costs no time until it is full; then the program fails"


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
        "op_count", "Operators", len(view.ops), "count", "number of operators of all threads in the recording", "OPS"
    )
    spent = gpu_time(view)
    if total := int(spent["gpu_ns"].sum()):
        share = float(spent.loc[spent["op"] >= 0, "gpu_ns"].sum() / total)
        definition = "share of the kernel time that kernels launched inside an operator take"
        yield Figure("op_kernel_frac", "Kernel time with operator", share, "1", definition, "operators.kernels_of")
    yield from _precision(view)
    waits = host.input_wait(view.ranges, steps.steady(detected(view)), view.copies).dropna(subset=["wait_frac"])
    if total := int(waits["dur_ns"].sum()):
        definition = "share of the steady steps' time that the training thread spends in the data loader"
        share = float(waits["wait_ns"].sum() / total)
        yield Figure("input_wait_frac", "Waiting for input", share, "1", definition, "host.input_wait")
        if rate := waits["input_bytes"].sum() / total * 1e9:
            definition = (
                "bytes that copies from the CPU to the GPU move in the steady steps, over their time (mean rank)"
            )
            yield Figure("input_bytes_per_s", "Input of the GPU", rate, "bytes/s", definition, "host.input_wait")
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
    definition = "number of calls that return only when the GPU has finished"
    yield Figure("sync_count", "Waits for the GPU", len(waits), "count", definition, source)
    costly = avoidable(waits)
    per_gpu = costly.groupby(["rank", "gpu"])[["idle_ns", "dur_ns"]].sum().astype("int64")
    idle = int(per_gpu.min(axis=1).sum())
    if len(costly) and span and idle <= span:
        definition = (
            "share of the span during which the GPU was idle because the CPU waited for it, until its next operation "
            "(upper limit: at most as long as the waits; waits that free memory excluded)"
        )
        yield Figure("sync_idle_frac", "Idle after waits", idle / span, "1", definition, source)


@kept
def formats(view: Selection) -> pd.DataFrame:
    """Return `kernels.precision` of a selection."""
    return analysis_kernels.precision(view.ops, view.kernels, view.api_calls, window=view.window)


def capability(view: Selection) -> float:
    """Return the lowest compute capability of the GPUs; NaN where none is recorded, as of AMD's."""
    return float(pd.to_numeric(view.devices["compute_capability"].astype(str), errors="coerce").min())


# Turing chips without tensor cores (TU116, TU117) have the compute capability of those that have them.
WITHOUT_TENSOR_CORES = re.compile(r"GTX 16\d\d|MX[45]50|\bT(?:400|500|550|600|1000|1200|2000)\b|TU11[67]")


def has_tensor_cores(view: Selection) -> bool:
    """Tell whether the GPUs have tensor cores, as far as is known; a GPU that names neither itself nor more may."""
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

    Without a wait the host would go on earlier by what it lasted: that bounds the idle time that it causes.
    """
    return waits[waits["idle_ns"].notna() & ~causes.where(waits["api"], causes.is_memory)]


def _precision(view: Selection) -> Iterator[Figure]:
    shares = formats(view)
    found = analysis_kernels.mixed(shares)
    if not found.total_ns:
        return
    source = "kernels.precision, kernels.mixed"
    definition = "share of the time of GEMMs, convolutions and attention that uses fp16, bf16, fp8 or int8"
    yield Figure("reduced_precision_frac", "Matrix work in 16 or 8 bits", found.reduced_frac, "1", definition, source)
    definition = "share of the time of GEMMs, convolutions and attention with an unknown number format"
    yield Figure("unknown_precision_frac", "Matrix work in unknown format", found.unknown_frac, "1", definition, source)


def _memory(view: Selection) -> Iterator[Figure]:
    peak = memory.peak(view.samples, window=view.window)
    peak = peak[peak["gpu"] >= 0]
    if peak.empty:
        return
    definition = "largest amount of memory that tensors occupied on one GPU at one time"
    most = float(peak["allocated_bytes"].max())
    yield Figure("memory_peak_bytes", "Peak allocated memory", most, "bytes", definition, "memory.peak")
    if peak["max_reserved_bytes"].notna().any():
        definition = "largest amount of memory that the framework's allocator held on one GPU"
        held = float(peak["max_reserved_bytes"].max())
        yield Figure("memory_reserved_bytes", "Peak reserved memory", held, "bytes", definition, "memory.peak")
    for row in memory_growth(view).head(1).to_dict("records"):
        definition = f"median growth of the least allocated memory from one steady step to the next, GPU {row['gpu']}"
        yield Figure(
            "memory_growth_bytes", "Memory growth per step", row["growth_bytes"], "bytes", definition, "memory.growth"
        )
    try:
        unused = memory.fragmentation(view.samples, window=view.window)
    except PerfkitError:  # more allocated than reserved
        return
    share = float(unused.loc[unused["gpu"] >= 0, "peak_frac"].max())
    if pd.notna(share):
        definition = "share of the reserved memory that no tensor occupied at the peak of allocation; the worst GPU"
        yield Figure("memory_unused_frac", "Reserved but unused", share, "1", definition, "memory.fragmentation")


@kept
def memory_growth(view: Selection) -> pd.DataFrame:
    """Return `memory.growth` of the GPUs with FEWEST_STEPS steady steps or more, the fastest growth first."""
    found = memory.growth(view.samples, detected(view))
    found = found[found["gpu"].ge(0) & found["steps_count"].ge(FEWEST_STEPS)]
    return found.sort_values("growth_bytes", ascending=False, kind="stable", ignore_index=True)


def _memory_growth(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Memory that no step gives back: a leak, or a cache that grows by design."""
    figure = known.get("memory_growth_bytes")
    for row in memory_growth(view).head(1).to_dict("records"):
        of = memory.peak(view.samples).set_index(["rank", "gpu"]).loc[(row["rank"], row["gpu"])]
        if figure is None or row["grew_frac"] < NEARLY_ALL or row["total_bytes"] < LITTLE * of["allocated_bytes"]:
            return
        sheet = view.devices[view.devices["rank"].eq(row["rank"]) & view.devices["gpu"].eq(row["gpu"])]
        capacity = int(sheet["memory_bytes"].fillna(0).max()) if len(sheet) else 0
        left = int((capacity - float(of["allocated_bytes"])) / row["growth_bytes"])
        full = f" After about {left:,} more steps its memory of {size(capacity)} is full." if left > 0 else ""
        text = (
            f"In {percent(row['grew_frac'])} of {row['steps_count']:,} steady steps, more memory stayed allocated than "
            f"in the step before: {size(row['total_bytes'])} in all.{full} A key-value cache grows by design. "
            "Otherwise the program keeps tensors that it no longer needs."
        )
        title = f"Each step keeps {figure.text} more of the GPU's memory"
        yield tell(MEMORY_GROWTH, title, "medium", text, (figure,), Gain(1.0, math.inf, NO_TIME))


def _arithmetic(view: Selection, spent: pd.DataFrame, peaks: str, span: int) -> Iterator[Figure]:
    """Yield operations counted from shapes, and their share of the peak where they cover most of the matrix work."""
    points, covered = flops.roofline(view.ops, spent), flops.coverage(view.ops, spent)
    total, modelled = float(points["flops"].sum()), int(covered["flops_ns"].sum())
    if not total:
        return
    definition = "number of operations, computed from the shapes of all operators with a model and GPU time"
    yield Figure("model_flops", "Operations by shape", total, "FLOP", definition, "flops.roofline")
    definition = "share of the kernel time of operators with a model of their operations"
    share = modelled / int(covered["gpu_ns"].sum())
    yield Figure("model_coverage_frac", "Kernel time with a model", share, "1", definition, "flops.coverage")
    kernels = cut(view.kernels, view.window)
    matrix = int(kernels.loc[kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES), "dur_ns"].sum())
    bound = peak(view, points, peaks) if span and 2 * modelled >= matrix else None
    if bound is None:
        return
    rate, name = bound
    try:
        used = flops.mfu(points, covered, peak_flops_per_s=rate, span_ns=span)
    except PerfkitError:  # more than the peak: it is not that of what ran
        return
    definition = f"share of the dense {name} peak that the operations by shape reach over the span; a lower limit"
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


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the framework's operators show, rule by rule."""
    view = view.framework
    if view.ops.empty:
        return
    yield from _waiting_for_input(view, known)
    yield from _memory_growth(view, known)
    if not unrecorded(view):
        busy, lead = timeline.busy(view.all_kernels, view.copies, window=view.window), int(_lead_ns(view).sum())
        idle = 1 - float(busy["device_busy_ns"].sum() / (busy["span_ns"].sum() + lead or math.nan))
        share = preparing(view) if idle >= NOTABLE else None
        if share and share.value >= NOTABLE:  # case 4: the CPU prepares data while the GPU has nothing to do
            title = f"Data preparation on the CPU keeps the GPU idle {share.text} of the time"
            title += " since the first step began" if lead else ""
            text, level = f"{share.label}: {share.definition}.", severity(share.value)
            gain = removing(share.value, AT_MOST)
            yield tell(PREPARATION, title, level, text, (share,), gain, is_mean=True)
        yield from _compilation(view, known)
        yield from _recomputation(view, known)


def _compilation(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The steady steps compile: shapes or types change, and torch.compile makes kernels for each of them."""
    idle, working = compiling(view)
    if (share := idle + working) < NOTABLE or "idle_frac" not in known:
        return
    steady = steps.steady(detected(view))
    compilers = view.ops[causes.where(view.ops["name"], COMPILER.search)]
    count = steps.count(steady[causes.covered_by(steady, compilers) > 0])
    definition = "share of the span: idle time while torch.compile works in steady steps, and kernels that it launches"
    figure = Figure("compilation_frac", "Compiling", share, "1", definition, IN_OPS)
    text = f"torch.compile compiles in {count} of {steps.count(steady)} steady steps. " if len(steady) else ""
    text += f"The GPU is idle for {percent(idle)} of the time then, and runs trials of kernels for {percent(working)}."
    gain = removing(share, "best case: the run saves all of this time")
    gain = replace(gain, low=1 / (1 - share) if 1 < count == len(steady) else 1.0)  # each of them, so more than warm-up
    title = f"torch.compile compiles for {figure.text} of the time"
    yield tell(COMPILATION, title, severity(share), text, (figure, known["idle_frac"]), gain)


@kept
def compiling(view: Selection) -> tuple[float, float]:
    """Return `_spent` of what torch.compile does in the steady steps, in the whole run where none is known."""
    ops = view.framework.ops
    phases, steady = ops[causes.where(ops["name"], COMPILER.search)], steps.steady(detected(view))
    return _spent(view.framework, phases[causes.covered_by(phases, steady) > 0] if len(steady) else phases)


def _recomputation(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Activations are computed again in the backward pass, though half of the memory or more is free."""
    again, count, most = _again(view)
    share, peak = sum(_spent(view, again)), known.get("memory_peak_bytes")
    capacity = float(view.devices["memory_bytes"].fillna(0).max()) if len(view.devices) else 0.0
    if share < NOTABLE or "idle_frac" not in known or (peak and 2 * peak.value > capacity):
        return
    definition = "share of the span: idle time while forward operators run in the backward pass, and their kernels"
    figure = Figure("recomputation_frac", "Recomputing", share, "1", definition, IN_OPS)
    text = f"In the backward pass {count:,} operators of the forward pass run again, most often {most}."
    text += f" At most {peak.text} of the GPU's {size(capacity)} are allocated." if peak else ""
    title = f"Recomputed activations take {figure.text} of the time"
    gain = removing(share, f"{AT_MOST}; the activations need memory in return")
    yield tell(RECOMPUTATION, title, severity(share), text, (figure,), gain)


def _again(view: Selection) -> tuple[pd.DataFrame, int, str]:
    """Return the backward pass by node until its last forward operator, the number of these, and the most frequent."""
    ops, nodes = view.ops, causes.where(view.ops["name"], lambda name: name.startswith(ENGINE))
    ops = ops[ops["thread"].isin(ops["thread"][nodes].unique())]  # threads of the backward pass
    forward = np.flatnonzero(causes.where(ops["name"], FORWARD.fullmatch))
    if not len(forward):
        return ops.iloc[:0], 0, ""
    around = totals.node_around(
        totals.parents(ops), causes.where(ops["name"], lambda name: name.startswith(ENGINE)), forward
    )
    forward, around = forward[around >= 0], around[around >= 0]
    start, last = (ops["start_ns"].to_numpy(copy=True) for _ in range(2))
    np.maximum.at(last, around, start[forward] + ops["dur_ns"].to_numpy()[forward])
    names = ops["name"].take(forward).astype(str).value_counts()
    return ops.assign(dur_ns=last - start)[last > start], len(forward), str(next(iter(names.index), ""))


def _spent(view: Selection, spans: pd.DataFrame) -> tuple[float, float]:
    """Return the share of the GPUs' time that is idle in spans of the CPU, and that of kernels launched in them."""
    calls, kernels, span = view.api_calls, view.all_kernels, span_ns(view)
    if spans.empty or not span:
        return 0.0, 0.0
    call = causes.started_by(kernels, calls)
    inside = np.append(causes.covered_by(calls.assign(dur_ns=1), spans, PLACE) > 0, False)[call]
    return _idle_share(view, spans, spans.iloc[:0]) or 0.0, float(kernels["dur_ns"].to_numpy()[inside].sum() / span)


def _waiting_for_input(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 1: the training thread sits in the data loader."""
    wait, told = known.get("input_wait_frac"), known.get("idle_data_loading_frac")
    if wait is None or wait.value < NOTABLE or (told is not None and told.value >= NOTABLE):
        return
    text = f"{wait.label}: {wait.definition}."
    idle = None if unrecorded(view) else loading(view)
    if idle is not None and _is_hidden(view):
        return
    if idle is None:
        gain = replace(removing(wait.value, f"of the steps' time: {AT_MOST}"), share=None)
    else:
        gain = removing(idle, f"at the same time the GPU is idle for {percent(idle)} of the time: {AT_MOST}")
        if of_steps(view) is not None:
            reason = gain.reason.replace("of the time", "of the steps' time").replace("the run saves", f"{STEADY} save")
            gain = replace(gain, reason=reason, share=None, whole=STEADY)
    level = severity(wait.value if idle is None else idle)
    title = f"Each step waits {wait.text} of its time for data"
    yield tell(INPUT, title, level, text, (wait,), gain)


def _is_hidden(view: Selection) -> bool:
    """Tell whether the GPU works while its data are loaded, but before the first of several steps."""
    loaders, steady = _loaders(view), steps.steady(detected(view))
    if len(steady) < 2:
        return False
    idle = _idle_share(view, loaders, loaders.iloc[:0], within=steady)
    return idle is not None and idle < LITTLE


def loading(view: Selection) -> float | None:
    """Return the share of the time in which a thread is in a data loader and the GPU idle; None without a GPU.

    The time is that of the steady steps, of the whole span where there are none; both begin with the first marked step,
    which loads before the GPU does anything.
    """
    loaders, steady = _loaders(view), steps.steady(detected(view))
    return _idle_share(view, loaders, loaders.iloc[:0], lead=_lead_ns(view), within=steady if len(steady) else None)


def preparing(view: Selection) -> Figure | None:
    """Return the share of the span in which the GPU is idle while a thread prepares data; None if none does.

    Time that several threads spend at once counts once. The span begins with the step in which the GPU's first
    operation lies, where steps are marked: a step that prepares first begins before the GPU does anything.
    """
    columns = [*PLACE, "start_ns", "dur_ns", "name"]
    parts = [f.loc[causes.where(f["name"], WORDS.search), columns] for f in (view.ranges, view.python_calls, view.ops)]
    parts = [part.astype({"name": "string"}) for part in parts]
    named = pd.concat([part for part in parts if len(part)]) if any(map(len, parts)) else parts[0]
    # Not those in which their thread launches a kernel.
    launches = view.api_calls[causes.where(view.api_calls["name"], causes.is_kernel_launch)]
    edges, (moments, _) = causes.on_one_axis([named, launches], PLACE)
    first, last = (np.searchsorted(np.sort(moments), edge) for edge in edges)
    named = named[first >= last]
    share = _idle_share(view, named, _loaders(view), lead=_lead_ns(view))
    if named.empty or share is None:
        return None
    definition = (
        "share of the span during which the GPU is idle while a thread tokenises, decodes, augments or collates "
        "(by names of functions and ranges, outside data loaders)"
    )
    definition += "; the span begins with the first step" if _lead_ns(view).any() else ""
    longest = str(named.groupby("name")["dur_ns"].sum().idxmax())
    label = f"Idle while preparing data ({printable(longest, 60)})"
    return Figure("preparing_idle_frac", label, share, "1", definition, IN_OPS)


def _loaders(view: Selection) -> pd.DataFrame:
    return view.ranges[causes.where(view.ranges["name"], causes.DATA_LOADING.search)]


@kept
def _lead_ns(view: Selection) -> Int:
    """Return the time from the start of a marked step to the first operation of each GPU in it, ns; 0 without one."""
    busy, marked = timeline.busy(view.all_kernels, view.copies, window=view.window), detected(view)
    marked = marked[marked["how"] != "kernel sequence"].sort_values("start_ns", kind="stable")
    if view.window is not None or marked.empty:
        return np.zeros(len(busy), np.int64)
    begun = marked[["rank", "start_ns", "dur_ns"]].assign(step_ns=marked["start_ns"])
    first = busy[["rank", "start_ns"]].reset_index().sort_values("start_ns", kind="stable")
    first = pd.merge_asof(first, begun, on="start_ns", by="rank").sort_values("index", kind="stable")
    lead = (first["start_ns"] - first["step_ns"]).where(lambda since: since < first["dur_ns"], 0)
    return lead.to_numpy(np.int64)


def _idle_share(
    view: Selection,
    spans: pd.DataFrame,
    without: pd.DataFrame,
    *,
    lead: Int | None = None,
    within: pd.DataFrame | None = None,
) -> float | None:
    """Return the idle time of the GPUs that lies in spans of their rank and not in others, over the time looked at.

    With `lead` that time begins so many ns before the first operation of each GPU; with `within` it is that of steps.
    """
    busy = timeline.busy(view.all_kernels, view.copies, window=view.window)
    if not busy["span_ns"].sum():
        return None
    idle = idle_gaps(view.all_kernels, view.copies, API_CALLS.empty(), window=view.window)
    _, (gpu, of_gap) = devices(busy, idle)
    gpus = busy[["rank"]].assign(device=gpu)
    wanted = subtract(_per_gpu(spans, gpus), _per_gpu(without, gpus))
    lead = np.zeros(len(busy), np.int64) if lead is None else lead
    first = busy["start_ns"].to_numpy()
    start = np.r_[idle["start_ns"], first - lead]
    both = intersect(wanted, union(start, np.r_[start[: len(idle)] + idle["dur_ns"], first], np.r_[of_gap, gpu]))
    if within is not None:
        inside = intersect(_per_gpu(within, gpus), union(first - lead, first + busy["span_ns"].to_numpy(), gpu))
        return float(total(intersect(both, inside), len(busy)).sum() / total(inside, len(busy)).sum())
    return float(total(both, len(busy)).sum() / (busy["span_ns"].sum() + lead.sum()))


def _per_gpu(spans: pd.DataFrame, gpus: pd.DataFrame) -> Intervals:
    """Return the time that the spans cover, once for each GPU of their rank."""
    of = spans[["rank", "start_ns", "dur_ns"]].merge(gpus, on="rank")
    start = of["start_ns"].to_numpy()
    return union(start, start + of["dur_ns"].to_numpy(), of["device"].to_numpy())
