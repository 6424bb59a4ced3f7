"""What did each metric of each device do?

Functions
---------
summary       statistics of every metric
utilisation   the four meanings of GPU utilisation
energy        energy of each device
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.analysis.monitoring.readings import DEVICE, Float, Readings, means, of_each, readings, wide
from perfkit.analysis.window import Window

PERCENTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}
BUSY = ("gpu_busy_frac", "graphics_active_frac")
PIPES = ("tensor_active_frac", "fp64_active_frac", "fp32_active_frac", "fp16_active_frac")
# Different sampling of two metrics makes this much of a difference without a contradiction.
SAMPLING_ERROR = 0.05
# A log is regular if at least this share of three intervals or more lies so near to the usual one.
REGULAR, EVEN, FEWEST = 0.9, 0.25, 3


def summary(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return count, missing share, time-weighted mean and percentiles, and extremes of each metric of each device.

    The percentile p is the least value at or below which the metric was for the share p of the time. In a regular log
    (nine of ten intervals within a quarter of the usual one) longer intervals are missing readings.

    Parameters
    ----------
    samples
        SAMPLES in any order; may be empty.
    window
        (start_ns, end_ns), half open: readings in it; all when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per rank, gpu (int32) and metric (category), ascending: `count` int64, readings without NaN;
        `missing_frac` float64, 0..1, share of the ticks between the first and the last reading that have none, NaN
        where the log is not regular or has fewer than three readings; `mean`, `p5`, `p50`, `p95`, `min`, `max`
        float64, in the unit of the metric's suffix.

    Raises
    ------
    SchemaError
        If `samples` is not a SAMPLES table.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> summary(SAMPLES.empty()).columns.tolist()[3:]
    ['count', 'missing_frac', 'mean', 'p5', 'p50', 'p95', 'min', 'max']
    """
    return statistics(readings(samples, window=window))


def statistics(found: Readings) -> pd.DataFrame:
    """Return the table of `summary` for readings that are at hand."""
    table = found.series.assign(count=found.count, missing_frac=_missing(found), mean=means(found))
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


def _missing(found: Readings) -> Float:
    """Return the share of ticks without a reading, NaN where a series has no regular ticks."""
    ticks = found.hold / np.maximum(found.usual, 1)[found.row_series]
    # The last reading has no interval after it: its own counts as regular, and is taken off again.
    regular = of_each(np.add, found, (np.abs(ticks - 1) <= EVEN).astype(np.int64)) - 1
    skipped = of_each(np.add, found, np.maximum(np.rint(ticks) - 1, 0))
    known = (found.count >= FEWEST) & (found.usual > 0) & (regular >= REGULAR * (found.count - 1))
    return np.where(known, skipped / (skipped + found.count), np.nan)


def utilisation(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the four meanings of GPU utilisation of each device, time-weighted means, side by side.

    Over the same time the first is at least the second and the second at least the third and the fourth.

    Parameters
    ----------
    samples, window
        As in `summary`.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with any of them, ascending; float64, 0..1, NaN where not recorded:
        `gpu_busy_frac`, time with at least one kernel; `sm_active_frac`, cycles with a warp on an SM, mean over the
        SMs; `sm_occupancy_frac`, resident warps over the most there can be; `pipe_active_frac`, cycles in which the
        busiest arithmetic pipe worked. `busy_metric`, `pipe` string: the metric the first and the last come from,
        missing where there is none; `note` string, which of them contradict each other by more than 0.05, else empty.

    Raises
    ------
    SchemaError, ValueError
        As in `summary`.

    References
    ----------
    NVML, nvmlUtilization_t; DCGM fields 203, 1001 to 1004, 1006 to 1008.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> utilisation(SAMPLES.empty()).columns.tolist()[2:6]
    ['gpu_busy_frac', 'sm_active_frac', 'sm_occupancy_frac', 'pipe_active_frac']
    """
    metrics = (*BUSY, "sm_active_frac", "sm_occupancy_frac", *PIPES)
    found = readings(samples, *metrics, window=window)
    mean = wide(found, means(found), metrics)
    busy, pipes = mean[list(BUSY)], mean[list(PIPES)]
    table = mean[["sm_active_frac", "sm_occupancy_frac"]].assign(pipe_active_frac=pipes.max(axis=1))
    table.insert(0, "gpu_busy_frac", busy.bfill(axis=1).iloc[:, 0])
    table["busy_metric"] = _named(busy.notna())
    table["pipe"] = _named(pipes.eq(table["pipe_active_frac"], axis=0))
    table["note"] = _contradictions(table)
    return table.rename_axis(columns=None).reset_index()


def _named(chosen: pd.DataFrame) -> pd.Series:
    """Return the name of the first column that is true in each row, missing where none is."""
    names = np.array(chosen.columns, dtype=object)[chosen.to_numpy().argmax(axis=1)]
    return pd.Series(names, chosen.index, dtype="string").where(chosen.any(axis=1))


def _contradictions(table: pd.DataFrame) -> pd.Series:
    """Return a text for every row in which a part exceeds its whole."""
    notes = pd.Series("", table.index, dtype="string")
    for part, whole in (("sm_active", "gpu_busy"), ("sm_occupancy", "sm_active"), ("pipe_active", "sm_active")):
        over = table[f"{part}_frac"] > table[f"{whole}_frac"] + SAMPLING_ERROR
        notes = notes.mask(
            over, notes + f"{part}_frac exceeds {whole}_frac, which cannot be: check what was recorded. "
        )
    return notes.str.strip()


def energy(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the energy of each device: the counter's last reading less its first, or the integral of the power.

    Power is taken to change linearly between readings (trapezoid). A counter that goes back has been reset and is
    passed over.

    Parameters
    ----------
    samples, window
        As in `summary`.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with power or energy, ascending: `energy_j` float64, J; `span_ns` int64, from
        first to last reading; `power_w` float64, energy over span, W; NaN where there are not two readings at
        different times. `source` category, the metric it comes from: energy_j or power_w.

    Raises
    ------
    SchemaError, ValueError
        As in `summary`.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> energy(SAMPLES.empty()).columns.tolist()[2:]
    ['energy_j', 'span_ns', 'power_w', 'source']
    """
    found = readings(samples, "energy_j", "power_w", window=window)
    last = found.stop - 1
    span = found.time[last] - found.time[found.first]
    counted = (found.series["metric"] == "energy_j").to_numpy()
    back = found.row_series[1:][(np.diff(found.value) < 0) & (np.diff(found.row_series) == 0)]
    reset = counted & np.isin(np.arange(len(last)), back)
    worth = np.where(counted, found.value[last] - found.value[found.first], _integral(found))
    worth = np.where(reset | (span == 0), np.nan, worth)
    table = found.series[DEVICE].assign(energy_j=worth, span_ns=span)
    table["power_w"] = table["energy_j"] / table["span_ns"].where(span > 0) * 1e9
    table["source"] = found.series["metric"]
    return (
        table.iloc[np.argsort(np.isnan(worth), kind="stable")]
        .drop_duplicates(DEVICE)
        .sort_values(DEVICE, ignore_index=True)
    )


def _integral(found: Readings) -> Float:
    """Return the integral of each series over its seconds, linear between readings."""
    within = np.diff(found.row_series, append=-1) == 0
    step = np.where(within, found.hold, 0) / 1e9
    return np.asarray(
        np.add.reduceat((found.value + np.append(found.value[1:], 0)) / 2 * step, found.first), np.float64
    )
