"""The readings of some metrics, series by series, and the time that each of them counts for.

How high were the metrics of a log on average, how evenly over the devices, and when were they low?
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import hardware
from perfkit.analysis.grouping import over
from perfkit.analysis.intervals import Int, Intervals, Window, bounds, devices, total, union
from perfkit.tables import DEVICES, SAMPLES

Float = NDArray[np.float64]
DEVICE = ["rank", "gpu"]
PERCENTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}
BUSY = ("gpu_busy_frac", "graphics_active_frac")
PIPES = ("tensor_active_frac", "fp64_active_frac", "fp32_active_frac", "fp16_active_frac")
# Different sampling of two metrics makes this much of a difference without a contradiction.
SAMPLING_ERROR = 0.05
# A log is regular if at least this share of three intervals or more lies so near to the usual one.
REGULAR, EVEN, FEWEST = 0.9, 0.25, 3
COMPARED = ("gpu_busy_frac", "sm_active_frac", "tensor_active_frac", "power_w", "memory_used_bytes", "sm_clock_hz")


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
    rated = _of_device(power, devices, lambda device: getattr(hardware.peaks(str(device["name"])), "tdp_w", None))
    yield power, rated, "power", SHEET
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


def dips(
    samples: pd.DataFrame, *, metric: str = "gpu_busy_frac", below: float = 0.5, window: Window | None = None
) -> pd.DataFrame:
    """Return the stretches in which `metric` is below a share of the device's time-weighted median.

    A stretch reaches from its first low reading to the next reading that is not low. `below` is that share, above 0, at
    most 1, else ValueError.

    One row per stretch, by rank, gpu and `start_ns` int64; `dur_ns` int64; `count` int64, readings; `lowest`, `median`
    float64, of the stretch and of the device, in the metric's unit. None where the median is 0.
    """
    if not 0 < below <= 1:
        raise ValueError(f"below: {below} is not within 0 and 1")
    found = readings(samples, metric, window=window)
    median = percentiles(found, {"p50": 0.5})["p50"]
    low = stretches(found, found.value < below * median[found.row_series])
    table = found.series[DEVICE].take(low.series).reset_index(drop=True)
    return table.assign(
        start_ns=found.time[low.first],
        dur_ns=_end(found, low.stop) - found.time[low.first],
        count=low.stop - low.first,
        lowest=over(np.minimum, found.value, low.first, low.stop),
        median=median[low.series],
    )


def _end(found: Readings, stop: Int) -> Int:
    return np.asarray(found.time[stop - 1] + found.hold[stop - 1], np.int64)


def idle(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the share of the time in which no kernel ran on each device: readings of utilisation that are 0.

    Utilisation is gpu_busy_frac, for devices that lack it graphics_active_frac.

    Columns: `idle_frac` float64; `idle_ns` int64, the time; `longest_ns` int64, the longest stretch without a reading
    above 0; `count` int64, stretches.
    """
    found = readings(samples, *BUSY, window=window)
    none = stretches(found, found.value == 0)
    length = _end(found, none.stop) - found.time[none.first]
    longest = np.zeros(len(found.first), np.int64)
    np.maximum.at(longest, none.series, length)
    spent = np.bincount(none.series, length, len(found.first)).astype(np.int64)
    count = np.bincount(none.series, minlength=len(found.first))
    table = found.series[DEVICE].assign(idle_frac=means(found, found.value == 0))
    table = table.assign(idle_ns=spent, longest_ns=longest, count=count.astype(np.int64))
    best = found.series["metric"].eq(BUSY[0]) | ~found.series.duplicated(DEVICE, keep=False)
    return table[best].reset_index(drop=True)


def imbalance(
    samples: pd.DataFrame, *, metrics: tuple[str, ...] = COMPARED, window: Window | None = None
) -> pd.DataFrame:
    """Return by how much the time-weighted means of the devices differ, for each of `metrics`.

    One row per metric (category) that two devices at least have, in the order of `metrics`: `devices` int64, how many;
    `lowest`, `mean`, `highest` float64, over the devices, in the metric's unit; `lowest_rank`, `lowest_gpu`,
    `highest_rank`, `highest_gpu` int32; `spread_frac` float64, (highest - lowest) / highest, NaN where the highest is
    0.
    """
    found = readings(samples, *metrics, window=window)
    mean = wide(found, means(found), metrics)
    rows = [(metric, *_spread(mean[metric].dropna())) for metric in metrics if mean[metric].notna().sum() > 1]
    places = [f"{which}_{key}" for which in ("lowest", "highest") for key in DEVICE]
    figures = ["lowest", "mean", "highest", "spread_frac"]
    table = pd.DataFrame(rows, columns=["metric", "devices", *figures[:3], *places, figures[3]])
    kinds = {"devices": "int64"} | dict.fromkeys(figures, "float64") | dict.fromkeys(places, "int32")
    return table.astype(kinds).assign(metric=pd.Categorical(table["metric"], metrics))


def _spread(mean: pd.Series) -> tuple[object, ...]:
    low, high = mean.min(), mean.max()
    share = (high - low) / high if high > 0 else np.nan
    lowest, highest = (mean.index.to_numpy()[at] for at in (mean.argmin(), mean.argmax()))
    return len(mean), low, mean.mean(), high, *lowest, *highest, share


def summary(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return count, missing share, time-weighted mean and percentiles, and extremes of each metric of each device.

    The percentile p is the least value at or below which the metric was for the share p of the time. In a regular log
    (nine of ten intervals within a quarter of the usual one) longer intervals are missing readings.

    One row per rank, gpu and metric (category): `count` int64, readings without NaN; `missing_frac` float64, share of
    the ticks between the first and the last reading that have none, NaN where the log is not regular or has fewer than
    three readings; `mean`, `p5`, `p50`, `p95`, `min`, `max` float64, in the unit of the metric's suffix.
    """
    found = readings(samples, window=window)
    # The share of ticks without a reading, NaN where a series has no regular ticks. The last reading has no interval
    # after it: its own counts as regular, and is taken off again.
    ticks = found.hold / np.maximum(found.usual, 1)[found.row_series]
    regular = of_each(np.add, found, (np.abs(ticks - 1) <= EVEN).astype(np.int64)) - 1
    skipped = of_each(np.add, found, np.maximum(np.rint(ticks) - 1, 0))
    known = (found.count >= FEWEST) & (found.usual > 0) & (regular >= REGULAR * (found.count - 1))
    missing = np.where(known, skipped / (skipped + found.count), np.nan)
    table = found.series.assign(count=found.count, missing_frac=missing, mean=means(found))
    extremes = {"min": of_each(np.minimum, found, found.value), "max": of_each(np.maximum, found, found.value)}
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


def utilisation(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the four meanings of GPU utilisation of each device, time-weighted means, side by side.

    Over the same time the first is at least the second and the second at least the third and the fourth.

    float64, NaN where not recorded: `gpu_busy_frac`, time with at least one kernel; `sm_active_frac`, cycles with a
    warp on an SM, mean over the SMs; `sm_occupancy_frac`, resident warps over the most there can be;
    `pipe_active_frac`, cycles in which the busiest arithmetic pipe worked. `busy_metric`, `pipe` string: the metric the
    first and the last come from, missing where there is none; `note` string, which of them contradict each other by
    more than 0.05, else empty.

    Source: NVML, nvmlUtilization_t; DCGM fields 203, 1001 to 1004, 1006 to 1008.
    """
    metrics = (*BUSY, "sm_active_frac", "sm_occupancy_frac", *PIPES)
    found = readings(samples, *metrics, window=window)
    mean = wide(found, means(found), metrics)
    busy, pipes = mean[list(BUSY)], mean[list(PIPES)]
    table = mean[["sm_active_frac", "sm_occupancy_frac"]].assign(pipe_active_frac=pipes.max(axis=1))
    table.insert(0, "gpu_busy_frac", busy.bfill(axis=1).iloc[:, 0])
    table["busy_metric"] = _named(busy.notna())
    table["pipe"] = _named(pipes.eq(table["pipe_active_frac"], axis=0))
    # A text for every row in which a part exceeds its whole.
    notes = pd.Series("", table.index, dtype="string")
    for part, whole in (("sm_active", "gpu_busy"), ("sm_occupancy", "sm_active"), ("pipe_active", "sm_active")):
        exceeds = table[f"{part}_frac"] > table[f"{whole}_frac"] + SAMPLING_ERROR
        note = f"{part}_frac exceeds {whole}_frac, which cannot be: check what was recorded. "
        notes = notes.mask(exceeds, notes + note)
    table["note"] = notes.str.strip()
    return table.rename_axis(columns=None).reset_index()


def _named(chosen: pd.DataFrame) -> pd.Series:
    """Return the name of the first column that is true in each row, missing where none is."""
    names = np.array(chosen.columns, dtype=object)[chosen.to_numpy().argmax(axis=1)]
    return pd.Series(names, chosen.index, dtype="string").where(chosen.any(axis=1))
