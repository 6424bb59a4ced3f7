"""The lines of a log, the last of which may have been cut."""

from __future__ import annotations

import re
from pathlib import Path

from perfkit.errors import ReadError

BINARY = re.compile(r"[\x00-\x08\x0e-\x1f]")
EOF = "# EOF"  # OpenMetrics may end in this without an end of line
CUT = "the last line is cut (no end of line) and is left out"


def lines(path: Path, notes: list[str]) -> list[str]:
    """Return the whole lines of a text file.

    Raises
    ------
    ReadError
        If it cannot be opened, or is not text throughout.
    """
    content = content_of(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        number = content[: e.start].count(b"\n") + 1
        raise ReadError(f"{path}: line {number} is not text. The file is damaged: copy or record it again.") from e
    binary = BINARY.search(text)
    if binary:
        number = text.count("\n", 0, binary.start()) + 1
        raise ReadError(f"{path}: line {number} is not text. The file is damaged: copy or record it again.")
    *whole, last = text.split("\n")
    if last.strip() == EOF:
        return [*whole, last]
    if last.strip():
        notes.append(CUT)
    return whole


def content_of(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.") from e
