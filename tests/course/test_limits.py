"""A task that takes too much costs its own points, and the others of the notebook still count."""

import pytest
from course import tiny

from perfkit.course import grading, sandbox
from perfkit.course.judge import Grade

LIMITS = sandbox.Limits(request_s=2, memory_bytes=2 * 2**30, file_bytes=2**20)
TASKS = {
    "memory": "def memory(x):\n    return len(bytearray(2**32)) and x * x",
    "forever": "def forever(x):\n    while True:\n        pass",
    "file": 'def file(x):\n    return open("f", "wb").write(bytes(2**22)) and x * x',
    "missing": "",
    "honest": "def honest(x):\n    return x * x",
}


@pytest.fixture(scope="module")
def grades(tool: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Grade]:
    place = tmp_path_factory.mktemp("limits")
    source = tiny.write(tiny.lab(list(TASKS)), place / "source")
    tiny.write(tiny.handed_in(TASKS), place / "in" / "ada")
    labs = {tiny.LAB: source}
    given = grading.submissions(place / "in", labs, place / "out", tool, "", LIMITS)
    return {grade.task: grade for grade in grading.graded(given[0]).grades}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("memory", "MemoryError"),
        ("forever", "it ran longer than it may"),
        ("file", "File too large"),
        ("missing", "name 'missing' is not defined"),
    ],
)
def test_a_student_reads_which_limit_a_task_met(
    grades: dict[str, Grade], task: str, words: str
) -> None:
    assert words in grades[f"test_{task}"].words


def test_a_task_after_one_that_took_too_much_earns_its_points(grades: dict[str, Grade]) -> None:
    assert 2 == grades["test_honest"].points
