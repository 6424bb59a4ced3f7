"""Each item of the source documents has its place and its test in this project, or is listed as open."""

from pathlib import Path

from sources import COUNT, errors, items, table

LIST = Path(__file__).with_name("sources.txt")


def test_every_item_has_a_place_and_a_test_that_are_there() -> None:
    """Each of the 200 stands once; the texts that its row names are in the files that it names."""
    assert [] == errors(items(LIST.read_text(encoding="utf-8")))


def test_a_row_that_is_gone_or_points_nowhere_is_an_error() -> None:
    """A missing number, one that stands twice, a text that no file holds or half of it, and the name of no test."""
    page = "tests/test_sources.py :: def test_every_item_has_a_place_and_a_test_that_are_there"
    found = items(f"1-{COUNT - 1} ; README.md :: # perfkit ; {page}\n2 ; README.md :: perfkit ; none.md :: x\n")
    wrong = errors(found)
    assert ["2: 2 rows", f"{COUNT}: 0 rows"] == wrong[:2]
    assert [
        "2: README.md does not hold 'perfkit'",
        "2: none.md does not hold 'x'",
        "2: 'x' is the name of no test",
    ] == [each.partition(", or")[0] for each in wrong[2:]]
    made = table(items("7 ; open :: a check\n"), "| 7 | the item | notes |")
    assert "| 7 | the item |  |  | open: a check |" in made
