"""What travels with the package, and what it and the README say of it, agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench import table
from packaging.requirements import Requirement
from packaging.version import Version

import perfkit
from perfkit.report.notebooks import NOTEBOOKS
from perfkit.tables import TABLES

ROOT = Path(__file__).parents[1]
CFF = {"cff-version", "message", "title", "type", "authors", "version", "license", "abstract", "keywords"}


@pytest.fixture
def project() -> dict[str, Any]:
    """The metadata in pyproject.toml."""
    content: dict[str, Any] = tomllib.loads(beside("pyproject.toml"))["project"]
    return content


def beside(name: str) -> str:
    """The text of a file of the checkout; it does not travel with the wheel."""
    if not (ROOT / name).exists():
        pytest.skip(f"no {name} beside the tests")
    return (ROOT / name).read_text(encoding="utf-8")


def test_type_information_is_for_users_too() -> None:
    """Type checkers read the annotations of a package only if it holds py.typed."""
    assert (Path(perfkit.__file__).parent / "py.typed").is_file()


def test_the_licence_is_one(project: dict[str, Any]) -> None:
    """LICENSE, pyproject.toml and CITATION.cff name the same licence."""
    assert "MIT" == project["license"] == yaml.safe_load(beside("CITATION.cff"))["license"]
    assert beside("LICENSE").startswith("MIT License\n\nCopyright (c) 2026 the perfkit authors\n")


def test_the_citation_has_what_cff_1_2_0_requires(project: dict[str, Any]) -> None:
    """The four required fields, and the version of the package."""
    citation = yaml.safe_load(beside("CITATION.cff"))
    assert set(citation) == CFF
    assert "1.2.0" == citation["cff-version"]
    assert str(citation["version"]) == project["version"]
    assert all("name" in author for author in citation["authors"])


def test_the_lowest_versions_are_those_that_ci_installs(project: dict[str, Any]) -> None:
    """Each dependency has a lower bound, and .ci/lowest.txt installs exactly that version."""
    bounds = {name: spec.specifier for name, spec in ((r.name, r) for r in map(Requirement, project["dependencies"]))}
    pinned = [Requirement(line) for line in beside(".ci/lowest.txt").splitlines() if not line.startswith("#")]
    assert list(bounds) == [requirement.name for requirement in pinned]
    for requirement in pinned:
        (pin,) = requirement.specifier
        (least,) = (each.version for each in bounds[requirement.name] if each.operator == ">=")
        assert "==" == pin.operator
        assert Version(least) == Version(pin.version), requirement.name
        assert pin.version in bounds[requirement.name]


def test_the_changelog_has_the_form_of_keep_a_changelog(project: dict[str, Any]) -> None:
    """A section per version, the newest first, with the six kinds of changes only; this version is in it."""
    text = beside("CHANGELOG.md")
    versions = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert versions
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE))
    assert all(date or version == "Unreleased" for version, date in versions)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds
    assert project["version"] in text


README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def readme() -> str:
    """The text of the README; it does not travel with the wheel."""
    if not README.exists():
        pytest.skip("no README.md beside the tests")
    return README.read_text(encoding="utf-8")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_lists_the_columns_of_every_table(readme: str, table: object) -> None:
    """The README's column list is made from perfkit/tables.py."""
    columns = ", ".join(f"`{name}`" for name in table.column_names)  # type: ignore[attr-defined]
    assert f"| {table.name} | {table.row} | {columns} |" in readme  # type: ignore[attr-defined]


def test_names_every_notebook(readme: str) -> None:
    """Whoever looks for a notebook starts in the README."""
    assert [] == [name for name in NOTEBOOKS if f"`{name}`" not in readme]


def test_its_table_of_speed_is_what_was_measured(readme: str) -> None:
    """Figures of speed come from the JSON that `python -m tests.bench --keep` writes."""
    assert table.readme() in readme


def test_has_two_install_commands(readme: str) -> None:
    """The continuous integration runs exactly these two lines."""
    commands = [line for line in readme.splitlines() if line.startswith("python -m pip install")]
    assert [
        "python -m pip install -e . && perfkit report data/mlp_a100 --out report",
        'python -m pip install -e ".[test]" && python -m pytest -n 2 --dist loadfile --no-loadscope-reorder',
    ] == commands
