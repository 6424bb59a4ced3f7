"""Joining: which profiles at the same paths can be of one program on one machine, and which cannot.

Profiles are compared with the ones that already belong: first what holds times of single kernels first: a timeline, a
framework's trace, counters, call paths, then logs. One is kept apart where a fact contradicts that it is of the same
runs: it was recorded long before or after all others, on another GPU, launched other kernels or hardly any of them, is
a log of more than the GPU can do, or of collectives of several ranks while one GPU worked without any. What a profile
does not state contradicts nothing, and small differences are left to the notes of `perfkit.discovery` and `Run`.

A profile of a folder that does not belong is left out with a note. One that was given by its own path is refused.

`stacked`, `distinct` and `devices` put together the tables of profiles that belong together, and count nothing twice.
`absent`, `astray` and `once` are notes on a run: which ranks are missing, which logs miss the timeline, and each note
once for all its files.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from perfkit import names
from perfkit.discovery import Place, is_alike
from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent, printable, several, size
from perfkit.hardware import peaks
from perfkit.job import Job
from perfkit.profile import Profile
from perfkit.readers import kind
from perfkit.schema import stretches

# What belongs is decided in this order: what says most of single kernels first.
ORDER = (
    "timeline",
    "framework",
    "counters",
    "call_paths",
    "monitor",
    "network",
    "training",
    "memory",
)
DAY_NS = 86_400 * 10**9
# Two recordings of one program are hardly further apart (convention): by then drivers and the program have changed.
LONG_NS = 30 * DAY_NS
OF_ANOTHER_RUN_NS = (
    DAY_NS  # from a log to the recording beside it (convention): more than any error of a time zone
)
MORE_LAUNCHES = 100  # times as many launches: hardly of the same work (convention; a part of a run is often a tenth)
ABOVE_LIMIT = 1.5  # times the data sheet's power: more than makers let users raise it (convention)
ABOVE_MEMORY = 1.02  # times the GPU's memory: tools count what is reserved differently
LISTED = 3  # metrics, runs of ranks, or files in a note
ALONE = (
    16  # files left out of a run, each with a note of its own; each may have a reason of its own
)
QUARTER = 900 * 10**9  # ns
OFFSETS = range(-12 * 4, 14 * 4 + 1)  # of the time zones there are, in quarters of an hour
ZONELESS = "taken as UTC"  # so says a reader's note on a log of local times
IN_UTC = "record in UTC (`TZ=UTC nvidia-smi ...`)"
REMEDY = "Load it alone, or beside what was recorded of the same program on the same machine"
_UNNAMED = re.compile(
    r"0x[0-9a-f]+|\D*", re.IGNORECASE
)  # an identifier, or a name without a model number
_BINARY = re.compile(r" \[[^\]]*\]$")  # which HPCToolkit adds to the name of a kernel


def members(profiles: Sequence[Profile], given: Container[Path], notes: list[str]) -> list[Profile]:
    """Return the profiles that can be of one program, in their order, and add a note on each that is left out.

    PerfkitError if one that does not belong is in `given`, the paths that the user named one by one.
    """
    belonging: list[int] = []
    others = Others(len(profiles))
    for i in sorted(range(len(profiles)), key=lambda i: ORDER.index(kind(profiles[i].reader))):
        profile = profiles[i]
        reason = next(contradictions(profile, others), "") if belonging else ""
        if not reason:
            belonging.append(i)
            others.add(profile)
            continue
        beside = printable(profiles[belonging[0]].path.name, 80)
        if profile.path in given:
            raise PerfkitError(
                f"{profile.path}: does not belong to one run with {beside}: {reason}. {REMEDY}."
            )
        notes.append(
            f"{profile.path.name}: kept apart from {beside}, no figure is made of both: {reason}. {REMEDY}"
        )
    return [profiles[i] for i in sorted(belonging)]


class Others:
    """What the profiles of a run tell together, so that the next one need not be held against each of them."""

    def __init__(self, most: int) -> None:
        self.readers: set[str] = set()
        self.gpus: dict[str, None] = {}  # names that tell models apart, in the order they came
        self.memory_bytes = 0  # of the largest GPU
        self.timed: list[Profile] = []
        self._spans = np.zeros((2, most))  # float64: differences of any two times fit
        self._traced: list[Profile] = []

    def add(self, profile: Profile) -> None:
        """Take one more profile."""
        self.readers.add(profile.reader)
        if profile.span:
            self._spans[:, len(self.timed)] = profile.span
            self.timed.append(profile)
        if "KERNELS" in profile.loaders:
            self._traced.append(profile)
        named = _gpus(profile)
        self.gpus.update(dict.fromkeys(named))
        if named:
            sizes = profile.table("DEVICES")["memory_bytes"].dropna()
            self.memory_bytes = max(self.memory_bytes, int(sizes.max()) if len(sizes) else 0)

    def gaps_ns(self, start: int, end: int) -> NDArray[np.float64]:
        """Return the time from a span to that of each of `timed`, below 0 where they overlap."""
        starts, ends = self._spans[:, : len(self.timed)]
        gaps: NDArray[np.float64] = np.maximum(starts - end, start - ends)
        return gaps

    def with_kernels(self) -> list[Profile]:
        """Return the profiles of the first reader that has kernels: the others are not counted again."""
        traced = [profile for profile in self._traced if len(profile.table("KERNELS"))]
        return [profile for profile in traced if profile.reader == traced[0].reader]


def contradictions(profile: Profile, others: Others) -> Iterator[str]:
    """Yield why a profile cannot be of one program and machine with others that are; what costs least comes first."""
    for find in (
        _long_apart,
        _of_another_gpu,
        _of_more_than_it_has,
        _of_other_kernels,
        _of_more_ranks,
    ):
        if reason := find(profile, others):
            yield reason


def _long_apart(profile: Profile, others: Others) -> str:
    """Say how long before or after all others a profile was recorded, if too long."""
    if not others.timed or not profile.span:
        return ""
    start, end = profile.span
    gaps = others.gaps_ns(start, end)
    nearest = int(gaps.argmin())
    other, apart_ns = others.timed[nearest], float(gaps[nearest])
    is_log = kind(profile.reader) in ("monitor", "training") and end > start
    if apart_ns <= (OF_ANOTHER_RUN_NS if is_log else LONG_NS):
        return ""
    order = "after" if other.span and start > other.span[1] else "before"
    gap = f"{apart_ns / DAY_NS:,.0f} days" if apart_ns >= 2 * DAY_NS else duration(apart_ns)
    return f"it was recorded {gap} {order} {printable(other.path.name, 80)}"


def _of_another_gpu(profile: Profile, others: Others) -> str:
    """Say which GPUs two sides name, if none of the one can be one of the other; ranks may be on different GPUs."""
    if "KERNELS" in profile.loaders and profile.reader in others.readers:
        return ""
    own, beside = _gpus(profile), [*others.gpus]
    if not own or not beside or any(is_alike(one, other) for one in own for other in beside):
        return ""
    return f"its GPU is {_listed(own)}, that of the others {_listed(beside)}"


def _gpus(profile: Profile) -> list[str]:
    """Return the names of GPUs that tell models apart."""
    every = dict.fromkeys(map(str, profile.table("DEVICES")["name"]))
    return [name for name in every if not _UNNAMED.fullmatch(name)]


def _listed(gpus: Sequence[str]) -> str:
    return " and ".join(printable(name, 60) for name in gpus[:2]) + (
        " and others" if len(gpus) > 2 else ""
    )


def _of_more_than_it_has(profile: Profile, others: Others) -> str:
    """Say what a log reads that no GPU of the others can have: memory in use, power."""
    if "SAMPLES" not in profile.loaders or kind(profile.reader) != "monitor" or _gpus(profile):
        return ""
    if not others.gpus:
        return ""
    samples = profile.table("SAMPLES")
    most = samples.groupby("metric", observed=True)["value"].max()
    memory, listed = others.memory_bytes, _listed([*others.gpus])
    if memory and most.get("memory_used_bytes", 0) > ABOVE_MEMORY * memory:
        return f"it reads {size(most['memory_used_bytes'])} of memory in use, and {listed} has less"
    sheets = [peaks(name) for name in others.gpus]
    limits = [sheet.tdp_w for sheet in sheets if sheet and sheet.tdp_w]
    if limits and len(limits) == len(sheets) and most.get("power_w", 0) > ABOVE_LIMIT * max(limits):
        power = f"{number(most['power_w'])} W, and {listed}"
        return f"it reads {power} draws up to {number(max(limits))} W (data sheet)"
    return ""


def _of_other_kernels(profile: Profile, others: Others) -> str:
    """Say which kernels call paths lead to, if a timeline has none of them, or how many launches, if far fewer."""
    if "CALLTREE" not in profile.loaders or not (timelines := others.with_kernels()):
        return ""
    from perfkit.analysis.calltree.paths import (
        launched,
    )  # most runs have no call paths, and need no analysis yet

    sites = launched(profile.table("CALLTREE"), profile.table("CALL_METRICS"))
    tables = [timeline.table("KERNELS") for timeline in timelines]
    launches, count = float(sites["launch_count"].sum()), sum(map(len, tables))
    own = _bases(sites["full_name"].dropna())
    beside = (
        {base for table in tables for base in _bases(table["full_name"].cat.categories)}
        if count
        else set()
    )
    if own and beside and not own & beside:
        return f"none of its kernels ({printable(min(own), 60)}) is in {printable(timelines[0].path.name, 80)}"
    if launches and count and max(launches, count) > MORE_LAUNCHES * min(launches, count):
        return f"it has {launches:,.0f} kernel launches, {printable(timelines[0].path.name, 80)} {count:,}"
    return ""


def _bases(full_names: Iterable[str]) -> set[str]:
    """Return kernels without templates and parameters, which tools write differently; empty if one has no name."""
    from perfkit.analysis.calltree.paths import KERNEL

    every = {_BINARY.sub("", str(name)) for name in full_names}
    return set() if KERNEL in every else set(map(names.base, every))


def _of_more_ranks(profile: Profile, others: Others) -> str:
    """Say of how many ranks a log of collectives is, if the others are of one GPU that launched no collective."""
    traced = others.with_kernels() if kind(profile.reader) == "network" else []
    links, collectives = profile.table("LINKS"), profile.table("COLLECTIVES")
    counted = int(collectives["ranks"].max()) if collectives["ranks"].notna().any() else 0
    ranks = max(
        counted, *(1 + int(links[end].max()) for end in ("from_rank", "to_rank") if len(links)), 0
    )
    if not traced or ranks < 2:
        return ""
    tables = [each.table("KERNELS") for each in traced]
    gpus = sum(len(table[["rank", "gpu"]].drop_duplicates()) for table in tables)
    if gpus > 1 or any(table["family"].eq("communication").any() for table in tables):
        return ""
    beside = printable(traced[0].path.name, 80)
    return (
        f"its collectives are of {ranks} ranks, and the one GPU of {beside} launched no collective"
    )


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
        is_single = 1 in (self.readings, other.readings)
        return is_single or (self.first_ns <= other.last_ns and other.first_ns <= self.last_ns)


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


def stacks_before(profiles: Sequence[Profile], ranks: Sequence[int]) -> dict[int, int]:
    """Return how many stacks the earlier profiles of its rank have, by each profile's identity.

    Added to the numbers of its stacks, it keeps them unique in the rank.
    """
    before = dict.fromkeys(map(id, profiles), 0)
    recorded = [
        (profile, rank)
        for profile, rank in zip(profiles, ranks, strict=True)
        if "FRAMES" in profile.loaders
    ]
    last: dict[int, Profile] = {}
    for profile, rank in recorded:
        if rank in last:
            earlier = last[rank]
            before[id(profile)] = (
                before[id(earlier)] + int(earlier.table("FRAMES")["stack"].max()) + 1
            )
        last[rank] = profile
    return before


def distinct(
    frames: Sequence[pd.DataFrame], names: Sequence[str]
) -> tuple[list[pd.DataFrame], list[str]]:
    """Return SAMPLES without series that another has of the same time; of two the one with more readings stays."""
    if len(frames) < 2:
        return list(frames), []
    longest = sorted(
        (s for i, frame in enumerate(frames) for s in _series(frame, i)), key=lambda s: -s.readings
    )
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
    return [
        frame if mask.all() else frame[mask] for frame, mask in zip(frames, masks, strict=True)
    ], notes


def _series(frame: pd.DataFrame, number: int) -> list[_Series]:
    """Return the series of a table whose order puts the readings of each one after the other."""
    keys = [frame[name].to_numpy() for name in ("rank", "gpu")] + [
        frame["metric"].cat.codes.to_numpy()
    ]
    starts = stretches(keys, len(frame))
    stops = np.append(starts[1:], len(frame))[: len(starts)]
    heads, times = frame.iloc[starts], frame["time_ns"].to_numpy()
    devices = zip(
        heads["rank"].tolist(), heads["gpu"].tolist(), heads["metric"].astype(str), strict=True
    )
    return [
        _Series(device, number, start, stop, int(times[start]), int(times[stop - 1]))
        for device, start, stop in zip(devices, starts.tolist(), stops.tolist(), strict=True)
    ]


def devices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return DEVICES with each GPU once, from the row that knows most of it."""
    filled = frame.astype(object).where(frame.notna(), "").map(bool).sum(axis=1)
    return (
        frame.iloc[np.argsort(-filled.to_numpy(), kind="stable")]
        .drop_duplicates(["rank", "gpu"])
        .sort_index()
    )


def absent(profiles: Sequence[Profile], placed: Sequence[Place], job: Job) -> list[str]:
    """Return a note on the ranks without a file and their share of the GPUs; none if every rank has one.

    The files state the world size, or else the user does (`Job.world_size`). The ranks must be stated too: numbers that
    follow from the order of the names do not tell which ranks are missing.
    """
    stating = [
        (profile, at.first)
        for profile, at in zip(profiles, placed, strict=True)
        if profile.rank is not None
    ]
    size = max((profile.world_size or 0 for profile, _ in stating), default=0)
    who = "the files state" if size else "you gave"
    size = size or job.world_size
    present = sorted({rank for _, rank in stating if rank < size})
    if not present or len(present) == size:
        return []
    gaps = [
        (low + 1, high - 1)
        for low, high in zip([-1, *present], [*present, size], strict=False)
        if high - low > 1
    ]
    lost = size - len(present)
    share = f"{lost:,} of {size:,} GPUs ({percent(lost / size)})"
    ranks = f"rank{'s' * (lost > 1)} {_in_runs(gaps)}"
    return [
        f"{ranks} {'are' if lost > 1 else 'is'} missing: {who} a world size of {size:,}, and {share} have no file"
    ]


def _in_runs(gaps: Sequence[tuple[int, int]]) -> str:
    """Return runs of ranks in words, the first few by their numbers.

    >>> _in_runs([(3, 3), (5, 9)]), _in_runs([(1, 2), (4, 4), (6, 6), (8, 30)])
    ('3 and 5 to 9', '1 to 2, 4, 6 and 23 more')
    """
    words = [f"{low}" if low == high else f"{low} to {high}" for low, high in gaps[:LISTED]]
    if more := sum(high - low + 1 for low, high in gaps[LISTED:]):
        words.append(f"{more:,} more")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def once(notes: Iterable[str], most: int = LISTED) -> list[str]:
    """Return notes that begin with the name of a file, each once with all files that share it.

    Of more than `most` files the first is named. Two notes are the same then if they differ in numbers only; the
    numbers are those of the first file.

    >>> once(["a.csv: simulated", "b.csv: simulated", "two clocks"])
    ['a.csv, b.csv: simulated', 'two clocks']
    >>> once([f"rank{i}: {i + 1} events are left out" for i in range(1000)])
    ['rank0 and 999 more files: 1 events are left out (numbers of the first file)']
    """
    alike: dict[str, dict[str, list[str]]] = {}
    for note in notes:
        name, _, text = note.partition(": ")
        kind = re.sub(r"\d+", "#", text.replace(name, "")) or note
        alike.setdefault(kind, {}).setdefault(text, []).append(name)
    shown = []
    for texts in alike.values():
        first, *more = [name for names in texts.values() for name in names]
        text = next(iter(texts))
        if len(more) < most:
            shown += [_about(names, text) for text, names in texts.items()]
        else:
            numbers = " (numbers of the first file)" if len(texts) > 1 else ""
            shown.append(f"{first} and {len(more):,} more files: {text}{numbers}")
    return shown


def _about(names: Iterable[str], text: str) -> str:
    about = ", ".join(dict.fromkeys(names))
    return f"{about}: {text}" if text else about


def astray(profiles: Sequence[Profile]) -> list[str]:
    """Return notes on logs of local times that would meet the timeline with a clock's offset; nothing is shifted."""
    spans = [p.span for p in profiles if "KERNELS" in p.loaders and p.span]
    notes = []
    for profile in profiles:
        local = any(ZONELESS in note for note in profile.notes) and "KERNELS" not in profile.loaders
        if not spans or not local or not profile.span:
            continue
        start, end = profile.span
        met = [
            n
            for n in OFFSETS
            if any(start - n * QUARTER <= e and s <= end - n * QUARTER for s, e in spans)
        ]
        if met and 0 not in met:
            clock = (
                f"at {_zone(met[0])}"
                if len(met) == 1
                else f"between {_zone(met[0])} and {_zone(met[-1])}"
            )
            notes.append(
                f"{profile.path.name}: its times, taken as UTC, miss the timeline; as those of a clock {clock} they "
                f"would meet it. They are left as they are: {IN_UTC}"
            )
    return notes


def _zone(quarters: int) -> str:
    hours, rest = divmod(abs(quarters), 4)
    return f"UTC{'-' if quarters < 0 else '+'}{hours}:{15 * rest:02d}"


def renumbered(parts: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return OPS whose numbers stay unique in each rank: every recording of it counts its operators from 0."""
    after: dict[int, int] = {}
    numbered = []
    for part in parts:
        rank = int(part["rank"].iloc[0])
        shift = after.get(rank, 0)
        after[rank] = shift + int(part["op"].max()) + 1
        parents = part["parent"].where(part["parent"] < 0, part["parent"] + shift)
        numbered.append(part.assign(op=part["op"] + shift, parent=parents) if shift else part)
    return numbered


def without(samples: pd.DataFrame, metrics: set[str]) -> pd.DataFrame:
    """Return SAMPLES without some metrics, as it is where it has none of them."""
    return (
        samples[~samples["metric"].isin(metrics)]
        if metrics & set(samples["metric"].cat.categories)
        else samples
    )
