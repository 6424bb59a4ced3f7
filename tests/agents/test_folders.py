"""Which runs an agent may name; the server's own tests ask through its client, which is an extra."""

from pathlib import Path

import pytest

from make import capture
from perfkit.agents import folders, serve
from perfkit.agents.folders import Folders
from perfkit.errors import PerfkitError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two ranks, and one of a single file."""
    folder = tmp_path_factory.mktemp("given") / "runs"
    for name in ("ranks/rank0", "ranks/rank1", "single"):
        (folder / name).mkdir(parents=True)
        capture(folder / name / "run.sqlite", kernels=10, seed=len(name))
    return folder


def test_ranks_in_folders_are_one_run(runs: Path) -> None:
    listed = Folders([runs]).runs("")
    assert ["runs/ranks", "runs/single"] == sorted(listed)
    assert ["runs/ranks/rank0/run.sqlite", "runs/ranks/rank1/run.sqlite"] == listed["runs/ranks"]


def test_a_run_is_found_by_its_name(runs: Path) -> None:
    assert runs.resolve() / "single" == Folders([runs]).find("runs/single")


def test_a_folder_is_not_told_by_where_it_lies(runs: Path) -> None:
    assert "in runs/single." == Folders([runs]).shown(f"in {runs.resolve()}/single.")


def test_two_folders_of_one_name_are_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(PerfkitError, match="another folder is called 'runs' too"):
        Folders([runs, tmp_path / "runs"])


def test_a_link_out_of_the_folder_names_no_run(runs: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "out").symlink_to(runs / "single")
    with pytest.raises(PerfkitError, match="no run of this name"):
        Folders([inner]).find("inner/out")


def test_a_link_within_the_folders_is_followed(runs: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "in").symlink_to(runs / "single")
    given = Folders([inner, runs])
    assert runs.resolve() / "single" == given.find("inner/in")


def test_a_folder_of_too_many_files_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST_FILES", 1)
    given = Folders([runs])
    with pytest.raises(PerfkitError, match=r"more than 1 files\. Name a folder in it"):
        given.stamps(given.find("runs/ranks"))


def test_without_the_extra_it_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.agents.find_spec", lambda name: None)
    with pytest.raises(PerfkitError, match=r"^mcp: .*Install perfkit\[mcp\]\.$"):
        serve([runs])
