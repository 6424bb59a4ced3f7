"""What did the clock do while kernels ran?

Conventions
-----------
A device of SAMPLES is that of KERNELS with the same rank and gpu. Clocks of a monitoring log and of a profiler are
brought onto one axis by the wall clock, which logs give without a time zone: where no device has readings in the span
of its kernels there is nothing to align, which is refused and not answered with nothing.

Functions
---------
clock_under_kernels    the SM clock while kernels run, against its maximum
clock_drops            stretches in which it is low, with the kernel that ran
throttled_kernels      time of kernels under a throttled clock, by cause
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int, intersect, share, total
from perfkit.analysis.monitoring.axes import Aligned, aligned, on, running
from perfkit.analysis.monitoring.limits import CAUSES, held
from perfkit.analysis.monitoring.readings import Float, Readings, as_of, of_each, readings, stretches
from perfkit.analysis.waits import covered, members, placed
from perfkit.analysis.window import Window

BELOW = 0.9
_SOURCES = ("sm_max_clock_hz", "sm_clock_hz")


def clock_under_kernels(
    samples: pd.DataFrame, kernels: pd.DataFrame, *, below: float = BELOW, window: Window | None = None
) -> pd.DataFrame:
    """Return the SM clock of each device at the readings at which a kernel ran, against its maximum.

    Parameters
    ----------
    samples, kernels
        SAMPLES with `sm_clock_hz`, and with `sm_max_clock_hz` if it was recorded, else the highest reading of the
        device is its maximum; KERNELS. In any order, may be empty.
    below
        Share of the maximum under which a clock is low, above 0, at most 1.
    window
        (start_ns, end_ns), half open: readings in it; all when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with clocks and kernels, ascending: `count` int64, readings while a kernel
        ran; of these, each weighing the same, float64, NaN where there are none: `mean_clock_hz`, `lowest_clock_hz`,
        `low_frac`, 0..1, share of low ones; `max_clock_hz` float64; `max_source` category: sm_max_clock_hz, or
        sm_clock_hz for the highest reading.

    Raises
    ------
    PerfkitError
        If neither clocks nor kernels are missing, and no device has readings in the span of its kernels.
    SchemaError
        If an input is not of its table.
    ValueError
        If `below` is not within 0 and 1, or the window does not end after it starts.

    Examples
    --------
    >>> from perfkit.tables import KERNELS, SAMPLES
    >>> clock_under_kernels(SAMPLES.empty(), KERNELS.empty()).columns.tolist()[2:5]
    ['count', 'mean_clock_hz', 'lowest_clock_hz']
    """
    found, most, recorded = _clocks(samples, below, window)
    joined = aligned(found, kernels, window)
    frame = pd.DataFrame({"device": joined.of_reading, "clock": found.value, "low": found.value < below * most})
    seen = frame[running(found, joined)].groupby("device")
    source = pd.Categorical(np.where(recorded, *_SOURCES), _SOURCES)
    of_device = pd.DataFrame({"max_clock_hz": most, "max_source": source}, joined.of_reading).iloc[found.first]
    table = joined.index.iloc[joined.both].assign(count=seen.size())
    table = table.assign(
        count=table["count"].fillna(0).astype("int64"),
        mean_clock_hz=seen["clock"].mean(),
        lowest_clock_hz=seen["clock"].min(),
        low_frac=seen["low"].mean(),
    )
    return table.join(of_device).reset_index(drop=True)


def clock_drops(
    samples: pd.DataFrame, kernels: pd.DataFrame, *, below: float = BELOW, window: Window | None = None
) -> pd.DataFrame:
    """Return the stretches of consecutive readings with a low SM clock, each taken while a kernel ran.

    A stretch reaches from its first low reading to the next reading that is not low.

    Parameters
    ----------
    samples, kernels, below, window
        As in `clock_under_kernels`.

    Returns
    -------
    pandas.DataFrame
        One row per stretch, by rank, gpu (int32) and `start_ns` int64; `dur_ns` int64; `count` int64, readings;
        `lowest_clock_hz`, `max_clock_hz` float64; `kernel_busy_ns` int64, time with a kernel, above 0; `name` category
        of KERNELS, the kernel with the most time in the stretch, and `kernel_ns` int64, that time, over all launches.

    Raises
    ------
    PerfkitError, SchemaError, ValueError
        As in `clock_under_kernels`.

    Examples
    --------
    >>> from perfkit.tables import KERNELS, SAMPLES
    >>> clock_drops(SAMPLES.empty(), KERNELS.empty()).columns.tolist()[5:]
    ['lowest_clock_hz', 'max_clock_hz', 'kernel_busy_ns', 'name', 'kernel_ns']
    """
    found, most, _ = _clocks(samples, below, window)
    joined = aligned(found, kernels, window)
    low = stretches(found, running(found, joined) & (found.value < below * most))
    first, last = found.time[low.first], found.time[low.stop - 1] + found.hold[low.stop - 1]
    device = joined.of_reading[low.first]
    begin, end = joined.axis.at(device, first), joined.axis.at(device, last)
    bounds = np.stack([low.first, low.stop], axis=1).ravel()
    # reduceat answers for what lies between two stretches as well; 0 stands behind the last value for its end.
    lowest = np.minimum.reduceat(np.append(found.value, 0), bounds)[::2] if len(bounds) else np.zeros(0)
    name, spent = _most_time(kernels, joined, begin, end)
    return (
        joined.index.take(device)
        .reset_index(drop=True)
        .assign(
            start_ns=first,
            dur_ns=last - first,
            count=low.stop - low.first,
            lowest_clock_hz=lowest,
            max_clock_hz=most[low.first],
            kernel_busy_ns=covered(on(joined.axis, joined.busy), begin, end),
            name=name,
            kernel_ns=spent,
        )
    )


def throttled_kernels(samples: pd.DataFrame, kernels: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the time in which kernels ran under a lowered clock, by cause.

    Causes and their metrics are those of `throttling`; a reading holds until the next one.

    Parameters
    ----------
    samples, kernels, window
        As in `clock_under_kernels`, with event reasons or violation counters.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with both, ascending; int64 ns: `kernel_busy_ns`, time with a kernel for which
        a cause was recorded, `power_ns`, `thermal_ns`, `other_ns` of it, `throttled_ns`, any of them; `throttled_frac`
        float64, 0..1, of `kernel_busy_ns`, NaN where that is 0.

    Raises
    ------
    PerfkitError, SchemaError, ValueError
        As in `clock_under_kernels`.

    Examples
    --------
    >>> from perfkit.tables import KERNELS, SAMPLES
    >>> throttled_kernels(SAMPLES.empty(), KERNELS.empty()).columns.tolist()[2:6]
    ['kernel_busy_ns', 'power_ns', 'thermal_ns', 'other_ns']
    """
    found = readings(samples, *(metric for metrics in CAUSES.values() for metric in metrics), window=window)
    joined = aligned(found, kernels, window)
    metric = found.series["metric"].astype(object)

    def under(metrics: tuple[str, ...], above: float) -> Int:
        rows = np.flatnonzero(metric.isin(metrics).to_numpy()[found.row_series] & (found.value > above))
        return total(intersect(held(found, joined.of_reading, rows), joined.busy), len(joined.index))

    table = joined.index.assign(kernel_busy_ns=under(tuple(metric), -np.inf))
    for name, metrics in {**CAUSES, "throttled": tuple(metric)}.items():
        table[f"{name}_ns"] = under(metrics, 0.0)
    table["throttled_frac"] = share(table["throttled_ns"].to_numpy(), table["kernel_busy_ns"].to_numpy())
    return table.iloc[joined.both].reset_index(drop=True)


def _clocks(samples: pd.DataFrame, below: float, window: Window | None) -> tuple[Readings, Float, NDArray[np.bool_]]:
    """Return the readings of the SM clock, the maximum at each of them, and whether that was recorded."""
    if not 0 < below <= 1:
        raise ValueError(f"below: {below} is not within 0 and 1")
    found, whole = readings(samples, "sm_clock_hz", window=window), readings(samples, "sm_clock_hz")
    most = as_of(readings(samples, "sm_max_clock_hz"), found)
    # A series of maxima in the place of the readings, so that `as_of` finds the device.
    peak = of_each(np.maximum, whole, whole.value)
    highest = as_of(replace(whole, value=peak[whole.row_series]), found)
    return found, np.where(np.isnan(most), highest, most), ~np.isnan(most)


def _most_time(kernels: pd.DataFrame, joined: Aligned, begin: Int, end: Int) -> tuple[pd.Series, Int]:
    """Return the name of the kernel with the most time in each stretch [begin, end) of the axis, and that time."""
    intervals = placed(kernels[["start_ns", "dur_ns"]], joined.of_kernel, joined.axis)
    lowest = np.searchsorted(np.maximum.accumulate(intervals.end), begin, side="right")
    above = np.searchsorted(intervals.start, end, side="left")
    stretch, at = members(lowest, np.maximum(above - lowest, 0))
    inside = np.minimum(intervals.end[at], end[stretch]) - np.maximum(intervals.start[at], begin[stretch])
    row = intervals.row[at]
    code = kernels["name"].cat.codes.to_numpy()[row]
    pairs = pd.DataFrame({"stretch": stretch, "code": code, "spent": inside, "row": row})[inside > 0]
    spent = pairs.groupby(["stretch", "code"]).agg(spent=("spent", "sum"), row=("row", "first")).reset_index()
    most = spent.sort_values(["stretch", "spent"], ascending=[True, False], kind="stable").drop_duplicates("stretch")
    return kernels["name"].take(most["row"].to_numpy()).reset_index(drop=True), most["spent"].to_numpy(np.int64)
