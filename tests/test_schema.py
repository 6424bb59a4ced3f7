"""What a table promises, and the tables as data."""

import math
import re
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from frames import kernels

from perfkit.errors import SchemaError
from perfkit.impossible import STREAM, Reason, of_kernels
from perfkit.run import Run
from perfkit.schema import Column, Table
from perfkit.tables import KERNELS, SAMPLES, TABLES

COLUMNS = {"gpu": "int32", "name": "category", "start_ns": "int64", "bytes": "Int64"}
SPANS = Table(
    "SPANS",
    "a span",
    tuple(Column(n, d, n) for n, d in COLUMNS.items()),
    ("gpu", "name", "start_ns"),
)


def spans(**columns: list[object]) -> pd.DataFrame:
    """A frame SPANS can be made from, with some columns changed."""
    return pd.DataFrame(
        {"start_ns": [3, 1, 2], "gpu": [0, 0, 0], "bytes": 1, "name": ["b", "b", "a"], **columns}
    )


def one(dtype: str) -> Table:
    return Table("ONE", "a value", (Column("value", dtype, "value"),), ())


def test_make_orders_columns_casts_and_sorts_rows() -> None:
    made = SPANS.make(spans())
    assert [*COLUMNS.items()] == [*made.dtypes.astype(str).items()]
    assert [2, 1, 3] == made["start_ns"].tolist()
    assert [0, 1, 2] == made.index.tolist()
    given = spans().set_index(pd.Index([9, 9, 4]))
    before = given.copy()
    SPANS.make(given)
    pd.testing.assert_frame_equal(before, given)
    table = Table("T", "t", (Column("start_ns", "int64", "start"),), ("start_ns",))
    given = pd.DataFrame({"start_ns": np.arange(5)})
    assert np.shares_memory(given["start_ns"].to_numpy(), table.make(given)["start_ns"].to_numpy())


def test_every_mismatch_is_told_at_once() -> None:
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
        *((pd.Series([1.0, 1.5]), "int64", "1.5"), (pd.Series([1.0, None]), "int64", "missing")),
        *((pd.Series([np.inf]), "int64", "inf"), (pd.Series([2**40]), "int32", "1099511627776")),
        (pd.Series([2**63], dtype="uint64"), "Int64", "9223372036854775808"),
        (pd.Series([2**53 + 1]), "float64", "9007199254740993"),
        (pd.Series([2.0**60]), "int64", "1.152921504606847e.18"),
        (pd.Series([2**70], dtype=object), "int64", "1180591620717411303424"),
        *((pd.Series(["1", "x"]), "int64", "x"), (pd.Series([2]), "bool", "2")),
        (pd.Series([None, True], dtype="boolean"), "bool", "NA"),
    ],
)
def test_a_lossy_cast_is_refused(values: pd.Series, dtype: str, changed: str) -> None:
    with pytest.raises(SchemaError, match=f"{values.dtype}, not {dtype}: .*{changed}"):
        one(dtype).make(pd.DataFrame({"value": values}))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        *((pd.Series([2.0**53]), "int64", [2**53]), (pd.Series(["7"]), "int64", [7])),
        (pd.Series([2**63 - 1], dtype="uint64"), "int64", [2**63 - 1]),
        (pd.Series([None, 3], dtype=object), "Int64", [pd.NA, 3]),
        *(
            (pd.Series([1, 0]), "bool", [True, False]),
            (pd.Series(["a", None]), "string", ["a", pd.NA]),
        ),
    ],
)
def test_a_cast_without_loss_is_made(values: pd.Series, dtype: str, expected: list[object]) -> None:
    made = one(dtype).make(pd.DataFrame({"value": values}))["value"]
    assert dtype == str(made.dtype)
    assert expected == made.tolist()


def test_sorting_goes_by_text_with_missing_values_first() -> None:
    name = pd.Categorical(["b", "a", "b"], categories=["b", "a"])
    assert ["a", "b", "b"] == SPANS.make(spans(name=name))["name"].tolist()
    table = Table(
        "T",
        "t",
        (Column("path", "string", "path"), Column("line", "Int64", "line")),
        ("path", "line"),
    )
    made = table.make(pd.DataFrame({"path": ["b", None, "a", "a"], "line": [1, 2, 7, None]}))
    assert [pd.NA, "a", "a", "b"] == made["path"].tolist()
    assert [2, pd.NA, 7, 1] == made["line"].tolist()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("Int64", [None, None]),
        ("category", [None, None]),
        ("int64", [-1, -1]),
        ("string", ["", ""]),
    ],
)
def test_an_optional_column_that_a_reader_leaves_out_was_not_recorded(
    dtype: str, expected: list[object]
) -> None:
    columns = (Column("gpu", "int32", "gpu"), Column("value", dtype, "value", optional=True))
    made = Table("T", "t", columns, ()).make(pd.DataFrame({"gpu": [0, 1]}))
    assert expected == made["value"].astype(object).where(made["value"].notna(), None).tolist()
    assert dtype == made["value"].dtype


def test_missing_values() -> None:
    made = one("float64").make(pd.DataFrame({"value": pd.array([None, 2**53], dtype="Int64")}))
    assert [True, False] == made["value"].isna().tolist()
    assert 2.0**53 == made["value"].iloc[1]
    # Names are text also where there are none, so that several ranks' categories can be united.
    for values in ([], [None], [np.nan]):
        assert (
            object
            == one("category").make(pd.DataFrame({"value": values}))["value"].cat.categories.dtype
        )


KEYS = {
    "gpu": "int32",
    "thread": "int64",
    "name": "category",
    "line": "Int64",
    "start_ns": "int64",
    "ticks": "int64",
}


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_sorted_stably_like_pandas_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([0, 1, 2, 50, 9000]))
    kinds = {
        "gpu": rng.integers(0, rng.choice([1, 3, 5000]), rows),
        "thread": rng.choice(np.append(rng.integers(-(2**63), 2**63 - 1, 4), [0, 1]), rows),
        "name": rng.choice(np.array(["x", "y", "", None], object), rows),
        "line": pd.array(rng.choice(np.array([7, -7, 2**53, None], object), rows), dtype="Int64"),
        "start_ns": np.arange(rows) if seed % 2 else rng.integers(0, 20, rows),
        "ticks": np.sort(rng.integers(0, 2**62, rows)),
    }
    keys = [str(key) for key in rng.permutation([*KEYS])[: rng.integers(1, 5)]]
    given = pd.DataFrame(kinds).assign(row=np.arange(rows))
    table = Table(
        "T", "t", tuple(Column(n, d, n) for n, d in {**KEYS, "row": "int64"}.items()), tuple(keys)
    )
    expected = given.sort_values(keys, kind="stable", na_position="first")
    made = table.make(given)
    assert expected["row"].tolist() == made["row"].tolist()
    pd.testing.assert_frame_equal(
        expected.reset_index(drop=True)[[*made]].astype(made.dtypes.to_dict()), made
    )


def test_check_lists_wrong_and_missing_columns() -> None:
    made = SPANS.make(spans())
    assert "more" in SPANS.check(made.assign(more=1))
    with pytest.raises(
        SchemaError, match=r"'gpu' is float64, not int32\n  - column 'bytes' is missing"
    ):
        SPANS.check(made.astype({"gpu": "float64"}).drop(columns="bytes"))
    with pytest.raises(ValueError, match=r"'x': 'datetime64' is not one of .*'int64'"):
        Column("x", "datetime64", "when")


MEASURED = Table(
    "MEASURED",
    "a measurement",
    (
        Column("start_ns", "int64", "start", -100, 100),
        Column("dur_ns", "int64", "duration", 0, 50),
        Column("bytes", "Int64", "size", least=0),
        Column("busy_frac", "float64", "share", 0, 1, slack=0.1),
        Column("depth", "int32", "depth", 0, 9, fallback=0),
    ),
    ("start_ns",),
)


def measured(**changes: list[float | None]) -> pd.DataFrame:
    """Three measurements that can be, with these columns instead."""
    columns = {
        "start_ns": [0, 1, 2],
        "dur_ns": [5, 0, 50],
        "bytes": [1, None, 0],
        "busy_frac": [0.0, None, 1.0],
    }
    return MEASURED.make(pd.DataFrame({**columns, "depth": [0, 9, 1], **changes}))


def test_values_that_stay() -> None:
    frame = measured()
    checked = MEASURED.checked(frame)
    assert frame is checked.frame
    assert () == checked.notes
    frame, notes = MEASURED.checked(measured(busy_frac=[0.5, 1.047, 1.0]))
    assert [0.5, 1.047, 1.0] == frame["busy_frac"].tolist()
    assert notes == (
        "MEASURED: 1 of 3 values of busy_frac are above 1 (1.047), as the tool wrote them; no figure uses them",
    )
    frame, (note,) = MEASURED.checked(measured(depth=[1, 77, 2]))
    assert [1, 0, 2] == frame["depth"].tolist()
    assert (
        note
        == "MEASURED: 1 of 3 values of depth replaced by 0: it is 77, which cannot be (legal: 0 to 9)"
    )


def test_values_that_cannot_be_go_with_their_row_or_become_missing() -> None:
    for wrong in (-1, 51, 2**62, -(2**63)):
        frame, (note,) = MEASURED.checked(measured(dur_ns=[5, wrong, 6]))
        assert [5, 6] == frame["dur_ns"].tolist()
        assert [0, 1] == frame.index.tolist()
        assert (
            note
            == f"MEASURED: 1 of 3 rows left out: dur_ns is {wrong:.6g}, which cannot be (legal: 0 to 50)"
        )
    for wrong in (-1.0, -math.inf, math.inf, 1.2):
        frame, (note,) = MEASURED.checked(measured(busy_frac=[0.5, wrong, 1.0]))
        assert [0.5, None, 1.0] == [None if pd.isna(x) else x for x in frame["busy_frac"]]
        assert note.startswith(
            f"MEASURED: 1 of 3 values of busy_frac left out: it is {wrong:.6g}, which cannot be"
        )
    frame, (note,) = MEASURED.checked(measured(bytes=[1, -5, None]))
    assert [1, pd.NA, pd.NA] == frame["bytes"].tolist()
    assert "(legal: 0 or more)" in note


def test_readings_are_checked_by_their_metric() -> None:
    readings = [
        ("gpu_busy_frac", 2.5),
        ("gpu_busy_frac", 1.0),
        ("power_w", -5.0),
        ("power_w", 250.0),
    ]
    readings += [("sm_clock_hz", math.inf), ("temperature_c", -5.0), ("temperature_c", math.nan)]
    rows = [
        {"rank": 0, "gpu": 0, "time_ns": 1, "metric": name, "value": value}
        for name, value in readings
    ]
    frame, notes = SAMPLES.checked(SAMPLES.make(pd.DataFrame(rows)))
    assert [1.0, 250.0, -5.0] == frame["value"].dropna().tolist()
    assert notes == (
        "SAMPLES: 1 of 2 readings of gpu_busy_frac left out: 2.5 cannot be (legal: 0 to 1)",
        "SAMPLES: 1 of 2 readings of power_w left out: -5 cannot be (legal: 0 or more)",
        "SAMPLES: 1 of 1 readings of sm_clock_hz left out: inf cannot be (legal: 0 or more)",
    )


def test_a_kernel_that_ends_after_the_next_began_is_left_out_with_a_note() -> None:
    rows = [{"start_ns": 10**6 * i, "dur_ns": 10**8 if i % 10 == 3 else 10**5} for i in range(60)]
    frame, (note,) = KERNELS.checked(kernels(*rows))
    assert 60 == len(frame)
    assert note.startswith(
        "KERNELS: 6 of 60 rows (99.1 % of the time) end more than 20 µs after the next operation"
    )
    believed, reasons = KERNELS.believed(frame)
    assert (54, {Reason.OVERLAP}) == (len(believed), set(reasons))


def overlaps_by_brute_force(frame: pd.DataFrame, keys: tuple[str, ...]) -> list[bool]:
    """Compare each kernel with the next of its stream, by a loop."""
    late = []
    rows = frame.to_dict("records")
    for i, row in enumerate(rows):
        same = [r for r in rows[i + 1 :] if all(r[k] == row[k] for k in keys)]
        by = row["start_ns"] + row["dur_ns"] - same[0]["start_ns"] if same else 0
        late.append(by > 20_000 and not row["in_graph"] and row["stream"] >= 0)
    return late


def test_overlaps_are_found_as_by_brute_force() -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        columns = {
            "start_ns": random.integers(10**6, size=60),
            "dur_ns": random.choice([10, 30_000, 90_000], 60),
            **{name: random.integers(2, size=60) for name in ("gpu", "process")},
            "stream": random.choice([-1, 7, 13], 60),
            "in_graph": random.random(60) < 0.2,
        }
        frame = kernels(*pd.DataFrame(columns).to_dict("records"))
        assert overlaps_by_brute_force(frame, STREAM) == of_kernels(frame)[Reason.OVERLAP].tolist()


UNITS = ("_ns", "_bytes", "_hz", "_w", "_c", "_frac", "_flops", "_per_s", "_count")
UNIT_IN_ANOTHER_COLUMN = {"value", "inclusive", "exclusive"}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_tables_as_data(table: Table) -> None:
    empty = table.empty()
    assert 0 == len(empty)
    assert [c.dtype for c in table.columns] == [str(dtype) for dtype in empty.dtypes]
    assert empty is table.check(empty)
    assert () == table.checked(empty).notes
    assert len(table.column_names) == len(set(table.column_names))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in table.column_names)
    assert all(c.meaning and "\n" not in c.meaning for c in table.columns)
    assert "rank" == table.sort[0] == table.column_names[0]
    assert set(table.sort) <= set(table.column_names)
    measured = {c.name for c in table.columns if c.dtype == "float64"} - UNIT_IN_ANOTHER_COLUMN
    assert set() == {name for name in measured if not name.endswith(UNITS)}
    dtypes = {c.name: c.dtype for c in table.columns}
    if "start_ns" in dtypes:
        expected = ("Int64", "float64") if table.name == "COLLECTIVES" else ("int64", "int64")
        assert expected == (dtypes["start_ns"], dtypes["dur_ns"])
    assert "end_ns" not in dtypes


def test_tables_together() -> None:
    found = defaultdict(set)
    for table in TABLES.values():
        for column in table.columns:
            found[column.name].add(column.dtype)
    keys = ("rank", "gpu", "process", "thread", "stream", "correlation", "launch", "node", "metric")
    assert [] == [key for key in keys if len(found[key]) != 1]
    assert list(TABLES) == [table.name for table in TABLES.values()]
    assert all(name == name.upper() for name in TABLES)
    assert set() == {name.lower() for name in TABLES} & {*vars(Run), "profiles"}
    units = ("_ns", "_bytes", "_hz", "_w", "_frac", "_flops", "_per_s")
    open_ended = [
        f"{table.name}.{column.name}"
        for table in TABLES.values()
        for column in table.columns
        if column.name.endswith(units)
        and column.dtype not in ("string", "category")
        and math.isinf(column.least)
    ]
    assert [] == open_ended
