"""How high were the metrics of a log, against which limits, how evenly over the GPUs, and when were they low?"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit import hardware
from perfkit.analysis.grouping import over
from perfkit.analysis.intervals import Bool, Float, Int, Window
from perfkit.analysis.readings import (
    BUSY,
    DEVICE,
    Readings,
    as_of,
    means,
    of_each,
    percentiles,
    readings,
    wide,
)
from perfkit.tables import DEVICES

PIPES = ("tensor_active_frac", "fp64_active_frac", "fp32_active_frac", "fp16_active_frac")
# Different sampling of two metrics makes this much of a difference without a contradiction.
SAMPLING_ERROR = 0.05
COMPARED = (
    "gpu_busy_frac",
    "sm_active_frac",
    "tensor_active_frac",
    "power_w",
    "memory_used_bytes",
    "sm_clock_hz",
)
NEAR_POWER = NEAR_MEMORY = 0.95
NEAR_TEMPERATURE_C = 5.0
DIP = 0.5  # of the median utilisation: what is below is a dip (convention)
SHEET = "data sheet of the GPU"
ABOVE_SHEET = (
    1.1  # of the data sheet's limit; what draws more is another GPU, or has a limit of its own
)
QUANTITIES = ("power", "memory", "temperature", "temperature_margin")


class Stretches(NamedTuple):
    """Runs of consecutive readings of one series, [first, stop)."""

    series: Int
    first: Int
    stop: Int


def stretches(found: Readings, fulfils: Bool) -> Stretches:
    """Return the longest runs of readings of one series that fulfil a condition, by series and time."""
    row = np.flatnonzero(fulfils)
    begins = np.flatnonzero((np.diff(row, prepend=-2) != 1) | np.isin(row, found.first))
    first = row[begins]
    stop = row[np.append(begins[1:], len(row)) - 1] + 1 if len(row) else row
    return Stretches(np.searchsorted(found.first, first, side="right") - 1, first, stop)


def at_limit(
    samples: pd.DataFrame, devices: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return power, memory and temperature of each device against the limit that held at the time of each reading.

    The limit of the power is the enforced one, else the data sheet's for the exact name in
    `devices` (DEVICES); that of the memory the recorded total, else the sum of used, free and
    reserved, else that of `devices`; that of the temperature the recorded one from which the GPU
    slows down. A margin (T.Limit) is at its limit at 0. There is no other default. At the limit is
    from 95 % of power and memory on, within 5 degrees of the temperature. Power above 1.1 times the
    data sheet's limit says that the log is of another GPU, or its limit was raised: shares are NaN.

    One row per rank, gpu and quantity (category: power, memory, temperature, temperature_margin) of
    which value and limit are known, in this order; float64: `mean`, `worst`, `limit` (the last one)
    in W, bytes or degrees Celsius, worst being the highest, of a margin the lowest; `mean_frac`,
    `worst_frac` of the limit, 0 and above, NaN for temperatures; `at_limit_frac`, share of the
    time. `source` string, where the limit is from.
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
    return table.drop_duplicates([*DEVICE, "quantity"]).sort_values(
        [*DEVICE, "quantity"], ignore_index=True
    )


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
    yield power, rated_power(power, devices), "power", SHEET
    used, whole = recorded("memory_used_bytes", "memory_total_bytes")
    yield used, whole, "memory", "recorded total"
    free, reserved = (
        as_of(readings(samples, m), used) for m in ("memory_free_bytes", "driver_reserved_bytes")
    )
    yield used, used.value + free + np.nan_to_num(reserved), "memory", "used, free and reserved"
    yield used, _of_device(used, devices, lambda device: device["memory_bytes"]), "memory", "device"
    yield (
        *recorded("temperature_c", "temperature_slowdown_c"),
        "temperature",
        "recorded slowdown temperature",
    )
    margin = readings(samples, "temperature_margin_c", window=window)
    yield margin, np.zeros(len(margin.time)), "temperature_margin", "recorded margin"


def rated_power(found: Readings, devices: pd.DataFrame) -> Float:
    """Return the power limit of the data sheet for each reading, in W, NaN where the device is not known."""
    return _of_device(
        found, devices, lambda device: getattr(hardware.peaks(str(device["name"])), "tdp_w", None)
    )


def _of_device(found: Readings, devices: pd.DataFrame, limit: Callable[[pd.Series], Any]) -> Float:
    """Return a limit that does not change for each reading, NaN where the device is not known."""
    known = {(device["rank"], device["gpu"]): limit(device) for _, device in devices.iterrows()}
    each = [known.get(place) for place in zip(*(found.series[key] for key in DEVICE), strict=True)]
    return pd.to_numeric(pd.Series(each, dtype=object)).to_numpy("float64", na_value=np.nan)[
        found.row_series
    ]


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


def dips(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the stretches in which the utilisation is below half of the device's time-weighted median.

    A stretch reaches from its first low reading to the next reading that is not low.

    One row per stretch, by rank, gpu and `start_ns` int64; `dur_ns` int64; `count` int64, readings;
    `lowest`, `median` float64, of the stretch and of the device. None where the median is 0.
    """
    found = readings(samples, BUSY[0], window=window)
    median = percentiles(found, {"p50": 0.5})["p50"]
    low = stretches(found, found.value < DIP * median[found.row_series])
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

    Columns: `idle_frac` float64; `idle_ns` Int64, the time; `longest_ns` Int64, the longest stretch
    without a reading above 0; both missing where the readings span no time; `count` int64,
    stretches.
    """
    found = readings(samples, *BUSY, window=window)
    none = stretches(found, found.value == 0)
    length = _end(found, none.stop) - found.time[none.first]
    longest = np.zeros(len(found.first), np.int64)
    np.maximum.at(longest, none.series, length)
    spent = np.bincount(none.series, length, len(found.first)).astype(np.int64)
    count = np.bincount(none.series, minlength=len(found.first))
    table = found.series[DEVICE].assign(idle_frac=means(found, found.value == 0))
    lasted = pd.DataFrame({"idle_ns": spent, "longest_ns": longest}, dtype="Int64")
    table = table.join(lasted.where(pd.Series(found.spans), axis=0))
    table = table.assign(count=count.astype(np.int64))
    best = found.series["metric"].eq(BUSY[0]) | ~found.series.duplicated(DEVICE, keep=False)
    return table[best].reset_index(drop=True)


def imbalance(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return by how much the time-weighted means of the devices differ, for each metric of COMPARED.

    One row per metric (category) that two devices at least have, in this order: `devices` int64,
    how many;
    `lowest`, `mean`, `highest` float64, over the devices, in the metric's unit; `lowest_rank`,
    `lowest_gpu`, `highest_rank`, `highest_gpu` int32; `spread_frac` float64, (highest - lowest) /
    highest, NaN where the highest is 0.
    """
    found = readings(samples, *COMPARED, window=window)
    mean = wide(found, means(found), COMPARED)
    rows = [
        (metric, *_spread(mean[metric].dropna()))
        for metric in COMPARED
        if mean[metric].notna().sum() > 1
    ]
    places = [f"{which}_{key}" for which in ("lowest", "highest") for key in DEVICE]
    figures = ["lowest", "mean", "highest", "spread_frac"]
    table = pd.DataFrame(rows, columns=["metric", "devices", *figures[:3], *places, figures[3]])
    kinds = (
        {"devices": "int64"} | dict.fromkeys(figures, "float64") | dict.fromkeys(places, "int32")
    )
    return table.astype(kinds).assign(metric=pd.Categorical(table["metric"], COMPARED))


def _spread(mean: pd.Series) -> tuple[object, ...]:
    low, high = mean.min(), mean.max()
    share = (high - low) / high if high > 0 else np.nan
    lowest, highest = (mean.index.to_numpy()[at] for at in (mean.argmin(), mean.argmax()))
    return len(mean), low, mean.mean(), high, *lowest, *highest, share


def utilisation(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the four meanings of GPU utilisation of each device, time-weighted means, side by side.

    Over the same time the first is at least the second and the second at least the third and the
    fourth.

    float64, NaN where not recorded: `gpu_busy_frac`, time with at least one kernel;
    `sm_active_frac`, cycles with a warp on an SM, mean over the SMs; `sm_occupancy_frac`, resident
    warps over the most there can be; `pipe_active_frac`, cycles in which the busiest arithmetic
    pipe worked, NaN where a pipe is missing that another device has. `busy_metric`, `pipe` string:
    the metric the first and the last come from, missing where there is none; `note` string, which
    of them contradict each other by more than 0.05, else empty.

    Source: NVML, nvmlUtilization_t; DCGM fields 203, 1001 to 1004, 1006 to 1008.
    """
    metrics = (*BUSY, "sm_active_frac", "sm_occupancy_frac", *PIPES)
    found = readings(samples, *metrics, window=window)
    mean = wide(found, means(found), metrics)
    busy, pipes = mean[list(BUSY)], mean[list(PIPES)]
    recorded = pipes.notna()
    is_complete = recorded.sum(axis=1) == recorded.any().sum()  # else the busiest may be missing
    table = mean[["sm_active_frac", "sm_occupancy_frac"]].assign(
        pipe_active_frac=pipes.max(axis=1).where(is_complete)
    )
    table.insert(0, "gpu_busy_frac", busy.bfill(axis=1).iloc[:, 0])
    table["busy_metric"] = _named(busy.notna())
    table["pipe"] = _named(pipes.eq(table["pipe_active_frac"], axis=0))
    # A text for every row in which a part exceeds its whole.
    notes = pd.Series("", table.index, dtype="string")
    for part, whole in (
        ("sm_active", "gpu_busy"),
        ("sm_occupancy", "sm_active"),
        ("pipe_active", "sm_active"),
    ):
        exceeds = table[f"{part}_frac"] > table[f"{whole}_frac"] + SAMPLING_ERROR
        note = f"{part}_frac exceeds {whole}_frac, which cannot be: check what was recorded. "
        notes = notes.mask(exceeds, notes + note)
    table["note"] = notes.str.strip()
    return table.rename_axis(columns=None).reset_index()


def _named(chosen: pd.DataFrame) -> pd.Series:
    """Return the name of the first column that is true in each row, missing where none is."""
    names = np.array(chosen.columns, dtype=object)[chosen.to_numpy().argmax(axis=1)]
    return pd.Series(names, chosen.index, dtype="string").where(chosen.any(axis=1))
