"""A lab of a few short tasks, and submissions of it."""

from pathlib import Path
from typing import Any

import nbformat

LAB = "lab9_tiny"
LOOK = 'look = "Square the number."'
NUMBERS = "numbers.json"  # data that a student may bring along
LOAD = f"""\
import json
import math
from pathlib import Path
given = Path(profile or "{NUMBERS}")
numbers = json.loads(given.read_text()) if given.exists() else [4, 1.5]"""


def solution(task: str) -> str:
    return f"def {task}(x):\n    ### BEGIN SOLUTION\n    return x * x\n    ### END SOLUTION\n"


def test_of(task: str) -> str:
    visible = f"{LOOK}\nassert {task}(3) == 9, look\n"
    hidden = f"for number, found in zip(numbers, map({task}, numbers)):\n"
    hidden += "    assert found == number * number, look\n"
    return f"{visible}### BEGIN HIDDEN TESTS\n{hidden}### END HIDDEN TESTS\n"


def cell(source: str, name: str, **role: Any) -> nbformat.NotebookNode:
    made = nbformat.v4.new_code_cell(source)
    usual = {"grade": False, "solution": False, "locked": True, "schema_version": 3, "task": False}
    made.metadata["nbgrader"] = usual | {"grade_id": name} | role
    return made


def lab(tasks: list[str]) -> nbformat.NotebookNode:
    """The instructor's version: a function and a test of 2 points for each task."""
    parameters = nbformat.v4.new_code_cell('profile: str = ""  # your own capture')
    parameters.metadata["tags"] = ["parameters"]
    cells = [parameters, cell(LOAD, "load")]
    for task in tasks:
        cells.append(cell(solution(task), task, solution=True, locked=False))
        cells.append(cell(test_of(task), f"test_{task}", grade=True, points=2))
    return nbformat.v4.new_notebook(cells=cells)


def write(notebook: nbformat.NotebookNode, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{LAB}.ipynb")
    return folder / f"{LAB}.ipynb"


def handed_in(tasks: dict[str, str]) -> nbformat.NotebookNode:
    """What a student hands in: the code of each task in the place of the solution."""
    made = lab(list(tasks))
    for each in made.cells:
        name = each.metadata.get("nbgrader", {}).get("grade_id")
        if name in tasks:
            each.source = tasks[name]
    return made
