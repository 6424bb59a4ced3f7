"""Check where perfkit answers each of the 200 items of the source documents, and what tests it.

`python -m tests.sources CHECKLIST` prints the table of all items in Markdown; `sources.txt` says where each is. An item
without a place, or with one that is gone, is an error. Items that are open, or lack a part, are listed as such.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNT = 200
MOST = 3  # lines that hold the text of a place: more would be a word, not a place


@dataclass(frozen=True)
class Item:
    """Where an item is answered, what tests it, and what is missing; each is a file and a text in it."""

    number: int
    place: tuple[str, str] | None
    test: tuple[str, str] | None
    lacks: str = ""


def _pair(text: str) -> tuple[str, str]:
    file, _, inside = (part.strip() for part in text.partition(" :: "))
    return file, inside


def items(text: str) -> list[Item]:
    """Return the items of the list, one for each number."""
    found = []
    for line in filter(None, (line.partition("#")[0] if line.startswith("#") else line for line in text.splitlines())):
        numbers, *parts = (part.strip() for part in line.split(" ; "))
        pairs = [_pair(part) for part in parts]
        is_open = pairs[0][0] == "open"
        lacks = pairs[-1][1] if pairs[-1][0] in ("open", "lacks") else ""
        for span in numbers.split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                place, test = (None, None) if is_open else pairs[:2]
                found.append(Item(number, place, test, lacks))
    return sorted(found, key=lambda item: item.number)


def errors(found: list[Item]) -> list[str]:
    """Return what is wrong: a number that is missing or twice, a text that is no place, or no name of a test."""
    numbers = [item.number for item in found]
    wrong = [f"{n}: {numbers.count(n)} rows" for n in range(1, COUNT + 1) if numbers.count(n) != 1]
    for item in found:
        for pair in filter(None, (item.place, item.test)):
            file, text = pair
            lines = (ROOT / file).read_text(encoding="utf-8").splitlines() if (ROOT / file).is_file() else []
            if Path(file).name == "mistakes.txt":  # several mistakes of one test
                lines = [*{line.split(" | ")[1] for line in lines[1:]}]
            count = sum(text in line for line in lines)
            if not 0 < count <= MOST:
                wrong.append(f"{item.number}: {file} does not hold {text!r}, or in {count} lines")
            if pair == item.test and not re.search(r"\btest_\w+$", text):
                wrong.append(f"{item.number}: {text!r} is the name of no test")
    return wrong


def table(found: list[Item], checklist: str) -> str:
    """Return all items as a table in Markdown, with their words from the checklist."""
    words = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|", checklist, re.M))
    rows = ["| id | what | place | test | state |", "|---|---|---|---|---|"]
    for item in found:
        state = "open: " if item.place is None else "partly open: " if item.lacks else "done"
        place, test = (f"`{pair[0]}`" if pair else "" for pair in (item.place, item.test))
        what = words.get(str(item.number), "NOT IN THE CHECKLIST").strip()
        rows.append(f"| {item.number} | {what} | {place} | {test} | {state}{item.lacks} |")
    return "\n".join(rows)


def main(checklist: Path) -> None:
    """Print the table and the counts; end with 1 if a place is gone."""
    found = items(ROOT.joinpath("tests", "sources.txt").read_text(encoding="utf-8"))
    print(table(found, checklist.read_text(encoding="utf-8")))  # noqa: T201
    is_open = sum(item.place is None for item in found)
    partly = sum(bool(item.lacks) for item in found) - is_open
    print(f"\n{len(found) - is_open - partly} done, {partly} partly open, {is_open} open")  # noqa: T201
    if wrong := errors(found):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
