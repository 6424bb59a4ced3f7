"""Of which GPU is a row: its index, or a number where the log has none.

Conventions
-----------
Without ``index`` GPUs are numbered in the order in which they appear, told apart by uuid, bus and name. With nothing
but a name, equal rows may be of several GPUs, which nvidia-smi prints in bursts, milliseconds apart: the n rows of a
burst are n GPUs if there are two bursts, every one has n, and lies further from the next than twice its length. Rows
that are closer than nvidia-smi can sample one GPU and do not come in such bursts cannot be told apart: an error.

Functions
---------
numbered   GPU of each row, and notes
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.nvidia_smi.log import Column, Unreadable

IDENTITY = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
NAMES = ("name", "gpu_name")
MOST = 16  # GPUs of a node
NEAR = 100_000_000  # ns from row to row of a burst
TOO_CLOSE = 10_000_000  # ns; querying one GPU takes nvidia-smi about that long
ADD = "add `index` to --query-gpu"
APPEARING = f"no index: GPUs are numbered in the order in which they appear ({ADD})"


class Mixed(ValueError):
    """Rows of several GPUs that nothing tells apart."""


def numbered(columns: Mapping[str, Column], times: NDArray[np.int64] | None) -> tuple[NDArray[np.int32], list[str]]:
    """Return the GPU of each row and notes.

    Raises
    ------
    Unreadable
        If an index is none.
    Mixed
        If the rows of several GPUs cannot be told apart.
    """
    if "index" in columns:
        return indices("index", columns["index"]), []
    rows = len(next(iter(columns.values())).codes)
    key = np.zeros(rows, np.int64)
    for column in (columns[name] for name in (*IDENTITY, *NAMES) if name in columns):
        key = np.unique(key * len(column.texts) + column.codes, return_inverse=True)[1]
    identified = any(name in columns for name in IDENTITY)
    if times is not None and not identified:
        key = key * MOST + _positions(key, times)
    gpu = _in_order(key)
    if identified:
        return gpu, [APPEARING]
    count = int(gpu.max()) + 1
    return gpu, [f"no index: the rows are taken to be of {count} GPU{'s' * (count > 1)}, in their order ({ADD})"]


def indices(name: str, column: Column) -> NDArray[np.int32]:
    """Return a column of indices as numbers.

    Raises
    ------
    Unreadable
        At the first that is none.
    """
    for code, text in enumerate(column.texts):
        if not (text.isascii() and text.isdecimal() and len(text) < 5):
            raise Unreadable(name, column, code)
    return np.array([int(text) for text in column.texts], np.int32)[column.codes]


def _positions(key: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each row within the burst of rows with its key."""
    place = np.zeros(len(key), np.int64)
    for value in np.unique(key):
        rows = np.flatnonzero(key == value)
        place[rows] = np.arange(len(rows)) % _in_burst(times[rows])
    return place


def _in_burst(times: NDArray[np.int64]) -> int:
    """Return how many rows come together."""
    steps = np.diff(times)
    if not len(steps) or steps.min() < 0:
        return 1
    for count in range(2, min(MOST, len(times) // 2) + 1):
        between = np.arange(1, len(times)) % count == 0
        within = int(steps[~between].max())
        if within < NEAR and steps[between].min() > 2 * within * (count - 1):
            return count
    if steps.min() < TOO_CLOSE:
        raise Mixed
    return 1


def _in_order(key: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number keys in the order in which they appear."""
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]
