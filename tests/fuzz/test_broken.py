"""Every file that once broke perfkit: the folders ``broken/*`` of PERFKIT_PROFILES."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz import execution, families

SHELF = families.shelf()
BROKEN = sorted(path for path in (SHELF / "broken").iterdir() if path.is_dir()) if SHELF else []
# What a note says of values or rows that are not in the tables.
LEFT_OUT = re.compile(
    r"left out|leaves? out|missing|incomplete|ends within|(is|was|may be) cut|no longer|not (there|the files|recorded)|"
    r"ignored|replaced"
)


@pytest.fixture(scope="module")
def pool() -> Iterator[execution.Pool]:
    """A process that loads the files, so that none ends the tests."""
    with execution.Pool() as pool:
        yield pool


@pytest.mark.parametrize("folder", BROKEN, ids=lambda folder: folder.name)
def test_a_broken_file_is_refused_or_loads_without_what_cannot_be(folder: Path, pool: execution.Pool) -> None:
    """perfkit names the file that it refuses; of one that it loads it leaves out what cannot be, and says so."""
    given = [path for path in sorted(folder.iterdir()) if path.name != "INFO.txt"]
    assert len(given) == 1, f"{folder}: expected one input beside INFO.txt"
    outcome = next(iter(pool.outcomes([(f"path:{given[0]}", 0)])))
    defects = "\n".join(f"{group}\n{detail}" for group, detail in outcome.defects.items())
    assert not defects, f"\n{defects}"
    if outcome.status == "loaded" and re.search(r"--(inv|oracle)-", folder.name):
        assert any(map(LEFT_OUT.search, outcome.notes)), f"no note says what was left out: {outcome.notes}"
