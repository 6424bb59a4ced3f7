"""Own and total time of Python functions, worked by hand."""

from typing import Any

import pandas as pd
from frames import lasting
from ops import op, ops

from perfkit.analysis.python_functions import summary
from perfkit.tables import PYTHON_CALLS


def calls(*rows: dict[str, Any]) -> pd.DataFrame:
    return PYTHON_CALLS.make(
        pd.DataFrame([{"rank": 0, "process": 1, "thread": 1} | row for row in rows])
    )


def own(made: pd.DataFrame) -> dict[str, int]:
    return dict(zip(made["name"], made["own_ns"], strict=True))


# main: 0 to 100. f: 10 to 40, and f in it: 20 to 30. g: 50 to 90.
NESTED = calls(
    lasting(0, 100, "main", depth=0),
    lasting(10, 30, "f", depth=1),
    lasting(20, 10, "f", depth=2),
    lasting(50, 40, "g", depth=1),
)


def test_own_time_is_without_the_calls_inside() -> None:
    assert {"g": 40, "main": 100 - 30 - 40, "f": 20 + 10} == own(summary(NESTED))


def test_a_call_inside_of_its_function_counts_once_in_the_total() -> None:
    totals = summary(NESTED).set_index("name")["total_ns"]
    assert {"main": 100, "f": 30, "g": 40} == totals.to_dict()


def test_shares_are_of_all_own_time() -> None:
    shares = summary(NESTED).set_index("name")["share_frac"]
    assert {"g": 0.4, "main": 0.3, "f": 0.3} == shares.to_dict()


def test_calls_of_two_threads_do_not_lie_in_each_other() -> None:
    two = calls(lasting(0, 100, "main", depth=0), lasting(10, 20, "f", depth=0, thread=2))
    assert {"main": 100, "f": 20} == own(summary(two))


def test_threads_without_operators_are_left_out_where_some_run_them() -> None:
    two = calls(lasting(0, 100, "wait", depth=0), lasting(10, 20, "f", depth=0, thread=2))
    run = ops(op("aten::mm", 12, 5, thread=2, process=1))
    assert {"f": 20} == own(summary(two, run))


def test_an_empty_table_has_no_functions() -> None:
    assert summary(PYTHON_CALLS.empty()).empty
