"""Which profiles lie at the paths that were given, each capture in one form?"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from perfkit.errors import ReadError
from perfkit.readers import SUFFIXES, claimants, reader, unrecognised

# Forms in which one capture may lie in a folder, the one that is read first; "" is any other name.
FORMS = (
    *(".sqlite", "_pqtdir", "_arwdir", ".raw_base.csv", ".raw.csv", ".details.csv", ".csv"),
    *("", ".json", ".json.gz", ".nsys-rep", ".qdrep", ".ncu-rep"),
)

NAMED = 5  # folders, of those that hold a profile where a folder above them was given
LOOKED = 100  # of them, and at as many things in each, is looked at

Found = tuple[Path, str]


def discovered(given: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Return the profiles at these paths, each with its reader's name, and notes on what was left out.

    A file that several readers read is there once for each.

    Raises
    ------
    ReadError
        If a path does not exist, or what lies there is of no known kind.
    ValueError
        If no path is given.
    """
    if not given:
        raise ValueError("path: an empty list names no profile")
    found: list[Found] = []
    notes: list[str] = []
    for item in given:
        if not item.exists():
            raise ReadError(f"{item}: no such file or folder. Check the path.")
        claimed = claimants(item)
        if claimed:
            found += [(_whole(item, name), name) for name in claimed]
        elif item.is_dir():
            found += _inside(item, notes)
        else:
            raise unrecognised(item)
    return list({(p.resolve(), name): (p, name) for p, name in found}.values()), notes


def _whole(path: Path, claimed: str) -> Path:
    """Return the folder of a file that is one of several of its profile: what changes beside it changes the profile."""
    return path.parent if path.is_file() and getattr(reader(claimed), "FOLDER", False) else path


def _inside(folder: Path, notes: list[str]) -> list[Found]:
    """Return the profiles in a folder, each capture in one form."""
    found, others = [], []
    for item in _sorted(folder):
        if item.name.startswith("."):
            continue
        claimed = claimants(item)
        if claimed:
            found += [(item, name) for name in claimed]
        elif item.suffix in SUFFIXES:
            raise unrecognised(item)
        else:
            others.append(item.name)
    if not found:
        raise _deeper(folder) or unrecognised(folder)
    if others:
        listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        notes.append(f"{folder.name}: left out what is no profile ({listed})")
    return _in_one_form(found, notes)


def _deeper(folder: Path) -> ReadError | None:
    """Return the refusal of a folder whose folders hold the profiles, with the first of them; None if none does."""
    inner = [item for item in _sorted(folder) if item.is_dir() and os.access(item, os.R_OK | os.X_OK)]
    seen = (item for item in inner[:LOOKED] if not item.name.startswith("."))
    holding = (item.name for item in seen if any(map(claimants, _sorted(item)[:LOOKED])))
    named = [name for name, _ in zip(holding, range(NAMED + 1), strict=False)]
    if not named:
        return None
    listed = ", ".join(named[:NAMED]) + (" and others" if len(named) > NAMED else "")
    return ReadError(f"{folder}: runs lie one level deeper, in {listed}. Point at one of them.")


def _sorted(folder: Path) -> list[Path]:
    """Return what a folder holds, rank_2 before rank_10."""
    return sorted(folder.iterdir(), key=lambda p: (_by_number(p), p.name))


def _in_one_form(found: list[Found], notes: list[str]) -> list[Found]:
    """Leave out a report beside its own export, and an export beside another of the same report."""
    captures: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for path, name in found:
        form = next((f for f in FORMS if f and path.name.endswith(f)), "")
        captures.setdefault((path.name.removesuffix(form), name), []).append((FORMS.index(form), path))
    kept = []
    for (_, name), forms in captures.items():
        first, *others = [path for _, path in sorted(forms)]
        kept.append((first, name))
        notes += [f"{other.name}: the capture of {first.name} in another form, left out" for other in others]
    return kept


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Sort key under which rank_10 comes after rank_2."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]
