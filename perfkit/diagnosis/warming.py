"""Warm-up: the first steps of a run that last more than 1.5 times as long as the later ones, and what they cost.

Steps are those of the GPU (`perfkit.analysis.steps`). Where the CPU runs ahead of the GPU, the kernels of a step run
after its range: the GPU's steps then do not show what the CPU did before the first one. There the ranges are matched
with the calls that launched the kernels, and only the time in which the GPU was idle counts as cost. A first step that
tries several kernels or loads them repeats nothing: what runs before the repeated sequences is such a step where it
runs almost all of their kernels, about once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import steps
from perfkit.analysis.causes import (
    started_by,
)
from perfkit.analysis.intervals import ends, intersect, union
from perfkit.diagnosis.finding import Figure, Finding, Gain, severity
from perfkit.diagnosis.kernel_loading import FIRST_TIMES, start_up
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import START_UP, WARM_UP
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import busy, detected, idle_gaps
from perfkit.format import duration, percent
from perfkit.selection import Selection

NOTABLE = 0.1
SEVERE = 0.3
HALF = 0.5
IN_WARM_UP = (
    "of this time lies in warm-up steps"  # what speaks against a finding whose cost is paid once
)
FIRST_PASS = (
    "a kernel runs less than twice on average: this may be a first pass, and all of it warm-up"
)
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
    launched = launched.sort_values(["rank", "gpu", "start_ns"])
    by_host = steps.inside(steps.detect(view.ranges, launched), view.window, launched)
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
    yield tell(START_UP, title, text, (share, calls), gain, level=level, is_mean=True)


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
    yield tell(WARM_UP, title, text, (share,), gain, level=severity(excess))
