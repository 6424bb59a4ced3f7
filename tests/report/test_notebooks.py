"""The processes of a report's notebooks: on Linux one imports everything, and forks them."""

import json
import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

import make
from perfkit.report import kernels, notebooks
from perfkit.report.notebooks import Failure, execute

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")
SPEC = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
ABOUT = """
import json, os, sys
from perfkit import analysis, charts
about = {"parent": os.getppid(), "group": os.getpgrp() == os.getpid(), "folder": os.getcwd(), "path": sys.path}
json.dumps({**about, "cache": os.environ["PERFKIT_CACHE"], "profile": profile, "numbers": numbers})
"""


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of that of the notebooks."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr(notebooks, "folder", lambda: folder)
    monkeypatch.setattr(kernels, "IS_COMMAND", False)  # whichever test called the command before
    return folder


def store(folder: Path, name: str, *code: str) -> None:
    """Write a notebook with a parameters cell and some code."""
    parameters = nbformat.v4.new_code_cell("profile: str = ''\nnumbers: list = []", metadata={"tags": ["parameters"]})
    cells = [parameters, *map(nbformat.v4.new_code_cell, code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=SPEC), folder / f"{name}.ipynb")


def answers(results: Iterable[Any]) -> list[dict[str, Any]]:
    return [json.loads(literal_eval(each.cells[-1].outputs[0].data["text/plain"])) for each in results]


def test_one_process_forks_those_that_run_the_cells(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        store(stored, name, "import sys; before = set(sys.modules)", ABOUT, "assert 'perfkit.charts' in before", ABOUT)
    store(stored, "ended", "import os; os._exit(3)")
    store(stored, "failed", "1 + 1", "raise ValueError('no')", "2 + 2")
    parameters = {"profile": "p\udcff", "numbers": [1]}
    made = execute(["first", "second", "ended", "failed"], parameters, done=lambda _: None)
    first, second = answers([made["first"], made["second"]])
    assert first == second
    assert first["parent"] != os.getpid()
    assert first["group"]
    assert (os.getcwd(), os.environ["PERFKIT_CACHE"]) == (first["folder"], first["cache"])
    assert ("p\udcff", [1]) == (first["profile"], first["numbers"])
    assert str(stored) not in first["path"]
    assert "the kernel died: it ended with status 3" == str(made["ended"])
    assert Failure("ValueError", "no", "raise ValueError('no')") == made["failed"]
    done = made["first"]
    assert not isinstance(done, Failure)
    assert parameters == done.metadata.papermill.parameters
    assert done.metadata.papermill.duration > 0
    assert {"completed"} == {cell.metadata.papermill.status for cell in done.cells}
    assert [["parameters"], ["injected-parameters"]] == [cell.metadata.get("tags") for cell in done.cells[:2]]
    # They start without the process too.
    store(stored, "alone", ABOUT)
    monkeypatch.setattr(kernels, "SERVER", "raise SystemExit(1)")
    (alone,) = answers(execute(["alone"], parameters, done=lambda _: None).values())
    assert alone["parent"] == os.getpid()
    assert {**alone, "parent": 0} == {**first, "parent": 0}


CELLS = """print('a'); print('b', end='\t'); import sys; print('c', file=sys.stderr)
from IPython.display import HTML, clear_output, display; display(HTML('<b>x</b>')); HTML('<i>y</i>')
print('gone'); clear_output(); display({'text/html': 'z', 'application/json': {'a': [1, None]}}, raw=True); 'é'
import altair, pandas; pandas.DataFrame({'a': [1.5]})
print(end=''); import asyncio; await asyncio.sleep(0); _
1; 2;
# nothing"""


def test_the_outputs_of_cells_are_those_of_a_kernel(stored: Path) -> None:
    store(stored, "first", *CELLS.splitlines())
    ours = execute(["first"], {}, done=lambda _: None)["first"]
    theirs = papermill.execute_notebook(stored / "first.ipynb", None, progress_bar=False)
    assert not isinstance(ours, Failure)
    ours, theirs = ([(c.source, c.execution_count, c.outputs) for c in each.cells] for each in (ours, theirs))
    assert ours == theirs


SHARED = """
import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import _KEPT
held = len(_KEPT)
view = perfkit.select(perfkit.load(profile))
figures, findings = diagnosis.figures(view), diagnosis.findings(view)
import json, os
json.dumps({"parent": os.getppid(), "held": held, "same": len(_KEPT) == held, "count": view.kernels["gpu"].size})
"""


def test_a_run_is_diagnosed_once_for_all_kernels(stored: Path, tmp_path: Path) -> None:
    """Each finds the selection, with its figures, that the process made before it forked them; also as the command.

    The command has read a log as text before: Arrow then holds a pipe that it makes anew after each fork.
    """
    make.capture(path := tmp_path / "run.sqlite", kernels=40)
    for name in ("first", "second"):
        store(stored, name, SHARED)
    code = f"""
import io, json, sys
from pathlib import Path
from perfkit.report import kernels, notebooks
from pyarrow import csv
csv.read_csv(io.BytesIO(b"a\\n1\\n"))
notebooks.folder = lambda: Path({str(stored)!r})
for kernels.IS_COMMAND in (True, False):
    made = notebooks.execute(["first", "second"], {{"profile": {str(path)!r}}}, done=lambda _: None)
    print(json.dumps([each.cells[-1].outputs[0].data["text/plain"] for each in made.values()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "" == done.stderr
    as_command, alone = done.stdout.splitlines()
    for printed in (as_command, alone):
        first, second = (json.loads(literal_eval(text)) for text in json.loads(printed))
        assert first == second
        assert (True, 40) == (first["same"], first["count"])
        assert first["held"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="no fork")
def test_work_beside_is_done_once_more_where_its_process_fails(tmp_path: Path) -> None:
    code = """
import os
from pathlib import Path
from perfkit.report import kernels
def work(name, fails):
    if fails and os.getpid() != here:
        raise MemoryError
    Path(name).write_text("here" if os.getpid() == here else "beside")
here = os.getpid()
for kernels.IS_COMMAND in (True, False):
    for fails in (True, False):
        with kernels.beside(lambda: work("file", fails)):
            pass
        print(Path("file").read_text(), end=" ")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ("here beside here here ", "") == (done.stdout, done.stderr)


def test_the_end_of_the_process_ends_its_kernels(stored: Path) -> None:
    # The system may kill it when memory runs out.
    store(stored, "first", "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)")
    failure = execute(["first"], {}, done=lambda _: None)["first"]
    assert isinstance(failure, Failure)
    assert "the kernel died: signal SIGKILL ended it" in str(failure)
