"""Pass a student's answer to the tests as plain data: numbers, texts, collections, arrays and tables.

The student's process writes JSON and the grading process reads it. Whatever the student's process sends, the reader
makes nothing but the types below. So an answer holds no code, and no class of the student's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

DTYPE = re.compile(r"bool|object|category|boolean|string|str|[Uu]?[Ii]nt\d+|[Ff]loat\d+")
KIND = "kind"


def encode(value: Any) -> Any:
    """Return an answer as what JSON can hold. Raises TypeError if a part of it is no plain value."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for kind, (type_, content) in WRITERS.items():
        if isinstance(value, type_):
            return {KIND: kind, **content(value)}
    if value is pd.NA:
        return {KIND: "missing"}
    raise TypeError(f"the answer holds a {type(value).__name__}, which is no plain value")


def decode(node: Any) -> Any:
    """Return the answer that JSON holds. Raises ValueError if it is not as `encode` writes it."""
    if node is None or type(node) in (bool, int, float, str):
        return node
    if not isinstance(node, dict) or node.get(KIND) not in READERS:
        raise ValueError("the answer is not written as plain values are")
    try:
        return READERS[node[KIND]](node)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        raise ValueError(f"the answer is no {node[KIND]}: {e}") from e


def _items(values: Any) -> dict[str, Any]:
    return {"items": [encode(value) for value in values]}


def _pairs(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {"keys": [encode(key) for key in values], **_items(values.values())}


def _array(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": str(values.dtype), "shape": list(values.shape), **_items(values.ravel())}


def _index(values: pd.Index[Any]) -> dict[str, Any]:
    names = [encode(name) for name in values.names]
    levels = [_column(values.get_level_values(number)) for number in range(values.nlevels)]
    return {"names": names, "levels": levels}


def _column(values: Any) -> dict[str, Any]:
    return {"dtype": str(values.dtype), **_items(values)}


def _series(values: pd.Series[Any]) -> dict[str, Any]:
    return {"name": encode(values.name), "index": _index(values.index), "values": _column(values)}


def _frame(values: pd.DataFrame) -> dict[str, Any]:
    columns = [_column(values.iloc[:, number]) for number in range(values.shape[1])]
    return {"head": _index(values.columns), "index": _index(values.index), "columns": columns}


def _read_items(node: Any) -> list[Any]:
    return [decode(item) for item in node["items"]]


def _read_pairs(node: Any) -> dict[Any, Any]:
    keys = [decode(key) for key in node["keys"]]
    return dict(zip(keys, _read_items(node), strict=True))


def _dtype(node: Any) -> str:
    """Return the type of a column or an array, if it is one of plain values."""
    name = node["dtype"]
    if not isinstance(name, str) or not DTYPE.fullmatch(name):
        raise ValueError(f"the answer holds values of the type {name!r}, which are not plain")
    return name


def _read_array(node: Any) -> np.ndarray[Any, Any]:
    shape = [int(length) for length in node["shape"]]
    values = np.empty(len(node["items"]), dtype=object)
    values[:] = _read_items(node)
    return values.astype(_dtype(node)).reshape(shape)


def _read_column(node: Any) -> pd.Series[Any]:
    plain = pd.Series(_read_items(node), dtype=object)
    return plain.astype(_dtype(node))  # type: ignore[call-overload, no-any-return]


def _read_index(node: Any) -> pd.Index[Any]:
    names = [decode(name) for name in node["names"]]
    levels = [_read_column(level) for level in node["levels"]]
    if len(levels) == 1:
        return pd.Index(levels[0], name=names[0])  # type: ignore[no-any-return]
    return pd.MultiIndex.from_arrays(levels, names=names)


def _read_series(node: Any) -> pd.Series[Any]:
    values = _read_column(node["values"])
    values.index = _read_index(node["index"])
    values.name = decode(node["name"])
    return values


def _read_frame(node: Any) -> pd.DataFrame:
    columns = [_read_column(column) for column in node["columns"]]
    index = _read_index(node["index"])
    made = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(len(index)))
    made.columns = _read_index(node["head"])
    made.index = index
    return made


WRITERS: dict[str, tuple[Any, Callable[[Any], dict[str, Any]]]] = {
    "frame": (pd.DataFrame, _frame),
    "series": (pd.Series, _series),
    "index": (pd.Index, _index),
    "array": (np.ndarray, _array),
    "dict": (Mapping, _pairs),
    "tuple": (tuple, _items),
    "list": (list, _items),
    "set": (set | frozenset, _items),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "frame": _read_frame,
    "series": _read_series,
    "index": _read_index,
    "array": _read_array,
    "dict": _read_pairs,
    "tuple": lambda node: tuple(_read_items(node)),
    "list": _read_items,
    "set": lambda node: set(_read_items(node)),
    "missing": lambda _: pd.NA,
}
