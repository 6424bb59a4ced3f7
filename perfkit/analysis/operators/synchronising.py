"""Where does the CPU wait for the GPU, which line of Python asked for it, and how long was the GPU idle for it?

Conventions
-----------
A synchronisation is a call that returns only when the GPU is done (`perfkit.analysis.host.BLOCKING`) or an asynchronous
copy from the device to pageable memory, which does so too (CUDA Runtime API, "API synchronization behavior"). It is
*explicit* where the program asks to wait (``torch.cuda.synchronize()``: a *Synchronize* call outside every operator),
else *implicit* (``.item()``, ``.cpu()``, ``nonzero``: the call is the operator's).

The device waited for is the one on which the calling thread last started an operation, else the rank's only one. The
idle time that a synchronisation costs lies in the gap of that device in which it ends: from its start, or from when the
device ran dry if that is later, to the next operation's start, or to the next synchronisation's that ends in the same
gap: nothing is counted twice. At most that is saved without the synchronisation, for the host may have other work to do
before it launches again. Where graph launches have no recorded kernels (`perfkit.analysis.gaps.determinable`) gaps are
an artefact, and so is this.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import Axis, numbered_together, started_by, where
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.grouping import numbered, ranked
from perfkit.analysis.host import BLOCKING
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.join import THREAD_KEYS, enclosing, lines, named, parents, running, starts_inside
from perfkit.analysis.window import Window, devices, spans
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, COPIES, DUR, GPU, KERNELS, OPS, PROCESS, PYTHON_CALLS, RANK, START, THREAD

KINDS = ("explicit", "implicit")
SYNCHRONISATIONS = Table(
    "SYNCHRONISATIONS",
    "a call that waits for the GPU",
    (
        RANK,
        GPU,
        PROCESS,
        THREAD,
        START,
        DUR,
        Column("api", "category", "the call, as in API_CALLS"),
        Column("kind", "category", "explicit, the program asked to wait, or implicit, an operator or a copy did"),
        Column("operator", "category", "innermost operator that makes the call; missing outside of operators"),
        Column("outermost", "category", "outermost aten operator around it; missing if there is none"),
        Column("line", "category", "Python function that asked for it, file(line): name; missing without stacks"),
        Column("idle_ns", "Int64", "idle time of the GPU it cost, ns; NA if no operation precedes or follows it there"),
    ),
    ("rank", "process", "thread", "start_ns"),
)
KEYS = ("api", "kind", "operator", "outermost", "line")
_BLOCKING = re.compile("|".join(f"(?:{pattern})" for pattern in BLOCKING))
_VARIANT = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def synchronisations(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    python_calls: pd.DataFrame | None = None,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return every call that waits for the GPU, with the operator and Python line it comes from and what it cost.

    With a window only calls that start in it; none is cut. PYTHON_CALLS give the lines: a line is where the function
    begins, as PyTorch records it: of the innermost frame that is not PyTorch's or the standard library's, else the
    innermost.

    Returns
    -------
    pandas.DataFrame
        SYNCHRONISATIONS; `gpu` -1 where the device waited for is not known, and `idle_ns` NA there.
    """
    parent = parents(OPS.check(ops))
    python_calls = PYTHON_CALLS.empty() if python_calls is None else PYTHON_CALLS.check(python_calls)
    row = np.flatnonzero(_waiting(KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls)))
    row = row[starts_inside(api_calls.take(row), window)]
    calls = api_calls.take(row).reset_index(drop=True)
    op = running(ops, parent, calls)
    asked = where(calls["name"], lambda name: "Synchronize" in name) & (op < 0)
    gpu, idle_ns = idle_after(row, kernels, copies, api_calls)
    found = calls.rename(columns={"name": "api"}).assign(
        gpu=gpu,
        kind=pd.Categorical.from_codes(np.where(asked, 0, 1), pd.Index(KINDS)),
        operator=named(ops, op),
        outermost=named(ops, _outermost_aten(ops, parent, op)),
        line=lines(python_calls, calls),
        idle_ns=idle_ns,
    )
    return SYNCHRONISATIONS.make(found[SYNCHRONISATIONS.column_names])


def _waiting(kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which calls return only when the GPU is done."""
    waits = where(api_calls["name"], lambda name: _BLOCKING.fullmatch(_VARIANT.sub("", name)))
    pageable = (copies["direction"] == "D2H") & (copies["dst_memory"] == "pageable")
    staged = started_by(copies[pageable], api_calls)
    waits[staged[staged >= 0]] = True
    return waits


def _outermost_aten(ops: pd.DataFrame, parent: NDArray[np.int64], op: NDArray[np.int64]) -> NDArray[np.int64]:
    aten = where(ops["name"], lambda name: name.startswith("aten::"))
    found = np.full(len(op), -1, np.int64)
    for who, at in enclosing(parent, op):
        found[who[aten[at]]] = at[aten[at]]
    return found


def synchronisation_summary(synchronisations: pd.DataFrame) -> pd.DataFrame:
    """Return how often and how long each operator and line waits for the GPU, and the idle time that costs.

    All ranks and threads are taken together.

    Returns
    -------
    pandas.DataFrame
        By falling `idle_ns`, ties by falling count, then keys: `api`, `kind`, `operator`, `outermost`, `line` category,
        as in SYNCHRONISATIONS; `count` int64; `total_ns`, `max_ns` int64, of the calls; `idle_ns` int64, sum of those
        known; `idle_count` int64, how many are known.
    """
    table, group = numbered(SYNCHRONISATIONS.check(synchronisations), list(KEYS))
    spent, idle = (synchronisations[column].groupby(group) for column in ("dur_ns", "idle_ns"))
    figures = {"count": spent.size(), "total_ns": spent.sum(), "max_ns": spent.max()}
    figures |= {"idle_ns": idle.sum(), "idle_count": idle.count()}
    return ranked(table.join(pd.DataFrame(figures).astype("int64")), "idle_ns", list(KEYS))


def idle_after(
    row: Int, kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[Int, pd.arrays.IntegerArray]:
    """Return the device that each of the calls in `row` waits for, -1 unknown, and the idle time it costs, ns."""
    index, groups = devices(kernels, copies)
    device = _waited_for(row, index, groups, [kernels, copies], api_calls)
    first, last = (np.append(ends, 0) for ends in spans([kernels, copies], groups, len(index), None))
    start = api_calls["start_ns"].to_numpy()[row]
    end = start + api_calls["dur_ns"].to_numpy()[row]
    known = (device >= 0) & (end >= first[device]) & (end < last[device])
    idle = np.zeros(len(row), np.int64)
    gaps = idle_gaps(kernels, copies, API_CALLS.empty())
    _, (of_gap, _) = devices(gaps, index)
    idle[known] = _idle(start[known], end[known], device[known], gaps, of_gap)
    return np.append(index["gpu"].to_numpy(), -1)[device], pd.arrays.IntegerArray(idle, ~known)


def _waited_for(
    row: Int, index: pd.DataFrame, groups: list[Int], tables: list[pd.DataFrame], api_calls: pd.DataFrame
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
    alone = pd.Series(only.index, only["rank"]).reindex(api_calls["rank"].to_numpy()[row]).fillna(-1)
    return np.where(own, used[last], alone.to_numpy(np.int64))


def _idle(start: Int, end: Int, device: Int, gaps: pd.DataFrame, of_gap: Int) -> Int:
    """Return the part of the gap in which each wait ends that lies after its start and before the next wait's."""
    begin = gaps["start_ns"].to_numpy()
    finish = begin + gaps["dur_ns"].to_numpy()
    axis = Axis.over(1 + int(max(of_gap.max(initial=0), device.max(initial=0))), begin, finish, start, end)
    gap = np.searchsorted(axis.at(of_gap, begin), axis.at(device, end), side="right") - 1
    inside = np.flatnonzero((gap >= 0) & (np.append(of_gap, -1)[gap] == device) & (end < np.append(finish, 0)[gap]))
    inside = inside[np.lexsort((start[inside], gap[inside]))]
    gap, start = gap[inside], start[inside]
    until = finish[gap]
    same = gap[1:] == gap[:-1]
    until[:-1][same] = np.minimum(start[1:][same], until[:-1][same])
    idle = np.zeros(len(end), np.int64)
    idle[inside] = np.maximum(until - np.maximum(start, begin[gap]), 0)
    return idle
