"""What the tests of the labs share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all labs: the runs of lab 4 are simulated into it, which takes as long as all its cells."""
    return tmp_path_factory.mktemp("labs")


@pytest.fixture(autouse=True)
def cache(made_once: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFKIT_CACHE", str(made_once))
    return made_once
