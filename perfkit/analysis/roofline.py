"""How far is each kernel from what the GPU can do, and what holds it back: arithmetic, memory or latency?

A point is a launch (or all launches of a name) in one precision: FLOP over time against FLOP per
byte. Sums come before quotients: rates and ratios are never added or averaged. A roof is a peak per
precision and a bandwidth per memory level, of a data sheet or measured in the report; there is no
default. Tensor work is named by its operands' type (fp16_tensor accumulates in FP32,
fp16_tensor_acc16 in FP16) because each type has a roof of its own.

``sm__ops_path_tensor[_op_<instruction>]_src_<type>[_dst_<type>][_sparsity_<on|off>]`` count
operations. They are hierarchical: those of one instruction kind and those of operands without a
result are parts and sums of the others, and no operation is counted twice. `_acc16` says that a
precision accumulates in FP16, `_sparse` that 2:4 sparsity was on: these have roofs of their own.
Where no such counter was recorded the kernel's name tells the type; where it does not, the type is
`tensor`.

Source: Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009. Yang, Kurth,
Williams: Hierarchical roofline analysis for GPUs, Concurrency and Computation 32(20), 2020.
"""

import re
from typing import Any

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis import warps
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Float, Int
from perfkit.analysis.kernels import wide
from perfkit.errors import PerfkitError
from perfkit.format import number, percent
from perfkit.hardware import PRECISIONS, Peaks
from perfkit.schema import Column, Table
from perfkit.tables import COUNTERS, DUR, GPU, LAUNCHES, RANK

UNKNOWN = "tensor"
_METRIC = (
    r"sm__ops_path_tensor(?P<op>_op_[a-z]+)?_src_(?P<src>[a-z0-9]+)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)
# Which counters of a type stand for all of it: the sum over instruction kinds, then the split by
# sparsity.
_ANSWERS = ((False, True), (False, False), (True, True), (True, False))
CEILINGS = Table(
    "CEILINGS",
    "a roof of a device: a precision or a memory level",
    (
        *(RANK, GPU),
        Column("roof", "category", "fp64, fp32, fp16, fp16_tensor, ..., or dram, l2, l1"),
        Column("flops_per_s", "float64", "peak of a precision, FLOP/s; NaN for a memory level"),
        Column("bytes_per_s", "float64", "peak of a memory level, bytes/s; NaN for a precision"),
        Column("ridge", "float64", "peak over DRAM bandwidth, FLOP/byte; NaN for a memory level"),
        Column("count", "int64", "launches it was measured in; 0 for a data sheet"),
        Column(
            "spread_frac",
            "float64",
            "(highest - lowest) / highest over these launches; NaN for a data sheet",
        ),
        Column("source", "string", "where it comes from"),
    ),
    ("rank", "gpu", "roof"),
)
LEVELS = ("dram", "l2", "l1")
RECORD = "`ncu --set full --section SpeedOfLight_HierarchicalTensorRooflineChart -o report PROGRAM`"
MEASURED = "measured in the report: peak sustained x clock, the highest over the launches"
_OP = "sm__sass_thread_inst_executed_op_{}fma_pred_on.sum.peak_sustained"
_CLOCKS = {
    "sm": ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
    "dram": ("dram__cycles_elapsed.avg.per_second",),
    "lts": ("lts__cycles_elapsed.avg.per_second",),
    "l1tex": ("l1tex__cycles_elapsed.avg.per_second",),
}
_L1 = "l1tex__lsu_writeback_active{}.sum.peak_sustained"
# Unit whose clock counts, what one event is worth, and the metric; of several the first that was
# recorded. A half-precision instruction works on two lanes: its multiply-add is 4 FLOP.
_PEAKS = {
    "fp64": ("sm", 2, (_OP.format("d"),)),
    "fp32": ("sm", 2, (_OP.format("f"),)),
    "fp16": ("sm", 4, (_OP.format("h"),)),
    "dram": ("dram", 1, ("dram__bytes.sum.peak_sustained",)),
    "l2": ("lts", 32, ("lts__lts2xbar_cycles_active.sum.peak_sustained",)),
    "l1": ("l1tex", 128, (_L1.format("_mem_lgds"), _L1.format("_mem_lg"), _L1.format(""))),
}
POINTS = Table(
    "POINTS",
    "a launch, or all launches of a kernel, in one precision",
    (
        *(RANK, GPU),
        Column("launch", "int64", "number of the launch in the report; -1 for several together"),
        Column("name", "category", "short name; 'all kernels' for a whole GPU"),
        Column("full_name", "category", "demangled name; missing for several together"),
        Column("family", "category", "kind of work, from the name; missing for a whole GPU"),
        Column(
            "precision",
            "category",
            "fp64, fp32, fp16, fp16_tensor, ...; missing where no FLOP was counted",
        ),
        Column("count", "int64", "launches"),
        Column(DUR.name, "float64", "sum of the launches' durations, ns"),
        Column("flops", "float64", "operations in this precision, FLOP; NaN not measured"),
        Column(
            "dram_bytes",
            "float64",
            "bytes of device memory, all precisions together; NaN not measured",
        ),
        Column("l2_bytes", "float64", "bytes through the L2 cache; NaN not measured"),
        Column("l1_bytes", "float64", "bytes through the L1 cache; NaN not measured"),
        Column("flops_per_s", "float64", "flops over dur_ns, FLOP/s"),
        Column(
            "dram_intensity",
            "float64",
            "flops over dram_bytes, FLOP/byte; infinite where no byte moved",
        ),
        Column("l2_intensity", "float64", "flops over l2_bytes, FLOP/byte"),
        Column("l1_intensity", "float64", "flops over l1_bytes, FLOP/byte"),
        Column(
            "sm_frac",
            "float64",
            "compute throughput over its peak; mean over time of several launches",
        ),
        Column(
            "memory_frac",
            "float64",
            "memory throughput over its peak; mean over time of several launches",
        ),
        Column(
            "waves", "float64", "times the grid fills the GPU; mean over time of several launches"
        ),
    ),
    ("rank", "gpu", "launch", "name", "full_name", "precision"),
)
BY = {
    "launch": ["rank", "gpu", "launch", "name", "full_name"],
    "full_name": ["rank", "gpu", "name", "full_name"],
    "name": ["rank", "gpu", "name"],
    "gpu": ["rank", "gpu"],
}
_WAVES = "launch__waves_per_multiprocessor"
_FLOPS = {"fp64_flops": "fp64", "fp32_flops": "fp32", "fp16_flops": "fp16"}
_SUMS = ["dur_ns", *(f"{level}_bytes" for level in LEVELS)]
_MEANS = ["sm_frac", "memory_frac", "waves"]
Row = dict[Any, Any]
BOUNDS = ("compute", "memory", "balanced", "latency", "small_grid", "refused", "not measured")
HIGH, BUSY, APART = 0.8, 0.6, 0.1  # the vendor's rule SOLBottleneck: 80 %, 60 %, 10 points
FULL = 0.9  # of both peaks: neither can give much more (convention)
LATENCY_BELOW = 0.6
REFUSED_ABOVE = (
    1.1  # measuring a little over the roof happens, a lot over it means that the roof is wrong
)
_SHARES = ["compute_share_frac", *(f"{level}_share_frac" for level in LEVELS)]


def ceilings(
    launches: pd.DataFrame, counters: pd.DataFrame | None = None, *, peaks: Peaks | None = None
) -> pd.DataFrame:
    """Return the roofs of every device that ran `launches`, CEILINGS: of `peaks` if given, else those of the report.

    A measured roof is the peak per cycle times the clock of a launch, the highest over the launches
    of the device, so that no launch lies above it because its own clock was higher. Measured peaks
    (of the report's roofline sections in `counters`) are at the profiler's clock, locked to base
    unless it was told otherwise; those of a data sheet, such as ``hardware.peaks(name)``, are at
    boost clock, and have no roof for l2 and l1. PerfkitError if a device has no peak of any
    precision or no DRAM bandwidth: there is no roof then, and no default. Source: Metrics and
    factors are those of the vendor's roofline sections (Nsight Compute,
    SpeedOfLight_*Roofline*.section).
    """
    devices = LAUNCHES.check(launches)[["rank", "gpu"]].drop_duplicates()
    if peaks is not None:
        source = (
            f"dense peaks of {peaks.name}"
            + (f" ({peaks.as_of})" if peaks.as_of else "")
            + f": {peaks.source}"
        )
        sheet = {"dram": peaks.bandwidth(), **peaks.flops_per_s}
        of_sheet = pd.DataFrame({"roof": list(sheet), "peak": list(sheet.values())})
        roofs = devices.merge(
            of_sheet.assign(count=0, spread_frac=np.nan, source=source), how="cross"
        )
    else:
        roofs = _measured(launches, COUNTERS.given(counters))
    _refuse(devices, roofs)
    is_memory = roofs["roof"].isin(LEVELS)
    bandwidth = roofs[roofs["roof"] == "dram"].set_index(["rank", "gpu"])["peak"]
    below = bandwidth.reindex(pd.MultiIndex.from_frame(roofs[["rank", "gpu"]])).to_numpy("float64")
    table = roofs.assign(
        flops_per_s=roofs["peak"].mask(is_memory), bytes_per_s=roofs["peak"].where(is_memory)
    )
    return CEILINGS.make(table.assign(ridge=table["flops_per_s"] / below).drop(columns="peak"))


def _measured(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return the highest peak over the launches of each device and roof."""
    tensors = {
        name: ("sm", 1, metrics) for name, metrics in metrics(counters, ".peak_sustained").items()
    }
    roofs = {**_PEAKS, **tensors}
    wanted = [metric for _, _, names in roofs.values() for metric in names]
    values = wide(
        launches, counters, [*wanted, *(metric for names in _CLOCKS.values() for metric in names)]
    )

    def recorded(names: tuple[str, ...]) -> pd.Series:
        return values[list(names)].bfill(axis=1).iloc[:, 0]  # the first that was, launch by launch

    clocks = {unit: recorded(names) for unit, names in _CLOCKS.items()}
    clocks["sm"] = clocks["sm"].fillna(launches["clock_hz"])
    peaks = {roof: by * recorded(names) * clocks[unit] for roof, (unit, by, names) in roofs.items()}
    keyed = pd.DataFrame({"rank": launches["rank"], "gpu": launches["gpu"], **peaks})
    long = keyed.melt(["rank", "gpu"], var_name="roof", value_name="peak")
    grouped = (
        long[long["peak"] > 0]
        .groupby(["rank", "gpu", "roof"])["peak"]
        .agg(["max", "min", "size"])
        .reset_index()
    )
    table = grouped[["rank", "gpu", "roof"]].assign(
        peak=grouped["max"], count=grouped["size"], source=MEASURED
    )
    return table.assign(spread_frac=1 - grouped["min"] / grouped["max"])


def _refuse(devices: pd.DataFrame, ceilings: pd.DataFrame) -> None:
    """Raise PerfkitError naming every device that lacks a roof of arithmetic or of memory."""
    lacking = []
    for rank, gpu in devices.itertuples(index=False):
        roofs = set(ceilings["roof"][(ceilings["rank"] == rank) & (ceilings["gpu"] == gpu)])
        device = f"GPU {gpu}" if gpu >= 0 else "the GPU"
        for what, there in (("FLOP/s", roofs - set(LEVELS)), ("DRAM bandwidth", roofs & {"dram"})):
            if not there:
                lacking.append(f"no peak {what} is known for {device} of rank {rank}")
    if lacking:
        raise PerfkitError(
            f"roofline: {'; '.join(lacking)}. Record with {RECORD}, or pass "
            "peaks=hardware.peaks(name of the GPU), or your own with hardware.load_peaks."
        )


def metrics(counters: pd.DataFrame, suffix: str = "") -> dict[str, tuple[str, ...]]:
    """Return precision -> the metrics whose sum counts its operations; `suffix` follows ``.sum`` in their names."""
    pattern = re.compile(_METRIC + re.escape(suffix))
    recorded = sorted(str(metric) for metric in COUNTERS.check(counters)["metric"].unique())
    matches = [match for metric in recorded if (match := pattern.fullmatch(metric))]
    results = {match["src"] for match in matches if match["dst"]}
    chosen: dict[str, tuple[str, ...]] = {}
    for source, target in dict.fromkeys((match["src"], match["dst"]) for match in matches):
        if target or source not in results:
            of_type = [
                match for match in matches if (match["src"], match["dst"]) == (source, target)
            ]
            # The first level that the report has of a type.
            levels = [
                [m for m in of_type if (bool(m["op"]), bool(m["sparsity"])) == level]
                for level in _ANSWERS
            ]
            for match in next(filter(None, levels), []):
                name = (
                    f"{source}_tensor"
                    + "_acc16" * (target == "fp16")
                    + "_sparse" * (match["sparsity"] == "on")
                )
                chosen[name] = (*chosen.get(name, ()), match[0])
    return chosen


def flops(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return `tensor_flops` of each launch split by precision, float64 columns; NaN in all where it was not counted."""
    counted = launches["tensor_flops"]
    parts = _parts(launches, counters)
    total = parts.sum(axis=1)
    split = parts.div(total.where(total > 0), axis=0).mul(counted, axis=0).fillna(0.0)
    # A kernel's name tells the type where no counter does: `tensor` if it tells none that has a
    # tensor peak.
    decoded = {
        name: f"{names.decode(str(name)).precision}_tensor"
        for name in launches["full_name"].cat.categories
    }
    known = {name: roof for name, roof in decoded.items() if roof in PRECISIONS}
    named = (
        launches["full_name"]
        .astype("object")
        .map(known)
        .fillna(UNKNOWN)
        .where(~(total > 0) & (counted > 0))
    )
    for precision in sorted(named.dropna().unique()):
        of_name = counted.where(named == precision, 0.0)
        split[precision] = of_name + split[precision] if precision in split else of_name
    return (
        split.where(counted.notna(), axis=0)
        if len(split.columns)
        else pd.DataFrame({UNKNOWN: counted})
    )


def _parts(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return counted operations, or operations per cycle where only these were recorded, per precision."""
    for suffix in ("", ".per_cycle_elapsed"):
        recorded = metrics(counters, suffix)
        if recorded:
            values = wide(
                launches, counters, [metric for each in recorded.values() for metric in each]
            ).fillna(0.0)
            return pd.DataFrame(
                {name: values[list(each)].sum(axis=1) for name, each in recorded.items()}
            )
    return pd.DataFrame(index=launches.index)


def points(
    launches: pd.DataFrame, counters: pd.DataFrame | None = None, *, by: str = "launch"
) -> pd.DataFrame:
    """Return performance and arithmetic intensity of each launch, or group of launches, per precision.

    A launch that computed in several precisions has a point in each, all with the whole launch's
    bytes and time; one that computed in none, or of which no FLOP were counted, has one row without
    precision. `counters` tell the types of tensor operations and the waves; without them names tell
    the types. `by` is "launch"; "name", "full_name": all launches of it on a GPU; "gpu": all
    launches of a GPU. Else ValueError. POINTS: `flops` above 0, or 0 (counted, none), or NaN (not
    counted). A sum with a part not measured is NaN.
    """
    if by not in BY:
        raise ValueError(f"by: {by!r} is not one of {list(BY)}")
    LAUNCHES.check(launches)
    counters = COUNTERS.given(counters)
    operations = launches[list(_FLOPS)].rename(columns=_FLOPS)
    operations = pd.concat([operations, flops(launches, counters)], axis=1)
    # A report prints waves with two decimals: of a small grid they are worked out, or known to be
    # few.
    waves = warps.occupancy(launches, counters)["waves"].fillna(
        wide(launches, counters, [_WAVES])[_WAVES]
    )
    measures = launches[[*_SUMS, "sm_frac", "memory_frac"]].assign(waves=waves.to_numpy())
    keys, group = numbered(launches, BY[by])
    # The keys of the groups, with the columns that they do not tell apart filled in.
    missing = pd.Series(pd.NA, index=keys.index, dtype="string")
    name, full = (
        keys[key].astype("string") if key in keys else missing for key in ("name", "full_name")
    )
    kernel = full.fillna(name)
    family = kernel.map({text: names.family(text) for text in kernel.dropna().unique()}).astype(
        "string"
    )
    named = keys[["rank", "gpu"]].assign(
        launch=keys.get("launch", -1), name=name.fillna("all kernels")
    )
    sums = pd.DataFrame({column: _sum(measures[column], group, len(keys)) for column in _SUMS})
    weighted = {
        column: _sum(measures[column] * measures["dur_ns"], group, len(keys)) for column in _MEANS
    }
    means = pd.DataFrame(weighted).div(sums["dur_ns"].where(sums["dur_ns"] > 0), axis=0)
    count = pd.Series(np.bincount(group, minlength=len(keys)), name="count")
    groups = pd.concat([named.assign(full_name=full, family=family), sums, means, count], axis=1)
    work = np.column_stack(
        [_sum(operations[name], group, len(keys)) for name in operations.columns]
    )
    # A row per group and precision with operations, and one for each group that has none.
    of, column = np.nonzero(work > 0)
    bare = np.flatnonzero(~(work > 0).any(axis=1))
    none = np.where(np.isnan(work[bare]).all(axis=1), np.nan, 0.0)
    precision = np.append(np.array(operations.columns, object)[column], np.full(len(bare), None))
    table = groups.iloc[np.append(of, bare)].reset_index(drop=True)
    table = table.assign(precision=precision, flops=np.append(work[of, column], none))
    for level in LEVELS:
        table[f"{level}_intensity"] = table["flops"] / table[f"{level}_bytes"]
    table["flops_per_s"] = table["flops"] / (table["dur_ns"].where(table["dur_ns"] > 0) / 1e9)
    return POINTS.make(table)


def _sum(values: pd.Series, group: Int, groups: int) -> Float:
    """Return the sum of each group; NaN if any part is."""
    return np.bincount(group, values.to_numpy("float64"), groups).astype(np.float64, copy=False)


def bound(points: pd.DataFrame, ceilings: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return what limits each point, its share of each roof, and the reason in a sentence.

    The vendor's rule on compute and memory throughput decides where both were recorded (see
    `speed_of_light`). Else the roof does: a share under 60 % is latency, else an intensity under
    the ridge is memory, else compute. A launch with several precisions gets one verdict, that of
    its point nearest to the roof. A launch with a point above 110 % of its roof is refused,
    whatever the throughputs say: its figures contradict each other. Without `ceilings` there are no
    shares, and only the vendor's rule can decide.

    The rows and columns of `points`, then, float64, NaN where not measured or refused: `ridge`
    FLOP/byte; `compute_share_frac` of the precision's peak; `dram_share_frac`, `l2_share_frac`,
    `l1_share_frac` of each level's bandwidth; `roof_share_frac`, performance over attainable
    performance min(peak, intensity x DRAM bandwidth), which is the larger of compute and dram. They
    are in 0..1.1; l2 and l1 are NaN above. `bound` category, one of BOUNDS; `rule` category: speed
    of light, roofline, or missing; `reason` string. Source: Nsight Compute, rule SOLBottleneck; for
    the roof see the module.
    """
    table = pd.concat([POINTS.check(points), _shares(points, ceilings)], axis=1)
    launch = table.groupby(
        POINTS.column_names[:5], observed=True, dropna=False, sort=False
    ).ngroup()
    over = table[["compute_share_frac", "dram_share_frac"]].max(axis=1)
    refused = _of_launch(over > REFUSED_ABOVE, launch)
    vendor = speed_of_light(table["sm_frac"], table["memory_frac"], table["waves"])
    verdict = vendor.where(vendor != "not measured", _by_roof(table, launch)).mask(
        refused, "refused"
    )
    rule = pd.Series("speed of light", table.index).where(vendor != "not measured", "roofline")
    measured = ceilings is not None and bool((ceilings["count"] > 0).any())
    nearest = table["roof_share_frac"] == table["roof_share_frac"].groupby(launch).transform("max")
    reasons = {"refused": refusal, "not measured": unmeasured}
    by_rule = {"speed of light": speed_of_light_reason, "roofline": roofline_reason}
    rows = table.assign(verdict=verdict, rule=rule, measured=measured, nearest=nearest).to_dict(
        "records"
    )
    return table.assign(
        **{
            name: table[name].mask(refused | (table[name] > REFUSED_ABOVE))
            for name in (*_SHARES, "roof_share_frac")
        },
        bound=pd.Categorical(verdict, BOUNDS),
        rule=rule.mask(verdict.isin(["refused", "not measured"])).astype("category"),
        reason=pd.array(
            [reasons.get(row["verdict"], by_rule[row["rule"]])(row) for row in rows], "string"
        ),
    )


def speed_of_light(sm_frac: pd.Series, memory_frac: pd.Series, waves: pd.Series) -> pd.Series:
    """Return the verdict of the vendor's rule on compute and memory throughput, "not measured" where one is NaN.

    Both at 90 % or above: balanced; the vendor names the larger, but a matrix product that keeps
    the tensor cores busy keeps the L1 cache as busy. One at 80 % or above: the larger names the
    bound. Else one at 60 % or above: the larger names it if it leads by 10 points, balanced
    otherwise. Both under 60 %: latency, or small_grid where the grid fills the GPU less than once
    (`waves` below 1; NaN, not recorded, counts as one that does).

    >>> column = pd.Series
    >>> speed_of_light(column([0.78, 0.2, 0.2]), column([0.46, 0.3, 0.3]), column([9.0, 2.0, 0.5])).tolist()
    ['compute', 'latency', 'small_grid']
    """
    # Rounded to what the reports print, so that 0.7 - 0.6 is the ten points it is.
    lead = (sm_frac - memory_frac).round(9)
    top = np.fmax(sm_frac, memory_frac)
    larger = np.select([lead > 0, lead < 0], ["compute", "memory"], "balanced")
    clear = np.where(lead.abs() >= APART, larger, "balanced")
    waiting = np.where(waves < 1, "small_grid", "latency")
    tiers = {"not measured": lead.isna(), "balanced": np.fmin(sm_frac, memory_frac) >= FULL}
    chosen = np.select(
        [*tiers.values(), top >= HIGH, top >= BUSY], [*tiers, larger, clear], waiting
    )
    return pd.Series(chosen, sm_frac.index, dtype=object)


def _shares(points: pd.DataFrame, ceilings: pd.DataFrame | None) -> pd.DataFrame:
    """Return the ridge and the share of every roof for each point."""
    roofs = CEILINGS.given(ceilings)
    precision = points["precision"].astype(object)
    peak = _peak(points, precision, roofs, "flops_per_s")
    # FP16 accumulation has a roof of its own on some GPUs; elsewhere that of FP32 accumulation is
    # the same.
    peak = peak.fillna(
        _peak(points, precision.astype("string").str.removesuffix("_acc16"), roofs, "flops_per_s")
    )
    seconds = points["dur_ns"].where(points["dur_ns"] > 0) / 1e9
    bandwidth = {
        level: _peak(points, pd.Series(level, points.index), roofs, "bytes_per_s")
        for level in LEVELS
    }
    # No operations are 0 of any peak, if the GPU's roofs are known at all.
    nothing = (points["flops"] == 0) & bandwidth["dram"].notna()
    shares = {"compute_share_frac": (points["flops_per_s"] / peak).mask(nothing, 0.0)}
    shares |= {
        f"{level}_share_frac": points[f"{level}_bytes"] / seconds / bandwidth[level]
        for level in LEVELS
    }
    nearest = np.fmax(shares["compute_share_frac"], shares["dram_share_frac"])
    return pd.DataFrame({"ridge": peak / bandwidth["dram"], **shares, "roof_share_frac": nearest})


def _peak(points: pd.DataFrame, roof: pd.Series, roofs: pd.DataFrame, unit: str) -> pd.Series:
    """Return the peak of the named roof of each point's device, NaN where there is none."""
    peaks = roofs.set_index([roofs["rank"], roofs["gpu"], roofs["roof"].astype(object)])[unit]
    wanted = pd.MultiIndex.from_arrays([points["rank"], points["gpu"], roof.astype(object)])
    return pd.Series(peaks.reindex(wanted).to_numpy("float64"), points.index)


def _of_launch(flag: pd.Series, launch: pd.Series) -> pd.Series:
    """Return whether any point of the same launch has the flag."""
    return flag.groupby(launch).transform("any")


def _by_roof(table: pd.DataFrame, launch: pd.Series) -> pd.Series:
    """Return the verdict of the roof; it needs both shares unless the one that is known is high."""
    share, best = (
        table["roof_share_frac"],
        table["roof_share_frac"].groupby(launch).transform("max"),
    )
    memory = table["dram_share_frac"] > table["compute_share_frac"].fillna(0.0)
    at_memory = _of_launch(memory & (share == best), launch)
    complete = ~_of_launch(
        table[["compute_share_frac", "dram_share_frac"]].isna().any(axis=1), launch
    )
    chosen = np.select(
        [best.isna() | (best < LATENCY_BELOW) & ~complete, best < LATENCY_BELOW, at_memory],
        ["not measured", "latency", "memory"],
        "compute",
    )
    return pd.Series(chosen, table.index, dtype=object)


def speed_of_light_reason(row: Row) -> str:
    """Return the sentence for a verdict of the vendor's rule; `row` has verdict, sm_frac, memory_frac and waves."""
    sm, memory = percent(row["sm_frac"]), percent(row["memory_frac"])
    both = f"compute throughput is {sm} and memory throughput {memory} of its peak"
    waves = number(row["waves"]) if row["waves"] > 0 else "under 0.01"
    sentence = {
        "compute": f"Arithmetic limits it: {both}.",
        "memory": f"Memory limits it: {both}.",
        "balanced": f"Neither leads by 10 points: {both}.",
        "latency": f"It waits: {both}, both under 60 %, though the grid fills the GPU.",
        "small_grid": f"The grid has too few blocks to fill the GPU ({waves} waves): {both}.",
    }[row["verdict"]]
    if row["verdict"] == "latency" and pd.isna(row["waves"]):
        sentence = (
            f"It waits: {both}, both under 60 %; whether the grid fills the GPU was not recorded."
        )
    return sentence + (
        f" Its FLOP were not counted: record with {RECORD}." if pd.isna(row["flops"]) else ""
    )


def roofline_reason(row: Row) -> str:
    """Return the sentence for a verdict of the roof; `row` has verdict, shares, dram_intensity and ridge."""
    memory = percent(row["dram_share_frac"])
    if pd.isna(row["flops"]):
        reached = (
            f"it reaches {memory} of the DRAM bandwidth; its FLOP were not counted (record with "
            f"{RECORD})"
        )
    else:
        reached = (
            f"it reaches {percent(row['compute_share_frac'])} of the peak and {memory} of the DRAM "
            "bandwidth"
        )
    place = ""
    if pd.notna(row["dram_intensity"]) and pd.notna(row["ridge"]):
        side = "left" if row["dram_intensity"] < row["ridge"] else "right"
        place = (
            f", {side} of the ridge ({number(row['dram_intensity'])} and {number(row['ridge'])} "
            "FLOP/byte)"
        )
    other = "" if row["nearest"] else "in another precision "
    return {
        "compute": f"Arithmetic {other}limits it: {reached}{place}.",
        "memory": f"Memory limits it: {reached}{place}.",
        "latency": f"It waits for neither: {reached}{place}, under 60 % of its roof.",
    }[row["verdict"]]


def refusal(row: Row) -> str:
    """Return why a launch above its roof is refused; the cause depends on the roof and on how it is known."""
    arithmetic, memory = row["compute_share_frac"], row["dram_share_frac"]
    what, share = ("peak", arithmetic) if not arithmetic < memory else ("DRAM bandwidth", memory)
    reach = f"Refused: it would reach {percent(share)} of the {what}"
    over = reach if share > REFUSED_ABOVE else "Refused with its other precision"
    causes = (
        ["operations counted with sparsity against a dense peak"]
        if "tensor" in str(row["precision"])
        else []
    )
    if row["measured"]:
        causes.append(
            "the clock changed between the profiler's passes (record with `--clock-control base`)"
        )
    else:
        causes.append(
            "the peaks are another GPU's, or its clock was above the data sheet's boost clock"
        )
    return f"{over}. Likely cause: {'; or '.join(causes)}."


def unmeasured(row: Row) -> str:
    """Return what is lacking for a verdict and how to record it."""
    if pd.isna(row["flops"]):
        return (
            "Not measured: neither its FLOP nor its throughputs were recorded. Record with "
            f"{RECORD}."
        )
    if pd.isna(row["dram_bytes"]):
        return f"Not measured: its DRAM bytes were not counted. Record with {RECORD}."
    precision = "its precision" if pd.isna(row["precision"]) else row["precision"]
    return f"Not measured: no roof of {precision} is known. Pass ceilings, or peaks that have one."
