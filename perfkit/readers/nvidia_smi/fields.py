"""Which metric a column of nvidia-smi is, and how much a cell of it says.

Conventions
-----------
Columns go by the names of ``--query-gpu``; those of ``-q`` are brought to them, with a few that only ``-q`` has
(``temperature.slowdown``, ``pcie.rx``). Of several columns for one metric
the first in `FIELDS` that has a value is read: ``power.draw`` is a mean over 1 s since Ampere and instantaneous
before. dmon's MB of memory are MiB; its MB/s and the KB/s of ``-q`` are taken as printed, decimal.

Functions
---------
scale        how much a printed unit is in the unit of a metric
amounts      values of cells in the unit of their metric
is_missing   whether a cell says that there is no value
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

COUNTERS = "clocks_event_reasons_counters."
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu_busy_frac": ("utilization.gpu",),
        "memory_busy_frac": ("utilization.memory",),
        "encoder_busy_frac": ("utilization.encoder",),
        "decoder_busy_frac": ("utilization.decoder",),
        "jpeg_busy_frac": ("utilization.jpeg",),
        "ofa_busy_frac": ("utilization.ofa",),
        "sm_active_frac": ("smutil",),
        "sm_occupancy_frac": ("smocc",),
        "power_w": ("power.draw", "power.draw.instant", "power.draw.average"),
        "power_limit_w": ("enforced.power.limit", "power.limit"),
        "temperature_c": ("temperature.gpu",),
        "memory_temperature_c": ("temperature.memory",),
        "temperature_margin_c": ("temperature.gpu.tlimit",),
        "temperature_max_c": ("temperature.max",),
        "temperature_slowdown_c": ("temperature.slowdown",),
        "temperature_shutdown_c": ("temperature.shutdown",),
        "fan_frac": ("fan.speed",),
        "sm_clock_hz": ("clocks.current.sm", "clocks.sm"),
        "memory_clock_hz": ("clocks.current.memory", "clocks.mem"),
        "sm_max_clock_hz": ("clocks.max.sm",),
        "memory_used_bytes": ("memory.used",),
        "memory_free_bytes": ("memory.free",),
        "memory_total_bytes": ("memory.total",),
        "driver_reserved_bytes": ("memory.reserved",),
        "bar1_used_bytes": ("bar1.used",),
        "pcie_rx_bytes_per_s": ("pcie.rx",),
        "pcie_tx_bytes_per_s": ("pcie.tx",),
        "power_violation_frac": ("pviol",),
        "thermal_violation_frac": ("tviol",),
        "throttled_sw_power_ns": (f"{COUNTERS}sw_power_cap",),
        "throttled_power_brake_ns": (f"{COUNTERS}hw_power_brake_slowdown",),
        "throttled_sw_thermal_ns": (f"{COUNTERS}sw_thermal_slowdown",),
        "throttled_hw_thermal_ns": (f"{COUNTERS}hw_thermal_slowdown",),
        "throttled_sync_boost_ns": (f"{COUNTERS}sync_boost",),
        "ecc_corrected_count": ("ecc.errors.corrected.volatile.total",),
        "ecc_uncorrected_count": ("ecc.errors.uncorrected.volatile.total",),
        "ecc_corrected_lifetime_count": ("ecc.errors.corrected.aggregate.total",),
        "ecc_uncorrected_lifetime_count": ("ecc.errors.uncorrected.aggregate.total",),
        "pcie_replay_count": ("pcie.replays",),
    }
)
# dmon's columns and their units, for a log that lost the row of units; `e` are "aggregated" errors, as nvidia-smi's
# manual says, which NVML counts over the life of the GPU.
DMON: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pwr": ("power.draw", "W"),
        "gtemp": ("temperature.gpu", "C"),
        "temp": ("temperature.gpu", "C"),
        "mtemp": ("temperature.memory", "C"),
        "sm": ("utilization.gpu", "%"),
        "mem": ("utilization.memory", "%"),
        "enc": ("utilization.encoder", "%"),
        "dec": ("utilization.decoder", "%"),
        "jpg": ("utilization.jpeg", "%"),
        "ofa": ("utilization.ofa", "%"),
        "mclk": ("clocks.current.memory", "MHz"),
        "pclk": ("clocks.current.sm", "MHz"),
        "pviol": ("pviol", "%"),
        "tviol": ("tviol", "bool"),
        "fb": ("memory.used", "MB"),
        "bar1": ("bar1.used", "MB"),
        "sbecc": ("ecc.errors.corrected.aggregate.total", "errs"),
        "dbecc": ("ecc.errors.uncorrected.aggregate.total", "errs"),
        "pci": ("pcie.replays", "errs"),
        "rxpci": ("pcie.rx", "MB/s"),
        "txpci": ("pcie.tx", "MB/s"),
        "smutil": ("smutil", "GPM:%"),
        "smocc": ("smocc", "GPM:%"),
    }
)
METRICS = MappingProxyType({name: metric for metric, names in FIELDS.items() for name in names})
PERCENT = 0.01
# By the suffix of the metric: how much one of a printed unit is; the first where none is printed.
UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "_bytes_per_s": {"MB/s": 1e6, "KB/s": 1e3},
        "_bytes": {"MiB": 2**20, "MB": 2**20, "KiB": 2**10, "GiB": 2**30},
        "_frac": {"%": PERCENT, "GPM:%": PERCENT, "bool": 1},
        "_hz": {"MHz": 1e6},
        "_w": {"W": 1},
        "_c": {"C": 1},
        "_ns": {"us": 1000},
        "_count": {"": 1, "errs": 1, "errors": 1},
    }
)
NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,15})?)\s*(\S*)", re.ASCII)
MISSING = (
    *("N/A", "-", "Not Supported", "Unknown Error", "Not Found", "Function Not Found", "Insufficient Permissions"),
    "Requested functionality has been deprecated",
)


def scale(unit: str, metric: str) -> float | None:
    """Return how much one of a printed unit is in the unit of `metric`, None if it is none of that quantity.

    Examples
    --------
    >>> scale("MiB", "memory_used_bytes"), scale("", "sm_clock_hz"), scale("MiB", "power_w")
    (1048576, 1000000.0, None)
    """
    units = next(units for suffix, units in UNITS.items() if metric.endswith(suffix))
    return units.get(unit or next(iter(units)))


def amounts(texts: Sequence[str], unit: str, metric: str) -> NDArray[np.float64]:
    """Return the value of each cell in the unit of `metric`, NaN where it says that there is none.

    Raises
    ------
    ValueError
        With the position of the first cell that is neither.

    Examples
    --------
    >>> amounts(["17304 MiB", "[Not Supported]"], "MiB", "memory_used_bytes")
    array([1.81445591e+10,            nan])
    """
    whole = scale(unit, metric)
    if whole and all(texts) and (together := "".join(texts)).isascii() and together.isdecimal():
        numbers = np.array([float(text) for text in texts])
        return numbers / 100 if whole == PERCENT else numbers * whole
    values, by = np.full(len(texts), np.nan), np.ones(len(texts))
    scales: dict[str, float | None] = {}
    for i, text in enumerate(texts):
        found = NUMBER.fullmatch(text)
        printed = found[2] or unit if found else ""
        if printed not in scales:
            scales[printed] = scale(printed, metric)
        factor = scales[printed]
        if found and factor:
            values[i], by[i] = float(found[1]), factor
        elif not is_missing(text):
            raise ValueError(i)
    return np.where(by == PERCENT, values / 100, values * by)  # dividing is exact to the last digit


def is_missing(text: str) -> bool:
    """Say whether a cell says that there is no value: newer versions put brackets around the reason."""
    return text in MISSING or (text.startswith("[") and text.endswith("]"))
