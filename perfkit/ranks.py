"""The rank of the run that each of its profiles is.

Files of one reader and one tool are of different ranks (nodes, for monitoring logs): of those that they state if these
differ, else of their positions. Files of several tools are of one and the same rank: what ``nvidia-smi dmon`` and
``nvidia-smi -q`` say of a node is about the same GPUs. A file with several ranks inside keeps them; where another has
one of them too, they are counted from the next free one on, which a note says.

Where files state their host, tools of one host are of one rank, its lowest, and tools of several hosts of several: the
files of a tool are moved there if each states another host and none a rank. What remains unlikely is noted: files of
one rank that state several hosts, or name different GPUs by one number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import pandas as pd

from perfkit.format import printable
from perfkit.profile import Profile
from perfkit.readers import reader

_Names = dict[tuple[int, int], str]  # of GPUs, by rank and number


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
    placed = [Place()] * len(profiles)
    notes: list[str] = []
    tools: dict[tuple[str, str], list[int]] = {}
    for i, profile in enumerate(profiles):
        tools.setdefault((profile.reader, str(profile.capture["tool"].iloc[0])), []).append(i)
    for beside in tools.values():
        if len(beside) == 1 and profiles[beside[0]].rank is None:
            placed[beside[0]] = Place(0, 0, _ranked(profiles[beside[0]]))
            continue
        stated = [_stated(profiles[i]) for i in beside]
        for i, own, shift in zip(beside, stated, _shifts(stated), strict=True):
            placed[i] = Place(own.ranks[0] + shift, shift, _ranked(profiles[i]))
            if shift and own.itself:
                notes.append(f"{profiles[i].path.name}: {_counted(own.ranks, shift)}")
    return placed, [*notes, *_by_host(profiles, list(tools.values()), placed)]


def _by_host(profiles: Sequence[Profile], tools: list[list[int]], found: list[Place]) -> list[str]:
    """Move the files of tools whose hosts are stated to the ranks of these hosts; return notes on what was moved."""
    stating = [beside for beside in tools if any(profiles[i].node for i in beside)]
    free = [beside for beside in stating if len(stating) > 1 and _is_free([profiles[i] for i in beside])]
    of_host: dict[str, int] = {}
    for i in (i for beside in tools if beside not in free for i in beside):
        if profiles[i].node:
            of_host[profiles[i].node] = min(found[i].first, of_host.get(profiles[i].node, found[i].first))
    notes = []
    for i in (i for beside in sorted(free, key=len, reverse=True) for i in beside):
        taken = {found[j].first for j in range(len(profiles)) if profiles[j].node and j != i}
        others = {rank for host, rank in of_host.items() if host != profiles[i].node}
        rank = of_host.get(profiles[i].node, found[i].first)
        if rank in others:
            rank = max(taken | others) + 1
            notes.append(f"{profiles[i].path.name}: counted as rank {rank}: it states another host than other tools")
        of_host[profiles[i].node] = rank
        found[i] = found[i]._replace(first=rank, shift=rank)
    return notes


def _is_free(beside: Sequence[Profile]) -> bool:
    """Tell whether the files of a tool may be moved: each states another host, and none a rank."""
    hosts = {profile.node for profile in beside}
    return "" not in hosts and len(hosts) == len(beside) and all(not _stated(profile).itself for profile in beside)


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
    if all(len(file.ranks) == 1 for file in stated):
        own = {file.ranks[0] for file in stated if file.itself}
        return [0 if len(own) == len(stated) else i - file.ranks[0] for i, file in enumerate(stated)]
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


def unlikely(profiles: Sequence[Profile], found: Sequence[Place]) -> list[str]:
    """Return notes on profiles of several tools that are counted as one rank and can hardly be of one node."""
    of_rank: dict[int, list[Profile]] = {}
    for profile, place in zip(profiles, found, strict=True):
        of_rank.setdefault(place.first, []).append(profile)
    place_of = dict(zip(map(id, profiles), found, strict=True))
    notes = []
    for several in (beside for beside in of_rank.values() if len(beside) > 1):
        names = [_gpu_names(profile, place_of[id(profile)]) for profile in several]
        for (one, of_one), (other, of_other) in combinations(zip(several, names, strict=True), 2):
            if why := _contradiction(one, of_one, other, of_other):
                notes.append(f"{one.path.name} and {other.path.name}: counted as of one node, though they {why}")
    return notes


def _contradiction(one: Profile, names: _Names, other: Profile, others: _Names) -> str:
    """Return in what two profiles contradict each other, empty if in nothing."""
    if one.node and other.node and one.node != other.node:
        return "state different hosts: load them apart"
    for key in sorted(names.keys() & others.keys()):
        if not _alike(names[key], others[key]):
            both = f"{printable(names[key], 60)}, {printable(others[key], 60)}"
            return f"name different GPUs as GPU {key[1]} of rank {key[0]} ({both})"
    return ""


def _gpu_names(profile: Profile, place: Place) -> _Names:
    """Return the name of each GPU of a profile, by its rank in the run and its number."""
    if "DEVICES" not in profile.loaders:
        return {}
    devices = profile.table("DEVICES")
    ranks = place.ranks("DEVICES", devices["rank"])
    return {(int(r), int(g)): str(n) for r, g, n in zip(ranks, devices["gpu"], devices["name"], strict=True) if n}


def _alike(one: str, other: str) -> bool:
    """Tell whether two names can be of one GPU: some tools leave the maker out, and slices are named after it."""
    short = [re.sub(r"nvidia|amd|tesla|geforce|[^a-z0-9]", "", name.lower()) for name in (one, other)]
    return short[0] in short[1] or short[1] in short[0]
