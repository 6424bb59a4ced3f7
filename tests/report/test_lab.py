"""Working copies of the notebooks: a folder per run, nothing of a person's lost, and a JupyterLab that ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import nbformat
import psutil
import pytest
from click.testing import CliRunner, Result

from perfkit.cli import main
from perfkit.errors import PerfkitError
from perfkit.report import lab
from perfkit.report.notebooks import NOTEBOOKS, START, sample

LIMIT = 120.0  # s that JupyterLab may take on a loaded machine
TOKEN = "of-the-tests"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a person calls perfkit."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(here: Path) -> tuple[Path, Path]:
    """Two runs of one name in different folders."""
    found = here / "before" / "run", here / "after" / "run"
    for run in found:
        run.mkdir(parents=True)
        (run / "file").touch()
    return found


def profile(notebook: Path) -> str:
    cells = nbformat.read(notebook, as_version=4).cells
    names: dict[str, Any] = {}
    exec(
        next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])), names
    )
    return str(names["profile"])


def profiles(place: Path) -> set[str]:
    return {profile(place / f"{name}.ipynb") for name in (START, *NOTEBOOKS)}


def edit(notebook: Path, line: str) -> None:
    """Write a line into the parameters cell, as a person does."""
    content = nbformat.read(notebook, as_version=4)
    next(
        cell for cell in content.cells if "parameters" in cell.metadata.get("tags", [])
    ).source = line
    nbformat.write(content, notebook)


def test_each_run_has_a_folder_of_its_own(runs: tuple[Path, Path], here: Path) -> None:
    before, after = (lab.prepare(None, run) for run in runs)
    assert (Path("perfkit-lab/run"), Path("perfkit-lab/run-2")) == (before, after)
    assert ({str(runs[0])}, {str(runs[1])}) == (profiles(before), profiles(after))
    renamed = before.rename("perfkit-lab/mine")
    assert (renamed, after) == (lab.prepare(None, runs[0]), lab.prepare(None, runs[1]))
    place = lab.prepare(None, runs[0])
    (here / "link").symlink_to(runs[0])
    assert [place, place] == [lab.prepare(None, Path(path)) for path in ("before/run", "link")]


def test_other_runs_are_named_and_folders_that_cannot_be_made_refused(
    runs: tuple[Path, Path], here: Path
) -> None:
    place = lab.prepare(None, runs[0])
    edit(place / "3_system.ipynb", f"profile: str = {str(runs[1])!r}")
    assert place == lab.prepare(None, runs[0])
    other = f"note: the parameters cell of 3_system.ipynb names another run: {runs[1]}"
    assert [f"perfkit-lab/run: notebooks of {runs[0]}", other] == lab.description(place, runs[0])
    (here / "file").touch()
    for folder in (here / "file", here / "file" / "below"):
        with pytest.raises(
            PerfkitError, match=r"the notebooks cannot be written \(.*\)\. Choose another --folder"
        ):
            lab.prepare(folder, runs[0])


def test_a_baseline_is_named_in_new_notebooks_and_in_those_that_are_there(
    runs: tuple[Path, Path],
) -> None:
    place = lab.prepare(None, runs[0], runs[1])
    assert f"baseline: str = {str(runs[1])!r}  #" in lab._parameters(place / "6_compare.ipynb")
    lab.prepare(None, runs[0], runs[0])
    assert f"baseline: str = {str(runs[0])!r}  #" in lab._parameters(place / "6_compare.ipynb")


def test_a_file_of_a_person_that_is_no_notebook_stays_beside_a_baseline(
    runs: tuple[Path, Path],
) -> None:
    place = lab.prepare(None, runs[0])
    (place / "6_compare.ipynb").write_text("mine")
    lab.prepare(None, runs[0], runs[1])
    assert "mine" == (place / "6_compare.ipynb").read_text()


def test_notebooks_of_a_person_stay(runs: tuple[Path, Path]) -> None:
    place = lab.prepare(None, runs[0])
    (place / "3_system.ipynb").write_text("mine")
    (place / "4_kernels.ipynb").unlink()
    assert place == lab.prepare(None, runs[0])
    assert "mine" == (place / "3_system.ipynb").read_text()
    assert str(runs[0]) == profile(place / "4_kernels.ipynb")
    edit(place / "start.ipynb", f"profile = {str(runs[1])!r}")
    assert (place, place.with_name("run-2")) == (
        lab.prepare(None, runs[1]),
        lab.prepare(None, runs[0]),
    )


def test_notebooks_of_an_earlier_version_serve_their_own_run(runs: tuple[Path, Path]) -> None:
    # They lie in perfkit-lab itself: its run is opened there, another one in a folder of its own.
    old = lab.prepare(Path("perfkit-lab"), runs[0])
    stored = {path: path.read_bytes() for path in old.iterdir()}
    assert (old, old / "run") == (lab.prepare(None, runs[0]), lab.prepare(None, runs[1]))
    assert stored == {path: path.read_bytes() for path in old.iterdir() if path.is_file()}


def test_a_named_folder_is_used_unless_it_is_of_another_run(
    runs: tuple[Path, Path], here: Path
) -> None:
    (here / "thesis.tex").write_text("years of work")
    assert here == lab.prepare(here, runs[0])
    assert ({str(runs[0])}, "years of work") == (profiles(here), (here / "thesis.tex").read_text())
    place = lab.prepare(here / "lab", runs[0])
    stored = {path: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(PerfkitError) as refused:
        lab.prepare(place, runs[1])
    assert (
        f"{place}: holds notebooks of {runs[0]}, not of {runs[1]}. Choose another --folder"
        in str(refused.value)
    )
    assert stored == {path: path.read_bytes() for path in place.iterdir()}
    assert place == lab.prepare(place, runs[0])


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "[" * 100_000, '{"cells": 1}', '{"cells": [1, {}, {"metadata": []}]}'),
        '{"cells": [{"metadata": {"tags": ["parameters"]}, "source": 5}]}',
        '{"cells": [{"metadata": {"tags": ["parameters"]}, "source": ["profile = (", "\\u0000"]}]}',
        '{"cells": [{"metadata": {"tags": ["parameters"]}, "source": "profile = Path(\\"x\\")"}]}',
    ],
)
def test_notebooks_that_name_no_run_are_of_none(
    runs: tuple[Path, Path], here: Path, content: str
) -> None:
    (here / "lab").mkdir()
    (here / "lab" / "start.ipynb").write_text(content)
    with pytest.raises(
        PerfkitError,
        match=r"lab: holds notebooks of no run, not of .*run\. Choose another --folder",
    ):
        lab.prepare(here / "lab", runs[0])
    assert ["start.ipynb"] == [path.name for path in (here / "lab").iterdir()]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        (".hidden", "hidden"),
        ("a b:c", "a_b_c"),
        ("ядро", "ядро"),
        ("x" * 200, "x" * 60),
        ("\udcff...", "_..."),
    ],
)
def test_a_folder_has_a_name_that_jupyter_serves(here: Path, name: str, folder: str) -> None:
    (here / name).mkdir()
    place = lab.prepare(None, here / name)
    assert (folder, str(here / name)) == (place.name, profile(place / "start.ipynb"))


def perfkit_lab(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["lab", *map(str, arguments)])


def test_command_opens_the_folder_of_the_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(lab, "command", lambda place, options: asked.append((place, options)) or 0)
    result = perfkit_lab("--no-browser", "--jupyter=--port=9999")
    assert [(Path("perfkit-lab/mlp_a100"), ["--no-browser", "--port=9999"])] == asked
    assert (0, f"perfkit-lab/mlp_a100: notebooks of {sample()}\n") == (
        result.exit_code,
        result.stderr,
    )
    assert 2 == perfkit_lab(sample("dlrm_h100"), "--folder", "perfkit-lab/mlp_a100").exit_code
    assert 1 == len(asked)


@pytest.mark.parametrize("options", [(), ("--jupyter=--allow-root",)])
def test_root_reads_the_option_that_works(
    options: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JupyterLab names `--allow-root`, which is its own; a program in its place fails as it does."""
    (here / "jupyterlab.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = perfkit_lab("--no-browser", *options)
    assert (1 if options else 2) == result.exit_code
    assert ("type `perfkit lab --jupyter=--allow-root`" in result.output) == (not options)


def heard() -> None:
    """Let a new process hear the signals that a shell makes its jobs in the background ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def started(here: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`perfkit lab` as a process, with settings of its own, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    folders = {f"JUPYTER_{name}_DIR": str(here / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    options = [
        f"--port={port}",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.token={TOKEN}",
    ]
    command = [
        sys.executable,
        "-m",
        "perfkit",
        "lab",
        "--no-browser",
        *(f"--jupyter={option}" for option in options),
    ]
    with (here / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **folders}, stdout=log, stderr=log, preexec_fn=heard
        )
        yield process, port
    for left in (
        (*psutil.Process(process.pid).children(recursive=True), process)
        if process.poll() is None
        else ()
    ):
        left.kill()
    process.wait()


def ask(port: int, method: str, path: str) -> Any:
    """Ask JupyterLab, as long as it takes to start."""
    request = Request(f"http://127.0.0.1:{port}/api/{path}?token={TOKEN}", method=method)
    end = time.monotonic() + LIMIT
    while True:
        try:
            with urlopen(request, timeout=LIMIT) as answer:
                return json.load(answer)
        except URLError:
            assert time.monotonic() < end, "JupyterLab does not answer"
            time.sleep(0.2)


def command_of(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):  # of which ZombieProcess is one
        return " ".join(process.cmdline())
    return ""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(
            pytest.param(other, marks=pytest.mark.matrix)
            for other in (signal.SIGINT, signal.SIGHUP)
        ),
    ],
    ids=lambda number: number.name,
)
def test_a_signal_ends_jupyterlab_and_its_kernels(started: Any, number: signal.Signals) -> None:
    process, port = started
    ask(port, "GET", "status")
    ask(port, "POST", "kernels")
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("ipykernel_launcher" in command for command in map(command_of, children))
    process.send_signal(number)
    assert 0 == process.wait(LIMIT)
    assert [] == [
        child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    ]
