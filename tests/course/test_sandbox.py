"""What a program in the sandbox can reach of this machine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit.course import sandbox
from perfkit.errors import PerfkitError

PROBE = """
import json, os, socket, subprocess, sys
secret, outside = sys.argv[1:3]

def can(action):
    try:
        action()
    except Exception:
        return False
    return True

def connect():
    socket.create_connection(("127.0.0.1", int(sys.argv[3])), 1).close()

told = {
    "its submission": can(lambda: open("/files/own.txt").read()),
    "its own folder": can(lambda: open("mine", "w").write("x")),
    "a file outside": can(lambda: open(secret).read()),
    "a folder outside": can(lambda: os.listdir(outside)),
    "a file of the system": can(lambda: open("/etc/passwd").read()),
    "a change of Python": can(lambda: open(os.path.join(sys.prefix, "x"), "w")),
    "a change of the submission": can(lambda: open("/files/own.txt", "w")),
    "a setting of the system": can(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    "the network": can(connect),
    "a signal to the grader": can(lambda: os.kill(int(sys.argv[4]), 0)),
    "another namespace": can(
        lambda: subprocess.run(["unshare", "-Ur", "true"], check=True, stderr=subprocess.DEVNULL)
    ),
    "variables": "PERFKIT_SECRET" in os.environ,
}
print(json.dumps(told))
"""
REACHED = {"its submission", "its own folder"}


@pytest.fixture(scope="module")
def told(tool: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program says that it can do."""
    import os
    import socket

    place = tmp_path_factory.mktemp("outside")
    (place / "gradebook").write_text("secret")
    box = place / "box"
    box.mkdir()
    sandbox.prepare(box)
    (box / "files" / "own.txt").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = [str(place / "gradebook"), str(place), str(port), str(os.getpid())]
        program = [sys.executable, "-c", PROBE, *words]
        done = subprocess.run(
            sandbox.command(tool, program, box),
            env=sandbox.environment(tool, box),
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", sorted(REACHED))
def test_a_submission_reaches_what_it_needs(told: dict[str, Any], what: str) -> None:
    assert told[what]


def test_a_submission_reaches_nothing_else(told: dict[str, Any]) -> None:
    assert [] == [what for what, is_reached in told.items() if is_reached and what not in REACHED]


def test_the_notebooks_with_solutions_are_in_no_folder_that_a_submission_reads() -> None:
    source = Path(__file__).parents[2] / "notebooks" / "labs"
    assert not any(source.is_relative_to(folder) for folder in sandbox.readable())


def test_grading_refuses_a_place_that_submissions_could_read() -> None:
    with pytest.raises(PerfkitError, match="every submission could read it"):
        sandbox.doubts("bwrap", [Path(sys.prefix) / "source"])


def test_without_a_sandbox_grading_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_works", lambda name: False)
    with pytest.raises(PerfkitError, match="--unsafe"):
        sandbox.tool()


def test_who_asks_for_it_grades_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_works", lambda name: False)
    assert "none" == sandbox.tool(is_unsafe=True)
