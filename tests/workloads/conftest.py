"""PyTorch as the workloads' tests use it."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def torch(torch: Any) -> Iterator[Any]:
    """PyTorch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of one process and, where it starts others, of one thread each: two that wait for work take both cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
