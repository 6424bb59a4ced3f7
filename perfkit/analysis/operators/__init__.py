"""What do the framework's operators cost, on the CPU and on the GPU, and which of them should not be there?

All tables are of one execution. A kernel belongs to the innermost operator that runs on the
launching thread when the launch call begins: of all operators [start, end) of that process and
thread that contain the call's start. The call is joined on (rank, process, correlation); all nodes
of a graph belong to the operator that launched the graph. Kernels without a recorded call, or
launched outside of every operator, have no operator: they are never dropped, and stand in rows of
their own. *Self* is an operator without those nested in it, *total* with them. Times of the GPU are
sums of kernel durations, copies left out; concurrent kernels add up.

Each of the `CHECKS` names operators by a pattern and says what they must do to count: an
``aten::item`` of a tensor on the CPU costs nothing, one that calls CUDA waits for the GPU.
Operators count once per check, the outermost.

Launching takes the CPU about 5 to 10 us, so a kernel is short when it runs for less than
`SHORT_NS`. That constant only selects: whether launching holds the GPU up is for the measured
`interval_ns` to say, the time from one launch call of a thread to its next. Where it exceeds the
kernels' time, the GPU waits for the CPU. Nodes of a graph are launched together: they have no
interval.

A synchronisation is a call that returns only when the GPU is done (`perfkit.analysis.host.BLOCKING`) or an asynchronous
copy from the device to pageable memory, which does so too (CUDA Runtime API, "API synchronization behavior"). It is
*explicit* where the program asks to wait (``torch.cuda.synchronize()``: a *Synchronize* call outside every operator),
else *implicit* (``.item()``, ``.cpu()``, ``nonzero``: the call is the operator's).

The device waited for is the one on which the calling thread last started an operation, else the
rank's only one. The idle time that a synchronisation costs lies in the gap of that device in which
it ends: from its start, or from when the device ran dry if that is later, to the next operation's
start, or to the next synchronisation's that ends in the same gap: nothing is counted twice. At most
that is saved without the synchronisation, for the host may have other work to do before it launches
again. Where graph launches have no recorded kernels (`perfkit.analysis.causes.determinable`) gaps
are an artefact, and so is this.

Source: PyTorch, ``torch.profiler``; Kineto gives a kernel the same operator as its "External id".
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit.analysis.causes import THREAD as THREAD_KEYS
from perfkit.analysis.causes import (
    is_graph_launch,
    is_memory,
    numbered_together,
    on_one_axis,
    started_by,
    where,
)
from perfkit.analysis.gaps import GAPS, idle_gaps
from perfkit.analysis.grouping import grouped, numbered, ranked
from perfkit.analysis.host import blocks
from perfkit.analysis.intervals import Axis, Bool, Int, Window, cut, devices, ends, spans
from perfkit.analysis.operators import totals
from perfkit.analysis.operators.totals import (
    HOW,
    Operators,
    backward,
    kernels_of,
    summary,
)
from perfkit.analysis.steps import STEPS
from perfkit.names import decode
from perfkit.schema import Column, Table
from perfkit.tables import (
    API_CALLS,
    COPIES,
    DUR,
    GPU,
    KERNELS,
    OPS,
    PROCESS,
    PYTHON_CALLS,
    RANK,
    START,
    THREAD,
)

SHORT_NS = 10_000  # median duration from which on kernels are not short (convention)


@dataclass(frozen=True)
class Check:
    """Operators that match `pattern` and have `having` are unexpected: why, and what to do instead."""

    check: str
    pattern: str
    having: str  # one of _traits
    why: str
    instead: str


with Path(__file__).with_name("checks.toml").open("rb") as _file:
    CHECKS = tuple(Check(name, **words) for name, words in tomllib.load(_file).items())
KINDS = ("explicit", "implicit")
SYNCHRONISATIONS = Table(
    "SYNCHRONISATIONS",
    "a call that waits for the GPU",
    (
        *(RANK, GPU, PROCESS, THREAD, START, DUR),
        Column("api", "category", "the call, as in API_CALLS"),
        Column(
            "kind",
            "category",
            "explicit, the program asked to wait, or implicit, an operator or a copy did",
        ),
        Column(
            "operator",
            "category",
            "innermost operator that makes the call; missing outside of operators",
        ),
        Column(
            "outermost", "category", "outermost aten operator around it; missing if there is none"
        ),
        Column(
            "line",
            "category",
            "Python function that asked for it, file(line): name; missing without stacks",
        ),
        Column(
            "idle_ns",
            "Int64",
            "idle time of the GPU it cost, ns; NA if no operation precedes or follows it there",
        ),
    ),
    ("rank", "process", "thread", "start_ns"),
)
KEYS = ("api", "kind", "operator", "outermost", "line")
__all__ = [
    "CHECKS",
    "HOW",
    "SHORT_NS",
    "SYNCHRONISATIONS",
    "Operators",
    "backward",
    "kernels_of",
]
__all__ += ["many_small", "summary", "synchronisation_summary", "synchronisations", "unexpected"]


def unexpected(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the operators that a step would do without, per check (`CHECKS`) and operator.

    In a window operators count with the part inside.

    In the order of `CHECKS`, then by falling `cpu_total_ns`: `check` string; `name` category, the
    operator; `count` int64; `cpu_total_ns` int64, time of the CPU in them; `gpu_total_ns` int64,
    time of the kernels and copies that they and operators nested in them launched, whole; `why`,
    `instead` string.
    """
    parent = totals.parents(OPS.check(ops))
    traits, gpu = _traits(
        ops, parent, KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls)
    )
    inside = cut(ops[["start_ns", "dur_ns"]].assign(row=np.arange(len(ops))), window)
    cpu = np.full(len(ops), -1, np.int64)
    cpu[inside["row"].to_numpy()] = inside["dur_ns"].to_numpy()
    tables = [_of_check(check, ops, parent, traits[check.having], cpu, gpu) for check in CHECKS]
    return pd.concat(tables, ignore_index=True).astype(
        {"check": "string", "why": "string", "instead": "string"}
    )


def _of_check(
    check: Check, ops: pd.DataFrame, parent: Int, having: Bool, cpu: Int, gpu: Int
) -> pd.DataFrame:
    """Return the rows of one check; `cpu` is negative for operators outside of the window."""
    matches = where(ops["name"], re.compile(check.pattern).fullmatch) & having
    counted = np.flatnonzero(matches)
    counted = counted[
        totals.outermost(parent, matches.astype(np.int64), counted) & (cpu[counted] >= 0)
    ]
    table, group = numbered(ops[["name"]].take(counted), ["name"])
    table.insert(0, "check", check.check)
    figures = grouped(cpu[counted], group, len(table))
    table["count"], table["cpu_total_ns"] = figures["count"], figures["total"]
    table["gpu_total_ns"] = totals.sums(gpu[counted], group, len(table))
    table = table.sort_values("cpu_total_ns", ascending=False, kind="stable")
    return table.assign(why=check.why, instead=check.instead)


def _traits(
    ops: pd.DataFrame,
    parent: Int,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
) -> tuple[dict[str, Bool], Int]:
    """Return what each operator does, itself or (cuda, gpu) in those nested in it, and its GPU time with these."""
    op_of_call = np.append(totals.open_at(ops, api_calls), -1)
    launches = [op_of_call[started_by(table, api_calls)] for table in (kernels, copies)]
    to_host = (copies["direction"] == "D2H").to_numpy()
    pageable = ((copies["direction"] == "H2D") & (copies["src_memory"] == "pageable")).to_numpy()
    memory = where(api_calls["name"], is_memory)

    def count(row: Int) -> Int:
        return np.bincount(row[row >= 0], minlength=len(ops)).astype(np.int64)

    both = np.concatenate(launches)
    dur = np.concatenate([kernels["dur_ns"].to_numpy(), copies["dur_ns"].to_numpy()])
    traits = {
        "cuda": totals.rolled_up(count(op_of_call[:-1]), parent) > 0,
        "gpu": totals.rolled_up(count(both), parent) > 0,
        "to_host": count(launches[1][to_host]) > 0,
        "pageable": count(launches[1][pageable]) > 0,
        # Of the operands' types "double" is also said of a Python number, which is computed with in
        # single precision.
        "double": count(
            launches[0][where(kernels["full_name"], lambda name: decode(name).precision == "fp64")]
        )
        > 0,
        "driver_memory": count(op_of_call[:-1][memory]) > 0,
    }
    return traits, totals.rolled_up(totals.sums(dur[both >= 0], both[both >= 0], len(ops)), parent)


def many_small(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    steps: pd.DataFrame | None = None,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the operators whose kernels have a median duration below SHORT_NS, by falling number of launches.

    `steps`: What `perfkit.analysis.steps.detect` returned, for launches per step.
    `window`: Only kernels that start in it; none is cut.

    By falling `count`, ties by name: `name` category, of the operator that launches, missing for
    kernels without one; `count` int64, kernels; `total_ns` int64, `mean_ns`, `median_ns` float64,
    of their durations; `count_frac`, `share_frac` float64, count and total_ns over those of all
    kernels (share_frac NaN where these take no time); `interval_ns` float64, median time from the
    operator's launch calls to the next of the same thread, NaN where there is none;
    `per_step_count` float64, kernels that start in a step over the number of steps of all ranks,
    NaN without steps.
    """
    steps = STEPS.given(steps)
    call, op = totals.launching(OPS.check(ops), KERNELS.check(kernels), API_CALLS.check(api_calls))
    launches = kernels[["rank", "start_ns", "dur_ns"]].assign(
        name=totals.named(ops, op), interval=_intervals(api_calls, call)
    )
    launches = launches[totals.starts_inside(launches, window)]
    table, group = numbered(launches, ["name"])
    figures = grouped(launches["dur_ns"].to_numpy(), group, len(table))
    table["count"], table["total_ns"] = figures["count"], figures["total"]
    table["mean_ns"], table["median_ns"] = figures["mean"], figures["median"]
    table["count_frac"] = table["count"] / (len(launches) or np.nan)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    waits = launches["interval"].to_numpy()
    table["interval_ns"] = grouped(waits[waits >= 0], group[waits >= 0], len(table))["median"]
    # Which kernels start in one of the steps, which do not overlap within a rank.
    (start, _), (begin, end) = on_one_axis([launches, steps], ["rank"])
    at = np.searchsorted(begin, start, side="right") - 1
    inside = np.bincount(
        group[np.asarray((at >= 0) & (start < np.append(end, 0)[at]))], minlength=len(table)
    )
    table["per_step_count"] = inside / (len(steps) or np.nan)
    return ranked(table[table["median_ns"] < SHORT_NS], "count", ["name"])


def _intervals(api_calls: pd.DataFrame, call: Int) -> Int:
    """Return the time from the launch call of each kernel to the thread's next one, ns, -1 where there is none."""
    launches = np.flatnonzero(np.bincount(call[call >= 0], minlength=len(api_calls)))
    there = api_calls.take(launches)
    (thread,) = numbered_together([there], THREAD_KEYS)
    step, same = np.diff(there["start_ns"].to_numpy()), np.diff(thread) == 0
    alone = ~where(there["name"], is_graph_launch)
    intervals = np.full(len(api_calls) + 1, -1, np.int64)
    intervals[launches[:-1]] = np.where(same & alone[:-1], step, -1)
    return intervals[call]


def synchronisations(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    python_calls: pd.DataFrame | None = None,
    *,
    window: Window | None = None,
    gaps: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return every call that waits for the GPU, with the operator and Python line it comes from and what it cost.

    With a window only calls that start in it; none is cut. `gaps`: GAPS of these kernels and copies
    without a window, for who has them already. PYTHON_CALLS give the lines: a line is where the
    function begins, as PyTorch records it: of the innermost frame that is not PyTorch's or the
    standard library's, else the innermost.

    SYNCHRONISATIONS; `gpu` -1 where the device waited for is not known, and `idle_ns` NA there.
    """
    parent = totals.parents(OPS.check(ops))
    python_calls = PYTHON_CALLS.given(python_calls)
    row = np.flatnonzero(
        _waiting(KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls))
    )
    row = row[totals.starts_inside(api_calls.take(row), window)]
    calls = api_calls.take(row).reset_index(drop=True)
    op = totals.open_at(ops, calls)
    asked = where(calls["name"], lambda name: "Synchronize" in name) & (op < 0)
    gpu, idle_ns = idle_after(row, kernels, copies, api_calls, gaps)
    table = calls.rename(columns={"name": "api"}).assign(
        gpu=gpu,
        kind=pd.Categorical.from_codes(np.where(asked, 0, 1), pd.Index(KINDS)),
        operator=totals.named(ops, op),
        outermost=totals.named(ops, outermost_aten(ops, parent, op)),
        line=totals.lines(python_calls, calls),
        idle_ns=idle_ns,
    )
    return SYNCHRONISATIONS.make(table[SYNCHRONISATIONS.column_names])


def _waiting(kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame) -> Bool:
    """Tell which calls return only when the GPU is done."""
    waits = blocks(api_calls)
    pageable = (copies["direction"] == "D2H") & (copies["dst_memory"] == "pageable")
    staged = started_by(copies[pageable], api_calls)
    waits[staged[staged >= 0]] = True
    # Some exports hold a call and, inside it, its versioned form with the same correlation id: one
    # call, the outer one.
    row = np.flatnonzero(waits & (api_calls["correlation"] >= 0).to_numpy())
    again = api_calls.take(row).duplicated(["rank", "process", "thread", "correlation", "name"])
    waits[row[again.to_numpy()]] = False
    return waits


def outermost_aten(ops: pd.DataFrame, parent: Int, op: Int) -> Int:
    """Return the row of the outermost aten operator around each row of OPS, itself too; -1 where there is none."""
    aten = where(ops["name"], lambda name: name.startswith("aten::"))
    outermost_op = np.full(len(op), -1, np.int64)
    for who, at in totals.enclosing(parent, op):
        outermost_op[who[aten[at]]] = at[aten[at]]
    return outermost_op


def synchronisation_summary(synchronisations: pd.DataFrame) -> pd.DataFrame:
    """Return how often and how long each operator and line waits for the GPU, and the idle time that costs.

    All ranks and threads are taken together.

    By falling `idle_ns`, ties by falling count, then keys: `api`, `kind`, `operator`, `outermost`,
    `line` category, as in SYNCHRONISATIONS; `count` int64; `total_ns`, `max_ns` int64, of the
    calls; `idle_ns` int64, sum of those known; `idle_count` int64, how many are known.
    """
    table, group = numbered(SYNCHRONISATIONS.check(synchronisations), list(KEYS))
    spent, idle = (synchronisations[column].groupby(group) for column in ("dur_ns", "idle_ns"))
    figures = {"count": spent.size(), "total_ns": spent.sum(), "max_ns": spent.max()}
    figures |= {"idle_ns": idle.sum(), "idle_count": idle.count()}
    return ranked(table.join(pd.DataFrame(figures).astype("int64")), "idle_ns", list(KEYS))


def idle_after(
    row: Int,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    gaps: pd.DataFrame | None = None,
) -> tuple[Int, pd.arrays.IntegerArray]:
    """Return the device that each of the calls in `row` waits for, -1 unknown, and the idle time it costs, ns."""
    index, groups = devices(kernels, copies)
    device = _waited_for(row, index, groups, [kernels, copies], api_calls)
    first, last = (
        np.append(times, 0)
        for times in spans([kernels, copies], groups, len(index), None, own=True)
    )
    start, end = (times[row] for times in ends(api_calls))
    measurable = (device >= 0) & (end >= first[device]) & (end < last[device])
    idle = np.zeros(len(row), np.int64)
    gaps = idle_gaps(kernels, copies, API_CALLS.empty()) if gaps is None else GAPS.check(gaps)
    _, (of_gap, _) = devices(gaps, index)
    idle[measurable] = _idle(start[measurable], end[measurable], device[measurable], gaps, of_gap)
    return np.append(index["gpu"].to_numpy(), -1)[device], pd.arrays.IntegerArray(idle, ~measurable)


def _waited_for(
    row: Int,
    index: pd.DataFrame,
    groups: list[Int],
    tables: list[pd.DataFrame],
    api_calls: pd.DataFrame,
) -> Int:
    """Return the number of the device on which the thread of each call last started an operation, else -1."""
    used = np.full(len(api_calls), -1, np.int64)
    for table, group in zip(tables, groups, strict=True):
        call = started_by(table, api_calls)
        used[call[call >= 0]] = group[call >= 0]
    last = np.maximum.accumulate(np.where(used >= 0, np.arange(len(used)), -1))[row]
    (thread,) = numbered_together([api_calls], THREAD_KEYS)
    own = (last >= 0) & (thread[last] == thread[row])
    only = index.reset_index(drop=True).drop_duplicates("rank", keep=False)
    alone = (
        pd.Series(only.index, only["rank"]).reindex(api_calls["rank"].to_numpy()[row]).fillna(-1)
    )
    return np.where(own, used[last], alone.to_numpy(np.int64))


def _idle(start: Int, end: Int, device: Int, gaps: pd.DataFrame, of_gap: Int) -> Int:
    """Return the part of the gap in which each wait ends that lies after its start and before the next wait's."""
    begin, finish = ends(gaps)
    axis = Axis.over(
        1 + int(max(of_gap.max(initial=0), device.max(initial=0))), begin, finish, start, end
    )
    gap = np.searchsorted(axis.at(of_gap, begin), axis.at(device, end), side="right") - 1
    inside = np.flatnonzero(
        (gap >= 0) & (np.append(of_gap, -1)[gap] == device) & (end < np.append(finish, 0)[gap])
    )
    inside = inside[np.lexsort((start[inside], gap[inside]))]
    gap, start = gap[inside], start[inside]
    until = finish[gap]
    same = gap[1:] == gap[:-1]
    until[:-1][same] = np.minimum(start[1:][same], until[:-1][same])
    idle = np.zeros(len(end), np.int64)
    idle[inside] = np.maximum(until - np.maximum(start, begin[gap]), 0)
    return idle
