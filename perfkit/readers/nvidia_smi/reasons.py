"""Why was the clock lowered: NVML's event reasons as four metrics.

Conventions
-----------
The bits are those of ``nvmlClocksEventReasons`` (NVML API reference, group nvmlClocksEventReasons; before driver 535
nvmlClocksThrottleReasons, with the same values). Power is the software power cap and the hardware power brake,
heat the software and the hardware thermal slowdown. ``hw_slowdown`` is set with either hardware cause, so it counts as
another reason only where neither is set. A metric is told where one of its reasons was recorded; with the cause of a
hardware slowdown unrecorded, power and heat are not denied.

Functions
---------
throttling   metrics per row of a log
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.nvidia_smi.fields import is_missing
from perfkit.readers.nvidia_smi.log import Column, Unreadable

BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "display_clocks_setting": 0x100,
}
PREFIXES = ("clocks_event_reasons.", "clocks_throttle_reasons.")
IDLE, POWER, THERMAL, HARDWARE, HARDWARE_CAUSES = 0x1, 0x84, 0x60, 0x8, 0xC0
OTHER = ~(IDLE | POWER | THERMAL)
METRICS = {"throttled_power_frac": POWER, "throttled_thermal_frac": THERMAL, "throttled_other_frac": OTHER}
STATES = {"Active": 1, "Not Active": 0}
EVERY = -1  # every bit, as a mask


def throttling(columns: Mapping[str, Column]) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """Return the metrics that the reasons tell, and notes.

    Returns
    -------
    tuple
        Per metric (``throttled_power_frac``, ``throttled_thermal_frac``, ``throttled_other_frac``, ``idle_frac``) an
        array with 1 or 0 per row, NaN where nothing tells; one note per metric that a part of its reasons tells.

    Raises
    ------
    Unreadable
        At the first cell that is no reason.
    """
    named = {name.removeprefix(p): name for p in PREFIXES for name in columns if name.startswith(p)}
    if "active" in named:
        active, told = _mask(named["active"], columns[named["active"]])
        asked = EVERY
    else:
        single = {reason: name for reason, name in named.items() if reason in BITS}
        if not single:
            return {}, []
        active, told = _from_singles({BITS[reason]: (name, columns[name]) for reason, name in single.items()})
        asked = sum({BITS[reason] for reason in single})
    return _metrics(active, told), _partly(asked)


def _mask(name: str, column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the column ``active``: a mask in hexadecimal."""
    masks = np.zeros(len(column.texts), np.int64)
    told = np.zeros(len(column.texts), np.int64)
    for i, text in enumerate(column.texts):
        if not is_missing(text):
            try:
                masks[i], told[i] = int(text, 16), EVERY
            except (ValueError, OverflowError):
                raise Unreadable(name, column, i) from None
            if masks[i] < 0:
                raise Unreadable(name, column, i)
    return masks[column.codes], told[column.codes]


def _from_singles(columns: Mapping[int, tuple[str, Column]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join columns of one reason each."""
    rows = len(next(iter(columns.values()))[1].codes)
    active, told = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for bit, (name, column) in columns.items():
        states = np.full(len(column.texts), -1)
        for i, text in enumerate(column.texts):
            if not is_missing(text):
                if text not in STATES:
                    raise Unreadable(name, column, i)
                states[i] = STATES[text]
        state = states[column.codes]
        active |= np.where(state == 1, bit, 0)
        told |= np.where(state >= 0, bit, 0)
    denied = (told & HARDWARE != 0) & (active & HARDWARE == 0)
    return active, told | np.where(denied, HARDWARE_CAUSES, 0)


def _metrics(active: NDArray[np.int64], told: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    explained = active & HARDWARE_CAUSES != 0
    unexplained = (active & HARDWARE != 0) & ~explained & (told & HARDWARE_CAUSES != HARDWARE_CAUSES)
    active = np.where(explained, active & ~HARDWARE, active)
    made = {"idle_frac": np.where(told & IDLE != 0, (active & IDLE != 0).astype(float), np.nan)}
    for metric, bits in METRICS.items():
        denied = (active & bits == 0) & (unexplained if bits != OTHER else False)
        value = np.where(denied, np.nan, (active & bits != 0).astype(float))
        made[metric] = np.where(told & bits != 0, value, np.nan)
    return {metric: values for metric, values in made.items() if not np.isnan(values).all()}


def _partly(asked: int) -> list[str]:
    """Name the metrics that a part of their reasons decides."""
    asked |= HARDWARE_CAUSES if asked & HARDWARE else 0
    names = {bit: name for name, bit in reversed(BITS.items())}
    notes = []
    for metric, bits in METRICS.items():
        lacking = [name for bit, name in names.items() if bit & bits and not bit & asked]
        if lacking and bits & asked and bits != OTHER:
            notes.append(f"{metric} knows nothing of {', '.join(sorted(lacking))}: query clocks_event_reasons.active")
    return notes
