"""What was measured at each context: the values of one metric.

Functions
---------
recorded     the metrics that a table has values of
measured     the values of a metric, with their rows in the call tree
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.calltree.paths import labelled, rows_of
from perfkit.analysis.intervals import Int
from perfkit.tables import CALL_METRICS, CALLTREE

Floats = NDArray[np.float64]


def recorded(metrics: pd.DataFrame) -> list[str]:
    """Return the names of the metrics of CALL_METRICS or THREAD_METRICS that have a value, in alphabetical order."""
    categories = metrics["metric"].cat.categories
    count = np.bincount(metrics["metric"].cat.codes.to_numpy() + 1, minlength=len(categories) + 1)[1:]
    return sorted(str(name) for name in categories[count > 0])


def of_metric(metrics: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of one metric.

    Raises
    ------
    ValueError
        If values were recorded, but none of this metric.
    """
    wanted = labelled(metrics["metric"], metrics["metric"].cat.categories == metric)
    if len(metrics) and not wanted.any():
        raise ValueError(f"metric: {metric!r} is not one of {recorded(metrics)}")
    found: pd.DataFrame = metrics[wanted]
    return found


class Measured(NamedTuple):
    """The values of a metric: rows in the call tree, the values there, and their unit."""

    row: Int
    inclusive: Floats
    exclusive: Floats
    unit: str


def measured(calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str) -> Measured:
    """Return the values of `metric` at the contexts of the tree.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
    ValueError
        If values were recorded, but none of this metric.
    """
    CALLTREE.check(calltree)
    found = of_metric(CALL_METRICS.check(call_metrics), metric)
    row = rows_of(calltree, found["rank"].to_numpy(np.int64), found["node"].to_numpy())
    there = row >= 0
    inclusive, exclusive = (found[name].to_numpy()[there] for name in ("inclusive", "exclusive"))
    return Measured(row[there], inclusive, exclusive, str(found["unit"].iloc[0]) if len(found) else "")
