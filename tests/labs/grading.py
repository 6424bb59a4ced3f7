"""Grade submissions of a lab with nbgrader, as the instructor's page says, and print the scores as JSON.

A process of its own: nbgrader and what it needs give warnings, which this project's tests do not accept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
from labs.submissions import LABS, constants, read
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
    release = nbformat.read(root / "release" / lab / LABS[lab].name, as_version=4)
    for student, notebook in zip(STUDENTS, (read(lab), release, constants(read(lab))), strict=True):
        place = root / "submitted" / student / lab
        place.mkdir(parents=True)
        nbformat.write(notebook, place / LABS[lab].name)


def done(what: str, result: dict[str, object]) -> None:
    """Refuse to go on if nbgrader says that it failed."""
    if not result["success"]:
        raise SystemExit(f"{what}: {result}")


def graded(root: Path, lab: str, api: NbGraderAPI) -> dict[str, dict[str, list[float]]]:
    """Return score and most points of each cell that tests grade, by student."""
    place = root / "source" / lab
    place.mkdir(parents=True)
    nbformat.write(read(lab), place / LABS[lab].name)
    done("generate", api.generate_assignment(lab))
    submit(root, lab)
    for student in STUDENTS:
        done(f"autograde {student}", api.autograde(lab, student))
    done("feedback", api.generate_feedback(lab, "blank"))
    scores = {}
    with Gradebook(api.coursedir.db_url) as book:
        for student in STUDENTS:
            grades = book.find_submission_notebook(LABS[lab].stem, lab, student).grades
            scores[student] = {g.name: [g.score, g.max_score] for g in grades if g.cell.cell_type == "code"}
    return scores


def main(root: Path, lab: str) -> None:
    """Grade a lab in this folder."""
    sys.stdout.write(json.dumps(graded(root, lab, course(root))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
