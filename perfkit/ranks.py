"""Which ranks of a run are the profiles of its files?

Conventions
-----------
Files of one reader and one tool are of different ranks (nodes, for monitoring logs): of those that they state if these
differ, else of their positions. Files of several tools are of one and the same rank: what ``nvidia-smi dmon`` and
``nvidia-smi -q`` say of a node is about the same GPUs. A file with several ranks inside keeps them; where another has
one of them too, they are counted from the next free one on, which a note says.

Functions
---------
places    the place of each profile, and notes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from perfkit.profile import Profile
from perfkit.readers import reader


class Place(NamedTuple):
    """The lowest rank of a profile in the run, what its own are counted up by, and the tables that have its own."""

    first: int = 0
    shift: int = 0
    ranked: tuple[str, ...] = ()

    def ranks(self, table: str, own: pd.Series) -> pd.Series:
        """Return the ranks in a table of the profile as ranks of the run."""
        return own + self.shift if table in self.ranked else pd.Series(self.first, own.index, own.dtype)


class _Stated(NamedTuple):
    """The ranks that a file is about, and whether it says so itself."""

    ranks: tuple[int, ...]
    itself: bool


def places(profiles: Sequence[Profile]) -> tuple[list[Place], list[str]]:
    """Return the place of each profile and notes on those that are not counted as their files state.

    Tables are read of readers only that find several ranks in one file, and only where there are several such files.
    """
    found = [Place()] * len(profiles)
    notes: list[str] = []
    tools: dict[tuple[str, str], list[int]] = {}
    for i, profile in enumerate(profiles):
        tools.setdefault((profile.reader, str(profile.capture["tool"].iloc[0])), []).append(i)
    for beside in tools.values():
        if len(beside) == 1 and profiles[beside[0]].rank is None:
            found[beside[0]] = Place(0, 0, _ranked(profiles[beside[0]]))
            continue
        stated = [_stated(profiles[i]) for i in beside]
        for i, said, shift in zip(beside, stated, _shifts(stated), strict=True):
            found[i] = Place(said.ranks[0] + shift, shift, _ranked(profiles[i]))
            if shift and said.itself:
                notes.append(f"{profiles[i].path.name}: {_counted(said.ranks, shift)}")
    return found, notes


def _ranked(profile: Profile) -> tuple[str, ...]:
    """Return the tables in which the reader of a profile counts the ranks of its file."""
    several: tuple[str, ...] = getattr(reader(profile.reader), "RANKED", ())
    return () if profile.rank is not None else tuple(name for name in several if name in profile.loaders)


def _stated(profile: Profile) -> _Stated:
    if profile.rank is not None:
        return _Stated((profile.rank,), True)
    inside = {int(rank) for name in _ranked(profile) for rank in profile.table(name)["rank"].unique()}
    return _Stated(tuple(sorted(inside)) or (0,), len(inside) > 1)


def _shifts(stated: Sequence[_Stated]) -> list[int]:
    """Return by how much the ranks of each file are counted up."""
    if all(len(said.ranks) == 1 for said in stated):
        own = {said.ranks[0] for said in stated if said.itself}
        return [0 if len(own) == len(stated) else i - said.ranks[0] for i, said in enumerate(stated)]
    used: set[int] = set()
    shifts = [0] * len(stated)
    # What states its ranks goes first: a file that states none takes what is left.
    for i in sorted(range(len(stated)), key=lambda i: not stated[i].itself):
        ranks = stated[i].ranks
        shifts[i] = max(used) + 1 - ranks[0] if used & set(ranks) else 0
        used |= {rank + shifts[i] for rank in ranks}
    return shifts


def _counted(ranks: tuple[int, ...], shift: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is counted as {ranks[0] + shift}: the ranks that the files state are not all different"
    beside = f"counted from {ranks[0] + shift} on"
    return f"its {len(ranks)} ranks from {ranks[0]} on are {beside}: another file has some of them"
