"""The truths of the committed samples, and databases that are closed after a test."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="session")
def truth_of() -> Callable[[str], dict[str, Any]]:
    return lambda name: json.loads((DATA / name / f"{name}.truth.json").read_text())


@pytest.fixture
def connect() -> Iterator[Callable[[Path], sqlite3.Connection]]:
    """Open files read-only and close them after the test."""
    opened = []

    def open_file(path: Path) -> sqlite3.Connection:
        opened.append(sqlite3.connect(f"file:{path}?mode=ro", uri=True))
        return opened[-1]

    yield open_file
    for connection in opened:
        connection.close()
