"""A process that forks commands, for all tests of faults."""

from collections.abc import Iterator

import pytest
from faults.forking import Commands


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    made = Commands()
    yield made
    made.end()
