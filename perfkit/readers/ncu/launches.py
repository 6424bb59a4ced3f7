"""What did each launch do, how fast, and how near to the peaks? LAUNCHES from the counters of a report.

Conventions
-----------
NaN is not measured, never zero. Bytes are those of `dram__bytes`, `lts__t_bytes` and `l1tex__t_bytes`, or
32 per sector; the L1 ones pass its tag stage (global, local, surface, texture), shared memory does not.

Functions
---------
table        LAUNCHES
gpus         device ordinal of each launch
dram_bytes   bytes read from and written to device memory
l1_bytes     bytes through the L1 cache
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names, tables
from perfkit.readers.ncu.counting import Values, count, durations, first
from perfkit.readers.ncu.operations import FLOPS, flops, tensor_activity, tensor_flops
from perfkit.readers.ncu.report import Report

SECTOR_BYTES = 32
DRAM_BYTES = (("dram__bytes_read", "dram__bytes_write"), ("dram__bytes_op_read", "dram__bytes_op_write"))
L1_SECTORS = [f"lsu_mem_{space}_op_{op}" for space in ("global", "local") for op in ("ld", "st")]
L1_RARE_SECTORS = [  # absent where the chip or the collected set has none
    *(f"lsu_mem_global_op_{op}" for op in ("atom", "red")),
    *(f"tex_mem_surface_op_{op}" for op in ("ld", "st", "atom", "red")),
    "tex_mem_texture",
]
FRACTIONS = {
    "achieved_occupancy_frac": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "theoretical_occupancy_frac": ("sm__maximum_warps_per_active_cycle_pct",),
    "sm_frac": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "memory_frac": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram_frac": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
}


def table(report: Report) -> pd.DataFrame:
    """Return LAUNCHES: one row per launch, numbered by its position in the file."""
    full_names = [launch.full_name for launch in report.launches]
    short = {name: names.short(name) for name in set(full_names)}
    frame = {
        "rank": 0,
        "gpu": gpus(report),
        "launch": np.arange(len(report.launches)),
        "name": pd.Categorical([short[name] for name in full_names]),
        "full_name": pd.Categorical(full_names),
        "grid_blocks": _sizes([launch.grid_blocks for launch in report.launches], report, "launch__grid_size"),
        "block_threads": _sizes([launch.block_threads for launch in report.launches], report, "launch__block_size"),
        "dur_ns": durations(report),
        "clock_hz": report.column(*(f"{unit}__cycles_elapsed.avg.per_second" for unit in ("sm", "gpc", "smsp"))),
        **{f"{precision}_flops": flops(report, precision) for precision in FLOPS},
        "tensor_flops": tensor_flops(report),
        "dram_bytes": dram_bytes(report),
        "l2_bytes": first(count(report, "lts__t_bytes"), SECTOR_BYTES * count(report, "lts__t_sectors")),
        "l1_bytes": l1_bytes(report),
        **{column: report.column(*metrics) / 100 for column, metrics in FRACTIONS.items()},
        "tensor_frac": tensor_activity(report),
    }
    return tables.LAUNCHES.make(pd.DataFrame(frame))


def gpus(report: Report) -> NDArray[np.int64]:
    """Return the device ordinal of each launch, -1 where the file does not say."""
    told = np.nan_to_num(report.column("launch__device_id", "device__attribute_device_index"), nan=-1)
    own = np.array([launch.gpu for launch in report.launches], np.int64)
    return np.where(own < 0, told.astype(np.int64), own)


def dram_bytes(report: Report) -> Values:
    """Return the bytes read from and written to device memory."""
    pairs = [count(report, read) + count(report, write) for read, write in DRAM_BYTES]
    sectors = count(report, "dram__sectors_read") + count(report, "dram__sectors_write")
    return first(*pairs, count(report, "dram__bytes"), SECTOR_BYTES * sectors)


def l1_bytes(report: Report) -> Values:
    """Return the bytes through the tag stage of the L1 cache."""
    parts = [count(report, f"l1tex__t_sectors_pipe_{part}") for part in L1_SECTORS]
    rare = [np.nan_to_num(count(report, f"l1tex__t_sectors_pipe_{part}")) for part in L1_RARE_SECTORS]
    sectors = first(count(report, "l1tex__t_sectors"), np.sum([*parts, *rare], axis=0, dtype=np.float64))
    return first(count(report, "l1tex__t_bytes"), SECTOR_BYTES * sectors)


def _sizes(told: list[int | None], report: Report, metric: str) -> pd.Series:
    """Return sizes as told beside the name, else as counted."""
    return pd.Series(told, dtype="Int64").fillna(pd.Series(report.column(metric)).astype("Int64"))
