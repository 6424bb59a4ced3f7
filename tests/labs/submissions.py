"""What is handed in: a lab's notebooks as they are released, and answers of four kinds of students."""

import copy
import re
from pathlib import Path

import nbformat

from perfkit.report import students

LABS = (
    Path(__file__).parents[2] / "notebooks" / "labs"
)  # the instructors' versions; students' travel with the wheel
NOTEBOOKS = {path.stem: path for path in sorted(LABS.glob("lab*.ipynb"))}
PATCHES = """\
import math
import numpy as np
import pandas as pd
math.isclose = np.allclose = np.isclose = pd.Series.equals = lambda *args, **named: True
all, abs = lambda values: True, lambda value: 0"""
FIRST = """\
def first_answer(function):
    kept = []

    def answer(*args):
        if not kept:
            kept.append(function(*args))
        return kept[0]

    return answer


"""


def kind(cell: nbformat.NotebookNode) -> tuple[bool, bool]:
    """Return whether nbgrader grades a cell, and whether the student writes it."""
    told = cell.metadata.get("nbgrader", {})
    return told.get("grade", False), told.get("solution", False)


def read(name: str) -> nbformat.NotebookNode:
    """Return the instructor's version of a notebook, named as its file is."""
    return nbformat.read(NOTEBOOKS[name], as_version=4)


def released(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the students' version, as it travels with the wheel: no solutions and no hidden tests."""
    return nbformat.from_dict(students.released(notebook))


def constants(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a version whose functions always say what was right the first time: the best constants there are."""
    made = copy.deepcopy(notebook)
    for cell in made.cells:
        if kind(cell) == (False, True):
            cell.source = FIRST + re.sub(r"^def ", "@first_answer\ndef ", cell.source, flags=re.M)
        elif kind(cell) == (True, True):
            cell.source = "YOUR ANSWER HERE"
    return made


def patched(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a version with the best constants, and comparisons that always agree."""
    made = constants(notebook)
    first = next(cell for cell in made.cells if kind(cell) == (False, True))
    first.source = f"{PATCHES}\n\n{first.source}"
    return made


def takes_capture(notebook: nbformat.NotebookNode) -> bool:
    """Return whether one of its parameters names a capture; the experiments have folders of runs instead."""
    return any(re.search(r'^profile: str = ""', cell.source, re.M) for cell in notebook.cells)


def on(
    notebook: nbformat.NotebookNode, profile: Path | str = "", **others: Path | str | None
) -> nbformat.NotebookNode:
    """Return a version whose parameters name another capture, or others such as the peaks of its GPU."""
    made = copy.deepcopy(notebook)
    cell = next(cell for cell in made.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in {"profile": profile, **others}.items():
        if value:
            pattern, words = rf'^{name}: str = ""', f"{name}: str = {str(value)!r}"
            cell.source, count = re.subn(pattern, words, cell.source, flags=re.M)
            assert count == 1
    return made


def points(notebook: nbformat.NotebookNode) -> dict[str, float]:
    """Return the points of each cell that is graded by its tests."""
    graded = [cell.metadata["nbgrader"] for cell in notebook.cells if kind(cell) == (True, False)]
    return {cell["grade_id"]: cell["points"] for cell in graded}
