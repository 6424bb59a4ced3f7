"""Does a launch use the memory system and its warps well, and does it meet the targets of the performance guide?

A warp's access to memory is a request; it moves sectors of 32 bytes. Perfectly coalesced, 32
threads that read 4 bytes each need 4 sectors per request, 8 bytes each need 8, 16 bytes each need
16. The verdict compares with the target: met or missed, or "unclear" between 4 and 16 sectors per
request; "unused" where the launch made no such access, "no target" where no value is right in
general, "not measured" where the report lacks the counters, "contradictory" where they give a
fraction outside 0..1, as those of several passes may.

The guide's targets: SM throughput above 80 %, tensor-core use above 85 % for matrix products, DRAM
throughput above 75 % if memory limits the kernel, L2 hit rate and occupancy above 50 %. For stalls
the target is the vendor's: none above 30 % of the warps' latency. They are habits, not laws: a
kernel at its roof is good whatever it misses.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import Bool, Float
from perfkit.analysis.kernels import first, wide
from perfkit.analysis.roofline import speed_of_light
from perfkit.analysis.warps import main_stall, occupancy, positive, tail_lost
from perfkit.errors import PerfkitError
from perfkit.tables import LAUNCHES, STALLS

WIDEST = 16  # sectors that 32 threads of 16 bytes need
VERDICTS = ("met", "missed", "unused", "no target", "not measured", "contradictory", "unclear")
_LOAD, _STORE = (f"l1tex__t_{{}}_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st"))
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_SECTORS = "memory_l2_theoretical_sectors_global"
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
_L1_HIT, _L2_HIT = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
_LANES = "smsp__thread_inst_executed_per_inst_executed.ratio"
Rule = Callable[[pd.DataFrame], tuple[Float, Bool]]


@dataclass(frozen=True)
class _Check:
    """A figure and what it is held against; `access.toml` says what the fields mean."""

    name: str
    metrics: tuple[str, ...]
    rule: Rule
    target: float
    above: bool
    met: str
    missed: str
    measure: str


class Pipe(NamedTuple):
    """What one of the SM's pipes does, and what usually helps where it is the limit, also `with_tensor_cores`."""

    does: str
    helps: str
    with_tensor_cores: str = ""


class Unit(NamedTuple):
    """How a sentence names a unit of the GPU, what that does, and what usually helps where it is the limit."""

    name: str
    does: str
    helps: str


def _per_request(kind: str) -> Rule:
    def rule(values: pd.DataFrame) -> tuple[Float, Bool]:
        sectors, requests = (
            values[kind.format(what)].to_numpy() for what in ("sectors", "requests")
        )
        return sectors / positive(requests), requests == 0

    return rule


def _conflicts(values: pd.DataFrame) -> tuple[Float, Bool]:
    conflicts, wavefronts = values[_CONFLICTS].to_numpy(), values[_WAVEFRONTS].to_numpy()
    none = np.where(conflicts == 0, 0.0, np.nan)  # known also where the wavefronts were not counted
    return first(
        conflicts / positive(wavefronts), np.where(wavefronts == 0, np.nan, none)
    ), wavefronts == 0


def _excess(values: pd.DataFrame) -> tuple[Float, Bool]:
    moved, ideal = values[_SECTORS].to_numpy(), values[f"{_SECTORS}_ideal"].to_numpy()
    return (moved - ideal) / positive(moved), moved == 0


def _share(metric: str, whole: float) -> Rule:
    return lambda found: (found[metric].to_numpy() / whole, np.zeros(len(found), bool))


_RULES: dict[str, tuple[tuple[str, ...], Rule]] = {
    "load_sectors_per_request": (
        (_LOAD.format("sectors"), _LOAD.format("requests")),
        _per_request(_LOAD),
    ),
    "store_sectors_per_request": (
        (_STORE.format("sectors"), _STORE.format("requests")),
        _per_request(_STORE),
    ),
    "excess_sectors_frac": ((_SECTORS, f"{_SECTORS}_ideal"), _excess),
    "sector_use_frac": ((_USED,), _share(_USED, 32)),
    "bank_conflicts_frac": ((_CONFLICTS, _WAVEFRONTS), _conflicts),
    "active_lanes_frac": ((_LANES,), _share(_LANES, 32)),
    "l1_hit_frac": ((_L1_HIT,), _share(_L1_HIT, 100)),
    "l2_hit_frac": ((_L2_HIT,), _share(_L2_HIT, 100)),
}
with Path(__file__).with_suffix(".toml").open("rb") as _file:
    _TEXTS = tomllib.load(_file)
PIPES: dict[str, Pipe] = {name: Pipe(**words) for name, words in _TEXTS.pop("pipes").items()}
UNITS: dict[str, Unit] = {name: Unit(**words) for name, words in _TEXTS.pop("units").items()}
_CHECKS = tuple(_Check(name, *_RULES[name], **words) for name, words in _TEXTS.items())
_COLUMNS = ("check", "value", "target", "verdict", "sentence", "measure")
_NO_TARGET = "How much the L1 cache serves; data used once, or kept in shared memory, need not hit."
_UNUSED = "The launch made no such access."
_UNCLEAR = (
    "Right if each thread moves 8 or 16 bytes at once (8 or 16 sectors per request), else the "
    "threads of a warp use addresses that lie apart; the share of excess sectors tells which."
)
_CONTRADICTORY = "The counters come from different passes and contradict each other: measure again."

_LOCAL = tuple(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st"))
_CYCLES = tuple(f"smsp__cycles_active.{which}" for which in ("avg", "max"))
_ATOMICS = tuple(
    f"lts__d_atomic_input_cycles_active.{w}.pct_of_peak_sustained_elapsed" for w in ("avg", "max")
)
_L1 = tuple(f"l1tex__throughput.avg.pct_of_peak_sustained_{of}" for of in ("elapsed", "active"))
_INSTRUCTIONS = "smsp__inst_executed.sum"
_SMS = ("launch__sm_count", "device__attribute_multiprocessor_count")
_PIPE = (
    "sm__inst_executed_pipe_{}.avg.pct_of_peak_sustained_{}",
    "sm__pipe_{}_cycles_active.avg.pct_of_peak_sustained_{}",
)
LIMITING = 0.6  # of its peak: below, latency limits a launch (Nsight Compute, rule SOLBottleneck)
_EXCESS, _CONFLICTED = 0.1, 0.1  # rules UncoalescedGlobalAccess and SharedMemoryConflicts
_SPILLED, _BALANCED, _LONG_NS = 0.25, 0.7, 10_000  # conventions, as the following
_SLICES = 4  # times as busy as the average slice of the L2 cache
_NARROW, _LOADING = 2, 0.02  # bytes of a thread in a load; loads of all instructions
_WHOLE = 0.9  # of the bytes of a sector, and of the lanes


TARGET_VERDICTS = ("met", "missed", "not applicable", "not measured")
# Each with the section of Nsight Compute that measures it.
_TARGETS = {
    "sm_throughput": (0.80, "SpeedOfLight"),
    "tensor_use": (0.85, "ComputeWorkloadAnalysis"),
    "dram_throughput": (0.75, "SpeedOfLight"),
    "l2_hit": (0.50, "MemoryWorkloadAnalysis"),
    "occupancy": (0.50, "Occupancy"),
    "largest_stall": (0.30, "WarpStateStats"),  # CPIStall of Nsight Compute
}
TARGETS = {name: target for name, (target, _) in _TARGETS.items()}
NAMES = list(TARGETS)
_WAVES = "launch__waves_per_multiprocessor"
_PLAUSIBLE = 1.1  # counters of several passes may pass 100 % by a little
Objects = NDArray[np.object_]


def checks(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return each launch's memory accesses and active lanes held against their targets.

    Sectors per request = sectors / requests; bank conflicts = conflicts / wavefronts of shared
    memory; excess = (sectors - ideal sectors) / sectors; sector use = bytes used per sector / 32;
    active lanes = threads per executed instruction / 32, of which 0.75 is a convention; hit rates
    as measured. A row per launch and check, in this order. `rank` int32, `launch` int64, `name`
    category, `check` string, `value` float64 (sectors, or a fraction where the check ends in
    _frac), NaN where unused or not measured; `target` float64, an upper bound but for sector use,
    active lanes and hit rates, NaN without one; `verdict` category, one of VERDICTS; `sentence`
    string; `measure` string, the options that measure it.

    Source: Nsight Compute, Kernel Profiling Guide, "Memory Tables", and its rules
    SharedMemoryConflicts (10 %) and UncoalescedGlobalAccess. L2 hit rate above 50 % is the target
    of the performance guide.
    """
    values = wide(launches, counters, [metric for check in _CHECKS for metric in check.metrics])
    parts = [_judged(values, check) for check in _CHECKS]
    columns = {name: np.stack([part[name] for part in parts], axis=1).ravel() for name in _COLUMNS}
    table = LAUNCHES.check(launches)[["rank", "launch", "name"]].loc[
        launches.index.repeat(len(_CHECKS))
    ]
    table = table.reset_index(drop=True).assign(**columns)
    table["verdict"] = pd.Categorical(table["verdict"], categories=VERDICTS)
    return table.astype(
        {"check": "string", "sentence": "string", "measure": "string", "value": "float64"}
    )


def _judged(values: pd.DataFrame, check: _Check) -> dict[str, NDArray[np.generic]]:
    """Return value, verdict and words of one check for all launches."""
    value, unused = check.rule(values)
    outside = check.name.endswith("_frac") & ((value < 0) | (value > 1))
    good = value >= check.target if check.above else value <= check.target
    free = np.full(len(value), np.isnan(check.target))
    wide_type = check.name.endswith("_per_request") & (value <= WIDEST)
    case = np.select(
        [unused, np.isnan(value), outside, free, good, wide_type], [2, 4, 5, 3, 0, 6], 1
    )
    absent = f"Not measured: record it with `{check.measure}`."
    sentences = np.array(
        [check.met, check.missed, _UNUSED, _NO_TARGET, absent, _CONTRADICTORY, _UNCLEAR], object
    )
    constant = {"check": check.name, "target": check.target, "measure": check.measure}
    return {
        **{name: np.full(len(value), what) for name, what in constant.items()},
        "value": value,
        "verdict": np.array(VERDICTS, object)[case],
        "sentence": sentences[case],
    }


def losses(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return what launches lose to causes that their counters name, and how much of their time that is at most.

    What remains is the time that the SMs work, and that the device memory needs for the bytes that
    are needed. A row per launch and cause, where it is there: `rank` int32, `launch` int64, `name`
    category, `cause` string, `value` and `lost_frac` float64, NaN where no counter bounds it.
    Causes, and their values:

    - uncoalesced: excess sectors, a fraction of all, from 0.1 on where memory limits the launch;
    - bank_conflicts: a fraction of the passes through shared memory, from 0.1 on where the L1 cache is the limit;
    - divergence: idle threads of executed warps, a fraction, from 0.25 on where the SMs are the limit;
    - spills: sectors of local memory, a fraction of those of local and global memory, from 0.25 on;
    - imbalance: 1 - active cycles of the average SM / of the busiest, from 0.3 on if there is a block for each SM; by
      the waves of the grid where the cycles were not measured;
    - atomics: busy time of the L2 slice that does most of the atomics, a fraction, where it is the limit;
    - narrow_loads: bytes per thread and load, up to 2, where the device memory is not the limit.

    Thresholds: Nsight Compute (rules UncoalescedGlobalAccess, SharedMemoryConflicts, SOLBottleneck)
    and conventions; checked with 24 kernels on an H100, each timed with and without its cause.
    """
    of = _measures(launches, counters)
    sm, memory, dram, lanes = (of[name] for name in ("sm", "memory", "dram", "lanes"))
    by_memory = (memory >= LIMITING) & (memory >= sm)
    by_sm = (sm >= LIMITING) & (sm > memory)
    contended = (of["atomics"] >= LIMITING) & (of["slices"] * _SLICES <= 1)
    busiest = np.fmax(sm, dram)
    uncoalesced = by_memory & (of["excess"] >= _EXCESS) & ~contended
    conflicted = (of["conflicts"] >= _CONFLICTED) & (of["l1"] >= LIMITING)
    spilling = (of["spilled"] >= _SPILLED) & ~by_sm
    unbalanced = (of["worked"] <= _BALANCED) & of["is_wide"] & (of["dur_ns"] >= _LONG_NS)
    narrow = (of["width"] <= _NARROW) & (of["loads"] >= _LOADING) & ~(dram >= LIMITING)
    narrow &= (of["use"] >= _WHOLE) & (lanes >= _WHOLE)
    found = {
        "uncoalesced": (uncoalesced, of["excess"], 1 - np.fmax(sm, dram * (1 - of["excess"]))),
        "bank_conflicts": (conflicted, of["conflicts"], np.fmin(of["conflicts"], 1 - busiest)),
        "divergence": (by_sm & (lanes < 0.75), 1 - lanes, np.fmin(1 - lanes, 1 - dram)),
        "spills": (spilling, of["spilled"], 1 - dram * (1 - of["spilled"])),
        "imbalance": (unbalanced, 1 - of["worked"], 1 - of["worked"] * of["filled"]),
        "atomics": (contended, of["atomics"], 1 - busiest),
        "narrow_loads": (narrow, of["width"], 1 - dram),
    }
    keys = LAUNCHES.check(launches)[["rank", "launch", "name"]]
    parts = [
        keys[at].assign(cause=name, value=value[at], lost_frac=lost[at])
        for name, (at, value, lost) in found.items()
    ]
    table: pd.DataFrame = pd.concat(parts, ignore_index=True).astype({"cause": "string"})
    return table


def _measures(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return what tells of losses, a row per launch: shares of peaks and of time, NaN where not measured."""
    checked = [metric for check in _CHECKS for metric in check.metrics]
    asked = [*checked, *_LOCAL, *_CYCLES, *_ATOMICS, *_L1, *_SMS, _INSTRUCTIONS]
    metrics = wide(launches, counters, asked)
    check = {check.name: check.rule(metrics)[0] for check in _CHECKS}
    of = launches[["sm_frac", "memory_frac", "dram_frac", "dur_ns"]].astype("float64")
    of.columns = pd.Index(["sm", "memory", "dram", "dur_ns"])
    of["l1"] = first(*(metrics[name].to_numpy() / 100 for name in _L1))
    of["excess"] = check["excess_sectors_frac"]
    of["conflicts"] = check["bank_conflicts_frac"]
    of["lanes"] = check["active_lanes_frac"]
    of["use"] = check["sector_use_frac"]
    of["width"] = check["load_sectors_per_request"]  # 32 bytes for 32 threads
    of["loads"] = metrics[_LOAD.format("requests")] / positive(metrics[_INSTRUCTIONS].to_numpy())
    local = metrics[list(_LOCAL)].sum(axis=1)
    both = local + metrics[[name.format("sectors") for name in (_LOAD, _STORE)]].sum(axis=1)
    of["spilled"] = local / positive(both.to_numpy())
    of["atomics"] = metrics[_ATOMICS[1]] / 100
    balance, of["slices"] = (
        metrics[mean].to_numpy() / positive(metrics[most].to_numpy())
        for mean, most in (_CYCLES, _ATOMICS)
    )
    waves = occupancy(launches, counters)["waves"].to_numpy("float64")
    # Where the cycles were not measured and no unit is busy, the waves tell.
    is_waiting = np.fmax(of["sm"], of["memory"]) < LIMITING
    of["worked"] = first(balance, np.where(is_waiting, 1 - tail_lost(waves, balance), 1.0))
    occupied, possible = (
        launches[f"{which}_occupancy_frac"].to_numpy("float64")
        for which in ("achieved", "theoretical")
    )
    # An SM with fewer warps works slower too.
    of["filled"] = np.fmin(occupied / positive(possible), 1.0)
    sms = first(*(metrics[name].to_numpy() for name in _SMS))
    of["is_wide"] = (launches["grid_blocks"].to_numpy("float64") >= sms) | (waves >= 1)
    return of


def pipe_shares(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return how busy each pipe of the SMs is in each launch, a float64 column in 0..1 for each of PIPES.

    A row per launch, in their order; NaN where a pipe was not measured. Of what was recorded, the
    larger counts: the share of the cycles in which the SMs work, or of all. Source: Nsight Compute,
    Kernel Profiling Guide, "Pipelines".
    """
    names = [
        form.format(pipe, of) for pipe in PIPES for form in _PIPE for of in ("active", "elapsed")
    ]
    metrics = wide(launches, counters, names).to_numpy() / 100
    of_each = len(names) // len(PIPES)
    busy = np.fmax.reduce(metrics.reshape(len(launches), len(PIPES), of_each), axis=2)
    return pd.DataFrame(busy, launches.index, list(PIPES))


def target_checks(
    launches: pd.DataFrame, counters: pd.DataFrame, stalls: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return six checks of each launch against the targets of the performance guide.

    Tensor use applies to matrix products (by name), DRAM throughput to launches that the vendor's
    rule calls memory-bound; elsewhere the verdict is "not applicable" and the value is shown all
    the same. PerfkitError if a value lies outside 0..1.1. Six rows per launch, in the order of
    TARGETS: `rank`, `gpu` int32, `launch` int64, `name` category, `check` category, one of TARGETS;
    `value_frac` float64 in 0..1.1, NaN not measured; `target_frac` float64, a lower bound, for
    largest_stall an upper one; `verdict` category, one of TARGET_VERDICTS; `detail` string: the
    stall that is largest, why a check does not apply, or the command that measures it; empty
    otherwise. Source: Performance guide, table "Key Nsight Compute metrics"; stalls: Nsight
    Compute, rule CPIStall.
    """
    metrics = wide(launches, counters, [_L2_HIT, _WAVES])
    stall = main_stall(STALLS.given(stalls)).set_index(["rank", "launch"])
    stall = stall.reindex(pd.MultiIndex.from_frame(launches[["rank", "launch"]]))
    columns = ["sm_frac", "tensor_frac", "dram_frac", "achieved_occupancy_frac"]
    sm, tensor, dram, occupancy = (launches[column].to_numpy("float64") for column in columns)
    value = np.column_stack(
        [sm, tensor, dram, metrics[_L2_HIT].to_numpy() / 100, occupancy, stall["share_frac"]]
    )
    wrong = np.argwhere((value < 0) | (value > _PLAUSIBLE))
    if len(wrong):
        row, column = wrong[0]
        raise PerfkitError(
            f"launch {launches['launch'].iloc[row]}: {NAMES[column]} is {value[row, column]:g}, "
            "not a fraction of its peak. Record the counters again."
        )
    limit = speed_of_light(launches["sm_frac"], launches["memory_frac"], metrics[_WAVES]).to_numpy()
    applies = np.ones((len(launches), len(NAMES)), bool)
    is_product = where(
        launches["full_name"], lambda name: names.family(name) in ("gemm", "convolution")
    )
    applies[:, NAMES.index("tensor_use")] = is_product
    applies[:, NAMES.index("dram_throughput")] = np.isin(
        limit.astype(str), ["memory", "not measured"]
    )
    unmeasured = np.isnan(value)
    unmeasured[:, NAMES.index("dram_throughput")] |= limit == "not measured"
    target = np.tile(list(TARGETS.values()), (len(value), 1))
    good = np.where(np.array(NAMES) == "largest_stall", value <= target, value > target)
    verdict = np.select(
        [~applies, unmeasured, good], ["not applicable", "not measured", "met"], "missed"
    )
    table = (
        launches[["rank", "gpu", "launch", "name"]]
        .loc[launches.index.repeat(len(NAMES))]
        .reset_index(drop=True)
    )
    return table.assign(
        check=pd.Categorical(NAMES * len(value), NAMES),
        value_frac=value.ravel(),
        target_frac=target.ravel(),
        verdict=pd.Categorical(verdict.ravel(), TARGET_VERDICTS),
        detail=pd.array(
            _details(verdict, limit, stall["reason"].astype("object").fillna("")).ravel(), "string"
        ),
    )


def _details(verdict: NDArray[np.str_], limit: Objects, reason: pd.Series) -> Objects:
    """Return what a person asks next: which stall, why not, or how to measure it."""
    details = np.where(
        verdict == "not measured",
        [
            f"record with `ncu --section {section} -o report PROGRAM`"
            for _, section in _TARGETS.values()
        ],
        "",
    )
    details = details.astype(object)
    stall, tensor, dram = (
        NAMES.index(name) for name in ("largest_stall", "tensor_use", "dram_throughput")
    )
    details[:, stall] = np.where(reason == "", details[:, stall], reason)
    apart = verdict == "not applicable"
    details[apart[:, tensor], tensor] = "its name does not say matrix product"
    details[apart[:, dram], dram] = [
        f"not limited by memory: {one.replace('_', ' ')}" for one in limit[apart[:, dram]]
    ]
    return details
