"""Readings and kernels on one axis of time.

Functions
---------
aligned    which device each reading and kernel belongs to; refused where none has both at one time
on         a set of intervals as positions on the axis
running    the readings at which a kernel ran
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int, Intervals, intersect, total, union
from perfkit.analysis.monitoring.limits import held
from perfkit.analysis.monitoring.readings import DEVICE, Readings
from perfkit.analysis.waits import Axis, covered
from perfkit.analysis.window import Window, devices, ends
from perfkit.errors import PerfkitError
from perfkit.format import duration
from perfkit.tables import KERNELS


@dataclass(frozen=True)
class Aligned:
    """Readings and kernels with their devices; `both` are the numbers of those that have readings and kernels."""

    index: pd.DataFrame
    both: Int
    of_reading: Int
    of_kernel: Int
    busy: Intervals
    axis: Axis


def aligned(found: Readings, kernels: pd.DataFrame, window: Window | None) -> Aligned:
    """Return which device each reading and kernel belongs to, or raise PerfkitError if none has both at one time."""
    index, (of_series, of_kernel) = devices(found.series, KERNELS.check(kernels))
    of_reading = of_series[found.row_series]
    start, end = ends(kernels, window)
    busy = union(start, end, of_kernel)
    axis = Axis.over(len(index), found.time, found.time + found.hold, busy.start, busy.end)
    both = np.intersect1d(of_series, of_kernel)
    if len(of_series) and len(busy.start) and not _meet(found, of_reading, busy, len(index)):
        raise PerfkitError(_apart(found, busy))
    return Aligned(index, both, of_reading, of_kernel, busy, axis)


def _meet(found: Readings, of_reading: Int, busy: Intervals, count: int) -> bool:
    """Tell whether some device has readings in the span of its kernels."""
    rows = np.arange(len(found.time))
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, busy.group, busy.start)
    np.maximum.at(last, busy.group, busy.end)
    spans = union(first, last, np.arange(count))
    return bool(total(intersect(held(found, of_reading, rows), spans), count).any())


def _apart(found: Readings, busy: Intervals) -> str:
    late = int(found.time.min()) - int(busy.start.min())
    way = "after" if late > 0 else "before"
    devices_of = ", ".join(
        f"rank {rank} gpu {gpu}" for rank, gpu in found.series[DEVICE].drop_duplicates().itertuples(index=False)
    )
    return (
        f"samples: no device ({devices_of[:200]}) has readings in the span of its kernels; the first is "
        f"{duration(abs(late))} {way} the first kernel. Check the time zone of the log, and that rank and gpu of both "
        "name the same devices."
    )


def on(axis: Axis, covering: Intervals) -> Intervals:
    """Return a set of intervals as positions on the axis."""
    begin, end = (axis.at(covering.group, time) for time in (covering.start, covering.end))
    return Intervals(begin, end, np.zeros_like(begin))


def running(found: Readings, joined: Aligned) -> NDArray[np.bool_]:
    """Tell at which readings a kernel ran."""
    at = joined.axis.at(joined.of_reading, found.time)
    return covered(on(joined.axis, joined.busy), at, at + 1) > 0
