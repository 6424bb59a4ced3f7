"""Where does the CPU wait for the GPU, which line of Python asked for it, and how long was the GPU idle for it?

Conventions
-----------
A synchronisation is a call that returns only when the GPU is done (`perfkit.analysis.host.BLOCKING`) or an
asynchronous copy from the device to pageable memory, which does so too. It is *explicit* where the program asks to
wait (``torch.cuda.synchronize()``: a *Synchronize* call outside every operator), else *implicit* (``.item()``,
``.cpu()``, ``nonzero``: the call is the operator's).

The device waited for is the one on which the calling thread last started an operation, else the rank's only one. The
idle time that a synchronisation costs lies in the gap of that device in which it ends: from its start, or from when
the device ran dry if that is later, to the next operation's start, or to the next synchronisation's that ends in the
same gap: nothing is counted twice. At most that is saved without the synchronisation, for the host may have other work
to do before it launches again. Where graph launches have no recorded kernels
(`perfkit.analysis.gaps.determinable`) gaps are an artefact, and so is this.

Functions
---------
synchronisations          every call that waits for the GPU
synchronisation_summary   their sums per call, operator and line

References
----------
CUDA Runtime API, "API synchronization behavior".
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.calls import started_by, where
from perfkit.analysis.host import BLOCKING
from perfkit.analysis.operators.idling import idle_after
from perfkit.analysis.operators.lines import lines
from perfkit.analysis.operators.nesting import enclosing, named, parents, running, starts_inside
from perfkit.analysis.statistics import numbered, ranked
from perfkit.analysis.window import Window
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

    Parameters
    ----------
    ops, kernels, copies, api_calls
        OPS, KERNELS, COPIES and API_CALLS of one execution; may be empty.
    python_calls
        PYTHON_CALLS of it, for the lines.
    window
        (start_ns, end_ns): only calls that start in it; none is cut. Everything when omitted.

    Returns
    -------
    pandas.DataFrame
        Table `SYNCHRONISATIONS`: rank, gpu (the device waited for; -1 unknown), process, thread, start_ns, dur_ns
        (ns), api, kind, operator, outermost, line (categories, the last three missing where there is none), idle_ns
        (Int64, ns, 0 and up; NA where the device is not known, or no operation precedes or follows on it). A line is
        where the function begins, as PyTorch records it: of the innermost frame that is not PyTorch's or the standard
        library's, else the innermost.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> none = [table.empty() for table in (OPS, KERNELS, COPIES, API_CALLS)]
    >>> synchronisations(*none).columns.tolist() == SYNCHRONISATIONS.column_names
    True
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

    Parameters
    ----------
    synchronisations
        Table `SYNCHRONISATIONS`; all ranks and threads are taken together; may be empty.

    Returns
    -------
    pandas.DataFrame
        By falling `idle_ns`, ties by falling count, then keys: `api`, `kind`, `operator`, `outermost`, `line`
        category, as in the table; `count` int64; `total_ns`, `max_ns` int64, of the calls; `idle_ns` int64, sum of
        those known; `idle_count` int64, how many are known.

    Raises
    ------
    SchemaError
        If `synchronisations` does not match its schema.

    Examples
    --------
    >>> synchronisation_summary(SYNCHRONISATIONS.empty()).columns.tolist()[5:]
    ['count', 'total_ns', 'max_ns', 'idle_ns', 'idle_count']
    """
    table, group = numbered(SYNCHRONISATIONS.check(synchronisations), list(KEYS))
    found = synchronisations[["dur_ns", "idle_ns"]].groupby(group)
    figures = found.agg(
        count=("dur_ns", "size"),
        total_ns=("dur_ns", "sum"),
        max_ns=("dur_ns", "max"),
        idle_ns=("idle_ns", "sum"),
        idle_count=("idle_ns", "count"),
    )
    return ranked(table.join(figures.astype("int64")), "idle_ns", list(KEYS))
