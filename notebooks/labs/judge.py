# fmt: off
"""Grade the labs in two processes: the student's kernel, and that of nbgrader, which holds the comparison.

A student's program can change everything in its own kernel: `math.isclose`, numpy, perfkit. Therefore each test also
runs in the process of nbgrader, with the instructor's notebook. There, the student's functions are messengers: each
one sends its arguments to the student's kernel and gets plain values back. A test must pass in both processes.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import io
import os
import pickle
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nbformat
from nbgrader.converters import Autograde
from nbgrader.preprocessors import Execute

MARK = "perfkit-answer:"
CALL = f"""
import base64, pickle, zlib
try:
    _args, _named = pickle.loads(zlib.decompress(base64.b64decode({{sent!r}})))
    _answer = True, {{name}}(*_args, **_named)
except Exception as e:
    _answer = False, (type(e).__name__, str(e))
print({MARK!r} + base64.b64encode(pickle.dumps(_answer)).decode())
"""
FUNCTIONS = {"_reconstruct", "_frombuffer", "scalar", "_unpickle_block", "__newobj__", "_new_Index"}


class _Writer(pickle.Pickler):
    """Sends read-only mappings, which pickle does not know, as dictionaries."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to make a dictionary of a read-only mapping."""
        return (dict, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


class _Reader(pickle.Unpickler):
    """Takes numbers, texts, collections, arrays and tables, and nothing that a student's program defines."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of Python, numpy or pandas; refuse anything else."""
        is_known = module.partition(".")[0] in ("builtins", "numpy", "pandas")
        found = super().find_class(module, name) if is_known else None
        if (
            not isinstance(found, type)
            and name not in FUNCTIONS
            and not name.startswith("__pyx_unpickle_")
        ):
            raise pickle.UnpicklingError(f"the answer holds a {module}.{name}, not plain values")
        return found


class Judged(Execute):
    """Runs a submission in its kernel, and its tests a second time in this process."""

    def preprocess(self, nb: Any, resources: Any) -> Any:
        """Run a submission; the instructor's notebook lies in the folder `source` beside this file."""
        names = resources["nbgrader"]
        place = (
            Path(__file__).parent / "source" / names["assignment"] / f"{names['notebook']}.ipynb"
        )
        self.cells = [
            cell for cell in nbformat.read(place, as_version=4).cells if cell.cell_type == "code"
        ]
        self.given, self.space = _parameters(nb), {"__name__": "__main__"}
        self.place = resources.get("metadata", {}).get("path") or "."
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> Any:
        """Run a cell; after a test, run the instructor's cells up to the same test."""
        cell, resources = super().preprocess_cell(cell, resources, index)
        role = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and role.get("grade"):
            self.index = (
                index  # here, nbclient puts every cell that a messenger executes; see the end
            )
            error = self._judge(role["grade_id"])
            if error is not None and not any(
                output.output_type == "error" for output in cell.outputs
            ):
                text = [f"{type(error).__name__}: {error}"]
                output = {"ename": type(error).__name__, "evalue": str(error), "traceback": text}
                cell.outputs.append(nbformat.v4.new_output("error", **output))
            self.nb.cells[index] = cell
        return cell, resources

    def _judge(self, name: str) -> BaseException | None:
        """Run the instructor's cells up to this test, and return what stopped the test."""
        self.answers: dict[
            tuple[str, bytes], bytes
        ] = {}  # meanwhile the student's kernel does not change
        while self.cells:
            cell = self.cells.pop(0)
            role = cell.metadata.get("nbgrader", {})
            if role.get("solution"):
                functions = [
                    node.name
                    for node in ast.parse(cell.source).body
                    if isinstance(node, ast.FunctionDef)
                ]
                self.space |= {function: self._messenger(function) for function in functions}
                continue
            error = self._run(cell.source)
            if "parameters" in cell.metadata.get("tags", []):
                self.space |= {key: value for key, value in self.given.items() if key in self.space}
            if role.get("grade_id") == name:
                return error
        return LookupError(f"the test {name} is not in the instructor's notebook, or comes twice")

    def _run(self, source: str) -> BaseException | None:
        """Run a cell of the instructor's in this process, in the submission's folder."""
        before = os.getcwd()
        os.chdir(self.place)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, "cell", "exec"), self.space)
        except Exception as e:  # noqa: BLE001 what a test or a student's function raises is the result
            self.log.debug("".join(traceback.format_exception(e)))
            return e
        finally:
            os.chdir(before)
        return None

    def _messenger(self, name: str) -> Callable[..., Any]:
        """Return a function that asks the student's function of this name."""

        def ask(*args: Any, **named: Any) -> Any:
            sent = io.BytesIO()
            _Writer(sent).dump((args, named))
            asked = name, sent.getvalue()
            if asked not in self.answers:
                cell = nbformat.v4.new_code_cell(
                    CALL.format(name=name, sent=base64.b64encode(zlib.compress(asked[1])))
                )
                self.execute_cell(cell, self.index, store_history=False)
                texts = [
                    each.text
                    for each in cell.outputs
                    if each.output_type == "stream" and MARK in each.text
                ]
                if not texts:
                    raise TypeError(f"{name}: no plain value came back")
                self.answers[asked] = base64.b64decode(texts[-1].rpartition(MARK)[2])
            answer = self.answers[asked]
            is_value, value = _Reader(io.BytesIO(answer)).load()
            if is_value:
                return value
            kind = getattr(builtins, value[0], None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else RuntimeError)(
                value[1] if is_error else f"{value[0]}: {value[1]}"
            )

        return ask


# What nbgrader runs on a submission, with this judge in the place of its own execution.
PREPROCESSORS = [
    Judged if each is Execute else each for each in Autograde.autograde_preprocessors.default()
]


def _parameters(notebook: Any) -> dict[str, Any]:
    """Return the plain values that a submission's parameters cell assigns."""
    source = next(
        (cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])),
        "",
    )
    found = {}
    with contextlib.suppress(SyntaxError):
        for line in ast.parse(source).body:
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and line.value is not None
            ):
                with contextlib.suppress(ValueError):
                    found[line.target.id] = ast.literal_eval(line.value)
    return found
