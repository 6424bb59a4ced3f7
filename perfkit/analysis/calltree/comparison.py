"""How far off are figures that were summed over the rows of a call tree?

Conventions
-----------
Inclusive values contain those of everything called, so a sum over rows counts each value once per ancestor. Hatchet's
reader knows the main thread alone, so such sums lack what other threads launched. The true figures are the
sums over the entry points.

Functions
---------
tree_sums    each figure summed over rows, of the main thread, and of the whole program
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.paths import Bool, rows_of
from perfkit.analysis.calltree.values import Floats
from perfkit.analysis.stall_words import ISSUING, TOTALS
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALLTREE

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


def tree_sums(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of a published summary by its own method, of the main thread, and of all threads.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.

    Returns
    -------
    pandas.DataFrame
        A row per figure that was recorded, in the order of the summary: `figure` string; `unit` category; `tree_sum`,
        `main_thread`, `all_threads` float64, NaN where a part was not recorded there. Figures: `host_time`,
        `gpu_time`, `kernel_time`, `copy_time` (s), `launches`, `copies` (count), `gpu_share` = gpu_time / (host_time +
        gpu_time), which the summary called utilisation and which is none, `copy_share` = copy_time / (kernel_time +
        copy_time), `mean_kernel_time` (s), `launch_overhead` = 5 us x launches / kernel_time, which is none either,
        and `stall_<reason>`, the reason's share of all stalls, largest first.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.

    References
    ----------
    yuninxia/dlrm, workloads/hatchet_analysis.py, and the executive summary made with it.

    Examples
    --------
    >>> len(tree_sums(CALLTREE.empty(), CALL_METRICS.empty()))
    0
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
