"""Run the cells of a notebook one by one, without a kernel."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbformat.v4 import new_output
from traitlets.config import Config

from perfkit.report.notebooks import LIVE, folder


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

    def check(self) -> None:
        """Raise AssertionError unless each chart has a description, and each table or sentence content."""
        for cell, part in self.parts():
            if hasattr(part, "to_dict"):
                assert part.to_dict()["description"], cell
            else:
                assert part.strip() if isinstance(part, str) else part._repr_html_().strip(), cell


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


def outputs(names: list[str], parameters: dict[str, Any], *, done: Callable[[str], None]) -> dict[str, Any]:
    """Do what `perfkit.report.notebooks.execute` does, without kernels: one after the other, in this process."""
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    executed = {}
    try:
        for name in names:
            shell.reset(new_session=False)
            notebook = nbformat.read(folder() / f"{name}.ipynb", as_version=4)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    results: list[Any] = []
                    shell.display_trap.hook = results.append
                    with capture_output() as captured:
                        shell.run_cell(cell.source).raise_error()
                        formatted = [shell.display_formatter.format(each) for each in results if each is not None]
                    shown = [*((each.data, each.metadata) for each in captured.outputs), *formatted]
                    cell.outputs = [new_output("display_data", data, metadata=about) for data, about in shown if data]
                    if "parameters" in cell.metadata.get("tags", []):
                        shell.user_ns.update((key, value) for key, value in parameters.items() if key in shell.user_ns)
            executed[name] = notebook
            done(name)
    finally:
        InteractiveShell.clear_instance()
    return executed
