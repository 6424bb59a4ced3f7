"""Where do CPU and GPU time go along the calls of a program: which entry, function, Python line and kernel?

CALLTREE, CALL_METRICS and STALLS are those of one call-path profile (HPCToolkit), in any order and
maybe empty, with metrics under the tool's names; another table raises SchemaError. An inclusive
value contains everything called: it adds up over the roots only, one per entry point, and that sum
over *all* entry points is the total. An exclusive value belongs to a context alone and adds up over
all contexts. A metric without a row was not measured or is 0: it is NaN where a rank has it
nowhere. Times are sums over threads or streams, never added to each other and never taken for wall
time. Shares are 0..1.

Source: HPCToolkit, FORMATS.md and metrics/default.yaml, in every database; Hatchet (llnl-hatchet),
GraphFrame.
"""

import re

import numpy as np
import pandas as pd

from perfkit.analysis.calltree import totals
from perfkit.analysis.calltree.paths import MPI, hot_path, kernel_stalls, kernels, mpi_calls
from perfkit.analysis.calltree.totals import called, exclusive, inclusive, threads
from perfkit.analysis.causes import where
from perfkit.analysis.grouping import numbered, rows_of
from perfkit.analysis.intervals import Bool, Float, ends, total, union
from perfkit.analysis.warps import ISSUING, TOTALS
from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table
from perfkit.tables import CALL_METRICS, CALLTREE, RANK, THREADS, TRACE

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
SAMPLES = {
    "sample_count": "GSAMP:TOT",
    "expected_sample_count": "GSAMP:EXP",
    "dropped_sample_count": "GSAMP:DRP",
}
# Times of the host, and ns in their unit; of several the first counts, they are never added. Linux
# counts its clocks in ns (perf_event_open, PERF_COUNT_SW_TASK_CLOCK).
HOST = {"CPUTIME": 1e9, "REALTIME": 1e9, "perf::task-clock": 1.0, "perf::cpu-clock": 1.0}
LAUNCH_NS = (
    5_000,
    10_000,
)  # host time of one launch, low and high: a convention, measured values vary wider
BY = {"rank": ["rank"], "entry": ["rank", "entry"]}
COLUMNS = [
    *TIMES,
    *COUNTS,
    "kernel_mean_ns",
    "copy_frac",
    *BYTES,
    *SAMPLES,
    "coverage_frac",
    "host_ns",
]
WORK = ["kernel_ns", "copy_ns", "implicit_copy_ns", "memset_ns"]
IDLE = (
    "<gpu sync>",
    "<gpu alloc>",
    "<gpu delete>",
)  # in a stream's trace, but nothing the GPU works on
RECORD = "Record a trace with `hpcrun -t`"
AGREE = 1e-6  # relative difference of two clocks' sums that is no contradiction
UTILISATION = Table(
    "UTILISATION",
    "the GPUs of a rank",
    (
        RANK,
        Column("wall_ns", "float64", "length of the run, ns"),
        Column("gpus", "int64", "GPUs, count"),
        Column("denominator_ns", "float64", "wall_ns x gpus"),
        Column("operation_ns", "float64", "sum of the durations of kernels, copies and memsets"),
        Column(
            "low_ns",
            "float64",
            "lower bound of the time in which the GPUs were busy; NaN without a trace",
        ),
        Column("high_ns", "float64", "upper bound of the time in which the GPUs were busy"),
        Column("low_frac", "float64", "low_ns over denominator_ns"),
        Column("high_frac", "float64", "high_ns over denominator_ns"),
    ),
    ("rank",),
)
REAL = "REALTIME"  # the metric that a clock on the wall samples
MAIN = "main thread"
ASSUMED_LAUNCH_S = 5e-6  # the published summary's constant
_STALL = r"(?:GINS:STL_|GCYCLES:STL:)(.+)"
TREE_SUMS = Table(
    "TREE_SUMS",
    "a figure by three methods",
    (
        Column("figure", "string", "name of the figure"),
        Column("unit", "category", "s, count or frac"),
        Column(
            "tree_sum", "float64", "inclusive values summed over all rows of the main thread's tree"
        ),
        Column("main_thread", "float64", "values at the root of the main thread"),
        Column("all_threads", "float64", "values at all roots: the true ones"),
    ),
    (),  # rows stay in the order of the summary
)
_METHODS = ["tree_sum", "main_thread", "all_threads"]
__all__ = [
    "MPI",
    "called",
    "exclusive",
    "gpu_summary",
    "host_metric",
    "host_time",
    "hot_path",
    "inclusive",
    "kernel_stalls",
]
__all__ += ["kernels", "launch_cost", "mpi_calls", "threads", "tree_sums", "utilisation"]


def gpu_summary(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, by: str = "rank"
) -> pd.DataFrame:
    """Return what the GPU did: times, counts and bytes at the roots, so that every operation counts once.

    kernel_mean_ns = kernel_ns / launch_count; copy_frac = copy_ns / (kernel_ns + copy_ns);
    coverage_frac = samples taken / expected. Times are sums over operations: those of several
    streams may overlap.

    `by`: "rank": the whole program, one row per rank; "entry": a row per rank and entry point; else
    ValueError.

    By `rank` int32 (and `entry` category): COLUMNS, float64, where `copy_ns` are explicit copies,
    `operation_ns` all operations, and `host_ns` CPU time of all threads, else the next of HOST. A
    metric that the rank has nowhere is NaN, and so is what is made of it; one that the rank has,
    but not below an entry point, is 0 there.

    Source: HPCToolkit, metrics/default.yaml of a database, descriptions of GKER, GXCOPY, GPUOP,
    GSAMP.
    """
    if by not in BY:
        raise ValueError(f"by: {by!r} is not one of {list(BY)}")
    sums = inclusive(calltree, call_metrics).astype({"metric": "string", "entry": "string"})
    roots = calltree.loc[calltree["parent"].isna(), ["rank", "entry"]].astype({"entry": "string"})
    index = pd.MultiIndex.from_frame(roots.drop_duplicates().sort_values(["rank", "entry"]))
    wide = sums.pivot_table("inclusive", ["rank", "entry"], "metric", aggfunc="sum").reindex(index)
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
    moving, expected = table["kernel_ns"] + table["copy_ns"], table["expected_sample_count"]
    table["kernel_mean_ns"] = table["kernel_ns"] / table["launch_count"].where(
        table["launch_count"] > 0
    )
    table["copy_frac"] = table["copy_ns"] / moving.where(moving > 0)
    table["coverage_frac"] = table["sample_count"] / expected.where(expected > 0)
    of_host = pd.concat([values(metric) * scale for metric, scale in HOST.items()], axis=1)
    table["host_ns"] = of_host.bfill(axis=1).iloc[:, 0]
    if "entry" in table:
        table["entry"] = table["entry"].astype("category")
    return table[[*BY[by], *COLUMNS]].rename_axis(columns=None).reset_index(drop=True)


def launch_cost(summary: pd.DataFrame, *, wall_ns: float) -> pd.DataFrame:
    """Return the host time that the launches took, as a range, and its share of the wall time.

    low and high = launches x 5 and 10 us (NVIDIA, Nsight Systems user guide; measured
    cudaLaunchKernel: 2 to 20 us). Launches are asynchronous and run beside kernels: they are time
    of the host, to be compared with the wall time and never with the kernels' time. Measured call
    times, where a timeline has them, are better than this range.

    `summary` is what `gpu_summary` returned, and `wall_ns` the length of the run, above 0; else
    ValueError. The answer has of each row of `summary` its `rank` (and `entry`), `launch_count`,
    `low_ns`, `high_ns`, and `low_frac`, `high_frac` of `wall_ns`, above 1 where several threads
    launch at once: float64, NaN without launches recorded.
    """
    if not wall_ns > 0:
        raise ValueError(f"wall_ns: {wall_ns} is not above 0")
    table = summary[[name for name in ("rank", "entry", "launch_count") if name in summary]].copy()
    low, high = (table["launch_count"] * launch_ns for launch_ns in LAUNCH_NS)
    return table.assign(low_ns=low, high_ns=high, low_frac=low / wall_ns, high_frac=high / wall_ns)


def host_metric(call_metrics: pd.DataFrame) -> str:
    """Return the metric of the host's time, the first of HOST; empty where none was recorded."""
    metrics = totals.recorded(CALL_METRICS.check(call_metrics))
    return next((metric for metric in HOST if metric in metrics), "")


def host_time(call_metrics: pd.DataFrame) -> str:
    """Return what the host's time was measured as: "CPU time", or "real time", in which sleep counts."""
    return "real time" if host_metric(call_metrics) == REAL else "CPU time"


def utilisation(
    calltree: pd.DataFrame,
    call_metrics: pd.DataFrame,
    trace: pd.DataFrame | None = None,
    threads: pd.DataFrame | None = None,
    *,
    wall_ns: float | None = None,
) -> pd.DataFrame:
    """Return the time in which the GPUs worked over wall time x GPUs: meaning (a) of "GPU utilisation".

    Work is kernels, copies and memsets. The sum of their durations equals the time in which any of
    them ran where nothing overlaps, and is more otherwise: it is the upper bound, or the union of
    all operations in the trace if that is shorter. The lower bound is the union of the operations
    whose length is certain: HPCToolkit's trace has wrong lengths where a stream delivered its
    operations out of order. Such a row is followed directly by another operation (not `ended`), or
    was moved to 1 ns after its predecessor (hpcrun, gpu_trace_start_adjust), and is left out.

    TRACE and THREADS of the same profile give the lower bound. `wall_ns` is the length of the run,
    ns, such as `CAPTURE.dur_ns`; without it the span of `trace`. The GPUs of a rank are those of
    the GPU contexts among its `threads`, idle GPUs left out. UTILISATION has a row per rank with
    GPU operations.

    PerfkitError if wall time, the number of GPUs or GPU operations are not known, or they
    contradict each other: the GPUs worked longer than wall time x GPUs. A sum over several streams
    can exceed it with right numbers.
    """
    trace = TRACE.given(trace)
    threads = THREADS.given(threads)
    summary = gpu_summary(calltree, call_metrics)
    table = summary[["rank"]].assign(operation_ns=summary[WORK].sum(axis=1, min_count=1))
    if len(table) and table["operation_ns"].isna().all():
        raise PerfkitError(
            "call_metrics: no GPU operations were measured. Record with `hpcrun -e gpu=nvidia`."
        )
    table = table.dropna().reset_index(drop=True)
    streams = threads[threads["kind"].eq("gpu")]
    context = streams["name"].astype("string").str.replace(r"[ ,]*stream.*", "", regex=True)
    streams = streams.assign(gpu=streams["mpi_rank"].astype("string").fillna("") + " " + context)
    table["wall_ns"] = _wall(trace, wall_ns) if len(table) else np.nan
    count = table["rank"].map(streams.groupby("rank")["gpu"].nunique()).fillna(0)
    if (count < 1).any():
        raise PerfkitError(f"gpus: {count.min():g} GPUs are known. {RECORD}.")
    table["gpus"] = count.astype("int64")
    table["denominator_ns"] = table["wall_ns"] * table["gpus"]
    busy = _busy(calltree, trace, streams)
    for end in ("low", "high"):
        table[f"{end}_ns"] = table["rank"].map(busy[end]).astype("float64")
    return _bounded(table)


def _wall(trace: pd.DataFrame, wall_ns: float | None) -> float:
    if wall_ns is None and len(trace):
        return float((trace["start_ns"] + trace["dur_ns"]).max() - trace["start_ns"].min())
    if wall_ns is None or not wall_ns > 0:
        raise PerfkitError(
            f"wall_ns: the length of the run is not known, found {wall_ns}. {RECORD}, or give "
            "wall_ns=."
        )
    return float(wall_ns)


def _busy(calltree: pd.DataFrame, trace: pd.DataFrame, streams: pd.DataFrame) -> pd.DataFrame:
    """Return the union of the certain and of all operations of each rank's streams, per GPU, ns, by rank."""
    rows = trace.merge(streams[["rank", "thread", "gpu"]], on=["rank", "thread"]).sort_values(
        ["rank", "thread", "start_ns"], kind="stable", ignore_index=True
    )
    before = (rows["start_ns"] + rows["dur_ns"]).groupby([rows["rank"], rows["thread"]]).shift()
    rows["certain"] = rows["ended"] & ~(rows["start_ns"] - before <= 1)
    idle = totals.nearest(totals.parents(calltree), where(calltree["name"], IDLE.__contains__))
    at = rows_of(calltree, "node", rows["rank"].to_numpy(np.int64), rows["node"].to_numpy())
    rows = rows[np.append(idle, -1)[at] < 0]  # an operation that is not in the tree counts as work
    device, group = numbered(rows, ["rank", "gpu"])
    (start, end), certain = ends(rows), rows["certain"].to_numpy()
    device["low"] = total(union(start[certain], end[certain], group[certain]), len(device))
    device["high"] = total(union(start, end, group), len(device))
    return device.groupby("rank")[["low", "high"]].sum()


def _bounded(table: pd.DataFrame) -> pd.DataFrame:
    """Bound the busy time from above by the operations' sum, and refuse what cannot be."""
    for row in table[table["low_ns"] > table["operation_ns"] * (1 + AGREE)].to_dict("records"):
        raise PerfkitError(
            f"trace: the GPUs of rank {row['rank']} were busy for {row['low_ns']:g} ns, but their "
            f"operations add up to {row['operation_ns']:g} ns. Give the trace and the metrics of "
            "one profile."
        )
    high = np.fmin(table["high_ns"].to_numpy(), table["operation_ns"].to_numpy())
    table = table.assign(high_ns=np.fmax(high, table["low_ns"].to_numpy()))
    for end in ("low", "high"):
        table[f"{end}_frac"] = table[f"{end}_ns"] / table["denominator_ns"]
    for row in table[table["high_frac"] > 1].to_dict("records"):
        untraced = (
            "Operations of several streams overlap: give the trace, or "
            if np.isnan(row["low_ns"])
            else ""
        )
        raise PerfkitError(
            f"gpus: GPU operations of {row['high_ns']:g} ns do not fit into {row['gpus']} x "
            f"{row['wall_ns']:g} ns. {untraced or 'Give '}the right wall_ns=."
        )
    return UTILISATION.make(table)


def tree_sums(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of a published summary by its own method, of the main thread, and of all threads.

    Sums over the rows of a tree are wrong: an inclusive value contains those of everything called,
    so it counts once per ancestor, and Hatchet's reader knows the main thread alone, so what other
    threads launched is missing. The true figures are the sums over the entry points.

    TREE_SUMS, a row per figure that was recorded, in the order of the summary; NaN where a part was
    not recorded. Among the figures `gpu_share` = gpu_time / (host_time + gpu_time), which the
    summary called utilisation and which is none, `copy_share` = copy_time / (kernel_time +
    copy_time), `launch_overhead` = 5 us x launches / kernel_time, which is none either, and
    `stall_<reason>`, the reason's share of all stalls, largest first.

    Source: yuninxia/dlrm, workloads/hatchet_analysis.py, and the executive summary made with it.
    """
    sums = _sums(CALLTREE.check(calltree), CALL_METRICS.check(call_metrics))
    figures = _times_and_counts(sums)
    # Each reason's share of all stalls, largest first.
    reason = sums.index.str.extract(_STALL, flags=re.IGNORECASE)[0].str.lower().to_numpy()
    of_reason = sums[pd.notna(reason)].set_axis(reason[pd.notna(reason)])
    of_reason = of_reason[~of_reason.index.isin(TOTALS)].fillna(0.0)
    share = of_reason / of_reason.sum().where(lambda total: total > 0)
    share = share[~share.index.isin(ISSUING)].sort_values(
        "all_threads", ascending=False, kind="stable"
    )
    figures |= {f"stall_{name}": ("frac", values) for name, values in share.iterrows()}
    table = pd.DataFrame(
        [values.rename(name) for name, (_, values) in figures.items()], columns=_METHODS
    )
    table = table.rename_axis("figure").reset_index()
    table["unit"] = [unit for unit, _ in figures.values()]
    return TREE_SUMS.make(table.dropna(subset=_METHODS, how="all"))


def _sums(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return each metric's sum by each method, NaN where no row has it."""
    at = rows_of(
        calltree, "node", call_metrics["rank"].to_numpy(np.int64), call_metrics["node"].to_numpy()
    )
    main = np.append(calltree["entry"].eq(MAIN).to_numpy(bool), False)[at]
    root = np.append(calltree["parent"].isna().to_numpy(), False)[at]
    metric, value = (
        call_metrics["metric"].cat.codes.to_numpy(),
        call_metrics["inclusive"].to_numpy(),
    )
    names = call_metrics["metric"].cat.categories.astype(str)

    def summed(rows: Bool) -> Float:
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
