"""Foreign text and tables in Markdown, as a comment of a pull request shows them."""

import re
from collections.abc import Sequence

from perfkit.format import printable

LONGEST = 200  # characters of a name or a reason
MARKUP = re.compile(r"[<>&|`*_\[\]\\#@~!]")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of foreign text as a table in Markdown."""
    lines = [head, ("---",) * len(head), *(tuple(map(escaped, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def escaped(text: str, longest: int = LONGEST) -> str:
    """Return foreign text so that Markdown shows it as it is."""
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", plain(text, longest))


def plain(text: str, longest: int = LONGEST) -> str:
    """Return foreign text on one line, without characters that a terminal or XML cannot take."""
    return printable(text, longest)
