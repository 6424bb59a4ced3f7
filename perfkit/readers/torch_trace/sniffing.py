"""Whether a file is a PyTorch profiler's trace, from the beginning of its text."""

from __future__ import annotations

import re
from pathlib import Path

from perfkit.errors import ReadError
from perfkit.readers.torch_trace.reading import CATEGORIES
from perfkit.readers.torch_trace.text import GZIP, Text, depths

HEAD = 1 << 16
KEY = re.compile(rb'"([^"\\]*)"\s*:')
CATEGORY = re.compile(rb'"cat"\s*:\s*"(\w+)"')
HEADER = {"deviceProperties", "computeProperties", "distributedInfo", "baseTimeNanoseconds", "traceName"}
MARK = b"\xef\xbb\xbf"
BEGINS = (b"{", b" ", b"\t", b"\r", b"\n", MARK[:2], GZIP)


def sniff(path: Path) -> bool:
    """Say whether `path` is a PyTorch profiler's trace, by the first 64 KB of its text.

    It is one if its object has Kineto's ``schemaVersion`` beside another key of Kineto's header, or
    ``traceEvents`` of which one has a category of Kineto's.
    """
    try:
        text = _head(path) if path.is_file() else b""
    except (OSError, ReadError):
        return False
    found = set(_keys(text))
    if "schemaVersion" in found and found & HEADER:
        return True
    categories = {category[1].decode() for category in CATEGORY.finditer(text)}
    return "traceEvents" in found and not categories.isdisjoint({*CATEGORIES, "ac2g", "fwdbwd"})


def outermost_keys(path: Path) -> list[str]:
    """Return the keys of the object in a JSON file, as far as they begin in the first 64 KB; empty for other files."""
    try:
        return _keys(_head(path))
    except ReadError:
        return []


def _head(path: Path) -> bytes:
    """Return the beginning of the text if it may be an object."""
    with path.open("rb") as file:
        if not file.read(len(GZIP)).startswith(BEGINS):
            return b""
    text = next(iter(Text(path, HEAD)), b"").removeprefix(MARK).lstrip()
    return text if text.startswith(b"{") else b""


def _keys(text: bytes) -> list[str]:
    """Return the keys at the first level that begin in `text`."""
    marks, depth = depths(text)
    keys = [(key[1].decode(errors="replace"), marks.searchsorted(key.start()) - 1) for key in KEY.finditer(text)]
    return [key for key, before in keys if before >= 0 and depth[before] == 1]
