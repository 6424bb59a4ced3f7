"""What is known of each kernel: its time on the timeline, its counters, who launches it, and what is missing?

Time is the timeline's; counters were measured in another execution, often under another clock, and
never replace it. Counters of several launches of a kernel are means over launches; fractions are
weighted by the launches' durations. A duration measured under another clock is scaled by the ratio
of the clocks for display only: memory does not follow the SM clock. What is not known is missing,
and `missing` says how to record it.

An operator is joined through the call that launched the kernel, within one execution; a call path
by the kernel's name. Where several call for a kernel, the one with the most time is named.
"""

import shlex

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis.calltree.paths import KERNEL, launched
from perfkit.analysis.calltree.totals import described, parents
from perfkit.analysis.causes import started_by
from perfkit.analysis.grouping import numbered, ranked
from perfkit.analysis.kernels import CONFIGURATION, MATCHED_BY, matched
from perfkit.analysis.operators.totals import kernels_of, lines
from perfkit.analysis.warps import stall_shares
from perfkit.tables import CALL_METRICS, DEVICES, KERNELS, LAUNCHES, PYTHON_CALLS, STALLS

_TIMES = ("ns", "s")
SAME_CLOCK = 0.02  # ratios nearer to 1 are one clock read twice
FLOPS = ["fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops"]
WEIGHTED = [
    *(
        "clock_hz",
        "clock_ratio",
        "achieved_occupancy_frac",
        "theoretical_occupancy_frac",
        "sm_frac",
        "memory_frac",
    )
]
_SECTIONS = {
    "flops": "SpeedOfLight_RooflineChart",
    "dram_bytes": "MemoryWorkloadAnalysis_Chart",
    "achieved_occupancy_frac": "Occupancy",
    "sm_frac": "SpeedOfLight",
    "main_stall": "WarpStateStats",
}
_COLUMNS = [
    *(
        "name",
        "full_name",
        "family",
        "count",
        "total_ns",
        "share_frac",
        "matched_by",
        "measured_count",
    ),
    *(
        "same_grid_frac",
        "dur_ns",
        "clock_hz",
        "clock_ratio",
        "other_clock",
        "scaled_dur_ns",
        "flops",
        "dram_bytes",
    ),
    *(
        "achieved_occupancy_frac",
        "theoretical_occupancy_frac",
        "sm_frac",
        "memory_frac",
        "main_stall",
    ),
    *("main_stall_frac", "operator", "python", "call_path", "missing"),
]


def kernels(
    kernels: pd.DataFrame,
    launches: pd.DataFrame | None = None,
    stalls: pd.DataFrame | None = None,
    ops: pd.DataFrame | None = None,
    calltree: pd.DataFrame | None = None,
    call_metrics: pd.DataFrame | None = None,
    *,
    devices: pd.DataFrame | None = None,
    traced: pd.DataFrame | None = None,
    api_calls: pd.DataFrame | None = None,
    python_calls: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return one row per kernel name: time, counters, main stall, operator, call path, and what is missing.

    `launches`, `stalls`: LAUNCHES and STALLS, of one report; joined as `perfkit.analysis.kernels`
    says.
    `ops`, `api_calls`, `python_calls`: OPS, API_CALLS, which lead from a kernel to its operator,
    and PYTHON_CALLS of one execution.
    `devices`: DEVICES, for the clock of the GPU on the timeline.
    `traced`: KERNELS that the operators launched, if not `kernels` themselves (joined by name).

    By falling `total_ns`. `name`, `full_name` (of the most time), `family` string; `count`,
    `total_ns` int64; `share_frac` of all kernels' time; `matched_by` category: full_name, name,
    base or none; `measured_count` int64, launches that the counters stem from; `same_grid_frac`,
    the part of total_ns in launches whose grid and block were measured; `dur_ns` float64, mean
    duration under the counters' clock; `clock_hz` that clock; `clock_ratio` it over the clock in
    `devices`; `other_clock` bool, whether they differ by over 2 %; `scaled_dur_ns` dur_ns x
    clock_ratio; `flops`, `dram_bytes` per launch; `achieved_occupancy_frac`,
    `theoretical_occupancy_frac`, `sm_frac`, `memory_frac`; `main_stall` string and
    `main_stall_frac`; `operator`, `python` (the line that led to the launch), `call_path` string;
    `missing` string, empty if nothing. float64 columns are NaN and strings NA where not known.
    """
    launches = LAUNCHES.given(launches)
    kernels = KERNELS.check(kernels)
    timeline, group = numbered(kernels, ["name", "full_name", "family", *CONFIGURATION])
    timeline["count"] = np.bincount(group, minlength=len(timeline))
    time = np.bincount(group, kernels["dur_ns"].to_numpy(), len(timeline))  # exact: below 2**53 ns
    timeline["total_ns"] = time.astype(np.int64)
    timeline = ranked(
        timeline.astype({"name": "string", "full_name": "string"}), "total_ns", ["full_name"]
    )
    match = matched(timeline, launches)
    by_name = timeline.groupby("name", sort=False)
    table = by_name[["count", "total_ns"]].sum().join(by_name[["full_name", "family"]].first())
    table = ranked(table.reset_index().astype({"family": "string"}), "total_ns", ["name"])
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    table = table.join(_measured(match, launches, timeline, devices), on="name")
    table = table.join(_main_stall(match, launches, STALLS.given(stalls)), on="name")
    table["matched_by"] = pd.Categorical(table["matched_by"].fillna("none"), categories=MATCHED_BY)
    table["measured_count"] = table["measured_count"].fillna(0).astype("int64")
    table["same_grid_frac"] = table["same_grid_frac"].fillna(0.0)
    table["other_clock"] = (table["clock_ratio"] - 1).abs() > SAME_CLOCK
    table["scaled_dur_ns"] = table["dur_ns"] * table["clock_ratio"]
    site = pd.DataFrame(columns=["operator", "python"], dtype="string")
    if ops is not None and api_calls is not None:
        site = operators(kernels if traced is None else traced, ops, api_calls, python_calls)
    paths = pd.Series(dtype="string") if calltree is None else call_paths(calltree, call_metrics)
    for column, of_name in [*site.items(), ("call_path", paths)]:
        table[column] = table["name"].map(of_name).astype("string")
    table["missing"] = _missing(table)
    return table[_COLUMNS]


def measured(launches: pd.DataFrame) -> pd.Series:
    """Say of each launch whether a counter of it has a value; of a report with none of LAUNCHES' counters, of all.

    Nsight Compute lists a launch that failed under it, or that was cut, with counters that are no
    numbers.
    """
    has_value = launches.select_dtypes("float64").notna().any(axis=1)
    return has_value if has_value.any() else ~has_value


def covered(dossier: pd.DataFrame) -> float:
    """Return the share of the kernels' time that belongs to kernels with counters, 0..1, NaN without any time.

    `dossier` is what `kernels` returned; a kernel counts with all its launches, also those of other
    grids.

    >>> covered(pd.DataFrame({"total_ns": [60, 40], "matched_by": ["name", "none"]}))
    0.6
    """
    total = int(dossier["total_ns"].sum())
    return (
        float(dossier["total_ns"][dossier["matched_by"].ne("none")].sum() / total)
        if total
        else np.nan
    )


def _measured(
    match: pd.DataFrame,
    launches: pd.DataFrame,
    timeline: pd.DataFrame,
    devices: pd.DataFrame | None,
) -> pd.DataFrame:
    """Return the counters of each name on the timeline that was measured."""
    used = launches.assign(
        flops=launches[FLOPS].sum(axis=1, min_count=1),
        clock_ratio=launches["clock_hz"] / _clock(launches, devices),
        weight=_weight(launches),
        kernel=match["name"],
        how=match["matched_by"],
        is_measured=measured(launches),
    )[match["counts"]]
    by_kernel = used.groupby("kernel", sort=False)
    table = by_kernel[["dur_ns", "flops", "dram_bytes"]].mean()
    for column in WEIGHTED:
        weight = used["weight"].where(used[column].notna())
        sums = (
            pd.DataFrame({"part": used[column] * weight, "weight": weight})
            .groupby(used["kernel"])
            .sum(min_count=1)
        )
        table[column] = sums["part"] / sums["weight"]
    table["measured_count"] = by_kernel["is_measured"].sum()
    table["matched_by"] = by_kernel["how"].first()
    keys = ["name", *CONFIGURATION]
    seen = pd.MultiIndex.from_frame(timeline[keys]).isin(
        pd.MultiIndex.from_frame(used.assign(name=used["kernel"])[keys])
    )
    total = timeline.groupby("name")["total_ns"].sum()
    of_grid = timeline["total_ns"].where(seen, 0).groupby(timeline["name"]).sum()
    table["same_grid_frac"] = of_grid / total.where(total > 0)
    return table


def _weight(launches: pd.DataFrame) -> pd.Series:
    """Return each launch's duration; the mean where it was not measured, 1 where none was."""
    return launches["dur_ns"].fillna(launches["dur_ns"].mean()).fillna(1.0)


def _clock(launches: pd.DataFrame, devices: pd.DataFrame | None) -> pd.Series:
    """Return the clock of the GPU each launch ran on; where all GPUs have one clock, that."""
    if devices is None:
        return pd.Series(np.nan, launches.index)
    clocks = DEVICES.check(devices)["clock_hz"].dropna()
    if len(clocks) and (clocks == clocks.iloc[0]).all():
        return pd.Series(clocks.iloc[0], launches.index)
    keys = ["rank", "gpu"]
    return (
        launches[keys]
        .merge(devices[[*keys, "clock_hz"]], on=keys, how="left")["clock_hz"]
        .set_axis(launches.index)
    )


def _main_stall(match: pd.DataFrame, launches: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Return the stall with the largest share of each name, averaged over its launches by their duration."""
    keys = ["rank", "launch"]
    used = launches[keys].assign(kernel=match["name"], weight=_weight(launches))[match["counts"]]
    waits = stall_shares(stalls).dropna(subset=["share_frac"]).merge(used, on=keys)
    weights = waits.drop_duplicates(keys).groupby("kernel")["weight"].sum()
    waits = waits[waits["place"].notna()].astype({"reason": "string"})
    parts = (
        (waits["share_frac"] * waits["weight"]).groupby([waits["kernel"], waits["reason"]]).sum()
    )
    part = parts.reset_index(name="part")
    part["main_stall_frac"] = part["part"] / part["kernel"].map(weights)
    largest = part.sort_values("main_stall_frac", ascending=False, kind="stable").drop_duplicates(
        "kernel"
    )
    return largest.set_index("kernel").rename(columns={"reason": "main_stall"})[
        ["main_stall", "main_stall_frac"]
    ]


def _missing(table: pd.DataFrame) -> pd.Series:
    """Say what was not measured of each kernel, with the command that measures it."""
    absent = table[list(_SECTIONS)].isna().to_numpy()
    unmeasured = table["matched_by"].eq("none").to_numpy()
    notes = []
    for full_name, lacks, nothing in zip(table["full_name"], absent, unmeasured, strict=True):
        columns = [column for column, lacking in zip(_SECTIONS, lacks, strict=True) if lacking]
        what = "not measured" if nothing else f"without {', '.join(columns)}"
        options = (
            "--set full"
            if nothing
            else " ".join(f"--section {_SECTIONS[column]}" for column in columns)
        )
        pattern = shlex.quote(f"regex:^{names.base(full_name)}$")
        notes.append(f"{what}: `ncu {options} -k {pattern} -o report PROGRAM`" if columns else "")
    return pd.Series(notes, table.index, dtype="string")


def operators(
    kernels: pd.DataFrame,
    ops: pd.DataFrame,
    api_calls: pd.DataFrame,
    python_calls: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return `operator` and `python` (the line) in which most of each kernel's time was launched, by kernel name.

    The innermost operator of the launching call counts, as in `operators.kernels_of`; the line is
    that of `operators.lines`. Strings, NA where unknown.
    """
    of_kernel = kernels_of(ops, kernels, api_calls)
    by_op = ops.set_index(["rank", "op"])["name"].astype("string")
    keys = pd.MultiIndex.from_frame(of_kernel[["rank", "op"]])
    site = pd.DataFrame({"operator": by_op.reindex(keys).to_numpy()}).astype("string")
    python = np.full(len(kernels), None, object)
    if python_calls is not None and len(PYTHON_CALLS.check(python_calls)):
        call = started_by(kernels, api_calls)
        python[call >= 0] = lines(python_calls, api_calls.take(call[call >= 0]))
    site["python"] = pd.array(python, dtype="string")
    site = site.assign(
        name=kernels["name"].astype("string").to_numpy(), dur_ns=kernels["dur_ns"].to_numpy()
    )
    time = site.groupby(["name", "operator", "python"], dropna=False)["dur_ns"].sum().reset_index()
    most = time.sort_values(
        ["dur_ns", "operator"], ascending=[False, True], kind="stable"
    ).drop_duplicates("name")
    return most.set_index("name")[["operator", "python"]]


def call_paths(calltree: pd.DataFrame, call_metrics: pd.DataFrame | None = None) -> pd.Series:
    """Return the launch site of each kernel by its short name: functions from the root down, joined by " > ".

    A kernel stands below a placeholder `<gpu kernel>`; in a tree without any it is what has no
    callees. Of several paths the one with the most time is taken, without metrics the first.
    """
    metrics = CALL_METRICS.given(call_metrics)
    sites = launched(calltree, metrics)[["row", "full_name", "total_ns"]]
    if sites.empty and not calltree["name"].eq(KERNEL).any():
        parent = parents(calltree)
        row = np.setdiff1d(np.arange(len(parent)), parent)
        timed = (
            metrics[metrics["unit"].isin(_TIMES)]
            .groupby(["rank", "node"])["inclusive"]
            .max()
            .rename("total_ns")
        )
        table = (
            calltree[["rank", "node", "name"]]
            .rename(columns={"name": "full_name"})
            .astype({"full_name": "string"})
        )
        sites = (
            table.iloc[row]
            .assign(row=row)
            .join(timed, on=["rank", "node"])[["row", "full_name", "total_ns"]]
        )
    sites["kernel"] = sites["full_name"].map(
        {name: names.short(name) for name in sites["full_name"].dropna().unique()}
    )
    sites = sites.sort_values("total_ns", ascending=False, kind="stable").drop_duplicates("kernel")
    paths = described(calltree, parents(calltree), sites["row"].to_numpy(), sites["kernel"])
    return pd.Series(paths, sites["kernel"], dtype="string")
