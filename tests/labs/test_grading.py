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
from labs.submissions import ASSIGNMENTS, LABS, MISTAKE, NOTEBOOKS, assignment, kind, partly, points, read, released

GRADING = Path(__file__).with_name("grading.py")
COMMENT = "Which of the two clocks"
PAGE = LABS / "README.md"
STUDENTS, CHEATS = ("instructor", "blank", "partly"), ("constants", "patched")
CHEATED = "lab1"  # the assignment that cheats hand in by default: what stops them is the same for all
Scores = dict[str, dict[str, dict[str, list[float]]]]


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
def courses(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], pool: ThreadPoolExecutor, walk: Future[Path]
) -> dict[str, tuple[Path, Scores]]:
    """For each assignment, a course with submissions of three kinds; scores by notebook. The longest begins first."""
    labs = sorted(ASSIGNMENTS, key=lambda lab: -sum(len(read(name).cells) for name in ASSIGNMENTS[lab]))
    roots = {lab: tmp_path_factory.mktemp(f"course-of-{lab}") for lab in labs}
    students = {lab: (*STUDENTS, *(CHEATS if lab == CHEATED else ())) for lab in labs}
    found = pool.map(lambda lab: grade(lab, roots[lab], environment, *students[lab]), labs)
    return {lab: (roots[lab], scores) for lab, scores in zip(labs, found, strict=True)}


@pytest.fixture(params=sorted(NOTEBOOKS))
def lab(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def grade(lab: str, root: Path, environment: dict[str, str], *students: str) -> Scores:
    command = [sys.executable, str(GRADING), str(root), lab, *students]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    scores: Scores = json.loads(done.stdout)
    return scores


def feedback(courses: dict[str, tuple[Path, Scores]], student: str, name: str) -> str:
    place = courses[assignment(name)][0] / "feedback" / student / assignment(name)
    return (place / f"{name}.html").read_text(encoding="utf-8")


def reached(name: str) -> dict[str, float]:
    """The points of the student who solved a part: of the tests before the first one that met the mistake."""
    notebook = read(name)
    at = next(i for i, cell in enumerate(partly(notebook).cells) if MISTAKE in cell.source)
    before = set(points(nbformat.v4.new_notebook(cells=notebook.cells[:at])))
    return {test: value if test in before else 0 for test, value in points(notebook).items()}


def test_nbgrader_releases_the_same(courses: dict[str, tuple[Path, Scores]], lab: str) -> None:
    """What the other tests call the release is what nbgrader makes of the lab."""
    place = courses[assignment(lab)][0] / "release" / assignment(lab)
    made = nbformat.read(place / NOTEBOOKS[lab].name, as_version=4)
    assert [cell.source for cell in released(read(lab)).cells] == [cell.source for cell in made.cells]


def test_nbgrader_gives_full_points_to_solutions_alone(courses: dict[str, tuple[Path, Scores]], lab: str) -> None:
    """All of each test's points, or none; a student who solved the first half gets those of that half."""
    most = points(read(lab))
    scores = courses[assignment(lab)][1][lab]
    assert {name: [value, value] for name, value in most.items()} == scores["instructor"]
    nothing = {name: [0, value] for name, value in most.items()}
    assert nothing == scores["blank"]
    assert {name: [value, most[name]] for name, value in reached(lab).items()} == scores["partly"]
    assert 0 < sum(reached(lab).values()) < sum(most.values())


@pytest.mark.parametrize(
    "assigned", [pytest.param(lab, marks=() if lab == CHEATED else pytest.mark.matrix) for lab in ASSIGNMENTS]
)
def test_nbgrader_gives_no_point_to_cheats(
    assigned: str, courses: dict[str, tuple[Path, Scores]], tmp_path: Path, environment: dict[str, str]
) -> None:
    """The best constants, alone or with comparisons that always agree; test_labs.py tries the first in every lab."""
    scores = courses[assigned][1] if assigned == CHEATED else grade(assigned, tmp_path, environment, *CHEATS)
    for name in ASSIGNMENTS[assigned]:
        nothing = {test: [0, value] for test, value in points(read(name)).items()}
        assert [nothing, nothing] == [scores[name][student] for student in CHEATS]


def test_instructor_version_runs_without_an_error(courses: dict[str, tuple[Path, Scores]], lab: str) -> None:
    """Every cell of the graded notebook, also those without points, with its tables and charts."""
    place = courses[assignment(lab)][0] / "autograded" / "instructor" / assignment(lab)
    cells = nbformat.read(place / NOTEBOOKS[lab].name, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert [] == [output for output in outputs if output.output_type == "error"]


@pytest.mark.parametrize("student", STUDENTS)
def test_feedback_shows_the_score_of_every_task(
    courses: dict[str, tuple[Path, Scores]], lab: str, student: str
) -> None:
    """The sum stands at the top, and each task's points at the task; prose has those given by hand."""
    page = feedback(courses, student, lab)
    given = {name: score for name, (score, _) in courses[assignment(lab)][1][lab][student].items()}
    cells = [cell.metadata["nbgrader"] for cell in read(lab).cells if kind(cell)[0]]
    by_hand = 1.0 if student == "partly" else 0.0
    assert f"(Score: {sum(given.values()) + by_hand} / {float(sum(cell['points'] for cell in cells))})" in page
    for name, score in given.items():
        most = float(points(read(lab))[name])
        assert re.search(rf'<a href="#{name}">[^<]*</a> \(Score: {score} / {most}\)', page)
        assert re.search(rf'<a name="{name}"></a>.{{0,200}}?Score: {score} / {most}', page, re.S)


def test_feedback_shows_a_students_own_error_and_the_comment(courses: dict[str, tuple[Path, Scores]], lab: str) -> None:
    """What went wrong in one's own function, and what the instructor wrote, as text."""
    page = feedback(courses, "partly", lab)
    text = unescape(re.sub(r"<[^>]+>", "", page))
    assert f"NameError: name '{MISTAKE}' is not defined" in text
    assert COMMENT in text
    assert "Write the function above first" in unescape(re.sub(r"<[^>]+>", "", feedback(courses, "blank", lab)))


def test_feedback_shows_charts_as_pictures(courses: dict[str, tuple[Path, Scores]], lab: str) -> None:
    """As many as the graded notebook has, each with its description; none as data."""
    place = courses[assignment(lab)][0] / "autograded" / "instructor" / assignment(lab)
    cells = nbformat.read(place / NOTEBOOKS[lab].name, as_version=4).cells
    outputs = [output.get("data", {}) for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    charts = [data for data in outputs if "application/vnd.vegalite.v5+json" in data]
    page = feedback(courses, "instructor", lab)
    assert len(charts) == len(re.findall(r"<img alt=[^>]+ src=.data:image/svg\+xml;base64,", page))
    assert "vegalite" not in page


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


def test_commands_of_the_page_hand_feedback_back(walked: Path) -> None:
    """Pages of both students are made; who used the exchange fetches the own one."""
    made = (walked / "gpu-course" / "feedback").glob("*/lab2/lab2_mlp_cnn.html")
    assert {"ada", getpass.getuser()} == {path.parts[-3] for path in made}
    assert 1 == len(list((walked / "student" / "lab2" / "feedback").glob("*/lab2_mlp_cnn.html")))
