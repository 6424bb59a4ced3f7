"""Discovery: which profiles lie at the paths that were given, and which rank of the run each of them is.

A capture that lies there in several forms is read in one of them (FORMS).

Files of one reader and one tool are of different ranks (nodes, for monitoring logs). The files state the ranks; if
these are equal, names like rank1_step10 do, else the positions. Files whose names differ in the step or the
time only are recordings of one rank one after the other. Files of several tools are of one and the same rank: what
``nvidia-smi dmon`` and ``nvidia-smi -q`` say of a node is about the same GPUs. A file with several ranks inside keeps
them; where another has one of them too, they are counted from the next free one on, which a note says.

Where files state their host, tools of one host are of one rank, its lowest, and tools of several hosts of several: the
files of a tool are moved there if each states another host and none a rank. What remains unlikely is noted: files of
one rank that state several hosts, or name different GPUs by one number.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perfkit.errors import PerfkitError, ReadError
from perfkit.format import printable, several
from perfkit.job import FILE as JOB_FILE
from perfkit.paths import check, is_special
from perfkit.profile import Profile
from perfkit.readers import SUFFIXES, broken, claimants, reader, rivals, unrecognised
from perfkit.readers.text import by_number

# Forms in which one capture may lie in a folder, the one that is read first; "" is any other name.
FORMS = (
    *(".sqlite", "_pqtdir", "_arwdir", ".raw_base.csv", ".raw.csv", ".details.csv", ".csv"),
    *("", ".json", ".json.gz", ".nsys-rep", ".qdrep", ".ncu-rep"),
)
HEAD = 4096  # bytes, of a file that is compared with another of its size
NAMED = 5  # folders with a profile, where a folder above them was given
# In names of recordings: the step or the time (ms or ns since 1970) at which one was made, and the rank that made it.
EPISODE = re.compile(
    r"[._-]?step[._-]?\d{1,12}(?!\d)|\.\d{13,19}(?=\.)|^\d{10}(?:\.\d+)?-(?=TP-)", re.IGNORECASE
)
RANK = re.compile(r"(?<![a-z])rank[._-]?(\d{1,6})(?!\d)", re.IGNORECASE)
# Folders of one cycle of the profiler (torchtitan), and all folders into which programs sort the files of one run.
CYCLE = re.compile(r"(?:iteration|iter|step|cycle)[._-]?\d{1,12}", re.IGNORECASE)
LAYOUT = re.compile(
    rf"{CYCLE.pattern}|(?:rank|node|host|worker|proc)[._-]?\d{{1,9}}|profile_traces?|torch_profile",
    re.I,
)
LEVELS = 6  # of folders, at most
LOOKED = 100  # of them, and at as many things in each, is looked at


class Found(NamedTuple):
    """A profile's path, the name of its reader, and whether the path itself was given, not a folder around it."""

    path: Path
    reader: str
    is_given: bool = True


_Names = dict[tuple[int, int], str]  # of GPUs, by rank and number


class Place(NamedTuple):
    """The lowest rank of a profile in the run, what its own are counted up by, and the tables that have its own."""

    first: int = 0
    shift: int = 0
    ranked: tuple[str, ...] = ()

    def ranks(self, table: str, own: pd.Series) -> pd.Series:
        """Return the ranks in a table of the profile as ranks of the run."""
        return (
            own + self.shift
            if table in self.ranked
            else pd.Series(self.first, own.index, own.dtype)
        )


class _Stated(NamedTuple):
    """The ranks that a file is about, and whether it says so itself."""

    ranks: tuple[int, ...]
    itself: bool


def discovered(given: Sequence[Path], *, deep: bool = False) -> tuple[list[Found], list[str]]:
    """Return the profiles at these paths, each with the name of every reader of it, and notes on what was left out.

    Folders in a folder are looked into with `deep`; else only those of a LAYOUT, where no profile lies beside them.
    """
    if not given:
        raise ValueError("path: an empty list names no profile")
    profiles: list[Found] = []
    notes: list[str] = list(broken())
    for item in given:
        check(item)
        claimed = claimants(item)
        if claimed:
            notes += rivals(item, claimed)
            # A file that is one of several of its profile stands for its folder.
            parts = [
                name
                for name in claimed
                if item.is_file() and getattr(reader(name), "FOLDER", False)
            ]
            profiles += [
                Found(item.parent if name in parts else _whole(name, item), name)
                for name in claimed
            ]
        elif item.is_dir():
            profiles += _inside(item, notes, deep)
        else:
            raise unrecognised(item)
    different = {(profile.path.resolve(), profile.reader): profile for profile in profiles}
    return _without_copies(list(different.values()), notes), notes


def _whole(name: str, item: Path) -> Path:
    """Return the file that stands for a profile of several files, which is the file itself for most readers."""
    stands_for = getattr(reader(name), "stands_for", None)
    return Path(stands_for(item)) if stands_for else item


def _without_copies(profiles: Sequence[Found], notes: list[str]) -> list[Found]:
    """Leave out profiles with the content of another one, which would count as further ranks; note each."""
    alike: dict[tuple[str, str], list[Found]] = {}
    for profile in profiles:
        if not getattr(reader(profile.reader), "ALIKE", False):
            alike.setdefault((profile.reader, _glance(profile.path)), []).append(profile)
    first_of: dict[tuple[str, str], Path] = {}
    copies = set()
    for profile in (profile for group in alike.values() if len(group) > 1 for profile in group):
        first = first_of.setdefault((profile.reader, _digest(profile.path)), profile.path)
        if first != profile.path:
            copies.add(profile)
            notes.append(f"{profile.path.name}: left out, for its content is that of {first.name}")
    return [profile for profile in profiles if profile not in copies]


def _files(profile: Path) -> list[Path]:
    """Return the files of a profile: itself, or what its folder holds."""
    return (
        sorted(file for file in profile.iterdir() if file.is_file())
        if profile.is_dir()
        else [profile]
    )


def _glance(profile: Path) -> str:
    """Return what equal profiles have in common and few others do: their sizes and the head and tail of each file."""
    seen = hashlib.sha256()
    with suppress(OSError):  # the reader says what is wrong with it
        for file in _files(profile):
            size = file.stat().st_size
            seen.update(f"{size} ".encode())
            with file.open("rb") as opened:
                seen.update(opened.read(HEAD))
                opened.seek(max(0, size - HEAD))
                seen.update(opened.read(HEAD))
        return seen.hexdigest()
    return str(profile)


def _digest(profile: Path) -> str:
    """Return a checksum of all that a profile holds."""
    parts = []
    for file in _files(profile):
        with file.open("rb") as opened:
            parts.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return " ".join(parts)


def pattern(rank_regex: str) -> re.Pattern[str] | None:
    """Return the pattern that a user gave for the ranks in paths; PerfkitError if it is none."""
    try:
        compiled = re.compile(rank_regex)
    except re.error as e:
        raise PerfkitError(f"rank_regex {rank_regex!r}: no regular expression ({e}).") from e
    if rank_regex and compiled.groups != 1:
        raise PerfkitError(
            f"rank_regex {rank_regex!r}: put the digits of the rank, and nothing else, in parentheses."
        )
    return compiled if rank_regex else None


def rank_in(path: Path, pattern: re.Pattern[str] | None) -> int | None:
    """Return the rank that a user's pattern finds in a path, None if it finds none."""
    match = pattern.search(str(path)) if pattern else None
    return int(match[1]) if match and re.fullmatch(r"\d{1,9}", match[1] or "") else None


def _inside(folder: Path, notes: list[str], deep: bool, levels: int = LEVELS) -> list[Found]:
    """Return the profiles in a folder, each capture in one form; what should be a profile and is none is noted."""
    profiles: list[Found] = []
    others: list[str] = []
    inner: list[Path] = []
    refused: list[tuple[Path, ReadError]] = []
    for item in _sorted(folder):
        if item.name.startswith("."):
            continue
        claimed = () if is_special(item) else claimants(item)
        if claimed:
            notes += rivals(item, claimed)
            profiles += [Found(_whole(name, item), name, is_given=False) for name in claimed]
        elif item.suffix in SUFFIXES and not is_special(item):
            refused.append((item, unrecognised(item)))
        elif item.is_dir() and not item.is_symlink() and (deep or LAYOUT.fullmatch(item.name)):
            inner.append(item)
        else:
            others += [item.name] if item.name != JOB_FILE else []
    beside = _in_one_form(list(dict.fromkeys(profiles)), notes)
    if levels and (deep or not profiles):
        for item in inner:
            with suppress(ReadError):  # a folder without a profile
                beside += _inside(item, notes, deep, levels - 1)
        inner = []
    others += [item.name for item in inner]
    if not beside:
        raise refused[0][1] if refused else _deeper(folder) or unrecognised(folder)
    notes += [not_read(item, error) for item, error in refused]
    if others:
        notes.append(f"{folder.name}: left out what is no profile ({several(others, 3)})")
    return beside


def not_read(path: Path, error: ReadError) -> str:
    """Return the note on a profile of a folder that cannot be read while others can."""
    return f"{path.name}: not part of this run, for it cannot be read: {str(error).removeprefix(f'{path}: ')}"


def _deeper(folder: Path) -> ReadError | None:
    """Return the refusal of a folder whose folders hold the profiles, with the first of them; None if none does."""
    inner = [
        item for item in _sorted(folder) if item.is_dir() and os.access(item, os.R_OK | os.X_OK)
    ]
    seen = (item for item in inner[:LOOKED] if not item.name.startswith("."))
    holding = (
        item.name
        for item in seen
        if any(claimants(p) for p in _sorted(item)[:LOOKED] if not is_special(p))
    )
    named = [name for name, _ in zip(holding, range(NAMED + 1), strict=False)]
    if not named:
        return None
    listed = ", ".join(named[:NAMED]) + (" and others" if len(named) > NAMED else "")
    return ReadError(f"{folder}: runs lie one level deeper, in {listed}. Point at one of them.")


def _sorted(folder: Path) -> list[Path]:
    """Return what a folder holds, rank_2 before rank_10."""
    return sorted(folder.iterdir(), key=lambda p: (by_number(p.name), p.name))


def _in_one_form(profiles: list[Found], notes: list[str]) -> list[Found]:
    """Leave out a report if its export is in the folder, and all but one export of the same report."""
    captures: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for path, name, _ in profiles:
        known = getattr(reader(name), "NAMED_FORMS", FORMS)
        form = next((f for f in known if f and path.name.endswith(f)), "")
        captures.setdefault((path.name.removesuffix(form), name), []).append(
            (known.index(form), path)
        )
    kept: list[Found] = []
    for (_, name), forms in captures.items():
        first, *others = [path for _, path in sorted(forms)]
        kept.append(Found(first, name, is_given=False))
        notes += [
            f"{other.name}: the capture of {first.name} in another form, left out"
            for other in others
        ]
    return kept


def places(profiles: Sequence[Profile]) -> tuple[list[Place], list[str]]:
    """Return the place of each profile, and notes on profiles that are not counted as their files state."""
    placed = [Place()] * len(profiles)
    notes: list[str] = []
    tools = _by_tool(profiles)
    first_of = episodes(profiles)
    for beside in tools.values():
        if len(beside) == 1 and profiles[beside[0]].rank is None:
            placed[beside[0]] = Place(0, 0, _ranked(profiles[beside[0]]))
            continue
        leaders = [i for i in beside if i not in first_of]
        stated = _named([profiles[i] for i in leaders], [_stated(profiles[i]) for i in leaders])
        for i, own, shift in zip(leaders, stated, _shifts(stated), strict=True):
            placed[i] = Place(own.ranks[0] + shift, shift, _ranked(profiles[i]))
            if shift and own.itself:
                name, one, to = profiles[i].path.name, own.ranks[0], own.ranks[0] + shift
                told = f"rank {one} is counted as {to}: the ranks that the files state are not all different"
                if (several := len(own.ranks)) > 1:
                    told = f"its {several} ranks from {one} on are counted from {to} on: another file has some of them"
                notes.append(f"{name}: {told}")
    between = "what was not recorded between them is left out"
    if len({profile.reader for profile in profiles}) > 1:  # as in `perfkit.run.shifts`
        between = "the time between them counts, since another tool recorded too"
    for i, first in first_of.items():
        placed[i] = placed[first]
        both = (
            f"the same rank ({placed[first].first}) as {profiles[first].path.name}, at another time"
        )
        notes.append(f"{profiles[i].path.name}: a recording of {both}; {between}")
    return placed, [*notes, *_by_host(profiles, list(tools.values()), placed)]


def _by_tool(profiles: Sequence[Profile]) -> dict[tuple[str, str], list[int]]:
    """Return the positions of the files of each reader and tool."""
    tools: dict[tuple[str, str], list[int]] = {}
    for i, profile in enumerate(profiles):
        tools.setdefault((profile.reader, str(profile.capture["tool"].iloc[0])), []).append(i)
    return tools


def episodes(profiles: Sequence[Profile]) -> dict[int, int]:
    """Return the first file of the same rank for each later one: a process writes one per profiler cycle or step.

    The names of such files differ in the step or the time only, they state no different ranks, and no two overlap.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for tool, beside in _by_tool(profiles).items():
        for i in beside:
            profile = profiles[i]
            name, folder = EPISODE.sub("", profile.path.name), profile.path.parent
            if CYCLE.fullmatch(folder.name):
                alike.setdefault((tool, folder.parent, name, profile.rank), []).append(i)
            elif name != profile.path.name and re.search(r"\w", name.partition(".")[0]):
                alike.setdefault((tool, folder, name, profile.rank), []).append(i)
    first_of: dict[int, int] = {}
    for group in alike.values():
        spans = sorted((*(profiles[i].span or (0, 0)), i) for i in group)
        if spans[0][0] and all(one[1] <= other[0] for one, other in pairwise(spans)):
            first_of.update({i: spans[0][2] for _, _, i in spans[1:]})
    return first_of


def _named(profiles: Sequence[Profile], stated: list[_Stated]) -> list[_Stated]:
    """Return the ranks that files state, or where none states one, those in names like rank1_trace if these differ."""
    found = [RANK.search(p.path.name) for p in profiles]
    ranks = [int(rank[1]) for rank in found if rank]
    if any(file.itself for file in stated) or len({*ranks}) < len(profiles):
        return stated
    return [_Stated((rank,), True) for rank in ranks]


def _by_host(profiles: Sequence[Profile], tools: list[list[int]], placed: list[Place]) -> list[str]:
    """Move the files of tools whose hosts are stated to the ranks of these hosts; return notes on what was moved."""
    stating = [beside for beside in tools if any(profiles[i].node for i in beside)]
    free = []  # the files of a tool may be moved if each states another host, and none a rank
    for beside in stating if len(stating) > 1 else ():
        hosts = {profiles[i].node for i in beside}
        if (
            "" not in hosts
            and len(hosts) == len(beside)
            and not any(_stated(profiles[i]).itself for i in beside)
        ):
            free.append(beside)
    of_host: dict[str, int] = {}
    for i in (i for beside in tools if beside not in free for i in beside):
        if profiles[i].node:
            of_host[profiles[i].node] = min(
                placed[i].first, of_host.get(profiles[i].node, placed[i].first)
            )
    notes = []
    for i in (i for beside in sorted(free, key=len, reverse=True) for i in beside):
        taken = {placed[j].first for j in range(len(profiles)) if profiles[j].node and j != i}
        others = {rank for host, rank in of_host.items() if host != profiles[i].node}
        rank = of_host.get(profiles[i].node, placed[i].first)
        if rank in others:
            rank = max(taken | others) + 1
            notes.append(
                f"{profiles[i].path.name}: counted as rank {rank}: it states another host than other tools"
            )
        of_host[profiles[i].node] = rank
        placed[i] = placed[i]._replace(first=rank, shift=rank)
    return notes


def _ranked(profile: Profile) -> tuple[str, ...]:
    """Return the tables in which the reader of a profile counts the ranks of its file."""
    several: tuple[str, ...] = getattr(reader(profile.reader), "RANKED", ())
    return (
        ()
        if profile.rank is not None
        else tuple(name for name in several if name in profile.loaders)
    )


def _stated(profile: Profile) -> _Stated:
    if profile.rank is not None:
        return _Stated((profile.rank,), True)
    inside = {
        int(rank) for name in _ranked(profile) for rank in profile.table(name)["rank"].unique()
    }
    return _Stated(tuple(sorted(inside)) or (0,), len(inside) > 1)


def _shifts(stated: Sequence[_Stated]) -> list[int]:
    """Return by how much the ranks of each file are counted up."""
    if all(len(file.ranks) == 1 for file in stated):
        own = {file.ranks[0] for file in stated if file.itself}
        return [
            0 if len(own) == len(stated) else i - file.ranks[0] for i, file in enumerate(stated)
        ]
    used: set[int] = set()
    shifts = [0] * len(stated)
    # What states its ranks goes first: a file that states none takes what is left.
    for i in sorted(range(len(stated)), key=lambda i: not stated[i].itself):
        ranks = stated[i].ranks
        shifts[i] = max(used) + 1 - ranks[0] if used & set(ranks) else 0
        used |= {rank + shifts[i] for rank in ranks}
    return shifts


def unlikely(profiles: Sequence[Profile], placed: Sequence[Place]) -> list[str]:
    """Return notes on profiles of several tools that are counted as one rank and can hardly be of one node."""
    of_rank: dict[int, list[Profile]] = {}
    for profile, place in zip(profiles, placed, strict=True):
        of_rank.setdefault(place.first, []).append(profile)
    place_of = dict(zip(map(id, profiles), placed, strict=True))
    notes = []
    for together in (beside for beside in of_rank.values() if len(beside) > 1):
        names = [_gpu_names(profile, place_of[id(profile)]) for profile in together]
        for (one, of_one), (other, of_other) in combinations(zip(together, names, strict=True), 2):
            if why := _contradiction(one, of_one, other, of_other):
                notes.append(
                    f"{one.path.name} and {other.path.name}: counted as of one node, though they {why}"
                )
    return notes


def _contradiction(one: Profile, names: _Names, other: Profile, others: _Names) -> str:
    """Return in what two profiles contradict each other, empty if in nothing."""
    if one.node and other.node and one.node != other.node:
        return "state different hosts: load them apart"
    for key in sorted(names.keys() & others.keys()):
        if not is_alike(names[key], others[key]):
            both = f"{printable(names[key], 60)}, {printable(others[key], 60)}"
            return f"name different GPUs as GPU {key[1]} of rank {key[0]} ({both})"
    return ""


def _gpu_names(profile: Profile, place: Place) -> _Names:
    """Return the name of each GPU of a profile, by its rank in the run and its number."""
    if "DEVICES" not in profile.loaders:
        return {}
    devices = profile.table("DEVICES")
    ranks = place.ranks("DEVICES", devices["rank"])
    return {
        (int(r), int(g)): str(n)
        for r, g, n in zip(ranks, devices["gpu"], devices["name"], strict=True)
        if n
    }


def is_alike(one: str, other: str) -> bool:
    """Tell whether two names can be of one GPU: some tools leave the maker out, and slices are named after it."""
    short = [
        re.sub(r"nvidia|amd|tesla|geforce|[^a-z0-9]", "", name.lower()) for name in (one, other)
    ]
    return short[0] in short[1] or short[1] in short[0]
