"""The text of a log: its bytes, its whole lines, and the number of the line in which something stands."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import AnyStr

from perfkit.errors import ReadError

NO_TEXT = re.compile(r"[\x01-\x06\x0e-\x1a\x1c-\x1f\ufffd]")  # a bar of progress has \b, colours have \x1b
CUT = "the last line is cut and left out"


def content(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.") from e


def head(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a file; none if `path` is no file or cannot be opened."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def utf8(data: bytes) -> bytes:
    """Return text as UTF-8 without a byte order mark; PowerShell writes UTF-16."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data[: len(data) // 2 * 2].decode("utf-16", errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def lines(text: str, path: Path) -> tuple[list[str], list[str]]:
    """Return the whole lines of what a program printed, and notes on bytes that are no text and on a cut last line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    zero = text.find("\0")
    if zero >= 0:
        where = f"line {line_of(text, zero)}"
        raise ReadError(f"{path}: binary data (zero bytes) in {where}. Copy the log again or cut that part out.")
    *whole, last = text.split("\n")
    foreign = [n for n, line in enumerate(whole, 1) if NO_TEXT.search(line)] if NO_TEXT.search(text) else []
    notes = [f"lines hold bytes that are no text ({len(foreign)}, first in line {foreign[0]})"] if foreign else []
    return whole, notes + [CUT] * bool(last)


def line_of(text: AnyStr, at: int) -> int:
    """Return the number of the line, from 1, in which position `at` of a text lies."""
    end = b"\n" if isinstance(text, bytes) else "\n"
    return text.count(end, 0, at) + 1
