"""Readers from outside: those that installed packages register in the entry point group `perfkit.readers`.

A package names its reader in its pyproject.toml; the name is what `Profile.reader` and the cache call it::

    [project.entry-points."perfkit.readers"]
    my_format = "my_package.reader"

The module is imported when perfkit first looks at a file, never by `import perfkit`. A reader that cannot be imported
or lacks a part of the contract is left out, and a note names its distribution. Whatever a reader raises becomes a
ReadError that names it too: other readers and other files of the run are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pandas as pd

from perfkit.errors import PerfkitError, ReadError
from perfkit.format import elided, printable
from perfkit.profile import KINDS, Loader, Profile
from perfkit.schema import Checked
from perfkit.tables import TABLES

GROUP = "perfkit.readers"
NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")  # a name is part of the names of folders in the cache
LONGEST = 200  # characters of an error's message
T = TypeVar("T")


def names(taken: Collection[str]) -> tuple[str, ...]:
    """Return the names of the readers from outside that work; they cannot have those `taken` by perfkit's own."""
    return tuple(name for name, point in _registered().items() if not _problem(name, point, frozenset(taken)))


def problems(taken: Collection[str]) -> tuple[str, ...]:
    """Return a note on each reader from outside that does not work; `taken` as in `names`."""
    found = ((name, point, _problem(name, point, frozenset(taken))) for name, point in _registered().items())
    clashes = (f"{_spoken(point)} is left out: another package has a reader of this name" for point in _second())
    return (*(f"{_spoken(point)} is left out: {problem}" for _, point, problem in found if problem), *clashes)


def module(name: str) -> ModuleType:
    """Return the module of a reader from outside, guarded: its `sniff` and `read` raise nothing but ReadError.

    LookupError if no installed package has a reader of this name, or it cannot be imported.
    """
    loaded = _guarded(name)
    if isinstance(loaded, str):
        raise LookupError(f"reader {name!r}: {loaded}")
    return loaded


def origin(name: str) -> str:
    """Return a reader in words, with the distribution that it is from."""
    return _spoken(_registered()[name])


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Return what is registered, in the order of names, then of distributions."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, _distribution(point))))


def _registered() -> dict[str, EntryPoint]:
    """Return the entry points by their names; of two with one name the first."""
    found: dict[str, EntryPoint] = {}
    for point in _points():
        found.setdefault(point.name, point)
    return found


def _second() -> list[EntryPoint]:
    """Return the entry points whose name another one has already."""
    return [point for point in _points() if _registered()[point.name] is not point]


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _spoken(point: EntryPoint) -> str:
    return f"the reader {printable(point.name, 60)} of {printable(_distribution(point), 100)}"


@cache
def _problem(name: str, point: EntryPoint, taken: frozenset[str]) -> str:
    """Return why a reader does not work; empty if it does."""
    if name in taken:
        return "perfkit has a reader of this name"
    if not NAME.fullmatch(name) or name in KINDS:
        return "its name must be small letters, digits and _, and no kind of a capture"
    loaded = _guarded(name)
    return loaded if isinstance(loaded, str) else ""


@cache
def _guarded(name: str) -> ModuleType | str:
    """Return a module that has all of a reader's parts, imported once, or why there is none."""
    point = _registered().get(name)
    if point is None:
        return "no installed package has it"
    try:
        loaded = point.load()
    except Exception as e:  # noqa: BLE001  whatever code from outside raises, the other readers go on
        return f"it cannot be imported ({_error(e)})"
    lacking = lacks(loaded)
    if lacking:
        return f"its module lacks {', '.join(lacking)}"
    guarded = ModuleType(loaded.__name__ if isinstance(loaded, ModuleType) else name, loaded.__doc__)
    guarded.__dict__.update({part: getattr(loaded, part) for part in dir(loaded) if part.isupper()})
    guarded.__dict__.update(sniff=partial(_sniff, loaded), read=partial(_read, loaded, name))
    return guarded


def lacks(reader: object) -> list[str]:
    """Return the parts of the contract that a module lacks, each in words.

    >>> from perfkit.readers import rocm_smi
    >>> lacks(rocm_smi), len(lacks(object()))
    ([], 4)
    """
    version, kind = getattr(reader, "VERSION", None), getattr(reader, "KIND", None)
    whole = isinstance(version, int) and not isinstance(version, bool) and version > 0
    return [
        *(f"a function {part}(path)" for part in ("sniff", "read") if not callable(getattr(reader, part, None))),
        *([] if whole else ["VERSION (a whole number above 0)"]),
        *([] if kind in tuple(KINDS) else [f"KIND (one of {', '.join(KINDS)})"]),
    ]


def _sniff(reader: ModuleType, path: Path) -> bool:
    """Say whether a reader from outside claims a file; one that fails claims nothing."""
    try:
        return reader.sniff(path) is True
    except Exception:  # noqa: BLE001  as in _guarded; check_reader tells the author
        return False


def _read(reader: ModuleType, name: str, path: Path) -> Profile:
    """Read a file by a reader from outside, under the name by which it is registered."""
    profile = _safely(name, path, lambda: reader.read(path))
    if not isinstance(profile, Profile):
        raise _failure(name, path, f"returned {type(profile).__name__}, not a perfkit.profile.Profile")
    foreign = sorted(set(profile.loaders) - set(TABLES))
    if foreign:
        raise _failure(name, path, f"returned tables that perfkit does not have: {', '.join(foreign)}")
    _safely(name, path, lambda: TABLES["CAPTURE"].check(profile.capture))
    loaders: dict[str, Loader] = {t: partial(_table, name, path, t, load) for t, load in profile.loaders.items()}
    return replace(profile, reader=name, path=path, loaders=loaders)


def _table(name: str, path: Path, table: str, load: Loader) -> pd.DataFrame | Checked:
    """Return a table of a reader from outside, which must have the shape that it promises."""

    def checked() -> pd.DataFrame | Checked:
        made = load()
        TABLES[table].check(made.frame if isinstance(made, Checked) else made)
        return made

    return _safely(name, path, checked)


def _safely(name: str, path: Path, call: Callable[[], T]) -> T:
    """Return what a call returns; whatever else than a ReadError it raises becomes one that names the reader."""
    try:
        return call()
    except ReadError:
        raise
    except Exception as e:
        raise _failure(name, path, f"failed ({_error(e)})") from e


def _failure(name: str, path: Path, what: str) -> ReadError:
    return ReadError(
        f"{path}: {origin(name)} {what}. Report this to the authors of that package, or uninstall it and load again."
    )


def _error(error: Exception) -> str:
    message = str(error) if isinstance(error, PerfkitError) else f"{type(error).__name__}: {error}"
    return elided(printable(message.removesuffix(": "), 1000), LONGEST)
