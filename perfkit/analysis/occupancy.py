"""How many warps does a launch keep resident on an SM, what limits them, and do its blocks fill the GPU?

Conventions
-----------
Occupancy is resident warps over the most an SM holds. A block stays on one SM; as many blocks are
resident as the scarcest of warps, registers, shared memory and block slots allows. A wave is as many
blocks as all SMs hold at once; the tail is the part of the last wave's places that stays empty.
What the report measured (`launch__occupancy_limit_*`) is taken; what it lacks is computed by the
CUDA rules from the launch and the limits of the SM. What is not known is NaN, never a default GPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from perfkit.analysis.kernels import Float, first, wide

WARP = 32
REGISTER_UNIT = 256  # registers are given out per warp in units of this many
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
_METRICS = [*_MEASURED.values(), *(name for names in _ATTRIBUTES.values() for name in names), *_LAUNCH]
_ROUNDED = 0.0051  # a CSV prints waves with two decimals


@dataclass(frozen=True)
class Sm:
    """What one SM offers, and how many the GPU has; NaN is not known."""

    warps: float = np.nan
    registers: float = np.nan
    shared_bytes: float = np.nan
    slots: float = np.nan
    sms: float = np.nan
    compute_capability: float = np.nan


UNKNOWN = Sm()


def limits(launches: pd.DataFrame, counters: pd.DataFrame, *, sm: Sm = UNKNOWN) -> pd.DataFrame:
    """Return theoretical and achieved occupancy of each launch, what limits it, its waves and its tail.

    Resident blocks are the smallest limit; theoretical occupancy = blocks x warps per block / warps of an SM; waves =
    blocks of the grid / (resident blocks x SMs); tail = (whole waves - waves) / 1 wave. `sm` says the SM's limits where
    the counters lack `device__attribute_*`.

    Returns
    -------
    pandas.DataFrame
        One row per launch, in their order. `rank`, `gpu`, `launch` int64, `name`;
        `theoretical_occupancy_frac`, `achieved_occupancy_frac`; `warps_blocks`,
        `registers_blocks`, `shared_memory_blocks`, `slots_blocks`, `barriers_blocks`, `resident_blocks` float64,
        blocks per SM, `resident_blocks` NaN unless the first four are known; `limiter` string, every smallest
        limit, comma separated, NA where not known; `waves` float64 above 0; `tail_frac`.

    References
    ----------
    CUDA C++ Programming Guide, "Multiprocessor Level", and the occupancy calculator of Nsight Compute.
    """
    metrics = wide(launches, counters, _METRICS)
    offered = _offered(metrics, sm)
    table = launches[["rank", "gpu", "launch", "name"]].copy()
    threads = _float(launches["block_threads"])
    of_sm = _limits(metrics, offered, threads)
    smallest = of_sm.min(axis=1).where(of_sm[list(LIMITS)].notna().all(axis=1)).to_numpy()
    resident = np.ceil(threads / WARP) * smallest / offered["warps"].to_numpy()
    table["theoretical_occupancy_frac"] = first(launches["theoretical_occupancy_frac"].to_numpy(), resident)
    table["achieved_occupancy_frac"] = launches["achieved_occupancy_frac"]
    for limit in of_sm:
        table[f"{limit}_blocks"] = of_sm[limit]
    table["resident_blocks"] = smallest
    table["limiter"] = _limiter(of_sm, smallest)
    waves = _float(launches["grid_blocks"]) / _positive(smallest * offered["sms"].to_numpy())
    table["waves"] = _waves(waves, metrics["launch__waves_per_multiprocessor"].to_numpy())
    table["tail_frac"] = np.ceil(table["waves"]) - table["waves"]
    return table


def blocks(block_threads: Float, registers: Float, shared_bytes: Float, *, sm: Sm) -> pd.DataFrame:
    """Return how many blocks an SM holds by its warps, registers, shared memory and block slots; NaN is not known.

    Arguments are float64 arrays: threads per block, registers per thread, shared bytes per block. Registers are given
    out per warp in units of 256, from the four quarters of an SM; shared memory in units of 128 bytes with 1 KiB per
    block kept for the system from compute capability 8.0 on, before in units of 256.

    References
    ----------
    CUDA occupancy API (`cuda_occupancy.h`): allocation units per compute capability.

    Examples
    --------
    >>> a100 = Sm(warps=64, registers=65536, shared_bytes=164 * 1024, slots=32, sms=108, compute_capability=8)
    >>> blocks(np.array([256.0]), np.array([64.0]), np.array([48.0 * 1024]), sm=a100).values.tolist()
    [[8.0, 4.0, 3.0, 32.0]]
    """
    offered = pd.DataFrame({name: np.full(len(block_threads), value) for name, value in asdict(sm).items()})
    return _blocks(block_threads, registers, shared_bytes, offered)


def _blocks(threads: Float, registers: Float, shared: Float, sm: pd.DataFrame) -> pd.DataFrame:
    """Return the four limits; `sm` has a row per launch."""
    warps = _positive(np.ceil(threads / WARP))
    of_warp = _positive(np.ceil(registers * WARP / REGISTER_UNIT) * REGISTER_UNIT)
    at_once = np.floor(sm["registers"].to_numpy() / SCHEDULERS / of_warp) * SCHEDULERS
    ampere = np.where(sm["compute_capability"].isna(), np.nan, sm["compute_capability"] >= 8)
    unit = 256 - 128 * ampere
    kept = np.ceil((shared + 1024 * ampere) / unit) * unit
    return pd.DataFrame(
        {
            "warps": np.floor(sm["warps"].to_numpy() / warps),
            "registers": np.floor(at_once / warps),
            # A block that takes none is bounded by the slots, as the vendor prints it.
            "shared_memory": np.where(kept == 0, sm["slots"], np.floor(sm["shared_bytes"] / _positive(kept))),
            "slots": sm["slots"].to_numpy(),
        }
    )


def _limits(metrics: pd.DataFrame, offered: pd.DataFrame, threads: Float) -> pd.DataFrame:
    """Return the limits measured, and computed where they were not; barriers only when measured."""
    shared = metrics["launch__shared_mem_per_block_static"] + metrics["launch__shared_mem_per_block_dynamic"]
    computed = _blocks(threads, metrics["launch__registers_per_thread"].to_numpy(), shared.to_numpy(), offered)
    measured = {limit: metrics[metric].to_numpy() for limit, metric in _MEASURED.items()}
    return pd.DataFrame({c: first(v, computed[c].to_numpy()) if c in computed else v for c, v in measured.items()})


def _offered(found: pd.DataFrame, sm: Sm) -> pd.DataFrame:
    """Return the limits of the SM that each launch ran on: measured, else as given."""
    given = asdict(sm)
    columns = {}
    for name, metrics in _ATTRIBUTES.items():
        columns[name] = first(*(found[metric].to_numpy() for metric in metrics), np.full(len(found), given[name]))
    return pd.DataFrame(columns)


def _limiter(of_sm: pd.DataFrame, smallest: Float) -> pd.Series:
    """Name the smallest limits of each launch."""
    named = np.full(len(of_sm), "", object)
    for limit in of_sm:
        at = of_sm[limit].to_numpy() == smallest
        named[at] += np.where(named[at] == "", "", ", ") + str(limit).replace("_", " ")
    return pd.Series(named, dtype="string").mask(np.isnan(smallest))


def _waves(computed: Float, measured: Float) -> Float:
    """Return the measured waves, with all their digits where the rule gives the same; a printed 0.00 says nothing."""
    same = np.abs(computed - measured) <= _ROUNDED
    return np.where(same | np.isnan(measured), computed, _positive(measured))


def _positive(values: Float) -> Float:
    return np.where(values > 0, values, np.nan)


def _float(column: pd.Series) -> Float:
    return column.to_numpy("float64", na_value=np.nan)
