"""How many warps does a launch keep resident on an SM (occupancy), and what do they wait for (stalls)?

Occupancy is resident warps over the most an SM holds. A block stays on one SM; as many blocks are
resident as the scarcest of warps, registers, shared memory and block slots allows. A wave is as
many blocks as all SMs hold at once; the tail is the part of the last wave's places that stays
empty. What the report measured (`launch__occupancy_limit_*`) is taken, what it lacks computed by
the CUDA rules from launch and SM; what is not known is NaN, never a default GPU.

A stall reason's value is a number of samples, or the cycles a warp spent on it per issued
instruction; a table holds one form per launch. A reason's share is its part of the sum over the
reasons of its launch (or call-tree node). `selected` is the cycle in which the warp did issue: it
counts in the sum, as in the vendor's warp latency, but is no stall and gets no place. Totals such
as `stl_any` are left out. Waiting warps cost nothing while another one can issue.

Reasons are those of Nsight Compute (`smsp__average_warps_issue_stalled_<reason>_...`, sampled
`smsp__pcsamp_warps_issue_stalled_<reason>`) and of HPCToolkit's samples (`stl_<reason>`). Source:
Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons"; HPCToolkit, GINS:STL_* and
GCYCLES:STL:* in metrics/default.yaml.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import where
from perfkit.analysis.intervals import Float, Int
from perfkit.analysis.kernels import first, wide
from perfkit.errors import PerfkitError
from perfkit.tables import STALLS

WARP = 32
REGISTER_UNIT = 256  # registers are given out per warp in units of this many
FEW_WAVES = 4  # after more, a last wave that is not full costs little (convention)
SCHEDULERS = 4  # each with its quarter of the registers
LIMITS = ("warps", "registers", "shared_memory", "slots")
_MEASURED = {
    "warps": "launch__occupancy_limit_warps",
    "registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
    "slots": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
_ATTRIBUTES = {
    "warps": ("device__attribute_max_warps_per_multiprocessor",),
    "registers": ("device__attribute_max_registers_per_multiprocessor",),
    "shared_bytes": ("device__attribute_max_shared_memory_per_multiprocessor",),
    "slots": ("device__attribute_max_blocks_per_multiprocessor",),
    "sms": ("launch__sm_count", "device__attribute_multiprocessor_count"),
    "compute_capability": ("device__attribute_compute_capability_major",),
}
_LAUNCH = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__waves_per_multiprocessor",
)
_METRICS = [
    *_MEASURED.values(),
    *(name for names in _ATTRIBUTES.values() for name in names),
    *_LAUNCH,
]
_ROUNDED = 0.0051  # a CSV prints waves with two decimals


class Words(NamedTuple):
    """A sentence that says what the warps wait for, and one that says what usually helps."""

    means: str
    helps: str


TOTALS = frozenset({"any", "stl_any", "stl", "gins", "gcycles", "sample_count", "samples", "total"})
ISSUING = frozenset({"selected", "stl_none", "none", "hid", "stl_hid"})


def _stall_words() -> dict[str, Words]:
    """Return the words of `stalls.toml` by reason, as each tool spells it."""
    with Path(__file__).with_name("stalls.toml").open("rb") as file:
        texts = tomllib.load(file)
    sampled = texts.pop("sampled")
    sampled = {
        reason: texts.get(text.pop("like", ""), {}) | text for reason, text in sampled.items()
    }
    texts["no_instructions"] = texts["no_instruction"]  # the sampled form's spelling
    texts |= {
        f"{prefix}{reason}": text for reason, text in sampled.items() for prefix in ("", "stl_")
    }
    return {reason: Words(**text) for reason, text in texts.items()}


stall_words: Mapping[str, Words] = _stall_words()
STALL_KEYS: Mapping[str, list[str]] = {"launch": ["rank", "launch"], "node": ["rank", "node"]}


def occupancy(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return theoretical and achieved occupancy of each launch, what limits it, its waves and its tail.

    Resident blocks are the smallest limit; theoretical occupancy = blocks x warps per block / warps
    of an SM; waves = blocks of the grid / (resident blocks x SMs); tail = (whole waves - waves) / 1
    wave.
    One row per launch, in their order. `rank`, `gpu`, `launch` int64, `name`;
    `theoretical_occupancy_frac`, `achieved_occupancy_frac`; `warps_blocks`, `registers_blocks`,
    `shared_memory_blocks`, `slots_blocks`, `barriers_blocks`, `resident_blocks` float64, blocks per
    SM, `resident_blocks` NaN unless the first four are known; `limiter` string, every smallest
    limit, comma separated, NA where not known; `waves` float64 above 0; `tail_frac`.

    Source: CUDA C++ Programming Guide, "Multiprocessor Level", and the occupancy calculator of
    Nsight Compute.
    """
    metrics = wide(launches, counters, _METRICS)
    # What the SM of each launch offers.
    offered = pd.DataFrame(
        {
            name: first(*(metrics[metric].to_numpy() for metric in names))
            for name, names in _ATTRIBUTES.items()
        }
    )
    table = launches[["rank", "gpu", "launch", "name"]].copy()
    threads, blocks = (
        launches[name].to_numpy("float64", na_value=np.nan)
        for name in ("block_threads", "grid_blocks")
    )
    # The limits measured, and computed where they were not; barriers only when measured.
    shared = (
        metrics["launch__shared_mem_per_block_static"]
        + metrics["launch__shared_mem_per_block_dynamic"]
    )
    computed = resident_blocks(
        threads, metrics["launch__registers_per_thread"].to_numpy(), shared.to_numpy(), offered
    )
    measured = {limit: metrics[metric].to_numpy() for limit, metric in _MEASURED.items()}
    of_sm = pd.DataFrame(
        {c: first(v, computed[c].to_numpy()) if c in computed else v for c, v in measured.items()}
    )
    smallest = of_sm.min(axis=1).where(of_sm[list(LIMITS)].notna().all(axis=1)).to_numpy()
    resident = np.ceil(threads / WARP) * smallest / offered["warps"].to_numpy()
    table["theoretical_occupancy_frac"] = first(
        launches["theoretical_occupancy_frac"].to_numpy(), resident
    )
    table["achieved_occupancy_frac"] = launches["achieved_occupancy_frac"]
    for limit in of_sm:
        table[f"{limit}_blocks"] = of_sm[limit]
    table["resident_blocks"] = smallest
    named = np.full(len(of_sm), "", object)  # the smallest limits of each launch
    for limit in of_sm:
        at = of_sm[limit].to_numpy() == smallest
        named[at] += np.where(named[at] == "", "", ", ") + str(limit).replace("_", " ")
    table["limiter"] = pd.Series(named, dtype="string").mask(np.isnan(smallest))
    waves = blocks / positive(smallest * offered["sms"].to_numpy())
    # The measured waves, with all their digits where the rule gives the same; a printed 0.00 says
    # nothing.
    printed = metrics["launch__waves_per_multiprocessor"].to_numpy()
    same = (np.abs(waves - printed) <= _ROUNDED) | np.isnan(printed)
    table["waves"] = np.where(same, waves, positive(printed))
    table["tail_frac"] = np.ceil(table["waves"]) - table["waves"]
    return table


def resident_blocks(
    threads: Float, registers: Float, shared: Float, sm: pd.DataFrame
) -> pd.DataFrame:
    """Return how many blocks an SM holds by its warps, registers, shared memory and block slots; NaN is not known.

    Arguments are float64 arrays: threads per block, registers per thread, shared bytes per block;
    `sm` has a row of _ATTRIBUTES per launch. Registers are given out per warp in units of 256, from
    the four quarters of an SM; shared memory in units of 128 bytes with 1 KiB per block kept for
    the system from compute capability 8.0 on, before in units of 256. Source: CUDA occupancy API
    (`cuda_occupancy.h`): allocation units per compute capability.

    >>> a100 = {"warps": 64, "registers": 65536, "shared_bytes": 164 * 1024, "slots": 32, "compute_capability": 8}
    >>> one = np.array([256.0]), np.array([64.0]), np.array([48.0 * 1024])
    >>> resident_blocks(*one, pd.DataFrame([a100])).values.tolist()
    [[8.0, 4.0, 3.0, 32.0]]
    """
    warps = positive(np.ceil(threads / WARP))
    of_warp = positive(np.ceil(registers * WARP / REGISTER_UNIT) * REGISTER_UNIT)
    at_once = np.floor(sm["registers"].to_numpy() / SCHEDULERS / of_warp) * SCHEDULERS
    ampere = np.where(sm["compute_capability"].isna(), np.nan, sm["compute_capability"] >= 8)
    unit = 256 - 128 * ampere
    kept = np.ceil((shared + 1024 * ampere) / unit) * unit
    columns = {
        "warps": np.floor(sm["warps"].to_numpy() / warps),
        "registers": np.floor(at_once / warps),
        # A block that takes none is bounded by the slots, as the vendor prints it.
        "shared_memory": np.where(
            kept == 0, sm["slots"], np.floor(sm["shared_bytes"] / positive(kept))
        ),
        "slots": sm["slots"].to_numpy(),
    }
    return pd.DataFrame(columns)


def tail_lost(waves: Float, balance: Float) -> Float:
    """Return the share of the time in which SMs have no block of the last wave; 0 after FEW_WAVES waves.

    `balance` is the active time of the average SM over that of the busiest. Where it was measured
    it decides, else the waves do, as if each took as long as a full one: 1 - waves / whole waves.

    >>> tail_lost(np.array([133 / 132, 1.0, 2.5, 40.5]), np.full(4, np.nan)).round(3).tolist()
    [0.496, 0.0, 0.167, 0.0]
    """
    known = np.isfinite(waves) & (waves > 1)
    whole = np.ceil(np.where(known, waves, 1.0))
    lost = np.where(known, 1 - waves / whole, 0.0)
    lost = np.where(waves < FEW_WAVES, lost, 0.0)
    measured = np.where(np.isnan(balance), lost, 1 - balance)
    return np.maximum(np.minimum(lost, measured), 0.0)


def positive(values: Float) -> Float:
    """Return the values above 0, NaN for the others."""
    return np.where(values > 0, values, np.nan)


def stall_shares(stalls: pd.DataFrame, *, by: str = "launch") -> pd.DataFrame:
    """Return each stall reason's share of the waiting of its launch (or call-tree node: `by` "node"), largest first.

    share = value / sum of the values of the launch, totals left out; PerfkitError if a value is
    negative. By rank and launch (node), then falling value, ties by reason. `rank`, `launch` or
    `node` int64, `reason` category, `value` float64 as in STALLS, `share_frac`, NaN where the sum
    is 0 or the value is missing, `place` Int64, 1 for the largest stall, NA for what is no stall
    (`selected`). Source: Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons" and section
    WarpStateStats.
    """
    if by not in STALL_KEYS:
        raise ValueError(f"by: {by!r} is not one of {list(STALL_KEYS)}")
    STALLS.check(stalls)
    wanted = (stalls[by].to_numpy() >= 0) & ~where(
        stalls["reason"], lambda reason: _plain(reason) in TOTALS
    )
    frame = stalls.loc[wanted, [*STALL_KEYS[by], "reason", "value"]].reset_index(drop=True)
    value = frame["value"].to_numpy()
    if (value < 0).any():
        raise PerfkitError(
            f"stalls: a value is {np.nanmin(value):g}, below 0. Record the counters again."
        )
    new = np.zeros(len(frame), bool)
    for key in STALL_KEYS[by]:
        new[1:] |= np.diff(frame[key].to_numpy()) != 0
    group = np.cumsum(new)
    total = np.bincount(group, np.nan_to_num(value))
    frame["share_frac"] = value / np.where(total > 0, total, np.nan)[group]
    # STALLS is sorted by reason within a launch, and the sort is stable: ties stay in that order.
    frame = frame.take(np.lexsort([-value, group])).reset_index(drop=True)
    # Number the stalls of each group from 1, what issued and what was not measured left out.
    stalled = frame["value"].notna().to_numpy() & ~where(
        frame["reason"], lambda reason: _plain(reason) in ISSUING
    )
    count = np.cumsum(stalled)
    first = np.searchsorted(group, np.arange(group.max(initial=-1) + 1))
    place: Int = count - (count - stalled)[first][group]
    return frame.assign(place=pd.Series(pd.arrays.IntegerArray(place.astype(np.int64), ~stalled)))


def _plain(reason: str) -> str:
    """Return a reason in lower case without a tool's prefix up to a colon."""
    return reason.lower().rpartition(":")[2]


def main_stall(stalls: pd.DataFrame) -> pd.DataFrame:
    """Return the largest stall above 0 of each launch, with what it means.

    The columns are those of `shares` without place, and the strings `means` and `helps`, empty for
    a reason that `words` does not know.
    """
    ranked = stall_shares(stalls)
    largest = ranked[ranked["place"].eq(1).fillna(False).astype(bool) & ranked["value"].gt(0)].drop(
        columns="place"
    )
    texts = [stall_words.get(reason, Words("", "")) for reason in largest["reason"].astype(str)]
    return largest.assign(
        means=pd.array([text.means for text in texts], dtype="string"),
        helps=pd.array([text.helps for text in texts], dtype="string"),
    ).reset_index(drop=True)
