"""What the tests use where it is installed, and how to get it.

A test that needs an absent part is skipped. It fails where the variable PERFKIT_REQUIRE names the part: continuous
integration installs everything, and must not skip.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

import pytest

from perfkit.errors import ReadError

CAPTURES = "set PERFKIT_PROFILES to a folder of real captures"
# Each part with how to get it.
REMEDIES = {
    "chromium": "apt-get install chromium",
    "distributed": "pip install 'perfkit[dask]'",
    "mcp": "pip install 'perfkit[mcp]'",
    "nbgrader": "pip install 'perfkit[labs]'",
    "ncu_report": "pip install 'perfkit[ncu]'",
    "playwright": "pip install 'perfkit[test]'",
    "prometheus": "apt-get install prometheus",
    "torch": "pip install 'perfkit[torch]'",
}
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "prometheus": ("prometheus",),
}


def reason(name: str) -> str:
    """Return why a test without this part is skipped, and how to get the part."""
    return f"{name} is not installed ({REMEDIES[name]})"


def is_installed(module: str) -> bool:
    """Tell whether a module is installed; a folder that pip left of one that was is none."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def require(module: str) -> None:
    """Skip the test unless this module is installed."""
    if not is_installed(module):
        _absent(module)


def require_reader(*captures: str) -> None:
    """Skip the test unless these captures can be read here: NVIDIA's module reads `.ncu-rep`."""
    if any(capture.endswith(".ncu-rep") for capture in captures):
        require("ncu_report")


@contextmanager
def readable() -> Iterator[None]:
    """Skip the test where perfkit refuses a report because NVIDIA's module is absent."""
    try:
        yield
    except ReadError as error:
        if "ncu_report" not in str(error) or is_installed("ncu_report"):
            raise
        _absent("ncu_report")


def program(name: str) -> str:
    """Return the path of a program; without it the test is skipped."""
    paths = [shutil.which(each) for each in PROGRAMS[name]]
    installed = [path for path in paths if path]
    if not installed:
        _absent(name)
    return installed[0]


def _absent(name: str) -> NoReturn:
    if name in os.environ.get("PERFKIT_REQUIRE", "").split():
        pytest.fail(reason(name))
    pytest.skip(reason(name))
