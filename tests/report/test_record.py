"""Which cells of an executed notebook a reader gets to see."""

from __future__ import annotations

import json
import math
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from perfkit.diagnosis import Figure
from perfkit.report.notebooks import MIME, record
from perfkit.report.pages import presentable


def notebook(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook of these cells."""
    return new_notebook(cells=list(cells))


def shown(text: str, *tags: str) -> nbformat.NotebookNode:
    """A code cell that shows something, with tags."""
    output = new_output("display_data", data={"text/plain": text})
    return new_code_cell(text, outputs=[output], metadata={"tags": list(tags)})


def sources(made: nbformat.NotebookNode) -> list[str]:
    """The cells' text."""
    return [cell.source for cell in made.cells]


def test_cells_without_their_tables_are_left_out() -> None:
    """Prose and pictures of a timeline say nothing of a run that has counters only."""
    made = notebook(
        new_markdown_cell("any"), shown("a", "needs:KERNELS|COPIES"), shown("b", "needs:LAUNCHES"), shown("c")
    )
    assert ["any", "b", "c"] == sources(presentable(made, {"LAUNCHES"}))
    assert ["any", "a", "c"] == sources(presentable(made, {"COPIES"}))


def test_recording_is_not_shown_and_silent_code_is_put_to_the_next() -> None:
    """The reader of a page sees results; the code that led there stands with them."""
    record = new_code_cell("record()", outputs=[new_output("display_data", data={MIME: {}})])
    made = notebook(new_code_cell("x = 1"), shown("x"), record)
    assert ["x = 1\n\nx"] == sources(presentable(made, ()))


def test_what_a_person_uses_is_not_on_the_page() -> None:
    """The explorer and the prose about it are left out; the names that its code sets are seen where they are used."""
    about = new_markdown_cell("choose", metadata={"tags": ["live"]})
    made = notebook(about, shown("seen = explorer(view)", "live"), new_markdown_cell("look"), shown("timeline(seen)"))
    assert ["look", "seen = explorer(view)\n\ntimeline(seen)"] == sources(presentable(made, ()))


def test_what_has_no_end_is_null_in_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterLab writes no infinity: a gain without an upper end is null, as the schema of summary.json says."""
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    record(
        [Figure("idle", "Idle", math.nan, "1", "share", "KERNELS")], summary={"gains": [{"high": math.inf, "low": 1.0}]}
    )
    (content,) = (data[MIME] for data in shown)
    assert (None, {"high": None, "low": 1.0}) == (content["figures"][0]["value"], content["summary"]["gains"][0])
    json.dumps(content, allow_nan=False)
