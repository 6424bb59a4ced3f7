"""Where does each kernel lie: operations over time against operations per byte.

Functions
---------
points   FLOP, bytes, time, performance and arithmetic intensity per launch and precision
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names
from perfkit.analysis import occupancy
from perfkit.analysis.counters import wide
from perfkit.analysis.roofline import tensor
from perfkit.analysis.statistics import numbered
from perfkit.schema import Column, Table
from perfkit.tables import COUNTERS, DUR, GPU, LAUNCHES, RANK

Floats = NDArray[np.float64]

POINTS = Table(
    "POINTS",
    "a launch, or all launches of a kernel, in one precision",
    (
        RANK,
        GPU,
        Column("launch", "int64", "number of the launch in the report; -1 for several together"),
        Column("name", "category", "short name; 'all kernels' for a whole GPU"),
        Column("full_name", "category", "demangled name; missing for several together"),
        Column("family", "category", "kind of work, from the name; missing for a whole GPU"),
        Column("precision", "category", "fp64, fp32, fp16, fp16_tensor, ...; missing where no FLOP was counted"),
        Column("count", "int64", "launches"),
        Column(DUR.name, "float64", "sum of the launches' durations, ns"),
        Column("flops", "float64", "operations in this precision, FLOP; NaN not measured"),
        Column(
            "dram_bytes", "float64", "device-memory bytes of the launches, all precisions together; NaN not measured"
        ),
        Column("l2_bytes", "float64", "bytes through the L2 cache; NaN not measured"),
        Column("l1_bytes", "float64", "bytes through the L1 cache; NaN not measured"),
        Column("flops_per_s", "float64", "flops over dur_ns, FLOP/s"),
        Column("dram_intensity", "float64", "flops over dram_bytes, FLOP/byte; infinite where no byte moved"),
        Column("l2_intensity", "float64", "flops over l2_bytes, FLOP/byte"),
        Column("l1_intensity", "float64", "flops over l1_bytes, FLOP/byte"),
        Column("sm_frac", "float64", "compute throughput over its peak; mean over time of several launches"),
        Column("memory_frac", "float64", "memory throughput over its peak; mean over time of several launches"),
        Column("waves", "float64", "times the grid fills the GPU; mean over time of several launches"),
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
_LEVELS = ("dram", "l2", "l1")
_SUMS = ["dur_ns", *(f"{level}_bytes" for level in _LEVELS)]
_MEANS = ["sm_frac", "memory_frac", "waves"]


def points(launches: pd.DataFrame, counters: pd.DataFrame | None = None, *, by: str = "launch") -> pd.DataFrame:
    """Return performance and arithmetic intensity of each launch, or group of launches, per precision.

    flops_per_s = sum of FLOP / sum of time, intensity = sum of FLOP / sum of bytes. A launch that computed in
    several precisions has a point in each, all with the whole launch's bytes and time; one that computed in none,
    or of which no FLOP were counted, has one row without precision.

    Parameters
    ----------
    launches
        LAUNCHES; may be empty.
    counters
        COUNTERS, for the types of tensor operations and the waves; without it names tell the types.
    by
        "launch"; "name", "full_name": all launches of it on a GPU; "gpu": all launches of a GPU.

    Returns
    -------
    pandas.DataFrame
        POINTS: `flops` above 0, or 0 (counted, none), or NaN (not counted); `dur_ns` ns; bytes; `flops_per_s`;
        intensities in FLOP/byte. A sum of which one part was not measured is NaN.

    Raises
    ------
    SchemaError
        If a table is not of its kind.
    ValueError
        If `by` is not one of the four.

    References
    ----------
    Yang, Kurth, Williams: Hierarchical roofline analysis for GPUs, 2020.

    Examples
    --------
    >>> points(LAUNCHES.empty()).columns.tolist()[5:10]
    ['family', 'precision', 'count', 'dur_ns', 'flops']
    """
    if by not in BY:
        raise ValueError(f"by: {by!r} is not one of {list(BY)}")
    LAUNCHES.check(launches)
    counters = COUNTERS.empty() if counters is None else counters
    operations = launches[list(_FLOPS)].rename(columns=_FLOPS)
    operations = pd.concat([operations, tensor.flops(launches, counters)], axis=1)
    # A report prints waves with two decimals: of a small grid they are worked out, or known to be few.
    waves = occupancy.limits(launches, counters)["waves"].fillna(wide(launches, counters, [_WAVES])[_WAVES])
    measures = launches[[*_SUMS, "sm_frac", "memory_frac"]].assign(waves=waves.to_numpy())
    keys, group = numbered(launches, BY[by])
    groups = pd.concat([_named(keys), _grouped(measures, group, len(keys))], axis=1)
    flops = np.column_stack([_sum(operations[name], group, len(keys)) for name in operations.columns])
    return POINTS.make(_divided(_per_precision(groups, flops, operations.columns.tolist())))


def _named(keys: pd.DataFrame) -> pd.DataFrame:
    """Return the keys of the groups with the columns that they do not tell apart filled in."""
    missing = pd.Series(pd.NA, index=keys.index, dtype="string")
    name = keys["name"].astype("string") if "name" in keys else missing
    full = keys["full_name"].astype("string") if "full_name" in keys else missing
    told = full.fillna(name)
    family = told.map({text: names.family(text) for text in told.dropna().unique()}).astype("string")
    launch = keys.get("launch", -1)
    return keys[["rank", "gpu"]].assign(launch=launch, name=name.fillna("all kernels"), full_name=full, family=family)


def _sum(values: pd.Series, group: NDArray[np.int64], groups: int) -> Floats:
    """Return the sum of each group; NaN if any part is."""
    return np.bincount(group, values.to_numpy("float64"), groups).astype(np.float64, copy=False)


def _grouped(measures: pd.DataFrame, group: NDArray[np.int64], groups: int) -> pd.DataFrame:
    sums = pd.DataFrame({name: _sum(measures[name], group, groups) for name in _SUMS})
    weighted = {name: _sum(measures[name] * measures["dur_ns"], group, groups) for name in _MEANS}
    means = pd.DataFrame(weighted).div(sums["dur_ns"].where(sums["dur_ns"] > 0), axis=0)
    return pd.concat([sums, means, pd.Series(np.bincount(group, minlength=groups), name="count")], axis=1)


def _per_precision(groups: pd.DataFrame, flops: Floats, precisions: list[str]) -> pd.DataFrame:
    """Return a row per group and precision with operations, and one for each group that has none."""
    group, column = np.nonzero(flops > 0)
    bare = np.flatnonzero(~(flops > 0).any(axis=1))
    none = np.where(np.isnan(flops[bare]).all(axis=1), np.nan, 0.0)
    rows = groups.iloc[np.append(group, bare)].reset_index(drop=True)
    named = np.append(np.array(precisions, object)[column], np.full(len(bare), None))
    return rows.assign(precision=named, flops=np.append(flops[group, column], none))


def _divided(table: pd.DataFrame) -> pd.DataFrame:
    """Add performance and intensities to `table`, which is this module's own."""
    for level in _LEVELS:
        table[f"{level}_intensity"] = table["flops"] / table[f"{level}_bytes"]
    table["flops_per_s"] = table["flops"] / (table["dur_ns"].where(table["dur_ns"] > 0) / 1e9)
    return table
