"""A task that takes too much costs its own points, and the others of the notebook still count."""

import time
from dataclasses import replace
from pathlib import Path

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


def test_a_notebook_that_waits_ends_when_its_time_is_over(tool: str, tmp_path: Path) -> None:
    waits = {
        name: f"import time\ndef {name}(x):\n    time.sleep(1.5)\n    return 9" for name in "abcdef"
    }
    source = tiny.write(tiny.lab(list(waits)), tmp_path / "source")
    tiny.write(tiny.handed_in(waits), tmp_path / "in" / "eve")
    limits = replace(LIMITS, total_s=4)
    given = grading.submissions(
        tmp_path / "in", {tiny.LAB: source}, tmp_path / "out", tool, "", limits
    )
    begun = time.monotonic()
    assert "did not reply in time" in grading.graded(given[0]).grades[-1].words
    assert time.monotonic() - begun < 20  # six tasks would wait 27 s


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
