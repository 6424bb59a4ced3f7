"""Streams that are closed or end early, and ways to start Python: what is asked for is made, or refused in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from readers import nsys_files as made

CHARTS_NEED_DOCSTRINGS = "perfkit: Python runs without docstrings (PYTHONOPTIMIZE=2 or -OO)"
INSPECT = f"{sys.executable} -m perfkit inspect run.sqlite"


def done(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the shell in a folder with a run."""
    made.sqlite(folder / "run.sqlite", {**made.session(), **made.capture()})
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command prints where nothing is closed and nothing is set."""
    return done(tmp_path_factory.mktemp("plain"), INSPECT, PERFKIT_CACHE="off").stdout


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_command_answers_though_a_stream_is_closed(
    closed: str, plain: str, tmp_path: Path
) -> None:
    answer = done(tmp_path, f"{INSPECT} {closed}")
    assert (0, plain, "") == (answer.returncode, answer.stdout, answer.stderr)


def test_a_command_ends_as_usual_though_its_output_is_closed(tmp_path: Path) -> None:
    answer = done(tmp_path, f"{INSPECT} >&-")
    assert (0, "", "") == (answer.returncode, answer.stdout, answer.stderr)


def test_a_reader_that_has_enough_ends_a_command_without_a_word(tmp_path: Path) -> None:
    answer = done(tmp_path, f"{INSPECT} | head -1")
    assert (1, "") == (len(answer.stdout.splitlines()), answer.stderr)


def test_python_without_docstrings_is_refused_in_one_line(tmp_path: Path) -> None:
    answer = done(tmp_path, f"{INSPECT} --json", PYTHONOPTIMIZE="2")
    assert 2 == answer.returncode
    (line,) = answer.stderr.splitlines()
    assert line.startswith(CHARTS_NEED_DOCSTRINGS)


@pytest.mark.parametrize(
    "environment", [{"PYTHONWARNINGS": "error"}, {"PYTHONOPTIMIZE": "1"}], ids=str
)
def test_a_setting_of_python_changes_nothing(
    environment: dict[str, str], plain: str, tmp_path: Path
) -> None:
    answer = done(tmp_path, INSPECT, **environment)
    assert (0, plain, "") == (answer.returncode, answer.stdout, answer.stderr)


def test_a_report_is_made_though_standard_error_is_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    command = f"{sys.executable} -m perfkit report run.sqlite --out out 2>&-"
    answer = done(tmp_path, command, HOME=str(home))
    assert (0, "") == (answer.returncode, answer.stderr)
    assert (tmp_path / "out/index.html").is_file()
    assert not (home / ".ipython").exists()


def test_any_command_clears_what_a_killed_report_left_in_its_folder(tmp_path: Path) -> None:
    left = tmp_path / ".rep-perfkit-abcdefgh"
    (left / "new").mkdir(parents=True)
    (left / "staging.json").write_text('{"made_by": "perfkit", "target": "rep"}')
    own = tmp_path / ".rep-perfkit-mine"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    assert 0 == done(tmp_path, INSPECT).returncode
    assert (False, True) == (left.exists(), (own / "notes.txt").exists())
