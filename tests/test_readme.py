"""The README says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.report.notebooks import NOTEBOOKS
from perfkit.tables import TABLES

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


def test_has_two_install_commands(readme: str) -> None:
    """The continuous integration runs exactly these two lines."""
    commands = [line for line in readme.splitlines() if line.startswith("python -m pip install")]
    assert [
        "python -m pip install -e . && perfkit report data/mlp_a100 --out report",
        'python -m pip install -e ".[test]" && python -m pytest -n 2 --dist loadfile --no-loadscope-reorder',
    ] == commands
