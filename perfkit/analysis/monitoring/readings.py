"""The readings of some metrics, series by series, and the time that each of them counts for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.window import Window, bounds, devices
from perfkit.tables import SAMPLES

Float = NDArray[np.float64]
DEVICE = ["rank", "gpu"]


@dataclass(frozen=True)
class Readings:
    """Readings by series and time; a series is a metric of a device.

    `series` has rank, gpu and metric, ascending, and `first` the row with which each begins; `usual` is its usual
    interval, ns, 0 where it has one reading. `hold` is for how long each reading counts, ns, above 0 in sum.
    """

    series: pd.DataFrame
    first: Int
    time: Int
    value: Float
    hold: Int
    usual: Int

    @property
    def stop(self) -> Int:
        """The row after the last of each series."""
        return np.append(self.first, len(self.time))[1:]

    @property
    def count(self) -> Int:
        """How many readings each series has."""
        return self.stop - self.first

    @property
    def row_series(self) -> Int:
        """The series of each reading."""
        return np.repeat(np.arange(len(self.first)), self.count)


class Stretches(NamedTuple):
    """Runs of consecutive readings of one series, [first, stop)."""

    series: Int
    first: Int
    stop: Int


def readings(samples: pd.DataFrame, *metrics: str, window: Window | None = None) -> Readings:
    """Return the readings of `metrics`, all if none is named, with window start <= time < end.

    A reading holds until the next of its series, the last one for the usual interval: the median, of two middle ones
    the lower. A series that spans no time counts every reading for 1 ns.
    """
    seen = _seen(SAMPLES.check(samples), metrics, window)
    index, (device,) = devices(seen)
    names = sorted(map(str, seen["metric"].cat.categories))
    place = np.array([names.index(str(name)) for name in seen["metric"].cat.categories], np.int64)
    key = device * max(len(names), 1) + place[seen["metric"].cat.codes.to_numpy()]
    time, value = seen["time_ns"].to_numpy(), seen["value"].to_numpy()
    later = np.diff(key)
    if not ((later > 0) | ((later == 0) & (time[1:] >= time[:-1]))).all():
        order = np.lexsort((time, key))
        key, time, value = key[order], time[order], value[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    series = index.take(key[first] // max(len(names), 1)).reset_index(drop=True)
    series["metric"] = pd.Categorical(np.array(names, object)[key[first] % max(len(names), 1)], names)
    return Readings(series, first, time, value, *_holds(time, first))


def _seen(samples: pd.DataFrame, metrics: tuple[str, ...], window: Window | None) -> pd.DataFrame:
    seen = samples
    if metrics:
        codes = samples["metric"].cat.codes.to_numpy()
        wanted = [code for code, name in enumerate(samples["metric"].cat.categories) if name in metrics]
        # A comparison per metric is many times faster than a look-up per reading.
        chosen = np.logical_or.reduce([codes == code for code in wanted] or [codes < -1])
        seen = samples if chosen.all() else samples.take(np.flatnonzero(chosen))
    keep = seen["value"].notna().to_numpy() & (seen["metric"].cat.codes.to_numpy() >= 0)
    if window is not None:
        start, end = bounds(window)
        keep &= ((seen["time_ns"] >= start) & (seen["time_ns"] < end)).to_numpy()
    return seen if keep.all() else seen[keep]


def _holds(time: Int, first: Int) -> tuple[Int, Int]:
    """Return how long each reading counts, and the usual interval of each series."""
    stop = np.append(first, len(time))[1:]
    hold = np.diff(time, append=0)
    usual = np.zeros(len(first), np.int64)
    for number, (begin, end) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        intervals = hold[begin : end - 1]
        if len(intervals):
            usual[number] = np.partition(intervals, (len(intervals) - 1) // 2)[(len(intervals) - 1) // 2]
        hold[end - 1] = usual[number]
        if time[end - 1] == time[begin]:
            hold[begin:end] = 1
    return hold, usual


def means(found: Readings, value: Float | NDArray[np.bool_] | None = None) -> Float:
    """Return the time-weighted mean of each series, of `value` where that is given instead of the readings' own.

    Examples
    --------
    >>> frame = pd.DataFrame({"rank": 0, "gpu": 0, "time_ns": [0, 10, 40], "metric": "power_w", "value": [1.0, 2.0, 9]})
    >>> means(readings(SAMPLES.make(frame))).tolist()
    [3.2]
    """
    weighted = (found.value if value is None else value) * found.hold
    return np.asarray(of_each(np.add, found, weighted) / of_each(np.add, found, found.hold), np.float64)


def of_each(over: np.ufunc, found: Readings, value: NDArray[Any]) -> NDArray[Any]:
    """Return a ufunc's reduction over the rows of each series."""
    return np.asarray(over.reduceat(value, found.first) if len(found.first) else value)


def over(how: np.ufunc, values: NDArray[Any], first: Int, stop: Int) -> NDArray[Any]:
    """Return values[first:stop] joined by `how` for each of these ranges; of an empty range anything."""
    # reduceat answers for what lies between two ranges as well; 0 stands behind the last value for its end.
    return np.asarray(how.reduceat(np.append(values, 0), np.stack([first, stop], axis=1).ravel())[::2])


def wide(found: Readings, values: Float, metrics: tuple[str, ...]) -> pd.DataFrame:
    """Return a value per series with one row per device (index rank, gpu) and one column per metric, NaN where none."""
    table = found.series.astype({"metric": object}).assign(value=values)
    return table.pivot_table(index=DEVICE, columns="metric", values="value").reindex(columns=list(metrics))


def stretches(found: Readings, fulfils: NDArray[np.bool_]) -> Stretches:
    """Return the longest runs of readings of one series that fulfil a condition, by series and time."""
    row = np.flatnonzero(fulfils)
    begins = np.flatnonzero((np.diff(row, prepend=-2) != 1) | np.isin(row, found.first))
    first = row[begins]
    stop = row[np.append(begins[1:], len(row)) - 1] + 1 if len(row) else row
    return Stretches(np.searchsorted(found.first, first, side="right") - 1, first, stop)


def as_of(other: Readings, found: Readings) -> Float:
    """Return, at each reading, the latest value of `other` (one metric), at first its first; NaN without the device."""
    value = np.full(len(found.time), np.nan)
    places = {device: n for n, device in enumerate(zip(*(other.series[key] for key in DEVICE), strict=True))}
    for number, device in enumerate(zip(*(found.series[key] for key in DEVICE), strict=True)):
        if device in places:
            begin, end = other.first[places[device]], other.stop[places[device]]
            rows = slice(found.first[number], found.stop[number])
            at = np.searchsorted(other.time[begin:end], found.time[rows], side="right") - 1
            value[rows] = other.value[begin:end][np.maximum(at, 0)]
    return value
