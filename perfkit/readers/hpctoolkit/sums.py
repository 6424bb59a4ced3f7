"""How much of each metric does a calling context have, with and without what is called from it?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.readers.hpctoolkit.contexts import Measure
from perfkit.readers.hpctoolkit.files import Ints
from perfkit.readers.text import category

Floats = NDArray[np.float64]
ROUNDING = 1e-12  # what is left of a sum of doubles that is 0, relative to its parts


def call_metrics(
    context: Ints,
    metric: NDArray[np.int16],
    value: Floats,
    metrics: Sequence[Measure],
    tree: pd.DataFrame,
) -> pd.DataFrame:
    """Return CALL_METRICS of CALLTREE, given stored inclusive values: context, position in `metrics`, value.

    What the tree leaves out, such as instructions, the context above has alone.
    """
    if not len(context):
        return tables.CALL_METRICS.empty()
    node = tree["node"].to_numpy()
    parent = np.searchsorted(node, tree["parent"].fillna(node[0]).to_numpy(np.int64))
    is_root = tree["parent"].isna().to_numpy(bool)
    place = np.searchsorted(node, context)
    place[place == len(node)] = 0
    by_metric = np.argsort(metric, kind="stable")
    by_metric = by_metric[(node[place] == context)[by_metric]]
    starts = np.searchsorted(metric[by_metric], np.arange(len(metrics) + 1))
    parts = []
    for i, one in enumerate(metrics):
        rows = by_metric[starts[i] : starts[i + 1]]
        if len(rows):
            parts.append((i, *_exclusive(place[rows], value[rows] * one.factor, parent, is_root)))
    metric = np.repeat([i for i, *_ in parts], [len(place) for _, place, *_ in parts]).astype(
        np.int16
    )
    place, inclusive, exclusive = (np.concatenate([p[i] for p in parts]) for i in (1, 2, 3))
    order = np.argsort(place * len(metrics) + metric, kind="stable")
    frame = {
        "rank": np.zeros(len(order), np.int32),
        "node": node[place[order]],
        **labels(metric[order], metrics),
        "inclusive": inclusive[order],
        "exclusive": exclusive[order],
    }
    return tables.CALL_METRICS.make(pd.DataFrame(frame, copy=False))


def _exclusive(
    place: Ints, value: Floats, parent: Ints, is_root: NDArray[np.bool_]
) -> tuple[Ints, Floats, Floats]:
    """Return the contexts that have one metric, and its value with and without what is called from them."""
    inclusive = np.zeros(len(parent))
    inclusive[place] = value
    below = place[~is_root[place]]
    exclusive = inclusive - np.bincount(parent[below], inclusive[below], len(parent))
    exclusive[np.abs(exclusive) <= ROUNDING * np.abs(inclusive)] = 0.0
    there = exclusive != 0
    there[place] = True
    rows = np.flatnonzero(there)
    return rows, inclusive[rows], exclusive[rows]


def labels(metric: NDArray[np.int16], metrics: Sequence[Measure]) -> dict[str, pd.Categorical]:
    """Return the columns metric and unit."""
    return {
        "metric": category(metric, [m.name for m in metrics]),
        "unit": category(metric, [m.unit for m in metrics]),
    }
