"""Warm-up: the first steps of a run that last more than 1.5 times as long as the later ones, and what they cost.

Steps are those of the GPU (`perfkit.analysis.steps`). Where the CPU runs ahead of the GPU, the kernels of a step run
after its range: the GPU's steps then do not show what the CPU did before the first one. There the ranges are matched
with the calls that launched the kernels, and only the time in which the GPU was idle counts as cost. A first step that
tries several kernels or loads them repeats nothing: what runs before the repeated sequences is such a step where it
runs almost all of their kernels, about once.

Start-up: the first launch of a kernel in a process loads the kernel into the GPU (lazy loading), and may compile it. It
is paid once, however long the run lasts, so no rule counts it as a gain, and no replay takes it away. A first launch
counts if its call lasts FIRST_TIMES as long as the median of the later launches, and 0.1 ms at least (conventions): in
recordings of A100 and H100 such calls last 0.2 to 700 ms, and others 3 to 20 µs. Calls that load modules always count.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import steps
from perfkit.analysis.causes import (
    MEMORY_CALL,
    THREAD,
    is_kernel_launch,
    numbered_together,
    on_one_axis,
    started_by,
    where,
)
from perfkit.analysis.intervals import ends, intersect, union
from perfkit.diagnosis.finding import Figure, Finding, Gain, kept, severity
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import START_UP, WARM_UP
from perfkit.diagnosis.timeline import busy, detected, idle_gaps
from perfkit.format import duration, percent
from perfkit.selection import Selection

NOTABLE = 0.1
IN_WARM_UP = (
    "of this time lies in warm-up steps"  # what speaks against a finding whose cost is paid once
)
FIRST_PASS = (
    "a kernel runs less than twice on average: this may be a first pass, and all of it warm-up"
)
FIRST_TIMES, FIRST_NS, SEVERE, HALF = 10, 100_000, 0.3, 0.5
ASKS_DRIVER = re.compile(r"cuInit|cuGetProcAddress|hipInit|hipGetProcAddress")
LAUNCH = [
    "rank",
    "process",
    "correlation",
]  # of one launch an export may hold two calls, one inside the other
ALIKE, ONCE = (
    0.9,
    2.0,
)  # share of a step's kernels that a first step runs, and how often, less than this (conventions)


class Warming(NamedTuple):
    """The slow first steps (STEPS), of how many found how, what a later one takes, and what they cost; ns."""

    early: pd.DataFrame
    steps_count: int
    how: str
    usual_ns: float
    spent_ns: int
    excess_ns: float
    idle_ns: int | None


@kept
def warming(view: Selection) -> Warming:
    """Return the steps that are warm-up: by what the GPU does, else by what the CPU does."""
    found = detected(view)
    if found["how"].eq("kernel sequence").all() and view.window is None:
        found = pd.concat([_before(view, found), found], ignore_index=True)
    of_gpu = _slow(found)
    if len(of_gpu) or view.ranges.empty or not found["how"].eq("kernel sequence").all():
        return _cost(view, of_gpu, found)
    # The steps of ranges by when their kernels were launched.
    call = started_by(view.all_kernels, view.api_calls)
    launched = view.all_kernels[call >= 0]
    launched = launched.assign(start_ns=view.api_calls["start_ns"].to_numpy()[call[call >= 0]])
    by_host = steps.detect(
        view.ranges, launched.sort_values(["rank", "gpu", "start_ns"]), window=view.window
    )
    of_host = by_host[by_host["how"] != "kernel sequence"]
    early = _slow(of_host)
    return _cost(view, early, of_host, host=True) if len(early) else _cost(view, of_gpu, found)


def _before(view: Selection, found: pd.DataFrame) -> pd.DataFrame:
    """Return what runs before the first step of each rank, as a step of it where it runs a step's kernels once."""
    early = found.drop_duplicates("rank")
    begun = {
        rank: f["start_ns"].min()
        for rank, f in pd.concat([view.all_kernels, view.copies]).groupby("rank")
    }
    usual = (
        early[["rank"]]
        .merge(steps.steady(found).drop_duplicates("rank"), "left", on="rank")
        .fillna({"dur_ns": 0})
    )
    bounds, lasted = (
        zip(early["rank"], early["start_ns"], usual["start_ns"], usual["dur_ns"], strict=True),
        [],
    )
    for rank, first, start, dur in bounds:
        kernels = view.all_kernels[view.all_kernels["rank"] == rank]
        inside = kernels.loc[
            kernels["start_ns"].between(start, start + dur, "left"), "full_name"
        ].value_counts()
        before = kernels.loc[kernels["start_ns"] < first, "full_name"].value_counts()
        times = before.reindex(inside.index[inside > 0]) / inside[inside > 0]
        is_step = (times > 0).mean() >= ALIKE and times.median() < ONCE
        lasted.append(int(first - begun[rank]) if is_step else 0)
    length = np.array(lasted, np.int64)
    early = early.assign(step=-1, steady=False, dur_ns=length, start_ns=early["start_ns"] - length)
    return early[early["dur_ns"] > 0]


def _slow(found: pd.DataFrame) -> pd.DataFrame:
    """Return the steps before the steady ones of their rank that last more than 1.5 times their median."""
    steady = steps.steady(found).groupby("rank")
    first, usual = (
        found["rank"].map(of) for of in (steady["step"].min(), steady["dur_ns"].median())
    )
    return found[(found["step"] < first) & (found["dur_ns"] > steps.SLOW * usual)]


def _cost(
    view: Selection, early: pd.DataFrame, found: pd.DataFrame, *, host: bool = False
) -> Warming:
    """Return what the early steps cost: their time while the GPU was seen, or the idle time of the GPU in it."""
    usual = steps.steady(found).groupby("rank")["dur_ns"].median()
    excess = float((early["dur_ns"] - early["rank"].map(usual)).sum())
    how = str(found["how"].iloc[0]) if len(found) else ""
    seen = busy(view)
    first = seen["start_ns"].groupby(seen["rank"]).min()
    last = seen["end_ns"].groupby(seen["rank"]).max()
    start, end = early["start_ns"], early["start_ns"] + early["dur_ns"]
    start, end = start.clip(lower=early["rank"].map(first)), end.clip(upper=early["rank"].map(last))
    spent = int((end - start).clip(lower=0).sum())
    idle = _idle_ns(view, early["rank"], start, end) if host else None
    if idle is not None:
        spent, excess = idle, min(excess, idle)
    middle = float(usual.median()) if len(usual) else 0.0
    return Warming(early, steps.count(found), how, middle, spent, min(excess, spent), idle)


def _idle_ns(view: Selection, rank: pd.Series, start: pd.Series, end: pd.Series) -> int:
    gaps = idle_gaps(view)
    if gaps is None:
        return 0
    inside = union(*(column.to_numpy(np.int64) for column in (start, end, rank)))
    both = intersect(union(*ends(gaps), gaps["rank"].to_numpy(np.int64)), inside)
    return int((both.end - both.start).sum())


def first_launches(kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the launch calls that load their kernel: `row` (position) and LAUNCH of API_CALLS, and `usual_ns`.

    `usual_ns` is the median length of the later launches; where there are none a call that loads lasts 1 ms at least.
    """
    call = started_by(kernels, api_calls)
    launched = np.flatnonzero(call >= 0)
    row, names = call[launched], kernels["full_name"].cat
    places = {
        "rank": kernels["rank"].to_numpy()[launched],
        "process": api_calls["process"].to_numpy()[row],
    }
    (name,) = numbered_together([pd.DataFrame(places, copy=False)], [*places])
    places.clear()  # of each kernel, as all that follows
    name *= len(names.categories) + 1  # a name may be missing
    name += names.codes.to_numpy()[launched] + 1
    start, dur = (api_calls[column].to_numpy()[row] for column in ("start_ns", "dur_ns"))
    begun = np.full(int(name.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, name, start)
    first = np.flatnonzero(start == begun[name])
    first = first[~pd.Series(name[first]).duplicated()]
    later = np.delete(dur, first)
    usual = float(np.median(later)) if len(later) else FIRST_NS
    first = first[dur[first] >= max(FIRST_TIMES * usual, FIRST_NS)]
    of = {
        column: api_calls[column].to_numpy()[row[first]]
        for column in ("process", "start_ns", "dur_ns")
    }
    of |= {
        column: kernels[column].to_numpy()[launched[first]] for column in ("rank", "correlation")
    }
    slow = (
        pd.DataFrame({"row": row[first], **of})
        .sort_values("start_ns", kind="stable")
        .drop_duplicates("row")
    )
    return slow[["row", *LAUNCH]].assign(usual_ns=usual)


@kept
def loading(view: Selection) -> pd.DataFrame:
    """Return `first_launches` of a selection, whatever its window: what ran before it is loaded."""
    return first_launches(view.all_kernels, view.api_calls)


def loaded_before(
    first: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return API_CALLS in which loading kernels is work of the CPU before the call: no change of calls removes it.

    `first`: the calls that load, of `first_launches` of the whole run; KERNELS and API_CALLS may be a part of it.
    """
    of_first, call = numbered_together([first, api_calls], LAUNCH)
    row = np.flatnonzero(np.isin(call, of_first))
    if not len(row):
        return api_calls
    start, length = (api_calls[name].to_numpy(copy=True) for name in ("start_ns", "dur_ns"))
    begun = (
        kernels.groupby(LAUNCH)["start_ns"]
        .min()
        .reindex(pd.MultiIndex.from_frame(api_calls[LAUNCH].iloc[row]))
    )
    until = (
        begun.fillna(np.inf).to_numpy() - start[row]
    )  # the kernel of a call at the edge may lie outside
    extra = np.minimum(length[row] - int(first["usual_ns"].iloc[0]), until).astype(np.int64)
    start[row] += extra.clip(min=0)
    length[row] -= extra.clip(min=0)
    moved = api_calls.assign(start_ns=start, dur_ns=length)
    return moved.sort_values([*THREAD, "start_ns"], kind="stable", ignore_index=True)


@kept
def start_up(view: Selection) -> tuple[dict[str, float], pd.DataFrame]:
    """Return the share of the span in which the GPU is idle while kernels load, by cause, and the calls that load them.

    Causes are launch (first launches), cuda_call (calls that load modules) and memory (calls of a library that starts),
    as far as their thread was waited for.
    """
    gaps, span, calls = idle_gaps(view), int(busy(view)["span_ns"].sum()), view.api_calls
    if gaps is None or not span:
        return {}, calls.head(0)
    first = calls.iloc[loading(view)["row"]]
    loads = calls[
        where(calls["name"], re.compile(r"(?:cu|hip|cuda)(?:Module|Library)(?:Load|Get)").match)
    ]
    set_up = library_calls(calls)
    shares = {"launch": 0.0, "cuda_call": 0.0, "memory": 0.0}
    for cause, found in (("launch", first), ("cuda_call", loads), ("memory", set_up)):
        for _, waits in gaps[gaps[f"{cause}_ns"] > 0].groupby(
            "gpu"
        ):  # a thread may launch on several
            of_thread = zip((waits, found), numbered_together([waits, found], THREAD), strict=True)
            both = intersect(*(union(*ends(frame), number) for frame, number in of_thread))
            shares[cause] += (
                min(int((both.end - both.start).sum()), int(waits[f"{cause}_ns"].sum())) / span
            )
    return shares, pd.concat([first, loads, set_up])


def library_calls(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the API_CALLS that allocate or free memory while a library starts.

    A library that starts asks for the driver's functions (cuInit, cuGetProcAddress); until the thread launches its next
    kernel, such calls make contexts and handles.
    """
    names = calls["name"]
    marks = (
        where(names, ASKS_DRIVER.match),
        where(names, is_kernel_launch),
        where(names, MEMORY_CALL.match),
    )
    asks, launches, allocates = (calls[mark] for mark in marks)
    if asks.empty or allocates.empty:
        return calls.head(0)
    (asked, _), (launched, _), (at, _) = on_one_axis([asks, launches, allocates], THREAD)
    asked, launched = np.sort(asked), np.sort(launched)
    before = np.searchsorted(asked, at) - 1
    of_thread = numbered_together([asks, allocates], THREAD)
    threads = of_thread[0][np.argsort(on_one_axis([asks], THREAD)[0][0], kind="stable")]
    is_after = (before >= 0) & (threads[np.maximum(before, 0)] == of_thread[1])
    none_between = np.searchsorted(launched, at) == np.searchsorted(
        launched, asked[np.maximum(before, 0)]
    )
    found: pd.DataFrame = allocates[is_after & none_between]
    return found


def _in_steps(calls: pd.DataFrame, early: pd.DataFrame) -> bool:
    loads, steps = (
        union(*ends(frame), frame["rank"].to_numpy(np.int64)) for frame in (calls, early)
    )
    both = intersect(loads, steps)
    return bool((both.end - both.start).sum() >= HALF * (loads.end - loads.start).sum())


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield the first steps, or else the loading of kernels, where they take a tenth of the time."""
    by_cause, loads = start_up(view)
    value, count = sum(by_cause.values()), len(loads)
    early = list(_warm_up(view, known))
    if value < NOTABLE or "idle_frac" not in known:
        yield from early
        return
    is_same = bool(early) and _in_steps(loads, warming(view).early)
    definition = (
        "share of the span: idle time of the GPU while the CPU loads kernels or starts libraries"
    )
    share = Figure("start_up_frac", "Loading kernels", value, "1", definition, "gaps.idle_gaps")
    calls = Figure(
        "start_up_count",
        "Calls that load kernels",
        count,
        "count",
        "number of these calls",
        "gaps.idle_gaps",
    )
    calling = (
        f"{count:,} calls load kernels into the GPU, or compile"
        if count > 1
        else "1 call loads kernels, or compiles"
    )
    text = f"{calling} them: first launches that take over {FIRST_TIMES} times as long as later ones, and loads of "
    text += (
        "modules. A library that starts allocates memory too. "
        if by_cause.get("memory")
        else "modules. "
    )
    text += "A process pays this once, so a longer run has less of it."
    if is_same:  # the same time, told once
        told = f"{early[0].explanation} Loading kernels keeps the GPU idle {share.text} of the time: {text}"
        yield replace(early[0], explanation=told, evidence=(*early[0].evidence, share, calls))
        return
    yield from early
    gain = Gain(1.0, 1.0, "a program loads its kernels once: no step gets faster")
    what = "Loading kernels at their first launch keeps"
    if by_cause.get("memory"):
        what = "Loading kernels and starting libraries keep"
    title = f"{what} the GPU idle {share.text} {of_the_time(view)}"
    level = "medium" if value >= SEVERE else "low"
    yield tell(START_UP, title, level, text, (share, calls), gain, is_mean=True)


def _warm_up(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    # Steps are those of a rank, whose GPUs are seen over one span.
    found, span = warming(view), int(busy(view).groupby("rank")["span_ns"].max().sum())
    if found.early.empty or "span_ns" not in known or found.spent_ns < NOTABLE * span:
        return
    value, excess = found.spent_ns / span, found.excess_ns / span
    time = "time of" if found.idle_ns is None else "idle time of the GPU in"
    definition = f"share of the span: {time} the first steps that take over 1.5 times the median of the later steps"
    share = Figure("warm_up_frac", "Warm-up in the window", value, "1", definition, "steps.detect")
    early = found.early["dur_ns"].median()
    early_count = steps.count(found.early)
    slower = "are slower: their median is" if early_count > 1 else "is slower: it takes"
    text = (
        f"{early_count} of {found.steps_count} steps (found by {found.how}) {slower} {duration(early)} instead of "
        f"{duration(found.usual_ns)}."
    )
    text += f" As many steady steps would save {percent(excess)} of the time."
    if found.idle_ns is not None:
        text += " These are CPU times, and the CPU launches ahead. The cost is the GPU's idle time in these steps."
    gain = Gain(
        1.0,
        1.0,
        "warm-up happens once: leaving it out corrects the figures, but makes no program faster",
    )
    title = f"Warm-up takes {share.text} of the measured time"
    yield tell(WARM_UP, title, severity(excess), text, (share,), gain)
