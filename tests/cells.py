"""Run the cells of a notebook one by one, without a kernel."""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbformat.v4 import new_output
from traitlets.config import Config

import perfkit
from perfkit import diagnosis, report
from perfkit.report import pages
from perfkit.report.links import cells, place
from perfkit.report.notebooks import LIVE, NEEDS, answering, folder, recorded
from perfkit.selection import Selection


@dataclass
class Executed:
    """What the cells of a notebook made: what each shows on a page, by the cell's id, and their variables."""

    results: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Every chart, table and sentence, with the id of its cell."""
        for cell, result in self.results.items():
            for part in getattr(result, "parts", [result]):
                if part is not None:
                    yield cell, part

    @cached_property
    def shown(self) -> list[tuple[str, Any]]:
        """The cell's id and what it shows, made once: of a chart its specification, else a text or HTML."""
        return [(cell, _content(part)) for cell, part in self.parts()]

    def check(self) -> None:
        """Raise AssertionError unless each chart has a description, and each table or sentence content."""
        for cell, shown in self.shown:
            assert shown["description"] if isinstance(shown, dict) else shown.strip(), cell


def _content(part: Any) -> Any:
    if isinstance(part, str):
        return part
    return part.to_dict() if hasattr(part, "to_dict") else part.html


def execute(name: str, **parameters: Any) -> Executed:
    """Run a notebook's cells with these parameters. What live cells show is for a person, and left out."""
    done = Executed()
    for cell in nbformat.read(folder() / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type != "code":
            continue
        *before, last = ast.parse(cell.source).body
        exec(compile(ast.Module(before, []), name, "exec"), done.space)
        if isinstance(last, ast.Expr):
            result = eval(compile(ast.Expression(last.value), name, "eval"), done.space)
            if LIVE not in cell.metadata.get("tags", []):
                done.results[cell.id] = result
        else:
            exec(compile(ast.Module([last], []), name, "exec"), done.space)
        if "parameters" in cell.metadata.get("tags", []):
            done.space.update(parameters)
    return done


@contextmanager
def sharing() -> Iterator[None]:
    """Let what is loaded and selected with the same options be the same object, so that nothing is found twice."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load", "select"):
            patch.setattr(perfkit, name, _shared(getattr(perfkit, name)))
        yield


def _shared(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps its answers, by run or path and the options that choose something."""
    answers: dict[str, Any] = {}

    def once(source: Any, **options: Any) -> Any:
        chosen = sorted((name, value) for name, value in options.items() if value)
        key = repr((str(source) if isinstance(source, str | Path) else id(source), chosen))
        if key not in answers:
            answers[key] = (
                source,
                made(source, **options),
            )  # the source stays, so that no other has its id
        return answers[key][1]

    return once


def unlinked(view: Selection) -> list[str]:
    """Return the figures of a run and of its findings that have no cell in its report, or no table that it holds."""
    names, tables = answering(view.run), recorded(view.run)
    read = {name: nbformat.read(folder() / f"{name}.ipynb", as_version=4) for name in names}
    for notebook in read.values():
        notebook.cells = [
            cell
            for cell in notebook.cells
            if all(
                set(tag.removeprefix(NEEDS).split("|")) & tables
                for tag in _needs(cell.metadata.get("tags", []))
            )
        ]
    among = cells(read.items())
    evidence = (figure for finding in diagnosis.findings(view) for figure in finding.evidence)
    held = {table for profile in view.run.profiles for table in profile.loaders}
    return [
        figure.id
        for figure in (*diagnosis.figures(view).values(), *evidence)
        if place(figure.id, figure.source, among) is None
        or not held & {table.rpartition("/")[2] for table in figure.tables}
    ]


def _needs(tags: list[str]) -> Iterator[str]:
    return (tag for tag in tags if tag.startswith(NEEDS))


class Session:
    """Does what `perfkit.report.notebooks.Session` does without a kernel: in this process."""

    def __enter__(self) -> Self:
        self._patches = ExitStack()
        patch = self._patches.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("perfkit.run._SHARED", {})
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def ask(self, name: str, **given: Any) -> Any:
        """Call a function of `perfkit.report.pages` with what a kernel would get: JSON."""
        return getattr(pages, name)(**json.loads(json.dumps(given)))

    def execute(
        self,
        names: list[str],
        parameters: dict[str, Any],
        *,
        done: Callable[[str, Any], None] = lambda name, executed: None,
    ) -> dict[str, Any]:
        """Run notebooks one after the other."""
        return outputs(names, parameters, done=done)


def outputs(
    names: list[str], parameters: dict[str, Any], *, done: Callable[[str, Any], None]
) -> dict[str, Any]:
    """Run notebooks in this process, which share what they load and select, and return them."""
    main, executed = (
        sys.modules["__main__"],
        {},
    )  # the shell takes its place, and leaves it without a __spec__
    quick = {
        "HistoryManager": {"enabled": False},
        "InteractiveShell": {"cache_size": 0},
    }  # else reset collects garbage
    shell = InteractiveShell.instance(config=Config(quick))
    try:
        with sharing():
            for name in names:
                shell.reset(new_session=False)
                executed[name] = nbformat.read(folder() / f"{name}.ipynb", as_version=4)
                for cell in (cell for cell in executed[name].cells if cell.cell_type == "code"):
                    _show(cell, shell)
                    if "parameters" in cell.metadata.get("tags", []):
                        shell.user_ns.update(
                            (key, value)
                            for key, value in parameters.items()
                            if key in shell.user_ns
                        )
                done(name, executed[name])
    finally:
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main
    return executed


def _show(cell: nbformat.NotebookNode, shell: InteractiveShell) -> None:
    results: list[Any] = []
    shell.display_trap.hook = results.append
    with capture_output() as captured:
        shell.run_cell(cell.source).raise_error()
        formatted = [shell.display_formatter.format(each) for each in results if each is not None]
    shown = [*((each.data, each.metadata) for each in captured.outputs), *formatted]
    cell.outputs = [
        new_output("display_data", data, metadata=about) for data, about in shown if data
    ]


def built(profile: Path, folder: Path, **options: Any) -> Path:
    """The folder of a report that is made without kernels, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfkit.report.notebooks.Session", Session)
        return report.build(profile, folder / "report", **options).parent
