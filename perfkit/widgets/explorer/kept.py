"""What explorers keep beside the cache: the last choice of each run, and the program that draws charts with a brush.

Conventions
-----------
Files are written under a temporary name and renamed. Nothing that is read is trusted: a choice is checked like one
that is typed, and the program's file is named by the checksum of its content. Without a cache nothing is kept.

Functions
---------
last_choice   the last choice of a run
keep_choice   keep one
enable_brush  make charts with a brush drawable without network
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfkit import cache
from perfkit.charts import overview
from perfkit.run import Run

LONGEST = 100_000  # bytes of a choice that are read

# What a choice consists of, and of what each part is a list; `kernels` is one text.
FIELDS: dict[str, type] = {"ranks": int, "gpus": int, "window": int, "kernels": str, "families": str}
CHOICES = list(FIELDS)


def last_choice(run: Run) -> dict[str, Any]:
    """Return the last choice of a run; empty if none of the right shape is kept."""
    place = _place(run)
    if place is None:
        return {}
    try:
        with place.open("rb") as file:
            content = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if _is_choice(content) else {}


def _is_choice(content: object) -> bool:
    """Say whether it has every field and no other, with values of the right type."""
    if not isinstance(content, dict) or set(content) != set(FIELDS) or not isinstance(content["kernels"], str):
        return False
    lists = {name: values for name, values in content.items() if name != "kernels"}
    return all(isinstance(v, list) and all(type(one) is FIELDS[name] for one in v) for name, v in lists.items())


def keep_choice(run: Run, chosen: dict[str, Any]) -> None:
    """Keep a choice as the last one of a run."""
    place = _place(run)
    if place is not None:
        _write(place, json.dumps(chosen).encode())


def _place(run: Run) -> Path | None:
    """Return the file of a run's choice; None where there is no cache, or the run lies in no file."""
    paths = [profile.path for profile in run.profiles]
    root = cache.root()
    if root is None or not paths or not all(path.exists() for path in paths):
        return None
    key = json.dumps(sorted(str(path.resolve()) for path in paths))
    return root / "choices" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def enable_brush() -> None:
    """Make charts with a brush drawable without network; putting the program together takes seconds, once."""
    root = cache.root()
    versions = "-".join(importlib.metadata.version(name) for name in ("altair", "vl-convert-python"))
    found = _program(root / "charts", versions) if root else ""
    made = overview.enable(found)
    if root and not found:
        _write(root / "charts" / f"{versions}.{_sum(made)}.js", made.encode())


def _program(folder: Path, versions: str) -> str:
    """Return the program that was kept, empty if there is none that is whole."""
    for file in folder.glob(f"{versions}.*.js"):
        with suppress(OSError, ValueError):
            text = file.read_bytes().decode()
            if file.name == f"{versions}.{_sum(text)}.js":
                return text
    return ""


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(target: Path, content: bytes) -> None:
    """Write a file whole or not at all; a cache that cannot be written is no error."""
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".partial", delete=False) as file:
            file.write(content)
        try:
            os.replace(file.name, target)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
