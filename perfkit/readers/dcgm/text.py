"""The whole lines of a log of DCGM."""

from __future__ import annotations

import re
from pathlib import Path

from perfkit.errors import ReadError
from perfkit.readers.text import CUT, content, line_of

BINARY = re.compile(r"[\x00-\x08\x0e-\x1f]")
EOF = "# EOF"  # OpenMetrics may end in this without an end of line
AGAIN = "The file is damaged: copy or record it again."


def lines(path: Path, notes: list[str]) -> list[str]:
    """Return the whole lines of a text file.

    Raises
    ------
    ReadError
        If it cannot be opened, or is not text throughout.
    """
    data = content(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ReadError(f"{path}: line {line_of(data, e.start)} is not text. {AGAIN}") from e
    binary = BINARY.search(text)
    if binary:
        raise ReadError(f"{path}: line {line_of(text, binary.start())} is not text. {AGAIN}")
    *whole, last = text.split("\n")
    if last.strip() == EOF:
        return [*whole, last]
    notes += [CUT] * bool(last.strip())
    return whole
