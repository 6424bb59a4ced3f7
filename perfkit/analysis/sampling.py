"""What did sampled metrics do over time, in equal bins of one axis?

Conventions
-----------
A reading counts for the time until the next one of the same metric and device, the last one for the usual interval, as
in `perfkit.analysis.monitoring`; one that reaches over the edge of a bin counts in both. Weighted by `covered_ns`, the
means of the bins add up to the mean of the whole.

Functions
---------
bins   mean and extremes of each metric of each device in equal bins
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.monitoring.readings import Readings, readings
from perfkit.analysis.window import Window


def bins(
    samples: pd.DataFrame, *, metrics: Collection[str] = (), bins: int = 300, window: Window | None = None
) -> pd.DataFrame:
    """Return mean, least and most of each metric of each device in equal bins of one time axis.

    The bins are of one width, the last one as long as what is left. Where the readings are rarer than the bins would
    be, there are fewer: none but the last is shorter than the usual interval of the metric that was read most often.

    Parameters
    ----------
    samples
        SAMPLES in any order; may be empty.
    metrics
        Metrics that are looked at; all when empty.
    bins
        Number of bins at most, at least 1.
    window
        (start_ns, end_ns), half open: readings in it, and what the bins tile; all readings, and the time for which
        they count, when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per rank, gpu (int32), metric (category) and bin in which a reading counts, ascending: `start_ns`,
        `dur_ns` int64, of the bin; `covered_ns` int64, 1..dur_ns, the time of it for which readings count; `count`
        int64, readings taken in it, 0 where the one before still counts; `mean` float64, weighted by time; `min`, `max`
        float64, of all readings that count; in the unit of the metric's suffix.

    Raises
    ------
    SchemaError
        If `samples` is not a SAMPLES table.
    ValueError
        If `bins` is below 1, or the window does not end after it starts.

    Examples
    --------
    >>> from perfkit.tables import SAMPLES
    >>> bins(SAMPLES.empty()).columns.tolist()[3:]
    ['start_ns', 'dur_ns', 'covered_ns', 'count', 'mean', 'min', 'max']
    """
    if bins < 1:
        raise ValueError(f"bins: {bins} is not at least 1")
    found = readings(samples, *metrics, window=window)
    hold = _holds(found)
    first, last = window or ((int(found.time.min()), int((found.time + hold).max())) if len(hold) else (0, 1))
    edges = np.append(np.arange(first, last, max(-(-(last - first) // bins), _finest(found))), last)
    place = _places(found, edges)
    series, at = np.divmod(np.arange(place[:, 1:].size), len(edges) - 1)
    table = found.series.take(series).reset_index(drop=True)
    table = table.assign(start_ns=edges[at], dur_ns=np.diff(edges)[at])
    begin, stop = place[:, :-1].ravel(), place[:, 1:].ravel()
    table = table.assign(**_figures(found, hold, begin, stop, begin > found.first[series], edges[at], edges[at + 1]))
    return table[table["covered_ns"] > 0].reset_index(drop=True)


def _holds(found: Readings) -> Int:
    """Return for how long each reading counts; where most readings of a series repeat a time, 1 ns at least."""
    held: Int = np.maximum(found.hold, (found.usual == 0)[found.row_series])
    return held


def _finest(found: Readings) -> int:
    """Return the usual interval of the metric that was read most often, 1 ns where none was read twice."""
    usual = found.usual[found.usual > 0]
    return int(usual.min()) if len(usual) else 1


def _places(found: Readings, edges: Int) -> Int:
    """Return the first reading from each edge on, a row for each series."""
    places = np.empty((len(found.first), len(edges)), np.int64)
    for number, (begin, count) in enumerate(zip(found.first.tolist(), found.count.tolist(), strict=True)):
        places[number] = begin + np.searchsorted(found.time[begin : begin + count], edges)
    return places


def _figures(
    found: Readings, hold: Int, begin: Int, stop: Int, follows: NDArray[np.bool_], start: Int, end: Int
) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
    """Return the figures of bins [start, end) in which the readings [begin, stop) were taken.

    Where the bin `follows` a reading of its series, that one reaches into it until the first of its own.
    """
    taken = stop > begin
    reaching, until = np.append(found.value, 0)[begin - 1], np.append(found.time + hold, 0)[begin - 1]
    reach = np.where(follows, np.clip(until, start, end) - start, 0)
    last = stop[taken] - 1
    hold[last] = np.minimum(hold[last], end[taken] - found.time[last])
    covered = np.where(taken, _over(np.add, hold, begin, stop), 0) + reach
    whole = np.where(taken, _over(np.add, found.value * hold, begin, stop), 0) + np.where(
        reach > 0, reaching * reach, 0
    )
    low, high = (
        extreme(np.where(taken, _over(extreme, found.value, begin, stop), limit), np.where(reach > 0, reaching, limit))
        for extreme, limit in ((np.minimum, np.inf), (np.maximum, -np.inf))
    )
    return {
        "covered_ns": np.minimum(covered, end - start),  # readings of one time may count for 1 ns each
        "count": stop - begin,
        "mean": np.divide(whole, covered, out=np.zeros(len(covered)), where=covered > 0),
        "min": low,
        "max": high,
    }


def _over(how: np.ufunc, values: NDArray[np.generic], begin: Int, stop: Int) -> NDArray[np.generic]:
    """Return values[begin:stop] joined by `how` for each of these ranges; of an empty range anything."""
    # reduceat answers for what lies between two ranges as well; 0 stands behind the last value for its end.
    return np.asarray(how.reduceat(np.append(values, 0), np.stack([begin, stop], axis=1).ravel())[::2])
