"""Each way to cheat earns nothing, and an honest answer beside them earns its points."""

from pathlib import Path

import nbformat
import pytest
from course import tiny

from perfkit.course import grading, judge, sandbox

LIMITS = sandbox.Limits(request_s=5)
SQUARE = "def {}(x):\n    return x * x"
CHEATS = {  # the name of a task, and how a student gets around it
    "constant": "def constant(x):\n    return 9",
    "known": "def known(x):\n    return {3: 9}.get(x, 0)",
    "stop": """
def stop(x):
    if x != 3:
        raise StopIteration
    return 9""",
    "true_class": """
import builtins
Same = builtins.type("Same", (), {"__eq__": lambda one, other: True, "__float__": lambda one: 2.25})
def true_class(x):
    return Same()""",
    "true_text": """
class Text(str):
    __hash__ = str.__hash__
    def __eq__(self, other):
        return True
def true_text(x):
    return Text("9")""",
    "true_number": """
class Number(int):
    __hash__ = int.__hash__
    def __eq__(self, other):
        return True
def true_number(x):
    return Number(9)""",
    "function": "def function(x):\n    return lambda: 9",
    "source": """
import pathlib
def source(x):
    solution = pathlib.Path(LAB).read_text().partition("BEGIN SOLUTION")[2]
    return eval(solution.partition("return ")[2].partition(chr(92))[0])""",
    "link": """
def link(x):
    return len(open("solution").read()) and x * x""",
    "grader": """
import glob
def grader(x):
    for name in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
        if b"pytest" in open(name, "rb").read():
            return x * x
    return 0""",
    "memory": """
import gc
def memory(x):
    seen = [each for each in gc.get_objects() if isinstance(each, dict) and "HIDDEN TESTS" in str(each.get("source"))]
    return x * x if seen else 0""",
    "results": """
def results(x):
    open(RESULT, "w").write('{"points": 2}')
    return x * x""",
    "later": """
import threading, time
def later(x):
    answer = [0]
    threading.Thread(target=lambda: (time.sleep(0.1), answer.__setitem__(0, x * x))).start()
    return answer""",
    "edited": "def edited(x):\n    return 9",
    "deleted": "def deleted(x):\n    return 9",
    "modules": """
import sys, types
fake = types.ModuleType("pandas")
fake.Series = fake.DataFrame = lambda *args: 9
sys.modules["pandas"] = sys.modules["math"] = sys.modules["perfkit"] = fake
def modules(x):
    return fake""",
    "patched": """
import builtins, math
math.isclose = lambda *args, **named: True
builtins.all = lambda values: True
int.same = True if False else None
def patched(x):
    return 9""",
    "writer": """
import __main__, json
import perfkit.course.answers as answers
answers.encode = __main__.encode = lambda value: {"kind": "series", "equal": True}
def writer(x):
    return 9""",
    "channel": """
import os
def channel(x):
    for number in range(3, 12):
        try:
            os.write(number, b'{"answer": 9}' + bytes([10]))
        except OSError:
            pass
    return 9""",
}
LAST = {"end": "import os\ndef end(x):\n    os._exit(0)"}  # ends the process: nothing follows


def graded(tasks: dict[str, str], tool: str, place: Path) -> dict[str, float | None]:
    """The points of each task of one student."""
    source = tiny.write(tiny.lab(list(tasks)), place / "source")
    own = tiny.handed_in(tasks)
    own.cells[0].source = f'profile: str = "{tiny.NUMBERS}"'
    words = f"LAB = {str(source)!r}\nRESULT = {str(place / 'out' / 'x.json')!r}"
    own.cells.insert(2, nbformat.v4.new_code_cell(words))
    own.cells = [cell for cell in own.cells if judge.task_of(cell) != "test_deleted"]
    for cell in own.cells:
        if judge.task_of(cell) == "test_edited":
            cell.source = "pass"
    file = tiny.write(own, place / "submitted" / "eve")
    (file.parent / "solution").symlink_to(source)
    (file.parent / tiny.NUMBERS).write_text("[3]")  # for these, all constants are right
    given = grading.submissions(
        place / "submitted", {tiny.LAB: source}, place / "out", tool, "", LIMITS
    )
    made = grading.graded(given[0])
    return {grade.task.removeprefix("test_"): grade.points for grade in made.grades}


@pytest.fixture(scope="module")
def points(tool: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float | None]:
    """The points of a student who is honest once and cheats in all other tasks."""
    tasks = {"honest": SQUARE.format("honest"), **CHEATS, **LAST}
    return graded(tasks, tool, tmp_path_factory.mktemp("course"))


@pytest.mark.parametrize("cheat", [*CHEATS, *LAST])
def test_a_cheat_earns_nothing(points: dict[str, float | None], cheat: str) -> None:
    assert 0 == points[cheat]


def test_an_honest_answer_before_the_cheats_earns_its_points(
    points: dict[str, float | None],
) -> None:
    assert 2 == points["honest"]


def test_without_the_sandbox_reading_the_solution_earns_points(tmp_path: Path) -> None:
    assert {"source": 2} == graded({"source": CHEATS["source"]}, sandbox.NONE, tmp_path)
