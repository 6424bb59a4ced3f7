"""A run: the profiles of one execution, read as one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from pandas.api.types import union_categoricals

from perfkit.errors import ReadError
from perfkit.opening import opened
from perfkit.profile import Missing, Profile
from perfkit.readers import READERS, SUFFIXES, recognise, unrecognised
from perfkit.tables import TABLES

__all__ = ["Profile", "Run", "load"]

# Forms in which one capture may lie in a folder, the one that is read first; "" is any other name.
FORMS = (
    *(".sqlite", "_pqtdir", "_arwdir", ".raw_base.csv", ".raw.csv", ".details.csv", ".csv"),
    *("", ".nsys-rep", ".qdrep", ".ncu-rep"),
)

TIMED = {name for name, table in TABLES.items() if {"start_ns", "time_ns"} & set(table.column_names)}


class Run:
    """Profiles of one execution: one attribute per table, read when first asked for.

    Attributes are the tables' names in lower case (`kernels`, `copies`, `api_calls`, ...; see
    `perfkit.tables`). Times of several profiles are on one axis, whose zero is the start of the
    earliest. A table that two readers filled is taken from the first of them, so that nothing is
    counted twice; the other stays reachable through its profile.
    """

    def __init__(self, profiles: Iterable[Profile], notes: Iterable[str] = ()) -> None:
        self.profiles = tuple(profiles)
        self._notes = tuple(notes)
        self._ranks = _ranks(self.profiles)
        self._tables: dict[str, pd.DataFrame] = {}

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.upper() not in TABLES or not name.islower():
            raise AttributeError(f"run has no table {name!r}; the tables are {', '.join(self._names())}")
        return self.table(name.upper())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def __repr__(self) -> str:
        found = ", ".join(f"{p.path.name} ({p.reader})" for p in self.profiles)
        return f"<perfkit.Run of {len(self.profiles)} profile(s): {found}>"

    @staticmethod
    def _names() -> list[str]:
        return [name.lower() for name in TABLES]

    def table(self, name: str) -> pd.DataFrame:
        """Return a table by its name in `perfkit.tables`, all ranks together."""
        if name not in TABLES:
            raise ValueError(f"name: {name!r} is no table; the tables are {', '.join(TABLES)}")
        if name not in self._tables:
            self._tables[name] = self._joined(name)
        return self._tables[name]

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What no profile of this run recorded, each with the option that records it."""
        filled = {name for p in self.profiles for name in p.loaders}
        return tuple(dict.fromkeys(m for p in self.profiles for m in p.missing if m.table not in filled))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know about the files."""
        said = [*self._notes, *(f"{p.path.name}: {note}" for p in self.profiles for note in p.notes)]
        if len(self.profiles) > 1:
            timed = [p for p in self.profiles if TIMED & set(p.loaders)]
            clockless = [p.path.name for p in timed if p.capture["t0_unix_ns"].isna().any()]
            said += [f"{name}: no wall clock, taken to start with the earliest profile" for name in clockless]
        return tuple(said)

    def _joined(self, name: str) -> pd.DataFrame:
        parts = [self._part(p, rank, name) for p, rank in zip(self.profiles, self._ranks, strict=True)]
        parts = [p for p in parts if len(p)]
        if not parts:
            return TABLES[name].empty()
        return parts[0] if len(parts) == 1 else TABLES[name].make(_concatenated(parts))

    def _part(self, profile: Profile, rank: int, name: str) -> pd.DataFrame:
        """Return one profile's table with the run's rank and clock; empty if another reader has it."""
        holders = [r for r in READERS for p in self.profiles if p.reader == r and name in p.loaders]
        if name != "CAPTURE" and profile.reader not in holders[:1]:
            return TABLES[name].empty()
        frame = profile.table(name)
        shift = 0 if name == "CAPTURE" else _shift(profile, self.profiles)
        changes = {c: frame[c] + shift for c in ("start_ns", "time_ns") if shift and c in frame}
        if rank and "rank" in frame:
            changes["rank"] = pd.Series(rank, frame.index, dtype="int32")
        return frame.assign(**changes) if changes else frame


def _ranks(profiles: tuple[Profile, ...]) -> list[int]:
    """Number the profiles of each reader in the order they are given."""
    seen: dict[str, int] = {}
    ranks = []
    for profile in profiles:
        ranks.append(seen.get(profile.reader, 0))
        seen[profile.reader] = ranks[-1] + 1
    return ranks


def _shift(profile: Profile, profiles: tuple[Profile, ...]) -> int:
    """Return what brings the profile's times onto the axis of the earliest one, ns."""
    starts = [p.capture["t0_unix_ns"].iloc[0] for p in profiles]
    own = profile.capture["t0_unix_ns"].iloc[0]
    return 0 if pd.isna(own) else int(own) - int(min(s for s in starts if not pd.isna(s)))


def _concatenated(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Stack frames; categories are united, which plain concatenation would turn into text."""
    columns = {}
    for name in parts[0].columns:
        values = [part[name] for part in parts]
        if isinstance(values[0].dtype, pd.CategoricalDtype):
            columns[name] = pd.Series(union_categoricals(values, sort_categories=True))
        else:
            columns[name] = pd.concat(values, ignore_index=True)
    return pd.DataFrame(columns, copy=False)


def load(path: str | Path | Iterable[str | Path]) -> Run:
    """Load a file, several files, or a folder of profiles as one run.

    Parameters
    ----------
    path
        An Nsight Systems export (.sqlite, parquetdir or arrowdir folder), a report (.nsys-rep) if `nsys`
        is on PATH, or a folder of these: several of one tool are ranks in the order of their names,
        numbers in names counted as numbers.

    Returns
    -------
    Run
        Its tables are read when first asked for, and a second time from the cache.

    Raises
    ------
    ReadError
        If a file does not exist, is empty, damaged or of no known kind; the message says what to do.

    Examples
    --------
    >>> load("no_such.sqlite")
    Traceback (most recent call last):
    ...
    perfkit.errors.ReadError: no_such.sqlite: no such file or folder. Check the path.
    """
    given = [Path(path)] if isinstance(path, (str, Path)) else [Path(p) for p in path]
    if not given:
        raise ValueError("path: an empty list names no profile")
    found: list[tuple[Path, str]] = []
    notes: list[str] = []
    for item in given:
        if not item.exists():
            raise ReadError(f"{item}: no such file or folder. Check the path.")
        claimed = recognise(item)
        if claimed:
            found.append((item, claimed))
        elif item.is_dir():
            found += _inside(item, notes)
        else:
            raise unrecognised(item)
    once = {p.resolve(): (p, name) for p, name in found}
    return Run([opened(p, name) for p, name in once.values()], notes)


def _inside(folder: Path, notes: list[str]) -> list[tuple[Path, str]]:
    """Return the profiles in a folder, each capture in one form."""
    found, others = [], []
    for item in sorted(folder.iterdir(), key=lambda p: (_by_number(p), p.name)):
        if item.name.startswith("."):
            continue
        claimed = recognise(item)
        if claimed:
            found.append((item, claimed))
        elif item.suffix in SUFFIXES:
            raise unrecognised(item)
        else:
            others.append(item.name)
    if not found:
        raise unrecognised(folder)
    if others:
        listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        notes.append(f"{folder.name}: left out what is no profile ({listed})")
    return _in_one_form(found, notes)


def _in_one_form(found: list[tuple[Path, str]], notes: list[str]) -> list[tuple[Path, str]]:
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
