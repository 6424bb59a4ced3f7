"""What travels with the package, and what it and the README say of it, agree."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import perfkit
from perfkit.report.experiments import SAMPLES
from perfkit.report.notebooks import NOTEBOOKS

ROOT = Path(__file__).parents[1]
CFF = {
    "cff-version",
    "message",
    "title",
    "type",
    "authors",
    "version",
    "license",
    "abstract",
    "keywords",
}


@pytest.fixture
def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads(beside("pyproject.toml"))["project"]
    return content


def beside(name: str) -> str:
    """The text of a file of the checkout; it does not travel with the wheel."""
    if not (ROOT / name).exists():
        pytest.skip(f"no {name} beside the tests")
    return (ROOT / name).read_text(encoding="utf-8")


def test_licence_and_citation_agree(project: dict[str, Any]) -> None:
    # Type checkers read the annotations of a package only if it holds py.typed.
    assert (Path(perfkit.__file__).parent / "py.typed").is_file()
    citation = yaml.safe_load(beside("CITATION.cff"))
    assert "MIT" == project["license"] == citation["license"]
    assert beside("LICENSE").startswith("MIT License\n\nCopyright (c) 2026 the perfkit authors\n")
    assert set(citation) == CFF
    assert "1.2.0" == citation["cff-version"]
    assert str(citation["version"]) == project["version"]
    assert all("name" in author for author in citation["authors"])


def test_the_lowest_versions_are_those_that_ci_installs(project: dict[str, Any]) -> None:
    bounds = {
        name: spec.specifier
        for name, spec in ((r.name, r) for r in map(Requirement, project["dependencies"]))
    }
    pinned = [
        Requirement(line)
        for line in beside(".ci/lowest.txt").splitlines()
        if not line.startswith("#")
    ]
    assert list(bounds) == [requirement.name for requirement in pinned]
    for requirement in pinned:
        (pin,) = requirement.specifier
        (least,) = (each.version for each in bounds[requirement.name] if each.operator == ">=")
        assert "==" == pin.operator
        assert Version(least) == Version(pin.version), requirement.name
        assert pin.version in bounds[requirement.name]


def test_the_changelog_has_the_form_of_keep_a_changelog(project: dict[str, Any]) -> None:
    text = beside("CHANGELOG.md")
    versions = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert versions
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE))
    assert all(date or version == "Unreleased" for version, date in versions)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds
    assert project["version"] in text


def test_the_first_sample_of_the_start_page_is_measured() -> None:
    named = re.findall(r"`perfkit sample (\w+)`", beside("docs/start.md"))
    assert SAMPLES[named[0]].startswith("measured")


def test_the_readme_names_notebooks_and_two_install_commands() -> None:
    readme = beside("README.md")
    assert [] == [name for name in NOTEBOOKS if f"`{name}`" not in readme]
    # The continuous integration runs exactly these two lines.
    assert [line for line in readme.splitlines() if line.startswith("python -m pip install")] == [
        "python -m pip install -e . && perfkit report data/mlp_a100 --out report",
        'python -m pip install -e ".[test]" && python -m pytest -n 2 --dist loadfile --no-loadscope-reorder',
    ]
