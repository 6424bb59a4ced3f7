"""Each student has programs of their own, and only their own answers are right."""

from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from labs.submissions import NOTEBOOKS

import perfkit
from make import own as maker
from perfkit.course import grading, own, sandbox
from perfkit.errors import PerfkitError

SEED = "a secret"
NAME = "lab5_own"


@cache
def right(student: str) -> dict[str, dict[str, Any]]:
    made = maker.programs(SEED, student)
    return {name: maker.answers(program) for name, program in made.items()}


def test_a_student_gets_the_same_programs_again() -> None:
    assert maker.programs(SEED, "ada") == maker.programs(SEED, "ada")


def test_another_seed_makes_other_programs() -> None:
    assert maker.programs(SEED, "ada") != maker.programs("other", "ada")


@pytest.mark.parametrize("task", [("gpu", "steps"), ("kernel_frac",), ("idle_frac",)])
def test_two_students_have_different_answers_to_each_task(task: tuple[str, ...]) -> None:
    one, other = right("ada"), right("bob")
    assert all([one[n][key] for key in task] != [other[n][key] for key in task] for n in one)


def test_the_causes_of_a_students_programs_differ() -> None:
    made = [maker.programs(SEED, f"student {number}") for number in range(50)]
    assert all(len({each.cause for each in programs.values()}) >= 3 for programs in made)


def test_the_capture_is_of_the_gpu_that_is_right(tmp_path: Path) -> None:
    maker.write(SEED, "ada", tmp_path)
    runs = {name: perfkit.load(tmp_path / name) for name in right("ada")}
    found = {name: run.devices["name"].iloc[0] for name, run in runs.items()}
    assert {name: answer["gpu"] for name, answer in right("ada").items()} == found


@pytest.mark.parametrize("seed", ["", "a secret", "gpu course 2026"])
def test_a_seed_that_can_be_guessed_is_refused(seed: str) -> None:
    with pytest.raises(PerfkitError, match="nobody can guess"):
        own.check_seed(seed)


def roster(folder: Path, text: str) -> Path:
    file = folder / "roster.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_roster_names_the_students(tmp_path: Path) -> None:
    assert ["ada", "bob"] == own.students(roster(tmp_path, "student,mail\nada,a@x\nbob,b@x\n"))


@pytest.mark.parametrize(
    "text", ["student\n../ada\n", "name\nada\n", "student\n", "student\na\na\n"]
)
def test_a_roster_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PerfkitError, match="student"):
        own.students(roster(tmp_path, text))


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    own.hand_out(SEED, "ada", folder)
    return folder / "ada"


def test_a_student_gets_every_lab(handed_out: Path) -> None:
    assert {*NOTEBOOKS} == {path.stem for path in handed_out.glob("*.ipynb")}


def test_the_notebook_reads_the_students_own_programs(handed_out: Path) -> None:
    cells = nbformat.read(handed_out / f"{NAME}.ipynb", as_version=4).cells
    assert any('programs: str = "programs"' in cell.source for cell in cells)


def test_a_student_gets_no_right_answers(handed_out: Path) -> None:
    assert {"run.nsys.sqlite"} == {
        p.name for p in handed_out.rglob("*") if p.is_file() and p.suffix != ".ipynb"
    }


def written(student: str) -> nbformat.NotebookNode:
    """What a student hands in who wrote down the right answers of `student`."""
    made = nbformat.read(NOTEBOOKS[NAME], as_version=4)
    keys = {
        "recorded": ("gpu", "steps"),
        "busiest": ("kernel", "kernel_frac"),
        "cause": ("cause", "idle_frac"),
    }
    for cell in made.cells:
        task = cell.metadata.get("nbgrader", {}).get("grade_id")
        if task in keys:
            told = {
                name: [answer[key] for key in keys[task]] for name, answer in right(student).items()
            }
            cell.source = f"def {task}(program):\n    return tuple({told!r}[program])"
    return made


@pytest.mark.matrix
@pytest.mark.parametrize(("student", "points"), [("ada", 16), ("bob", 0)])
def test_the_answers_of_ada_earn_points_for_ada_alone(
    student: str, points: float, tool: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in" / student
    folder.mkdir(parents=True)
    nbformat.write(written("ada"), folder / f"{NAME}.ipynb")
    given = grading.submissions(
        tmp_path / "in", {NAME: NOTEBOOKS[NAME]}, tmp_path / "out", tool, SEED, sandbox.Limits()
    )
    assert points == sum(grade.points or 0 for grade in grading.graded(given[0]).grades)
