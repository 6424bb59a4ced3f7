"""Rows of one table of a run: columns, conditions, order and a limit. Nothing that is asked is run as code."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from perfkit.agents.values import recorded, records
from perfkit.errors import PerfkitError
from perfkit.schema import Table
from perfkit.selection import Selection
from perfkit.tables import TABLES

MOST_ROWS = 500  # of one answer
MOST_CONDITIONS = 20
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUAL = ("==", "!=")
TEXTS = ("category", "string")
CONTAINS = "contains"  # of text, upper and lower case alike


@dataclass(frozen=True)
class Condition:
    """What a row must meet: a column, a comparison, and a value of the column's type."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic reads it as it stands

    column: str
    op: Literal["==", "!=", "<", "<=", ">", ">=", "contains"]
    value: str | bool | int | float


@dataclass(frozen=True)
class Query:
    """What is asked of a table; without columns all are returned, and `-` before a column orders downwards."""

    table: str
    columns: Sequence[str] = ()
    where: Sequence[Condition] = ()
    order: Sequence[str] = ()
    limit: int = 20


def table_of(name: str) -> Table:
    """Return the table of this name; PerfkitError if there is none."""
    table = TABLES.get(name.upper())
    if table is None:
        raise PerfkitError(f"table: {name!r} is no table. Choose from {', '.join(TABLES)}.")
    return table


def rows_of(view: Selection, name: str) -> pd.DataFrame:
    """Return the rows of a table in the chosen part of a run, whole rows where a window cuts them."""
    attribute = name.lower()
    is_chosen = hasattr(type(view), attribute)
    own: pd.DataFrame = getattr(view, attribute) if is_chosen else view.run.table(name)
    if view.window is None:
        return own
    first, last = view.window
    if "start_ns" in own and "dur_ns" in own:
        return own[(own["start_ns"] < last) & (own["start_ns"] + own["dur_ns"] > first)]
    if "time_ns" in own:
        return own[own["time_ns"].between(first, last, inclusive="left")]
    return own


def answer(view: Selection, asked: Query) -> dict[str, Any]:
    """Return the rows that are asked for, how many there are, and what their columns mean.

    PerfkitError if the query does not fit the table, or asks for more than MOST_ROWS.
    """
    table = table_of(asked.table)
    _check(table, asked)
    names = list(asked.columns) or list(table.column_names)
    used = dict.fromkeys([*names, *_named(asked)])
    frame = recorded(rows_of(view, table.name)[list(used)], table)
    for condition in asked.where:
        frame = frame[_meets(frame[condition.column], table, condition)]
    shown = _ordered(frame, asked.order).head(asked.limit)[names]
    meanings = {column.name: column.meaning for column in table.columns if column.name in names}
    return {
        "table": table.name,
        "one_row_is": table.row,
        "columns": meanings,
        "matching_rows_count": len(frame),
        "rows": records(shown),
    }


def _named(asked: Query) -> list[str]:
    """Return the columns of the conditions and the order."""
    conditions = [condition.column for condition in asked.where]
    return [*conditions, *(name.removeprefix("-") for name in asked.order)]


def _check(table: Table, asked: Query) -> None:
    """Refuse columns that the table does not have, and limits beyond what is answered."""
    unknown = sorted({*asked.columns, *_named(asked)} - set(table.column_names))
    if unknown:
        raise PerfkitError(
            f"columns: {table.name} has no {', '.join(map(repr, unknown))}. "
            f"Choose from {', '.join(table.column_names)}."
        )
    if not 1 <= asked.limit <= MOST_ROWS:
        raise PerfkitError(
            f"limit: {asked.limit} is not 1 to {MOST_ROWS}. Give conditions that fewer rows meet."
        )
    texts = {column.name for column in table.columns if column.dtype in TEXTS}
    if any(name.removeprefix("-") in texts for name in asked.order):
        raise PerfkitError("order: a column of text orders nothing. Order by columns of numbers.")
    if len(asked.where) > MOST_CONDITIONS:
        raise PerfkitError(f"where: more than {MOST_CONDITIONS} conditions. Give fewer.")


def _meets(values: pd.Series, table: Table, condition: Condition) -> np.ndarray:
    """Return which rows meet a condition; a value that was not recorded meets none."""
    dtype = next(column.dtype for column in table.columns if column.name == condition.column)
    op, value = condition.op, condition.value
    if dtype in TEXTS:
        _require(isinstance(value, str) and op in (*EQUAL, CONTAINS), condition, "a text", op)
        return _holds(values, str(value), op)
    if dtype == "bool":
        _require(isinstance(value, bool) and op in EQUAL, condition, "true or false", op)
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        _require(is_number and op != CONTAINS, condition, "a number", op)
    known = values.notna().to_numpy(bool)
    meets = np.zeros(len(values), bool)
    meets[known] = np.asarray(COMPARISONS[op](values[known], value), bool)
    return meets


def _require(is_legal: bool, condition: Condition, what: str, op: str) -> None:
    if not is_legal:
        raise PerfkitError(
            f"where: {condition.column!r} {op} {condition.value!r}: the column holds {what}, "
            "which this cannot be compared with."
        )


def _holds(values: pd.Series, text: str, op: str) -> np.ndarray:
    """Return which texts are, are not, or contain a text."""
    codes, texts = pd.factorize(values)
    asked = text.casefold()
    if op == CONTAINS:
        meets = [asked in str(each).casefold() for each in texts]
    else:
        meets = [COMPARISONS[op](str(each), text) for each in texts]
    return np.array([*meets, False], bool)[codes]  # code -1 is what was not recorded


def _ordered(frame: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Return rows in the order of columns of numbers."""
    if not order:
        return frame
    names = [name.removeprefix("-") for name in order]
    upwards = [not name.startswith("-") for name in order]
    return frame.sort_values(names, ascending=upwards, kind="stable")
