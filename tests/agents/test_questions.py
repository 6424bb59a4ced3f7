"""The answers themselves, asked without the protocol."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from make import capture
from perfkit.agents.query import Condition
from perfkit.agents.questions import Part, Questions
from perfkit.errors import PerfkitError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `runs` with a made capture of 200 kernels on one GPU."""
    made = tmp_path_factory.mktemp("given") / "runs"
    made.mkdir()
    capture(made / "run.sqlite", kernels=200)
    return made


@pytest.fixture(scope="module")
def questions(folder: Path) -> Questions:
    return Questions([folder])


@pytest.fixture
def page() -> str:
    """The page for agents."""
    path = Path(__file__).parents[2] / "docs" / "agents.md"
    if not path.is_file():
        pytest.skip("no docs beside the tests")
    return path.read_text(encoding="utf-8")


def rows(questions: Questions, *conditions: Condition, **given: Any) -> dict[str, Any]:
    """The answer on kernels that meet the conditions."""
    asked = {"run": "runs/run.sqlite", "table": "KERNELS", "where": conditions, **given}
    return questions.asked(questions.query_table, **asked)


def test_rows_come_in_the_order_that_is_asked_for(questions: Questions) -> None:
    found = rows(questions, order=("-dur_ns", "start_ns"), limit=200)["rows"]
    assert found == sorted(found, key=lambda row: (-row["dur_ns"], row["start_ns"]))
    assert 200 == len(found)


def test_all_conditions_hold_together(questions: Questions) -> None:
    every = rows(questions, limit=200)["rows"]
    median = sorted(row["dur_ns"] for row in every)[100]
    name = every[0]["name"]
    expected = [row for row in every if row["dur_ns"] < median and row["name"] != name]
    conditions = Condition("dur_ns", "<", median), Condition("name", "!=", name)
    assert expected == rows(questions, *conditions, limit=200)["rows"]


def test_matching_rows_are_counted_beyond_the_limit(questions: Questions) -> None:
    answer = rows(questions, limit=3)
    assert (200, 3) == (answer["matching_rows_count"], len(answer["rows"]))


def test_a_number_beyond_64_bits_is_compared(questions: Questions) -> None:
    assert 0 == rows(questions, Condition("dur_ns", ">", 10**30))["matching_rows_count"]


def test_a_truth_is_compared_with_a_truth(questions: Questions) -> None:
    assert 200 == rows(questions, Condition("in_graph", "==", False))["matching_rows_count"]


def test_no_text_is_a_truth(questions: Questions) -> None:
    with pytest.raises(PerfkitError, match="holds true or false"):
        rows(questions, Condition("in_graph", "==", "False"))


def test_a_window_keeps_the_rows_that_reach_into_it(questions: Questions) -> None:
    every = rows(questions, limit=200)["rows"]
    window = every[50]["start_ns"], every[100]["start_ns"] + 1
    found = rows(questions, part=Part(window_ns=window), limit=200)["rows"]
    assert found == every[50:101]


def test_the_lines_of_the_ledger_add_up_to_the_marked_steps(questions: Questions) -> None:
    """They begin a tenth of their time before the GPU works; what follows the last call is unknown."""
    run = "runs/run.sqlite"
    ledger = questions.asked(questions.ledger, run=run)
    marked = questions.asked(questions.query_table, run=run, table="RANGES", limit=500)["rows"]
    steps = [row for row in marked if row["name"].startswith("step ")]
    first = min(row["start_ns"] for row in steps)
    asked = {"run": run, "table": "API_CALLS", "order": ("-start_ns",), "limit": 1}
    last = questions.asked(questions.query_table, **asked)["rows"][0]["start_ns"]
    assert last - first == ledger["all_lines_ns"]


def test_a_figure_has_the_rows_that_it_rests_on(questions: Questions) -> None:
    answer = questions.asked(questions.figure, run="runs/run.sqlite", id="kernel_count")
    assert 3 == len(answer["tables"]["KERNELS"]["rows"])
    assert {"unit", "definition", "source", "doubt"} <= set(answer)


def test_the_figures_of_a_finding_can_be_asked_for(questions: Questions) -> None:
    run = "runs/run.sqlite"
    findings = questions.asked(questions.findings, run=run)["findings"]
    ids = [one["figure_id"] for finding in findings for one in finding["evidence"]]
    assert ids
    for id in ids:
        assert id == questions.asked(questions.figure, run=run, id=id)["id"]


def test_the_verdict_on_a_simulated_run_says_so(questions: Questions) -> None:
    answer = questions.asked(questions.verdict, run="runs/run.sqlite")
    assert answer["is_simulated"]


def test_the_page_for_agents_names_each_tool(page: str) -> None:
    names = [tool.__name__ for tool in Questions([]).tools()]
    assert [] == [name for name in names if f"`{name}`" not in page]


def test_the_query_of_the_page_for_agents_fits_the_tool(page: str) -> None:
    (*_, block) = re.findall(r"^```json\n(.*?)^```", page, flags=re.M | re.S)
    query = json.loads(block)
    assert set(query) <= set(inspect.signature(Questions.query_table).parameters)
    assert 2 == len([Condition(**condition) for condition in query["where"]])


def test_a_run_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    capture(tmp_path / "run.sqlite", kernels=10)
    questions = Questions([tmp_path])
    asked = {"run": f"{tmp_path.name}/run.sqlite", "table": "KERNELS"}
    assert 10 == questions.asked(questions.query_table, **asked)["matching_rows_count"]
    (tmp_path / "run.sqlite").unlink()
    capture(tmp_path / "run.sqlite", kernels=12)
    assert 12 == questions.asked(questions.query_table, **asked)["matching_rows_count"]
