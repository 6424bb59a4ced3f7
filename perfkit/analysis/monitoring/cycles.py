"""Does the work repeat, and how often?

Functions
---------
periods    the period with which a metric repeats
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.monitoring.readings import DEVICE, Float, Readings, readings
from perfkit.analysis.window import Window

POINTS = 2**17  # of the grid on which a period is looked for, at most
FEWEST_PERIODS = 3
# Autocorrelation of a period, and by how much it must rise above what lies before: a slow trend correlates too.
LEAST, RISE, AS_GOOD = 0.3, 0.3, 0.9
NOISE = 4.0  # standard deviations of the autocorrelation of white noise, 1 / sqrt(points)


def periods(samples: pd.DataFrame, *, metric: str = "gpu_busy_frac", window: Window | None = None) -> pd.DataFrame:
    """Return the period with which a metric of each device repeats, where it does, from its autocorrelation.

    The readings are averaged over a grid of their usual interval (coarser beyond 131,072 points). The period is the
    shortest lag, of at most a third of the span, at which the autocorrelation peaks within a tenth of its highest
    peak. There is none where that peak is below 0.3, or below four standard deviations of white noise
    (4 / sqrt(points)), or does not rise by 0.3 above what lies before it.

    Parameters
    ----------
    samples, metric, window
        As in `dips`.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with the metric, ascending: `period_ns` Int64, NA where there is none;
        `correlation` float64, the autocorrelation at that lag, 0.3..1, NaN where there is none; `step_ns` int64, the
        grid, which is the precision of the period.

    Raises
    ------
    SchemaError, ValueError
        As in `dips`.

    References
    ----------
    Box, Jenkins: Time Series Analysis, 1976, chapter 2 (autocorrelation, and Bartlett's standard deviation of it).

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> periods(SAMPLES.empty()).columns.tolist()[2:]
    ['period_ns', 'correlation', 'step_ns']
    """
    found = readings(samples, metric, window=window)
    rows = [_period(*_gridded(found, number)) for number in range(len(found.first))]
    table = pd.DataFrame(rows, columns=["period_ns", "correlation", "step_ns"])
    table = table.astype({"period_ns": "Int64", "correlation": "float64", "step_ns": "int64"})
    return pd.concat([found.series[DEVICE], table], axis=1)


def _gridded(found: Readings, number: int) -> tuple[Float, int]:
    """Return the mean of a series in each step of a grid, and the step, ns."""
    rows = slice(found.first[number], found.stop[number])
    time, hold = found.time[rows], found.hold[rows]
    span = int(time[-1] + hold[-1] - time[0])
    step = max(int(found.usual[number]), -(-span // POINTS), 1)
    edges = np.arange(span // step + 1) * step
    reached = np.append(0, np.cumsum(hold))
    integral = np.append(0.0, np.cumsum(found.value[rows] * hold))
    return np.diff(np.interp(edges, reached, integral)) / step, step


def _period(value: Float, step: int) -> tuple[int | None, float, int]:
    """Return the period, its autocorrelation and the step; None and NaN where there is none."""
    correlation = _autocorrelation(value)
    before = np.minimum.accumulate(correlation)
    inner = correlation[1:-1]
    peak = np.flatnonzero((inner > correlation[:-2]) & (inner >= correlation[2:])) + 1
    least = max(LEAST, NOISE / np.sqrt(max(len(value), 1)))
    peak = peak[(correlation[peak] >= least) & (correlation[peak] - before[peak] >= RISE)]
    if not len(peak):
        return None, np.nan, step
    lag = peak[correlation[peak] >= AS_GOOD * correlation[peak].max()][0]
    return int(lag) * step, float(correlation[lag]), step


def _autocorrelation(value: Float) -> Float:
    """Return the autocorrelation at lags 0 and up to a third of the length; nothing for what does not vary."""
    above = value - value.mean() if len(value) else value
    lags = len(value) // FEWEST_PERIODS + 1
    power = float(np.mean(above**2)) if len(value) else 0.0
    if lags < 3 or power <= 1e-24 * float(np.max(value**2)):
        return np.zeros(2)
    spectrum = np.fft.rfft(above, 2 ** int(2 * len(value) - 1).bit_length())
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:lags]
    return np.asarray(products / (len(value) - np.arange(lags)) / power, np.float64)
