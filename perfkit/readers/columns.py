"""Columns that readers make of codes and sentinels: text that is stored once, and numbers that may be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def category(codes: NDArray[np.integer[Any]], labels: Sequence[str | None]) -> pd.Categorical:
    """Return the label of each code, missing for code -1 and label None.

    Equal labels become one category; the categories are sorted, and those that no code has are left out.

    >>> category(np.array([2, 0, -1, 1]), ["b", None, "b"])
    ['b', 'b', NaN, NaN]
    Categories (1, object): ['b']
    """
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    used = {i: label for i in np.flatnonzero(counts).tolist() if (label := labels[i]) is not None}
    distinct = sorted(set(used.values()))
    number = {label: i for i, label in enumerate(distinct)}
    of_code = np.full(len(labels) + 1, -1)  # the last is what code -1 takes
    of_code[list(used)] = [number[label] for label in used.values()]
    made: pd.Categorical = pd.Categorical.from_codes(of_code[codes], pd.Index(distinct, dtype=object))
    return made


def nullable(values: NDArray[np.int64], absent: NDArray[np.bool_]) -> pd.arrays.IntegerArray:
    """Return whole numbers, missing where `absent` says so."""
    return pd.arrays.IntegerArray(np.where(absent, 0, values), absent)
