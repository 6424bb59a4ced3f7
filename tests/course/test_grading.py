"""Many submissions are graded, each once, and the tables and pages say how."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from course import tiny
from labs.submissions import NOTEBOOKS

from perfkit.course import grading, pages, sandbox, similar
from perfkit.course.grading import Result, Submission
from perfkit.course.judge import Grade
from perfkit.errors import PerfkitError

SQUARE = "def {}(x):\n    return x * x"


@pytest.fixture
def given(tmp_path: Path) -> list[Submission]:
    source = tiny.write(tiny.lab(["one"]), tmp_path / "source")
    for student in ("ada", "bob"):
        tiny.write(
            tiny.handed_in({"one": SQUARE.format("one")}), tmp_path / "in" / student / "lab9"
        )
    (tmp_path / "in" / "eve").symlink_to(tmp_path / "in" / "ada")
    return grading.submissions(
        tmp_path / "in", {tiny.LAB: source}, tmp_path / "out", "none", "", sandbox.Limits()
    )


def test_submissions_are_found_by_student(given: list[Submission]) -> None:
    assert ["ada", "bob"] == [each.student for each in given]


def test_a_folder_without_submissions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PerfkitError, match="holds no STUDENT"):
        grading.submissions(tmp_path, {}, tmp_path, "none", "", sandbox.Limits())


def test_students_versions_do_not_grade(tmp_path: Path) -> None:
    with pytest.raises(PerfkitError, match="no instructor's notebooks"):
        grading.instructors(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"nbgrader": "x"}},
        {"metadata": {"tags": None}},
        {"metadata": None},
        {"source": 7},
        {"cell_type": None},
    ],
)
def test_a_broken_cell_of_one_student_does_not_stop_the_pages(
    given: list[Submission], change: dict[str, Any]
) -> None:
    file = given[1].file
    content = json.loads(file.read_text())
    content["cells"][2] |= change
    file.write_text(json.dumps(content))
    made = [grading.graded(each) for each in given]
    pages.write_all(file.parents[3] / "out", given, made)
    assert 2 == made[0].grades[0].points


class Graded:
    """Stands for the grading of one submission, and counts what it is asked for."""

    def __init__(self) -> None:
        self.students: list[str] = []

    def __call__(self, submission: Submission) -> Result:
        self.students.append(submission.student)
        grades = (
            Grade("test_one", 2.0, 2.0, "passed"),
            Grade("prose", None, 3.0, answer="=1", is_prose=True),
        )
        made = Result(submission.student, submission.name, submission.key, grades)
        grading.save(submission, made)
        return made


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> Graded:
    counted = Graded()
    monkeypatch.setattr(grading, "graded", counted)
    return counted


def run(given: list[Submission]) -> None:
    grading.grade_all(given, 1, lambda *args: None, lambda text: None)


def test_grading_goes_on_where_it_was_interrupted(given: list[Submission], graded: Graded) -> None:
    run(given[:1])
    run(given)
    assert ["ada", "bob"] == graded.students


def test_grading_says_that_own_data_need_the_seed(
    given: list[Submission], graded: Graded, tmp_path: Path
) -> None:
    lab = tmp_path / "source" / "lab5_own.ipynb"
    shutil.copy(NOTEBOOKS["lab5_own"], lab)
    notes: list[str] = []
    own = [replace(given[0], lab=lab)]
    grading.grade_all(own, 1, lambda *args: None, notes.append)
    assert ["lab5_own: without --seed"] == [note.partition(",")[0] for note in notes]


def test_a_notebook_that_was_handed_in_anew_is_graded_again(
    given: list[Submission], graded: Graded
) -> None:
    run(given)
    tiny.write(tiny.handed_in({"one": "def one(x):\n    return 9"}), given[0].file.parent)
    run(given)
    assert ["ada", "bob", "ada"] == graded.students


@pytest.fixture
def out(given: list[Submission], graded: Graded, tmp_path: Path) -> Path:
    run(given)
    pages.write_all(tmp_path / "out", given, grading.results(given))
    return tmp_path / "out"


def test_a_row_says_what_a_student_earned(out: Path) -> None:
    assert "ada,lab9_tiny,2.0,2.0,,3.0,," in (out / "grades.csv").read_text().splitlines()


def test_an_answer_is_no_formula_of_a_spreadsheet(out: Path) -> None:
    assert ",'=1" in (out / "prose.csv").read_text()


def test_points_for_prose_count_when_the_pages_are_written_again(
    out: Path, given: list[Submission]
) -> None:
    text = (out / "prose.csv").read_text()
    (out / "prose.csv").write_text(
        text.replace("ada,lab9_tiny,prose,,", "ada,lab9_tiny,prose,2.5,")
    )
    pages.write_all(out, given, grading.results(given))
    assert "ada,lab9_tiny,2.0,2.0,2.5,3.0,," in (out / "grades.csv").read_text().splitlines()


def test_feedback_shows_the_sum(out: Path) -> None:
    assert "lab9_tiny: 2 of 5 points" in (out / "feedback" / "ada.html").read_text()


def test_feedback_shows_hostile_text_as_text() -> None:
    made = Result("ada", "lab", "", (Grade("test", 0.0, 1.0, "<script>"),), note="<b>")
    assert "<script>" not in pages.page("<i>", [made], {})


LONG = """
def rate(kernels, window):
    total = 0
    for kernel in kernels:
        total += kernel.dur_ns * kernel.count
    return total / (window[1] - window[0]) / 1e9
"""
RENAMED = """
def rate(k, w):
    "Mine."
    s = 0   # a comment
    for each in k:
        s += each.dur_ns * each.count
    return s / (w[1] - w[0]) / 1e9
"""


def listed(codes: dict[str, str], usual: str = "") -> list[str]:
    found = similar.groups({("lab", "rate"): codes}, {("lab", "rate"): usual})
    return [row["students"] for row in found]


def test_answers_that_differ_in_names_and_comments_are_listed() -> None:
    assert ["ada bob"] == listed({"ada": LONG, "bob": RENAMED, "cyd": LONG.replace("1e9", "1e6")})


def test_short_answers_are_not_listed() -> None:
    assert [] == listed(dict.fromkeys(("ada", "bob"), SQUARE.format("one")))


def test_the_usual_answer_is_not_listed() -> None:
    assert [] == listed({"ada": LONG, "bob": RENAMED}, usual=LONG)
