"""The labs under nbgrader: releases, points, feedback, and the commands of the instructor's page."""

import copy
import csv
import getpass
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import extras
import nbformat
import pytest
from labs.submissions import (
    ASSIGNMENTS,
    GRADED,
    LABS,
    MISTAKE,
    NOTEBOOKS,
    assignment,
    kind,
    partly,
    patched,
    points,
    reached,
    read,
    released,
)

GRADING = Path(__file__).with_name("grading.py")
PAGE = (LABS / "README.md").read_text(encoding="utf-8")
COMMENT = "Which of the two clocks"
LAB = assignment(GRADED)
# Who handed in by hand; whoever runs this takes part through the exchange, and hands in what was fetched, a blank one.
# The last one cheats, with comparisons that always agree; test_labs.py tries constants alone.
BY_HAND = {"ada": copy.deepcopy, "partly": partly, "patched": patched}
Course = tuple[Path, dict[str, dict[str, list[float]]]]


@pytest.fixture(scope="module", autouse=True)
def nbgrader() -> None:
    """All tests here grade with nbgrader."""
    extras.require("nbgrader")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A course in which all commands of the page are typed, and what a student types between them; the scores.

    All other labs are released there too, and grading them without kernels agrees with the instructor's version.
    """
    root = tmp_path_factory.mktemp("page")
    exchange, student = root / "exchange", root / "student"
    student.mkdir()
    (root / "handed-in").mkdir()
    for name, written in BY_HAND.items():
        nbformat.write(written(read(GRADED)), root / "handed-in" / f"{name}.ipynb")
    (student / "nbgrader_config.py").write_text(
        f'c = get_config()\nc.Exchange.root = "{exchange}"\n'
    )
    install, *blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    assert 'python -m pip install ".[labs]"\n' == install
    fetch, submit, fetch_feedback = re.findall(r"`(nbgrader \w+ lab2 --course gpu)`", PAGE)
    script = [""]
    for block in blocks:
        block = block.replace("/path/to/perfkit", str(LABS.parents[1])).replace(
            "/srv/nbgrader/exchange", str(exchange)
        )
        if "generate_feedback" in block:
            script += ["cd gpu-course\n"]  # after grading by hand
        students = BY_HAND if "cp handed-in" in block else ["ada"]
        block = "".join(block.replace("ada", name) for name in students)
        script[-1] += block.replace("handed-in", f"{root}/handed-in")
        if "release_assignment" in block:
            script[-1] += f"(cd {student} && {fetch} && {submit})\n"
    script[1] += (
        f"nbgrader release_feedback lab2 --student={getpass.getuser()}\n(cd {student} && {fetch_feedback})\n"
    )
    script[1] += "".join(
        f"nbgrader generate_assignment {lab}\n" for lab in ASSIGNMENTS if lab != LAB
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(GRADING.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ["PATH"]]
        ),  # nbgrader runs alembic
        "PERFKIT_CACHE": str(tmp_path_factory.mktemp("cache")),  # one for all kernels
        "JUPYTER_DATA_DIR": str(
            root / "jupyter"
        ),  # else nbgrader looks at what was handed in to other courses
        "OMP_NUM_THREADS": "1",  # a process that forks has no threads
    }
    command = [
        sys.executable,
        str(GRADING),
        str(root),
        json.dumps([[*BY_HAND, getpass.getuser()], *script]),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return root / "gpu-course", json.loads(done.stdout)


def outputs(root: Path, student: str) -> list[nbformat.NotebookNode]:
    """The outputs of what a student handed in, as grading ran it."""
    file = root / "autograded" / student / LAB / NOTEBOOKS[GRADED].name
    return [
        each for cell in nbformat.read(file, as_version=4).cells for each in cell.get("outputs", [])
    ]


def feedback(root: Path, student: str) -> str:
    return (root / "feedback" / student / LAB / f"{GRADED}.html").read_text(encoding="utf-8")


def words(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nbgrader_releases_what_the_other_tests_call_so(name: str, page: Course) -> None:
    made = nbformat.read(
        page[0] / "release" / assignment(name) / NOTEBOOKS[name].name, as_version=4
    )
    assert [cell.source for cell in released(read(name)).cells] == [
        cell.source for cell in made.cells
    ]


def test_the_instructors_version_earns_all_points(page: Course) -> None:
    assert {name: [value, value] for name, value in points(read(GRADED)).items()} == page[1]["ada"]
    assert [] == [each for each in outputs(page[0], "ada") if each.output_type == "error"]


def test_nbgrader_gives_points_to_solutions_alone(page: Course) -> None:
    """All of each test's points, or none; a student who solved the first half gets those of that half."""
    most = points(read(GRADED))
    nothing = {name: [0, value] for name, value in most.items()}
    for student in (getpass.getuser(), "patched"):
        assert nothing == page[1][student], student
    assert {name: [value, most[name]] for name, value in reached(GRADED).items()} == page[1][
        "partly"
    ]
    assert 0 < sum(reached(GRADED).values()) < sum(most.values())


@pytest.mark.parametrize("student", ["ada", "blank", "partly"])
def test_feedback_shows_the_score_of_every_task(page: Course, student: str) -> None:
    """The sum stands at the top, and each task's points at the task; prose has those given by hand."""
    student = getpass.getuser() if student == "blank" else student
    shown = feedback(page[0], student)
    given = {test: score for test, (score, _) in page[1][student].items()}
    cells = [cell.metadata["nbgrader"] for cell in read(GRADED).cells if kind(cell)[0]]
    by_hand = 1.0 if student == "partly" else 0.0
    assert (
        f"(Score: {sum(given.values()) + by_hand} / {float(sum(cell['points'] for cell in cells))})"
        in shown
    )
    for test, score in given.items():
        most = float(points(read(GRADED))[test])
        assert re.search(rf'<a href="#{test}">[^<]*</a> \(Score: {score} / {most}\)', shown)
        assert re.search(rf'<a name="{test}"></a>.{{0,200}}?Score: {score} / {most}', shown, re.S)


def test_feedback_shows_a_students_own_error_and_the_comment(page: Course) -> None:
    """What went wrong in one's own function, and what the instructor wrote, as text."""
    text = words(feedback(page[0], "partly"))
    assert f"NameError: name '{MISTAKE}' is not defined" in text
    assert COMMENT in text
    assert "Write the function above first" in words(feedback(page[0], getpass.getuser()))


def test_commands_of_the_page_grade_whoever_handed_in(page: Course) -> None:
    """The sum of each student, with what was given by hand."""
    with (page[0] / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {
            row["student_id"]: (row["assignment"], float(row["score"]))
            for row in csv.DictReader(file)
        }
    sums = {
        student: sum(score for score, _ in tests.values()) for student, tests in page[1].items()
    }
    assert {
        student: (LAB, score + (student == "partly")) for student, score in sums.items()
    } == rows


def test_feedback_shows_charts_as_pictures(page: Course) -> None:
    """As many as the graded notebook has, each with its description; none as data."""
    data = [each.get("data", {}) for each in outputs(page[0], "ada")]
    shown = feedback(page[0], "ada")
    charts = re.findall(r"<img alt=[^>]+ src=.data:image/svg\+xml;base64,", shown)
    assert sum("application/vnd.vegalite.v5+json" in each for each in data) == len(charts) > 0
    assert "vegalite" not in shown


def test_commands_of_the_page_hand_feedback_back(page: Course) -> None:
    """Pages of all students are made; who used the exchange fetches the own one."""
    made = (page[0] / "feedback").glob(f"*/lab2/{GRADED}.html")
    assert {*BY_HAND, getpass.getuser()} == {path.parts[-3] for path in made}
    assert 1 == len(
        list((page[0].parent / "student" / "lab2" / "feedback").glob(f"*/{GRADED}.html"))
    )
