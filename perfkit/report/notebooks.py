"""The notebooks: where they lie, which of them a run can answer, and how to run them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import nbformat

from perfkit.diagnosis.finding import Figure, Finding, Refusal, plain
from perfkit.format import elided
from perfkit.run import Run

MIME = "application/vnd.perfkit.record+json"
# Begins the tag of a cell that has an answer only where one of the tables, or kinds of captures, it names was recorded.
NEEDS = "needs:"
# Tag of a cell for the person at the notebook: the explorer and the prose about it, and what the summary says already.
LIVE = "live"


@dataclass
class Recorded:
    """What the notebooks of a report recorded; of two with one id or title the first is kept."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)


BASELINE = "baseline"
# Notebook, and the tables or kinds of captures of which the run must hold at least one for it to have an answer;
# BASELINE where an earlier run must have been given.
NOTEBOOKS: dict[str, tuple[str, ...]] = {
    "0_executive_summary": (),
    "1_baseline": ("network", "training"),
    "2_monitoring": ("monitor",),
    "3_system": ("KERNELS", "COPIES", "API_CALLS", "RANGES", "timeline"),
    "3_call_paths": ("CALLTREE",),
    "4_kernels": ("LAUNCHES",),
    "5_framework": ("OPS",),
    "6_compare": (BASELINE,),
}
START = "start"  # leads to the others; a page for a person, no part of a report
LONGEST = 4000  # characters of an error's message
QUIET = ["--IPKernelApp.log_level=50"]  # a kernel's remarks on its own transport are no part of a report


@dataclass(frozen=True)
class Failure:
    """Why a notebook is missing from a report: the kind of error, its message, and the code of the cell that failed."""

    error: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.error}: {self.message}".removesuffix(": ")


Executed = nbformat.NotebookNode | Failure


class _Kernels:
    """The processes of a report's kernels, by notebook."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._is_over = False

    def manager(self, notebook: str) -> type:
        """Return a class that starts the kernel of a notebook and adds its process."""
        from jupyter_client.manager import AsyncKernelManager

        add = self._add

        class Manager(AsyncKernelManager):
            async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]  # as the class above it
                await super().start_kernel(**options)
                add(notebook, getattr(self.provisioner, "process", None))

        return Manager

    def _add(self, notebook: str, process: subprocess.Popen[bytes] | None) -> None:
        if process is None:  # a kernel on another machine
            return
        with self._lock:
            self._processes[notebook] = process
            if self._is_over:
                end(process)

    def end(self) -> None:
        """End all kernels with their children, and kernels that are yet to start."""
        with self._lock:
            self._is_over = True
            for process in self._processes.values():
                end(process)

    def ending(self, notebook: str) -> str:
        """Return how a notebook's kernel ended, in words; empty if that is not known."""
        process = self._processes.get(notebook)
        status = process.poll() if process else None
        if status is None:
            return ""
        if status >= 0:
            return f"it ended with status {status}"
        memory = "; the system does that when memory runs out" if status == -signal.SIGKILL else ""
        return f"signal {signal.Signals(-status).name} ended it{memory}"


def folder() -> Path:
    """Return the folder of the notebooks."""
    return _installed("notebooks")


def sample(name: str = "mlp_a100") -> Path:
    """Return the folder of a sample run."""
    return _installed("data") / name


def _installed(name: str) -> Path:
    """Return a folder inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    return next(p for p in (package / name, package.parent / name) if p.is_dir())


def recorded(run: Run) -> set[str]:
    """Return the names of the tables that the profiles of a run hold, and the kinds of these captures."""
    return {*run.kinds, *(name for profile in run.profiles for name in profile.loaders)}


def answering(run: Run, baseline: Run | None = None) -> list[str]:
    """Return the names of the notebooks that have something to say about this run, or this and an earlier one."""
    tables = recorded(run) | ({BASELINE} if baseline is not None else set())
    return [name for name, needs in NOTEBOOKS.items() if not needs or tables & set(needs)]


def title(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook's first heading, which is the question it answers."""
    return str(notebook.cells[0].source).partition("\n")[0].removeprefix("# ")


def execute(names: list[str], parameters: dict[str, Any], *, done: Callable[[str], None]) -> dict[str, Executed]:
    """Run notebooks of `NOTEBOOKS`, several at a time, and return each by its name, or why it failed.

    Each gets those `parameters` that its parameters cell has; one that fails leaves the others. An exception, such as
    Ctrl-C, that leaves this function ends all kernels at once, with their children.
    """
    kernels = _Kernels()

    def one(name: str) -> Executed:
        try:
            return _executed(name, parameters, kernels)
        finally:
            done(name)

    with warnings.catch_warnings(), ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        warnings.filterwarnings("ignore", category=UserWarning, module="papermill")
        try:
            return dict(zip(names, pool.map(one, names), strict=True))
        finally:
            kernels.end()


def _executed(name: str, parameters: dict[str, Any], kernels: _Kernels) -> Executed:
    """Run a notebook in a kernel of its own."""
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import DeadKernelError
    from zmq import ZMQError

    stored = folder() / f"{name}.ipynb"
    cells = nbformat.read(stored, as_version=4).cells
    sources = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    accepted = {line.partition(":")[0] for source in sources for line in source.split("\n")}
    logging.getLogger("papermill").addHandler(logging.NullHandler())  # what it would print is in the Failure
    try:
        executed: nbformat.NotebookNode = papermill.execute_notebook(
            stored,
            None,  # written when the report is: a full disk is the report's problem, not the notebook's
            {key: value for key, value in parameters.items() if key in accepted},
            progress_bar=False,
            cwd=os.getcwd(),
            extra_arguments=QUIET,
            kernel_manager_class=kernels.manager(name),
            shell_timeout_interval=1,  # s between two looks whether the kernel lives
        )
    except papermill.PapermillExecutionError as e:
        return Failure(e.ename, elided(e.evalue, LONGEST), e.source)
    except DeadKernelError:
        return Failure("the kernel died", kernels.ending(name))
    except NoSuchKernel as e:
        return Failure(
            "no kernel", f"Jupyter knows no kernel named {e.name!r}; install it with `pip install ipykernel`"
        )
    except (RuntimeError, OSError, ZMQError) as e:  # the kernel did not start
        return Failure("the kernel did not start", kernels.ending(name) or str(e))
    return executed


def failed(name: str, failure: Failure) -> nbformat.NotebookNode:
    """Return what stands on the page for a notebook that failed: its title, and the error."""
    stored = nbformat.read(folder() / f"{name}.ipynb", as_version=4)
    error = nbformat.v4.new_output("error", ename=failure.error, evalue=failure.message, traceback=[])
    cells = [
        nbformat.v4.new_markdown_cell(f"# {title(stored)}"),
        nbformat.v4.new_code_cell(failure.code, outputs=[error]),
    ]
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells, metadata=stored.metadata)
    return made


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session of its own, with its children, if it still runs."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def record(
    figures: Iterable[Figure] = (), *, findings: Iterable[Finding] = (), refusals: Iterable[Refusal] = ()
) -> None:
    """Record what a notebook found, for `summary.json` and whoever runs the notebook without a person."""
    from IPython.display import display

    findings = list(findings)
    by_id = {figure.id: figure for figure in (*figures, *(e for f in findings for e in f.evidence))}
    content = {
        "figures": [plain(f) for f in by_id.values()],
        "findings": [plain(f) for f in findings],
        "refusals": [plain(r) for r in refusals],
    }
    counts = ", ".join(f"{len(items)} {kind}" for kind, items in content.items() if items)
    display({MIME: content, "text/plain": f"recorded {counts or 'nothing'}"}, raw=True)


def collect(notebooks: Iterable[tuple[str, nbformat.NotebookNode]]) -> Recorded:
    """Return what executed notebooks, given with their names, recorded."""
    recorded = Recorded()
    outputs = ((name, o) for name, notebook in notebooks for cell in notebook.cells for o in cell.get("outputs", []))
    for name, content in ((name, o["data"][MIME]) for name, o in outputs if MIME in o.get("data", {})):
        for figure in content["figures"]:
            recorded.figures.setdefault(figure["id"], {**figure, "notebook": name})
        present = {(f["rule"], f["title"]) for f in recorded.findings}
        new = [f for f in content["findings"] if (f["rule"], f["title"]) not in present]
        recorded.findings += [{**f, "notebook": name} for f in new]
        recorded.refusals += [r for r in content["refusals"] if r not in recorded.refusals]
    return recorded


def presentable(notebook: nbformat.NotebookNode, tables: Collection[str]) -> nbformat.NotebookNode:
    """Return the notebook as a reader wants it: without cells that only record, ``live``, or lack their tables."""
    shown: nbformat.NotebookNode = nbformat.from_dict(notebook)
    cells, silent = [], []
    for cell in shown.cells:
        tags = cell.metadata.get("tags", [])
        needs = [tag.removeprefix(NEEDS).split("|") for tag in tags if tag.startswith(NEEDS)]
        is_answered = all(set(names) & set(tables) for names in needs)
        if not is_answered or any(MIME in o.get("data", {}) for o in cell.get("outputs", [])):
            continue
        is_code, is_live = cell.cell_type == "code", LIVE in tags
        if is_code and (is_live or not cell.outputs):
            silent.append(cell.source)
        elif not is_live:
            if is_code:
                cell.source = "\n\n".join([*silent, cell.source])
                silent.clear()
            cells.append(cell)
    shown.cells = cells
    return shown
