"""The students' version of a lab, as nbgrader releases it: no solution and no hidden test.

The build of the wheel runs this file before the package is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import copy
import re
from typing import Any

SOLUTION = re.compile(r"^([ \t]*)[^\n]*BEGIN SOLUTION.*?END SOLUTION[^\n]*", re.M | re.S)
HIDDEN = re.compile(r"^[^\n]*BEGIN HIDDEN TESTS.*?END HIDDEN TESTS[^\n]*\n?", re.M | re.S)
CODE_STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
ANSWER_STUB = "YOUR ANSWER HERE"


def released(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a copy as ClearSolutions and ClearHiddenTests of nbgrader make it; a cell's source is one text.

    A copy of a students' version is equal to it.
    """
    made = copy.deepcopy(notebook)
    for cell in made["cells"]:
        role = cell["metadata"].get("nbgrader", {})
        if role.get("solution"):
            stub = CODE_STUB if cell["cell_type"] == "code" else ANSWER_STUB
            cell["source"] = _without_solution(cell["source"], stub)
        elif role.get("grade"):
            cell["source"] = HIDDEN.sub("", cell["source"]).rstrip("\n")
    return made


def _without_solution(source: str, stub: str) -> str:
    """Return a cell with a stub in place of each marked solution, or of everything if no solution is marked."""
    text, count = SOLUTION.subn(lambda found: re.sub("^", found[1], stub, flags=re.M), source)
    is_released = stub.partition("\n")[0] in source
    return text if count or is_released else stub
