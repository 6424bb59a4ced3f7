"""`%%perfkit`: record a cell of a notebook, and show below it where its time went.

The cell runs as it would without the magic: IPython runs it, and perfkit only starts and stops a
recording around it. So its variables, its output and its exceptions are those of any other cell.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from IPython.display import display

from perfkit import analysis, charts, diagnosis, load, report, select, widgets, workloads
from perfkit.analysis import python_functions, stacks
from perfkit.diagnosis import verdict
from perfkit.errors import PerfkitError
from perfkit.format import duration
from perfkit.recorders.sampling import Sampler
from perfkit.selection import Selection
from perfkit.workloads import torch_launcher

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MAGIC = "%%perfkit"
LAST = "last"
FILE = f"cell{torch_launcher.SUFFIX}"
TORCH = re.compile(r"\btorch\b")
COLUMNS = ["name", "count", "own_ns", "total_ns", "share_frac"]
FUNCTIONS = "Python functions by their own time"
ROWS = 12
USAGE = "`%%perfkit [--name NAME] [--compare NAME] [--cpu] [--out FOLDER]`, or `%perfkit last`"


class Refused(argparse.ArgumentParser):
    """A parser that raises where argparse would end the process."""

    def error(self, message: str) -> Any:
        """Raise what is wrong, with how the magic is used."""
        raise PerfkitError(f"{MAGIC}: {message}. Write {USAGE}.")


def parser() -> argparse.ArgumentParser:
    """Return what reads the line of the magic."""
    made = Refused(prog=MAGIC, add_help=False)
    made.add_argument("--name", default="", help="call this cell so, to compare with it later")
    made.add_argument("--compare", default="", metavar="NAME", help="compare with an earlier cell")
    made.add_argument("--cpu", action="store_true", help="sample Python, also with PyTorch")
    made.add_argument("--out", type=Path, help="folder to make and keep the recording in")
    return made


@dataclass(frozen=True)
class Asked:
    """What the first line of a cell says."""

    name: str
    compare: str
    cpu: bool
    out: Path | None


class Cells:
    """The recorded cells of a session, by their names; the last one is `last` too."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.views: dict[str, Selection] = {}
        self.asked: Asked | None = None
        self.running: Any = None

    def line(self, line: str) -> Any:
        """Open the explorer on the last recorded cell: `%perfkit last`."""
        if line.strip() not in self.views:
            known = ", ".join(self.views) or "none yet"
            raise PerfkitError(f"%perfkit {line}: no such cell. Recorded cells: {known}. {USAGE}")
        view = self.views[line.strip()]
        on_cpu = "operators" if len(view.ops) else ""
        return widgets.explorer(view, show="timeline" if len(view.all_kernels) else on_cpu)

    def begin(self, info: Any) -> None:
        """Start to record a cell that asks for it."""
        first, _, code = info.raw_cell.lstrip().partition("\n")
        self.asked = None
        if first.split()[:1] != [MAGIC]:
            return
        try:
            words = shlex.split(first)[1:]
            self.asked = Asked(**vars(parser().parse_args(words)))
            self._check(self.asked)
        except (PerfkitError, ValueError) as e:
            self.asked = None
            display(report.note(str(e)))
            return
        self.running = recorder(code, samples=self.asked.cpu)
        self.running.start()

    def _check(self, asked: Asked) -> None:
        """Refuse what could not be done after the cell has run."""
        if asked.compare and asked.compare not in self.views:
            known = ", ".join(self.views) or "none yet"
            raise PerfkitError(f"--compare {asked.compare}: no such cell. Recorded cells: {known}.")
        if asked.out and asked.out.exists():
            raise PerfkitError(f"--out {asked.out}: is there already. Choose another folder.")

    def end(self, result: Any) -> None:
        """Stop, and show below the cell what was recorded."""
        if self.asked is None:
            return
        asked, self.asked = self.asked, None
        running, self.running = self.running, None
        running.stop()
        if result.error_before_exec:
            return
        try:
            view = select(load(written(running, asked.out)))
        except PerfkitError as e:
            display(report.note(f"Nothing was recorded: {e}"))
            return
        before = self.views.get(asked.compare)
        self.views[LAST] = view
        if asked.name:
            self.views[asked.name] = view
        for part in shown(view):
            display(part)
        for part in compared(before, view, asked.compare) if before is not None else ():
            display(part)


def recorder(code: str, *, samples: bool) -> Any:
    """Return PyTorch's profiler for a cell that uses PyTorch, else what samples Python."""
    is_torch = "torch" in sys.modules or TORCH.search(code)
    if samples or not is_torch or importlib.util.find_spec("torch") is None:
        return Sampler()
    return torch_launcher.profiler(workloads.pytorch())


def written(recording: Any, out: Path | None) -> Path:
    """Write a recording to a folder, or to one that goes with the session; return its file."""
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="perfkit-cell-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    else:
        folder = out
        folder.mkdir(parents=True)
    file = folder / FILE
    if isinstance(recording, Sampler):
        recording.write(file)
    else:
        recording.export_chrome_trace(str(file))
    return file


def shown(view: Selection) -> list[Any]:
    """Return the verdict of a cell, its timeline and kernels; without a GPU, what the CPU did."""
    figures = diagnosis.figures(view)
    findings = diagnosis.findings(view)
    parts: list[Any] = [report.first_screen(view, figures, findings)]
    if len(view.all_kernels):
        parts += [report.first_steps(findings, figures, view)]
        parts += [widgets.views.timeline(view), widgets.views.kernels(view)]
    elif len(view.ops):
        parts.append(charts.operators.bars(operators(view), top=ROWS))
    functions = functions_of(view)
    if len(functions) and not len(view.all_kernels):
        parts.append(charts.tables.show(functions, columns=COLUMNS, rows=ROWS, caption=FUNCTIONS))
    return parts


def operators(view: Selection) -> pd.DataFrame:
    """Return the operators of a cell with their times."""
    return analysis.operators.summary(view.ops, view.kernels, view.api_calls)


def functions_of(view: Selection) -> pd.DataFrame:
    """Return the Python functions of a cell with their times, as a reader knows them."""
    functions = python_functions.summary(view.run.python_calls, view.run.ops)
    return functions.assign(name=functions["name"].map(stacks.shown))


def compared(before: Selection, after: Selection, name: str) -> list[Any]:
    """Return two cells side by side: the verdict, and the functions that changed most."""
    found = verdict.attempted(before, after)
    sentences = [f"The cell {name} took {lasted(before)}, this one {lasted(after)}."]
    if len(found.figures):
        sentences.append(verdict.sentence(found))
    parts: list[Any] = [report.note(sentence) for sentence in sentences]
    rows = side_by_side(functions_of(before), functions_of(after))
    caption = f"Own time of Python functions: {name}, and this cell"
    return [*parts, charts.tables.show(rows, rows=ROWS, caption=caption)] if len(rows) else parts


def lasted(view: Selection) -> str:
    """Return how long a cell was recorded."""
    return duration(float(view.run.capture["dur_ns"].max()))


def side_by_side(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Return the own times of functions in two cells, the largest difference first."""
    columns = [frame.groupby("name", sort=False)["own_ns"].sum() for frame in (before, after)]
    rows = pd.concat(columns, axis=1, keys=["before_ns", "after_ns"]).fillna(0).astype("int64")
    rows["difference_ns"] = rows["after_ns"] - rows["before_ns"]
    rows = rows[rows.ne(0).any(axis=1)]
    order = rows["difference_ns"].abs().sort_values(ascending=False, kind="stable").index
    return rows.loc[order].reset_index()


def without_magic(lines: list[str]) -> list[str]:
    """Return the lines of a cell, the first one empty, so that line numbers stay."""
    if lines and lines[0].split()[:1] == [MAGIC]:
        return ["\n", *lines[1:]]
    return lines


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Let a session record cells: `%load_ext perfkit` calls this."""
    cells = Cells(shell)
    shell.input_transformers_cleanup.append(without_magic)
    shell.events.register("pre_run_cell", cells.begin)
    shell.events.register("post_run_cell", cells.end)
    named: Any = shell.register_magic_function  # whose types are wrong
    named(cells.line, "line", "perfkit")
