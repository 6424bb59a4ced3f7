"""What limits each measured launch, asked in the order of the hardware?

First come launches that leave most of the GPU without work: blocks of a few threads, a grid that
does not fill the GPU, a last wave of a few blocks. Then comes the busiest unit: a pipe of the SMs,
the load/store pipe, L1 with shared memory, L2, DRAM. What keeps no unit busy waits: latency.
"Memory" alone is no limit, because each level needs another remedy.

A unit limits a launch from 60 % of its peak rate on (Nsight Compute, rule SOLBottleneck). Counters
of one launch come from several passes, so units within 5 points of each other are equally busy, and
the first of them in the order of the hardware is named. Of the levels of memory it is the last:
what streams from DRAM passes L2 and L1 too.

Where no memory was measured, SMs that work at 80 % or more of their peak rate limit a launch
(Nsight Compute calls this a high throughput): more warps cannot save more than the rest. Below
that, memory may work more than they do.
"""

import numpy as np
import pandas as pd

from perfkit.analysis import access, warps
from perfkit.analysis.kernels import first, wide
from perfkit.tables import LAUNCHES

LIMITING, EQUAL, APART = access.LIMITING, 0.05, 0.1
HIGH = 0.8  # of the peak rate (Nsight Compute, rule SOLBottleneck)
FEW_THREADS = 16  # in a block; half of the lanes of its only warp are idle then (convention)
TAIL_LOST = 0.3  # of the time, from which on the last wave is what limits a launch (convention)
PIPES = (
    "tensor",
    "fp64",
    "fma",
    "fmaheavy",
    "fp16",
    "alu",
    "xu",
)  # all but the one of loads and stores
SM_UNITS = (*PIPES, "issue", "sm")
CACHES = ("lsu", "l1", "l2", "cache")
MEMORIES = ("dram", "memory")
_ISSUE = (
    "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
)
_L1 = tuple(f"l1tex__throughput.avg.pct_of_peak_sustained_{of}" for of in ("elapsed", "active"))
_L2 = ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)
_CYCLES = tuple(f"smsp__cycles_active.{which}" for which in ("avg", "max"))
_SMS = ("launch__sm_count", "device__attribute_multiprocessor_count")
_WAVES = "launch__waves_per_multiprocessor"


def limiters(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return what limits each launch, and how busy its units are.

    A row per launch, in their order: `rank` int32, `launch` int64, `name` category, `dur_ns`
    float64; `limit` string, a unit of SM_UNITS, CACHES or MEMORIES, "few threads", "small grid",
    "last wave", "latency" or "not measured" ("sm", "cache" and "memory" where only the throughput
    of all units was recorded); `busy_frac` float64, how busy the limiting unit is while the SMs
    work,
    NaN without one; `bound_frac`, the same over the whole launch: with the same instructions a
    launch takes at least this share of its time; `pipe` string, the busiest pipe, and `pipe_frac`;
    `lsu_frac`, `issue_frac`, `l1_frac`, `l2_frac`, `dram_frac` float64, shares of each unit's peak;
    `waves`; `tail_lost_frac`, the share of the time that the last wave leaves unused at most;
    `sms`, `block_threads` float64. NaN is not measured.
    """
    LAUNCHES.check(launches)
    table = _units(launches, counters)
    sm_unit, sm_busy = _of_sms(table)
    level, level_busy = _of_memory(table)
    sm, memory = table["sm_frac"], table["memory_frac"]
    most = np.fmax(sm, memory)
    on_sms = np.fmin(sm_busy, sm) >= np.fmin(level_busy, memory) - EQUAL
    is_high = sm >= HIGH
    is_sm = (sm >= LIMITING) & ((memory < LIMITING) | on_sms | is_high & memory.isna())
    is_unknown = sm.isna() | (memory.isna() & ~is_high)
    waiting = np.select(
        [_is_small(table), table["tail_lost_frac"] >= TAIL_LOST],
        ["small grid", "last wave"],
        "latency",
    )
    limit = np.select(
        [table["block_threads"] <= FEW_THREADS, is_unknown, most < LIMITING, is_sm],
        ["few threads", "not measured", waiting, sm_unit],
        level,
    )
    by_unit = pd.Series(limit).isin([*SM_UNITS, *CACHES, *MEMORIES]).to_numpy()
    busy = np.where(is_sm, sm_busy, level_busy)
    bound = np.where(is_sm, np.fmin(sm_busy, sm), np.fmin(level_busy, memory))
    return table.drop(columns=["sm_frac", "memory_frac"]).assign(
        limit=pd.Series(limit, table.index, "string"),
        busy_frac=np.where(by_unit, busy, np.nan),
        bound_frac=np.where(by_unit, np.minimum(bound, 1.0), np.nan),
    )


def _units(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return how busy each unit is in each launch, and the shape of the launch."""
    metrics = wide(launches, counters, [*_ISSUE, *_L1, *_L2, *_SMS, *_CYCLES, _WAVES])
    pipes = access.pipe_shares(launches, counters)
    arithmetic = pipes[list(PIPES)]
    table = launches[
        ["rank", "launch", "name", "dur_ns", "sm_frac", "memory_frac", "dram_frac"]
    ].copy()
    table["pipe_frac"] = arithmetic.max(axis=1)
    most = arithmetic.fillna(-1.0).to_numpy().argmax(axis=1)
    table["pipe"] = pd.Series(np.array(PIPES, object)[most], table.index, "string").mask(
        table["pipe_frac"].isna()
    )
    table["lsu_frac"] = pipes["lsu"]
    for column, names in (("issue_frac", _ISSUE), ("l1_frac", _L1), ("l2_frac", _L2)):
        table[column] = first(*(metrics[name].to_numpy() / 100 for name in names))
    table["sms"] = first(*(metrics[name].to_numpy() for name in _SMS))
    table["blocks"] = launches["grid_blocks"].to_numpy("float64", na_value=np.nan)
    table["block_threads"] = launches["block_threads"].to_numpy("float64", na_value=np.nan)
    waves = warps.occupancy(launches, counters)["waves"].to_numpy("float64")
    table["waves"] = first(waves, metrics[_WAVES].to_numpy())
    balance = metrics[_CYCLES[0]].to_numpy() / warps.positive(metrics[_CYCLES[1]].to_numpy())
    table["tail_lost_frac"] = warps.tail_lost(table["waves"].to_numpy(), balance)
    return table


def _is_small(table: pd.DataFrame) -> pd.Series:
    """Tell which grids leave SMs without a block, or all SMs with fewer blocks than they hold."""
    return (table["blocks"] < table["sms"]) | (table["waves"] < 1)


def _of_sms(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the busiest unit of the SMs in each launch, and how busy it is; "sm" where no pipe was recorded."""
    pipe, loads, issue = (
        table[name].to_numpy() for name in ("pipe_frac", "lsu_frac", "issue_frac")
    )
    best = np.fmax(pipe, loads)
    is_pipe = pipe >= best - EQUAL
    is_issue = (best < LIMITING) & (issue > best + APART)
    cases = [np.isnan(best), is_issue, is_pipe]
    unit = np.select(cases, ["sm", "issue", table["pipe"].fillna("").to_numpy(object)], "lsu")
    return unit, np.select(cases, [table["sm_frac"], issue, pipe], loads)


def _of_memory(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the level of memory that sets the throughput of the memory in each launch, and how busy it is.

    The level is not known where none that was recorded comes near the throughput of all.
    """
    memory, dram = table["memory_frac"].to_numpy(), table["dram_frac"].to_numpy()
    l1, l2 = (table[name].to_numpy() for name in ("l1_frac", "l2_frac"))
    # A cache works no more than the memory in all; its own counter may say so where it counts
    # active cycles.
    at_l1 = np.minimum(l1, memory)
    at_l2 = np.minimum(l2, memory)
    cache = np.fmax(at_l1, at_l2)
    best = np.fmax(cache, dram)
    unknown = ~(best >= memory - APART)
    is_dram = dram >= best - EQUAL
    is_l1 = (at_l1 >= at_l2) | np.isnan(l2)
    cases = [unknown & np.isnan(dram), unknown, is_dram, is_l1]
    return np.select(cases, ["memory", "cache", "dram", "l1"], "l2"), np.select(
        cases, [memory, memory, dram, l1], l2
    )
