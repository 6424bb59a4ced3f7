"""The page as PDF, printed by the browser of the system."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from perfkit.errors import PerfkitError
from perfkit.report.pages import BROWSERS, browser, printed

PAGE = "<!doctype html><title>Run</title><h1>Run</h1><script>document.body.append('drawn')</script>"


def test_a_browser_prints_the_page(tmp_path: Path) -> None:
    """The file is a PDF with a page, at the place that was asked for."""
    if not any(map(shutil.which, BROWSERS)) and os.environ.get("CI") != "true":
        pytest.skip("no browser on PATH")
    (tmp_path / "page.html").write_text(PAGE)
    made = printed(tmp_path / "page.html", tmp_path / "report.pdf").read_bytes()
    assert made.startswith(b"%PDF-")
    assert b"/Type /Page" in made or b"/Type/Page" in made


def test_no_browser_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without one on the PATH the message names those that were looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfkitError, match=r"pdf: no browser on the PATH \(chromium, .*Install Chromium"):
        browser()


def test_a_browser_that_prints_nothing_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it said last is told, and there is no file."""
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho 'cannot open display' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(PerfkitError, match="wrote no PDF and said: cannot open display"):
        printed(tmp_path / "page.html", tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
