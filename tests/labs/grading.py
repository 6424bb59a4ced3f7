"""Grade submissions of labs with nbgrader, as the instructor's page says, and print the scores as JSON.

A process of its own: nbgrader and what it needs give warnings, which this project's tests do not accept.
"""

import io
import json
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import nbformat
from cells import sharing
from labs.submissions import ASSIGNMENTS, LABS, NOTEBOOKS, constants, partly, patched, read, released
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

HANDED_IN = {"instructor": lambda given: given, "blank": released, "constants": constants, "partly": partly}
HANDED_IN["patched"] = patched
COMMENT, MARK = "Which of the two clocks?", 1.0  # what the instructor says of the first prose, where there is some


def course(root: Path) -> NbGraderAPI:
    """Return nbgrader's interface on an empty course, configured as the instructor's page says."""
    shutil.copy(LABS / "judge.py", root)
    sys.path.insert(0, str(root))
    from judge import PREPROCESSORS

    config = Config()
    config.Autograde.autograde_preprocessors = PREPROCESSORS
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.course_id = "gpu"
    config.Execute.timeout = 300
    config.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]
    return NbGraderAPI(CourseDirectory(config=config), config=config)


def submit(root: Path, lab: str, students: list[str]) -> None:
    """Hand in what the students wrote."""
    for name in ASSIGNMENTS[lab]:
        for student in students:
            place = root / "submitted" / student / lab
            place.mkdir(parents=True, exist_ok=True)
            nbformat.write(HANDED_IN[student](read(name)), place / NOTEBOOKS[name].name)


def done(what: str, result: dict[str, object]) -> None:
    """Refuse to go on if nbgrader says that it failed."""
    if not result["success"]:
        raise SystemExit(f"{what}: {result}")


def graded(root: Path, lab: str, students: list[str], api: NbGraderAPI) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return score and most points of each cell that tests grade, by notebook and student."""
    place = root / "source" / lab
    place.mkdir(parents=True)
    for name in ASSIGNMENTS[lab]:
        nbformat.write(read(name), place / NOTEBOOKS[name].name)
    done("generate", api.generate_assignment(lab))
    submit(root, lab, students)
    for student in students:
        done(f"autograde {student}", api.autograde(lab, student))
    with Gradebook(api.coursedir.db_url) as book:
        for name in ASSIGNMENTS[lab]:
            if "partly" in students:
                grade_prose(book, name, lab)
    for student in students:
        done(f"feedback {student}", api.generate_feedback(lab, student))
    with Gradebook(api.coursedir.db_url) as book:
        return {n: {student: scores(book, n, lab, student) for student in students} for n in ASSIGNMENTS[lab]}


def grade_prose(book: Gradebook, name: str, lab: str) -> None:
    """Give a point and a comment for the first prose of the student who did a part."""
    submission = book.find_submission_notebook(name, lab, "partly")
    prose = next(grade for grade in submission.grades if grade.cell.cell_type == "markdown")
    prose.manual_score, prose.needs_manual_grade = MARK, False
    book.find_comment(prose.name, name, lab, "partly").manual_comment = COMMENT
    book.db.commit()


def scores(book: Gradebook, name: str, lab: str, student: str) -> dict[str, list[float]]:
    """Return score and most points of each cell of a student's notebook that tests grade."""
    grades = book.find_submission_notebook(name, lab, student).grades
    return {g.name: [g.score, g.max_score] for g in grades if g.cell.cell_type == "code"}


def agree(lab: str) -> None:
    """Run the instructor's version and the judge, both in this process: each answer must pass from one to the other.

    Raises what a cell or a test raises. Kernels, which take most of the time of grading, are tried with other labs.
    """
    import judge

    class Here(judge.Judged):  # type: ignore[misc]  # nbgrader has no types
        def execute_cell(self, cell: Any, index: int, store_history: bool = True) -> Any:
            with redirect_stdout(io.StringIO()) as text:
                exec(compile(cell.source, "cell", "exec"), self.student)
            cell.outputs = [nbformat.v4.new_output("stream", text=text.getvalue())]
            return cell

    def run(self: Here, notebook: Any, resources: Any) -> None:
        self.nb, self.student = notebook, {"__name__": "__main__"}
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                self.preprocess_cell(cell, resources, index)

    def run_cell(self: Here, cell: Any, resources: Any, index: int) -> Any:
        return self.execute_cell(cell, index), resources

    judge.Execute.preprocess, judge.Execute.preprocess_cell = run, run_cell
    for name in ASSIGNMENTS[lab]:
        notebook = read(name)
        with sharing():
            Here().preprocess(notebook, {"nbgrader": {"assignment": lab, "notebook": name}})
        errors = [each for cell in notebook.cells for each in cell.get("outputs", []) if each.output_type == "error"]
        done(f"{name}: {errors}", {"success": not errors})


def main(root: Path, handed_in: dict[str, list[str]]) -> None:
    """Grade what these students handed in of each lab, in one course in this folder; of other labs, try the judge."""
    api = course(root)
    scores = {lab: graded(root, lab, students, api) for lab, students in handed_in.items()}
    for lab, students in handed_in.items():
        if not students:
            agree(lab)
    sys.stdout.write(json.dumps(scores))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
