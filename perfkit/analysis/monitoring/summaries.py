"""How high were the metrics of a log on average, how evenly over the devices, and when were they low?"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfkit.analysis.grouping import over
from perfkit.analysis.intervals import Int, Window
from perfkit.analysis.monitoring.readings import DEVICE, Float, Readings, means, of_each, readings, stretches, wide

PERCENTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}
BUSY = ("gpu_busy_frac", "graphics_active_frac")
PIPES = ("tensor_active_frac", "fp64_active_frac", "fp32_active_frac", "fp16_active_frac")
# Different sampling of two metrics makes this much of a difference without a contradiction.
SAMPLING_ERROR = 0.05
# A log is regular if at least this share of three intervals or more lies so near to the usual one.
REGULAR, EVEN, FEWEST = 0.9, 0.25, 3
COMPARED = ("gpu_busy_frac", "sm_active_frac", "tensor_active_frac", "power_w", "memory_used_bytes", "sm_clock_hz")


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
    return statistics(readings(samples, window=window))


def statistics(found: Readings) -> pd.DataFrame:
    """Return the table of `summary` for readings that are at hand."""
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
    value, reached = _by_size(found)
    before = np.append(0, reached)[found.first]
    total = np.append(reached, 0)[found.stop - 1] - before
    # In whole ns, so that exactly half of the time is half of it.
    spent = {name: np.ceil(share * total).astype(np.int64) for name, share in shares.items()}
    return {name: value[np.searchsorted(reached, before + least)] for name, least in spent.items()}


def _by_size(found: Readings) -> tuple[Float, Int]:
    """Return the values of each series by size, and the time that they and all before them hold."""
    value, hold = found.value.copy(), found.hold.copy()
    for begin, end in zip(found.first.tolist(), found.stop.tolist(), strict=True):
        if (hold[begin:end] == hold[begin]).all():
            value[begin:end].sort()
        else:
            order = np.argsort(value[begin:end])
            value[begin:end], hold[begin:end] = value[begin:end][order], hold[begin:end][order]
    return value, np.cumsum(hold)


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
