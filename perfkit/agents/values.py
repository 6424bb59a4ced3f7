"""Answers as values of JSON: text from outside stays on its line, and what was not recorded is null."""

import math
from typing import Any

import pandas as pd

from perfkit.format import elided, visible
from perfkit.schema import NOT_RECORDED, Table

LONGEST_TEXT = 4_000  # characters of a text of perfkit
LONGEST_NAME = 400  # of a text in a table


def plain(value: Any) -> Any:
    """Return a value as one of JSON; a character that a terminal would obey becomes �."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, str):
        return visible(value[:LONGEST_TEXT], keep="\n")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as dictionaries."""
    columns = {str(name): _column(frame[name]) for name in frame}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _column(values: pd.Series) -> list[Any]:
    is_known = values.notna()
    return [
        _cell(value) if known else None
        for value, known in zip(values.astype(object), is_known, strict=True)
    ]


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return elided(value, LONGEST_NAME)
    return plain(value.item() if hasattr(value, "item") else value)


def recorded(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return columns of a table with missing values where a tool did not record an optional one."""
    changed = {}
    for column in table.columns:
        absent = NOT_RECORDED.get(column.dtype)
        if column.optional and column.name in frame and absent is not None:
            values = frame[column.name]
            is_absent = values == absent
            if values.dtype.kind == "i":
                values = values.astype("Int64")
            changed[column.name] = values.mask(is_absent)
    return frame.assign(**changed)
