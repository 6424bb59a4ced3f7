"""The commands that record, wherever perfkit says them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfkit

ROOT = Path(perfkit.__file__).parent
# A command up to its program: what is between two backquotes, or up to a semicolon.
RECORDS = re.compile(r"\b(?:nsys profile|ncu) -[^`;\n]*?\bPROGRAM\b")
WRITES = re.compile(r" -o |--csv")  # a page in CSV goes to standard output


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, dict):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, str):
        yield content


def _file_texts(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".toml":
        return list(_texts(tomllib.loads(text)))
    # Strings that stand after each other are one.
    return re.sub(r'"\s*\n\s*f?r?"', "", text).split('"')


@pytest.mark.parametrize("kind", ["py", "toml"])
def test_every_command_that_records_names_the_file_to_write(kind: str) -> None:
    commands = [
        command
        for file in sorted(ROOT.rglob(f"*.{kind}"))
        for text in _file_texts(file)
        for command in RECORDS.findall(text)
    ]
    assert commands
    nameless = [
        command for command in commands if not WRITES.search(command) and "{" not in command
    ]
    assert [] == nameless
