"""From the numbers that DCGM prints to those of SAMPLES: blank values, scale, event reasons.

Conventions: arrays of one field, NaN is missing; nothing is clipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfkit.format import number
from perfkit.readers.dcgm.fields import PERCENT, RATIOS, Field

Values = NDArray[np.float64]

EXACT = 2.0**53  # up to here every whole number is a float64

# dcgm_structs.h: a blank value, and not found, not supported, no permission above it.
BLANKS = [*range(2147483632, 2147483636), *range(140737488355328, 140737488355332)]
BLANK_INT64 = 9223372036854775792.0
OVERSHOOT = 1.1  # a ratio of two counters that are not read at the same time: NVIDIA/DCGM issue 152

# Bits of the event reasons (dcgm_fields.h, the same as nvml.h). A hardware slowdown has its cause in another bit, and
# is another reason than power and heat where it has none.
IDLE, POWER, THERMAL, HARDWARE, HARDWARE_CAUSES = 0x1, 0x84, 0x60, 0x8, 0xC0


def decimal(text: str) -> float | None:
    """Return the number that a tool printed, None if it is none: Python would read ``1_000`` and foreign digits too."""
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def without_blanks(values: Values) -> Values:
    """Return `values` with NaN for what DCGM writes where there is no value."""
    absent = np.isin(values, BLANKS) | (values >= BLANK_INT64) | np.isinf(values)
    return np.where(absent, np.nan, values)


def scaled(values: Values, field: Field) -> tuple[Values, str]:
    """Return the values of a field in the unit of its metric, and a note if they were not what the field promises.

    A percentage outside 0..100 is missing (NVIDIA/DCGM issue 199). Fields 1001 to 1008 are ratios of 0..1; where most
    of the values above 0 are greater than 1 they were written as percent, and where they are neither one nor the
    other none is believed.
    """
    if field.scale == PERCENT and field.metric != "fan_frac":
        return _within(values / 100, 1.0, field)
    if field.number not in RATIOS:
        return values * field.scale, ""
    possible, note = _within(values, 100.0, field)
    above = possible > 1
    if not above.any():
        return possible, note
    if above.sum() > (possible > 0).sum() / 2:
        return possible / 100, f"{field.metric}: written as percent (up to {number(float(np.nanmax(possible)))})"
    if np.nanmax(possible) > OVERSHOOT:
        wrong = number(float(np.nanmax(possible)))
        return np.full_like(values, np.nan), f"{field.metric}: left out, it should be at most 1 and is up to {wrong}"
    return _within(values, 1.0, field)


def _within(values: Values, most: float, field: Field) -> tuple[Values, str]:
    impossible = (values < 0) | (values > most)
    if not impossible.any():
        return values, ""
    example = number(float(values[impossible][0]))
    note = f"{field.metric}: values that cannot be are left out ({int(impossible.sum())}, such as {example})"
    return np.where(impossible, np.nan, values), note


def reasons(values: Values) -> dict[str, Values]:
    """Return the metrics that a mask of event reasons says, each 1 or 0."""
    known = (values >= 0) & (values < EXACT) & (np.floor(values) == values)  # False for NaN and for what is no mask
    mask = np.where(known, values, 0).astype(np.int64)
    explained = mask & HARDWARE_CAUSES != 0
    other = mask & ~(IDLE | POWER | THERMAL) & np.where(explained, ~HARDWARE, -1)
    said = {
        "throttled_power_frac": mask & POWER,
        "throttled_thermal_frac": mask & THERMAL,
        "throttled_other_frac": other,
        "idle_frac": mask & IDLE,
    }
    return {metric: np.where(known, (bits != 0).astype(np.float64), np.nan) for metric, bits in said.items()}
