"""Type the commands of the instructor's page, grade prose by hand, and print the scores of each student as JSON.

A process of its own: nbgrader and what it needs give warnings, which this project's tests do not accept.
"""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from cells import sharing
from labs.submissions import ASSIGNMENTS, GRADED, read
from nbgrader.api import Gradebook
from nbgrader.apps.nbgraderapp import main as nbgrader

from perfkit.report import experiments

COMMENT, MARK = (
    "Which of the two clocks?",
    1.0,
)  # what the instructor says of the first prose of `partly`


def typed(script: str, root: Path) -> None:
    """Run a script in bash. Its nbgrader is a fork of this process, as importing it takes most of a command's time."""
    (commands, asking), (answering, statuses) = os.pipe(), os.pipe()
    function = f'nbgrader() {{ echo "$PWD $*" >&{asking}; read -r status <&{answering}; return "$status"; }}\n'
    command = ["bash", "-euo", "pipefail", "-c", function + script]
    bash = subprocess.Popen(command, cwd=root, stdout=sys.stderr, pass_fds=(asking, answering))
    os.close(asking)
    with open(commands, encoding="utf-8") as lines:
        for line in lines:
            place, *arguments = line.split()
            child = os.fork()
            if not child:
                os.chdir(place)
                os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
                sys.argv = ["nbgrader", *arguments]
                sys.exit(nbgrader())
            os.write(statuses, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if bash.wait():
        raise SystemExit(f"bash: {bash.returncode}")


def grade_prose(book: Gradebook) -> None:
    """Give a point and a comment for the first prose of the student who did a part."""
    names = GRADED, GRADED.partition("_")[0], "partly"
    prose = next(
        grade
        for grade in book.find_submission_notebook(*names).grades
        if grade.cell.cell_type == "markdown"
    )
    prose.manual_score, prose.needs_manual_grade = MARK, False
    book.find_comment(prose.name, *names).manual_comment = COMMENT
    book.db.commit()


def scores(book: Gradebook, student: str) -> dict[str, list[float]]:
    """Return score and most points of each cell of a student's notebook that tests grade."""
    grades = book.find_submission_notebook(GRADED, GRADED.partition("_")[0], student).grades
    return {g.name: [g.score, g.max_score] for g in grades if g.cell.cell_type == "code"}


class Student(dict[str, Any]):
    """What a student defined; for all else that was given, the judge's own."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(__name__="__main__")
        self.given = given

    def __missing__(self, name: str) -> Any:
        return self.given[name]


def agree(lab: str) -> None:
    """Let the judge of an assignment ask the instructor's functions: each answer must pass from one to the other.

    Raises what a cell or a test raises. Both are in this process: kernels take most of the time of grading.
    """
    import judge

    class Here(judge.Judged):  # type: ignore[misc]  # nbgrader has no types
        def execute_cell(self, cell: Any, index: int, store_history: bool = True) -> Any:
            with redirect_stdout(io.StringIO()) as text:
                exec(compile(cell.source, "cell", "exec"), self.student)
            cell.outputs = [nbformat.v4.new_output("stream", text=text.getvalue())]
            return cell

    def run(self: Here, notebook: Any, resources: Any) -> None:
        self.nb, self.student = notebook, Student(self.space)
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                self.preprocess_cell(cell, resources, index)

    def run_cell(self: Here, cell: Any, resources: Any, index: int) -> Any:
        is_own = cell.metadata.get("nbgrader", {}).get("solution")
        return self.execute_cell(cell, index) if is_own else cell, resources

    judge.Execute.preprocess, judge.Execute.preprocess_cell = run, run_cell
    for name in ASSIGNMENTS[lab]:
        notebook = read(name)
        Here().preprocess(notebook, {"nbgrader": {"assignment": lab, "notebook": name}})
        errors = [
            each
            for cell in notebook.cells
            for each in cell.get("outputs", [])
            if each.output_type == "error"
        ]
        if errors:
            raise SystemExit(f"{name}: {errors}")


def main(root: Path, students: list[str], before: str, after: str) -> None:
    """Type what comes before grading by hand, and what comes after it; try the judge with all other labs."""
    course = root / "gpu-course"
    database = f"sqlite:///{course}/gradebook.db"
    typed(before, root)
    with Gradebook(database) as book:
        grade_prose(book)
    typed(after, root)
    with Gradebook(database) as book:
        made = {student: scores(book, student) for student in students}
    sys.path.insert(0, str(course))  # the page copies judge.py there
    experiments.trials = cache(experiments.trials)
    with sharing():
        for lab in set(ASSIGNMENTS) - {GRADED.partition("_")[0]}:
            agree(lab)
    sys.stdout.write(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *json.loads(sys.argv[2]))
