"""The notebooks of a report run one after the other in one warm kernel; a dead one is replaced."""

import json
import os
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

import make
from perfkit.errors import ReadError
from perfkit.report import notebooks
from perfkit.report.engine import Kernel
from perfkit.report.notebooks import Executed, Failure, Session
from perfkit.report.processes import end

SPEC = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
PROCESS = "import os; os.getpid()"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of that of the notebooks."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr(notebooks, "folder", lambda: folder)
    return folder


def store(folder: Path, name: str, *code: str) -> None:
    """Write a notebook with a parameters cell and some code."""
    parameters = nbformat.v4.new_code_cell(
        "profile: str = ''\nnumbers: list = []", metadata={"tags": ["parameters"]}
    )
    cells = [parameters, *map(nbformat.v4.new_code_cell, code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=SPEC), folder / f"{name}.ipynb")


def run(*names: str, **parameters: Any) -> dict[str, Executed]:
    """Run notebooks without a word on their progress."""
    with Session() as session:
        return session.execute([*names], parameters)


def answer(executed: Executed) -> Any:
    """What the last cell of a notebook returned."""
    assert not isinstance(executed, Failure), executed
    return literal_eval(executed.cells[-1].outputs[0].data["text/plain"])


def test_one_kernel_runs_all_notebooks(stored: Path) -> None:
    for name in ("first", "second"):
        store(stored, name, PROCESS)
    made = run("first", "second")
    assert answer(made["first"]) == answer(made["second"])


def test_a_notebook_finds_no_variable_of_the_one_before(stored: Path) -> None:
    store(stored, "first", "mine = 1", "numbers = 2")
    store(stored, "second", "'mine' in globals(), numbers")
    assert (False, []) == answer(run("first", "second")["second"])


def test_each_notebook_counts_its_cells_from_one(stored: Path) -> None:
    for name in ("first", "second"):
        store(stored, name, "1 + 1")
    (second,) = (made for name, made in run("first", "second").items() if name == "second")
    assert not isinstance(second, Failure)
    assert [1, 2] == [cell.execution_count for cell in second.cells]


def test_a_notebook_that_ends_its_kernel_says_how(stored: Path) -> None:
    store(stored, "ended", "import os; os._exit(3)")
    assert "the kernel died: it ended with status 3" == str(run("ended")["ended"])


@pytest.mark.skipif(os.name != "posix", reason="no signals")
def test_a_kernel_that_is_killed_is_told_with_its_signal(stored: Path) -> None:
    store(stored, "killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    told = str(run("killed")["killed"])
    assert told.startswith(
        "the kernel died: signal SIGKILL ended it; the system does that when memory"
    )


def test_a_dead_kernel_is_replaced_for_the_next_notebook(stored: Path) -> None:
    store(stored, "ended", "import os; os._exit(3)")
    store(stored, "next", "1 + 1")
    assert 2 == answer(run("ended", "next")["next"])


def test_a_cell_that_raises_ends_its_notebook_alone(stored: Path) -> None:
    store(stored, "failed", "1 + 1", "raise ValueError('no')", "2 + 2")
    store(stored, "next", "1 + 1")
    made = run("failed", "next")
    assert Failure("ValueError", "no", "raise ValueError('no')") == made["failed"]
    assert 2 == answer(made["next"])


def test_a_kernel_that_does_not_start_is_told(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(stored, "first", "1 + 1")
    monkeypatch.setattr("perfkit.report.engine.OPTIONS", ("--no-such-option",))
    monkeypatch.setattr("perfkit.report.engine.START", 20)
    assert str(run("first")["first"]).startswith("the kernel did not start: ")


def test_a_run_that_cannot_be_opened_is_refused_as_by_load() -> None:
    parameters = {"profile": "no_such.sqlite", "ranks": [], "job": {}}
    with Session() as session, pytest.raises(ReadError, match=r"no_such\.sqlite: no such file"):
        session.ask("opened", parameters=parameters)


def test_parameters_of_any_bytes_reach_the_cells(stored: Path) -> None:
    store(stored, "first", "profile, numbers")
    assert ("p\udcff", [1]) == answer(run("first", profile="p\udcff", numbers=[1])["first"])


def test_papermill_notes_parameters_and_status(stored: Path) -> None:
    store(stored, "first", "profile")
    made = run("first", profile="p", other="not a parameter of this notebook")["first"]
    assert not isinstance(made, Failure)
    assert {"profile": "p"} == made.metadata.papermill.parameters
    assert {"completed"} == {cell.metadata.papermill.status for cell in made.cells}
    tags = [cell.metadata.get("tags") for cell in made.cells[:2]]
    assert [["parameters"], ["injected-parameters"]] == tags


def test_cells_run_in_the_folder_and_with_the_environment_of_the_command(stored: Path) -> None:
    store(stored, "first", "import os; os.getcwd(), os.environ['PERFKIT_CACHE']")
    assert (os.getcwd(), os.environ["PERFKIT_CACHE"]) == answer(run("first")["first"])


def test_a_file_of_the_user_stands_in_for_no_module(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "select.py").write_text("raise RuntimeError('mine')")
    monkeypatch.chdir(tmp_path)
    store(stored, "first", "import select, sys; '' in sys.path")
    assert answer(run("first")["first"]) is False


CELLS = """print('a'); print('b', end='\t'); import sys; print('c', file=sys.stderr)
from IPython.display import HTML, clear_output, display; display(HTML('<b>x</b>')); HTML('<i>y</i>')
print('gone'); clear_output(); display({'text/html': 'z', 'application/json': {'a': [1, None]}}, raw=True); 'é'
import altair, pandas; pandas.DataFrame({'a': [1.5]})
print(end=''); import asyncio; await asyncio.sleep(0); _
1; 2;
# nothing"""


def test_the_outputs_of_cells_are_those_of_papermills_own_engine(stored: Path) -> None:
    store(stored, "first", *CELLS.splitlines())
    ours = run("first")["first"]
    theirs = papermill.execute_notebook(stored / "first.ipynb", None, progress_bar=False)
    assert not isinstance(ours, Failure)
    ours, theirs = (
        [(c.source, c.execution_count, c.outputs) for c in each.cells] for each in (ours, theirs)
    )
    assert ours == theirs


SHARED = """
import json, perfkit
from perfkit import diagnosis
from perfkit.diagnosis.stored import _KEPT
held = len(_KEPT)
view = perfkit.select(perfkit.load(profile))
figures, findings = diagnosis.figures(view), diagnosis.findings(view)
json.dumps({"held": held, "new": len(_KEPT) - held, "count": view.kernels["gpu"].size})
"""


def test_a_run_is_diagnosed_once_for_all_notebooks(stored: Path, tmp_path: Path) -> None:
    make.capture(path := tmp_path / "run.sqlite", kernels=40)
    for name in ("first", "second"):
        store(stored, name, SHARED)
    first, second = (
        json.loads(answer(each)) for each in run("first", "second", profile=str(path)).values()
    )
    assert first == second
    assert (0, 40) == (first["new"], first["count"])
    assert first["held"] > 0


def test_a_run_that_cannot_be_diagnosed_is_told_by_its_notebook(stored: Path) -> None:
    store(stored, "first", "import perfkit; from perfkit import diagnosis", "perfkit.load(profile)")
    failure = run("first", profile="no_such.sqlite")["first"]
    assert isinstance(failure, Failure)
    assert "ReadError" == failure.error


def test_no_kernel_starts_after_the_end() -> None:
    kernel = Kernel()
    kernel.close()
    with pytest.raises(RuntimeError, match="the report ended"):
        kernel.lend(papermill.clientwrap.NotebookClient(nbformat.v4.new_notebook()))


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups")
def test_a_process_is_ended_with_its_children() -> None:
    import psutil

    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"]
    process = psutil.Popen(command, start_new_session=True)
    while not (children := process.children()):
        assert process.is_running()
    end(process)
    psutil.wait_procs([process, *children], timeout=60)
    assert not any(each.is_running() for each in children)
