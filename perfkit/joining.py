"""Joining: which profiles at the same paths can be of one program on one machine, and which cannot.

Profiles are compared with those that belong already, what holds times of single kernels first: a timeline, a
framework's trace, counters, call paths, then logs. One is kept apart where a fact contradicts that it is of the same
runs: it was recorded long before or after all others, on another GPU, launched other kernels or hardly any of them, is
a log of more than the GPU can do, or of collectives of several ranks while one GPU worked without any. What a profile
does not state contradicts nothing, and small differences are left to the notes of `perfkit.discovery` and `Run`.

A profile of a folder that does not belong is left out with a note. One that was given by its own path is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from perfkit import names
from perfkit.analysis.calltree.paths import KERNEL, launched
from perfkit.discovery import is_alike
from perfkit.errors import PerfkitError
from perfkit.format import duration, number, printable, size
from perfkit.hardware import peaks
from perfkit.profile import Profile
from perfkit.readers import kind

# What belongs is decided in this order: what says most of single kernels first.
ORDER = ("timeline", "framework", "counters", "call_paths", "monitor", "network", "training")
DAY_NS = 86_400 * 10**9
# Two recordings of one program are hardly further apart (convention): by then drivers and the program have changed.
LONG_NS = 30 * DAY_NS
OF_ANOTHER_RUN_NS = DAY_NS  # from a log to the recording beside it (convention): more than any error of a time zone
MORE_LAUNCHES = 100  # times as many launches: hardly of the same work (convention; a part of a run is often a tenth)
ABOVE_LIMIT = 1.5  # times the data sheet's power: more than makers let users raise it (convention)
ABOVE_MEMORY = 1.02  # times the GPU's memory: tools count what is reserved differently
REMEDY = "Load it alone, or beside what was recorded of the same program on the same machine"
_UNNAMED = re.compile(r"0x[0-9a-f]+|\D*", re.IGNORECASE)  # an identifier, or a name without a model number
_BINARY = re.compile(r" \[[^\]]*\]$")  # which HPCToolkit adds to the name of a kernel


def members(profiles: Sequence[Profile], given: Container[Path], notes: list[str]) -> list[Profile]:
    """Return the profiles that can be of one program, in their order, and add a note on each that is left out.

    PerfkitError if one that does not belong is in `given`, the paths that the user named one by one.
    """
    belonging: list[int] = []
    for i in sorted(range(len(profiles)), key=lambda i: ORDER.index(kind(profiles[i].reader))):
        profile, others = profiles[i], [profiles[j] for j in belonging]
        reason = next(contradictions(profile, others), "") if others else ""
        if not reason:
            belonging.append(i)
            continue
        beside = printable(others[0].path.name, 80)
        if profile.path in given:
            raise PerfkitError(f"{profile.path}: does not belong to one run with {beside}: {reason}. {REMEDY}.")
        notes.append(f"{profile.path.name}: kept apart from {beside}, no figure is made of both: {reason}. {REMEDY}")
    return [profiles[i] for i in sorted(belonging)]


def contradictions(profile: Profile, others: Sequence[Profile]) -> Iterator[str]:
    """Yield why a profile cannot be of one program and machine with others that are; what costs least comes first."""
    for find in (_long_apart, _of_another_gpu, _of_more_than_it_has, _of_other_kernels, _of_more_ranks):
        if reason := find(profile, others):
            yield reason


def _long_apart(profile: Profile, others: Sequence[Profile]) -> str:
    """Say how long before or after all others a profile was recorded, if too long."""
    if not (timed := [other for other in others if _span(other)]) or not _span(profile):
        return ""
    start, end = _span(profile)
    gaps = [max(_span(other)[0] - end, start - _span(other)[1]) for other in timed]
    nearest = min(range(len(gaps)), key=gaps.__getitem__)
    is_log = kind(profile.reader) in ("monitor", "training") and end > start
    if gaps[nearest] <= (OF_ANOTHER_RUN_NS if is_log else LONG_NS):
        return ""
    order = "after" if start > _span(timed[nearest])[1] else "before"
    return f"it was recorded {_days(gaps[nearest])} {order} {printable(timed[nearest].path.name, 80)}"


def _days(ns: int) -> str:
    return f"{ns / DAY_NS:,.0f} days" if ns >= 2 * DAY_NS else duration(ns)


def _span(profile: Profile) -> tuple[int, ...]:
    """Return when a profile begins and ends, ns since 1970; empty where the wall clock is not known."""
    if profile.capture["t0_unix_ns"].isna().any():
        return ()
    start = int(profile.capture["t0_unix_ns"].iloc[0])
    return start, start + int(profile.capture["dur_ns"].iloc[0])


def _of_another_gpu(profile: Profile, others: Sequence[Profile]) -> str:
    """Say which GPUs two sides name, if none of the one can be one of the other; ranks may be on different GPUs."""
    if "KERNELS" in profile.loaders and profile.reader in {other.reader for other in others}:
        return ""
    own, beside = _gpus([profile]), _gpus(others)
    if not own or not beside or any(is_alike(one, other) for one in own for other in beside):
        return ""
    return f"its GPU is {_listed(own)}, that of the others {_listed(beside)}"


def _gpus(profiles: Sequence[Profile]) -> list[str]:
    """Return the names of GPUs that tell models apart."""
    tables = [profile.table("DEVICES") for profile in profiles if "DEVICES" in profile.loaders]
    every = dict.fromkeys(str(name) for table in tables for name in table["name"])
    return [name for name in every if not _UNNAMED.fullmatch(name)]


def _listed(gpus: Sequence[str]) -> str:
    return " and ".join(printable(name, 60) for name in gpus[:2]) + (" and others" if len(gpus) > 2 else "")


def _of_more_than_it_has(profile: Profile, others: Sequence[Profile]) -> str:
    """Say what a log reads that no GPU of the others can have: memory in use, power."""
    tables = [other.table("DEVICES") for other in others if "DEVICES" in other.loaders and _gpus([other])]
    if "SAMPLES" not in profile.loaders or kind(profile.reader) != "monitor" or not tables or _gpus([profile]):
        return ""
    samples = profile.table("SAMPLES")
    most = samples.groupby("metric", observed=True)["value"].max()
    memory = [int(bytes) for table in tables for bytes in table["memory_bytes"].dropna() if bytes]
    if memory and most.get("memory_used_bytes", 0) > ABOVE_MEMORY * max(memory):
        return f"it reads {size(most['memory_used_bytes'])} of memory in use, and {_listed(_gpus(others))} has less"
    sheets = [peaks(name) for name in _gpus(others)]
    limits = [sheet.tdp_w for sheet in sheets if sheet and sheet.tdp_w]
    if limits and len(limits) == len(sheets) and most.get("power_w", 0) > ABOVE_LIMIT * max(limits):
        power = f"{number(most['power_w'])} W, and {_listed(_gpus(others))}"
        return f"it reads {power} draws up to {number(max(limits))} W (data sheet)"
    return ""


def _of_other_kernels(profile: Profile, others: Sequence[Profile]) -> str:
    """Say which kernels call paths lead to, if a timeline has none of them, or how many launches, if far fewer."""
    timelines = _with_kernels(others)
    if "CALLTREE" not in profile.loaders or not timelines:
        return ""
    sites = launched(profile.table("CALLTREE"), profile.table("CALL_METRICS"))
    tables = [timeline.table("KERNELS") for timeline in timelines]
    launches, count = float(sites["launch_count"].sum()), sum(map(len, tables))
    own = _bases(sites["full_name"].dropna())
    beside = {base for table in tables for base in _bases(table["full_name"].cat.categories)} if count else set()
    if own and beside and not own & beside:
        return f"none of its kernels ({printable(min(own), 60)}) is in {printable(timelines[0].path.name, 80)}"
    if launches and count and max(launches, count) > MORE_LAUNCHES * min(launches, count):
        return f"it has {launches:,.0f} kernel launches, {printable(timelines[0].path.name, 80)} {count:,}"
    return ""


def _with_kernels(profiles: Sequence[Profile]) -> list[Profile]:
    """Return the profiles of the first reader that has kernels: the others are not counted again."""
    traced = [profile for profile in profiles if "KERNELS" in profile.loaders and len(profile.table("KERNELS"))]
    return [profile for profile in traced if profile.reader == traced[0].reader]


def _bases(full_names: Iterable[str]) -> set[str]:
    """Return kernels without templates and parameters, which tools write differently; empty if one has no name."""
    every = {_BINARY.sub("", str(name)) for name in full_names}
    return set() if KERNEL in every else set(map(names.base, every))


def _of_more_ranks(profile: Profile, others: Sequence[Profile]) -> str:
    """Say of how many ranks a log of collectives is, if the others are of one GPU that launched no collective."""
    traced = _with_kernels(others) if kind(profile.reader) == "network" else []
    if not traced or (ranks := _ranks(profile)) < 2:
        return ""
    tables = [each.table("KERNELS") for each in traced]
    gpus = sum(len(table[["rank", "gpu"]].drop_duplicates()) for table in tables)
    if gpus > 1 or any(table["family"].eq("communication").any() for table in tables):
        return ""
    beside = printable(traced[0].path.name, 80)
    return f"its collectives are of {ranks} ranks, and the one GPU of {beside} launched no collective"


def _ranks(profile: Profile) -> int:
    """Return the number of ranks that take part in what a log of collectives is about."""
    links, collectives = profile.table("LINKS"), profile.table("COLLECTIVES")
    counted = int(collectives["ranks"].max()) if collectives["ranks"].notna().any() else 0
    return max(counted, *(1 + int(links[end].max()) for end in ("from_rank", "to_rank") if len(links)), 0)
