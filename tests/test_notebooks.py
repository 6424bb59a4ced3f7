"""The form of the notebooks: what a reader, papermill and version control rely on."""

from __future__ import annotations

import re

import nbformat
import pytest

from perfkit.report.notebooks import NOTEBOOKS, folder

SHARED = {"profile", "baseline", "ranks", "gpus", "window", "kernels", "families", "peaks", "published", "out"}


@pytest.fixture(params=sorted(NOTEBOOKS))
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    """Each notebook as it is stored."""
    return nbformat.read(folder() / f"{request.param}.ipynb", as_version=4)


def test_every_stored_notebook_is_listed() -> None:
    """A notebook that is not in NOTEBOOKS would never be run."""
    stored = {path.stem for path in folder().glob("*.ipynb")}
    assert set(NOTEBOOKS) == stored


def test_outputs_are_stripped(notebook: nbformat.NotebookNode) -> None:
    """Outputs and execution counts change with every run and may hold private data."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [] == [cell.source for cell in code if cell.outputs or cell.execution_count]
    assert "papermill" not in notebook.metadata


def test_first_code_cell_is_typed_and_commented_parameters(notebook: nbformat.NotebookNode) -> None:
    """papermill shows type and comment of each parameter to whoever asks."""
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert ["parameters"] == first.metadata.get("tags")
    lines = [re.fullmatch(r"(\w+): (\w+) = .+  # .+", line) for line in first.source.split("\n")]
    assert all(lines)
    assert {match[1] for match in lines if match} <= SHARED


def test_cells_are_short_and_define_nothing(notebook: nbformat.NotebookNode) -> None:
    """Logic lives in tested functions: a cell has at most 12 lines, no def, no class, no loop."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [] == [source for source in code if len(source.splitlines()) > 12]
    assert [] == [source for source in code if re.search(r"^\s*(def|class|for|while|!|%) ?", source, re.M)]


def test_starts_with_a_title_and_records_last(notebook: nbformat.NotebookNode) -> None:
    """The title is the question; the last cell hands the figures to the report."""
    assert notebook.cells[0].source.startswith("# ")
    assert "report.record(" in notebook.cells[-1].source


def test_prose_precedes_code(notebook: nbformat.NotebookNode) -> None:
    """There are words to read for every two or three code cells."""
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds.count("code") <= 3 * kinds.count("markdown")


def test_prose_holds_no_figure_of_a_run(notebook: nbformat.NotebookNode) -> None:
    """Prose quotes thresholds, never measurements, which would be wrong for the next run."""
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert [] == re.findall(r"\d[\d,.]*\d+ ?(?:ms|µs|ns|launches|kernels)\b", prose)
