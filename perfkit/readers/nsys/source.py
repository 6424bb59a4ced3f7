"""What the parts of the reader ask of an export, whichever form it was written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perfkit.readers.nsys.stack import Columns

Int = NDArray[np.int64]
Made = TypeVar("Made")

# Tables that only Nsight Systems writes; every export has at least one of them.
MARKERS = ("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS")


@dataclass(frozen=True)
class Combined:
    """A column made of others while reading, so that fewer are carried: `name` = a operator b operator c."""

    name: str
    operator: str
    columns: tuple[str, ...]


DUR = Combined("dur", "-", ("end", "start"))
NOTHING = pa.table({})  # what an absent table is read as


class Source(Protocol):
    """An export: tables of named columns. An absent table has no columns and no rows."""

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`."""

    def convert(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Made]) -> list[Made]:
        """Apply `make` to consecutive parts of those numeric `columns` that exist, on several threads."""

    def stacked(self, table: str, columns: Iterable[str | Combined], make: Callable[[pa.Table], Columns]) -> Columns:
        """Return what `make` returns for the parts, all parts together; for an absent table, for `NOTHING`."""

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None."""

    def text(self, table: str, column: str) -> list[str | None]:
        """Return a text column in the order of `convert`; an empty list if it is absent or all null."""

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; unknown ids are left out."""


def available(columns: Iterable[str | Combined], present: Collection[str]) -> list[str | Combined]:
    """Return those of `columns` for which the table has what they are made of."""
    return [c for c in columns if set(c.columns if isinstance(c, Combined) else (c,)) <= set(present)]


def resolve(table: str, names: Collection[str]) -> str | None:
    """Return the name under which `table` is stored: itself, or its newest ``_V2``, ``_V3`` form."""
    versions = [n for n in names if n == table or re.fullmatch(rf"{table}_V\d+", n)]
    return max(versions, key=lambda n: (len(n), n), default=None)


def ints(part: pa.Table, name: str, missing: int = -1) -> Int:
    """Return a column as int64, `missing` where it is null or not recorded at all."""
    if name not in part.column_names:
        return np.full(part.num_rows, missing, np.int64)
    column = part.column(name)
    # Parquet exports write ids unsigned; all bits set is "none" there and becomes -1 here.
    whole = pc.cast(column, pa.int64(), safe=not pa.types.is_uint64(column.type))
    return np.ascontiguousarray((pc.fill_null(whole, missing) if whole.null_count else whole).to_numpy())


def absent(part: pa.Table, name: str) -> NDArray[np.bool_]:
    """Return where a column is null or not recorded at all."""
    if name not in part.column_names:
        return np.ones(part.num_rows, bool)
    column = part.column(name)
    return column.is_null().to_numpy() if column.null_count else np.zeros(part.num_rows, bool)


def quantity(part: pa.Table, name: str, column: str) -> Columns:
    """Return a column as int64 under `name`, and where it is absent, for `nullable`."""
    return {name: ints(part, column, 0), f"no {name}": absent(part, column)}


def nullable(columns: Columns, name: str) -> pd.arrays.IntegerArray:
    """Return a `quantity` as a nullable Int64 column."""
    return pd.arrays.IntegerArray(columns[name], columns[f"no {name}"])


def categorical(codes: NDArray[Any], labels: list[str]) -> pd.Categorical:
    """Return the category `labels[code]` per row, missing for code -1; equal labels become one, sorted."""
    distinct, number = np.unique(np.array([*labels], object), return_inverse=True)
    return pd.Categorical.from_codes(np.r_[number, -1][codes], distinct.tolist())


def texts(source: Source, ids: Int) -> tuple[NDArray[Any], list[str]]:
    """Return a code per row and the text of each code for a column of StringIds."""
    codes, distinct = pd.factorize(ids)
    found = source.strings(int(i) for i in distinct)
    return codes, [found.get(int(i), f"unnamed (string {i})" if i >= 0 else "unnamed") for i in distinct]


def process_of(global_id: Int) -> Int:
    """Return the process id in a globalPid or globalTid (bits 24 to 47); -1 stays -1."""
    process = global_id >> 24
    process &= 0xFFFFFF
    process[global_id < 0] = -1
    return process


def thread_of(global_tid: Int) -> Int:
    """Return the thread id in a globalTid (bits 0 to 23); -1 stays -1."""
    return np.where(global_tid < 0, np.int64(-1), global_tid & 0xFFFFFF)
