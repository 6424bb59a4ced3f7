# ruff: noqa: E501 (120 columns, as in the package; the notebooks here have 100)
# fmt: off
"""The students' version of a lab, as nbgrader releases it: no solution and no hidden test."""

from __future__ import annotations

import copy
import re
from typing import Any

SOLUTION = re.compile(r"^([ \t]*)[^\n]*BEGIN SOLUTION.*?END SOLUTION[^\n]*", re.M | re.S)
HIDDEN = re.compile(r"^[^\n]*BEGIN HIDDEN TESTS.*?END HIDDEN TESTS[^\n]*\n?", re.M | re.S)


def released(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a copy as ClearSolutions and ClearHiddenTests of nbgrader make it; a cell's source is one text."""
    made = copy.deepcopy(notebook)
    for cell in made["cells"]:
        role = cell["metadata"].get("nbgrader", {})
        stub = (
            "# YOUR CODE HERE\nraise NotImplementedError()"
            if cell["cell_type"] == "code"
            else "YOUR ANSWER HERE"
        )
        text, count = SOLUTION.subn(
            lambda found, stub=stub: re.sub("^", found[1], stub, flags=re.M), cell["source"]
        )
        if role.get("solution"):
            cell["source"] = text if count else stub
        elif role.get("grade"):
            cell["source"] = HIDDEN.sub("", cell["source"]).rstrip("\n")
    return made
