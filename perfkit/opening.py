"""Profiles opened through the cache: what has a copy is not read again."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd

from perfkit import cache
from perfkit.profile import Missing, Profile
from perfkit.readers import reader


def opened(path: Path, name: str) -> Profile:
    """Open a profile through the cache: what has a copy is not read again."""
    place = cache.folder(path, name, reader(name).VERSION)
    known = cache.fetch(place, "CAPTURE")
    read: Profile | None = None
    profile: Profile
    if known is None:
        profile = read = reader(name).read(path)
        tables = list(profile.loaders)
        cache.store(place, "CAPTURE", profile.capture, _described(profile))
    else:
        profile, tables = _recalled(path, name, *known)
    source = _Source(path, name, read)
    loaders = {table: partial(_cached, place, table, source) for table in tables}
    return Profile(name, path, profile.capture, loaders, profile.missing, profile.notes, profile.rank, profile.node)


def _described(profile: Profile) -> str:
    """Return what `_recalled` needs beside CAPTURE, as stored with its copy."""
    missing = [asdict(m) for m in profile.missing]
    stated = {"rank": profile.rank, "node": profile.node}
    return json.dumps({"tables": list(profile.loaders), "missing": missing, "notes": profile.notes, **stated})


def _recalled(path: Path, name: str, capture: pd.DataFrame, description: str) -> tuple[Profile, list[str]]:
    told = json.loads(description)
    missing = tuple(Missing(**m) for m in told["missing"])
    capture = capture.assign(path=pd.array([str(path)], dtype="string"))  # it may be stored under another name of it
    profile = Profile(name, path, capture, {}, missing, tuple(told["notes"]), told["rank"], told.get("node", ""))
    return profile, told["tables"]


class _Source:
    """The profile as its reader opens it, opened at most once and only if a copy is missing."""

    def __init__(self, path: Path, name: str, profile: Profile | None) -> None:
        self._path, self._name, self._profile = path, name, profile

    def table(self, table: str) -> pd.DataFrame:
        if self._profile is None:
            self._profile = reader(self._name).read(self._path)
        return self._profile.table(table)


def _cached(place: Path | None, table: str, source: _Source) -> pd.DataFrame:
    known = cache.fetch(place, table)
    if known is not None:
        return known[0]
    frame = source.table(table)
    cache.store(place, table, frame)
    return frame
