"""A class without a network installs perfkit from one folder."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from labs.submissions import NOTEBOOKS

from perfkit.course import bundle
from perfkit.errors import PerfkitError


def pip(status: int, words: str = "") -> object:
    """Stand for pip, which needs a network."""
    return lambda *args, **named: SimpleNamespace(returncode=status, stderr=words)


def test_a_bundle_holds_the_students_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip(0))
    bundle.write(tmp_path / "out")
    assert {*NOTEBOOKS} == {path.stem for path in (tmp_path / "out" / "labs").iterdir()}


def test_a_bundle_without_its_wheels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip(1, "ERROR: no network"))
    with pytest.raises(PerfkitError, match="no network"):
        bundle.write(tmp_path / "out")
