"""What does a program of a framework wait for: input, preparation, compilation, recomputation?

Two rules are case studies of the course's chapter on GPU profiling: input that is waited for (case
1; where the GPU's gaps show it, the rule for idle time says so) and preparation on the CPU (case
4). Functions, ranges and operators are known by their names. One that launches kernels is more than
preparation and does not count; nor does what a data loader does inside its own range. Only idle
time of the GPU counts: data that is prepared while it works cost nothing.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis import causes, memory, steps
from perfkit.analysis.intervals import (
    Intervals,
    devices,
    ends,
    intersect,
    subtract,
    total,
    union,
)
from perfkit.analysis.operators import totals
from perfkit.analysis.operators.totals import ENGINE
from perfkit.diagnosis.finding import (
    AT_MOST,
    BEST,
    WORST,
    Figure,
    Finding,
    Gain,
    removing,
    severity,
)
from perfkit.diagnosis.framework import memory_growth
from perfkit.diagnosis.pausing import reason
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.idle import IDLE_DATA_LOADING
from perfkit.diagnosis.rules.operators import COMPILATION, MEMORY_GROWTH, RECOMPUTATION
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import INPUT, PREPARATION
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import (
    STEADY,
    busy,
    detected,
    every_gap,
    of_steps,
    owned,
    span_ns,
    unrecorded,
)
from perfkit.format import percent, printable, size
from perfkit.selection import Selection

WORDS = re.compile(
    r"tokeni[sz]|preprocess|collate|augment|imdecode|jpeg|image\.open|transforms?[/\\.]",
    re.IGNORECASE,
)
COMPILER = re.compile(r"\(dynamo_timed\)")  # what PyTorch notes of the phases of torch.compile
# Operators of forward passes; no gradient's formula is one of them.
FORWARD = re.compile(
    r"aten::(?:linear|conv[123]d|(?:layer|group|batch)_norm|scaled_dot_product_attention|gelu|silu|relu_?|dropout_?|embedding)"
)
PLACE = ["rank", "process", "thread"]
NOTABLE = 0.1
IN_OPS = "RANGES, PYTHON_CALLS, OPS; gaps.idle_gaps"
NEARLY_ALL = 0.9  # share of them (convention)
LITTLE = 0.01  # of the peak in all (convention)
NO_TIME = "memory costs no time until it is full; then the program fails"


def _memory_growth(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Memory that no step gives back: a leak, or a cache that grows by design."""
    figure = known.get("memory_growth_bytes")
    for row in memory_growth(view).head(1).to_dict("records"):
        of = memory.peak(view.samples).set_index(["rank", "gpu"]).loc[(row["rank"], row["gpu"])]
        if (
            figure is None
            or row["grew_frac"] < NEARLY_ALL
            or row["total_bytes"] < LITTLE * of["allocated_bytes"]
        ):
            return
        sheet = view.devices[
            view.devices["rank"].eq(row["rank"]) & view.devices["gpu"].eq(row["gpu"])
        ]
        capacity = int(sheet["memory_bytes"].fillna(0).max()) if len(sheet) else 0
        left = int((capacity - float(of["allocated_bytes"])) / row["growth_bytes"])
        full = (
            f" After about {left:,} more steps its memory of {size(capacity)} is full."
            if left > 0
            else ""
        )
        text = (
            f"In {percent(row['grew_frac'])} of {row['steps_count']:,} steady steps, more memory stayed allocated than "
            f"in the step before: {size(row['total_bytes'])} in all.{full} A key-value cache grows by design. "
            "Otherwise the program keeps tensors that it no longer needs."
        )
        title = f"Each step keeps {figure.text} more of the GPU's memory"
        yield tell(
            MEMORY_GROWTH, title, text, (figure,), Gain(1.0, math.inf, NO_TIME), level="medium"
        )


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the framework's operators show, rule by rule."""
    view = view.framework
    if view.ops.empty:
        return
    yield from _waiting_for_input(view, known)
    yield from _memory_growth(view, known)
    if not unrecorded(view):
        share = preparing(view)
        if share:  # case 4: the CPU prepares data while the GPU has nothing to do
            title = (
                f"Data preparation on the CPU keeps the GPU idle {share.text} {of_the_time(view)}"
            )
            text = f"{share.label}: {share.definition}."
            gain = removing(share.value, AT_MOST, worst=WORST)
            yield tell(PREPARATION, title, text, (share,), gain, is_mean=True)
        yield from _compilation(view, known)
        yield from _recomputation(view, known)


def _compilation(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The steady steps compile: shapes or types change, and torch.compile makes kernels for each of them."""
    idle, working = compiling(view)
    share = idle + working
    if share < NOTABLE or "idle_frac" not in known:
        return
    steady = steps.steady(detected(view))
    compilers = view.ops[causes.where(view.ops["name"], COMPILER.search)]
    count = steps.count(steady[causes.covered_by(steady, compilers) > 0])
    figure = Figure(
        "compilation_frac",
        "Compiling",
        share,
        "1",
        (
            "share of the span: idle time while torch.compile works in steady steps, and kernels that "
            "it launches"
        ),
        IN_OPS,
    )
    text = (
        f"torch.compile compiles in {count} of {steps.count(steady)} steady steps. "
        if len(steady)
        else ""
    )
    text += (
        f"The GPU is idle for {percent(idle)} of the time then, and runs trials of kernels for "
        f"{percent(working)}."
    )
    gain = removing(share, "best case: the run saves all of this time")
    # Each of them, so more than warm-up.
    gain = replace(gain, low=1 / (1 - share) if 1 < count == len(steady) else 1.0)
    title = f"torch.compile compiles for {figure.text} {of_the_time(view)}"
    yield tell(COMPILATION, title, text, (figure, known["idle_frac"]), gain)


@kept
def compiling(view: Selection) -> tuple[float, float]:
    """Return `_spent` of what torch.compile does in the steady steps, in the whole run where none is known."""
    ops = view.framework.ops
    phases = ops[causes.where(ops["name"], COMPILER.search)]
    steady = steps.steady(detected(view))
    return _spent(
        view.framework, phases[causes.covered_by(phases, steady) > 0] if len(steady) else phases
    )


def _recomputation(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Activations are computed again in the backward pass, though half of the memory or more is free."""
    again, count, most = _again(view)
    share = sum(_spent(view, again))
    peak = known.get("memory_peak_bytes")
    capacity = float(view.devices["memory_bytes"].fillna(0).max()) if len(view.devices) else 0.0
    if share < NOTABLE or "idle_frac" not in known or (peak and 2 * peak.value > capacity):
        return
    figure = Figure(
        "recomputation_frac",
        "Recomputing",
        share,
        "1",
        (
            "share of the span: idle time while forward operators run in the backward pass, and their "
            "kernels"
        ),
        IN_OPS,
    )
    text = (
        f"In the backward pass {count:,} operators of the forward pass run again, most often "
        f"{most}."
    )
    text += f" At most {peak.text} of the GPU's {size(capacity)} are allocated." if peak else ""
    title = f"Recomputed activations take {figure.text} {of_the_time(view)}"
    gain = removing(share, f"{AT_MOST}; the activations need memory in return", worst=WORST)
    yield tell(RECOMPUTATION, title, text, (figure,), gain)


def _again(view: Selection) -> tuple[pd.DataFrame, int, str]:
    """Return the backward pass by node until its last forward operator, the number of these, and the most frequent."""
    ops = view.ops
    nodes = causes.where(view.ops["name"], lambda name: name.startswith(ENGINE))
    ops = ops[ops["thread"].isin(ops["thread"][nodes].unique())]  # threads of the backward pass
    forward = np.flatnonzero(causes.where(ops["name"], FORWARD.fullmatch))
    if not len(forward):
        return ops.iloc[:0], 0, ""
    around = totals.node_around(
        totals.parents(ops),
        causes.where(ops["name"], lambda name: name.startswith(ENGINE)),
        forward,
    )
    forward = forward[around >= 0]
    around = around[around >= 0]
    start, last = (ops["start_ns"].to_numpy(copy=True) for _ in range(2))
    np.maximum.at(last, around, start[forward] + ops["dur_ns"].to_numpy()[forward])
    names = ops["name"].take(forward).astype(str).value_counts()
    return (
        ops.assign(dur_ns=last - start)[last > start],
        len(forward),
        str(next(iter(names.index), "")),
    )


def _spent(view: Selection, spans: pd.DataFrame) -> tuple[float, float]:
    """Return the share of the GPUs' time that is idle in spans of the CPU, and that of kernels launched in them."""
    calls = view.api_calls
    kernels = view.all_kernels
    span = span_ns(view)
    if spans.empty or not span:
        return 0.0, 0.0
    call = causes.started_by(kernels, calls)
    inside = np.append(causes.covered_by(calls.assign(dur_ns=1), spans, PLACE) > 0, False)[call]
    return _idle_share(view, spans, spans.iloc[:0]) or 0.0, float(
        kernels["dur_ns"].to_numpy()[inside].sum() / span
    )


def _waiting_for_input(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 1: the training thread sits in the data loader."""
    wait = known.get("input_wait_frac")
    told = known.get("idle_data_loading_frac")
    if reason(view).rule is IDLE_DATA_LOADING:
        return  # the finding on pauses tells it
    if wait is None or wait.value < NOTABLE or (told is not None and told.value >= NOTABLE):
        return
    text = f"{wait.label}: {wait.definition}."
    idle = None if unrecorded(view) else loading(view)
    if idle is not None and _is_hidden(view):
        return
    if idle is None:
        gain = removing(wait.value, f"of the steps' time: {AT_MOST}", worst=WORST)
        gain = replace(gain, share=None)
    elif of_steps(view) is None:
        gain = removing(idle, f"{_beside(idle)} of the time: {AT_MOST}", worst=WORST)
    else:
        best = BEST.format(saves=f"{STEADY} save")
        gain = removing(idle, f"{_beside(idle)} of the steps' time: {best}", worst=WORST)
        gain = replace(gain, share=None, whole=STEADY)
    level = severity(wait.value if idle is None else idle)
    title = f"Each step waits {wait.text} of its time for data"
    evidence = [wait]
    if idle is not None and "idle_frac" in known:
        evidence.append(known["idle_frac"])
    yield tell(INPUT, title, text, tuple(evidence), gain, level=level)


def _beside(idle: float) -> str:
    return f"at the same time the GPU is idle for {percent(idle)}"


def _is_hidden(view: Selection) -> bool:
    """Tell whether the GPU works while its data are loaded, but before the first of several steps."""
    loaders = _loaders(view)
    steady = steps.steady(detected(view))
    if len(steady) < 2:
        return False
    idle = _idle_share(view, loaders, loaders.iloc[:0], within=steady)
    return idle is not None and idle < LITTLE


def loading(view: Selection) -> float | None:
    """Return the share of the time in which a thread is in a data loader and the GPU idle.

    None without a GPU. The time is that of the steady steps, of the whole span where there are
    none.
    """
    loaders = _loaders(view)
    steady = steps.steady(detected(view))
    within = steady if len(steady) else None
    return _idle_share(view, loaders, loaders.iloc[:0], within=within)


@kept
def preparing(view: Selection) -> Figure | None:
    """Return the share of the span in which the GPU is idle while a thread prepares data.

    None if that is less than a tenth. Time that several threads spend at once counts once.
    """
    named = _preparations(view)
    share = None if named.empty else _idle_share(view, named, _loaders(view))
    if share is None or share < NOTABLE:
        return None
    definition = (
        "share of the span during which the GPU is idle while a thread tokenises, decodes, augments or collates "
        "(by names of functions and ranges, outside data loaders)"
    )
    longest = str(named.groupby("name")["dur_ns"].sum().idxmax())
    label = f"Idle while preparing data ({printable(longest, 60)})"
    return Figure("preparing_idle_frac", label, share, "1", definition, IN_OPS)


def preparing_causes(view: Selection) -> dict[str, float]:
    """Return the share of the span in which the GPU is idle while a thread prepares data, by cause of idle time."""
    if view.framework is not view or unrecorded(view) or preparing(view) is None:
        return {}
    idle = owned(view)
    cause = idle["detail"].astype(object).fillna(idle["cause"].astype(object))
    named, loaders = _preparations(view), _loaders(view)
    return {
        str(of): _idle_share(view, named, loaders, idle=rows) or 0.0
        for of, rows in idle.groupby(cause)
    }


def _preparations(view: Selection) -> pd.DataFrame:
    """Return the ranges, functions and operators that prepare data by their names, and start no kernel."""
    columns = [*PLACE, "start_ns", "dur_ns", "name"]
    parts = [
        f.loc[causes.where(f["name"], WORDS.search), columns]
        for f in (view.ranges, view.python_calls, view.ops)
    ]
    parts = [part.astype({"name": "string"}) for part in parts]
    named = pd.concat([part for part in parts if len(part)]) if any(map(len, parts)) else parts[0]
    # Not those in which their thread launches a kernel.
    launches = view.api_calls[causes.where(view.api_calls["name"], causes.is_kernel_launch)]
    free: pd.DataFrame = named[causes.covered_by(named, launches.assign(dur_ns=1), PLACE) == 0]
    return free


def _loaders(view: Selection) -> pd.DataFrame:
    return view.ranges[causes.where(view.ranges["name"], causes.DATA_LOADING.search)]


def _idle_share(
    view: Selection,
    spans: pd.DataFrame,
    without: pd.DataFrame,
    *,
    within: pd.DataFrame | None = None,
    idle: pd.DataFrame | None = None,
) -> float | None:
    """Return the idle time of the GPUs that lies in spans of their rank and not in others, over the time looked at.

    With `within` that is the time of steps. `idle`: the idle time that counts, all by default.
    """
    seen = busy(view)
    if not seen["span_ns"].sum():
        return None
    idle = every_gap(view) if idle is None else idle
    _, (gpu, of_gap) = devices(seen, idle)
    gpus = seen[["rank"]].assign(device=gpu)
    wanted = subtract(_per_gpu(spans, gpus), _per_gpu(without, gpus))
    both = intersect(wanted, union(*ends(idle), of_gap))
    if within is not None:
        span = union(seen["start_ns"].to_numpy(), seen["end_ns"].to_numpy(), gpu)
        inside = intersect(_per_gpu(within, gpus), span)
        return float(
            total(intersect(both, inside), len(seen)).sum() / total(inside, len(seen)).sum()
        )
    return float(total(both, len(seen)).sum() / seen["span_ns"].sum())


def _per_gpu(spans: pd.DataFrame, gpus: pd.DataFrame) -> Intervals:
    """Return the time that the spans cover, once for each GPU of their rank."""
    of = spans[["rank", "start_ns", "dur_ns"]].merge(gpus, on="rank")
    start = of["start_ns"].to_numpy()
    return union(start, start + of["dur_ns"].to_numpy(), of["device"].to_numpy())
