"""A JupyterLab and a browser for tests of what a person sees and does."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import extras
import pytest
from browser.lab import Lab, Page

SIZE = {"width": 1400, "height": 1000}
sync_api = pytest.importorskip("playwright.sync_api", reason=extras.reason("playwright"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A session of the system's Chromium; nothing is downloaded.

    It ends with its module: as long as it is there, an event loop runs, which tests of other folders would meet.
    """
    found = extras.program("chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser.new_context(viewport=SIZE)  # its pages compile JupyterLab once
        browser.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab server of its own: no settings, workspaces or kernels of the user."""
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def loaded(chromium: Any, lab: Lab) -> Iterator[Page]:
    """JupyterLab, in which the tests of a module open one notebook after the other."""
    opened = Page(chromium.new_page(), lab)
    yield opened
    opened.close()


@pytest.fixture
def page(loaded: Page) -> Iterator[Page]:
    """A page that must end without a word on its console, and without a request to another machine."""
    loaded.tab.set_viewport_size(SIZE)
    yield loaded
    loaded.leave()
    said = [*loaded.console], [*loaded.foreign]
    loaded.console.clear()
    loaded.foreign.clear()
    assert ([], []) == said


@pytest.fixture
def shots() -> Path | None:
    folder = os.environ.get("PERFKIT_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) if folder else None
