"""Does each kernel meet the targets that performance guides give for its counters?

Conventions
-----------
The targets are those of the performance guide's metric table: SM throughput above 80 %, tensor-core use above
85 % for matrix products, DRAM throughput above 75 % if memory limits the kernel, L2 hit rate above 50 %,
occupancy above 50 %. For stalls the guide says "minimise"; the target here is the vendor's: none above 30 %
of the warps' latency. They are habits, not laws: a kernel at its roof is good whatever it misses.

Functions
---------
check    the six checks of each launch: met, missed, not measured
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names
from perfkit.analysis import stalls as stalling
from perfkit.analysis.counters import Float, wide
from perfkit.analysis.roofline import speed_of_light
from perfkit.errors import PerfkitError
from perfkit.tables import STALLS

VERDICTS = ("met", "missed", "not applicable", "not measured")
TARGETS = {
    "sm_throughput": 0.80,
    "tensor_use": 0.85,
    "dram_throughput": 0.75,
    "l2_hit": 0.50,
    "occupancy": 0.50,
    "largest_stall": 0.30,  # CPIStall of Nsight Compute
}
NAMES = list(TARGETS)
RECORD = {
    "sm_throughput": "ncu --section SpeedOfLight",
    "tensor_use": "ncu --section ComputeWorkloadAnalysis",
    "dram_throughput": "ncu --section SpeedOfLight",
    "l2_hit": "ncu --section MemoryWorkloadAnalysis",
    "occupancy": "ncu --section Occupancy",
    "largest_stall": "ncu --section WarpStateStats",
}
MATRIX_PRODUCTS = ("gemm", "convolution")

_L2_HIT = "lts__t_sector_hit_rate.pct"
_WAVES = "launch__waves_per_multiprocessor"
_PLAUSIBLE = 1.1  # counters of several passes may pass 100 % by a little

Bools = NDArray[np.bool_]
Objects = NDArray[np.object_]


def check(launches: pd.DataFrame, counters: pd.DataFrame, stalls: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return six checks of each launch against the targets of the performance guide.

    Tensor use applies to matrix products (by name), DRAM throughput to launches that the vendor's rule calls
    memory-bound; elsewhere the verdict is "not applicable" and the value is shown all the same.

    Parameters
    ----------
    launches
        LAUNCHES; may be empty.
    counters
        COUNTERS; may be empty.
    stalls
        STALLS, or None for none.

    Returns
    -------
    pandas.DataFrame
        Six rows per launch, in the order of TARGETS: `rank`, `gpu` int32, `launch` int64, `name` category, `check`
        category, one of TARGETS; `value_frac` float64 in 0..1.1, NaN not measured; `target_frac` float64, a lower
        bound, for largest_stall an upper one; `verdict` category, one of VERDICTS; `detail` string: the stall that
        is largest, why a check does not apply, or the command that measures it; empty otherwise.

    Raises
    ------
    SchemaError
        If a table is not of its kind.
    PerfkitError
        If a value lies outside 0..1.1.

    References
    ----------
    Performance guide, table "Key Nsight Compute metrics"; stalls: Nsight Compute, rule CPIStall.

    Examples
    --------
    >>> from perfkit.tables import COUNTERS, LAUNCHES
    >>> check(LAUNCHES.empty(), COUNTERS.empty()).columns.tolist()[3:8]
    ['name', 'check', 'value_frac', 'target_frac', 'verdict']
    """
    found = wide(launches, counters, [_L2_HIT, _WAVES])
    share, reason = _largest(launches, STALLS.empty() if stalls is None else stalls)
    columns = ["sm_frac", "tensor_frac", "dram_frac", "achieved_occupancy_frac"]
    sm, tensor, dram, occupancy = (launches[column].to_numpy("float64") for column in columns)
    value = np.column_stack([sm, tensor, dram, found[_L2_HIT].to_numpy() / 100, occupancy, share])
    _plausible(value, launches["launch"].to_numpy())
    limit = speed_of_light(launches["sm_frac"], launches["memory_frac"], found[_WAVES]).to_numpy()
    applies = _applies(launches, limit)
    unknown = np.isnan(value)
    unknown[:, NAMES.index("dram_throughput")] |= limit == "not measured"
    target = np.tile(list(TARGETS.values()), (len(value), 1))
    good = np.where(np.array(NAMES) == "largest_stall", value <= target, value > target)
    verdict = np.select([~applies, unknown, good], ["not applicable", "not measured", "met"], "missed")
    table = launches[["rank", "gpu", "launch", "name"]].loc[launches.index.repeat(len(NAMES))].reset_index(drop=True)
    return table.assign(
        check=pd.Categorical(NAMES * len(value), NAMES),
        value_frac=value.ravel(),
        target_frac=target.ravel(),
        verdict=pd.Categorical(verdict.ravel(), VERDICTS),
        detail=pd.array(_details(verdict, limit, reason).ravel(), "string"),
    )


def _largest(launches: pd.DataFrame, stalls: pd.DataFrame) -> tuple[Float, Objects]:
    """Return share and name of the largest stall of each launch, NaN and empty where none was recorded."""
    rows = pd.MultiIndex.from_frame(launches[["rank", "launch"]])
    found = stalling.main(stalls).set_index(["rank", "launch"]).reindex(rows)
    return found["share_frac"].to_numpy("float64"), found["reason"].astype("object").fillna("").to_numpy()


def _applies(launches: pd.DataFrame, limit: Objects) -> Bools:
    """Return for each launch and check whether its target is meant for that launch."""
    family = {name: names.family(str(name)) for name in launches["full_name"].cat.categories}
    applies = np.ones((len(launches), len(NAMES)), bool)
    product = launches["full_name"].astype("object").map(family).isin(MATRIX_PRODUCTS)
    applies[:, NAMES.index("tensor_use")] = product.to_numpy()
    applies[:, NAMES.index("dram_throughput")] = np.isin(limit.astype(str), ["memory", "not measured"])
    return applies


def _details(verdict: NDArray[np.str_], limit: Objects, reason: Objects) -> Objects:
    """Return what a person asks next: which stall, why not, or how to measure it."""
    said = np.where(verdict == "not measured", [f"record with `{command}`" for command in RECORD.values()], "")
    said = said.astype(object)
    stall, tensor, dram = (NAMES.index(name) for name in ("largest_stall", "tensor_use", "dram_throughput"))
    said[:, stall] = np.where(reason == "", said[:, stall], reason)
    apart = verdict == "not applicable"
    said[apart[:, tensor], tensor] = "its name does not say matrix product"
    said[apart[:, dram], dram] = [f"not limited by memory: {one.replace('_', ' ')}" for one in limit[apart[:, dram]]]
    return said


def _plausible(value: Float, launch: NDArray[np.int64]) -> None:
    """Raise PerfkitError naming the first value outside 0..1.1."""
    wrong = np.argwhere((value < 0) | (value > _PLAUSIBLE))
    if len(wrong):
        row, column = wrong[0]
        raise PerfkitError(
            f"launch {launch[row]}: {NAMES[column]} is {value[row, column]:g}, not a fraction of its peak. "
            "Record the counters again."
        )
