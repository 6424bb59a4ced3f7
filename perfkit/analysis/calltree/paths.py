"""Down which calls does most of a metric go, from where was each kernel launched, and what did its warps wait for?

A kernel is what stands directly below the placeholder `<gpu kernel>`. Its time and launches are the
inclusive GKER and GKER:COUNT there; what a placeholder has alone belongs to its kernel if it has
exactly one, else to a kernel without a name, called `<gpu kernel>`. Contexts without time and
launches, which only a trace refers to, are left out.
"""

import re

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis.calltree import totals
from perfkit.analysis.calltree.totals import text
from perfkit.analysis.causes import where
from perfkit.analysis.grouping import numbered, rows_of
from perfkit.analysis.intervals import Bool, Float, Int
from perfkit.analysis.warps import stall_shares
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALLTREE, NODE, RANK, STALLS

AT_LEAST = 0.5  # hpcviewer's and Hatchet's threshold
HOT_PATH = Table(
    "HOT_PATH",
    "a context on the hot path",
    (
        RANK,
        Column("depth", "int32", "distance from the root"),
        NODE,
        Column("kind", "category", "kind of context"),
        Column("name", "category", "name of the context"),
        Column("file", "category", "source file; missing when unknown"),
        Column("line", "Int64", "source line; NA when unknown"),
        Column("module", "category", "load module; missing when unknown"),
        Column("unit", "category", "unit of the metric"),
        Column("inclusive", "float64", "value with everything called from here"),
        Column("share_frac", "float64", "share of the root's value"),
    ),
    ("depth",),
)
KERNEL = "<gpu kernel>"
TIME, LAUNCHES = "GKER", "GKER:COUNT"
OPERATOR = "at::_ops::"  # PyTorch's dispatcher has one such function per operator
_PREFIX = re.compile("^[Pp](?=MPI|mpi)")
_STEP = re.compile(r"::(?:call|redispatch)$")
# Where threads of OpenMP spin until the last one of their team arrives, by HPCToolkit's mark, GCC's
# or LLVM's library.
BARRIER = re.compile(r"<omp (?:implicit )?barrier|do_spin\b|__kmp\w*(?:barrier|wait)")
# What is around a barrier and is no code of the program: those libraries, and the start of a
# thread.
RUNTIME = re.compile(r".*/lib(?:gomp|i?omp\d*|pthread-?|c)[-.\d]*\.so")
# Where a thread sleeps: time of a clock on the wall, but no work.
ASLEEP = re.compile(
    r"_*(?:GI_+)?_*(?:p?poll|epoll_p?wait|p?select|(?:clock_)?nanosleep|futex_wait"
    r"|pthread_cond_\w*wait)\b"
)
# Calls of C and Fortran, not what a library has inside
MPI = re.compile(r"P?MPI_[A-Z]|p?mpi_[a-z_]+_$")
# The CUDA, HIP and Level Zero calls above a launch, nvcc's stub of the kernel, and what has no
# name.
_LAUNCHING = re.compile(r"cuda|hip|__device_stub_|ze[A-Z]|cu[A-Z]|<|\[|.*@0x")


NAME = Column("name", "string", "short name for people")
FULL_NAME = Column("full_name", "string", "demangled name; '<gpu kernel>' for kernels without one")
TREE_KERNELS = Table(
    "TREE_KERNELS",
    "a kernel",
    (
        *(NAME, FULL_NAME),
        Column("family", "category", "kind of work, from the name"),
        Column("launch_count", "float64", "launches; NaN not recorded"),
        Column("total_ns", "float64", "sum of the launches' durations, ns; NaN not recorded"),
        Column("mean_ns", "float64", "total_ns over launch_count"),
        Column("share_frac", "float64", "share of all kernels' time"),
        Column("main_stall", "string", "largest stall reason; NA not sampled"),
        Column("main_stall_frac", "float64", "its share of the kernel's stalls"),
        Column(
            "python", "string", "nearest Python line above, as 'file:line function'; NA without one"
        ),
        Column("site", "string", "nearest PyTorch operator above, else function; NA without one"),
        Column("path", "string", "calls from the root down to the kernel"),
    ),
    ("full_name",),
)
MPI_CALLS = Table(
    "MPI_CALLS",
    "an MPI call",
    (
        NAME,
        Column("inclusive", "float64", "value of the metric in this call, in its unit"),
        Column("share_frac", "float64", "share of the metric's total"),
        Column("path", "string", "calls from the root down to where this call has most"),
        Column("at", "string", "loop or line of the program that calls there; NA where unknown"),
    ),
    ("name",),
)
KERNEL_STALLS = Table(
    "KERNEL_STALLS",
    "a stall reason of a kernel",
    (
        *(NAME, FULL_NAME),
        Column("reason", "category", "stall reason"),
        Column(
            "value", "float64", "samples, or cycles estimated from them, as the source counts them"
        ),
        Column("share_frac", "float64", "share of the sum over the kernel's reasons"),
        Column("place", "Int64", "1 for the largest stall; NA for what is no stall"),
    ),
    ("full_name",),
)


def hot_path(
    calltree: pd.DataFrame,
    call_metrics: pd.DataFrame,
    *,
    metric: str,
    entry: str = "",
) -> pd.DataFrame:
    """Return the way down from the root with the largest value, always into the child with the largest.

    The way starts at the root of `entry`, or at the largest of all entry points and ranks. It ends
    where the largest child has less than AT_LEAST of its parent's inclusive value: from there on
    the value is spread over several children or is the context's own. HOT_PATH has no rows where no
    root has a value above 0. (HPCToolkit's hpcviewer, "hot path"; Hatchet,
    GraphFrame.hot_path(threshold=0.5).)

    ValueError if `metric` was not recorded, or `entry` is none of the tree.
    """
    values = totals.measured(calltree, call_metrics, metric)
    value = np.full(len(calltree), np.nan)
    value[values.row] = values.inclusive
    parent = totals.parents(calltree)
    # The row of the root with the largest value; -1 where none has one above 0.
    roots = calltree["parent"].isna().to_numpy()
    if entry and len(calltree):
        named = calltree["entry"].astype("string")
        if entry not in (known := sorted(named[roots].unique())):
            raise ValueError(f"entry: {entry!r} is not one of {known}")
        roots = roots & named.eq(entry).to_numpy(bool)
    candidates = np.flatnonzero(roots & (value > 0))
    root = int(candidates[np.argmax(value[candidates])]) if len(candidates) else -1
    # The row of the child with the largest value of each context, the first of equals; -1 for none.
    rows = np.flatnonzero((parent >= 0) & ~np.isnan(value))[::-1]
    most = np.full(len(parent), -np.inf)
    np.maximum.at(most, parent[rows], value[rows])
    rows = rows[value[rows] == most[parent[rows]]]
    path, largest = [], np.full(len(parent), -1, np.int64)
    largest[parent[rows]] = rows  # of several that are written to one place the last stays
    while root >= 0:
        path.append(root)
        child = int(largest[root])
        root = (
            child
            if child >= 0 and value[child] > 0 and value[child] >= AT_LEAST * value[root]
            else -1
        )
    at = np.array(path, np.int64)
    table = calltree.iloc[at][["rank", "depth", "node", "kind", "name", "file", "line", "module"]]
    return HOT_PATH.make(
        table.assign(unit=values.unit, inclusive=value[at], share_frac=value[at] / value[at[:1]])
    )


def mpi_calls(calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """Return how much of a metric each MPI call has: MPI_CALLS, the largest first; ValueError as in `hot_path`.

    A call inside another one counts for the outer one, so that the shares add up; MPI_Send and
    PMPI_Send are one.
    """
    return calls(calltree, call_metrics, metric=metric, pattern=MPI)


def calls(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str, pattern: re.Pattern[str]
) -> pd.DataFrame:
    """Return how much of a metric the functions have whose names begin as a pattern says, as `mpi_calls`."""
    column = calltree["name"]
    wanted = totals.of_kind(calltree, "function") & where(column, pattern.match)
    inclusive, parent, outer = _outermost(calltree, call_metrics, metric, wanted)
    total = inclusive[parent < 0].sum()
    outer = outer[np.argsort(-inclusive[outer], kind="stable")]
    place = totals.nearest(parent, totals.of_kind(calltree, "line", "loop"))[outer]
    name = [_PREFIX.sub("", totals.called(str(text))) for text in column.iloc[outer]]
    table = pd.DataFrame(
        {
            "name": name,
            "inclusive": inclusive[outer],
            "share_frac": inclusive[outer] / (total or np.nan),
        }
    )
    table = table.assign(
        path=totals.described(calltree, parent, outer, name), at=text(column, place)
    )
    sums = table.groupby("name", as_index=False)[["inclusive", "share_frac"]].sum()
    longest = table.drop_duplicates("name")[["name", "path", "at"]]
    made = MPI_CALLS.make(sums.merge(longest, on="name"))
    return made.sort_values("inclusive", ascending=False, kind="stable").reset_index(drop=True)


def _outermost(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str, wanted: Bool
) -> tuple[Float, Int, Int]:
    """Return inclusive values, parents, and the wanted rows with a value that lie in no other such."""
    values = totals.measured(calltree, call_metrics, metric)
    inclusive = np.zeros(len(calltree))
    inclusive[values.row] = np.nan_to_num(values.inclusive)
    parent = totals.parents(calltree)
    is_inner = np.append(totals.nearest(parent, wanted), -1)[parent] >= 0
    return inclusive, parent, np.flatnonzero(wanted & ~is_inner & (inclusive > 0))


def regions(calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """Return where threads of OpenMP wait at barriers: a row per function of the program around them, the most first.

    `name` string, the function, NA for threads that wait for their next region outside of all;
    `inclusive` float64, in the unit of the metric; `share_frac` float64, of the metric's total.
    ValueError as in `hot_path`.
    """
    functions = totals.of_kind(calltree, "function")
    waits = functions & where(calltree["name"], BARRIER.match)
    inclusive, parent, outer = _outermost(calltree, call_metrics, metric, waits)
    of_program = functions & ~waits & ~where(calltree["module"], RUNTIME.match)
    around = totals.nearest(parent, of_program)[outer]
    total = inclusive[parent < 0].sum()
    table = pd.DataFrame({"name": text(calltree["name"], around), "inclusive": inclusive[outer]})
    sums = table.groupby("name", dropna=False, as_index=False)[["inclusive"]].sum()
    sums = sums.assign(share_frac=sums["inclusive"] / (total or np.nan))
    return sums.sort_values("inclusive", ascending=False, kind="stable", ignore_index=True)


def launched(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return one row per context of a kernel, in order of the tree.

    `row` int64 is its position in `calltree`; `entry`, `full_name` string; `total_ns`,
    `launch_count` float64, NaN where not recorded at all; `file` string, `line` Int64 and
    `function` string of the nearest Python line above; `site` string, the nearest PyTorch operator
    above, else the nearest function that is no call of the GPU's runtime; NA without one.
    """
    CALLTREE.check(calltree)
    metrics = totals.recorded(CALL_METRICS.check(call_metrics))
    parent = totals.parents(calltree)
    # Contexts of kernels: what is below placeholders, and placeholders that have not one kernel.
    holds = where(calltree["name"], KERNEL.__eq__)
    below = np.flatnonzero(np.append(holds, False)[parent])
    children = np.bincount(parent[below], minlength=len(parent))
    row = np.union1d(below, np.flatnonzero(holds & (children != 1)))
    # That a kernel belongs to: itself for one without a name
    placeholder = np.where(holds[row], row, parent[row])
    amounts = {
        m: _amount(calltree, call_metrics, m, row, placeholder)
        for m in (TIME, LAUNCHES)
        if m in metrics
    }
    if amounts:
        did = np.any([amount > 0 for amount in amounts.values()], axis=0)
        row, placeholder = row[did], placeholder[did]
        amounts = {metric: amount[did] for metric, amount in amounts.items()}
    unknown = np.full(len(row), np.nan)
    table = (
        calltree.iloc[row][["entry", "name"]].rename(columns={"name": "full_name"}).astype("string")
    )
    table = table.reset_index(drop=True).assign(row=row)
    table["total_ns"] = amounts.get(TIME, unknown) * 1e9
    table["launch_count"] = amounts.get(LAUNCHES, unknown)
    owner = totals.within(calltree, parent)
    python = _python(calltree, parent, owner, placeholder)
    return table.assign(site=_sites(calltree, parent, placeholder), **python)


def _amount(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str, row: Int, placeholder: Int
) -> Float:
    """Return a metric's value of each kernel, 0 where none was stored."""
    values = totals.measured(calltree, call_metrics, metric)
    inclusive, alone = np.zeros((2, len(calltree)))
    inclusive[values.row] = np.nan_to_num(values.inclusive)
    alone[values.row] = np.nan_to_num(values.exclusive)
    nameless = row == placeholder
    single = np.bincount(placeholder, minlength=len(calltree))[placeholder] == 1
    return np.where(nameless, 0.0, inclusive[row]) + np.where(
        nameless | single, alone[placeholder], 0.0
    )


def _python(calltree: pd.DataFrame, parent: Int, owner: Int, start: Int) -> dict[str, pd.Series]:
    """Return file, line and function of the nearest line of Python at or above each row of `start`."""
    module, file = calltree["module"], calltree["file"]
    frame, script = (
        where(module, totals.PYTHON.__eq__),
        where(file, lambda name: name.endswith(".py")),
    )
    line = totals.of_kind(calltree, "line") & (script | np.append(frame, False)[owner])
    at = totals.nearest(parent, line)[start]
    function = np.where(at >= 0, np.append(owner, -1)[at], -1)
    function[~np.append(frame, False)[function]] = -1
    return {
        "file": text(file, at),
        "line": calltree["line"].iloc[np.maximum(at, 0)].mask(at < 0).reset_index(drop=True),
        "function": text(calltree["name"], function),
    }


def _sites(calltree: pd.DataFrame, parent: Int, start: Int) -> pd.Series:
    """Return what launched, for each row of `start`."""
    column = calltree["name"]
    host = totals.of_kind(calltree, "function") & ~where(calltree["module"], totals.PYTHON.__eq__)
    operator = host & where(column, lambda name: name.startswith(OPERATOR))
    other = host & ~where(column, _LAUNCHING.match)
    at = totals.nearest(parent, operator)[start]
    at = np.where(at >= 0, at, totals.nearest(parent, other)[start])
    site = text(column, at)
    return site.map(
        {name: _STEP.sub("", totals.called(name)) for name in site.dropna().unique()}
    ).astype("string")


def kernels(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, stalls: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return one row per kernel: its time, its main stall, and from where most of its time was launched.

    A kernel's contexts, in all ranks and entry points, are summed. Its main stall is the largest of
    the samples in its functions and their lines and instructions, by `analysis.warps.stall_shares`;
    a negative one raises PerfkitError. Samples outside of kernels count for none.

    TREE_KERNELS, by falling `total_ns`, ties by name; `python`, `site` and `path` are those of the
    launch site with the most time.
    """
    sites = _named(launched(calltree, call_metrics))
    kernel = sites.groupby("full_name", sort=False)
    table = kernel[["launch_count", "total_ns"]].sum(min_count=1).join(kernel[["name"]].first())
    table["family"] = [names.family(name) for name in table.index]
    table["mean_ns"] = table["total_ns"] / table["launch_count"].where(table["launch_count"] > 0)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    parent = totals.parents(calltree)
    every = _waiting(calltree, parent, sites, STALLS.given(stalls))
    largest = every[every["place"].eq(1).fillna(False) & every["value"].gt(0)].set_index(
        "full_name"
    )
    named = largest.rename(columns={"reason": "main_stall", "share_frac": "main_stall_frac"})
    table = table.join(named[["main_stall", "main_stall_frac"]].astype({"main_stall": "string"}))
    # For each kernel, the context with most time of the launch site with most time.
    keys = ["full_name", "python", "site"]
    _, group = numbered(sites, keys)
    time = np.nan_to_num(sites["total_ns"].to_numpy())
    of_site = np.bincount(group, time)[group] if len(group) else time
    order = np.lexsort([-time, -of_site])
    site = sites.iloc[order].drop_duplicates("full_name").reset_index(drop=True)
    site["path"] = totals.described(calltree, parent, site["row"].to_numpy(), site["name"])
    table = table.join(site.set_index("full_name")[["python", "site", "path"]]).reset_index()
    made = TREE_KERNELS.make(table[TREE_KERNELS.column_names])
    return made.sort_values("total_ns", ascending=False, kind="stable").reset_index(drop=True)


def _named(contexts: pd.DataFrame) -> pd.DataFrame:
    """Add the short name of each kernel, and the Python line as one text."""
    short = {name: names.short(name) for name in contexts["full_name"].dropna().unique()}
    base = (
        contexts["file"].str.replace(r".*/", "", regex=True)
        + ":"
        + contexts["line"].astype("string")
    )
    python = (base + (" " + contexts["function"]).fillna("")).astype("string")
    return contexts.assign(name=contexts["full_name"].map(short).astype("string"), python=python)


def kernel_stalls(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, stalls: pd.DataFrame
) -> pd.DataFrame:
    """Return the share of each stall reason in each kernel's stalls: of samples, not of time.

    KERNEL_STALLS, by name, the largest share first. Samples outside of kernels are left out; a
    negative value raises PerfkitError.
    """
    contexts = _named(launched(calltree, call_metrics))
    waiting = _waiting(calltree, totals.parents(calltree), contexts, STALLS.check(stalls))
    names_of = contexts.drop_duplicates("full_name").set_index("full_name")["name"]
    table = waiting.assign(name=waiting["full_name"].map(names_of).astype("string"))
    return KERNEL_STALLS.make(table[list(KERNEL_STALLS.column_names)])


def _waiting(
    calltree: pd.DataFrame, parent: Int, contexts: pd.DataFrame, stalls: pd.DataFrame
) -> pd.DataFrame:
    """Return the shares of the stalls of each kernel, with its full name."""
    kernel, names_of = pd.factorize(contexts["full_name"])
    at = np.full(len(calltree) + 1, -1, np.int64)
    at[contexts["row"].to_numpy()] = kernel
    of_node = stalls[stalls["node"].ge(0)]
    row = rows_of(calltree, "node", of_node["rank"].to_numpy(np.int64), of_node["node"].to_numpy())
    enclosing = np.append(totals.nearest(parent, at[:-1] >= 0), -1)[row]
    inside = enclosing >= 0
    keys, of = numbered(of_node[inside].assign(kernel=at[enclosing[inside]]), ["kernel", "reason"])
    value = np.bincount(of, of_node["value"].to_numpy()[inside], len(keys))
    frame = {
        "rank": 0,
        "launch": -1,
        "node": keys["kernel"],
        "reason": keys["reason"],
        "value": value,
    }
    table = stall_shares(STALLS.make(pd.DataFrame(frame)), by="node")
    return table.assign(
        full_name=pd.Series(names_of.to_numpy()[table["node"].to_numpy()], dtype="string")
    )
