"""A run in a file, and a page that nobody draws."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from widgets.explored import run_of, tables

import perfkit
from perfkit.widgets import live, page


@pytest.fixture
def run(tmp_path: Path) -> perfkit.Run:
    path = tmp_path / "run.sqlite"
    path.touch()
    return run_of(path, tables())


@pytest.fixture
def page_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that nobody draws: the view below is text."""
    views = SimpleNamespace(
        __all__=["timeline"], timeline=lambda explorer: page.ipywidgets.HTML("the view")
    )
    monkeypatch.setattr(page.importlib, "import_module", lambda name: views)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"content": {"allow_stdin": True}}
    monkeypatch.setattr(live, "get_ipython", lambda: SimpleNamespace(get_parent=lambda: asked))
