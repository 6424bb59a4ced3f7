"""The tables as data: names, units and keys follow the conventions."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from perfkit.run import Run
from perfkit.schema import Table
from perfkit.tables import TABLES

UNITS = ("_ns", "_bytes", "_hz", "_w", "_c", "_frac", "_flops", "_per_s", "_count")
UNIT_IN_ANOTHER_COLUMN = {"value", "inclusive", "exclusive"}

every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())


@every_table
def test_columns_are_named_once_and_explained(table: Table) -> None:
    """Names are snake case and unique, each with a meaning of one line."""
    assert len(table.column_names) == len(set(table.column_names))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in table.column_names)
    assert all(c.meaning and "\n" not in c.meaning for c in table.columns)


@every_table
def test_the_order_of_rows_is_by_columns_of_the_table(table: Table) -> None:
    """Every table is sorted, first by rank, by columns it has."""
    assert "rank" == table.sort[0]
    assert "rank" == table.column_names[0]
    assert set(table.sort) <= set(table.column_names)


@every_table
def test_measured_quantities_carry_their_unit(table: Table) -> None:
    """A column that may hold a fraction of its unit says the unit, in its name or in a column beside it."""
    measured = {c.name for c in table.columns if c.dtype == "float64"} - UNIT_IN_ANOTHER_COLUMN
    assert set() == {name for name in measured if not name.endswith(UNITS)}


@every_table
def test_intervals_have_a_start_and_a_duration(table: Table) -> None:
    """Whatever has a start has a duration, both whole ns, and no table has an end.

    Collectives alone may be averages of a benchmark, which has no start: theirs are missing and not whole.
    """
    dtypes = {c.name: c.dtype for c in table.columns}
    expected = ("Int64", "float64") if table.name == "COLLECTIVES" else ("int64", "int64")
    if "start_ns" in dtypes:
        assert expected == (dtypes["start_ns"], dtypes["dur_ns"])
    assert "end_ns" not in dtypes


def test_ids_have_one_dtype_everywhere() -> None:
    """Columns that join tables (rank, gpu, process, thread, stream, correlation, launch, node) agree."""
    found = defaultdict(set)
    for table in TABLES.values():
        for column in table.columns:
            found[column.name].add(column.dtype)
    keys = ("rank", "gpu", "process", "thread", "stream", "correlation", "launch", "node", "metric")
    assert [] == [key for key in keys if len(found[key]) != 1]


def test_tables_are_found_by_their_own_name() -> None:
    """Keys are the tables' names, upper case, and no attribute of a run hides one."""
    assert list(TABLES) == [table.name for table in TABLES.values()]
    assert all(name == name.upper() for name in TABLES)
    assert set() == {name.lower() for name in TABLES} & {*vars(Run), "profiles"}
