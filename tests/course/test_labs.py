"""Every lab, graded in the sandbox: who solved it earns all points of its tests, and who did not earns none."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from labs.submissions import NOTEBOOKS, constants, patched, points, read, released

from perfkit.course import grading, sandbox

Written = Callable[[nbformat.NotebookNode], nbformat.NotebookNode]


def earned(name: str, written: Written, tool: str, folder: Path) -> float:
    """The points of a student's tests."""
    own = folder / "in" / "ada"
    own.mkdir(parents=True)
    nbformat.write(written(read(name)), own / f"{name}.ipynb")
    labs = {name: NOTEBOOKS[name]}
    given = grading.submissions(folder / "in", labs, folder, tool, "", sandbox.Limits())
    return sum(grade.points or 0 for grade in grading.graded(given[0]).grades)


LATER = [pytest.param(name, marks=pytest.mark.matrix) for name in NOTEBOOKS if "lab1" not in name]


@pytest.mark.parametrize("name", ["lab1_the_gpu", *LATER])
def test_the_instructors_version_earns_all_points(name: str, tool: str, tmp_path: Path) -> None:
    most = sum(points(read(name)).values())
    assert most == earned(name, lambda notebook: notebook, tool, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.parametrize("written", [released, constants, patched])
def test_who_solved_nothing_earns_nothing(
    name: str, written: Written, tool: str, tmp_path: Path
) -> None:
    assert 0 == earned(name, written, tool, tmp_path)
