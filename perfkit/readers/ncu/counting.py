"""How long did each launch take, and how often did something happen in it?

Conventions
-----------
One value per launch; NaN is not measured, and a sum with one part missing is missing.

Functions
---------
durations   time of each launch
count       how often something happened
first       the first figure that is known
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.ncu.report import Report

Values = NDArray[np.float64]


def durations(report: Report) -> Values:
    """Return the time of each launch, ns: as measured, else its own cycles over its own clock."""
    found = report.column(*(f"gpu__time_duration.{form}" for form in ("sum", "max", "avg")))
    for unit in ("sm", "smsp", "gpc"):
        cycles = report.column(f"{unit}__cycles_elapsed.avg", f"{unit}__cycles_elapsed.max")
        clock = report.column(f"{unit}__cycles_elapsed.avg.per_second")
        found = first(found, cycles / np.where(clock > 0, clock, np.nan) * 1e9)
    return found


def count(report: Report, metric: str) -> Values:
    """Return how often something happened: the sum, else a rate times the launch's own time or cycles."""
    seconds = durations(report) / 1e9
    cycles = report.column(f"{metric.partition('__')[0]}__cycles_elapsed.avg.per_second") * seconds
    return first(
        report.column(f"{metric}.sum"),
        report.column(f"{metric}.sum.per_second") * seconds,
        report.column(f"{metric}.sum.per_cycle_elapsed") * cycles,
    )


def first(*choices: Values) -> Values:
    """Return the first of several figures that is known, launch by launch.

    Examples
    --------
    >>> first(np.array([1.0, np.nan]), np.array([5.0, 6.0]))
    array([1., 6.])
    """
    return reduce(lambda known, other: np.where(np.isnan(known), other, known), choices)
