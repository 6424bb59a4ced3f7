"""What students read who made a plausible mistake: an explanation before they hand in, and never an empty error."""

import ast
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import CodeType
from typing import Any

import psutil
import pytest
from labs.submissions import NOTEBOOKS, kind, points, read, released

from perfkit.report.lab import form

# Notebook, test, what the student reads, and the wrong function.
MISTAKES = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
WRONG = [tuple(line.split(" | ")) for line in MISTAKES]
MOST, MEMORY = 25, 1 << 30  # wrong answers to a task; bytes that they may take beyond what the tests have
SCALES = ["* 2", "/ 2", "* 1e3", "/ 1e3", "* 1e9", "/ 1e9", "* 100", "/ 100", "* 0", "** 2", "+ 1", "- 1"]
TURNS = ["1 / {}", "1 - {}", "-{}", "not {}", "int({})", "None"]
WHOLE = ["sum", "mean", "median", "max", "min", "size"]  # of a column, or of numbers
SIGNS = {ast.BitAnd: "&|", ast.operator: "+-*/", ast.boolop: ["and", "or"]}
SIGNS[ast.cmpop] = ["<", "<=", ">", ">=", "==", "!="]


@dataclass(frozen=True)
class Check:
    """A test of a lab, whole and as students see it, what ran before it, and the solution that it checks."""

    test: str
    whole: CodeType
    visible: CodeType
    space: dict[str, Any]
    solution: str


@pytest.fixture(scope="module", params=NOTEBOOKS)
def checked(request: pytest.FixtureRequest, made_once: Path) -> tuple[str, list[Check]]:
    """A notebook's name and its checks; it runs once."""
    space: dict[str, Any] = {"__name__": "__main__"}
    solution, checks = "", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFKIT_CACHE", str(made_once))
        for cell, shown in zip(read(request.param).cells, released(read(request.param)).cells, strict=True):
            if cell.cell_type != "code":
                continue
            whole, visible = (compile(each.source, "cell", "exec") for each in (cell, shown))
            if kind(cell) == (True, False):
                checks.append(Check(cell.metadata["nbgrader"]["grade_id"], whole, visible, dict(space), solution))
            exec(whole, space)
            solution = cell.source if kind(cell) == (False, True) else solution
    return request.param, checks


def test_a_mistake_meets_its_explanation_before_handing_in(checked: tuple[str, list[Check]]) -> None:
    """The visible tests of the released lab name the mistake; all other tasks are solved."""
    name, checks = checked
    mistakes = [(test, words, source) for of, test, words, source in WRONG if of == name]
    assert mistakes
    at = {check.test: check for check in checks}
    for test, words, source in mistakes:
        mine = dict(at[test].space)
        exec(source, mine)
        with pytest.raises(AssertionError, match=re.escape(words)):
            exec(at[test].visible, mine)


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


def others(node: ast.expr, texts: list[str], names: list[str]) -> Iterator[str]:
    """Yield what a student may write in the place of a part of a solution; now and then it is right, too."""
    parts = [f"({ast.unparse(part)})" for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    match node:
        case ast.BinOp(_, op) | ast.BoolOp(op) | ast.Compare(_, [op]):
            left, right, *_ = parts
            signs = next(signs for kind, signs in SIGNS.items() if isinstance(op, kind))
            yield from [f"{one} {sign} {two}" for sign in signs for one, two in ((left, right), (right, left))]
            yield from [left, right, f"{left} == {left}", f"{left} != {left}"]  # the last two: no filter, no row left
        case ast.IfExp():
            yield from [*parts[1:], f"{parts[2]} if {parts[0]} else {parts[1]}"]
        case ast.Tuple(elts=[_, _]):
            yield from [", ".join((one, two)) for one in parts for two in parts]
        case ast.Subscript():
            yield parts[0]
        case ast.Call(ast.Attribute(value, name)):
            before, after = f"({ast.unparse(value)})", ast.unparse(node).removeprefix(ast.unparse(node.func))
            yield from [before, f"{before} == {before}", *parts[1:]]
            yield from [f"{before}.{other}{after}" for other in WHOLE if name in WHOLE]
        case ast.Call(ast.Name(name)):
            yield from [*parts[1:], *(f"{other}({', '.join(parts[1:])})" for other in WHOLE if name in WHOLE)]
        case ast.Constant(bool(value)):
            yield str(not value)
        case ast.Constant(str()):
            yield from map(repr, texts)
        case ast.Constant(int(value)) | ast.Constant(float(value)):
            yield from [f"{value} {scale}" for scale in SCALES[: 12 if isinstance(value, int) else 10]]
        case ast.Name(name, ast.Load()) if name in names:
            yield from names


def answers(source: str) -> list[str]:
    """Return wrong answers to a task, each a change of one thing in its solution; the same at each call."""
    tree, made = ast.parse(source), []
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
        args, names = function.args.args, [arg.arg for arg in function.args.args]
        for one, two in combinations(args, 2):
            one.arg, two.arg = two.arg, one.arg
            made.append(ast.unparse(tree))
            one.arg, two.arg = two.arg, one.arg
        nodes = [node for line in function.body[1:] for node in ast.walk(line)]  # the docstring stays
        texts = sorted({each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)})
        for node, field in [(each, field) for each in nodes for field in each._fields]:
            value = getattr(node, field)
            whole = value if isinstance(value, list) else [value]
            for at, part in [(at, part) for at, part in enumerate(whole) if isinstance(part, ast.expr)]:
                text, new = f"({ast.unparse(part)})", list(others(part, texts, names))
                if isinstance(node, ast.Return | ast.Tuple) or (isinstance(node, ast.DictComp) and field == "value"):
                    new += [*(f"{text} {scale}" for scale in SCALES), *(turn.format(text) for turn in TURNS)]
                for other in new:
                    with suppress(SyntaxError, ValueError):
                        changed = ast.parse(f"({other})", mode="eval").body
                        setattr(node, field, [*value[:at], changed, *value[at + 1 :]] if whole is value else changed)
                        made.append(ast.unparse(ast.parse(ast.unparse(tree))))
                    setattr(node, field, value)
    made = [each for each in dict.fromkeys(made) if each != ast.unparse(tree)]
    return random.Random(0).sample(made, min(MOST, len(made)))


def passes(check: CodeType, space: dict[str, Any]) -> bool:
    with suppress(Exception):
        exec(check, space)
        return True
    return False


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A wrong answer may ask for 1e9 times the memory: it gets a MemoryError, as on a small machine."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.filterwarnings("ignore")  # a wrong answer may divide by 0, or call a text
def test_a_wrong_answer_is_refused_before_handing_in(checked: tuple[str, list[Check]]) -> None:
    """Whatever the hidden tests refuse, the visible check refuses, too: nobody learns of a mistake after handing in."""
    late = []
    for check in checked[1]:
        for answer in answers(check.solution):
            mine = dict(check.space)
            exec(answer, mine)
            if passes(check.visible, dict(mine)) and not passes(check.whole, mine):
                late.append(answer)
    assert [] == late


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
