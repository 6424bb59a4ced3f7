"""A report that is there, and a run to report on."""

from pathlib import Path

import pytest
from faults.folders import make

from make import Shape, capture


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A report of a first run."""
    make(tmp_path / "report", "first")
    return tmp_path / "report"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "run.sqlite"
    path.parent.mkdir()
    capture(path, kernels=40, shape=Shape(metrics=False))
    return path
