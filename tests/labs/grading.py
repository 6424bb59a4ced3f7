"""Grade submissions of a lab with nbgrader, as the instructor's page says, and print the scores as JSON.

A process of its own: nbgrader and what it needs give warnings, which this project's tests do not accept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
from labs.submissions import ASSIGNMENTS, NOTEBOOKS, constants, read
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

STUDENTS = ("instructor", "blank", "constants")


def course(root: Path) -> NbGraderAPI:
    """Return nbgrader's interface on an empty course."""
    config = Config()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.course_id = "gpu"
    config.Execute.timeout = 300
    return NbGraderAPI(CourseDirectory(config=config), config=config)


def submit(root: Path, lab: str) -> None:
    """Hand in what the three students wrote."""
    for name in ASSIGNMENTS[lab]:
        file = NOTEBOOKS[name].name
        release = nbformat.read(root / "release" / lab / file, as_version=4)
        for student, notebook in zip(STUDENTS, (read(name), release, constants(read(name))), strict=True):
            place = root / "submitted" / student / lab
            place.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, place / file)


def done(what: str, result: dict[str, object]) -> None:
    """Refuse to go on if nbgrader says that it failed."""
    if not result["success"]:
        raise SystemExit(f"{what}: {result}")


def graded(root: Path, lab: str, api: NbGraderAPI) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return score and most points of each cell that tests grade, by student and notebook."""
    place = root / "source" / lab
    place.mkdir(parents=True)
    for name in ASSIGNMENTS[lab]:
        nbformat.write(read(name), place / NOTEBOOKS[name].name)
    done("generate", api.generate_assignment(lab))
    submit(root, lab)
    for student in STUDENTS:
        done(f"autograde {student}", api.autograde(lab, student))
    done("feedback", api.generate_feedback(lab, "blank"))
    with Gradebook(api.coursedir.db_url) as book:
        return {name: {student: scores(book, name, lab, student) for student in STUDENTS} for name in ASSIGNMENTS[lab]}


def scores(book: Gradebook, name: str, lab: str, student: str) -> dict[str, list[float]]:
    """Return score and most points of each cell of a student's notebook that tests grade."""
    grades = book.find_submission_notebook(name, lab, student).grades
    return {g.name: [g.score, g.max_score] for g in grades if g.cell.cell_type == "code"}


def main(root: Path, lab: str) -> None:
    """Grade a lab in this folder."""
    sys.stdout.write(json.dumps(graded(root, lab, course(root))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
