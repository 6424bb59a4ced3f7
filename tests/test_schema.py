"""What a table promises: order, dtypes, no lossy cast, and every mismatch told at once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfkit.errors import SchemaError
from perfkit.schema import Column, Table
from perfkit.tables import TABLES

SPANS = Table(
    "SPANS",
    "a span",
    (
        Column("gpu", "int32", "device"),
        Column("name", "category", "name"),
        Column("start_ns", "int64", "start"),
        Column("bytes", "Int64", "size"),
    ),
    ("gpu", "name", "start_ns"),
)


def spans(**columns: list[object]) -> pd.DataFrame:
    """A frame SPANS can be made from, with some columns changed."""
    return pd.DataFrame({"start_ns": [3, 1, 2], "gpu": [0, 0, 0], "bytes": 1, "name": ["b", "b", "a"], **columns})


def one(dtype: str) -> Table:
    """A table of one column."""
    return Table("ONE", "a value", (Column("value", dtype, "value"),), ())


def test_make_orders_columns_casts_and_sorts_rows() -> None:
    """Columns come in the table's order and dtypes, rows sorted by name and start, with a fresh index."""
    made = SPANS.make(spans())
    assert made.dtypes.astype(str).to_dict() == {
        "gpu": "int32",
        "name": "category",
        "start_ns": "int64",
        "bytes": "Int64",
    }
    assert [2, 1, 3] == made["start_ns"].tolist()
    assert [0, 1, 2] == made.index.tolist()


def test_make_leaves_its_argument_as_it_was() -> None:
    """The frame that was given keeps its index, dtypes and rows."""
    given = spans().set_index(pd.Index([9, 9, 4]))
    before = given.copy()
    SPANS.make(given)
    pd.testing.assert_frame_equal(before, given)


def test_a_frame_in_order_is_not_copied() -> None:
    """Columns of the right dtype in the right order are shared with the frame that was given."""
    table = Table("T", "t", (Column("start_ns", "int64", "start"),), ("start_ns",))
    given = pd.DataFrame({"start_ns": np.arange(5)})
    assert np.shares_memory(given["start_ns"].to_numpy(), table.make(given)["start_ns"].to_numpy())


def test_every_mismatch_is_told_at_once() -> None:
    """Missing, unexpected, repeated and lossy columns are listed in one message."""
    given = spans(gpu=[0.5, 1.0, 2.0], extra=[1, 2, 3]).drop(columns="bytes")
    given.insert(0, "name", "again", allow_duplicates=True)
    with pytest.raises(SchemaError) as caught:
        SPANS.make(given)
    assert str(caught.value).split("\n  - ") == [
        "table 'SPANS' does not match its schema:",
        "column 'bytes' is missing",
        "column 'extra' is not of this table",
        "column 'name' is there more than once",
        "column 'gpu' is float64, not int32: 0.5 would change",
    ]


@pytest.mark.parametrize(
    ("values", "dtype", "changed"),
    [
        (pd.Series([1.0, 1.5]), "int64", "1.5"),
        (pd.Series([1.0, None]), "int64", "missing"),
        (pd.Series([1, None], dtype="Int64"), "int32", "missing"),
        (pd.Series([np.inf]), "int64", "inf"),
        (pd.Series([2**40]), "int32", "1099511627776"),
        (pd.Series([2**63], dtype="uint64"), "int64", "9223372036854775808"),
        (pd.Series([2**63], dtype="uint64"), "Int64", "9223372036854775808"),
        (pd.Series([2**63], dtype="uint64"), "float64", "9223372036854775808"),
        (pd.Series([2**53 + 1]), "float64", "9007199254740993"),
        (pd.Series([-(2**53) - 1, None], dtype="Int64"), "float64", "-9007199254740993"),
        (pd.Series([2.0**60]), "int64", "1.152921504606847e.18"),
        (pd.Series([2**70], dtype=object), "int64", "1180591620717411303424"),
        (pd.Series([None, 1.5]), "Int64", "1.5"),
        (pd.Series(["1", "x"]), "int64", "x"),
        (pd.Series(["a", "2"], dtype="category"), "int64", "a"),
        (pd.Series(["x"]), "float64", "x"),
        (pd.Series([2]), "bool", "2"),
        (pd.Series([np.nan]), "bool", "nan"),
        (pd.Series([None, True], dtype="boolean"), "bool", "NA"),
    ],
)
def test_a_lossy_cast_is_refused(values: pd.Series, dtype: str, changed: str) -> None:
    """A value that the column cannot hold is named, never rounded, wrapped or dropped."""
    with pytest.raises(SchemaError, match=f"{values.dtype}, not {dtype}: .*{changed}"):
        one(dtype).make(pd.DataFrame({"value": values}))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (pd.Series([2.0, 1.0]), "int64", [2, 1]),
        (pd.Series([2.0**53]), "int64", [2**53]),
        (pd.Series([True, False]), "int64", [1, 0]),
        (pd.Series(["7"]), "int64", [7]),
        (pd.Series([2**63 - 1], dtype="uint64"), "int64", [2**63 - 1]),
        (pd.Series([None, 3], dtype=object), "Int64", [pd.NA, 3]),
        (pd.Series([None, 3.0]), "Int64", [pd.NA, 3]),
        (pd.Series([1, 0]), "bool", [True, False]),
        (pd.Series([3]), "float64", [3.0]),
        (pd.Series(["a", None]), "string", ["a", pd.NA]),
        (pd.Series([], dtype=object), "int32", []),
    ],
)
def test_a_cast_without_loss_is_made(values: pd.Series, dtype: str, expected: list[object]) -> None:
    """Values that the column holds exactly are cast."""
    made = one(dtype).make(pd.DataFrame({"value": values}))["value"]
    assert dtype == str(made.dtype)
    assert expected == made.tolist()


def test_missing_integers_become_nan_in_a_float_column() -> None:
    """NA in Int64 is NaN in float64; the numbers beside it stay exact."""
    made = one("float64").make(pd.DataFrame({"value": pd.array([None, 2**53], dtype="Int64")}))
    assert [True, False] == made["value"].isna().tolist()
    assert 2.0**53 == made["value"].iloc[1]


def test_categories_sort_by_their_text() -> None:
    """The order of rows depends on the names, not on how a reader numbered the categories."""
    name = pd.Categorical(["b", "a", "b"], categories=["b", "a"])
    assert ["a", "b", "b"] == SPANS.make(spans(name=name))["name"].tolist()


@pytest.mark.parametrize("values", [[], [None], [np.nan]])
def test_a_category_without_values_is_of_text(values: list[object]) -> None:
    """Names are text also where there are none, so that several ranks' categories can be united."""
    made = one("category").make(pd.DataFrame({"value": values}))["value"]
    assert object == made.cat.categories.dtype


def test_text_and_missing_integers_sort_too() -> None:
    """Text sorts by its characters; missing integers and missing text come first."""
    table = Table("T", "t", (Column("path", "string", "path"), Column("line", "Int64", "line")), ("path", "line"))
    made = table.make(pd.DataFrame({"path": ["b", None, "a", "a"], "line": [1, 2, 7, None]}))
    assert [pd.NA, "a", "a", "b"] == made["path"].tolist()
    assert [2, pd.NA, 7, 1] == made["line"].tolist()


def test_rows_are_sorted_stably_like_pandas_does() -> None:
    """On random rows the order is that of a stable sort by the keys."""
    rng = np.random.default_rng(5)
    given = pd.DataFrame({"gpu": rng.integers(0, 2, 500), "start_ns": rng.integers(0, 20, 500), "bytes": range(500)})
    given["name"] = rng.choice(["x", "y", "z"], 500)
    expected = given.sort_values(["gpu", "name", "start_ns"], kind="stable")["bytes"].tolist()
    assert expected == SPANS.make(given)["bytes"].tolist()


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_an_empty_table_has_its_dtypes(table: Table) -> None:
    """A table without rows has every column in its dtype and passes its own check."""
    empty = table.empty()
    assert 0 == len(empty)
    assert [c.dtype for c in table.columns] == [str(dtype) for dtype in empty.dtypes]
    assert empty is table.check(empty)


def test_check_lists_wrong_and_missing_columns() -> None:
    """The check names each column that is absent or of another dtype; extra columns are no mismatch."""
    made = SPANS.make(spans())
    assert "more" in SPANS.check(made.assign(more=1))
    with pytest.raises(SchemaError, match=r"'gpu' is float64, not int32\n  - column 'bytes' is missing"):
        SPANS.check(made.astype({"gpu": "float64"}).drop(columns="bytes"))


def test_a_column_of_another_dtype_cannot_be_declared() -> None:
    """The dtypes a column may have are listed when another is asked for."""
    with pytest.raises(ValueError, match=r"'x': 'datetime64' is not one of .*'int64'"):
        Column("x", "datetime64", "when")
