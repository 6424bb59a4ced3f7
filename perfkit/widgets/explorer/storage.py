"""What the explorer stores between sessions: the last choice of each run, and the program that draws its overview.

Conventions
-----------
It lies in the cache, which users of one machine may share: each user has a folder of their own there, closed to others,
and a file is read only if it belongs to this user and nobody else may write it. The content is checked all the same: a
choice like one that is typed, the program by the checksum in its name. Without a cache nothing is stored.

Functions
---------
last_choice    the last choice of a run
store_choice   store one
enable_brush   make charts with a brush drawable without network
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfkit import cache
from perfkit.charts import overview
from perfkit.run import Run

LONGEST_CHOICE, LONGEST_PROGRAM = 100_000, 50_000_000  # bytes that are read

# What a choice consists of, and of what each part is a list; `kernels` is one text.
FIELDS: dict[str, type] = {"ranks": int, "gpus": int, "window": int, "kernels": str, "families": str}
CHOICES = list(FIELDS)


def last_choice(run: Run) -> dict[str, Any]:
    """Return the last choice of a run; empty if none of the right shape is stored."""
    place = _place(run)
    if place is None:
        return {}
    try:
        content = json.loads(_content(place, LONGEST_CHOICE))
    except (ValueError, RecursionError):
        return {}
    return content if _is_choice(content) else {}


def _is_choice(content: object) -> bool:
    """Say whether it has every field and no other, with values of the right type."""
    if not isinstance(content, dict) or set(content) != set(FIELDS) or not isinstance(content["kernels"], str):
        return False
    lists = {name: values for name, values in content.items() if name != "kernels"}
    return all(isinstance(v, list) and all(type(one) is FIELDS[name] for one in v) for name, v in lists.items())


def store_choice(run: Run, chosen: dict[str, Any]) -> None:
    """Store a choice as the last one of a run."""
    place = _place(run)
    if place is not None:
        _write(place, json.dumps(chosen).encode())


def _place(run: Run) -> Path | None:
    """Return the file of a run's choice; None where nothing is stored, or the run lies in no file."""
    paths = [profile.path for profile in run.profiles]
    folder = _own_folder()
    if folder is None or not paths or not all(path.exists() for path in paths):
        return None
    key = json.dumps(sorted(str(path.resolve()) for path in paths))
    return folder / "choices" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def enable_brush() -> None:
    """Make charts with a brush drawable without network; putting the program together takes seconds, once."""
    folder = _own_folder()
    versions = "-".join(importlib.metadata.version(name) for name in ("altair", "vl-convert-python"))
    stored = _program(folder / "charts", versions) if folder else ""
    made = overview.enable(stored)
    if folder and not stored:
        _write(folder / "charts" / f"{versions}.{_sum(made)}.js", made.encode())


def _program(folder: Path, versions: str) -> str:
    """Return the program that is stored, empty if there is none that is whole."""
    for file in folder.glob(f"{versions}.*.js"):
        with suppress(UnicodeDecodeError):
            text = _content(file, LONGEST_PROGRAM).decode()
            if file.name == f"{versions}.{_sum(text)}.js":
                return text
    return ""


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _own_folder() -> Path | None:
    """Return this user's folder in the cache; None without a cache, or if someone else made or may write it."""
    root = cache.root()
    if root is None:
        return None
    if sys.platform == "win32":
        return root / f"user-{os.environ.get('USERNAME', 'unnamed')}"
    folder = root / f"user-{os.getuid()}"
    try:
        return folder if stat.S_ISDIR((found := folder.lstat()).st_mode) and _is_own(found) else None
    except OSError:
        return folder  # there is none yet


def _is_own(found: os.stat_result) -> bool:
    """Say whether a file or folder belongs to this user, and nobody else may write it."""
    if sys.platform == "win32":
        return True
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _content(file: Path, longest: int) -> bytes:
    """Return the beginning of a regular file that is this user's own; nothing of any other, or if there is none."""
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    with suppress(OSError), open(os.open(file, os.O_RDONLY | flags), "rb") as opened:
        found = os.fstat(opened.fileno())  # of what is open: the name may lead elsewhere by now
        return opened.read(longest) if stat.S_ISREG(found.st_mode) and _is_own(found) else b""
    return b""


def _write(target: Path, content: bytes) -> None:
    """Write a file whole or not at all, for this user alone; a cache that cannot be written is no error."""
    with suppress(OSError):
        target.parents[2].mkdir(parents=True, exist_ok=True)
        for folder in (target.parents[1], target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".partial", delete=False) as file:
            file.write(content)
        try:
            os.replace(file.name, target)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
