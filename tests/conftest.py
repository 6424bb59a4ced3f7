"""Fixtures shared by all tests."""

import gc
import importlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import extras
import pytest

CACHES = count()


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and items that stay to the end: a look at all of them takes 0.2 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixture reads what no installed module can read."""
    with extras.readable():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that reads what no installed module can read."""
    with extras.readable():
        return (yield)


@pytest.fixture(scope="session")
def profiles() -> Path:
    """The folder of real captures, named by PERFKIT_PROFILES."""
    folder = os.environ.get("PERFKIT_PROFILES")
    if not folder:
        pytest.skip(extras.CAPTURES)
    path = Path(folder)
    assert path.is_dir(), f"PERFKIT_PROFILES={folder}: not a folder"
    return path


@pytest.fixture(scope="session")
def commands() -> Any:
    """A process that forks commands."""
    from faults.forking import Commands

    made = Commands()
    yield made
    made.end()


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch."""
    extras.require("torch")
    return importlib.import_module("torch")


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a report's notebooks run in the test's own process: kernels take most of the time of a report."""
    from cells import Session

    monkeypatch.setattr("perfkit.report.notebooks.Session", Session)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, so that none sees another's files."""
    folder = (
        tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES))
    )  # mktemp reads all names there are
    folder.mkdir(parents=True)
    monkeypatch.setenv("PERFKIT_CACHE", str(folder))
    return folder
