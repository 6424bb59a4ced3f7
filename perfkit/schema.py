"""What a table promises: its columns, their types, units and meaning, and its order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfkit.errors import SchemaError

INTEGERS = ("int64", "int32", "Int64")
DTYPES = (*INTEGERS, "float64", "bool", "string", "category")


@dataclass(frozen=True)
class Column:
    """One column: its name (with its unit as suffix), dtype and one-line meaning.

    ``Int64`` and ``float64`` columns may hold missing values, the other numbers never do.
    """

    name: str
    dtype: str
    meaning: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype of column {self.name!r}: {self.dtype!r} is not one of {DTYPES}")


@dataclass(frozen=True)
class Table:
    """A named table: one row is `row`, kept sorted by the columns in `sort`."""

    name: str
    row: str
    columns: tuple[Column, ...]
    sort: tuple[str, ...]

    @property
    def column_names(self) -> list[str]:
        """Names of the columns in their order."""
        return [column.name for column in self.columns]

    def empty(self) -> pd.DataFrame:
        """Return the table without rows."""
        return self.make(pd.DataFrame({name: [] for name in self.column_names}))

    def make(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return `frame` ordered, cast, sorted and checked against this table.

        Parameters
        ----------
        frame
            Exactly the table's columns, in any order and of any type that casts without loss.

        Returns
        -------
        pandas.DataFrame
            A new frame with a fresh index; the columns are shared where nothing had to change.

        Raises
        ------
        SchemaError
            Lists every missing, unexpected and lossy column at once.

        Examples
        --------
        >>> spans = Table("SPANS", "a span", (Column("start_ns", "int64", "start"),), ("start_ns",))
        >>> spans.make(pd.DataFrame({"start_ns": [2.0, 1.0]}))["start_ns"].tolist()
        [1, 2]
        >>> spans.make(pd.DataFrame({"start_ns": [1.5]}))
        Traceback (most recent call last):
        ...
        perfkit.errors.SchemaError: table 'SPANS' does not match its schema:
          - column 'start_ns' is float64, not int64: 1.5 would change
        """
        problems = [f"column {c!r} is missing" for c in self.column_names if c not in frame]
        problems += [f"column {c!r} is not of this table" for c in frame if c not in self.column_names]
        twice = frame.columns[frame.columns.duplicated()].unique()
        problems += [f"column {c!r} is there more than once" for c in twice]
        made: dict[str, pd.Series] = {}
        for column in self.columns:
            if column.name not in frame or column.name in twice:
                continue
            try:
                made[column.name] = _cast(frame[column.name], column.dtype)
            except SchemaError as e:
                problems.append(f"column {column.name!r} is {frame[column.name].dtype}, not {column.dtype}: {e}")
        if problems:
            raise SchemaError("\n  - ".join([f"table {self.name!r} does not match its schema:", *problems]))
        return _sorted(pd.DataFrame(made, copy=False), list(self.sort))

    def check(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return `frame` unchanged if it has this table's columns and dtypes, else raise SchemaError.

        Analyses call this on their input: it costs no pass over the rows.
        """
        found = {str(name): str(dtype) for name, dtype in frame.dtypes.items()}
        problems = [
            f"column {c.name!r} is " + (f"{found[c.name]}, not {c.dtype}" if c.name in found else "missing")
            for c in self.columns
            if found.get(c.name) != c.dtype
        ]
        if problems:
            raise SchemaError("\n  - ".join([f"table {self.name!r} does not match its schema:", *problems]))
        return frame


def _cast(values: pd.Series, dtype: str) -> pd.Series:
    """Cast without loss or raise SchemaError saying which value would change."""
    if str(values.dtype) == dtype:
        return values
    if dtype == "category" and values.isna().all():
        values = values.astype(object)  # names are text also where there is none: NaN would make them numbers
    target: Any = dtype  # the stubs know no astype with a name that is not a literal
    try:
        cast: pd.Series = values.astype(target)
    except (ValueError, TypeError, OverflowError) as e:
        raise SchemaError(_first_changed(values, dtype) or str(e)) from e
    changed = "" if dtype in ("string", "category") else _first_changed(values, dtype, cast)
    if changed:
        raise SchemaError(changed)
    return cast


def _first_changed(values: pd.Series, dtype: str, cast: pd.Series | None = None) -> str:
    """Name the first value that `dtype` cannot hold, or the empty string."""
    if values.empty:
        return ""
    if dtype in INTEGERS and dtype != "Int64" and values.isna().any():
        return "it holds missing values"
    numbers = pd.to_numeric(values, errors="coerce")
    wrong = numbers.isna() & values.notna()
    if dtype == "bool":
        wrong |= ~numbers.isin([0, 1])
    elif dtype in INTEGERS:
        bounds = np.iinfo("int32" if dtype == "int32" else "int64")
        wrong |= (numbers < bounds.min) | (numbers > bounds.max)
        if numbers.dtype.kind == "f":
            wrong |= (numbers % 1 != 0) & numbers.notna() | (numbers.abs() > 2**53)
    elif cast is not None and values.dtype.kind in "iu":
        wrong |= (numbers > 2**53) | (numbers < -(2**53))
    return f"{values[wrong].iloc[0]} would change" if wrong.any() else ""


def _sorted(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sort stably by `keys`; a frame that is in order already is not copied."""
    frame.index = pd.RangeIndex(len(frame))
    if _in_order([_ordinal(frame[key]) for key in keys]):
        return frame
    order = np.lexsort([_ordinal(frame[key]) for key in reversed(keys)])
    return frame.take(order).reset_index(drop=True)


def _ordinal(values: pd.Series) -> np.ndarray:
    """Numbers that sort like `values`; text sorts by its characters, missing first."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        rank = np.argsort(np.argsort(values.cat.categories.to_numpy(object).astype(str), kind="stable"))
        return np.append(rank, -1)[values.cat.codes.to_numpy()]
    if values.dtype == "string":
        return _ordinal(values.astype("category"))
    if str(values.dtype) == "Int64":
        return values.fillna(np.iinfo("int64").min).to_numpy("int64")
    return values.to_numpy()


def _in_order(keys: list[np.ndarray]) -> bool:
    tied: Any = True
    for key in keys:
        if ((key[1:] < key[:-1]) & tied).any():
            return False
        tied &= key[1:] == key[:-1]
    return True
