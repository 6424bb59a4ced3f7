"""The file of hashes: read, written, and compared in words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("hashes.json")
ON_ONE_LINE = ("refusals", "notes", "theme")
Frozen = dict[str, dict[str, Any]]


def read() -> dict[str, Frozen]:
    content: dict[str, Frozen] = (
        json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    )
    return content


def write(content: dict[str, Frozen]) -> None:
    """Store hashes: a line for each table, figure, finding and notebook of a run, one for all its refusals or notes."""
    FILE.write_text(_lines(dict(sorted(content.items())), depth=3) + "\n", encoding="utf-8")


def _lines(item: Any, depth: int, indent: str = "") -> str:
    if not depth or not item:
        return json.dumps(item, ensure_ascii=False)
    inner = []
    for key, each in item.items():
        below = 0 if key in ON_ONE_LINE else depth - 1
        inner.append(
            f"{indent} {json.dumps(key, ensure_ascii=False)}: {_lines(each, below, indent + ' ')}"
        )
    return "{\n" + ",\n".join(inner) + f"\n{indent}}}"


def changes(before: Any, after: Any, *names: str) -> Iterator[str]:
    """Yield one line for everything that is new, gone or different, with its names from the run down."""
    where = ": ".join(names)
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if key not in after:
                yield f"{where}: {key}: is gone, was {_brief(before[key])}"
            elif key not in before:
                yield f"{where}: {key}: is new, {_brief(after[key])}"
            else:
                yield from changes(before[key], after[key], *names, key)
    elif before != after:
        yield f"{where}: is {_brief(after)}, was {_brief(before)}"


def _brief(item: Any) -> str:
    return f"{len(item)} entries" if isinstance(item, dict) else str(item)
