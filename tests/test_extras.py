"""The package without its extras, and what the README says of the size of both."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import extras
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
# Imports every module of the package as if no extra were installed; prints the modules that fail.
IMPORTS = """
import importlib
import pkgutil
import sys

absent = sys.argv[1].split()
sys.modules.update(dict.fromkeys(absent))

import perfkit

for module in pkgutil.walk_packages(perfkit.__path__, "perfkit."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(module.name, error.name.partition(".")[0])
"""


def test_every_other_module_is_imported_without_extras() -> None:
    modules = " ".join(set(extras.REMEDIES) - set(extras.PROGRAMS))
    command = [sys.executable, "-W", "ignore", "-c", IMPORTS, modules]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    needed = ["perfkit.agents.server mcp", "perfkit.workloads.models torch"]
    assert needed == done.stdout.splitlines()


def packages(name: str, extra: str = "") -> set[str]:
    """Return the distributions that pip installs for a package, those of an extra among them; not the package itself.

    Raises PackageNotFoundError if one is not installed.
    """
    found: set[tuple[str, str]] = set()
    waiting = [(name, extra), (name, "")]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        waiting += _required(*one)
    return {each for each, _ in found} - {name}


def _required(name: str, extra: str) -> list[tuple[str, str]]:
    """Return the packages, with their extras, that one with this extra requires here."""
    lines = importlib.metadata.distribution(name).requires or []
    required = []
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            own = canonicalize_name(requirement.name)
            required += [(own, each) for each in ("", *requirement.extras)]
    return required


def megabytes(names: set[str]) -> float:
    """Return what pip writes for packages, MB; Python adds bytecode later."""
    files = [file for name in names for file in importlib.metadata.files(name) or []]
    return sum(file.size or 0 for file in files) / 1e6


@pytest.fixture
def sizes() -> str:
    """The README's paragraph on packages and megabytes."""
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("no README.md beside the tests")
    text = readme.read_text(encoding="utf-8")
    (line,) = re.findall(r"^It takes \d+ packages.*$", text, re.MULTILINE)
    return str(line)


def test_the_readme_counts_the_packages(sizes: str) -> None:
    """As they are here, within ten: later versions may need one more."""
    (count,) = re.findall(r"It takes (\d+) packages", sizes)
    assert int(count) == pytest.approx(len(packages("perfkit")), abs=10)


def test_the_readme_states_the_size(sizes: str) -> None:
    (size,) = re.findall(r"packages and (\d+) MB", sizes)
    assert int(size) == pytest.approx(megabytes(packages("perfkit")), rel=0.1)


@pytest.mark.parametrize("name", ["pyarrow", "numpy", "pandas", "jupyterlab", "babel"])
def test_the_readme_states_the_size_of_a_package(sizes: str, name: str) -> None:
    (size,) = re.findall(rf"\b{name} (\d+) MB", sizes)
    assert int(size) == pytest.approx(megabytes({name}), rel=0.2)


@pytest.mark.parametrize(
    ("extra", "module"),
    [("ncu", "ncu_report"), ("labs", "nbgrader"), ("mcp", "mcp"), ("torch", "torch")],
)
def test_the_readme_states_the_size_of_an_extra(sizes: str, extra: str, module: str) -> None:
    """In packages that perfkit alone does not install."""
    extras.require(module)
    if extra == "torch" and not importlib.metadata.version("torch").endswith("+cpu"):
        pytest.skip("the README states the size of PyTorch's build for CPUs")
    (size,) = re.findall(rf"`perfkit\[{extra}\]` adds (\d+) MB", sizes)
    added = packages("perfkit", extra) - packages("perfkit")
    assert int(size) == pytest.approx(megabytes(added), rel=0.25)
