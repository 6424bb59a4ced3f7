"""The last choice, which outlives a notebook, and the program that draws the brush: of one user alone."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explored import MS, run_of, tables

import perfkit
from perfkit.charts import timeline
from perfkit.run import Run
from perfkit.widgets import choice
from perfkit.widgets.choice import Explorer

CHOICE = {"ranks": [0], "gpus": [1], "window": [0, 50 * MS], "kernels": "gemm", "families": ["gemm"]}
ALL = {"ranks": [], "gpus": [], "window": [], "kernels": "", "families": []}
posix = pytest.mark.skipif(sys.platform == "win32", reason="files have no such owner and mode")


def file_of(cache: Path) -> Path:
    """The one choice that is stored."""
    (file,) = cache.glob("user-*/choices/*")
    return file


def test_the_next_explorer_of_a_run_offers_the_last_choice(run: Run) -> None:
    """That of another notebook: the same file, loaded again. It is not taken: the parameters hold."""
    Explorer(run).choose(**CHOICE)
    again = Explorer(run_of(run.profiles[0].path, tables()))
    assert (CHOICE, ALL) == (again.last, again.parameters)


def test_a_choice_that_is_given_holds(run: Run) -> None:
    """Parameters of the notebook are not mixed with what was stored."""
    Explorer(run).choose(**CHOICE)
    live = Explorer(perfkit.select(run, gpus=[0]))
    assert (CHOICE, ALL | {"gpus": [0]}) == (live.last, live.parameters)


def test_to_begin_is_no_choice(run: Run) -> None:
    """A notebook that is opened with other parameters does not replace what a person chose."""
    Explorer(run).choose(**CHOICE)
    Explorer(perfkit.select(run, gpus=[0]))
    assert CHOICE == Explorer(run).last


def test_what_is_given_is_not_offered(run: Run) -> None:
    """The last choice is the present one, or none was ever made."""
    assert {} == Explorer(perfkit.select(run, gpus=[0])).last
    Explorer(run).choose(**CHOICE)
    assert {} == Explorer(perfkit.select(run, **CHOICE)).last


def test_another_run_has_its_own(run: Run, tmp_path: Path) -> None:
    """A file of another path has no last choice."""
    Explorer(run).choose(**CHOICE)
    other = tmp_path / "other.sqlite"
    other.touch()
    assert {} == Explorer(run_of(other, tables())).last


def test_a_choice_that_leaves_nothing_is_not_stored(run: Run) -> None:
    """The last that left something is."""
    live = Explorer(run)
    live.gpus = [1]
    live.kernels = "nothing"
    assert ALL | {"gpus": [1]} == Explorer(run).last


def test_reset_is_a_choice(run: Run) -> None:
    """After it everything is the last choice: offered where the parameters say less, and else what is given."""
    live = Explorer(run)
    live.choose(**CHOICE)
    live.reset()
    assert ({}, ALL) == (Explorer(run).last, Explorer(perfkit.select(run, gpus=[0])).last)


def test_nothing_is_stored_without_cache_or_file(run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PERFKIT_CACHE=off, or tables that lie in no file."""
    Explorer(run_of(cache / "absent", tables())).choose(**CHOICE)
    assert [] == [*cache.iterdir()]
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    Explorer(run).choose(**CHOICE)
    assert {} == Explorer(run).last


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
    """What does not fit the run is not offered, in part or whole, and the next choice replaces it."""
    Explorer(run).choose(**CHOICE)
    file_of(cache).write_bytes(content)
    live = Explorer(run)
    assert ({}, ALL, "") == (live.last, live.parameters, live.problem)
    live.gpus = [1]
    assert [1] == Explorer(run).last["gpus"]


def test_a_cache_that_cannot_be_written_is_no_error(run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where its folder should be, and a rename that fails and leaves nothing behind."""
    Explorer(run).choose(**CHOICE)
    folder = file_of(cache).parent
    file_of(cache).unlink()
    folder.rmdir()
    folder.touch()
    Explorer(run).choose(**CHOICE)
    folder.unlink()

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(choice.os, "replace", full)
    Explorer(run).choose(**CHOICE)
    assert [] == [*folder.iterdir()]


@posix
def test_others_cannot_read_what_is_stored(run: Run, cache: Path) -> None:
    """Whatever the umask: the folder of the user is closed, and so is the file."""
    before = os.umask(0)
    try:
        Explorer(run).choose(**CHOICE)
    finally:
        os.umask(before)
    file = file_of(cache)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parents[1])]
    assert [0o600, 0o700, 0o700] == modes


def of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the path belong to another user, as far as anyone can tell who asks the system."""
    inode, asked, opened = path.stat().st_ino, os.lstat, os.fstat

    def with_owner(found: os.stat_result) -> os.stat_result:
        return os.stat_result((*found[:4], os.getuid() + 1, *found[5:10])) if found.st_ino == inode else found

    monkeypatch.setattr(choice.os, "fstat", lambda descriptor: with_owner(opened(descriptor)))
    monkeypatch.setattr(choice.Path, "lstat", lambda of: with_owner(asked(of)))


def writable(path: Path, _: pytest.MonkeyPatch) -> None:
    """Let everyone write the path."""
    path.chmod(path.stat().st_mode | 0o002)


def linked(path: Path, _: pytest.MonkeyPatch) -> None:
    """Let the path be a link to what it was."""
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def piped(path: Path, _: pytest.MonkeyPatch) -> None:
    """Let the path be a pipe in which nobody writes."""
    path.unlink() if path.is_file() else path.rename(path.with_name("elsewhere"))
    os.mkfifo(path)


PLANTS = [of_another, writable, linked, piped]


@posix
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_choice_of_another_user_is_not_read(
    run: Run,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path, pytest.MonkeyPatch], None],
    is_folder: bool,
) -> None:
    """Nor one that another may have written, be it the file or the folder of the user, and nobody waits for a pipe."""
    Explorer(run).choose(**CHOICE)
    plant(file_of(cache).parents[1] if is_folder else file_of(cache), monkeypatch)
    assert {} == Explorer(run).last


@posix
def test_users_do_not_meet_in_a_shared_cache(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the last choice that was made by that user."""
    Explorer(run).choose(**CHOICE)
    monkeypatch.setattr(choice.os, "getuid", lambda: 4711)
    assert {} == Explorer(run).last


@pytest.fixture
def programs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs with which charts are drawn from now on; an empty one is put together first."""
    monkeypatch.undo()
    monkeypatch.setenv("PERFKIT_CACHE", str(cache))
    given: list[str] = []
    monkeypatch.setattr(timeline, "enable", lambda program="": given.append(program) or program or "draws")
    return given


def test_the_program_is_put_together_once(programs: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process takes it from the cache; a file that was changed is not what it was."""
    for _ in range(2):
        choice.enable_brush()
    (file,) = cache.glob("user-*/charts/*")
    file.write_text("steals")
    choice.enable_brush()
    assert ["", "draws", ""] == programs
    assert "draws" == file.read_text()
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    choice.enable_brush()
    assert "" == programs[-1]


@posix
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("is_folder", [False, True])
def test_the_program_of_another_user_is_not_run(
    programs: list[str],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path, pytest.MonkeyPatch], None],
    is_folder: bool,
) -> None:
    """Its name fits its content, yet whoever can write there chooses both."""
    choice.enable_brush()
    (file,) = cache.glob("user-*/charts/*")
    plant(file.parents[1] if is_folder else file, monkeypatch)
    choice.enable_brush()
    assert ["", ""] == programs
