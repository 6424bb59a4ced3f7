"""A working copy of the notebooks for JupyterLab: the user's own, never overwritten."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from perfkit.report.notebooks import NOTEBOOKS, START, folder, sample


def prepare(target: Path, profile: Path | None) -> list[Path]:
    """Copy the notebooks to `target`, with `profile` (or the sample run) set in those that are copied now.

    Notebooks that are there already hold a person's work and are left as they are.
    """
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for name in (START, *NOTEBOOKS):
        copy = target / f"{name}.ipynb"
        if copy.exists():
            continue
        notebook = nbformat.read(folder() / copy.name, as_version=4)
        _set_profile(notebook, (profile or sample()).absolute())
        nbformat.write(notebook, copy)
        made.append(copy)
    return made


def _set_profile(notebook: nbformat.NotebookNode, profile: Path) -> None:
    """Write the path into the `profile` line of the parameters cell, keeping its comment."""
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    lines = cell.source.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("profile:"):
            lines[number] = f"profile: str = {str(profile)!r}  #{line.partition('#')[2]}"
    cell.source = "\n".join(lines)


def command(target: Path, options: Sequence[str]) -> int:
    """Run JupyterLab with these options on `target` until it is closed and return its exit status.

    It opens the page that leads through the notebooks.
    """
    first = f"--LabApp.default_url=/lab/tree/{START}.ipynb"
    return subprocess.run([sys.executable, "-m", "jupyterlab", first, *options, str(target)], check=False).returncode
