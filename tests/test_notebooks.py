"""The form of the notebooks: what a reader, papermill and version control rely on."""

import ast
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from perfkit.profile import Missing, Profile
from perfkit.report import lab
from perfkit.report.notebooks import NOTEBOOKS, START, folder, sample
from perfkit.run import Run, load

SHARED = {
    "profile",
    "baseline",
    "ranks",
    "gpus",
    "window",
    "kernels",
    "families",
    "peaks",
    "published",
    "job",
    "out",
}


@pytest.fixture(params=sorted([START, *NOTEBOOKS]))
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    """Each notebook as it is stored."""
    return nbformat.read(folder() / f"{request.param}.ipynb", as_version=4)


def test_every_stored_notebook_is_listed() -> None:
    stored = {path.stem for path in folder().glob("*.ipynb")}
    assert {START, *NOTEBOOKS} == stored
    for name in NOTEBOOKS:
        last = nbformat.read(folder() / f"{name}.ipynb", as_version=4).cells[-1]
        assert "report.record(" in last.source, "the last cell hands the figures to the report"


def test_the_form_of_a_notebook(notebook: nbformat.NotebookNode) -> None:
    assert notebook.cells[0].source.startswith("# "), "the title is the question"
    # Outputs and execution counts change with every run and may hold private data.
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [] == [cell.source for cell in code if cell.outputs or cell.execution_count]
    assert "papermill" not in notebook.metadata
    # papermill shows type and comment of each parameter to whoever asks.
    assert ["parameters"] == code[0].metadata.get("tags")
    lines = [re.fullmatch(r"(\w+): (\w+) = .+  # .+", line) for line in code[0].source.split("\n")]
    assert all(lines)
    assert {match[1] for match in lines if match} <= SHARED
    # Logic lives in tested functions.
    assert [] == [cell.source for cell in code if len(cell.source.splitlines()) > 12]
    assert [] == [
        cell.source
        for cell in code
        if re.search(r"^\s*(def|class|for|while|!|%) ?", cell.source, re.M)
    ]
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert len(code) <= 3 * len(prose)
    # Prose quotes thresholds, never measurements, which would be wrong for the next run.
    assert [] == re.findall(r"\d[\d,.]*\d+ ?(?:ms|µs|ns|launches|kernels)\b", " ".join(prose))


def test_what_follows_the_explorer_is_a_function_of_the_package(
    notebook: nbformat.NotebookNode,
) -> None:
    # A function that a cell makes reads names of other cells, which may stand for something else by then.
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    nodes = [node for source in code for node in ast.walk(ast.parse(source))]
    assert not any(isinstance(node, ast.Lambda) for node in nodes)


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name != "0_executive_summary"])
def test_one_view_a_cell_shows_what_the_explorer_chose(name: str) -> None:
    code = [cell.source for cell in nbformat.read(folder() / f"{name}.ipynb", as_version=4).cells]
    made = re.compile(r"seen = widgets\.explorer\(view, show=\"(\w*)\"(.*)\)")
    below, given = zip(*(found for source in code for found in made.findall(source)), strict=True)
    views = [source for source in code if re.match(r"(?:widgets\.)?views\.", source)]
    shown = [
        re.fullmatch(r"(?:widgets\.)?views\.(\w+)\(seen\b.*?(?:part=\"(\w+)\".*)?\)", source)
        for source in views
    ]
    assert all(shown)
    every = [match.groups() for match in shown if match]
    assert every
    assert len(every) == len({*every})
    assert below[0] not in {view for view, _ in every}
    assert 1 == len(below)
    files = [file for file in ("baseline", "peaks") if f"\n{file}: str" in code[1]]
    assert "".join(f", {file}={file}" for file in files) == given[0]  # copied, and reported with


def test_start_leads_to_every_notebook() -> None:
    made = lab.analysis_steps(load(sample()))
    assert [f"{name}.ipynb" for name in NOTEBOOKS] == re.findall(r'<a href="([^"]+)">', made.html)
    answers = dict(zip(NOTEBOOKS, made.text.splitlines(), strict=True))
    assert answers["3_system"].endswith("?: yes")
    assert "not yet; what it takes: `hpcrun" in answers["3_call_paths"]
    lacking = Profile(
        "nsys",
        Path("p"),
        pd.DataFrame(),
        {},
        missing=(Missing("LAUNCHES", "counters", "<b>ncu</b>"),),
    )
    assert "<code>&lt;b&gt;ncu&lt;/b&gt;</code>" in lab.analysis_steps(Run([lacking])).html
