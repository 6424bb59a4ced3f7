"""The notebooks: where they lie, which of them a run can answer, and how to run them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat

from perfkit.errors import PerfkitError
from perfkit.run import Run

BASELINE = "baseline"
# Notebook, and the tables or readers of which at least one must have found something for it to have an answer;
# BASELINE where an earlier run must have been given.
NOTEBOOKS: dict[str, tuple[str, ...]] = {
    "0_executive_summary": (),
    "1_baseline": ("nccl", "deepspeed"),
    "2_monitoring": ("nvidia_smi", "rocm_smi", "dcgm"),
    "3_system": ("KERNELS", "COPIES", "API_CALLS", "RANGES", "nsys"),
    "3_call_paths": ("CALLTREE",),
    "4_kernels": ("LAUNCHES",),
    "5_framework": ("OPS",),
    "6_compare": (BASELINE,),
}

START = "start"  # leads to the others; a page for a person, no part of a report
QUIET = ["--IPKernelApp.log_level=50"]  # a kernel's remarks on its own transport are no part of a report


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
    """Return the names of the tables that the profiles of a run hold, and of the readers that found them."""
    return {name for profile in run.profiles for name in (profile.reader, *profile.loaders)}


def answering(run: Run, baseline: Run | None = None) -> list[str]:
    """Return the names of the notebooks that have something to say about this run, or this and an earlier one."""
    tables = recorded(run) | ({BASELINE} if baseline is not None else set())
    return [name for name, needs in NOTEBOOKS.items() if not needs or tables & set(needs)]


def title(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook's first heading, which is the question it answers."""
    return str(notebook.cells[0].source).partition("\n")[0].removeprefix("# ")


def _accepted(notebook: Path) -> set[str]:
    """Return the names in a notebook's parameters cell."""
    cells = nbformat.read(notebook, as_version=4).cells
    sources = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    return {line.partition(":")[0] for source in sources for line in source.split("\n")}


def execute(
    names: list[str], parameters: dict[str, Any], out: Path, *, done: Callable[[str], None]
) -> dict[str, nbformat.NotebookNode]:
    """Run notebooks with these parameters, several at a time, and write them to `out`.

    Parameters
    ----------
    names
        Notebooks of `NOTEBOOKS`.
    parameters
        Values for their parameters cell; a notebook gets those it has.
    out
        Folder for the executed notebooks.
    done
        Called with each notebook's name as it ends.

    Raises
    ------
    PerfkitError
        If a notebook fails; the message holds its own error.
    """
    import papermill

    def one(name: str) -> nbformat.NotebookNode:
        stored = folder() / f"{name}.ipynb"
        try:
            executed: nbformat.NotebookNode = papermill.execute_notebook(
                stored,
                out / f"{name}.ipynb",
                {name: value for name, value in parameters.items() if name in _accepted(stored)},
                progress_bar=False,
                cwd=os.getcwd(),
                extra_arguments=QUIET,
            )
            return executed
        except papermill.PapermillExecutionError as e:
            raise PerfkitError(f"notebook {name}: {e.ename}: {e.evalue}") from e
        finally:
            done(name)

    with warnings.catch_warnings(), ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        warnings.filterwarnings("ignore", category=UserWarning, module="papermill")
        return dict(zip(names, pool.map(one, names), strict=True))
