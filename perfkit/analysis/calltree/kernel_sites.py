"""Which kernels took the time, from which Python line were they launched, and what did their warps wait for?

`tree_sums` shows by how much sums over the rows of a tree are wrong: inclusive values contain those of everything
called, so such a sum counts each value once per ancestor, and Hatchet's reader knows the main thread alone, so it lacks
what other threads launched. The true figures are the sums over the entry points.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis.calltree.paths import launched
from perfkit.analysis.calltree.totals import Bool, Floats, described, nearest, parents, rows_of, text
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Int
from perfkit.analysis.stalls import ISSUING, TOTALS, shares
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALLTREE, RANK, STALLS

MAIN = "main thread"
ASSUMED_LAUNCH_S = 5e-6  # the published summary's constant
_STALL = r"(?:GINS:STL_|GCYCLES:STL:)(.+)"
TREE_SUMS = Table(
    "TREE_SUMS",
    "a figure by three methods",
    (
        Column("figure", "string", "name of the figure"),
        Column("unit", "category", "s, count or frac"),
        Column("tree_sum", "float64", "inclusive values summed over all rows of the main thread's tree"),
        Column("main_thread", "float64", "values at the root of the main thread"),
        Column("all_threads", "float64", "values at all roots: the true ones"),
    ),
    (),  # rows stay in the order of the summary
)
_METHODS = ["tree_sum", "main_thread", "all_threads"]
STALL_SHARES = Table(
    "STALL_SHARES",
    "a stall reason of all kernels",
    (
        RANK,
        Column("entry", "string", "entry point; NA for all together"),
        Column("reason", "category", "stall reason"),
        Column("value", "float64", "samples, or cycles estimated from them, as the source counts them"),
        Column("share_frac", "float64", "share of the sum over the reasons"),
        Column("place", "Int64", "1 for the largest stall; NA for what is no stall"),
    ),
    ("rank", "entry"),
)
NAME = Column("name", "string", "short name for people")
FULL_NAME = Column("full_name", "string", "demangled name; '<gpu kernel>' for kernels without one")
LAUNCH_COUNT = Column("launch_count", "float64", "launches; NaN not recorded")
TOTAL = Column("total_ns", "float64", "sum of the launches' durations, ns; NaN not recorded")
SHARE = Column("share_frac", "float64", "share of all kernels' time")
PYTHON = Column("python", "string", "nearest Python line above, as 'file:line function'; NA without one")
SITE = Column("site", "string", "nearest PyTorch operator above, else function; NA without one")
TREE_KERNELS = Table(
    "TREE_KERNELS",
    "a kernel",
    (
        NAME,
        FULL_NAME,
        Column("family", "category", "kind of work, from the name"),
        LAUNCH_COUNT,
        TOTAL,
        Column("mean_ns", "float64", "total_ns over launch_count"),
        SHARE,
        Column("main_stall", "string", "largest stall reason; NA not sampled"),
        Column("main_stall_frac", "float64", "its share of the kernel's stalls"),
        PYTHON,
        SITE,
        Column("path", "string", "calls from the root down to the kernel"),
    ),
    ("full_name",),
)
LAUNCH_SITES = Table(
    "LAUNCH_SITES",
    "a kernel and the place it was launched from",
    (
        NAME,
        FULL_NAME,
        Column("entry", "string", "entry point"),
        PYTHON,
        Column("function", "string", "the Python function; NA at module level and without one"),
        Column("file", "string", "its source file"),
        Column("line", "Int64", "line of the call in it"),
        SITE,
        LAUNCH_COUNT,
        TOTAL,
        SHARE,
    ),
    ("full_name", "entry", "file", "line", "function", "site"),
)
KERNEL_STALLS = Table(
    "KERNEL_STALLS",
    "a stall reason of a kernel",
    (
        NAME,
        FULL_NAME,
        Column("reason", "category", "stall reason"),
        Column("value", "float64", "samples, or cycles estimated from them, as the source counts them"),
        Column("share_frac", "float64", "share of the sum over the kernel's reasons"),
        Column("place", "Int64", "1 for the largest stall; NA for what is no stall"),
    ),
    ("full_name",),
)


def tree_sums(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of a published summary by its own method, of the main thread, and of all threads.

    Returns
    -------
    pandas.DataFrame
        TREE_SUMS, a row per figure that was recorded, in the order of the summary; NaN where a part was not recorded.
        Among the figures `gpu_share` = gpu_time / (host_time + gpu_time), which the summary called utilisation and
        which is none, `copy_share` = copy_time / (kernel_time + copy_time), `launch_overhead` = 5 us x launches /
        kernel_time, which is none either, and `stall_<reason>`, the reason's share of all stalls, largest first.

    References
    ----------
    yuninxia/dlrm, workloads/hatchet_analysis.py, and the executive summary made with it.
    """
    sums = _sums(CALLTREE.check(calltree), CALL_METRICS.check(call_metrics))
    figures = {**_times_and_counts(sums), **_stalls(sums)}
    table = pd.DataFrame([values.rename(name) for name, (_, values) in figures.items()], columns=_METHODS)
    table = table.rename_axis("figure").reset_index()
    table["unit"] = [unit for unit, _ in figures.values()]
    return TREE_SUMS.make(table.dropna(subset=_METHODS, how="all"))


def _sums(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return each metric's sum by each method, NaN where no row has it."""
    at = rows_of(calltree, call_metrics["rank"].to_numpy(np.int64), call_metrics["node"].to_numpy())
    main = np.append(calltree["entry"].eq(MAIN).to_numpy(bool), False)[at]
    root = np.append(calltree["parent"].isna().to_numpy(), False)[at]
    metric, value = call_metrics["metric"].cat.codes.to_numpy(), call_metrics["inclusive"].to_numpy()
    names = call_metrics["metric"].cat.categories.astype(str)

    def summed(rows: Bool) -> Floats:
        count = np.bincount(metric[rows], minlength=len(names))
        return np.where(count > 0, np.bincount(metric[rows], value[rows], len(names)), np.nan)

    parts = zip(_METHODS, (summed(main), summed(main & root), summed(root)), strict=True)
    return pd.DataFrame(dict(parts), index=names)


def _times_and_counts(sums: pd.DataFrame) -> dict[str, tuple[str, pd.Series]]:
    def of(*metrics: str) -> pd.Series:
        known = next((metric for metric in metrics if metric in sums.index), "")
        return pd.Series(sums.loc[known]) if known else pd.Series(np.nan, index=_METHODS)

    host, gpu, kernel, copy = of("CPUTIME", "REALTIME"), of("GPUOP"), of("GKER"), of("GXCOPY")
    launches = of("GKER:COUNT")
    return {
        "host_time": ("s", host),
        "gpu_time": ("s", gpu),
        "gpu_share": ("frac", gpu / (host + gpu)),
        "kernel_time": ("s", kernel),
        "copy_time": ("s", copy),
        "copy_share": ("frac", copy / (kernel + copy)),
        "copies": ("count", of("GXCOPY:COUNT")),
        "launches": ("count", launches),
        "mean_kernel_time": ("s", kernel / launches),
        "launch_overhead": ("frac", ASSUMED_LAUNCH_S * launches / kernel),
    }


def _stalls(sums: pd.DataFrame) -> dict[str, tuple[str, pd.Series]]:
    """Return each reason's share of all stalls, largest first."""
    reason = sums.index.str.extract(_STALL, flags=re.IGNORECASE)[0].str.lower().to_numpy()
    of_reason = sums[pd.notna(reason)].set_axis(reason[pd.notna(reason)])
    of_reason = of_reason[~of_reason.index.isin(TOTALS)].fillna(0.0)
    share = of_reason / of_reason.sum().where(lambda total: total > 0)
    share = share[~share.index.isin(ISSUING)].sort_values("all_threads", ascending=False, kind="stable")
    return {f"stall_{name}": ("frac", values) for name, values in share.iterrows()}


def kernels(calltree: pd.DataFrame, call_metrics: pd.DataFrame, stalls: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per kernel: its time, its main stall, and from where most of its time was launched.

    A kernel's contexts, in all ranks and entry points, are summed. Its main stall is the largest of the samples in its
    functions and their lines and instructions, by `perfkit.analysis.stalls.shares`; a negative one raises PerfkitError.
    Samples outside of kernels count for none.

    Returns
    -------
    pandas.DataFrame
        TREE_KERNELS, by falling `total_ns`, ties by name; `python`, `site` and `path` are those of the launch site with
        the most time.
    """
    found = _named(launched(calltree, call_metrics))
    kernel = found.groupby("full_name", sort=False)
    table = kernel[["launch_count", "total_ns"]].sum(min_count=1).join(kernel[["name"]].first())
    table["family"] = [names.family(name) for name in table.index]
    table["mean_ns"] = table["total_ns"] / table["launch_count"].where(table["launch_count"] > 0)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    parent = parents(calltree)
    table = table.join(_main_stall(calltree, parent, found, STALLS.empty() if stalls is None else STALLS.check(stalls)))
    site = _with_most(found)
    site["path"] = described(calltree, parent, site["row"].to_numpy(), site["name"])
    table = table.join(site.set_index("full_name")[["python", "site", "path"]]).reset_index()
    return _by_time(TREE_KERNELS.make(table[TREE_KERNELS.column_names]))


def launch_sites(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return one row per kernel, entry point, Python line and operator: LAUNCH_SITES, by falling `total_ns`."""
    found = _named(launched(calltree, call_metrics))
    keys, group = numbered(found, ["name", "full_name", "entry", "python", "function", "file", "line", "site"])
    for value in ("launch_count", "total_ns"):
        keys[value] = np.bincount(group, found[value].to_numpy(), len(keys)).astype(np.float64, copy=False)
    keys["share_frac"] = keys["total_ns"] / (keys["total_ns"].sum() or np.nan)
    return _by_time(LAUNCH_SITES.make(keys))


def _named(found: pd.DataFrame) -> pd.DataFrame:
    """Add the short name of each kernel, and the Python line as one text."""
    short = {name: names.short(name) for name in found["full_name"].dropna().unique()}
    base = found["file"].str.replace(r".*/", "", regex=True) + ":" + found["line"].astype("string")
    python = (base + (" " + found["function"]).fillna("")).astype("string")
    return found.assign(name=found["full_name"].map(short).astype("string"), python=python)


def _with_most(found: pd.DataFrame) -> pd.DataFrame:
    """Return, for each kernel, the context with most time of the launch site with most time."""
    keys = ["full_name", "python", "site"]
    _, group = numbered(found, keys)
    time = np.nan_to_num(found["total_ns"].to_numpy())
    of_site = np.bincount(group, time)[group] if len(group) else time
    order = np.lexsort([-time, -of_site])
    return found.iloc[order].drop_duplicates("full_name").reset_index(drop=True)


def kernel_stalls(calltree: pd.DataFrame, call_metrics: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Return the share of each stall reason in each kernel's stalls: of samples, not of time.

    Returns
    -------
    pandas.DataFrame
        KERNEL_STALLS, by name, the largest share first. Samples outside of kernels are left out; a negative value
        raises PerfkitError.
    """
    found = _named(launched(calltree, call_metrics))
    waiting = _waiting(calltree, parents(calltree), found, STALLS.check(stalls))
    names_of = found.drop_duplicates("full_name").set_index("full_name")["name"]
    table = waiting.assign(name=waiting["full_name"].map(names_of).astype("string"))
    return KERNEL_STALLS.make(table[list(KERNEL_STALLS.column_names)])


def _waiting(calltree: pd.DataFrame, parent: Int, found: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of the stalls of each kernel, with its full name."""
    kernel, names_of = pd.factorize(found["full_name"])
    at = np.full(len(calltree) + 1, -1, np.int64)
    at[found["row"].to_numpy()] = kernel
    of_node = stalls[stalls["node"].ge(0)]
    row = rows_of(calltree, of_node["rank"].to_numpy(np.int64), of_node["node"].to_numpy())
    enclosing = np.append(nearest(parent, at[:-1] >= 0), -1)[row]
    inside = enclosing >= 0
    table = summed(of_node[inside], at[enclosing[inside]])
    return table.assign(full_name=pd.Series(names_of.to_numpy()[table["node"].to_numpy()], dtype="string"))


def _main_stall(calltree: pd.DataFrame, parent: Int, found: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Return the largest stall of each kernel by its full name."""
    every = _waiting(calltree, parent, found, stalls)
    largest = every[every["place"].eq(1).fillna(False) & every["value"].gt(0)].set_index("full_name")
    named = largest.rename(columns={"reason": "main_stall", "share_frac": "main_stall_frac"})
    return named[["main_stall", "main_stall_frac"]].astype({"main_stall": "string"})


def _by_time(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("total_ns", ascending=False, kind="stable").reset_index(drop=True)


def stall_shares(calltree: pd.DataFrame, stalls: pd.DataFrame, *, by: str = "rank") -> pd.DataFrame:
    """Return the share of each stall reason in all kernels' stalls: of samples, not of time.

    share = value summed over all contexts / sum over the reasons, totals and the rows of launches left out. `by` is
    "rank", the whole program, or "entry", per entry point.

    Returns
    -------
    pandas.DataFrame
        STALL_SHARES, by rank (and entry), largest value first.

    Raises
    ------
    ValueError
        If `by` is neither.
    PerfkitError
        If a value is negative.
    """
    if by not in ("rank", "entry"):
        raise ValueError(f"by: {by!r} is not one of ['rank', 'entry']")
    CALLTREE.check(calltree)
    of_node = STALLS.check(stalls)[stalls["node"].ge(0)]
    at = rows_of(calltree, of_node["rank"].to_numpy(np.int64), of_node["node"].to_numpy())
    of_node = of_node.assign(entry=text(calltree["entry"], at if by == "entry" else np.full(len(at), -1)).to_numpy())
    keys, group = numbered(of_node, ["rank", "entry"])
    found = summed(of_node, group)
    return STALL_SHARES.make(found.join(keys, on="node").drop(columns="node"))


def summed(stalls: pd.DataFrame, group: Int) -> pd.DataFrame:
    """Return the shares of the reasons in each group's stalls; the group is in column `node`."""
    keys, of = numbered(stalls.assign(group=group), ["group", "reason"])
    value = np.bincount(of, stalls["value"].to_numpy(), len(keys))
    frame = {"rank": 0, "launch": -1, "node": keys["group"], "reason": keys["reason"], "value": value}
    return shares(STALLS.make(pd.DataFrame(frame)), by="node").drop(columns="rank")
