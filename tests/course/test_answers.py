"""Answers come back as plain data, and as nothing else."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfkit.course.answers import decode, encode


def passed(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize(
    "value",
    [None, True, 7, 2.5, "text", [1, "a"], (1, (2, None)), {1, 2}, {"a": [1], 2: ()}],
)
def test_a_plain_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    assert (value, type(value)) == (passed(value), type(passed(value)))


def test_a_number_of_numpy_becomes_a_number_of_python() -> None:
    assert type(passed(np.float64(1.5))) is float


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "object", "category", "Int64"])
def test_a_column_keeps_its_type(dtype: str) -> None:
    values = pd.Series([1, 0, 1], index=["a", "b", "c"], name="n").astype(dtype)
    pd.testing.assert_series_equal(values, passed(values))


def test_a_table_keeps_its_index_of_two_levels() -> None:
    index = pd.MultiIndex.from_tuples([("MLP", 1), ("CNN", 64)], names=["model", "batch"])
    frame = pd.DataFrame({"ns": [1, 2], "name": ["a", None]}, index=index)
    pd.testing.assert_frame_equal(frame, passed(frame))


def test_an_array_keeps_its_shape() -> None:
    np.testing.assert_array_equal(np.arange(6).reshape(2, 3), passed(np.arange(6).reshape(2, 3)))


def test_a_text_that_claims_to_be_equal_comes_back_as_its_letters() -> None:
    class Liar(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    assert type(passed(Liar("no"))) is str


@pytest.mark.parametrize("value", [print, type("Any", (), {})(), [lambda: 1], {"a": object()}])
def test_what_is_no_plain_value_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="no plain value"):
        encode(value)


@pytest.mark.parametrize(
    "node",
    [
        [1],
        {"kind": "code", "items": []},
        {"kind": "array", "items": [1], "shape": [7], "dtype": "int64"},
        {"kind": "array", "items": [1], "shape": [1], "dtype": "datetime64[ns]"},
        {"kind": "dict", "keys": [{"kind": "list", "items": []}], "items": [1]},
        {"kind": "series"},
    ],
)
def test_what_the_writer_does_not_write_is_refused(node: Any) -> None:
    with pytest.raises(ValueError, match="answer"):
        decode(node)
