"""What did the GPU do, and what did its launches cost the host?

Functions
---------
gpu_summary    GPU times, counts, bytes and samples per rank or entry point
launch_cost    host time of the launches, as a range
host_metric    the metric that says how long the host worked
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.totals import inclusive
from perfkit.analysis.calltree.values import recorded
from perfkit.tables import CALL_METRICS

TIMES = {
    "kernel_ns": "GKER",
    "copy_ns": "GXCOPY",
    "implicit_copy_ns": "GICOPY",
    "memset_ns": "GMSET",
    "allocation_ns": "GMEM",
    "synchronisation_ns": "GSYNC",
    "operation_ns": "GPUOP",
}
COUNTS = {"launch_count": "GKER:COUNT", "copy_count": "GXCOPY:COUNT"}
BYTES = {
    "h2d_bytes": "GXCOPY:H2D",
    "d2h_bytes": "GXCOPY:D2H",
    "d2d_bytes": "GXCOPY:D2D",
    "p2p_bytes": "GXCOPY:P2P",
}
SAMPLES = {"sample_count": "GSAMP:TOT", "expected_sample_count": "GSAMP:EXP", "dropped_sample_count": "GSAMP:DRP"}
HOST = ("CPUTIME", "REALTIME")  # of a program that both were recorded of the first; they are never added
LAUNCH_NS = (5_000, 10_000)  # host time of one launch, low and high: a convention, measured values vary wider
BY = {"rank": ["rank"], "entry": ["rank", "entry"]}
COLUMNS = [
    *(*TIMES, *COUNTS, "kernel_mean_ns", "copy_frac", *BYTES, *SAMPLES, "coverage_frac", "host_ns"),
]


def gpu_summary(calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, by: str = "rank") -> pd.DataFrame:
    """Return what the GPU did: times, counts and bytes at the roots, so that every operation counts once.

    kernel_mean_ns = kernel_ns / launch_count; copy_frac = copy_ns / (kernel_ns + copy_ns); coverage_frac = samples
    taken / expected. Times are sums over operations: those of several streams may overlap.

    Parameters
    ----------
    calltree, call_metrics
        CALLTREE and CALL_METRICS; may be empty.
    by
        "rank": the whole program, one row per rank; "entry": a row per rank and entry point.

    Returns
    -------
    pandas.DataFrame
        By rank (and entry): `rank` int32, with by="entry" `entry` category, and float64: `kernel_ns`, `copy_ns`
        (explicit), `implicit_copy_ns`, `memset_ns`, `allocation_ns`, `synchronisation_ns`, `operation_ns` (all of
        these), `launch_count`, `copy_count`, `kernel_mean_ns`, `copy_frac` in 0..1, `h2d_bytes`, `d2h_bytes`,
        `d2d_bytes`, `p2p_bytes`, `sample_count`, `expected_sample_count`, `dropped_sample_count`, `coverage_frac`,
        `host_ns` (CPU time of all threads, else their real time). A metric that the rank has nowhere is NaN, and so
        is what is made of it; one that the rank has, but not below an entry point, is 0 there.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
    ValueError
        If `by` is neither.

    References
    ----------
    HPCToolkit, metrics/default.yaml of a database, descriptions of GKER, GXCOPY, GPUOP, GSAMP.

    Examples
    --------
    >>> from perfkit.tables import CALLTREE
    >>> gpu_summary(CALLTREE.empty(), CALL_METRICS.empty()).columns.tolist()[:3]
    ['rank', 'kernel_ns', 'copy_ns']
    """
    if by not in BY:
        raise ValueError(f"by: {by!r} is not one of {list(BY)}")
    totals = inclusive(calltree, call_metrics).astype({"metric": "string", "entry": "string"})
    roots = calltree.loc[calltree["parent"].isna(), ["rank", "entry"]].astype({"entry": "string"})
    index = pd.MultiIndex.from_frame(roots.drop_duplicates().sort_values(["rank", "entry"]))
    wide = totals.pivot_table("inclusive", ["rank", "entry"], "metric", aggfunc="sum").reindex(index)
    seen = wide.notna().groupby(level="rank").transform("any").astype(bool)
    wide = wide.fillna(0.0).where(seen)
    if by == "rank":
        wide = wide.groupby(level="rank").sum(min_count=1)
    return _columns(wide.reset_index(BY[by]), by)


def _columns(wide: pd.DataFrame, by: str) -> pd.DataFrame:
    """Name the metrics of a table that has a column for each."""

    def values(metric: str) -> pd.Series:
        return wide[metric].astype("float64") if metric in wide else pd.Series(np.nan, wide.index)

    table = wide[BY[by]].astype({"rank": "int32"})
    for name, metric in TIMES.items():
        table[name] = values(metric) * 1e9
    for name, metric in (COUNTS | BYTES | SAMPLES).items():
        table[name] = values(metric)
    table["kernel_mean_ns"] = _over(table["kernel_ns"], table["launch_count"])
    table["copy_frac"] = _over(table["copy_ns"], table["kernel_ns"] + table["copy_ns"])
    table["coverage_frac"] = _over(table["sample_count"], table["expected_sample_count"])
    table["host_ns"] = values(HOST[0]).fillna(values(HOST[1])) * 1e9
    if "entry" in table:
        table["entry"] = table["entry"].astype("category")
    return table[[*BY[by], *COLUMNS]].rename_axis(columns=None).reset_index(drop=True)


def _over(part: pd.Series, whole: pd.Series) -> pd.Series:
    return part / whole.where(whole > 0)


def launch_cost(summary: pd.DataFrame, *, wall_ns: float) -> pd.DataFrame:
    """Return the host time that the launches took, as a range, and its share of the wall time.

    low and high = launches x 5 and 10 us. Launches are asynchronous and run beside kernels: they are time of the
    host, to be compared with the wall time and never with the kernels' time.

    Parameters
    ----------
    summary
        What `gpu_summary` returned.
    wall_ns
        Length of the run, ns, above 0.

    Returns
    -------
    pandas.DataFrame
        A row for each of `summary`, with its `rank` (and `entry`) and float64 `launch_count`, `low_ns`, `high_ns`,
        `low_frac`, `high_frac` of `wall_ns`, which exceed 1 where several threads launch at once; NaN without
        launches recorded.

    Raises
    ------
    ValueError
        If `summary` is another frame or `wall_ns` is not above 0.

    References
    ----------
    NVIDIA, Nsight Systems user guide, and measurements of cudaLaunchKernel between 2 and 20 us: measured call times,
    where a timeline has them, are better than this range.

    Examples
    --------
    >>> launch_cost(pd.DataFrame({"rank": [0], "launch_count": [200.0]}), wall_ns=1e9)
       rank  launch_count     low_ns    high_ns  low_frac  high_frac
    0     0         200.0  1000000.0  2000000.0     0.001      0.002
    """
    absent = [name for name in ("rank", "launch_count") if name not in summary]
    if absent:
        raise ValueError(f"summary: column {', '.join(absent)} is missing; give what calltree.gpu_summary returned")
    if not wall_ns > 0:
        raise ValueError(f"wall_ns: {wall_ns} is not above 0")
    table = summary[[name for name in ("rank", "entry", "launch_count") if name in summary]].copy()
    for end, each in zip(("low", "high"), LAUNCH_NS, strict=True):
        table[f"{end}_ns"] = table["launch_count"] * each
    for end in ("low", "high"):
        table[f"{end}_frac"] = table[f"{end}_ns"] / wall_ns
    return table


def host_metric(call_metrics: pd.DataFrame) -> str:
    """Return the metric of the host's time: "CPUTIME", else "REALTIME", empty where neither was recorded.

    Parameters
    ----------
    call_metrics
        CALL_METRICS; may be empty.

    Raises
    ------
    SchemaError
        If it is another table.

    Examples
    --------
    >>> host_metric(CALL_METRICS.empty())
    ''
    """
    known = recorded(CALL_METRICS.check(call_metrics))
    return next((metric for metric in HOST if metric in known), "")
