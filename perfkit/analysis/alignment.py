"""What did the clock do while kernels ran?

A device of SAMPLES is that of KERNELS with the same rank and gpu. Clocks of a monitoring log and of
a profiler are brought onto one axis by the wall clock, which logs give without a time zone: where
no device has readings in the span of its kernels there is nothing to align, which raises
PerfkitError. A reading that reaches over the edge of a bin counts in both. Weighted by
`covered_ns`, the means of the bins add up to the mean of the whole.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from perfkit.analysis.causes import covered
from perfkit.analysis.grouping import over
from perfkit.analysis.intervals import (
    Axis,
    Bool,
    Float,
    Int,
    Intervals,
    Window,
    devices,
    ends,
    intersect,
    union,
)
from perfkit.analysis.readings import DEVICE, Readings, as_of, held, of_each, readings
from perfkit.errors import PerfkitError
from perfkit.format import duration
from perfkit.tables import KERNELS


@dataclass(frozen=True)
class Aligned:
    """Readings with their devices, and when kernels ran; `both` numbers the devices with readings and kernels."""

    index: pd.DataFrame
    both: Int
    of_reading: Int
    busy: Intervals
    axis: Axis


BELOW = 0.9  # of its maximum: a low clock (convention)
_SOURCES = ("sm_max_clock_hz", "sm_clock_hz")


def clock_under_kernels(
    samples: pd.DataFrame,
    kernels: pd.DataFrame,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the SM clock of each device at the readings at which a kernel ran, against its maximum.

    The maximum is `sm_max_clock_hz` if that was recorded, else the highest reading of the device. A
    clock is low under the share BELOW of it.

    Of devices with clocks and kernels `count` int64, readings while a kernel ran; of these, each
    weighing the same, float64, NaN where there are none: `mean_clock_hz`, `lowest_clock_hz`,
    `low_frac`, share of low ones; `max_clock_hz` float64; `max_source` category: sm_max_clock_hz,
    or sm_clock_hz for the highest reading.
    """
    # The readings of the SM clock, the maximum at each of them, and whether that was recorded.
    found, whole = readings(samples, "sm_clock_hz", window=window), readings(samples, "sm_clock_hz")
    most = as_of(readings(samples, "sm_max_clock_hz"), found)
    # A series of maxima in the place of the readings, so that `as_of` finds the device.
    peak = of_each(np.maximum, whole, whole.value)
    highest = as_of(replace(whole, value=peak[whole.row_series]), found)
    most, recorded = np.where(np.isnan(most), highest, most), ~np.isnan(most)
    joined = aligned(found, kernels, window)
    frame = pd.DataFrame(
        {"device": joined.of_reading, "clock": found.value, "low": found.value < BELOW * most}
    )
    seen = frame[running(found, joined)].groupby("device")
    source = pd.Categorical(np.where(recorded, *_SOURCES), _SOURCES)
    of_device = pd.DataFrame({"max_clock_hz": most, "max_source": source}, joined.of_reading).iloc[
        found.first
    ]
    table = joined.index.iloc[joined.both].assign(count=seen.size())
    table = table.assign(
        count=table["count"].fillna(0).astype("int64"),
        mean_clock_hz=seen["clock"].mean(),
        lowest_clock_hz=seen["clock"].min(),
        low_frac=seen["low"].mean(),
    )
    return table.join(of_device).reset_index(drop=True)


def aligned(found: Readings, kernels: pd.DataFrame, window: Window | None) -> Aligned:
    """Return which device each reading and kernel belongs to, or raise PerfkitError if none has both at one time."""
    index, (of_series, of_kernel) = devices(found.series, KERNELS.check(kernels))
    of_reading = of_series[found.row_series]
    start, end = ends(kernels, window)
    busy = union(start, end, of_kernel)
    axis = Axis.over(len(index), found.time, found.time + found.hold, busy.start, busy.end)
    both = np.intersect1d(of_series, of_kernel)
    if len(of_series) and len(busy.start):
        # Some device must have readings in the span of its kernels.
        first, last = (
            np.full(len(index), np.iinfo(np.int64).max),
            np.full(len(index), np.iinfo(np.int64).min),
        )
        np.minimum.at(first, busy.group, busy.start)
        np.maximum.at(last, busy.group, busy.end)
        read = held(found, of_reading, np.arange(len(found.time)))
        if not len(intersect(read, union(first, last, np.arange(len(index)))).start):
            raise PerfkitError(_apart(found, busy))
    return Aligned(index, both, of_reading, busy, axis)


def _apart(found: Readings, busy: Intervals) -> str:
    late = int(found.time.min()) - int(busy.start.min())
    way = "after" if late > 0 else "before"
    devices_of = ", ".join(
        f"rank {rank} gpu {gpu}"
        for rank, gpu in found.series[DEVICE].drop_duplicates().itertuples(index=False)
    )
    return (
        f"samples: no device ({devices_of[:200]}) has readings in the span of its kernels; the "
        f"first is {duration(abs(late))} {way} the first kernel. Check the time zone of the log, "
        "and that rank and gpu of both name the same devices."
    )


def on(axis: Axis, covering: Intervals) -> Intervals:
    """Return a set of intervals as positions on the axis."""
    return union(*axis.placed(covering))


def running(found: Readings, joined: Aligned) -> Bool:
    """Tell at which readings a kernel ran."""
    at = joined.axis.at(joined.of_reading, found.time)
    return covered(on(joined.axis, joined.busy), at, at + 1) > 0


def bins(
    samples: pd.DataFrame,
    *,
    bins: int = 300,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return mean, least and most of each metric of each device in equal bins of one time axis.

    The bins are of one width, the last one as long as what is left. Where the readings are rarer
    than the bins would be, there are fewer: none but the last is shorter than the usual interval of
    the metric that was read most often.

    `bins`: the largest number of bins, at least 1, else ValueError.
    The bins tile the `window`; when omitted, the time for which the readings count.

    One row per rank, gpu, metric (category) and bin in which a reading counts, ascending:
    `start_ns`, `dur_ns` int64, of the bin; `covered_ns` int64, 1..dur_ns, the time of it for which
    readings count; `count` int64, readings taken in it, 0 where the one before still counts; `mean`
    float64, weighted by time; `min`, `max` float64, of all readings that count; in the unit of the
    metric's suffix.
    """
    if bins < 1:
        raise ValueError(f"bins: {bins} is not at least 1")
    found = readings(samples, window=window)
    # Where most readings of a series repeat a time, each counts for 1 ns at least.
    hold: Int = np.maximum(found.hold, (found.usual == 0)[found.row_series])
    first, last = window or (
        (int(found.time.min()), int((found.time + hold).max())) if len(hold) else (0, 1)
    )
    finest = min(found.usual[found.usual > 0].tolist(), default=1)
    edges = np.append(np.arange(first, last, max(-(-(last - first) // bins), finest)), last)
    place = np.empty((len(found.first), len(edges)), np.int64)
    for number, (row, length) in enumerate(
        zip(found.first.tolist(), found.count.tolist(), strict=True)
    ):
        place[number] = row + np.searchsorted(found.time[row : row + length], edges)
    series, at = np.divmod(np.arange(place[:, 1:].size), len(edges) - 1)
    table = found.series.take(series).reset_index(drop=True)
    table = table.assign(start_ns=edges[at], dur_ns=np.diff(edges)[at])
    begin, stop = place[:, :-1].ravel(), place[:, 1:].ravel()
    table = table.assign(
        **_figures(found, hold, begin, stop, begin > found.first[series], edges[at], edges[at + 1])
    )
    return table[table["covered_ns"] > 0].reset_index(drop=True)


def _figures(
    found: Readings,
    hold: Int,
    begin: Int,
    stop: Int,
    follows: Bool,
    start: Int,
    end: Int,
) -> dict[str, Int | Float]:
    """Return the figures of bins [start, end) with the readings [begin, stop), and of the reading each `follows`."""
    taken = stop > begin
    reaching, until = (
        np.append(found.value, 0)[begin - 1],
        np.append(found.time + hold, 0)[begin - 1],
    )
    reach = np.where(follows, np.clip(until, start, end) - start, 0)
    last = stop[taken] - 1
    hold[last] = np.minimum(hold[last], end[taken] - found.time[last])
    covered = np.where(taken, over(np.add, hold, begin, stop), 0) + reach
    whole = np.where(taken, over(np.add, found.value * hold, begin, stop), 0) + np.where(
        reach > 0, reaching * reach, 0
    )
    low, high = (
        extreme(
            np.where(taken, over(extreme, found.value, begin, stop), limit),
            np.where(reach > 0, reaching, limit),
        )
        for extreme, limit in ((np.minimum, np.inf), (np.maximum, -np.inf))
    )
    return {
        "covered_ns": np.minimum(
            covered, end - start
        ),  # readings of one time may count for 1 ns each
        "count": stop - begin,
        "mean": np.divide(whole, covered, out=np.zeros(len(covered)), where=covered > 0),
        "min": low,
        "max": high,
    }
