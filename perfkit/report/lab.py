"""JupyterLab on working copies of the notebooks: a folder for each run, never overwritten."""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from traceback import walk_tb
from typing import Any

import nbformat
import numpy as np
import pandas as pd
from IPython.core.getipython import get_ipython

from perfkit.errors import PerfkitError, handled
from perfkit.format import Shown, coded, printable
from perfkit.profile import QUERY
from perfkit.report.notebooks import NOTEBOOKS, START, answering, folder, sample, title
from perfkit.report.output import is_same
from perfkit.report.students import released
from perfkit.run import Run

FOLDER = Path(
    "perfkit-lab"
)  # holds a folder per run; earlier versions put the notebooks of one run into it
COURSE = "labs"
NAMES = (START, *NOTEBOOKS)
FORMS = {
    bool: "True or False",
    float: "a number",
    str: "a text",
    dict: "a dictionary",
}  # of the answers in labs
FORMS |= {pd.Series: "a pandas Series", pd.DataFrame: "a pandas DataFrame"}
LONGEST = 60  # characters of a folder's name
LONGEST_PATH = 300  # characters of a path in a message
GRACE = 15.0  # s that JupyterLab has to end its kernels
# What it takes to answer a notebook, where no profile of the run is of a tool that says so itself.
RECORD = {
    "1_baseline": "`perfkit baseline gemm` and `copy`, `all_reduce_perf` of nccl-tests, or the log of a training",
    "2_monitoring": f"`{QUERY}` while the program runs",
    "3_system": "`nsys profile --trace=cuda,nvtx --gpu-metrics-devices=all -o report PROGRAM`",
    "3_call_paths": "`hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM`, then `hpcstruct` and `hpcprof`",
    "4_kernels": "`ncu --set full --launch-count 50 -o report PROGRAM`",
    "5_framework": "a trace of PyTorch's profiler, by the lines that `perfkit record torch` prints",
    "6_compare": "a recording before a change and one after it; name the earlier one in the parameter `baseline`",
}
STYLE = (
    "<style>.perfkit-steps th,.perfkit-steps td{text-align:left!important;white-space:normal!important;"
    "vertical-align:top;padding:.4em 1.2em .4em 0}.perfkit-steps td{overflow-wrap:anywhere}"
    ".perfkit-steps td:nth-child(2){min-width:14em}"
    ".perfkit-steps td:nth-child(3){white-space:nowrap!important}"
    ".perfkit-steps code{white-space:normal}</style>"
)


def prepare(target: Path | None, profile: Path | None, baseline: Path | None = None) -> Path:
    """Return the folder of a run's notebooks: copies for a person, with the run as their profile.

    `target` None is the run's own folder in `perfkit-lab`, `profile` None the sample run, `baseline` an earlier run to
    compare with. Notebooks that are there stay as they are, but for the baseline that is given. Raises PerfkitError if
    the folder holds notebooks of another run, or cannot be written.
    """
    run = (profile or sample()).absolute()
    given = {"profile": run}
    earlier = {"baseline": baseline.absolute()} if baseline else {}
    try:
        place = _own(run) if target is None else _chosen(target, run)
        place.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            path = place / f"{name}.ipynb"
            if not os.path.lexists(path):
                _parametrise(folder() / path.name, path, given | earlier)
            elif earlier:
                with suppress(ValueError):  # what a person put there may be no notebook
                    _parametrise(path, path, earlier)
    except OSError as e:
        text = f"{target or FOLDER}: the notebooks cannot be written ({e.strerror}). Choose another --folder."
        raise PerfkitError(text) from e
    return place


def _parametrise(source: Path, target: Path, paths: dict[str, Path]) -> None:
    """Write a notebook with paths in its parameters cell, whose lines keep their comments."""
    notebook = nbformat.read(source, as_version=4)
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    cell = (cells or [nbformat.v4.new_code_cell()])[0]
    before = cell.source
    for name, path in paths.items():
        line = f"{name}: str = {str(path)!r}  #".replace("\\", r"\\")  # as `sub` reads it
        cell.source = re.sub(f"^{name}:[^#\n]*#?", line, cell.source, count=1, flags=re.M)
    if source != target or cell.source != before:
        _write(notebook, target)


def prepare_course(target: Path | None) -> Path:
    """Return a folder with the students' versions of the labs; what is there stays.

    An installation from the source has the instructors' versions, the wheel the students'.
    """
    place = target or FOLDER / COURSE
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path in sorted((folder() / COURSE).glob("lab*.ipynb")):
            if not os.path.lexists(place / path.name):
                notebook = released(nbformat.read(path, as_version=4))
                _write(nbformat.from_dict(notebook), place / path.name)
    except OSError as e:
        raise PerfkitError(
            f"{place}: the labs cannot be written ({e.strerror}). Choose another --folder."
        ) from e
    return place


def capture(name: str | Path) -> Path:
    """Return the capture that a lab's parameter names: what stands there, or else the sample run of this name."""
    return (
        Path(name) if Path(name).exists() or not sample(str(name)).exists() else sample(str(name))
    )


def form(answer: Any, example: Any) -> None:
    """Raise AssertionError unless a student's answer has the form of the example; the message says what is wrong.

    An example is True, a number, a text, a dictionary, a Series, a DataFrame, or a tuple of these.
    """
    if answer is None:
        raise AssertionError(
            "The function returned None: it reached no `return`, or its search found no match."
        )
    value = answer.item() if isinstance(answer, np.generic) else answer
    value = float(value) if type(value) is int else value
    if isinstance(example, tuple):
        if not isinstance(value, tuple) or len(value) != len(example):
            raise AssertionError(
                f"The function must return {len(example)} values, separated by commas."
            )
        for each, of in zip(value, example, strict=True):
            form(each, of)
    elif not isinstance(value, type(example)):
        wanted = f"{FORMS[type(example)]}, not a {type(answer).__name__}"
        raise AssertionError(f"The function must return {wanted}. Read its docstring.")


def errors_in_words() -> None:
    """Let a notebook's kernel show a failed check, or an unwritten function, as one sentence; it stays an error."""
    if shell := get_ipython():
        shell.set_custom_exc((AssertionError, NotImplementedError), _in_words)


def _in_words(shell: Any, kind: type, error: Any, trace: Any, tb_offset: int | None = None) -> None:
    """Show the error of a cell; `_render_traceback_` is what IPython asks an error for."""
    last: Any = list(walk_tb(trace))[-1][0].f_code
    if kind is NotImplementedError and not error.args:
        error.args = (f"Write the function above first: {last.co_name}.",)
        error._render_traceback_ = lambda: [str(error)]
    elif str(error) and (last.co_name == "<module>" or last.co_filename == __file__):
        error._render_traceback_ = lambda: [str(error)]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def guess(predicted: float | None) -> str:
    """Return what a student predicted; an untouched cell, None, is no prediction."""
    return (
        "you predicted nothing: write your guess above"
        if predicted is None
        else f"you predicted {predicted:.2f}"
    )


def description(place: Path, profile: Path | None) -> list[str]:
    """Return lines for the person: the folder and its run, and the notebooks there that read another one."""
    run = (profile or sample()).absolute()
    others = ((name, other) for name, other in _profiles(place) if not is_same(run, other))
    return [
        f"{_path(place)}: notebooks of {_path(run)}",
        *(
            f"note: the parameters cell of {name}.ipynb names another run: {_path(other)}"
            for name, other in others
        ),
    ]


def _own(run: Path) -> Path:
    """Return the folder of a run in `perfkit-lab`, or a name that is free."""
    inside = sorted(path for path in FOLDER.iterdir() if path.is_dir()) if FOLDER.is_dir() else []
    for place in (FOLDER, *inside):
        if any(is_same(run, other) for _, other in islice(_profiles(place), 1)):
            return place
    name = (
        "".join(c if c.isalnum() or c in "._-" else "_" for c in run.resolve().name).lstrip(".")[
            :LONGEST
        ]
        or "run"
    )
    places = (FOLDER / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(place for place in places if not os.path.lexists(place))


def _chosen(target: Path, run: Path) -> Path:
    """Return the folder that the person named, unless its notebooks are of another run."""
    if any((target / f"{name}.ipynb").exists() for name in NAMES):
        found = next((profile for _, profile in _profiles(target)), None)
        if found is None or not is_same(run, found):
            raise PerfkitError(
                f"{_path(target)}: holds notebooks of {_path(found) if found else 'no run'}, "
                f"not of {_path(run)}. Choose another --folder, or leave --folder out: each run then has its own."
            )
    return target


def _profiles(place: Path) -> Iterator[tuple[str, Path]]:
    """Yield the notebooks of a folder whose parameters cell names a run, with that run."""
    for name in NAMES:
        # The text that a notebook's parameters cell assigns to `profile`; empty if it assigns none.
        notebook = place / f"{name}.ipynb"
        profile = ""
        with suppress(
            SyntaxError, ValueError, RecursionError, MemoryError
        ):  # the cell of a person may hold anything
            for line in ast.parse(_parameters(notebook)).body:
                match line:
                    case ast.Assign(
                        [ast.Name("profile")], ast.Constant(str(value))
                    ) | ast.AnnAssign(ast.Name("profile"), _, ast.Constant(str(value))):
                        profile = value
        if profile:
            yield (
                name,
                place.absolute() / profile,
            )  # the kernel of a notebook runs in the notebook's folder


def _parameters(notebook: Path) -> str:
    """Return the code of a notebook's parameters cell; empty if it has none or is no notebook."""
    with suppress(ValueError, RecursionError):
        match json.loads(notebook.read_text(encoding="utf-8")) if notebook.is_file() else None:
            case {"cells": [*cells]}:
                for cell in cells:
                    match cell:
                        case {"metadata": {"tags": [*tags]}, "source": str() | list() as code} if (
                            "parameters" in tags
                        ):
                            return "".join(map(str, code))
    return ""


def _path(path: Path) -> str:
    return printable(str(path), LONGEST_PATH)


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook; nothing is left of one that is not whole."""
    with tempfile.TemporaryDirectory(prefix=".perfkit-", dir=path.parent) as temporary:
        whole = Path(temporary, "notebook")
        nbformat.write(notebook, whole)
        os.replace(whole, path)


def command(target: Path, options: Sequence[str], first: str = START) -> int:
    """Run JupyterLab on `target` until it ends, and return its status; a signal ends it and its kernels first.

    Raises PerfkitError if it failed for root: its own message names an option that perfkit does not have.
    """
    lab = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--LabApp.default_url=/lab/tree/{first}.ipynb",
        *options,
        str(target),
    ]
    signals: list[int] = []
    is_running = False

    def interrupt(number: int, _: object) -> None:
        signals.append(number)
        if is_running:
            raise KeyboardInterrupt

    with handled(interrupt):
        # A session of its own: JupyterLab answers Ctrl-C in its terminal with a question.
        running = subprocess.Popen(lab, start_new_session=True)
        try:
            is_running = True
            status = _ended(running) if signals else running.wait()
        except KeyboardInterrupt:
            status = _ended(running)
    if status == 1 and getattr(os, "geteuid", lambda: 1)() == 0 and "--allow-root" not in options:
        raise PerfkitError(
            "JupyterLab did not run. If it refused root, type `perfkit lab --jupyter=--allow-root`."
        )
    return status if status >= 0 else 128 - status


def _ended(running: subprocess.Popen[bytes]) -> int:
    """End JupyterLab, which ends its kernels; a second signal or a long wait kills it, and its kernels notice that."""
    try:
        running.terminate()
        return running.wait(GRACE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        running.kill()
        return running.wait()


def analysis_steps(run: Run) -> Shown:
    """Return a table of the notebooks in their order: step, question, and what to record for it, if anything."""
    able = answering(run)
    rows = []
    for name, tables in NOTEBOOKS.items():
        heading = title(nbformat.read(folder() / f"{name}.ipynb", as_version=4))
        question = heading.partition(": ")[2] or heading
        # What to record stands in the words of the profile that lacks it, if there is one.
        record = next(
            (f"`{m.record}`" for m in run.missing if m.table in tables), RECORD.get(name, "")
        )
        answer = "yes" if name in able else f"not yet; what it takes: {record}"
        rows.append((name.partition("_")[0], question[:1].upper() + question[1:], name, answer))
    body = "".join(
        f'<tr><td>{number}</td><td>{coded(question)}</td><td><a href="{name}.ipynb">{name}</a></td>'
        f"<td>{coded(answer)}</td></tr>"
        for number, question, name, answer in rows
    )
    head = "".join(
        f'<th scope="col">{each}</th>'
        for each in ("step", "question", "notebook", "this run answers it")
    )
    table = f'{STYLE}<table class="perfkit-steps"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return Shown(
        table, "\n".join(f"{number} {question}: {answer}" for number, question, _, answer in rows)
    )
