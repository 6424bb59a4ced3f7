"""Pages of `docs/`: Markdown written by hand, with parts that are made."""

import re
from pathlib import Path

from docs.blocks import BLOCKS

PART = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.S)


def pages(root: Path) -> dict[str, Path]:
    """Return the pages by their names."""
    return {page.name: page for page in sorted((root / "docs").glob("*.md"))}


def made(text: str) -> str:
    """Return a page with its made parts as perfkit's objects are now."""
    return PART.sub(_part, text)


def _part(match: re.Match[str]) -> str:
    first, name, last = match.groups()
    inner = "\n\n".join(BLOCKS[name]())
    return f"{first}\n{inner}\n\n{last}"
