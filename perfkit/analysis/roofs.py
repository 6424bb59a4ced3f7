"""What could the GPU do: peaks and bandwidths of a data sheet, or measured in the report itself.

Conventions
-----------
``sm__ops_path_tensor[_op_<instruction>]_src_<type>[_dst_<type>][_sparsity_<on|off>]`` count operations. They are
hierarchical: those of one instruction kind and those of operands without a result are parts and sums of the others,
and no operation is counted twice. A precision is named by its operands; `_acc16` says that it accumulates in FP16,
`_sparse` that 2:4 sparsity was on: these have roofs of their own. Where no such counter was recorded the
kernel's name tells the type; where it does not, the type is `tensor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from perfkit import names
from perfkit.analysis.kernels import wide
from perfkit.errors import PerfkitError
from perfkit.hardware import PRECISIONS, Peaks
from perfkit.schema import Column, Table
from perfkit.tables import COUNTERS, GPU, LAUNCHES, RANK

UNKNOWN = "tensor"
_METRIC = (
    r"sm__ops_path_tensor(?P<op>_op_[a-z]+)?_src_(?P<src>[a-z0-9]+)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)
# Which counters of a type stand for all of it: the sum over instruction kinds, then the split by sparsity.
_ANSWERS = ((False, True), (False, False), (True, True), (True, False))
CEILINGS = Table(
    "CEILINGS",
    "a roof of a device: a precision or a memory level",
    (
        RANK,
        GPU,
        Column("roof", "category", "fp64, fp32, fp16, fp16_tensor, ..., or dram, l2, l1"),
        Column("flops_per_s", "float64", "peak of a precision, FLOP/s; NaN for a memory level"),
        Column("bytes_per_s", "float64", "peak of a memory level, bytes/s; NaN for a precision"),
        Column("ridge", "float64", "peak over DRAM bandwidth, FLOP/byte; NaN for a memory level"),
        Column("count", "int64", "launches it was measured in; 0 for a data sheet"),
        Column("spread_frac", "float64", "(highest - lowest) / highest over these launches; NaN for a data sheet"),
        Column("source", "string", "where it comes from"),
    ),
    ("rank", "gpu", "roof"),
)
LEVELS = ("dram", "l2", "l1")
RECORD = "`ncu --set full --section SpeedOfLight_HierarchicalTensorRooflineChart`"
MEASURED = "measured in the report: peak sustained x clock, the highest over the launches"
_OP = "sm__sass_thread_inst_executed_op_{}fma_pred_on.sum.peak_sustained"
_CLOCKS = {
    "sm": ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
    "dram": ("dram__cycles_elapsed.avg.per_second",),
    "lts": ("lts__cycles_elapsed.avg.per_second",),
    "l1tex": ("l1tex__cycles_elapsed.avg.per_second",),
}
_L1 = "l1tex__lsu_writeback_active{}.sum.peak_sustained"
# Unit whose clock counts, what one event is worth, and the metric; of several the first that was recorded.
# A half-precision instruction works on two lanes: its multiply-add is 4 FLOP.
_PEAKS = {
    "fp64": ("sm", 2, (_OP.format("d"),)),
    "fp32": ("sm", 2, (_OP.format("f"),)),
    "fp16": ("sm", 4, (_OP.format("h"),)),
    "dram": ("dram", 1, ("dram__bytes.sum.peak_sustained",)),
    "l2": ("lts", 32, ("lts__lts2xbar_cycles_active.sum.peak_sustained",)),
    "l1": ("l1tex", 128, (_L1.format("_mem_lgds"), _L1.format("_mem_lg"), _L1.format(""))),
}


def ceilings(
    launches: pd.DataFrame, counters: pd.DataFrame | None = None, *, peaks: Peaks | None = None
) -> pd.DataFrame:
    """Return the roofs of every device that ran `launches`, CEILINGS: of `peaks` if given, else those of the report.

    A measured roof is the peak per cycle times the clock of a launch, the highest over the launches of the
    device, so that no launch lies above it because its own clock was higher. Measured peaks are at the
    profiler's clock, locked to base unless it was told otherwise; those of a data sheet are at boost clock.

    Parameters
    ----------
    counters
        COUNTERS with the peaks of the report's roofline sections; not used when `peaks` is given.
    peaks
        Peaks of the GPU, such as ``hardware.peaks(name)``; data sheets have no roof for l2 and l1.

    Raises
    ------
    PerfkitError
        If a device has no peak of any precision or no DRAM bandwidth: there is no roof then, and no default.

    References
    ----------
    Metrics and factors are those of the vendor's roofline sections (Nsight Compute, SpeedOfLight_*Roofline*.section).
    """
    devices = LAUNCHES.check(launches)[["rank", "gpu"]].drop_duplicates()
    if peaks is not None:
        roofs = devices.merge(_sheet(peaks), how="cross")
    else:
        roofs = _measured(launches, COUNTERS.empty() if counters is None else counters)
    _refuse(devices, roofs)
    is_memory = roofs["roof"].isin(LEVELS)
    bandwidth = roofs[roofs["roof"] == "dram"].set_index(["rank", "gpu"])["peak"]
    below = bandwidth.reindex(pd.MultiIndex.from_frame(roofs[["rank", "gpu"]])).to_numpy("float64")
    table = roofs.assign(flops_per_s=roofs["peak"].mask(is_memory), bytes_per_s=roofs["peak"].where(is_memory))
    return CEILINGS.make(table.assign(ridge=table["flops_per_s"] / below).drop(columns="peak"))


def _sheet(peaks: Peaks) -> pd.DataFrame:
    rows = {"dram": peaks.bandwidth(), **peaks.flops_per_s}
    source = f"dense peaks of {peaks.name}" + (f" ({peaks.as_of})" if peaks.as_of else "") + f": {peaks.source}"
    return pd.DataFrame(
        {"roof": list(rows), "peak": list(rows.values()), "count": 0, "spread_frac": float("nan"), "source": source}
    )


def _measured(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return the highest peak over the launches of each device and roof."""
    tensors = {name: ("sm", 1, metrics) for name, metrics in metrics(counters, ".peak_sustained").items()}
    roofs = {**_PEAKS, **tensors}
    wanted = [metric for _, _, names in roofs.values() for metric in names]
    values = wide(launches, counters, [*wanted, *(name for names in _CLOCKS.values() for name in names)])
    clocks = {unit: _first(values, names) for unit, names in _CLOCKS.items()}
    clocks["sm"] = clocks["sm"].fillna(launches["clock_hz"])
    peaks = {roof: by * _first(values, names) * clocks[unit] for roof, (unit, by, names) in roofs.items()}
    keyed = pd.DataFrame({"rank": launches["rank"], "gpu": launches["gpu"], **peaks})
    long = keyed.melt(["rank", "gpu"], var_name="roof", value_name="peak")
    grouped = long[long["peak"] > 0].groupby(["rank", "gpu", "roof"])["peak"].agg(["max", "min", "size"]).reset_index()
    table = grouped[["rank", "gpu", "roof"]].assign(peak=grouped["max"], count=grouped["size"], source=MEASURED)
    return table.assign(spread_frac=1 - grouped["min"] / grouped["max"])


def _first(values: pd.DataFrame, names: tuple[str, ...]) -> pd.Series:
    """Return the first of several metrics that was recorded, launch by launch."""
    return values[list(names)].bfill(axis=1).iloc[:, 0]


def _refuse(devices: pd.DataFrame, roofs: pd.DataFrame) -> None:
    """Raise PerfkitError naming every device that lacks a roof of arithmetic or of memory."""
    lacking = list(_lacking(devices, roofs))
    if lacking:
        raise PerfkitError(
            f"roofline: {'; '.join(lacking)}. Record with {RECORD}, or pass peaks=hardware.peaks(name of the GPU), "
            "or your own with hardware.load_peaks."
        )


def _lacking(devices: pd.DataFrame, found: pd.DataFrame) -> Iterator[str]:
    for rank, gpu in devices.itertuples(index=False):
        roofs = set(found["roof"][(found["rank"] == rank) & (found["gpu"] == gpu)])
        for what, there in (("FLOP/s", roofs - set(LEVELS)), ("DRAM bandwidth", roofs & {"dram"})):
            if not there:
                device = f"GPU {gpu}" if gpu >= 0 else "the GPU"
                yield f"no peak {what} is known for {device} of rank {rank}"


def metrics(counters: pd.DataFrame, suffix: str = "") -> dict[str, tuple[str, ...]]:
    """Return precision -> the metrics whose sum counts its operations; `suffix` follows ``.sum`` in their names."""
    pattern = re.compile(_METRIC + re.escape(suffix))
    recorded = sorted(str(metric) for metric in COUNTERS.check(counters)["metric"].unique())
    matches = [match for metric in recorded if (match := pattern.fullmatch(metric))]
    results = {match["src"] for match in matches if match["dst"]}
    chosen: dict[str, tuple[str, ...]] = {}
    for source, target in dict.fromkeys((match["src"], match["dst"]) for match in matches):
        if target or source not in results:
            of_type = [match for match in matches if (match["src"], match["dst"]) == (source, target)]
            for name, metric in _level(of_type, f"{source}_tensor" + ("_acc16" if target == "fp16" else "")):
                chosen[name] = (*chosen.get(name, ()), metric)
    return chosen


def _level(of_type: list[re.Match[str]], precision: str) -> Iterator[tuple[str, str]]:
    """Return precision and metric of the first level that the report has of a type."""
    levels = {level: [m for m in of_type if (bool(m["op"]), bool(m["sparsity"])) == level] for level in _ANSWERS}
    for match in next((found for found in levels.values() if found), []):
        yield precision + ("_sparse" if match["sparsity"] == "on" else ""), match[0]


def flops(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return `tensor_flops` of each launch split by precision: rows of `launches`, a float64 column per precision.

    A launch of which it was not counted is NaN in all columns; the columns of a row add up to its `tensor_flops`.
    """
    counted = launches["tensor_flops"]
    parts = _parts(launches, counters)
    total = parts.sum(axis=1)
    split = parts.div(total.where(total > 0), axis=0).mul(counted, axis=0).fillna(0.0)
    named = _operand_precision(launches).where(~(total > 0) & (counted > 0))
    for precision in sorted(named.dropna().unique()):
        of_name = counted.where(named == precision, 0.0)
        split[precision] = of_name + split[precision] if precision in split else of_name
    return split.where(counted.notna(), axis=0) if len(split.columns) else pd.DataFrame({UNKNOWN: counted})


def _parts(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return counted operations, or operations per cycle where only these were recorded, per precision."""
    for suffix in ("", ".per_cycle_elapsed"):
        recorded = metrics(counters, suffix)
        if recorded:
            values = wide(launches, counters, [metric for each in recorded.values() for metric in each]).fillna(0.0)
            return pd.DataFrame({name: values[list(each)].sum(axis=1) for name, each in recorded.items()})
    return pd.DataFrame(index=launches.index)


def _operand_precision(launches: pd.DataFrame) -> pd.Series:
    """Return the precision that each kernel's name tells, `tensor` where it tells none that has a tensor peak."""
    decoded = {name: f"{names.decode(str(name)).precision}_tensor" for name in launches["full_name"].cat.categories}
    precision = {name: roof if roof in PRECISIONS else UNKNOWN for name, roof in decoded.items()}
    return launches["full_name"].astype("object").map(precision).fillna(UNKNOWN)
