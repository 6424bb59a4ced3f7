"""The readings of some metrics, series by series, and the time that each of them counts for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import hardware
from perfkit.analysis.intervals import Int, Intervals, Window, bounds, devices, total, union
from perfkit.tables import DEVICES, SAMPLES

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


# Event reasons and violation counters that tell of each cause.
CAUSES = {
    "power": ("throttled_power_frac", "power_violation_frac"),
    "thermal": ("throttled_thermal_frac", "thermal_violation_frac"),
    "other": ("throttled_other_frac",),
}
# Counters of the time with a lowered clock, which stand in for a cause without any of these.
COUNTERS = {"power": ("power_violation_ns",), "thermal": ("thermal_violation_ns",)}
# Counters of the event reasons themselves: they know what happened between two readings of the reasons.
OF_REASONS = {
    "power": ("throttled_sw_power_ns", "throttled_power_brake_ns"),
    "thermal": ("throttled_sw_thermal_ns", "throttled_hw_thermal_ns"),
}
COUNTED = tuple(metric for counters in (OF_REASONS, COUNTERS) for metrics in counters.values() for metric in metrics)
NEAR_POWER = NEAR_MEMORY = 0.95
NEAR_TEMPERATURE_C = 5.0
SHEET = "data sheet of the GPU"
ABOVE_SHEET = 1.1  # of the data sheet's limit; what draws more is another GPU, or has a limit of its own
QUANTITIES = ("power", "memory", "temperature", "temperature_margin")


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

    >>> frame = pd.DataFrame({"rank": 0, "gpu": 0, "time_ns": [0, 10, 40], "metric": "power_w", "value": [1.0, 2.0, 9]})
    >>> means(readings(SAMPLES.make(frame))).tolist()
    [3.2]
    """
    weighted = (found.value if value is None else value) * found.hold
    return np.asarray(of_each(np.add, found, weighted) / of_each(np.add, found, found.hold), np.float64)


def of_each(over: np.ufunc, found: Readings, value: NDArray[Any]) -> NDArray[Any]:
    """Return a ufunc's reduction over the rows of each series."""
    return np.asarray(over.reduceat(value, found.first) if len(found.first) else value)


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


def throttling(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the share of the time in which each device's clock was lowered, by cause.

    A reading of a cause above 0 holds until the next reading. Time is that for which the cause was recorded, counted
    once however many metrics tell of it. Counters of the event reasons precede their readings, which say what held at a
    moment; where neither reasons nor shares tell of a cause, other counters do. A counter's share is the time by which
    it grew over that between its readings, without those between which it went back, since it was reset; of several of
    one cause the greatest counts. It can be read up to an interval late: what that adds above 1 is 1, and more than
    that is none (NaN).

    Event reasons (throttled_..._frac), their counters (throttled_..._ns), violations as shares (..._violation_frac) and
    as counters (..._violation_ns) count, nothing else does.

    Of every device of `samples` `power_frac`, `thermal_frac`, `other_frac` (another reason than these and idleness),
    `throttled_frac` (any of them; counters do not say when, so with them the greatest share of a cause), float64, NaN
    where not recorded; `source` string, the metrics that were, empty where there are none.

    Source: NVML, nvmlClocksEventReasons, nvmlPerfPolicyType_t and nvmlViolationTime_t; DCGM fields 240 and 241, which
    count ns.
    """
    found = readings(samples, *(metric for metrics in CAUSES.values() for metric in metrics), window=window)
    table, (_, of_series) = devices(samples, found.series)
    device = of_series[found.row_series]
    cause = found.series["metric"].astype(object)
    for name, metrics in {**CAUSES, "throttled": tuple(cause.unique())}.items():
        rows = np.flatnonzero(cause.isin(metrics).to_numpy()[found.row_series])
        lowered = total(held(found, device, rows[found.value[rows] > 0]), len(table))
        recorded = total(held(found, device, rows), len(table))
        table[f"{name}_frac"] = np.divide(lowered, recorded, out=np.full(len(table), np.nan), where=recorded > 0)
    sources = cause.groupby(of_series).agg(", ".join).reindex(range(len(table)), fill_value="")
    table = table.assign(source=sources.astype("string"))
    # By how much each counter grew over the time between its readings: a row per device, a column each.
    found = readings(samples, *COUNTED, window=window)
    gain, step = (np.diff(column, append=column[-1:]) for column in (found.value, found.time))
    forward = (np.diff(found.row_series, append=-1) == 0) & (gain >= 0)
    lowered, lasted = (of_each(np.add, found, np.where(forward, column, 0)) for column in (gain, step))
    possible = (lasted > 0) & (lowered <= lasted + found.usual)
    share = np.divide(lowered, lasted, out=np.full(len(lasted), np.nan), where=possible)
    counted = wide(found, np.minimum(share, 1), COUNTED).reindex(pd.MultiIndex.from_frame(table[DEVICE]))
    both = zip(table.to_dict("records"), counted.to_dict("records"), strict=True)
    figures = [_with_counters(row, {str(m): v for m, v in grown.items() if not np.isnan(v)}) for row, grown in both]
    return pd.DataFrame(figures, columns=table.columns).astype(table.dtypes)


def _with_counters(row: Mapping[Any, Any], grown: Mapping[str, float]) -> dict[Any, Any]:
    """Return a row with what the counters of its device tell, each by its share of the time."""
    figures, precede = dict(row), False
    for cause, metrics in CAUSES.items():
        exact = [metric for metric in OF_REASONS.get(cause, ()) if metric in grown]
        alone = [metric for metric in COUNTERS.get(cause, ()) if metric in grown and np.isnan(row[f"{cause}_frac"])]
        if counters := exact or alone:
            sources = [s for s in figures["source"].split(", ") if s and not (exact and s in metrics)]
            figures |= {f"{cause}_frac": max(grown[m] for m in counters), "source": ", ".join([*sources, *counters])}
        precede |= bool(exact)
    shares = [figures[f"{cause}_frac"] for cause in CAUSES if not np.isnan(figures[f"{cause}_frac"])]
    union = np.nan if precede else row["throttled_frac"]
    return {**figures, "throttled_frac": np.fmax(union, max(shares, default=np.nan))}


def held(found: Readings, device: Int, rows: Int) -> Intervals:
    """Return the time for which some readings count, as intervals of their devices."""
    return union(found.time[rows], found.time[rows] + found.hold[rows], device[rows])


def at_limit(samples: pd.DataFrame, devices: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return power, memory and temperature of each device against the limit that held at the time of each reading.

    The limit of the power is the enforced one, else the data sheet's for the exact name in `devices` (DEVICES); that of
    the memory the recorded total, else the sum of used, free and reserved, else that of `devices`; that of the
    temperature the recorded one from which the GPU slows down. A margin (T.Limit) is at its limit at 0. There is no
    other default. At the limit is from 95 % of power and memory on, within 5 degrees of the temperature. Power above
    1.1 times the data sheet's limit says that the log is of another GPU, or its limit was raised: shares are NaN.

    One row per rank, gpu and quantity (category: power, memory, temperature, temperature_margin) of which value and
    limit are known, in this order; float64: `mean`, `worst`, `limit` (the last one) in W, bytes or degrees Celsius,
    worst being the highest, of a margin the lowest; `mean_frac`, `worst_frac` of the limit, 0 and above, NaN for
    temperatures; `at_limit_frac`, share of the time. `source` string, where the limit is from.
    """
    DEVICES.check(devices)
    tables = [
        _figures(found, limit, quantity).assign(source=source)
        for found, limit, quantity, source in _limited(samples, devices, window)
    ]
    table = pd.concat(tables, ignore_index=True).astype({"source": "string"})
    table["quantity"] = pd.Categorical(table["quantity"], QUANTITIES)
    refused = (table["source"] == SHEET) & (table["worst_frac"] > ABOVE_SHEET)
    table.loc[refused, ["mean_frac", "worst_frac", "at_limit_frac"]] = np.nan
    # The best source of a limit comes first.
    return table.drop_duplicates([*DEVICE, "quantity"]).sort_values([*DEVICE, "quantity"], ignore_index=True)


def _limited(
    samples: pd.DataFrame, devices: pd.DataFrame, window: Window | None
) -> Iterator[tuple[Readings, Float, str, str]]:
    """Yield readings, the limit at each of them, the quantity and where the limit is from; the best source first."""

    def recorded(metric: str, limit: str) -> tuple[Readings, Float]:
        # A limit may have been read once, before the window.
        found = readings(samples, metric, window=window)
        return found, as_of(readings(samples, limit), found)

    power, enforced = recorded("power_w", "power_limit_w")
    yield power, enforced, "power", "recorded limit"
    yield power, _of_device(power, devices, _tdp), "power", SHEET
    used, whole = recorded("memory_used_bytes", "memory_total_bytes")
    yield used, whole, "memory", "recorded total"
    free, reserved = (as_of(readings(samples, m), used) for m in ("memory_free_bytes", "driver_reserved_bytes"))
    yield used, used.value + free + np.nan_to_num(reserved), "memory", "used, free and reserved"
    yield used, _of_device(used, devices, lambda device: device["memory_bytes"]), "memory", "device"
    yield *recorded("temperature_c", "temperature_slowdown_c"), "temperature", "recorded slowdown temperature"
    margin = readings(samples, "temperature_margin_c", window=window)
    yield margin, np.zeros(len(margin.time)), "temperature_margin", "recorded margin"


def _of_device(found: Readings, devices: pd.DataFrame, limit: Callable[[pd.Series], Any]) -> Float:
    """Return a limit that does not change for each reading, NaN where the device is not known."""
    known = {(device["rank"], device["gpu"]): limit(device) for _, device in devices.iterrows()}
    each = [known.get(place) for place in zip(*(found.series[key] for key in DEVICE), strict=True)]
    return pd.to_numeric(pd.Series(each, dtype=object)).to_numpy("float64", na_value=np.nan)[found.row_series]


def _tdp(device: pd.Series) -> float | None:
    sheet = hardware.peaks(str(device["name"]))
    return None if sheet is None else sheet.tdp_w


def _figures(found: Readings, limit: Float, quantity: str) -> pd.DataFrame:
    """Return the figures of `at_limit` for each series whose limit is known, and above 0, at all of its readings."""
    margin, degrees = quantity == "temperature_margin", quantity.startswith("temperature")
    limit = np.where((limit > 0) | margin, limit, np.nan)
    part = limit * np.nan if degrees else found.value / limit
    at = found.value <= NEAR_TEMPERATURE_C if margin else found.value >= limit - NEAR_TEMPERATURE_C
    if not degrees:
        at = part >= (NEAR_POWER if quantity == "power" else NEAR_MEMORY)
    worst = np.minimum if margin else np.maximum
    table = found.series[DEVICE].assign(
        quantity=quantity,
        mean=means(found),
        worst=of_each(worst, found, found.value),
        limit=limit[found.stop - 1],
        mean_frac=means(found, part),
        worst_frac=of_each(np.maximum, found, part),
        at_limit_frac=means(found, at),
    )
    return table[~of_each(np.logical_or, found, np.isnan(limit)).astype(bool)]
