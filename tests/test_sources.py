"""Each item of the source documents has its place and its test in this project, or is listed as open."""

from __future__ import annotations

from pathlib import Path

from sources import COUNT, errors, items, table

LIST = Path(__file__).with_name("sources.txt")


def test_every_item_has_a_place_and_a_test_that_are_there() -> None:
    """Each of the 200 stands once; the texts that its row names are in the files that it names."""
    assert [] == errors(items(LIST.read_text(encoding="utf-8")))


def test_a_row_that_is_gone_or_points_nowhere_is_an_error() -> None:
    """A missing number, one that stands twice, and a text that no file holds; open items are shown as open."""
    found = items(
        f"1-{COUNT - 1} ; README.md :: perfkit ; tests/sources.txt :: 1\n2 ; none.md :: x ; README.md :: perfkit\n"
    )
    assert ["2: 2 rows", f"{COUNT}: 0 rows", "2: none.md does not hold 'x'"] == errors(found)
    made = table(items("7 ; open :: a check\n"), "| 7 | the item | notes |")
    assert "| 7 | the item |  |  | open: a check |" in made
