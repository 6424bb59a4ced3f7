"""The sandbox that works on this machine."""

import pytest

from perfkit.course import sandbox
from perfkit.errors import PerfkitError


@pytest.fixture(scope="session")
def tool() -> str:
    try:
        return sandbox.tool()
    except PerfkitError as e:
        pytest.skip(str(e))
