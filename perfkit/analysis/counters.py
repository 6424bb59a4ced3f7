"""What do the counters of a launch say, by the names of their metrics?

Conventions
-----------
COUNTERS has one row per launch and metric. A launch is known by its rank and its number. NaN is not measured.

Functions
---------
wide     one column per metric, one row per launch
first    of several columns the first that was measured
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.tables import COUNTERS, LAUNCHES

Float = NDArray[np.float64]


def wide(launches: pd.DataFrame, counters: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """Return the values of `metrics`, one column each, for the rows of `launches`.

    Parameters
    ----------
    launches
        LAUNCHES; may be empty.
    counters
        COUNTERS; may be empty. A metric recorded twice for a launch counts with its first row.
    metrics
        Names of metrics, in any order.

    Returns
    -------
    pandas.DataFrame
        Rows and index of `launches`; float64 columns named by the metrics, in their order; NaN not measured.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.

    Examples
    --------
    >>> wide(LAUNCHES.empty(), COUNTERS.empty(), ["dram__bytes.sum"]).columns.tolist()
    ['dram__bytes.sum']
    """
    keys, wanted = ["rank", "launch"], list(dict.fromkeys(metrics))
    rows = pd.MultiIndex.from_frame(LAUNCHES.check(launches)[keys])
    table = pd.DataFrame(np.nan, index=launches.index, columns=wanted)
    part = COUNTERS.check(counters)[counters["metric"].isin(wanted)]
    for metric, found in part.groupby("metric", observed=True, sort=False):
        values = found.drop_duplicates(keys).set_index(keys)["value"]
        table[metric] = values.reindex(rows).to_numpy("float64")
    return table


def first(*columns: Float) -> Float:
    """Return, element by element, the first value that is not NaN.

    Examples
    --------
    >>> first(np.array([np.nan, 1.0]), np.array([2.0, 3.0])).tolist()
    [2.0, 1.0]
    """
    found = columns[0]
    for column in columns[1:]:
        found = np.where(np.isnan(found), column, found)
    return found
