"""Joining: which profiles at the same paths can be of one program on one machine, and which cannot.

Profiles are compared with the ones that already belong: first what holds times of single kernels first: a timeline, a
framework's trace, counters, call paths, then logs. One is kept apart where a fact contradicts that it is of the same
runs: it was recorded long before or after all others, on another GPU, launched other kernels or hardly any of them, is
a log of more than the GPU can do, or of collectives of several ranks while one GPU worked without any. What a profile
does not state contradicts nothing, and small differences are left to the notes of `perfkit.discovery` and `Run`.

A profile of a folder that does not belong is left out with a note. One that was given by its own path is refused.

`stacked`, `distinct` and `devices` put together the tables of profiles that belong together, and count nothing twice.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from perfkit import names
from perfkit.discovery import is_alike
from perfkit.errors import PerfkitError
from perfkit.format import duration, number, printable, several, size
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
LISTED = 3  # metrics in a note
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
    timed = [(other.span, other) for other in others if other.span]
    if not timed or not profile.span:
        return ""
    start, end = profile.span
    gaps = [max(began - end, start - ended) for (began, ended), _ in timed]
    nearest = min(range(len(gaps)), key=gaps.__getitem__)
    (_, ended), other = timed[nearest]
    is_log = kind(profile.reader) in ("monitor", "training") and end > start
    if gaps[nearest] <= (OF_ANOTHER_RUN_NS if is_log else LONG_NS):
        return ""
    order = "after" if start > ended else "before"
    gap = f"{gaps[nearest] / DAY_NS:,.0f} days" if gaps[nearest] >= 2 * DAY_NS else duration(gaps[nearest])
    return f"it was recorded {gap} {order} {printable(other.path.name, 80)}"


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
    if "SAMPLES" not in profile.loaders or kind(profile.reader) != "monitor" or _gpus([profile]):
        return ""
    tables = [other.table("DEVICES") for other in others if "DEVICES" in other.loaders and _gpus([other])]
    if not tables:
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
    if "CALLTREE" not in profile.loaders or not (timelines := _with_kernels(others)):
        return ""
    from perfkit.analysis.calltree.paths import launched  # most runs have no call paths, and need no analysis yet

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
    from perfkit.analysis.calltree.paths import KERNEL

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


class _Series(NamedTuple):
    """The readings [start, stop) of one metric of a device in one of several frames."""

    device: tuple[int, int, str]
    frame: int
    start: int
    stop: int
    first_ns: int
    last_ns: int

    @property
    def readings(self) -> int:
        return self.stop - self.start

    def meets(self, other: _Series) -> bool:
        """Tell whether two have readings of one time; a single reading is of the time of all others."""
        return 1 in (self.readings, other.readings) or (
            self.first_ns <= other.last_ns and other.first_ns <= self.last_ns
        )


def stacked(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Stack frames; categories are united, which plain concatenation would turn into text."""
    columns = {}
    for name in parts[0].columns:
        values = [part[name] for part in parts]
        if isinstance(values[0].dtype, pd.CategoricalDtype):
            columns[name] = pd.Series(union_categoricals(values, sort_categories=True))
        else:
            columns[name] = pd.concat(values, ignore_index=True)
    return pd.DataFrame(columns, copy=False)


def distinct(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> tuple[list[pd.DataFrame], list[str]]:
    """Return SAMPLES without series that another has of the same time; of two the one with more readings stays."""
    if len(frames) < 2:
        return list(frames), []
    longest = sorted((s for i, frame in enumerate(frames) for s in _series(frame, i)), key=lambda s: -s.readings)
    kept: dict[tuple[int, int, str], list[_Series]] = {}
    masks = [np.ones(len(frame), bool) for frame in frames]
    left: dict[tuple[int, int], dict[str, None]] = {}
    for one in longest:
        others = (other for other in kept.get(one.device, ()) if other.frame != one.frame)
        better = next((other for other in others if other.meets(one)), None)
        if better is None:
            kept.setdefault(one.device, []).append(one)
        else:
            masks[one.frame][one.start : one.stop] = False
            left.setdefault((one.frame, better.frame), {})[one.device[2]] = None
    notes = [
        f"{names[less]}: {several(metrics, LISTED)} left out, {names[more]} has more readings of the same GPUs"
        for (less, more), metrics in sorted(left.items())
    ]
    return [frame if mask.all() else frame[mask] for frame, mask in zip(frames, masks, strict=True)], notes


def _series(frame: pd.DataFrame, number: int) -> list[_Series]:
    """Return the series of a table whose order puts the readings of each one after the other."""
    keys = [frame[name].to_numpy() for name in ("rank", "gpu")] + [frame["metric"].cat.codes.to_numpy()]
    changed = np.logical_or.reduce([np.diff(key) != 0 for key in keys])
    starts = np.append(0, 1 + np.flatnonzero(changed))[: len(frame)]
    stops = np.append(starts[1:], len(frame))[: len(starts)]
    heads, times = frame.iloc[starts], frame["time_ns"].to_numpy()
    devices = zip(heads["rank"].tolist(), heads["gpu"].tolist(), heads["metric"].astype(str), strict=True)
    return [
        _Series(device, number, start, stop, int(times[start]), int(times[stop - 1]))
        for device, start, stop in zip(devices, starts.tolist(), stops.tolist(), strict=True)
    ]


def devices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return DEVICES with each GPU once, from the row that knows most of it."""
    filled = frame.astype(object).where(frame.notna(), "").map(bool).sum(axis=1)
    return frame.iloc[np.argsort(-filled.to_numpy(), kind="stable")].drop_duplicates(["rank", "gpu"]).sort_index()
