"""The labs under nbgrader: releases, points, feedback, and the commands of the instructor's page."""

import csv
import getpass
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from labs.submissions import ASSIGNMENTS, LABS, MISTAKE, NOTEBOOKS, assignment, kind, points, reached, read, released

GRADING = Path(__file__).with_name("grading.py")
COMMENT = "Which of the two clocks"
PAGE = LABS / "README.md"
STUDENTS = ("instructor", "blank", "partly", "constants", "patched")  # the last two cheat
TRIED = "lab1"  # the assignment that these hand in by default: what stops them is the same for all
Scores = dict[str, dict[str, dict[str, list[float]]]]
Course = tuple[Path, Scores]


@pytest.fixture(scope="module", autouse=True)
def nbgrader() -> None:
    """Without nbgrader the tests are skipped, or fail where PERFKIT_REQUIRE_NBGRADER is set."""
    if find_spec("nbgrader") is None and os.environ.get("PERFKIT_REQUIRE_NBGRADER"):
        pytest.fail("PERFKIT_REQUIRE_NBGRADER is set and nbgrader is not installed (perfkit[labs])")
    pytest.importorskip("nbgrader", reason="nbgrader is not installed (perfkit[labs])")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of nbgrader: an activated environment, and one cache for all kernels."""
    found = {
        "PYTHONPATH": os.pathsep.join([str(GRADING.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # nbgrader runs alembic
        "PERFKIT_CACHE": str(tmp_path_factory.mktemp("cache")),
        "OMP_NUM_THREADS": "1",  # two courses at a time
    }
    return {**os.environ, **found}


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def first(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], pool: ThreadPoolExecutor, walk: Future[Path]
) -> Course:
    """A course that holds all labs. One was handed in, by all students; of the others it has the release alone.

    For these, grading without kernels must agree with the instructor's version.
    """
    root = tmp_path_factory.mktemp("course")
    handed_in = {lab: STUDENTS if lab == TRIED else () for lab in ASSIGNMENTS}
    return root, pool.submit(grade, handed_in, root, environment).result()[TRIED]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if assignment(name) == TRIED else pytest.mark.matrix) for name in NOTEBOOKS],
)
def tried(request: pytest.FixtureRequest) -> str:
    """A notebook that students handed in."""
    return str(request.param)


@pytest.fixture(scope="module")
def course(tried: str, first: Course, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Course:
    """The course in which they did."""
    if assignment(tried) == TRIED:
        return first
    root = tmp_path_factory.mktemp(f"course-of-{tried}")
    return root, grade({assignment(tried): STUDENTS}, root, environment)[assignment(tried)]


def grade(handed_in: dict[str, tuple[str, ...]], root: Path, environment: dict[str, str]) -> dict[str, Scores]:
    """What students handed in of each lab, graded in one course."""
    command = [sys.executable, str(GRADING), str(root), json.dumps(handed_in)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    scores: dict[str, Scores] = json.loads(done.stdout)
    return scores


def outputs(root: Path, student: str, name: str) -> list[nbformat.NotebookNode]:
    """The outputs of what a student handed in, as grading ran it."""
    file = root / "autograded" / student / assignment(name) / NOTEBOOKS[name].name
    return [each for cell in nbformat.read(file, as_version=4).cells for each in cell.get("outputs", [])]


def feedback(root: Path, student: str, name: str) -> str:
    return (root / "feedback" / student / assignment(name) / f"{name}.html").read_text(encoding="utf-8")


def words(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nbgrader_releases_what_the_other_tests_call_so(name: str, first: Course) -> None:
    made = nbformat.read(first[0] / "release" / assignment(name) / NOTEBOOKS[name].name, as_version=4)
    assert [cell.source for cell in released(read(name)).cells] == [cell.source for cell in made.cells]


def test_the_instructors_version_earns_all_points(tried: str, course: Course) -> None:
    assert {name: [value, value] for name, value in points(read(tried)).items()} == course[1][tried]["instructor"]
    assert [] == [each for each in outputs(course[0], "instructor", tried) if each.output_type == "error"]


def test_nbgrader_gives_points_to_solutions_alone(tried: str, course: Course) -> None:
    """All of each test's points, or none; a student who solved the first half gets those of that half.

    Cheats get none: the best constants, alone or with comparisons that always agree. test_labs.py tries a blank
    version, a half and constants in every lab, without nbgrader.
    """
    most, scores = points(read(tried)), course[1][tried]
    nothing = {name: [0, value] for name, value in most.items()}
    for student in ("blank", "constants", "patched"):
        assert nothing == scores[student], student
    assert {name: [value, most[name]] for name, value in reached(tried).items()} == scores["partly"]
    assert 0 < sum(reached(tried).values()) < sum(most.values())


@pytest.mark.parametrize("student", ["instructor", "blank", "partly"])
def test_feedback_shows_the_score_of_every_task(tried: str, course: Course, student: str) -> None:
    """The sum stands at the top, and each task's points at the task; prose has those given by hand."""
    page = feedback(course[0], student, tried)
    given = {test: score for test, (score, _) in course[1][tried][student].items()}
    cells = [cell.metadata["nbgrader"] for cell in read(tried).cells if kind(cell)[0]]
    by_hand = 1.0 if student == "partly" else 0.0
    assert f"(Score: {sum(given.values()) + by_hand} / {float(sum(cell['points'] for cell in cells))})" in page
    for test, score in given.items():
        most = float(points(read(tried))[test])
        assert re.search(rf'<a href="#{test}">[^<]*</a> \(Score: {score} / {most}\)', page)
        assert re.search(rf'<a name="{test}"></a>.{{0,200}}?Score: {score} / {most}', page, re.S)


def test_feedback_shows_a_students_own_error_and_the_comment(tried: str, course: Course) -> None:
    """What went wrong in one's own function, and what the instructor wrote, as text."""
    text = words(feedback(course[0], "partly", tried))
    assert f"NameError: name '{MISTAKE}' is not defined" in text
    assert COMMENT in text
    assert "Write the function above first" in words(feedback(course[0], "blank", tried))


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    found = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return {block.partition("\n")[0]: block for block in found}


@pytest.fixture(scope="module")
def walk(
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    pool: ThreadPoolExecutor,
    blocks: dict[str, str],
) -> Future[Path]:
    """A course in which all commands of the page are typed, and what a student types between them."""
    root = tmp_path_factory.mktemp("page")
    exchange, student = root / "exchange", root / "student"
    student.mkdir()
    (student / "nbgrader_config.py").write_text(f'c = get_config()\nc.Exchange.root = "{exchange}"\n')
    nbformat.write(read("lab2_mlp_cnn"), root / "ada.ipynb")
    install, *rest = blocks.values()
    assert 'python -m pip install ".[labs]"\n' == install
    page = PAGE.read_text(encoding="utf-8")
    inline = re.findall(r"`(nbgrader \w+ lab2 --course gpu)`", page)
    assert ["fetch_assignment", "submit", "fetch_feedback"] == [command.split()[1] for command in inline]
    script = []
    for block in rest:
        block = block.replace("/path/to/perfkit", str(LABS.parents[1]))
        script.append(block.replace("/srv/nbgrader/exchange", str(exchange)))
        if "release_assignment" in block:
            script.append(f"(cd {student} && {inline[0]} && {inline[1]})\n")
            script.append(f"mkdir handed-in && cp {root / 'ada.ipynb'} handed-in/\n")
    script.append(f"nbgrader release_feedback lab2 --student={getpass.getuser()}\n")
    script.append(f"(cd {student} && {inline[2]})\n")
    command = ["bash", "-euo", "pipefail", "-c", "".join(script)]

    def typed() -> Path:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return root

    return pool.submit(typed)


@pytest.fixture(scope="module")
def walked(walk: Future[Path]) -> Path:
    return walk.result()


def test_commands_of_the_page_grade_whoever_handed_in(walked: Path) -> None:
    """By hand came the instructor's version, through the exchange a blank one: full points of the tests, and none."""
    with (walked / "gpu-course" / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student_id"]: (row["assignment"], float(row["score"])) for row in csv.DictReader(file)}
    assert {"ada": ("lab2", sum(points(read("lab2_mlp_cnn")).values())), getpass.getuser(): ("lab2", 0.0)} == rows


def test_feedback_shows_charts_as_pictures(walked: Path) -> None:
    """As many as the graded notebook has, each with its description; none as data."""
    root, name = walked / "gpu-course", "lab2_mlp_cnn"
    data = [each.get("data", {}) for each in outputs(root, "ada", name)]
    page = feedback(root, "ada", name)
    charts = re.findall(r"<img alt=[^>]+ src=.data:image/svg\+xml;base64,", page)
    assert sum("application/vnd.vegalite.v5+json" in each for each in data) == len(charts) > 0
    assert "vegalite" not in page


def test_commands_of_the_page_hand_feedback_back(walked: Path) -> None:
    """Pages of both students are made; who used the exchange fetches the own one."""
    made = (walked / "gpu-course" / "feedback").glob("*/lab2/lab2_mlp_cnn.html")
    assert {"ada", getpass.getuser()} == {path.parts[-3] for path in made}
    assert 1 == len(list((walked / "student" / "lab2" / "feedback").glob("*/lab2_mlp_cnn.html")))
