"""The timeline of a run whose tables take seconds to read: bars first, what is known of them later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event
from typing import Any

import altair as alt
import pandas as pd
import pytest
from explored import run_of
from zoomed import Chooser, gesture, rows, table

import perfkit
from perfkit.charts.detail import CLICKED
from perfkit.errors import PerfkitError
from perfkit.widgets import timeline
from perfkit.widgets.timeline import zoomable


@pytest.fixture(autouse=True)
def no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser's part of the picture takes seconds to put together, and nobody looks."""
    monkeypatch.setattr(alt.JupyterChart, "enable_offline", lambda: None)


def test_a_large_run_is_drawn_before_its_calls_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars at once, and a click is answered once the calls are there: then the bars have them too."""
    monkeypatch.setattr(timeline, "MANY", 0)
    read = Event()
    found = run_of(tmp_path, table())
    whole = type(found).table
    monkeypatch.setattr(
        type(found), "table", lambda run, name: (name != "API_CALLS" or read.wait(60)) and whole(run, name)
    )

    async def looked() -> list[Any]:
        view = zoomable(Chooser(found))
        first = [{row["call"] for row in rows(view, "operations")}, view.picture.spec["title"]["subtitle"][0]]
        gesture(view, CLICKED, "1")
        first.append(view.known.value)
        read.set()
        for _ in range(600):
            if "This launch" in view.known.value:
                break
            await asyncio.sleep(0.1)
        return [*first, {row["call"] for row in rows(view, "operations")}, view.known.value]

    before, said, waiting, after, card = asyncio.run(looked())
    assert ({None}, "The calls that launched these operations are still being read.") == (before, said)
    assert "still being read" in waiting
    assert {"cudaLaunchKernel", None} == after
    assert "cudaLaunchKernel" in card


def test_calls_that_cannot_be_read_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars are there without them."""
    found = run_of(tmp_path, table())
    whole = type(found).table

    def refused(run: perfkit.Run, name: str) -> pd.DataFrame:
        if name == "API_CALLS":
            raise PerfkitError("a.sqlite: cut off. Copy it again.")
        return whole(run, name)

    monkeypatch.setattr(type(found), "table", refused)
    view = zoomable(Chooser(found))
    assert 4 == len(rows(view, "operations"))
    assert "a.sqlite: cut off. Copy it again." in view.picture.spec["title"]["subtitle"]
    gesture(view, CLICKED, "-1")
    assert "This copy" in view.known.value
