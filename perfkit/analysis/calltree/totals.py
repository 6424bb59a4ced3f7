"""How much of a metric was measured below each entry point, in each function and in each thread?

A context is meant by its row in CALLTREE, counted from 0; -1 is none. Nothing here recurses, and a
chain of contexts costs its length once, or the logarithm of it per context.
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import where
from perfkit.analysis.grouping import numbered, rows_of
from perfkit.analysis.intervals import Bool, Float, Int
from perfkit.names.parsing import qualified
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALL_THREAD, CALLTREE, RANK, THREAD_METRICS, THREADS

# the module HPCToolkit gives to frames of the Python interpreter's own stack
PYTHON = "<logical python>"
SEPARATOR = " > "
# HPCToolkit's marks of functions without line information and without a name.
_LIBRARY = re.compile(r"(?<=\S) (\[[^\[\]]*\.so[^\[\]]*\])\Z")


class Measured(NamedTuple):
    """The values of a metric: rows in the call tree, the values there, and their unit."""

    row: Int
    inclusive: Float
    exclusive: Float
    unit: str


METRIC = Column("metric", "category", "the tool's metric name")
UNIT = Column("unit", "category", "unit of the values")
SHARE = Column("share_frac", "float64", "share of the rank's total; NaN where that is 0")
TOTALS = Table(
    "TOTALS",
    "a metric below an entry point",
    (
        RANK,
        Column("entry", "category", "entry point"),
        *(METRIC, UNIT),
        Column("inclusive", "float64", "value of everything called from the entry point"),
        SHARE,
    ),
    ("rank", "metric", "entry"),
)
EXCLUSIVE = Table(
    "EXCLUSIVE",
    "a metric in a function alone",
    (
        RANK,
        Column("name", "string", "function; NA where unknown"),
        Column("kind", "category", "function, gpu_operation or entry"),
        Column("file", "string", "source file of the function; NA where unknown"),
        Column("line", "Int64", "line where the function is defined; NA where unknown"),
        Column("module", "string", "load module of the function; NA where unknown"),
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
        *(RANK, CALL_THREAD),
        Column(
            "entry", "category", "entry point below which it did most; missing where it did nothing"
        ),
        Column("kind", "category", "cpu or gpu"),
        Column("name", "category", "name of the thread"),
        Column("value", "float64", "value of the metric, 0 where nothing was recorded"),
        SHARE,
        Column("times_mean", "float64", "value over the mean of the threads that did something"),
    ),
    ("rank", "thread", "entry"),
)
FUNCTION = ["rank", "kind", "name", "file", "line", "module"]


def recorded(metrics: pd.DataFrame) -> list[str]:
    """Return the names of the metrics of CALL_METRICS or THREAD_METRICS that have a value, in alphabetical order."""
    categories = metrics["metric"].cat.categories
    count = np.bincount(metrics["metric"].cat.codes.to_numpy() + 1, minlength=len(categories) + 1)[
        1:
    ]
    return sorted(str(name) for name in categories[count > 0])


def of_metric(metrics: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of one metric; ValueError if values were recorded, but none of this metric."""
    wanted = where(metrics["metric"], metric.__eq__)
    if len(metrics) and not wanted.any():
        raise ValueError(f"metric: {metric!r} is not one of {recorded(metrics)}")
    rows: pd.DataFrame = metrics[wanted]
    return rows


def measured(calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str) -> Measured:
    """Return the values of `metric` at the contexts of the tree; ValueError as in `of_metric`."""
    CALLTREE.check(calltree)
    values = of_metric(CALL_METRICS.check(call_metrics), metric)
    row = rows_of(calltree, "node", values["rank"].to_numpy(np.int64), values["node"].to_numpy())
    there = row >= 0
    inclusive, exclusive = (values[name].to_numpy()[there] for name in ("inclusive", "exclusive"))
    return Measured(
        row[there], inclusive, exclusive, str(values["unit"].iloc[0]) if len(values) else ""
    )


def inclusive(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return every metric's total below each entry point.

    Inclusive values count what is called from a context in it again: their only right sum is over
    the roots (HPCToolkit, FORMATS.md: metric scope "execution").

    TOTALS, entries of one name summed; `share_frac` of the metric's sum over the entries of the rank, NaN where that is
    0. An entry has no row for a metric that was not recorded below it.
    """
    roots = CALLTREE.check(calltree).loc[calltree["parent"].isna(), ["rank", "node", "entry"]]
    near = np.isin(CALL_METRICS.check(call_metrics)["node"].to_numpy(), roots["node"].to_numpy())
    at_roots = call_metrics[near].merge(roots, on=["rank", "node"])
    keys, group = numbered(at_roots, ["rank", "entry", "metric", "unit"])
    keys["inclusive"] = np.bincount(group, at_roots["inclusive"].to_numpy(), len(keys))
    whole, of = numbered(keys, ["rank", "metric", "unit"])
    total = np.bincount(of, keys["inclusive"].to_numpy(), len(whole))[of].astype(
        np.float64, copy=False
    )
    return TOTALS.make(keys.assign(share_frac=_share(keys["inclusive"].to_numpy(), total)))


def exclusive(calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """Return where a metric's values arose: in each function itself, without what it calls.

    exclusive = sum of the exclusive values of the function's contexts and of the lines, loops and
    instructions in them. The sum over all rows is the total at the roots. ValueError for a metric
    that `call_metrics` lacks.

    EXCLUSIVE is by rank, then falling value, ties by name; `count` is of contexts with a value
    other than 0; `share_frac` of the total at the roots of the rank, NaN where that is 0.
    """
    values = measured(calltree, call_metrics, metric)
    parent = parents(calltree)
    owner = within(calltree, parent)[values.row]
    count = np.bincount(owner, values.exclusive != 0, len(parent)).astype(np.int64)
    used = np.flatnonzero(count)
    keys, group = numbered(calltree[FUNCTION].iloc[used].reset_index(drop=True), FUNCTION)
    keys["count"] = np.bincount(group, count[used], len(keys)).astype(np.int64)
    own = np.bincount(owner, values.exclusive, len(parent))[used]
    keys["exclusive"] = np.bincount(group, own, len(keys)).astype(np.float64, copy=False)
    root = parent[values.row] < 0
    total = (
        pd.Series(values.inclusive[root])
        .groupby(calltree["rank"].to_numpy()[values.row[root]])
        .sum()
    )
    whole = np.asarray(keys["rank"].map(total), np.float64)
    keys["share_frac"] = _share(keys["exclusive"].to_numpy(), whole)
    table = EXCLUSIVE.make(keys.assign(unit=values.unit))
    return table.sort_values(
        ["rank", "exclusive"], ascending=[True, False], kind="stable"
    ).reset_index(drop=True)


def threads(threads: pd.DataFrame, thread_metrics: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """Return how much of a metric each thread did, and how uneven that is.

    times_mean = value / mean over the threads of its rank that did something; the largest of them
    is the imbalance, maximum over mean. `metric` is one of `thread_metrics`, else ValueError.

    BY_THREAD, a row per thread, those too that did nothing, by rank, then falling value;
    `share_frac` of the rank's sum, NaN, as `times_mean`, where nothing was recorded at all.
    """
    THREADS.check(threads)
    values = of_metric(THREAD_METRICS.check(thread_metrics), metric).astype({"entry": "string"})
    keys = ["rank", "thread"]
    parts = (
        values.groupby([*keys, "entry"], as_index=False)[["inclusive"]]
        .sum()
        .rename(columns={"inclusive": "value"})
    )
    largest = parts.sort_values("value", ascending=False, kind="stable").drop_duplicates(keys)[
        [*keys, "entry"]
    ]
    parts = parts.groupby(keys, as_index=False)[["value"]].sum().merge(largest, on=keys)
    table = threads[[*keys, "kind", "name"]].merge(parts, on=keys, how="left")
    table["value"] = table["value"].astype("float64").fillna(0.0)
    did = table["value"].where(table["value"] != 0).groupby(table["rank"])
    table["share_frac"] = _share(
        table["value"].to_numpy(), did.transform("sum").to_numpy("float64")
    )
    table["times_mean"] = _share(
        table["value"].to_numpy(), did.transform("mean").to_numpy("float64")
    )
    table = BY_THREAD.make(table)
    return table.sort_values(["rank", "value"], ascending=[True, False], kind="stable").reset_index(
        drop=True
    )


def _share(part: Float, whole: Float) -> Float:
    return part / np.where(whole != 0, whole, np.nan)


def parents(calltree: pd.DataFrame) -> Int:
    """Return the row of each context's parent; -1 for a root, and where the parent is not in the table."""
    above = calltree["parent"].fillna(-1).to_numpy(np.int64)
    return rows_of(calltree, "node", calltree["rank"].to_numpy(np.int64), above)


def nearest(parent: Int, wanted: Bool) -> Int:
    """Return the row of the first wanted context on the way from each context, itself included, to its root.

    Every step doubles the stretch that is looked at, so a chain of 5,000 contexts takes 13 steps.
    """
    # The last one stands for "none"
    at = np.append(np.where(wanted, np.arange(len(parent)), parent), -1)
    for _ in range(len(parent).bit_length()):
        above = at[at]
        if np.array_equal(above, at):
            break
        at = above
    # Contexts that enclose each other, in a damaged file, have none.
    return np.where(np.append(wanted, False)[at[:-1]], at[:-1], -1)


def of_kind(calltree: pd.DataFrame, *kinds: str) -> Bool:
    """Whether each context is of one of the `kinds`."""
    return where(calltree["kind"], kinds.__contains__)


def text(column: pd.Series, at: Int) -> pd.Series:
    """Return the text of the rows `at`, NA where that is -1."""
    codes = np.append(column.cat.codes.to_numpy(), -1)[at]
    return pd.Series(pd.Categorical.from_codes(codes, categories=column.cat.categories)).astype(
        "string"
    )


def within(calltree: pd.DataFrame, parent: Int) -> Int:
    """Return the row of the function, GPU operation or entry point that each context is or belongs to."""
    return nearest(parent, of_kind(calltree, "function", "gpu_operation", "entry"))


def described(calltree: pd.DataFrame, parent: Int, rows: Int, own: Iterable[str]) -> list[str]:
    """Return the path to each of `rows`: entry point and functions from the root down, joined by " > ".

    The last step is the row's text in `own`. Lines, loops, instructions and GPU placeholders are
    left out, and of equal steps that follow each other all but one.
    """
    shown = of_kind(calltree, "function", "entry")
    codes, categories = calltree["name"].cat.codes.to_numpy(), calltree["name"].cat.categories
    short_name = cache(lambda code: called(str(categories[code])))
    texts = []
    for row, last in zip(rows.tolist(), own, strict=True):
        steps, at = [last], int(parent[row])
        for _ in range(len(parent)):
            if at < 0:
                break
            if shown[at] and codes[at] >= 0:
                steps.append(short_name(int(codes[at])))
            at = int(parent[at])
        texts.append(SEPARATOR.join(step for step, _ in groupby(reversed(steps))))
    return texts


def called(name: str) -> str:
    """Return a host function's name without template arguments, parameters and library; the library if that is all.

    >>> called("at::native::add<float>(at::Tensor&) [libtorch_cuda.so]")
    'at::native::add'
    >>> called("<unknown procedure> 0x98fa80 [libcublas.so.12]")
    '[libcublas.so.12]'
    """
    library = _LIBRARY.search(name)
    if name.startswith("<unknown procedure>"):
        return library.group(1) if library else name
    bare = name[: library.start()] if library else name
    return "::".join(part.name for part in qualified(bare)) or name
