"""Columns made of codes: text that is stored once, and numbers that may be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.readers.hpctoolkit.layout import Ints


def category(codes: NDArray[np.integer[Any]], labels: Sequence[str]) -> pd.Categorical:
    """Return the text of each code, missing for -1; equal texts become one, and what does not occur is left out."""
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(labels))).tolist()
    distinct = sorted({labels[i] for i in used})
    number = {text: i for i, text in enumerate(distinct)}
    of_code = np.full(len(labels) + 1, -1)  # the last is what code -1 takes
    of_code[used] = [number[labels[i]] for i in used]
    made: pd.Categorical = pd.Categorical.from_codes(of_code[codes], pd.Index(distinct, dtype=object))
    return made


def nullable(values: Ints) -> pd.arrays.IntegerArray:
    """Return numbers of which -1 stands for unknown."""
    return pd.arrays.IntegerArray(values, values < 0)
