"""The cells of the notebooks that show what lies behind a figure.

Conventions
-----------
A cell shows a figure that its code names in a table of figures, else one whose analysis it calls (`behind`). Step
notebooks alone are asked: the summary leads to them. No cell needs a mark of its own.

Functions
---------
cells       the cells that may show something
stored      those of the notebooks as they are stored
presented   those of executed notebooks that a page shows
place       the cell that shows a figure
href        where a cell is, seen from a notebook beside it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import nbformat

from perfkit.report import notebooks
from perfkit.report.behind import behind
from perfkit.report.record import LIVE

SUMMARY = "0_executive_summary"
FIGURES = "figure_table("


class Cell(NamedTuple):
    """A cell of code: the name of its notebook, its id and its code."""

    notebook: str
    id: str
    code: str

    @property
    def anchor(self) -> str:
        """The cell's name on the report's page."""
        return f"{self.notebook}-{self.id}"


def cells(found: Iterable[tuple[str, nbformat.NotebookNode]]) -> list[Cell]:
    """Return the cells of code of step notebooks, given with their names, that are not for the explorer."""
    return [
        Cell(name, cell.id, cell.source)
        for name, notebook in found
        for cell in notebook.cells
        if name != SUMMARY and cell.cell_type == "code" and LIVE not in cell.metadata.get("tags", [])
    ]


@cache
def stored() -> tuple[Cell, ...]:
    """Return the cells of the notebooks as they are stored; copies for a person keep their ids."""
    paths = ((name, notebooks.folder() / f"{name}.ipynb") for name in notebooks.NOTEBOOKS)
    return tuple(cells((name, nbformat.read(path, as_version=4)) for name, path in paths if path.is_file()))


def presented(executed: Mapping[str, nbformat.NotebookNode], kept: Mapping[str, nbformat.NotebookNode]) -> list[Cell]:
    """Return the cells of executed notebooks that are kept for the page, with their own code."""
    ids = {(name, cell.id) for name, notebook in kept.items() for cell in notebook.cells}
    return [cell for cell in cells(executed.items()) if (cell.notebook, cell.id) in ids]


def place(figure: str, source: str, among: Sequence[Cell]) -> Cell | None:
    """Return the cell that shows a figure of this id and source, or None where no cell does.

    Examples
    --------
    >>> place("idle_frac", "KERNELS, COPIES; timeline.breakdown", stored()).notebook
    '3_system'
    """
    named = (cell for cell in among if FIGURES in cell.code and f'"{figure}"' in cell.code)
    calling = (cell for piece in behind(figure, source).code for cell in among if piece in cell.code)
    return next(named, None) or next(calling, None)


def href(cell: Cell) -> str:
    """Return the link that JupyterLab follows from a notebook to a cell of one beside it."""
    return f"{cell.notebook}.ipynb#cell-id={cell.id}"
