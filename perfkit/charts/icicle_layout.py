"""Where the bars of an icicle stand: calling contexts folded to what people know, in few rows, side by side.

A path is a row of a frame: `up` (row of its caller, -1 at a root), `value` (inclusive), `what` (a kind for people),
`context` and `site` (rows of CALLTREE: the largest context that it stands for, and the line that calls that one, -1 if
unknown), `contexts` and `sites` (how many it stands for), `smaller_count` and `smaller_value` (what it calls that is
too small to be seen), `hidden` (rows of CALLTREE that it stands for too). Nothing recurses: stacks may be thousands of
levels deep.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Values = NDArray[np.float64]

PYTHON, NATIVE, OPERATION, KERNEL, OTHER = "Python", "native code", "GPU operation", "kernel", "other"
PYTHON_MODULE = "<logical python>"  # HPCToolkit's module of Python frames
UNNAMED = "<unknown"  # a function without symbols: HPCToolkit calls it <unknown procedure>
# What stays of a chain of Python frames and of one of native code, mildest first.
STAGES = ({NATIVE: "ends"}, {NATIVE: "last"}, {NATIVE: "last", PYTHON: "ends"}, {NATIVE: "last", PYTHON: "last"})


def folded(calltree: pd.DataFrame, value: Values, folding: Collection[str], least: float) -> pd.DataFrame:
    """Return the paths of at least `least`: contexts with equal names under one caller are one path.

    Contexts of the kinds `folding` count in what encloses them; a line right under an entry point stays, because
    there it is the top level of a script.
    """
    up, kind = _callers(calltree), calltree["kind"].astype(str).to_numpy()
    _add_up(calltree, up, value)
    script = (kind == "line") & (up >= 0) & (kind[up] == "entry")
    folds = np.isin(kind, list(folding)) & (up >= 0) & ~script
    known = (kind == "line") & calltree["line"].gt(0).fillna(False).to_numpy(bool)
    site = _above(up, ~folds | (kind == "line"))
    paths = pd.DataFrame(
        {
            "up": up,
            "value": value,
            "what": _kinds(calltree, kind, up),
            "context": np.arange(len(up)),
            "site": np.where((site >= 0) & known[site], site, -1),
        }
    )
    return _seen(_merged(_without(paths, folds | ~(value > 0)), calltree), least)


def _callers(calltree: pd.DataFrame) -> Rows:
    """Return the row of each context's caller, -1 at a root."""
    parent = calltree["parent"].to_numpy(np.int64, na_value=-1)
    ranks = calltree["rank"].to_numpy(np.int64) * (int(calltree["node"].max()) + 1)
    rows = pd.Index(ranks + calltree["node"].to_numpy()).get_indexer(pd.Index(ranks + parent))
    return np.where(parent < 0, -1, rows).astype(np.int64)


def _add_up(calltree: pd.DataFrame, up: Rows, value: Values) -> None:
    """Raise ValueError where the contexts called hold more than their caller by more than rounding."""
    called = _called(up, value)
    wrong = np.flatnonzero(called > value + 1e-9 * value.max(initial=0))
    if len(wrong):
        node, more, less = calltree["node"].iloc[wrong[0]], called[wrong[0]], value[wrong[0]]
        raise ValueError(f"call_metrics: what node {node} calls holds {more:g}, more than its own {less:g}")


def _kinds(calltree: pd.DataFrame, kind: NDArray[np.object_], up: Rows) -> NDArray[np.object_]:
    python = calltree["module"].eq(PYTHON_MODULE).fillna(False).to_numpy(bool)
    script = calltree["file"].astype("string").str.endswith(".py").fillna(False).to_numpy(bool)
    operation = kind == "gpu_operation"
    rules = [_above(up, operation) >= 0, operation, python | (script & (kind != "function")), kind != "entry"]
    found: NDArray[np.object_] = np.select(rules, [KERNEL, OPERATION, PYTHON, NATIVE], OTHER).astype(object)
    return found


def _above(up: Rows, wanted: Mask) -> Rows:
    """Return the row of the closest caller of each row that is `wanted`, -1 without one; by doubling the stride."""
    last = len(up)
    caller = np.where(up < 0, last, up)
    at = np.append(np.where(wanted, np.arange(last), caller), last)
    while not np.array_equal(at, at[at]):
        at = at[at]
    found = at[caller]
    return np.where(found == last, -1, found)


def _along(up: Rows, amount: Values) -> Values:
    """Return the sum of `amount` from the root down to each row; by doubling the stride."""
    total, at = amount.copy(), up.copy()
    while (on := np.flatnonzero(at >= 0)).size:
        total[on] += total[at[on]]
        at[on] = at[at[on]]
    return total


def _without(paths: pd.DataFrame, gone: Mask) -> pd.DataFrame:
    """Return the other paths; what those that are gone call is called by the closest caller that stays."""
    caller = _above(paths["up"].to_numpy(), ~gone)
    number = np.cumsum(~gone) - 1
    return paths.assign(up=np.where(caller < 0, -1, number[caller]))[~gone].reset_index(drop=True)


def _merged(paths: pd.DataFrame, calltree: pd.DataFrame) -> pd.DataFrame:
    """Return one path for those with equal names, modules and kinds under one caller, level by level."""
    up, value = paths["up"].to_numpy(), paths["value"].to_numpy()
    named = calltree[["name", "module", "rank"]].iloc[paths["context"]].assign(what=paths["what"].to_numpy())
    same = named.groupby(list(named), sort=False, dropna=False, observed=True).ngroup().to_numpy(np.int64)
    level = _level(up)
    group = np.full(len(up) + 1, -1)  # the last stands for the caller of a root
    order = np.argsort(level, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(level[order])) + 1):
        keys = group[up[rows]] * (len(up) + 1) + same[rows]
        group[rows] = pd.factorize(keys)[0] + group.max() + 1
    group = group[:-1]
    largest = np.lexsort([-value, group])
    first = largest[np.unique(group[largest], return_index=True)[1]]
    caller = np.where(up[first] < 0, -1, group[up[first]])
    sites = paths["site"].groupby(group).nunique().to_numpy()
    counts = {"value": np.bincount(group, value), "contexts": np.bincount(group), "sites": sites}
    return paths.iloc[first].assign(up=caller, **counts).reset_index(drop=True)


def _seen(paths: pd.DataFrame, least: float) -> pd.DataFrame:
    """Return the roots and the paths of at least `least`; the others are counted at their caller."""
    up, value = paths["up"].to_numpy(), paths["value"].to_numpy()
    small = (value < least) & (up >= 0)
    edge = small & ~small[up]
    count = np.bincount(up[edge], minlength=len(up))
    lost = np.bincount(up[edge], value[edge], minlength=len(up))
    return _without(paths.assign(smaller_count=count, smaller_value=lost, hidden=_tuples([()] * len(up))), small)


def _tuples(rows: list[tuple[int, ...]]) -> pd.Series:
    return pd.Series(rows, dtype=object)


def told(paths: pd.DataFrame, calltree: pd.DataFrame, rows: int, least: float) -> pd.DataFrame:
    """Return paths that fill at most `rows` rows, if leaving out members of chains can do it.

    A chain is of Python frames, or of native code, each the only one its caller calls, with values that
    differ by less than `least`. Native code goes first; the last function that has a name stays to the end.
    """
    chain = _chains(paths, least)
    last = _last(paths, chain, calltree.iloc[paths["context"]])
    ends = {"ends": (chain == np.arange(len(chain))) | last, "last": last}
    kept = paths
    for stage in STAGES:
        if levels(kept) <= rows:
            break
        gone = np.any([paths["what"].eq(what) & ~ends[stays] for what, stays in stage.items()], axis=0)
        kept = _without(_noted(paths, chain, last, gone), gone)
    return kept


def levels(paths: pd.DataFrame) -> int:
    """Return the number of rows that the paths fill."""
    return int(_level(paths["up"].to_numpy()).max(initial=-1)) + 1


def _level(up: Rows) -> Rows:
    return _along(up, np.ones(len(up))).astype(np.int64) - 1


def _chains(paths: pd.DataFrame, least: float) -> Rows:
    """Return the first member of the chain that each path belongs to, which may be itself."""
    up, value, what = paths["up"].to_numpy(), paths["value"].to_numpy(), paths["what"].to_numpy()
    only = (up >= 0) & (np.bincount(up[up >= 0], minlength=len(up))[up] == 1)
    linked = only & (what[up] == what) & np.isin(what, [PYTHON, NATIVE])
    chain = np.arange(len(up))
    for row in np.argsort(_level(up), kind="stable"):
        if linked[row] and value[chain[up[row]]] - value[row] < least:
            chain[row] = chain[up[row]]
    return chain


def _last(paths: pd.DataFrame, chain: Rows, context: pd.DataFrame) -> Mask:
    """Whether each path is the last function of its chain that has a name, or the last path if none is."""
    named = (context["kind"].eq("function") & ~context["name"].astype(str).str.startswith(UNNAMED)).to_numpy()
    order = np.lexsort([_level(paths["up"].to_numpy()), named, chain])
    last = np.zeros(len(chain), bool)
    last[order[np.append(np.diff(chain[order]) != 0, True)]] = True
    return last


def _noted(paths: pd.DataFrame, chain: Rows, last: Mask, gone: Mask) -> pd.DataFrame:
    """Return the paths; what is gone is noted at the last of its chain, what is too small there at the next caller."""
    hidden: dict[int, list[int]] = {}
    for row in np.argsort(_level(paths["up"].to_numpy()), kind="stable"):
        if gone[row]:
            hidden.setdefault(int(chain[row]), []).append(int(paths["context"].iloc[row]))
    named = [tuple(hidden.get(first, ())) if stays else () for first, stays in zip(chain, last, strict=True)]
    at = np.where(gone, _above(paths["up"].to_numpy(), ~gone), np.arange(len(gone)))
    smaller = {each: np.bincount(at, paths[each], len(at)) for each in ("smaller_count", "smaller_value")}
    return paths.assign(hidden=_tuples(named), **smaller)


def placed(paths: pd.DataFrame, least: float, rows: int) -> pd.DataFrame:
    """Return one bar per path, and one for what each calls that is too small to be seen, if together it is not.

    Bars lie under their caller from its `begin`, in falling order, what is smaller last; `row` counts from 0, and
    rows from `rows` on are left out; `own` is the value without what is drawn under it.
    """
    together = paths[paths["smaller_value"] >= least]
    rest = pd.DataFrame(
        {
            "up": together.index,
            "value": together["smaller_value"],
            "contexts": together["smaller_count"].astype(np.int64),
            "what": OTHER,
            "context": -1,
            "site": -1,
            "sites": 0,
            "hidden": _tuples([()] * len(together)).to_numpy(),
        }
    )
    bars = pd.concat([paths.drop(columns=["smaller_count", "smaller_value"]), rest], ignore_index=True)
    up, value = bars["up"].to_numpy(), bars["value"].to_numpy()
    order = np.lexsort([-value, bars["context"].to_numpy() < 0, up])
    beside = np.empty(len(bars))
    beside[order] = bars["value"].iloc[order].groupby(up[order]).cumsum().to_numpy() - value[order]
    begin = _along(up, beside)
    bars = bars.assign(begin=begin, end=begin + value, row=_level(up))
    bars = _without(bars, bars["row"].to_numpy() >= rows)
    return bars.assign(own=bars["value"] - _called(bars["up"].to_numpy(), bars["value"].to_numpy()))


def outermost(bars: pd.DataFrame, wanted: Mask) -> Mask:
    """Whether each bar is `wanted` and none that calls it is."""
    found: Mask = wanted & (_above(bars["up"].to_numpy(), wanted) < 0)
    return found


def _called(up: Rows, value: Values) -> Values:
    """Return what each row calls, in sum."""
    sums: Values = np.bincount(up[up >= 0], value[up >= 0], minlength=len(up)).astype(float)
    return sums
