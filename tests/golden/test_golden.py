"""What perfkit says of the golden runs is what it said when the hashes were stored.

A change that is meant: ``python -m tests.golden --renew`` prints it and stores it.
"""

import json
from pathlib import Path

import altair as alt
import extras
import pandas as pd
import pytest
from golden import freezing, stored
from golden.runs import RUNS, Golden

RENEW = "If all of this is meant, store it with `python -m tests.golden --renew`, and say in the commit why:"


@pytest.mark.parametrize("golden", RUNS, ids=lambda golden: golden.id)
def test_says_the_same_of_a_run(golden: Golden, request: pytest.FixtureRequest) -> None:
    if golden.folder == "profiles":
        request.getfixturevalue("profiles")
    if golden.name.endswith(".ncu-rep"):
        extras.require("ncu_report")
    changed = list(
        stored.changes(stored.read().get(golden.id, {}), freezing.freeze(golden), golden.id)
    )
    assert not changed, "\n".join([RENEW, *changed])


def test_stored_are_the_golden_runs() -> None:
    assert {golden.id for golden in RUNS} == set(stored.read())


def test_names_what_changed() -> None:
    before = {"figures": {"idle_frac": "0.5 1"}, "tables": {"KERNELS": {"rows": 2, "name": "aa"}}}
    after = {"figures": {"busy_frac": "0.5 1"}, "tables": {"KERNELS": {"rows": 3, "name": "aa"}}}
    assert [
        "run: figures: idle_frac: is gone, was 0.5 1",
        "run: figures: busy_frac: is new, 0.5 1",
        "run: tables: KERNELS: rows: is 3, was 2",
    ] == list(stored.changes(before, after, "run"))


def test_a_column_is_its_values_however_pandas_holds_them() -> None:
    """Types of storage and the order of categories do not matter; values, their order and missing ones do."""
    texts = pd.Series(["b", None, "a", "b"])
    same = [
        texts,
        texts.astype("string"),
        texts.astype("category"),
        pd.Categorical(texts, ["z", "b", "a"]),
    ]
    assert 1 == len({freezing.column("name", pd.Series(values)) for values in same})
    other = [["b", None, "a", "a"], ["b", "a", None, "b"], ["b", "None", "a", "b"]]
    assert 4 == len({freezing.column("name", pd.Series(values)) for values in [texts, *other]})
    assert freezing.column("dur_ns", pd.Series([1, 2], dtype="int32")) == freezing.column(
        "dur_ns", pd.Series([1, 2])
    )
    # Another processor adds in another order; the ninth digit is not touched by that.
    values, near, other = (pd.Series([1 / 3 + each, None]) for each in (0, 1e-12, 1e-9))
    assert freezing.column("value", values) == freezing.column("value", near)
    assert freezing.column("value", values) != freezing.column("value", other)


def test_a_chart_is_its_form_and_its_data() -> None:
    """Names that Altair counts through the process do not matter; a value changes the hash of the data alone."""
    frame = pd.DataFrame({"ns": [1.5]})
    made = [
        alt.Chart(frame).mark_bar().encode(x="ns:Q").add_params(alt.selection_interval())
        for _ in "ab"
    ]
    assert freezing.chart(made[0].to_dict()) == freezing.chart(made[1].to_dict())
    changed = json.loads(json.dumps(made[0].to_dict()).replace("1.5", "2.5"))
    before, after = (freezing.chart(spec).split() for spec in (made[0].to_dict(), changed))
    assert before[1] == after[1]
    assert before[3] != after[3]


def test_a_path_is_its_name(profiles: Path) -> None:
    assert "profiles/a.csv: cut" == freezing.text(f"{profiles}/a.csv: cut")
