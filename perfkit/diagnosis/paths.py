"""Figures and findings of a call-path profile (HPCToolkit): what CPU and GPU did, summed over the whole run.

A total is the sum over the entry points of the inclusive values at their roots: every thread, each
kernel once. Metrics hold no times of day: a window does not apply to them. The time of the CPU is the sum over
threads: CPU time, or else real time, in which sleep counts.

Thresholds: a GPU busy for less than 0.7 of the wall time is idle too often, copies above 0.1 and a
stall above 0.3 of their whole are worth a look, and a kernel under 10 µs is shorter than what
launching it can cost (conventions; the cost of a launch is 5 to 10 µs). Gains refer to the wall
time where the trace tells it: what happens on a GPU that is idle can gain no more than the GPU's
share of it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from perfkit.analysis import calltree
from perfkit.analysis.warps import ISSUING, stall_words
from perfkit.diagnosis import path_barriers
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.rules.call_paths import (
    MPI_TIME,
    PATHS_ALLOCATION,
    PATHS_COPIES,
    PATHS_GPU_IDLE,
    PATHS_HOST,
    PATHS_LAUNCHES,
    PATHS_STALL,
)
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.words import words
from perfkit.format import percent, printable
from perfkit.selection import Selection

BUSY = 0.7
NOTABLE = 0.1
SEVERE = 0.3
HALF = 0.5
SHORT_NS = 10_000
# operations in a run this short are too few to judge a program by (convention)
FEW = 50
SHORT_RUN_NS = 1_000_000_000
LITTLE = 0.01  # of the wall time
NO_WALL = "the recording lacks the length of the run, so the gain of the whole program is unknown"
CPU_TIME = "CPU time"
GPU_WORK = "the GPU's work"  # what gets faster where the length of the run is unknown
SOURCE = "calltree.gpu_summary"
TOTALS = words("call_paths")


def figures(view: Selection) -> Iterator[Figure]:
    """Yield the figures of a run's call paths; what was not measured is absent."""
    run = view.run
    if run.calltree.empty:
        return
    summary = calltree.gpu_summary(run.calltree, run.call_metrics)
    # Over the ranks, and the quotients of the sums.
    total = summary.drop(columns="rank").sum(min_count=1)
    total["kernel_mean_ns"] = total["kernel_ns"] / total["launch_count"]
    total["copy_frac"] = total["copy_ns"] / (total["kernel_ns"] + total["copy_ns"])
    total["coverage_frac"] = total["sample_count"] / total["expected_sample_count"]
    yield from _host_time(view, float(total["host_ns"]))
    for column, (label, unit, definition) in TOTALS.items():
        if pd.notna(total[column]):
            yield Figure(f"paths_{column}", label, float(total[column]), unit, definition, SOURCE)
    yield from _main_thread(view)
    yield from _asleep(view)
    yield from _stall(view)
    yield from _against_wall(view, summary, total)


def _host_time(view: Selection, total_ns: float) -> Iterator[Figure]:
    """Yield the time of all threads, called by what was measured: a clock on the wall counts sleep too."""
    if math.isnan(total_ns):
        return
    time = _time(view)
    counts = " (time that a thread sleeps counts)" if time != CPU_TIME else ""
    definition = f"sampled {time}, summed over all threads{counts}"
    label = f"{time[0].upper()}{time[1:]}"
    yield Figure("paths_host_ns", label, total_ns, "ns", definition, SOURCE, subject=time)


def _time(view: Selection) -> str:
    """Return what the time of the threads was measured as: "CPU time" or "real time"."""
    return calltree.host_time(view.run.call_metrics)


def _main_thread(view: Selection) -> Iterator[Figure]:
    parts = calltree.gpu_summary(view.run.calltree, view.run.call_metrics, by="entry").set_index(
        "entry"
    )
    time = _time(view)
    for name, label in (("kernel", "Kernel time"), ("host", f"{time[0].upper()}{time[1:]}")):
        column = f"{name}_ns"
        total = parts[column].sum()
        if total > 0 and "main thread" in parts.index:
            share = float(parts[column].fillna(0.0)["main thread"] / total)
            definition = "share of all threads' value that the main thread caused"
            text = f"{label} of the main thread"
            yield Figure(
                f"paths_main_thread_{name}_frac",
                text,
                share,
                "1",
                definition,
                SOURCE,
            )


def _asleep(view: Selection) -> Iterator[Figure]:
    """Yield how much of the threads' time is sleep: it counts where a clock on the wall was sampled, and is no work."""
    sleeping = _calls(view, calltree.paths.ASLEEP)
    if len(sleeping):
        names = " and ".join(printable(name, 40) for name in sleeping["name"].head(2))
        definition = f"share of all threads' time in calls that sleep, most in {names}: no work"
        value = float(sleeping["share_frac"].sum())
        yield Figure(
            "paths_asleep_frac", "Threads asleep", value, "1", definition, "calltree.paths.calls"
        )


def _calls(view: Selection, pattern: re.Pattern[str]) -> pd.DataFrame:
    """Return `calltree.paths.calls` of the host's time; empty where that was not recorded."""
    tree = view.run.calltree
    metrics = view.run.call_metrics
    name = calltree.host_metric(metrics)
    return (
        calltree.paths.calls(tree, metrics, metric=name, pattern=pattern) if name else tree.iloc[:0]
    )


@kept
def _stalls(view: Selection) -> pd.Series:
    """Return the samples of each reason to wait, by reason."""
    stalls = view.run.stalls
    waiting = stalls[(stalls["node"] >= 0) & ~stalls["reason"].isin(list(ISSUING))]
    return waiting.groupby("reason", observed=True)["value"].sum()


def _stall(view: Selection) -> Iterator[Figure]:
    sums = _stalls(view)
    if sums.sum() > 0:
        reason = str(sums.idxmax())
        yield Figure(
            "paths_main_stall_frac",
            f"Main stall: {reason}",
            float(sums.max() / sums.sum()),
            "1",
            "share of the stall samples (not of time) of all kernels; hidden stalls cost nothing "
            "and do not count",
            "STALLS",
            subject=reason,
        )


def _against_wall(view: Selection, summary: pd.DataFrame, total: pd.Series) -> Iterator[Figure]:
    """Yield what needs the length of the run: it is in the trace only."""
    wall = wall_ns(view)
    if wall is None:
        return
    yield Figure(
        "paths_wall_ns",
        "Wall time",
        wall,
        "ns",
        "time from the first to the last sample of the trace, all threads",
        "TRACE",
    )
    run = view.run
    if not total["operation_ns"] > 0:
        return
    used = calltree.utilisation(
        run.calltree, run.call_metrics, run.trace, run.threads, wall_ns=wall
    )
    gpu_time = float(used["denominator_ns"].sum())
    gpus = int(used["gpus"].sum())
    source = "calltree.utilisation"
    counted = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    definition = (
        f"share of the wall time of {counted} during which a kernel, copy or memset ran (upper "
        "limit)"
    )
    busy = float(used["high_ns"].sum() / gpu_time)
    yield Figure("paths_gpu_busy_frac", "GPU utilisation (time)", busy, "1", definition, source)
    share = float(total["kernel_ns"] / gpu_time)
    yield Figure(
        "paths_kernel_wall_frac",
        "Kernels in wall time",
        share,
        "1",
        f"share of the wall time of {counted}: sum of kernel durations",
        source,
    )
    cost = calltree.launch_cost(summary, wall_ns=wall)[["low_frac", "high_frac"]].sum(skipna=False)
    for end, per in (
        (("low", 5), ("high", 10)) if cost.notna().all() else ()
    ):  # the launches of all ranks were counted
        definition = (
            f"share of the wall time: launches x {per} µs on the CPU (estimate; launches overlap "
            "with kernels)"
        )
        label = f"Launches at {per} µs each"
        yield Figure(
            f"paths_launch_{end}_frac", label, float(cost[f"{end}_frac"]), "1", definition, SOURCE
        )


def wall_ns(view: Selection) -> int | None:
    """Return the length of the trace of the call-path profile, ns; None where none was recorded."""
    capture = view.run.capture
    lasted = capture.loc[capture["tool"] == "HPCToolkit", "dur_ns"]
    return int(lasted.max()) if len(lasted) and lasted.max() > 0 else None


def metric(view: Selection) -> str:
    """Return the metric that says where the time of the GPU went, or else that of the CPU.

    Empty where neither.
    """
    recorded = set(view.run.call_metrics["metric"].astype(str))
    return "GPUOP" if "GPUOP" in recorded else calltree.host_metric(view.run.call_metrics)


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the figures of a run's call paths show, rule by rule."""
    if view.run.calltree.empty:
        return
    yield from _idle_gpu(known)
    yield from _copies(view, known)
    yield from _allocation(known)
    yield from _main_stall(view, known)
    yield from _launches(known)
    yield from _host(view, known)
    yield from _mpi(view, known)
    yield from path_barriers.findings(view, known)


def _idle_gpu(known: dict[str, Figure]) -> Iterator[Finding]:
    busy = known.get("paths_gpu_busy_frac")
    if busy is None or busy.value >= BUSY:
        return
    title = f"The GPU works only {busy.text} of the wall time"
    worked = known["paths_operation_ns"].text
    wall = known["paths_wall_ns"].text
    text = f"The GPU ran kernels, copies or memsets for at most {worked} of the {wall} run."
    text += _little_to_gain(known)
    reason = (
        "best case: the run saves all time without GPU work; this includes every other gain on the "
        "CPU"
    )
    gain = removing(1 - busy.value, reason)
    level = "high" if 1 - busy.value >= SEVERE else "medium"
    evidence = (busy, known["paths_operation_ns"], known["paths_wall_ns"])
    yield tell(PATHS_GPU_IDLE, title, text, evidence, gain, level=level, is_mean=True)


def too_few(known: Mapping[str, Figure]) -> str:
    """Return how few operations of the GPU a short run holds, if they are too few to judge it.

    Or nothing.
    """
    wall = known.get("paths_wall_ns")
    counts = {
        what: known[f"paths_{name}_count"]
        for name, what in (("launch", "kernels"), ("copy", "copies"))
        if f"paths_{name}_count" in known
    }
    operations = sum(figure.value for figure in counts.values())
    if wall is None or wall.value >= SHORT_RUN_NS or not 0 < operations < FEW:
        return ""
    counted = " and ".join(f"{figure.text} {what}" for what, figure in counts.items())
    return f"The recording holds only {counted} in {wall.text}, too little to judge a program by"


def _little_to_gain(known: Mapping[str, Figure]) -> str:
    """Return that nothing on the GPU matters, where all of it and its launches take under a hundredth of the time."""
    launches = known.get("paths_launch_high_frac")
    taken = known["paths_gpu_busy_frac"].value + (launches.value if launches else 0.0)
    if launches is None or taken >= LITTLE:
        return ""
    return (
        f" Copies, kernels with their stalls, and launches together take {percent(taken)} of the wall time: "
        "to mend all of them gains under 1 %."
    )


def _copied_at(view: Selection) -> str:
    """Return the source line below which most of the copies begin, and the function that it calls.

    Or nothing.
    """
    tree = view.run.calltree
    metrics = view.run.call_metrics
    if "GXCOPY" not in set(metrics["metric"].astype(str)):
        return ""
    path = calltree.hot_path(tree, metrics, metric="GXCOPY")
    lines = path[path["kind"].eq("line") & path["line"].notna()]
    if lines.empty:
        return ""
    deepest = lines.iloc[-1]
    below = path[path["kind"].eq("function") & (path["depth"] > deepest["depth"])]
    called = (
        f" (`{printable(calltree.called(str(below['name'].iloc[0])), 80)}`)" if len(below) else ""
    )
    file = str(deepest["file"]).rpartition("/")[2]
    return f"{printable(file, 80)}:{deepest['line']}{called}"


def _copies(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    share = known.get("paths_copy_frac")
    if share is None or share.value < NOTABLE:
        return
    evidence = tuple(
        known[f"paths_{i}"] for i in ("copy_frac", "copy_ns", "h2d_bytes") if f"paths_{i}" in known
    )
    title = f"Copies take {share.text} of the GPU's kernel and copy time"
    text = f"{known['paths_copy_ns'].text} in {known['paths_copy_count'].text} copies."
    if place := _copied_at(view):
        text += f" Most of it begins at {place}."
    shorter = min(
        ("paths_copy_ns", "paths_kernel_ns"),
        key=lambda id: known[id].value if id in known else math.inf,
    )
    what = "all copies" if shorter == "paths_copy_ns" else "as much of the copies as kernels last"
    gain = _of_wall(known, shorter, f"best case: computation hides {what}")
    yield tell(PATHS_COPIES, title, text, evidence, gain, level=_severity(share, gain), place=place)


def _allocation(known: dict[str, Figure]) -> Iterator[Finding]:
    time = known.get("paths_allocation_ns")
    whole = known.get("paths_operation_ns")
    if time is None or whole is None or time.value < NOTABLE * whole.value:
        return
    definition = (
        "share of the time of all GPU operations (with kernels and copies) that allocations take"
    )
    value = min(time.value / whole.value, 1.0)
    share = Figure(
        "paths_allocation_frac", "Allocation in GPU operations", value, "1", definition, SOURCE
    )
    title = f"Allocating memory takes {share.text} of the time of all GPU operations"
    text = f"Allocations take {time.text} of {whole.text}. Meanwhile no kernel of the stream runs."
    gain = _of_wall(known, "paths_allocation_ns", "best case: the run saves all allocations")
    yield tell(
        PATHS_ALLOCATION, title, text, (share, time, whole), gain, level=_severity(share, gain)
    )


def _main_stall(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    share = known.get("paths_main_stall_frac")
    if share is None or share.value < SEVERE:
        return
    reason = share.subject
    said = stall_words.get(reason)
    title = f"The stall “{reason}” causes {share.text} of the stall samples"
    text = said.means if said else "perfkit has no description of this stall."
    helps = said.helps.rstrip(".") if said else "Look at the source lines with the most samples"
    best = "best case: the time of all kernels, because a share of samples is not a share of time"
    gain = _of_wall(known, "paths_kernel_ns", best)
    yield tell(PATHS_STALL, title, text, (share,), gain, level=_severity(share, gain), first=helps)


def _launches(known: dict[str, Figure]) -> Iterator[Finding]:
    mean = known.get("paths_kernel_mean_ns")
    if mean is None or mean.value >= SHORT_NS:
        return
    cost = known.get("paths_launch_high_frac")
    evidence = tuple(
        f
        for f in (mean, known["paths_launch_count"], known.get("paths_launch_low_frac"), cost)
        if f
    )
    title = f"The average kernel runs for {mean.text}, and launching one costs the CPU 5 to 10 µs"
    text = f"{known['paths_launch_count'].text} launches. " + (
        f"At 5 to 10 µs each, the launches cost the CPU at most {cost.text} of the wall time."
        if cost
        else f"{NO_WALL}."
    )
    reason = "best case: the run saves the CPU's time in launches; they overlap with kernels"
    gain = removing(min(cost.value, 1.0), reason) if cost else Gain(1.0, float("inf"), NO_WALL)
    level = "medium" if cost and cost.value >= NOTABLE else "low"
    yield tell(PATHS_LAUNCHES, title, text, evidence, gain, level=level)


def _host(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Name the Python function, else the loop or function, in which the host spends at least half of its time."""
    total = known.get("paths_host_ns")
    if total is None:
        return
    tree = view.run.calltree
    metrics = view.run.call_metrics
    entry = "main thread" if tree["entry"].eq("main thread").any() else ""
    name = calltree.host_metric(metrics)
    time = _time(view)
    path = calltree.hot_path(tree, metrics, metric=name, entry=entry)
    frames = _of_program(path)
    if frames.empty:
        return
    deepest = frames.iloc[-1]
    share = float(deepest["share_frac"])
    # What MPI takes of this time has a finding of its own.
    if share - mpi(view)["share_frac"].sum() < NOTABLE:
        return
    figure = Figure(
        "paths_host_frac",
        "Hottest call path of the CPU",
        share,
        "1",
        f"share of the entry point's {time} that is spent below this function or loop",
        "calltree.hot_path",
    )
    alone = calltree.exclusive(tree, metrics, metric=name)
    shares = (
        alone["share_frac"].groupby([calltree.called(str(text)) for text in alone["name"]]).sum()
    )
    own = Figure(
        "paths_procedure_frac",
        "Hottest procedure",
        float(shares.max()),
        "1",
        f"share of all threads' {time} that this procedure itself takes, without the functions it "
        "calls",
        "calltree.exclusive",
    )
    who = "The main thread" if entry else "The program"
    title = f"{who} spends {figure.text} of its {time} below {_place(path, deepest)}"
    text = (
        "From the entry point down, each caller spends at least half of its time in the next function. The procedure "
        f"with the most {time} itself is {printable(shares.idxmax(), 80)}: {own.text} of all threads' time."
    )
    gain = _of_host(known, share, entry)
    if asleep := known.get("paths_asleep_frac"):
        text += f" {asleep.label}: {asleep.text} ({asleep.definition})."
    level = "medium" if share >= SEVERE else "low"
    yield tell(
        PATHS_HOST,
        title,
        text,
        (figure, own, total),
        gain,
        level=level,
        place=_place(path, deepest),
    )


def _of_program(path: pd.DataFrame) -> pd.DataFrame:
    """Return the functions of Python on a hot path, else the code of the program below `main` that takes half of it."""
    frames = path[path["module"].eq("<logical python>") & path["kind"].eq("function")]
    if len(frames):
        return frames
    # What an MPI call does inside is no code of the program.
    calls = path["name"].astype("string").str.match(calltree.MPI.pattern).fillna(False).cummax()
    coded = path["kind"].isin(["function", "loop"]) & path["line"].notna() & path["name"].ne("main")
    return path[coded & ~calls & (path["share_frac"] >= HALF)]


def _place(path: pd.DataFrame, deepest: pd.Series) -> str:
    """Return what a function or loop of a hot path is called, with its source line."""
    name = printable(deepest["name"], 80)
    if deepest["kind"] == "function":
        file = str(deepest["file"]).rpartition("/")[2]
        return (
            name
            if pd.isna(deepest["line"])
            else f"{name} ({printable(file, 80)}:{deepest['line']})"
        )
    of = path[path["kind"].eq("function") & (path["depth"] < deepest["depth"])]
    return (
        f"the {name} of {printable(calltree.called(str(of['name'].iloc[-1])), 80)}"
        if len(of)
        else f"the {name}"
    )


def _of_host(known: dict[str, Figure], share: float, entry: str) -> Gain:
    """Return the gain of removing a share of the threads' time, of the main thread if any, from the wall time."""
    wall = known.get("paths_wall_ns")
    of_main = known.get("paths_main_thread_host_frac")
    if wall is None or (entry and of_main is None):
        return Gain(1.0, math.inf, NO_WALL)
    cpu_ns = share * known["paths_host_ns"].value * (of_main.value if of_main and entry else 1.0)
    time = known["paths_host_ns"].subject
    reason = f"best case: the wall time shrinks by this {time}, if it was on the critical path"
    return replace(removing(min(cpu_ns / wall.value, 1.0), reason), share=None)


@kept
def mpi(view: Selection) -> pd.DataFrame:
    """Return `calltree.mpi_calls` of the host's time; empty where that was not recorded."""
    tree = view.run.calltree
    metrics = view.run.call_metrics
    return (
        calltree.mpi_calls(tree, metrics, metric=calltree.host_metric(metrics) or "none")
        if len(tree)
        else tree
    )


def _mpi(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Name the MPI call with most of the measured time, and where it is called."""
    if "paths_host_ns" not in known:
        return
    calls = mpi(view)
    if calls["share_frac"].sum() < NOTABLE:
        return
    first = calls.iloc[0]
    time = _time(view)
    source = "calltree.mpi_calls"
    whole = Figure(
        "paths_mpi_frac",
        "MPI calls",
        float(calls["share_frac"].sum()),
        "1",
        f"share of all threads' {time} spent in MPI calls; nested calls count once",
        source,
    )
    name = printable(first["name"], 80)
    most = Figure(
        "paths_mpi_call_frac",
        f"MPI: {name}",
        float(first["share_frac"]),
        "1",
        f"share of all threads' {time} spent in {name}",
        source,
    )
    at = "" if pd.isna(first["at"]) else f", at {printable(first['at'], 80)}"
    others = ", ".join(
        f"{printable(r['name'], 80)} {percent(r['share_frac'])}"
        for r in calls[1:4].to_dict("records")
    )
    text = f"Most of it is spent in this call path: {printable(first['path'], 300)}{at}. "
    text += (
        f"Next: {others}. " if others else ""
    ) + f"A call that waits for another rank takes {time} too."
    title = f"MPI calls take {whole.text} of the {time}; {name} alone takes {most.text}"
    reason = (
        f"this is a share of all ranks' {time}; the recording does not show how long ranks wait "
        "for each other"
    )
    gain = Gain(1.0, math.inf, reason)
    yield tell(
        MPI_TIME,
        title,
        text,
        (whole, most, known["paths_host_ns"]),
        gain,
        level=severity(whole.value),
    )


def _of_wall(known: dict[str, Figure], figure: str, reason: str) -> Gain:
    """Return the gain of removing a GPU time from the wall time, or from the GPU's time where that is all there is."""
    wall = known.get("paths_wall_ns")
    part = known[figure].value
    if wall is None:
        share = part / known["paths_operation_ns"].value
        gain = removing(share, f"as a share of the GPU's time: {reason}; {NO_WALL}")
        return replace(gain, share=None, whole=GPU_WORK)
    share = min(part / wall.value, 1.0)
    return removing(share, f"{reason}: {percent(share)} of the wall time")


def _severity(share: Figure, gain: Gain) -> str:
    """Return how much it matters: large shares of a GPU that hardly works gain little for the run."""
    if gain.share is not None and gain.share < NOTABLE:
        return "low"
    return "high" if share.value >= SEVERE else "medium"
