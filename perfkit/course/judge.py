"""Grade one notebook: the student's functions answer in the sandbox, the tests of the release run here.

The instructor's notebook is the only one whose tests count. In it, the student's functions are messengers: each sends
its arguments to the student's process and gets plain values back. Nothing of the student's program runs here.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from perfkit.course.session import Ended, Session, StudentError, packed
from perfkit.format import printable
from perfkit.report.students import released

TEST_S = 300  # that one cell of the instructor's may take
PARAMETERS = "parameters"  # the tag of a cell
ROLE = "nbgrader"  # of a cell: what nbgrader knows of it
LONGEST = 400  # characters of what a student reads of one test
UNWRITTEN = "Write the function above first: {}."
NEEDS_EARLIER = "This task needs the answer of an earlier one, which is not right yet."


@dataclass(frozen=True)
class Grade:
    """The points of a task, the most there are, and what the student reads; prose has no points yet."""

    task: str
    points: float | None
    most: float
    words: str = ""
    answer: str = ""
    is_prose: bool = False


class Lab:
    """An instructor's notebook."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        notebook = nbformat.read(path, as_version=4)
        self.cells = notebook.cells
        self.released = {
            task_of(cell): cell for cell in released(notebook)["cells"] if task_of(cell)
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters and their values in the release."""
        return parameters(self.cells)

    @property
    def solutions(self) -> dict[str, str]:
        """The instructor's code for each task that a student writes as code."""
        written = [cell for cell in self.cells if cell.cell_type == "code"]
        return {task_of(cell): cell.source for cell in written if _role(cell).get("solution")}

    @property
    def nothing(self) -> tuple[Grade, ...]:
        """The grades of a notebook that cannot be read."""
        graded = [cell for cell in self.cells if _role(cell).get("grade")]
        return tuple(
            Grade(task_of(cell), 0.0, _most(cell), is_prose=cell.cell_type != "code")
            for cell in graded
        )


def handed_in(file: Path) -> list[Any]:
    """Return the cells of a student's notebook, each with what grading reads of it, and of the right types.

    Raises ValueError if the file is no notebook.
    """
    try:
        cells = nbformat.read(file, as_version=4)["cells"]
        return [_plain(cell) for cell in cells if isinstance(cell, dict)]
    except Exception as e:
        raise ValueError(f"the notebook cannot be read: {type(e).__name__}") from e


def _plain(cell: dict[str, Any]) -> Any:
    """Return a cell without what has another type than it must have."""
    metadata = _of_type(cell.get("metadata"), dict)
    tags, role = (
        _of_type(metadata.get(name), kind) for name, kind in (("tags", list), (ROLE, dict))
    )
    texts = {name: _of_type(cell.get(name), str) for name in ("cell_type", "source")}
    return nbformat.from_dict({**texts, "metadata": {"tags": tags, ROLE: role}})


def _of_type(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else kind()


def grade(
    lab: Lab, cells: list[Any], session: Session, shown: dict[str, Any], given: dict[str, Any]
) -> list[Grade]:
    """Return the grades of a submission's cells.

    The student's program runs with the parameters `shown`, the tests with those of `given`. Those that a student
    chose do not count: data of a student's own can be made so that constants are right.
    """
    return _Judge(lab, cells, session, shown).grades(given)


def parameters(cells: list[Any]) -> dict[str, Any]:
    """Return the plain values that a notebook's parameters cell assigns."""
    chosen = [cell for cell in cells if PARAMETERS in cell.metadata.get("tags", [])]
    found: dict[str, Any] = {}
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for line in ast.parse(chosen[0].source if chosen else "").body:
            match line:
                case ast.AnnAssign(ast.Name(name), _, value) if value is not None:
                    found[name] = ast.literal_eval(value)
    return found


def _role(cell: Any) -> dict[str, Any]:
    role: dict[str, Any] = cell["metadata"].get(ROLE, {})
    return role


def _most(cell: Any) -> float:
    return float(_role(cell)["points"])


def task_of(cell: Any) -> str:
    """Return the name of the task that a cell belongs to; empty if it belongs to none."""
    return str(_role(cell).get("grade_id", ""))


class _Judge:
    """Runs the instructor's cells, and before each test the student's cells up to the same test."""

    def __init__(self, lab: Lab, cells: list[Any], session: Session, shown: dict[str, Any]) -> None:
        self.lab, self.session = lab, session
        self.chosen = "".join(f"\n{name} = {value!r}" for name, value in shown.items())
        self.student = [self._repaired(cell) for cell in cells]
        self.space: dict[str, Any] = {"__name__": "__main__"}
        self.asked = ["it"]
        self.raised: BaseException | None = None  # what the student's process raised last
        self.answers: dict[tuple[str, bytes], Any] = {}

    def _repaired(self, cell: Any) -> Any:
        """Return a student's cell, or the release's if students are not to change it.

        The parameters that count stand at the end of the cell of the student's own.
        """
        if PARAMETERS in cell["metadata"]["tags"]:
            return {**cell, "source": cell["source"] + self.chosen}
        release = self.lab.released.get(task_of(cell))
        is_locked = release is not None and not _role(release).get("solution")
        return release if is_locked else cell

    def grades(self, given: dict[str, Any]) -> list[Grade]:
        """Return the grade of every task."""
        grades = []
        for cell in self.lab.cells:
            role = _role(cell)
            if cell.cell_type != "code":
                if role.get("grade"):
                    grades.append(self._prose(cell))
                continue
            if role.get("solution"):
                self._messengers(cell.source)
            elif role.get("grade"):
                grades.append(self._test(cell))
            else:
                self._run(cell.source)
                if PARAMETERS in cell.metadata.get("tags", []):
                    self.space |= given
        return grades

    def _prose(self, cell: Any) -> Grade:
        """Return what an instructor grades by hand."""
        mine = [each.source for each in self.student if task_of(each) == task_of(cell)]
        answer = mine[0] if mine else ""
        is_blank = answer.strip() in ("", self.lab.released[task_of(cell)]["source"].strip())
        most = _most(cell)
        if is_blank:
            return Grade(task_of(cell), 0.0, most, "no answer", is_prose=True)
        return Grade(task_of(cell), None, most, answer=answer, is_prose=True)

    def _test(self, cell: Any) -> Grade:
        """Let the student's cells run, then the test."""
        task, most = task_of(cell), _most(cell)
        self._advance(task)
        self.answers.clear()
        error = self._run(cell.source)
        if error is None:
            return Grade(task, most, most, "passed")
        return Grade(task, 0.0, most, printable(self._words(error), LONGEST))

    def _words(self, error: BaseException) -> str:
        """Return what a student reads of a failed test; an error in a cell of the student's explains it best."""
        if isinstance(error, AssertionError) and str(error):
            return str(error)
        if isinstance(error, NotImplementedError) and not str(error):
            return UNWRITTEN.format(self.asked[-1])
        if isinstance(error, NameError) and error is not self.raised:
            return NEEDS_EARLIER
        return f"{type(error).__name__}: {error}"

    def _advance(self, task: str) -> None:
        """Run the student's cells up to this test; all of them if the test is not among them."""
        while self.student:
            cell = self.student.pop(0)
            if cell["cell_type"] == "code":
                with contextlib.suppress(StudentError, Ended, ValueError):
                    self.session.run(cell["source"])
            if task_of(cell) == task:
                return

    def _run(self, source: str) -> BaseException | None:
        """Run a cell of the instructor's in this process; return what it raises."""
        with _at_most(TEST_S), contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(source, "cell", "exec"), self.space)
            except Exception as e:  # noqa: BLE001 what a test raises is the result
                return e
        return None

    def _messengers(self, source: str) -> None:
        """Put a messenger in the place of each function of a solution."""
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                self.space[node.name] = self._messenger(node.name)

    def _messenger(self, name: str) -> Callable[..., Any]:
        """Return a function that asks the student's function of this name."""

        def ask(*args: Any, **named: Any) -> Any:
            question = name, packed(args, named)
            self.asked.append(name)
            if question not in self.answers:
                self.answers[question] = self._answer(*question)
            return self.answers[question]

        return ask

    def _answer(self, name: str, arguments: bytes) -> Any:
        """Return the answer of the student's process, or raise what that raised, as an error of Python's own."""
        try:
            return self.session.ask(name, arguments)
        except StudentError as e:
            kind = getattr(builtins, e.name, None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            is_error = is_error and kind is not StopIteration  # would end a loop of the test
            error: Exception = kind(e.text) if kind is not None and is_error else e
        self.raised = error
        raise error


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError("the test ran longer than it may")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
