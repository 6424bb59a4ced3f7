"""The readings of SAMPLES, series by series, and the time that each counts for.

How high was each metric on average, and for how much of the time was the clock lowered? `samples`
is SAMPLES, in any order. `window` selects the readings in it. A result has one row per rank and gpu
that has what is asked for, ascending.

A reading counts for the time until the next one of the same metric and device, the last one for the
usual interval: means, percentiles and shares of time are weighted so, because a log's interval
varies, most of all where the machine is busy. What is missing in the log (no row, or NaN) counts
for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import (
    Bool,
    Float,
    Int,
    Intervals,
    Window,
    bounds,
    devices,
    total,
    union,
)
from perfkit.tables import SAMPLES

DEVICE = ["rank", "gpu"]
PERCENTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}
BUSY = ("gpu_busy_frac", "graphics_active_frac")
# A log is regular if at least this share of three intervals or more lies so near to the usual one.
REGULAR, EVEN, FEWEST = 0.9, 0.25, 3


@dataclass(frozen=True)
class Readings:
    """Readings by series and time; a series is a metric of a device.

    `series` has rank, gpu and metric, ascending, and `first` the row with which each begins;
    `usual` is its usual interval, ns, 0 where it has one reading. `hold` is for how long each
    reading counts, ns, above 0 in sum.
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
    def spans(self) -> Bool:
        """Whether the readings of each series span some time: a single one has no duration."""
        return np.asarray(self.time[self.stop - 1] > self.time[self.first], bool)

    @property
    def row_series(self) -> Int:
        """The series of each reading."""
        return np.repeat(np.arange(len(self.first)), self.count)


# Event reasons and violation counters that tell of each cause.
CAUSES = {
    "power": ("throttled_power_frac", "power_violation_frac"),
    "thermal": ("throttled_thermal_frac", "thermal_violation_frac"),
    "other": ("throttled_other_frac",),
}
# Counters of the time with a lowered clock, which stand in for a cause without any of these.
COUNTERS = {"power": ("power_violation_ns",), "thermal": ("thermal_violation_ns",)}
# Counters of the event reasons themselves: they know what happened between two readings of the
# reasons.
OF_REASONS = {
    "power": ("throttled_sw_power_ns", "throttled_power_brake_ns"),
    "thermal": ("throttled_sw_thermal_ns", "throttled_hw_thermal_ns"),
}
COUNTED = tuple(
    metric
    for counters in (OF_REASONS, COUNTERS)
    for metrics in counters.values()
    for metric in metrics
)


def readings(samples: pd.DataFrame, *metrics: str, window: Window | None = None) -> Readings:
    """Return the readings of `metrics`, all if none is named, with window start <= time < end.

    A reading holds until the next of its series, the last one for the usual interval: the median,
    of two middle ones the lower. A series that spans no time counts every reading for 1 ns.
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
    series["metric"] = pd.Categorical(
        np.array(names, object)[key[first] % max(len(names), 1)], names
    )
    return Readings(series, first, time, value, *_holds(time, first))


def _seen(samples: pd.DataFrame, metrics: tuple[str, ...], window: Window | None) -> pd.DataFrame:
    keep = samples["value"].notna() & samples["metric"].notna()
    if metrics:
        keep &= samples["metric"].isin(metrics)
    if window is not None:
        start, end = bounds(window)
        keep &= (samples["time_ns"] >= start) & (samples["time_ns"] < end)
    return samples if keep.all() else samples[keep]


def _holds(time: Int, first: Int) -> tuple[Int, Int]:
    """Return how long each reading counts, and the usual interval of each series."""
    stop = np.append(first, len(time))[1:]
    hold = np.diff(time, append=0)
    usual = np.zeros(len(first), np.int64)
    for number, (begin, end) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        intervals = hold[begin : end - 1]
        if len(intervals):
            usual[number] = np.partition(intervals, (len(intervals) - 1) // 2)[
                (len(intervals) - 1) // 2
            ]
        hold[end - 1] = usual[number]
        if time[end - 1] == time[begin]:
            hold[begin:end] = 1
    return hold, usual


def means(found: Readings, value: Float | Bool | None = None) -> Float:
    """Return the time-weighted mean of each series, of `value` where that is given instead of the readings' own.

    >>> frame = pd.DataFrame({"rank": 0, "gpu": 0, "time_ns": [0, 10, 40], "metric": "power_w", "value": [1.0, 2.0, 9]})
    >>> means(readings(SAMPLES.make(frame))).tolist()
    [3.2]
    """
    weighted = (found.value if value is None else value) * found.hold
    return np.asarray(
        of_each(np.add, found, weighted) / of_each(np.add, found, found.hold), np.float64
    )


def of_each(over: np.ufunc, found: Readings, value: NDArray[Any]) -> NDArray[Any]:
    """Return a ufunc's reduction over the rows of each series."""
    return np.asarray(over.reduceat(value, found.first) if len(found.first) else value)


def wide(found: Readings, values: Float, metrics: tuple[str, ...]) -> pd.DataFrame:
    """Return a value per series with one row per device (index rank, gpu) and one column per metric, NaN where none."""
    table = found.series.astype({"metric": object}).assign(value=values)
    return table.pivot_table(index=DEVICE, columns="metric", values="value").reindex(
        columns=list(metrics)
    )


def as_of(other: Readings, found: Readings) -> Float:
    """Return, at each reading, the latest value of `other` (one metric), at first its first; NaN without the device."""
    value = np.full(len(found.time), np.nan)
    places = {
        device: n
        for n, device in enumerate(zip(*(other.series[key] for key in DEVICE), strict=True))
    }
    for number, device in enumerate(zip(*(found.series[key] for key in DEVICE), strict=True)):
        if device in places:
            begin, end = other.first[places[device]], other.stop[places[device]]
            rows = slice(found.first[number], found.stop[number])
            at = np.searchsorted(other.time[begin:end], found.time[rows], side="right") - 1
            value[rows] = other.value[begin:end][np.maximum(at, 0)]
    return value


def is_lowered(samples: pd.DataFrame, found: Readings, cause: str) -> Bool:
    """Tell at which readings some metric says that a cause lowered the clock."""
    values = [as_of(readings(samples, metric), found) for metric in CAUSES[cause]]
    return np.asarray(np.any([value > 0 for value in values], axis=0), bool)


def throttling(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the share of the time in which each device's clock was lowered, by cause.

    A reading of a cause above 0 holds until the next reading. Time is that for which the cause was
    recorded, counted once however many metrics tell of it. Counters of the event reasons precede
    their readings, which say what held at a moment; where neither reasons nor shares tell of a
    cause, other counters do. A counter's share is the time by which it grew over that between its
    readings, without those between which it went back, since it was reset; of several of one cause
    the greatest counts. It can be read up to an interval late: what that adds above 1 is 1, and
    more than that is none (NaN).

    Event reasons (throttled_..._frac), their counters (throttled_..._ns), violations as shares
    (..._violation_frac) and as counters (..._violation_ns) count, nothing else does.

    Of every device of `samples` `power_frac`, `thermal_frac`, `other_frac` (another reason than
    these and idleness), `throttled_frac` (any of them; counters do not say when, so with them the
    greatest share of a cause), float64, NaN where not recorded; `source` string, the metrics that
    were, empty where there are none.

    Source: NVML, nvmlClocksEventReasons, nvmlPerfPolicyType_t and nvmlViolationTime_t; DCGM fields
    240 and 241, which count ns.
    """
    found = readings(
        samples, *(metric for metrics in CAUSES.values() for metric in metrics), window=window
    )
    table, (_, of_series) = devices(samples, found.series)
    device = of_series[found.row_series]
    cause = found.series["metric"].astype(object)
    for name, metrics in {**CAUSES, "throttled": tuple(cause.unique())}.items():
        rows = np.flatnonzero(cause.isin(metrics).to_numpy()[found.row_series])
        lowered = total(held(found, device, rows[found.value[rows] > 0]), len(table))
        recorded = total(held(found, device, rows), len(table))
        table[f"{name}_frac"] = np.divide(
            lowered, recorded, out=np.full(len(table), np.nan), where=recorded > 0
        )
    sources = cause.groupby(of_series).agg(", ".join).reindex(range(len(table)), fill_value="")
    table = table.assign(source=sources.astype("string"))
    # By how much each counter grew over the time between its readings: a row per device, a column
    # each.
    found = readings(samples, *COUNTED, window=window)
    gain, step = (np.diff(column, append=column[-1:]) for column in (found.value, found.time))
    forward = (np.diff(found.row_series, append=-1) == 0) & (gain >= 0)
    lowered, lasted = (
        of_each(np.add, found, np.where(forward, column, 0)) for column in (gain, step)
    )
    possible = (lasted > 0) & (lowered <= lasted + found.usual)
    share = np.divide(lowered, lasted, out=np.full(len(lasted), np.nan), where=possible)
    counted = wide(found, np.minimum(share, 1), COUNTED).reindex(
        pd.MultiIndex.from_frame(table[DEVICE])
    )
    both = zip(table.to_dict("records"), counted.to_dict("records"), strict=True)
    figures = [
        _with_counters(row, {str(m): v for m, v in grown.items() if not np.isnan(v)})
        for row, grown in both
    ]
    return pd.DataFrame(figures, columns=table.columns).astype(table.dtypes)


def _with_counters(row: Mapping[Any, Any], grown: Mapping[str, float]) -> dict[Any, Any]:
    """Return a row with what the counters of its device tell, each by its share of the time."""
    figures, precede = dict(row), False
    for cause, metrics in CAUSES.items():
        exact = [metric for metric in OF_REASONS.get(cause, ()) if metric in grown]
        alone = [
            metric
            for metric in COUNTERS.get(cause, ())
            if metric in grown and np.isnan(row[f"{cause}_frac"])
        ]
        if counters := exact or alone:
            sources = [
                s for s in figures["source"].split(", ") if s and not (exact and s in metrics)
            ]
            figures |= {
                f"{cause}_frac": max(grown[m] for m in counters),
                "source": ", ".join([*sources, *counters]),
            }
        precede |= bool(exact)
    shares = [
        figures[f"{cause}_frac"] for cause in CAUSES if not np.isnan(figures[f"{cause}_frac"])
    ]
    union = np.nan if precede else row["throttled_frac"]
    return {**figures, "throttled_frac": np.fmax(union, max(shares, default=np.nan))}


def held(found: Readings, device: Int, rows: Int) -> Intervals:
    """Return the time for which some readings count, as intervals of their devices."""
    return union(found.time[rows], found.time[rows] + found.hold[rows], device[rows])


def summary(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return count, missing share, time-weighted mean and percentiles, and extremes of each metric of each device.

    The percentile p is the least value at or below which the metric was for the share p of the
    time. In a regular log (nine of ten intervals within a quarter of the usual one) longer
    intervals are missing readings.

    One row per rank, gpu and metric (category): `count` int64, readings without NaN; `missing_frac`
    float64, share of the ticks between the first and the last reading that have none, NaN where the
    log is not regular or has fewer than three readings; `mean`, `p5`, `p50`, `p95`, `min`, `max`
    float64, in the unit of the metric's suffix.
    """
    found = readings(samples, window=window)
    # The share of ticks without a reading, NaN where a series has no regular ticks. The last
    # reading has no interval after it: its own counts as regular, and is taken off again.
    ticks = found.hold / np.maximum(found.usual, 1)[found.row_series]
    regular = of_each(np.add, found, (np.abs(ticks - 1) <= EVEN).astype(np.int64)) - 1
    skipped = of_each(np.add, found, np.maximum(np.rint(ticks) - 1, 0))
    known = (found.count >= FEWEST) & (found.usual > 0) & (regular >= REGULAR * (found.count - 1))
    missing = np.where(known, skipped / (skipped + found.count), np.nan)
    table = found.series.assign(count=found.count, missing_frac=missing, mean=means(found))
    extremes = {
        "min": of_each(np.minimum, found, found.value),
        "max": of_each(np.maximum, found, found.value),
    }
    return table.assign(**percentiles(found, PERCENTILES), **extremes)


def percentiles(found: Readings, shares: Mapping[str, float]) -> dict[str, Float]:
    """Return, for each share of the time, the least value of each series at or below which it was for that share."""
    # The values of each series by size, and the time that they and all before them hold.
    value, hold = found.value.copy(), found.hold.copy()
    for begin, end in zip(found.first.tolist(), found.stop.tolist(), strict=True):
        if (hold[begin:end] == hold[begin]).all():
            value[begin:end].sort()
        else:
            order = np.argsort(value[begin:end])
            value[begin:end], hold[begin:end] = value[begin:end][order], hold[begin:end][order]
    reached = np.cumsum(hold)
    before = np.append(0, reached)[found.first]
    total = np.append(reached, 0)[found.stop - 1] - before
    # In whole ns, so that exactly half of the time is half of it.
    spent = {name: np.ceil(share * total).astype(np.int64) for name, share in shares.items()}
    return {name: value[np.searchsorted(reached, before + least)] for name, least in spent.items()}
