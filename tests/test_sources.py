"""Each item of the source documents has its place and its test in this project, or is listed as open in sources.txt."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNT = 200
MOST = 3  # lines that hold the text of a place: more would be a word, not a place


def items(text: str) -> list[tuple[int, list[str]]]:
    """The number of each item with its place and its test, each a file and a text in it; none where it is open."""
    found = []
    for line in (line for line in text.splitlines() if line and not line.startswith("#")):
        numbers, *pairs = (part.strip() for part in line.split(" ; "))
        for span in numbers.split(","):
            first, _, last = span.partition("-")
            row = [] if pairs[0].startswith("open ::") else pairs[:2]
            found += [(number, row) for number in range(int(first), int(last or first) + 1)]
    return found


def errors(found: list[tuple[int, list[str]]]) -> list[str]:
    """What is wrong: a number that is missing or twice, a text that is no place, or no name of a test."""
    numbers = [number for number, _ in found]
    wrong = [f"{n}: {numbers.count(n)} rows" for n in range(1, COUNT + 1) if numbers.count(n) != 1]
    for number, row in sorted(found, key=lambda item: item[0]):
        for part, pair in enumerate(row):
            file, _, text = (each.strip() for each in pair.partition(" :: "))
            lines = (
                (ROOT / file).read_text(encoding="utf-8").splitlines()
                if (ROOT / file).is_file()
                else []
            )
            if Path(file).name == "mistakes.txt":  # several mistakes of one test
                lines = [*{line.split(" | ")[1] for line in lines[1:]}]
            count = sum(text in line for line in lines)
            if not 0 < count <= MOST:
                wrong.append(f"{number}: {file} does not hold {text!r}, or in {count} lines")
            if part == 1 and not re.search(r"\btest_\w+$", text):
                wrong.append(f"{number}: {text!r} is the name of no test")
    return wrong


def test_every_item_has_a_place_and_a_test_that_are_there() -> None:
    """Each of the 200 stands once; the texts that its row names are in the files that it names."""
    assert [] == errors(items(Path(__file__).with_name("sources.txt").read_text(encoding="utf-8")))


def test_a_row_that_is_gone_or_points_nowhere_is_an_error() -> None:
    """A missing number, one that stands twice, a text that no file holds or half of it, and the name of no test."""
    page = "tests/test_sources.py :: def test_every_item_has_a_place_and_a_test_that_are_there"
    found = items(
        f"1-{COUNT - 1} ; README.md :: # perfkit ; {page}\n2 ; README.md :: perfkit ; none.md :: x\n"
    )
    wrong = errors(found)
    assert ["2: 2 rows", f"{COUNT}: 0 rows"] == wrong[:2]
    assert [
        "2: README.md does not hold 'perfkit'",
        "2: none.md does not hold 'x'",
        "2: 'x' is the name of no test",
    ] == [each.partition(", or")[0] for each in wrong[2:]]
