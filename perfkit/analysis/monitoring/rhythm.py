"""Is the work steady over time and over the GPUs?

Functions
---------
dips        stretches in which a metric falls far below its median
idle        share of the time without any kernel
imbalance   the devices that differ most
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.analysis.monitoring.readings import DEVICE, Readings, means, readings, stretches, wide
from perfkit.analysis.monitoring.summaries import BUSY, percentiles
from perfkit.analysis.window import Window

COMPARED = ("gpu_busy_frac", "sm_active_frac", "tensor_active_frac", "power_w", "memory_used_bytes", "sm_clock_hz")


def dips(
    samples: pd.DataFrame, *, metric: str = "gpu_busy_frac", below: float = 0.5, window: Window | None = None
) -> pd.DataFrame:
    """Return the stretches in which a metric of a device is below a share of its median.

    A stretch reaches from its first low reading to the next reading that is not low.

    Parameters
    ----------
    samples
        SAMPLES in any order; may be empty.
    metric
        Metric that is looked at.
    below
        Share of the time-weighted median that counts as low, above 0, at most 1.
    window
        (start_ns, end_ns), half open: readings in it; all when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per stretch, by rank, gpu (int32) and `start_ns` int64; `dur_ns` int64; `count` int64, readings;
        `lowest`, `median` float64, of the stretch and of the device, in the metric's unit. None where the median is 0.

    Raises
    ------
    SchemaError
        If `samples` is not a SAMPLES table.
    ValueError
        If `below` is not within 0 and 1, or the window does not end after it starts.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> dips(SAMPLES.empty()).columns.tolist()[2:]
    ['start_ns', 'dur_ns', 'count', 'lowest', 'median']
    """
    if not 0 < below <= 1:
        raise ValueError(f"below: {below} is not within 0 and 1")
    found = readings(samples, metric, window=window)
    median = percentiles(found, {"p50": 0.5})["p50"]
    low = stretches(found, found.value < below * median[found.row_series])
    table = found.series[DEVICE].take(low.series).reset_index(drop=True)
    bounds = np.stack([low.first, low.stop], axis=1).ravel()
    # reduceat answers for what lies between two stretches as well; 0 stands behind the last value for its end.
    lowest = np.minimum.reduceat(np.append(found.value, 0), bounds)[::2] if len(bounds) else np.zeros(0)
    return table.assign(
        start_ns=found.time[low.first],
        dur_ns=_end(found, low.stop) - found.time[low.first],
        count=low.stop - low.first,
        lowest=lowest,
        median=median[low.series],
    )


def _end(found: Readings, stop: Int) -> Int:
    return np.asarray(found.time[stop - 1] + found.hold[stop - 1], np.int64)


def idle(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the share of the time in which no kernel ran on each device: readings of utilisation that are 0.

    Parameters
    ----------
    samples, window
        As in `dips`; gpu_busy_frac counts, for devices that lack it graphics_active_frac.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with utilisation, ascending: `idle_frac` float64, 0..1; `idle_ns` int64, the
        time; `longest_ns` int64, the longest stretch without a reading above 0; `count` int64, stretches.

    Raises
    ------
    SchemaError, ValueError
        As in `dips`.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> idle(SAMPLES.empty()).columns.tolist()[2:]
    ['idle_frac', 'idle_ns', 'longest_ns', 'count']
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
    return table[found.series["metric"].eq(BUSY[0]) | ~found.series.duplicated(DEVICE, keep=False)].reset_index(
        drop=True
    )


def imbalance(
    samples: pd.DataFrame, *, metrics: tuple[str, ...] = COMPARED, window: Window | None = None
) -> pd.DataFrame:
    """Return by how much the time-weighted means of the devices differ, metric by metric.

    Parameters
    ----------
    samples, window
        As in `dips`.
    metrics
        Metrics that are compared.

    Returns
    -------
    pandas.DataFrame
        One row per metric (category) that two devices at least have, in the order of `metrics`: `devices` int64, how
        many; `lowest`, `mean`, `highest` float64, over the devices, in the metric's unit; `lowest_rank`, `lowest_gpu`,
        `highest_rank`, `highest_gpu` int32; `spread_frac` float64, (highest - lowest) / highest, 0..1, NaN where the
        highest is 0.

    Raises
    ------
    SchemaError, ValueError
        As in `dips`.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> imbalance(SAMPLES.empty()).columns.tolist()[:5]
    ['metric', 'devices', 'lowest', 'mean', 'highest']
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
