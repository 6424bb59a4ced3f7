"""Discovery: which profiles lie at the paths that were given, each capture in one form."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import ReadError
from perfkit.readers import SUFFIXES, broken, claimants, reader, rivals, unrecognised

# Forms in which one capture may lie in a folder, the one that is read first; "" is any other name.
FORMS = (
    *(".sqlite", "_pqtdir", "_arwdir", ".raw_base.csv", ".raw.csv", ".details.csv", ".csv"),
    *("", ".json", ".json.gz", ".nsys-rep", ".qdrep", ".ncu-rep"),
)

NAMED = 5  # folders, of those that hold a profile where a folder above them was given
LOOKED = 100  # of them, and at as many things in each, is looked at

# What is neither a file nor a folder: to open it may wait for ever, or take what belongs to another program.
SPECIAL = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Found(NamedTuple):
    """A profile's path, the name of its reader, and whether the path itself was given, not a folder around it."""

    path: Path
    reader: str
    is_given: bool = True


def discovered(given: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Return the profiles at these paths, each with its reader's name, and notes on what was left out.

    A file that several readers read is there once for each. ReadError if a path does not exist or cannot be looked at,
    or what lies there is of no known kind.
    """
    if not given:
        raise ValueError("path: an empty list names no profile")
    profiles: list[Found] = []
    notes: list[str] = list(broken())
    for item in given:
        _check(item)
        claimed = claimants(item)
        if claimed:
            notes += rivals(item, claimed)
            profiles += [Found(_whole(item, name), name) for name in claimed]
        elif item.is_dir():
            profiles += _inside(item, notes)
        else:
            raise unrecognised(item)
    return list({(profile.path.resolve(), profile.reader): profile for profile in profiles}.values()), notes


def _check(path: Path) -> None:
    """Refuse what does not exist, cannot be looked at, or is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
    except (FileNotFoundError, NotADirectoryError):
        raise ReadError(f"{path}: no such file or folder. Check the path.") from None
    except OSError as e:
        raise ReadError(f"{path}: cannot be looked at ({e.strerror}). Check the path and its permissions.") from e
    except ValueError as e:
        raise ReadError(f"{path}: no path of a file ({e}). Check the path.") from e
    kind = SPECIAL.get(stat.S_IFMT(mode))
    if kind:
        raise ReadError(f"{path}: {kind}, not a file. Write what it delivers to a file, and load that.")


def _is_special(path: Path) -> bool:
    """Tell whether something in a folder is neither a file nor a folder, or cannot be looked at."""
    try:
        return stat.S_IFMT(path.stat().st_mode) in SPECIAL
    except OSError:
        return False  # a link to nothing, which is named by its suffix like a file


def _whole(path: Path, claimed: str) -> Path:
    """Return the folder of a file that is one of several of its profile: what changes beside it changes the profile."""
    return path.parent if path.is_file() and getattr(reader(claimed), "FOLDER", False) else path


def _inside(folder: Path, notes: list[str]) -> list[Found]:
    """Return the profiles in a folder, each capture in one form; what should be a profile and is none is noted."""
    profiles: list[Found] = []
    others: list[str] = []
    refused: list[tuple[Path, ReadError]] = []
    for item in _sorted(folder):
        if item.name.startswith("."):
            continue
        claimed = () if _is_special(item) else claimants(item)
        if claimed:
            notes += rivals(item, claimed)
            profiles += [Found(item, name, is_given=False) for name in claimed]
        elif item.suffix in SUFFIXES and not _is_special(item):
            refused.append((item, unrecognised(item)))
        else:
            others.append(item.name)
    if not profiles:
        raise refused[0][1] if refused else _deeper(folder) or unrecognised(folder)
    notes += [not_read(item, error) for item, error in refused]
    if others:
        listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        notes.append(f"{folder.name}: left out what is no profile ({listed})")
    return _in_one_form(profiles, notes)


def not_read(path: Path, error: ReadError) -> str:
    """Return the note on a profile of a folder that cannot be read while others can."""
    return f"{path.name}: not part of this run, for it cannot be read: {str(error).removeprefix(f'{path}: ')}"


def _deeper(folder: Path) -> ReadError | None:
    """Return the refusal of a folder whose folders hold the profiles, with the first of them; None if none does."""
    inner = [item for item in _sorted(folder) if item.is_dir() and os.access(item, os.R_OK | os.X_OK)]
    seen = (item for item in inner[:LOOKED] if not item.name.startswith("."))
    holding = (item.name for item in seen if any(claimants(p) for p in _sorted(item)[:LOOKED] if not _is_special(p)))
    named = [name for name, _ in zip(holding, range(NAMED + 1), strict=False)]
    if not named:
        return None
    listed = ", ".join(named[:NAMED]) + (" and others" if len(named) > NAMED else "")
    return ReadError(f"{folder}: runs lie one level deeper, in {listed}. Point at one of them.")


def _sorted(folder: Path) -> list[Path]:
    """Return what a folder holds, rank_2 before rank_10."""
    return sorted(folder.iterdir(), key=lambda p: (_by_number(p), p.name))


def _in_one_form(profiles: list[Found], notes: list[str]) -> list[Found]:
    """Leave out a report beside its own export, and an export beside another of the same report."""
    captures: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for path, name, _ in profiles:
        form = next((f for f in FORMS if f and path.name.endswith(f)), "")
        captures.setdefault((path.name.removesuffix(form), name), []).append((FORMS.index(form), path))
    kept: list[Found] = []
    for (_, name), forms in captures.items():
        first, *others = [path for _, path in sorted(forms)]
        kept.append(Found(first, name, is_given=False))
        notes += [f"{other.name}: the capture of {first.name} in another form, left out" for other in others]
    return kept


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Sort key under which rank_10 comes after rank_2."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]
