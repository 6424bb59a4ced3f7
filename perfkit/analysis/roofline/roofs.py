"""What could the GPU do: peaks and bandwidths of a data sheet, or measured in the report itself.

Functions
---------
ceilings   the roofs per device
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis.counters import wide
from perfkit.analysis.roofline import tensor
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks
from perfkit.schema import Column, Table
from perfkit.tables import COUNTERS, GPU, LAUNCHES, RANK

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
    """Return the roofs of every device that ran `launches`: from `peaks` if given, else measured in the report.

    A measured roof is the peak per cycle times the clock of a launch, the highest over the launches of the
    device, so that no launch lies above it because its own clock was higher. Measured peaks are at the
    profiler's clock, locked to base unless it was told otherwise; those of a data sheet are at boost clock.

    Parameters
    ----------
    launches
        LAUNCHES; may be empty.
    counters
        COUNTERS with the peaks of the report's roofline sections; not used when `peaks` is given.
    peaks
        Peaks of the GPU, such as ``hardware.peaks(name)``; data sheets have no roof for l2 and l1.

    Returns
    -------
    pandas.DataFrame
        CEILINGS, one row per device and roof: `flops_per_s` or `bytes_per_s`, each NaN where the other is meant;
        `ridge` FLOP/byte, one per precision; `count`, `spread_frac` and `source` say how it is known.

    Raises
    ------
    SchemaError
        If a table is not of its kind.
    PerfkitError
        If a device has no peak of any precision or no DRAM bandwidth: there is no roof then, and no default.

    References
    ----------
    Metrics and factors are those of the vendor's roofline sections (Nsight Compute, SpeedOfLight_*Roofline*.section).

    Examples
    --------
    >>> ceilings(LAUNCHES.empty()).empty
    True
    """
    devices = LAUNCHES.check(launches)[["rank", "gpu"]].drop_duplicates()
    if peaks is not None:
        found = devices.merge(_sheet(peaks), how="cross")
    else:
        found = _measured(launches, COUNTERS.empty() if counters is None else counters)
    _refuse(devices, found)
    is_memory = found["roof"].isin(LEVELS)
    bandwidth = found[found["roof"] == "dram"].set_index(["rank", "gpu"])["peak"]
    below = bandwidth.reindex(pd.MultiIndex.from_frame(found[["rank", "gpu"]])).to_numpy("float64")
    table = found.assign(flops_per_s=found["peak"].mask(is_memory), bytes_per_s=found["peak"].where(is_memory))
    return CEILINGS.make(table.assign(ridge=table["flops_per_s"] / below).drop(columns="peak"))


def _sheet(peaks: Peaks) -> pd.DataFrame:
    rows = {"dram": peaks.bandwidth(), **peaks.flops_per_s}
    source = f"dense peaks of {peaks.name}" + (f" ({peaks.as_of})" if peaks.as_of else "") + f": {peaks.source}"
    return pd.DataFrame(
        {"roof": list(rows), "peak": list(rows.values()), "count": 0, "spread_frac": float("nan"), "source": source}
    )


def _measured(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return the highest peak over the launches of each device and roof."""
    tensors = {name: ("sm", 1, metrics) for name, metrics in tensor.metrics(counters, ".peak_sustained").items()}
    known = {**_PEAKS, **tensors}
    wanted = [metric for _, _, names in known.values() for metric in names]
    values = wide(launches, counters, [*wanted, *(name for names in _CLOCKS.values() for name in names)])
    clocks = {unit: _first(values, names) for unit, names in _CLOCKS.items()}
    clocks["sm"] = clocks["sm"].fillna(launches["clock_hz"])
    peaks = {roof: by * _first(values, names) * clocks[unit] for roof, (unit, by, names) in known.items()}
    keyed = pd.DataFrame({"rank": launches["rank"], "gpu": launches["gpu"], **peaks})
    long = keyed.melt(["rank", "gpu"], var_name="roof", value_name="peak")
    grouped = long[long["peak"] > 0].groupby(["rank", "gpu", "roof"])["peak"].agg(["max", "min", "size"]).reset_index()
    found = grouped[["rank", "gpu", "roof"]].assign(peak=grouped["max"], count=grouped["size"], source=MEASURED)
    return found.assign(spread_frac=1 - grouped["min"] / grouped["max"])


def _first(values: pd.DataFrame, names: tuple[str, ...]) -> pd.Series:
    """Return the first of several metrics that was recorded, launch by launch."""
    return values[list(names)].bfill(axis=1).iloc[:, 0]


def _refuse(devices: pd.DataFrame, found: pd.DataFrame) -> None:
    """Raise PerfkitError naming every device that lacks a roof of arithmetic or of memory."""
    lacking = list(_lacking(devices, found))
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
