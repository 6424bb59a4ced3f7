"""What the rates of all work have in common: their columns, and that none is beyond the data sheet.

Functions
---------
timed       the columns of `TIMES` and a rate
peak_frac   share of a peak; above 110 % it is refused
above_zero  refuse other times
"""

from __future__ import annotations

from statistics import median
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.format import number, percent
from perfkit.schema import Column

TIMES = (
    Column("count", "int64", "repeats"),
    Column("median_ns", "float64", "time of the median repeat"),
    Column("min_ns", "float64", "time of the fastest repeat"),
    Column("max_ns", "float64", "time of the slowest repeat"),
)
BEYOND = 1.1  # of a peak: more than boost clocks and the rounding of data sheets explain


def above_zero(seconds: float) -> None:
    """Raise ValueError if a time is not above 0."""
    if not seconds > 0:
        raise ValueError(f"seconds: {seconds} is not above 0")


def timed(times: list[float], rate: str, amount: int) -> dict[str, Any]:
    """Return what `TIMES` says of repeats (ns), and under the name `rate` the amount per second of the median one."""
    middle = median(times)
    ends = {"median_ns": middle, "min_ns": min(times), "max_ns": max(times)}
    return {"count": len(times), **ends, rate: amount / (middle / 1e9)}


def peak_frac(name: str, what: str, rate: float, peak: float | None, unit: str) -> float:
    """Return the rate's share of the peak, NaN if none is known; above 110 % it is refused."""
    if peak is None:
        return float("nan")
    if rate > BEYOND * peak:
        raise PerfkitError(
            f"{what} on {name}: measured {number(rate / 1e12)} T{unit}, {percent(rate / peak)} of the peak, so another "
            "work was timed. Unset NVIDIA_TF32_OVERRIDE, compare the name with `nvidia-smi -L`, and measure again."
        )
    return rate / peak
