"""Columns and small tables that readers make: text stored once, numbers that may be unknown, CAPTURE and DEVICES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables


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


def capture_table(
    path: Path, tool: str, version: str = "", t0_unix_ns: int | None = None, dur_ns: int = 0
) -> pd.DataFrame:
    """Return CAPTURE of one file or folder, with an unknown wall clock if `t0_unix_ns` is None."""
    frame = {"rank": 0, "tool": tool, "tool_version": version, "path": str(path), "dur_ns": dur_ns}
    return tables.CAPTURE.make(pd.DataFrame({**frame, "t0_unix_ns": pd.array([t0_unix_ns], dtype="Int64")}))


def devices_table(columns: Mapping[str, object], count: int) -> pd.DataFrame:
    """Return DEVICES of `count` GPUs: what the columns do not say is missing."""
    unknown = pd.array([None] * count, dtype="Int64")
    said = {"rank": 0, "compute_capability": "", "sm_count": unknown, "memory_bytes": unknown}
    return tables.DEVICES.make(pd.DataFrame({**said, "memory_bytes_per_s": np.nan, "clock_hz": np.nan, **columns}))
