"""The calls of a run by their correlation, sorted once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int

Process = tuple[int, int]


class Launching:
    """API_CALLS by correlation: the call that launched an operation, found at once in a table of any length.

    They are joined as `perfkit.analysis.calls.started_by` does it: on (rank, process, correlation), of several calls
    with one id the first row, and never on an id of -1.

    Parameters
    ----------
    api_calls
        API_CALLS, may be empty. Sorted by rank and process, as the table is, most of it is used as it lies.

    Examples
    --------
    >>> from perfkit.tables import API_CALLS
    >>> none = np.zeros(1, np.int64)
    >>> Launching(API_CALLS.empty()).rows(none, none, none).tolist()
    [-1]
    """

    def __init__(self, api_calls: pd.DataFrame) -> None:
        self._calls = api_calls
        pairs = [api_calls[column].to_numpy() for column in ("rank", "process")]
        changed = np.logical_or(*(column[1:] != column[:-1] for column in pairs))
        first = np.flatnonzero(np.append(True, changed)[: len(api_calls)])
        ids = api_calls["correlation"].to_numpy()
        self._ids: dict[Process, tuple[Int, Int | None, int]] = {}
        for begin, end in zip(first, np.append(first, len(ids))[1:], strict=True):
            of_process = ids[begin:end]
            order = None if (of_process[1:] >= of_process[:-1]).all() else np.argsort(of_process, kind="stable")
            key = int(pairs[0][begin]), int(pairs[1][begin])
            self._ids[key] = (of_process if order is None else of_process[order], order, int(begin))

    def rows(self, rank: NDArray[np.integer], process: NDArray[np.integer], correlation: Int) -> Int:
        """Return the call that launched each operation.

        Parameters
        ----------
        rank, process, correlation
            Of each operation: columns of KERNELS or COPIES.

        Returns
        -------
        numpy.ndarray
            int64 position in API_CALLS, -1 where no call is recorded.
        """
        found = np.full(len(correlation), -1, np.int64)
        for key, (ids, order, first) in self._ids.items():
            at = np.flatnonzero((rank == key[0]) & (process == key[1]) & (correlation >= 0))
            place = np.searchsorted(ids, correlation[at])
            place, is_known = np.minimum(place, len(ids) - 1), place < len(ids)
            known = is_known & (ids[place] == correlation[at])
            row = place[known] if order is None else order[place[known]]
            found[at[known]] = row + first
        return found

    def of(self, rank: NDArray[np.integer], process: NDArray[np.integer], correlation: Int) -> dict[str, Any]:
        """Return name, start and duration of the calls that `rows` finds.

        Returns
        -------
        dict of columns
            call (text, None where no call is recorded), call_start_ns, call_dur_ns (Int64, ns, NA there).
        """
        row = self.rows(rank, process, correlation)
        call = self._calls.take(row[row >= 0])
        text = np.full(len(row), None, object)
        text[row >= 0] = call["name"].to_numpy(object)
        columns: dict[str, Any] = {"call": text}
        for column in ("start_ns", "dur_ns"):
            values = np.zeros(len(row), np.int64)
            values[row >= 0] = call[column]
            columns[f"call_{column}"] = pd.arrays.IntegerArray(values, row < 0)
        return columns
