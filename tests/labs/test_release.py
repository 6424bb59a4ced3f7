"""The students' versions are what nbgrader would release, so that its other tools work on them."""

import extras
import nbformat
import pytest
from labs.submissions import NOTEBOOKS, read, released


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nbgrader_releases_what_perfkit_hands_out(name: str) -> None:
    extras.require("nbgrader")
    from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions

    made: nbformat.NotebookNode = read(name)
    for preprocessor in (ClearSolutions, ClearHiddenTests):
        made, _ = preprocessor().preprocess(made, {"language": "python"})
    assert [cell.source for cell in released(read(name)).cells] == [
        cell.source for cell in made.cells
    ]
