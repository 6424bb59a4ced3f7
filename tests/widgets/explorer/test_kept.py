"""Choices that outlive a notebook, and the program that draws the brush."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from explored import MS, run_of, tables

import perfkit
from perfkit.charts import overview
from perfkit.run import Run
from perfkit.widgets.explorer import Explorer, kept

CHOICE = {"ranks": [0], "gpus": [1], "window": [0, 50 * MS], "kernels": "gemm", "families": ["gemm"]}


def file_of(cache: Path) -> Path:
    """The one choice that is kept."""
    (file,) = (cache / "choices").iterdir()
    return file


def test_the_next_explorer_of_a_run_begins_with_the_last_choice(run: Run) -> None:
    """That of another notebook: the same file, loaded again."""
    Explorer(run).choose(**CHOICE)
    again = run_of(run.profiles[0].path, tables())
    assert CHOICE == Explorer(again).parameters


def test_a_choice_that_is_given_goes_before(run: Run) -> None:
    """Parameters of the notebook are not mixed with what was kept."""
    Explorer(run).choose(**CHOICE)
    live = Explorer(perfkit.select(run, gpus=[0]))
    assert CHOICE | {"ranks": [], "gpus": [0], "window": [], "kernels": "", "families": []} == live.parameters


def test_another_run_has_its_own(run: Run, tmp_path: Path) -> None:
    """A file of another path begins with everything."""
    Explorer(run).choose(**CHOICE)
    other = tmp_path / "other.sqlite"
    other.touch()
    assert () == Explorer(run_of(other, tables())).gpus


def test_a_choice_that_leaves_nothing_is_not_kept(run: Run) -> None:
    """The last that left something is."""
    live = Explorer(run)
    live.gpus = [1]
    live.kernels = "nothing"
    assert ((1,), "") == ((again := Explorer(run)).gpus, again.kernels)


def test_reset_is_kept(run: Run) -> None:
    """After it the next explorer begins with everything."""
    Explorer(run).choose(**CHOICE)
    Explorer(run).reset()
    assert () == Explorer(run).gpus


def test_nothing_is_kept_without_cache_or_file(run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PERFKIT_CACHE=off, or tables that lie in no file."""
    Explorer(run_of(cache / "absent", tables())).choose(**CHOICE)
    assert [] == [*cache.iterdir()]
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    Explorer(run).choose(**CHOICE)
    assert () == Explorer(run).gpus


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b"{}"),
        json.dumps(CHOICE | {"more": 1}).encode(),
        *(
            json.dumps(CHOICE | wrong).encode()
            for wrong in (
                *({"gpus": 1}, {"gpus": [True]}, {"gpus": ["1"]}, {"gpus": [7]}, {"gpus": [1e300]}, {"gpus": None}),
                *(
                    {"window": [1]},
                    {"window": [0, 10**400]},
                    {"window": [5, 1]},
                    {"kernels": 5},
                    {"kernels": "nothing"},
                ),
                *({"families": ["<script>"]}, {"families": [[]]}),
            )
        ),
    ],
)
def test_damaged_or_foreign_content_is_ignored(run: Run, cache: Path, content: bytes) -> None:
    """What does not fit the run is not taken up, in part or whole, and the next choice replaces it."""
    Explorer(run).choose(**CHOICE)
    file_of(cache).write_bytes(content)
    live = Explorer(run)
    assert ((), (), (), "", (), "") == (
        *(live.ranks, live.gpus, live.window, live.kernels, live.families),
        live.problem,
    )
    live.gpus = [1]
    assert (1,) == Explorer(run).gpus


def test_a_cache_that_cannot_be_written_is_no_error(run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where its folder should be, and a rename that fails and leaves nothing behind."""
    (cache / "choices").touch()
    Explorer(run).choose(**CHOICE)
    (cache / "choices").unlink()

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(kept.os, "replace", full)
    Explorer(run).choose(**CHOICE)
    assert [] == [*(cache / "choices").iterdir()]


def test_the_program_is_put_together_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process takes it from the cache; a file that was changed is not what it was."""
    monkeypatch.undo()
    monkeypatch.setenv("PERFKIT_CACHE", str(cache))
    given: list[str] = []
    monkeypatch.setattr(overview, "enable", lambda program="": given.append(program) or program or "draws")
    for _ in range(2):
        kept.enable_brush()
    (file,) = (cache / "charts").iterdir()
    file.write_text("steals")
    kept.enable_brush()
    assert ["", "draws", ""] == given
    assert "draws" == file.read_text()
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    kept.enable_brush()
    assert "" == given[-1]
