"""Every notebook runs in JupyterLab in a browser as it is handed out."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser.lab import Page

import perfkit
from perfkit.report.lab import prepare
from perfkit.report.notebooks import NOTEBOOKS, answering, sample


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_runs_and_draws(page: Page, name: str, shots: Path | None) -> None:
    """All cells end without a traceback or a warning, and what is drawn is drawn on this machine alone."""
    if name not in answering(perfkit.load(sample())):
        pytest.skip("the sample run holds nothing that this notebook asks for")
    prepare(page.lab.folder, None)
    page.run(name)
    assert [] == page.errors()
    assert 0 < page.tab.locator(".jp-OutputArea-output table, .jp-OutputArea-output canvas").count()
    if shots:
        page.picture(shots / f"{name}.png")
