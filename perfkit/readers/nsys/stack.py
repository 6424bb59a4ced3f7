"""Columns that several threads fill part by part, so that a large table is held once and never joined."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]


class Stack:
    """Columns with room for `rows` rows, made when the first part is put."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: Columns = {}
        self._filled: dict[int, int] = {}
        self._lock = Lock()

    def put(self, place: int, part: Mapping[str, NDArray[Any]]) -> None:
        """Write a part, which has the same columns as every other, from row `place` on."""
        count = len(next(iter(part.values())))
        with self._lock:
            self._filled[place] = count
            for name, values in part.items():
                if name not in self._columns:
                    self._columns[name] = np.empty(self._rows, values.dtype)
        for name, values in part.items():
            self._columns[name][place : place + count] = values

    def columns(self) -> Columns:
        """Return the columns; rows that no part has filled are left out."""
        if sum(self._filled.values()) == self._rows:
            return self._columns
        filled = [slice(place, place + count) for place, count in sorted(self._filled.items())]
        return {name: np.concatenate([values[rows] for rows in filled]) for name, values in self._columns.items()}
