"""What students read who made a plausible mistake: an explanation before they hand in, and never an empty error."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from labs.submissions import NOTEBOOKS, kind, points, read, released

from perfkit.report.lab import form

# Notebook, test, what the student reads, and the wrong function.
MISTAKES = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
WRONG = [tuple(line.split(" | ")) for line in MISTAKES]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_mistake_meets_its_explanation_before_handing_in(name: str) -> None:
    """The visible tests of the released lab name the mistake; all other tasks are solved."""
    mistakes = [tuple(rest) for of, *rest in WRONG if of == name]
    space: dict[str, Any] = {"__name__": "__main__"}
    met = []
    for cell, shown in zip(read(name).cells, released(read(name)).cells, strict=True):
        if cell.cell_type != "code":
            continue
        check = cell.metadata.get("nbgrader", {}).get("grade_id")
        for test, words, source in mistakes if kind(cell) == (True, False) else ():
            if test == check:
                mine = dict(space)
                exec(source, mine)
                with pytest.raises(AssertionError, match=re.escape(words)):
                    exec(compile(shown.source, "cell", "exec"), mine)
                met.append((test, words, source))
        exec(compile(cell.source, "cell", "exec"), space)
    assert sorted(met) == sorted(mistakes) != []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_check_explains_itself(name: str) -> None:
    """Each assertion has a message; each test checks the form of the answer first, where students see it."""
    for cell in read(name).cells:
        if kind(cell) == (True, False):
            empty = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Assert) and not node.msg]
            assert [] == [ast.unparse(node) for node in empty]
            visible = cell.source.partition("### BEGIN HIDDEN TESTS")[0]
            assert "form(" in visible
            assert visible.endswith('report.note("passes the visible check")\n')
    assert points(read(name))


@pytest.mark.parametrize(
    ("answer", "example", "words"),
    [
        (None, 1.0, "returned None"),
        (True, 1.0, "a number, not a bool"),
        ("1", 1.0, "a number, not a str"),
        (1.0, (1.0, 1.0), "2 values"),
        ((1.0, "a"), (1.0, 1.0), "a number, not a str"),
        ([1], {}, "a dictionary, not a list"),
    ],
)
def test_form_says_what_is_wrong(answer: object, example: object, words: str) -> None:
    """Nothing, another type, or another number of values."""
    with pytest.raises(AssertionError, match=words):
        form(answer, example)
