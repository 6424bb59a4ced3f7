"""How much of a metric is in the whole program, below each entry point, in each function and in each thread?

Functions
---------
inclusive    totals per entry point
exclusive    values of functions, modules, source files or kinds of context alone
threads      values per thread
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.paths import parents, text, within
from perfkit.analysis.calltree.values import Floats, measured, of_metric
from perfkit.analysis.intervals import Int
from perfkit.analysis.statistics import numbered
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALL_THREAD, CALLTREE, RANK, THREAD_METRICS, THREADS

METRIC = Column("metric", "category", "the tool's metric name")
UNIT = Column("unit", "category", "unit of the values")
SHARE = Column("share_frac", "float64", "share of the rank's total; NaN where that is 0")

TOTALS = Table(
    "TOTALS",
    "a metric below an entry point",
    (
        RANK,
        Column("entry", "category", "entry point"),
        METRIC,
        UNIT,
        Column("inclusive", "float64", "value of everything called from the entry point"),
        SHARE,
    ),
    ("rank", "metric", "entry"),
)
EXCLUSIVE = Table(
    "EXCLUSIVE",
    "a metric in a function, module, source file or kind of context alone",
    (
        RANK,
        Column("name", "string", "function, module, file or kind; NA where unknown"),
        Column("kind", "category", "function, gpu_operation or entry; missing unless by function"),
        Column("file", "string", "source file of the function; NA where unknown and unless by function"),
        Column("line", "Int64", "line where the function is defined; NA where unknown and unless by function"),
        Column("module", "string", "load module of the function; NA where unknown and unless by function"),
        UNIT,
        Column("count", "int64", "contexts with a value"),
        Column("exclusive", "float64", "sum of their exclusive values"),
        SHARE,
    ),
    ("rank", "name", "file", "line"),
)
BY_THREAD = Table(
    "BY_THREAD",
    "a metric in a thread",
    (
        RANK,
        CALL_THREAD,
        Column("entry", "category", "entry point below which it did most; missing where it did nothing"),
        Column("kind", "category", "cpu or gpu"),
        Column("name", "category", "name of the thread"),
        Column("value", "float64", "value of the metric, 0 where nothing was recorded"),
        SHARE,
        Column("times_mean", "float64", "value over the mean of the threads that did something"),
    ),
    ("rank", "thread", "entry"),
)
BY = {
    "function": ["rank", "kind", "name", "file", "line", "module"],
    "module": ["rank", "module"],
    "file": ["rank", "file"],
    "kind": ["rank", "kind"],
}


def inclusive(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return every metric's total below each entry point.

    Inclusive values count what is called from a context in it again: their only right sum is over the roots.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.

    Returns
    -------
    pandas.DataFrame
        TOTALS, by rank, metric and entry: `rank` int32; `entry`, `metric`, `unit` category; `inclusive` float64 in
        `unit`, entries of one name summed; `share_frac` float64 of the metric's sum over the entries of the rank,
        NaN where that is 0. An entry has no row for a metric that was not recorded below it.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.

    References
    ----------
    HPCToolkit, FORMATS.md: metric scope "execution".

    Examples
    --------
    >>> len(inclusive(CALLTREE.empty(), CALL_METRICS.empty()))
    0
    """
    roots = CALLTREE.check(calltree).loc[calltree["parent"].isna(), ["rank", "node", "entry"]]
    near = np.isin(CALL_METRICS.check(call_metrics)["node"].to_numpy(), roots["node"].to_numpy())
    found = call_metrics[near].merge(roots, on=["rank", "node"])
    keys, group = numbered(found, ["rank", "entry", "metric", "unit"])
    keys["inclusive"] = np.bincount(group, found["inclusive"].to_numpy(), len(keys))
    whole, of = numbered(keys, ["rank", "metric", "unit"])
    total = np.bincount(of, keys["inclusive"].to_numpy(), len(whole))[of].astype(np.float64, copy=False)
    return TOTALS.make(keys.assign(share_frac=_share(keys["inclusive"].to_numpy(), total)))


def exclusive(calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str, by: str = "function") -> pd.DataFrame:
    """Return where a metric's values arose: in each function itself, without what it calls.

    exclusive = sum of the exclusive values of the function's contexts and of the lines, loops and instructions in
    them. The sum over all rows is the total at the roots.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.
    metric
        A metric of `call_metrics`.
    by
        "function"; "module" of the function; "file": a context's own source file, else its function's; "kind" of the
        context itself.

    Returns
    -------
    pandas.DataFrame
        EXCLUSIVE, by rank, then falling value, ties by name. `name`, `file`, `module` string, `line` Int64 and
        `kind` category; `count` int64, contexts with a value other than 0; `exclusive` float64 in `unit`;
        `share_frac` float64 of the total at the roots of the rank, NaN where that is 0.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
    ValueError
        If `by` is not one of the four, or `metric` was not recorded.

    Examples
    --------
    >>> len(exclusive(CALLTREE.empty(), CALL_METRICS.empty(), metric="CPUTIME"))
    0
    """
    if by not in BY:
        raise ValueError(f"by: {by!r} is not one of {list(BY)}")
    found = measured(calltree, call_metrics, metric)
    parent = parents(calltree)
    owner = within(calltree, parent)[found.row] if by in ("function", "module") else found.row
    count = np.bincount(owner, found.exclusive != 0, len(parent)).astype(np.int64)
    used = np.flatnonzero(count)
    keys, group = _labelled(calltree, parent, used, by)
    keys["count"] = np.bincount(group, count[used], len(keys)).astype(np.int64)
    own = np.bincount(owner, found.exclusive, len(parent))[used]
    keys["exclusive"] = np.bincount(group, own, len(keys)).astype(np.float64, copy=False)
    root = parent[found.row] < 0
    total = pd.Series(found.inclusive[root]).groupby(calltree["rank"].to_numpy()[found.row[root]]).sum()
    whole = np.asarray(keys["rank"].map(total), np.float64)
    keys["share_frac"] = _share(keys["exclusive"].to_numpy(), whole)
    table = EXCLUSIVE.make(keys.assign(unit=found.unit))
    return table.sort_values(["rank", "exclusive"], ascending=[True, False], kind="stable").reset_index(drop=True)


def _labelled(calltree: pd.DataFrame, parent: Int, rows: Int, by: str) -> tuple[pd.DataFrame, Int]:
    """Return what the values of `rows` are summed by, as columns of EXCLUSIVE, and the group of each row."""
    labels = calltree[BY[by]].iloc[rows].reset_index(drop=True)
    if by == "file":
        inside = text(calltree["file"], within(calltree, parent)[rows])
        labels = labels.assign(file=labels["file"].astype("string").fillna(inside))
    keys, group = numbered(labels, BY[by])
    if by != "function":
        keys = keys.rename(columns={by: "name"})
    return keys.reindex(columns=EXCLUSIVE.column_names), group


def threads(threads: pd.DataFrame, thread_metrics: pd.DataFrame, *, metric: str, by: str = "thread") -> pd.DataFrame:
    """Return how much of a metric each thread did, and how uneven that is.

    times_mean = value / mean over the threads of its rank (and entry) that did something; the largest of them is the
    imbalance, maximum over mean.

    Parameters
    ----------
    threads, thread_metrics
        THREADS and THREAD_METRICS; may be empty.
    metric
        A metric of `thread_metrics`.
    by
        "thread": a row per thread, those too that did nothing; "entry": a row per thread and entry point below which
        it did something.

    Returns
    -------
    pandas.DataFrame
        BY_THREAD, by rank, then falling value. `entry`, `kind`, `name` category; `value` float64 in the metric's
        unit, 0 where nothing was recorded; `share_frac` float64 of the rank's (and entry's) sum, `times_mean` float64,
        both NaN where nothing was recorded at all.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
    ValueError
        If `by` is neither, or `metric` was not recorded.

    Examples
    --------
    >>> len(threads(THREADS.empty(), THREAD_METRICS.empty(), metric="CPUTIME"))
    0
    """
    if by not in ("thread", "entry"):
        raise ValueError(f"by: {by!r} is not one of ['thread', 'entry']")
    THREADS.check(threads)
    found = of_metric(THREAD_METRICS.check(thread_metrics), metric).astype({"entry": "string"})
    keys, together = ["rank", "thread"], ["rank"] if by == "thread" else ["rank", "entry"]
    parts = found.groupby([*keys, "entry"], as_index=False)[["inclusive"]].sum().rename(columns={"inclusive": "value"})
    if by == "thread":
        largest = parts.sort_values("value", ascending=False, kind="stable").drop_duplicates(keys)[[*keys, "entry"]]
        parts = parts.groupby(keys, as_index=False)[["value"]].sum().merge(largest, on=keys)
    labels = threads[[*keys, "kind", "name"]]
    table = labels.merge(parts, on=keys, how="left" if by == "thread" else "inner")
    table["value"] = table["value"].astype("float64").fillna(0.0)
    did = table["value"].where(table["value"] != 0).groupby([table[key] for key in together])
    table["share_frac"] = _share(table["value"].to_numpy(), did.transform("sum").to_numpy("float64"))
    table["times_mean"] = _share(table["value"].to_numpy(), did.transform("mean").to_numpy("float64"))
    table = BY_THREAD.make(table)
    return table.sort_values(["rank", "value"], ascending=[True, False], kind="stable").reset_index(drop=True)


def _share(part: Floats, whole: Floats) -> Floats:
    return part / np.where(whole != 0, whole, np.nan)
