"""Commands and the files that they would write over, on disk and on the terminal."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from faults.folders import LIMIT

from make import capture
from perfkit.cli import main
from perfkit.report import output


def perfkit_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_a_project_with_the_capture_itself_is_refused(tmp_path: Path) -> None:
    """Its summary.json is another tool's: nothing changes, whichever command is told to write there."""
    project = tmp_path / "project"
    project.mkdir()
    capture(project / "run.sqlite", kernels=40)
    for name in ("summary.json", "index.html", "comparison.json", "main.cu"):
        (project / name).write_text(f"my {name}")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in project.iterdir()}
    run = project / "run.sqlite"
    for arguments in (
        ("report", run, "--out", project),
        ("report", run, "--out", run),
        ("report", project, "--out", run / "report"),
        ("compare", run, run, "--labels", "a,b", "--out", project),
        ("sample", "mlp_a100", "--out", project),
        ("check", run, "--baseline", run, "--junit", run),
        ("check", run, "--baseline", run, "--json", project / "summary.json"),
        (
            "record",
            "prometheus",
            "http://127.0.0.1:9",
            "--start",
            "0",
            "--out",
            project / "main.cu",
        ),
    ):
        result = perfkit_command(*arguments)
        assert (2, 1) == (result.exit_code, result.stderr.count("\n")), result.stderr
        assert f"perfkit: {arguments[-1]}: " in result.stderr, result.stderr
    assert before == {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in project.iterdir()
    }


def test_files_of_a_check_are_replaced_and_others_are_not(tmp_path: Path, run: Path) -> None:
    """An earlier file of the same form, and an empty one; a device is written to, a link leads to the file."""
    junit, as_json = tmp_path / "check.xml", tmp_path / "check.json"
    as_json.touch()
    (tmp_path / "link.xml").symlink_to("check.xml")
    arguments = ("check", run, "--baseline", run, "--json", as_json, "--junit")
    assert 0 == perfkit_command(*arguments, junit).exit_code
    assert "perfkit check" == json.loads(as_json.read_text())["made_by"]
    link = tmp_path / "link.xml"
    assert (
        0
        == perfkit_command(
            "check", run, "--baseline", run, "--json", "/dev/null", "--junit", link
        ).exit_code
    )
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    before = junit.read_bytes()
    result = perfkit_command("check", run, "--baseline", run, "--json", junit)
    assert (2, True) == (result.exit_code, "this command did not write" in result.stderr)
    assert before == junit.read_bytes()


def test_a_comparison_keeps_the_users_files(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "comparison"
    with output.replacing(out, "perfkit compare") as made:
        (made / "index.html").write_text("compared")
    (out / "remarks.txt").write_text("mine")
    assert 0 == perfkit_command("compare", run, run, "--labels", "a,b", "--out", out).exit_code
    assert "compared" != (out / "index.html").read_text()
    assert "mine" == (out / "remarks.txt").read_text()
    result = perfkit_command("report", run, "--out", out)
    assert (2, True) == (result.exit_code, "holds what `perfkit compare` made" in result.stderr)


def test_names_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    """Neither those of files, whatever their bytes, nor options, in messages and in what is printed."""
    hostile = tmp_path / os.fsdecode(b"\x1b[31m\x9b\xff\n.sqlite")
    hostile.write_bytes(b"")
    good = tmp_path / os.fsdecode(b"good\x1b]0;title\x07.sqlite")
    capture(tmp_path / "good.sqlite", kernels=10)
    (tmp_path / "good.sqlite").rename(good)
    for status, arguments in (
        (2, ("inspect", hostile)),
        (2, ("report", hostile, "--out", tmp_path / "\x1b[2J")),
        (2, ("report", good, "--window", "\x1b[31m:1s")),
        (2, ("\x1b[31m",)),
        (0, ("inspect", good)),
        (0, ("inspect", good, "--json")),
    ):
        result = perfkit_command(*arguments)
        assert status == result.exit_code, result.output
        text = result.stdout + result.stderr
        assert all(c.isprintable() or c == "\n" for c in text), repr(text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_what_standard_output_does_not_take(run: Path) -> None:
    """A reader that has read enough (`| head`) is no complaint, nor a character it lacks; a full disk is one line."""

    def printing(stdout: Any, **options: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "perfkit", "inspect", run]
        pipes = {
            "stdout": stdout,
            "stderr": subprocess.PIPE,
            "text": True,
            "env": {**os.environ, **options},
        }
        done = subprocess.run(argv, timeout=LIMIT, check=False, **pipes)
        return done.returncode, done.stderr

    read, write = os.pipe()
    os.close(read)
    assert (2, "") == printing(write)
    os.close(write)
    with Path("/dev/full").open("w") as full:
        assert (2, "perfkit: No space left on device.\n") == printing(full)
    assert (0, "") == printing(subprocess.DEVNULL, PYTHONIOENCODING="ascii")
