"""A run: the profiles of one execution, read as one.

Captures recorded within a minute of each other share a clock, whose zero is the start of the earliest. A timeline or
trace recorded farther apart has a clock of its own, so that nobody takes the time between for idle time. A log without
operations stays on the clock of the captures that it meets, else on the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from perfkit import discovery, store
from perfkit.analysis import ranks
from perfkit.analysis.ranks import Reduction
from perfkit.cache import opened, shown
from perfkit.errors import PerfkitError, ReadError
from perfkit.format import duration
from perfkit.job import Job, known
from perfkit.joining import (
    ALONE,
    absent,
    astray,
    devices,
    distinct,
    members,
    once,
    renumbered,
    stacked,
    stacks_before,
    without,
)
from perfkit.parallel import map_reduce
from perfkit.profile import Missing, Profile
from perfkit.readers import kind, ordered, reader
from perfkit.store import is_store, is_stored, reduction, with_ranks
from perfkit.tables import TABLES

if TYPE_CHECKING:
    from perfkit.readers.hpctoolkit.graph import CallGraph

EVENTS = ("KERNELS", "COPIES", "API_CALLS", "RANGES", "OPS")
TRACED = set(EVENTS)
APART_NS = 60 * 10**9  # between captures that do not share a clock (convention)
LISTED = 3  # names in a note
LARGE = 5_000_000  # kernels; with their calls some GB of memory in each process of a report (convention)
MANY = 16  # files of a folder from which on they are opened when asked for
# Tables to which each reader adds rows of its own: captures, metrics sampled, stalls of launches and of call paths.
SHARED = ("CAPTURE", "SAMPLES", "STALLS")
TIMED = {
    name for name, table in TABLES.items() if {"start_ns", "time_ns"} & set(table.column_names)
}


class Recorded(NamedTuple):
    """From when to when a profile was recorded, ns on the axis of the run."""

    name: str
    start_ns: int
    end_ns: int


class Run:
    """Profiles of one execution: one attribute per table, read when first asked for.

    Attributes are the tables' names in lower case (`kernels`, `copies`, `api_calls`, ...; see `perfkit.tables`), their
    times on one axis. A table that two readers filled is taken from the first of them, and a metric in `samples` that
    two sampled too, so that nothing is counted twice; the other stays reachable through its profile. Of two tools of
    one reader that sampled a metric of a GPU at one time, the one with more readings is taken.
    """

    def __init__(
        self,
        profiles: Iterable[Profile] | Callable[[], Iterable[Profile]],
        notes: Sequence[str] = (),
        job: Job | None = None,
        files: Sequence[discovery.Found] = (),
    ) -> None:
        self.job = job or Job()
        self._opened = profiles if callable(profiles) else tuple(profiles)
        self._notes = notes
        self._files = files
        self._whole: Run | None = None  # the run whose clock is used
        self.all_ranks: Run | None = None  # the run of which these are some ranks
        self._tables: dict[str, pd.DataFrame] = {}

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles in this run; those of a folder of many are opened when first asked for."""
        return tuple(self._opened() if callable(self._opened) else self._opened)

    @property
    def whole(self) -> Run:
        """The run whose clock this one uses: all profiles, where this holds some of them."""
        return self._whole or self

    @property
    def _clocked(self) -> tuple[Profile, ...]:
        return self.whole.profiles

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.upper() not in TABLES or not name.islower():
            raise AttributeError(
                f"run has no table {name!r}; the tables are {', '.join(self._names())}"
            )
        return self.table(name.upper())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def __repr__(self) -> str:
        if self._files and "profiles" not in self.__dict__:
            return f"<perfkit.Run of {len(self._files)} files, none of them opened>"
        files = ", ".join(f"{p.path.name} ({p.reader})" for p in self.profiles)
        return f"<perfkit.Run of {len(self.profiles)} profile(s): {files}>"

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

    def left_out(self, name: str) -> pd.DataFrame:
        """Return the rows that `table` leaves out because their times cannot be (`Profile.left_out`)."""
        rows = []
        for profile, place in zip(self.profiles, self._placed[0], strict=True):
            of_profile = profile.left_out(name) if name in profile.loaders else TABLES[name].empty()
            if len(of_profile):
                rows.append(self._on_axis(profile, place, name, of_profile))
        return (
            pd.concat(rows, ignore_index=True)
            if rows
            else TABLES[name].empty().assign(reason=None, at_most_ns=0)
        )

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of captures in this run, of `perfkit.profile.KINDS`."""
        return frozenset(kind(name) for name in {p.reader for p in self.profiles})

    def of(self, reader: str) -> Run:
        """Return the profiles of one reader or one kind (`perfkit.profile.KINDS`) alone, on the clock of this run."""
        return self._part_of([p for p in self.profiles if reader in (p.reader, kind(p.reader))])

    def _part_of(self, profiles: Sequence[Profile]) -> Run:
        part = Run(profiles, job=self.job)
        part._whole = self.whole
        return part

    @cached_property
    def is_large(self) -> bool:
        """Whether this is a store of many ranks with more kernels than one process should hold (LARGE)."""
        if len(self.profiles) < MANY or not all(
            p.rank is not None and is_stored(p) for p in self.profiles
        ):
            return False
        if any("KERNELS" in at.ranked for at in self._placed[0]):  # several ranks in a file
            return False
        return int(self.reduced.by_device()["kernels_count"].sum()) > LARGE

    def on_ranks(self, chosen: Sequence[int]) -> Run:
        """Return some ranks of a large store, on the clock of this run; its `all_ranks` is this run, for `reduced`.

        PerfkitError if one of them was not recorded.
        """
        every = [at.first for at in self._placed[0]]
        if unknown := sorted(set(chosen) - set(every)):
            missing = ", ".join(map(str, unknown))
            raise PerfkitError(
                f"ranks: the run has no rank {missing}. Choose from {min(every)} to {max(every)}."
            )
        part = self._part_of(
            [p for p, rank in zip(self.profiles, every, strict=True) if rank in set(chosen)]
        )
        part.all_ranks = self
        listed = ", ".join(map(str, sorted(set(chosen))))
        only = f"perfkit opened ranks {listed} of {len(set(every)):,}: all of them would not fit into memory"
        part._notes = [*self._notes, *absent(self.profiles, self._placed[0], self.job), only]
        return part

    def headers(self) -> pd.DataFrame:
        """Return what each file says of itself; of a folder of many no file is read beyond its header.

        One row per file: `path`; `rank` and `world_size`, Int64, missing where the file states none; `gpus`, names.
        """
        rows: list[tuple[object, ...]] = []
        for file in self._files:
            head = reader(file.reader).header(file.path)
            rank = (
                head.rank if head.rank is not None else discovery.rank_in(file.path, discovery.RANK)
            )
            rows.append(
                (shown(file.path), rank, head.world_size, ", ".join(dict.fromkeys(head.gpus)))
            )
        for profile, place in zip(
            () if rows else self.profiles, () if rows else self._placed[0], strict=True
        ):
            gpus = profile.table("DEVICES")["name"].unique() if "DEVICES" in profile.loaders else ()
            rows.append((shown(profile.path), place.first, None, ", ".join(map(str, gpus))))
        table = pd.DataFrame(rows, columns=["path", "rank", "world_size", "gpus"])
        return table.astype({"rank": "Int64", "world_size": "Int64"})

    def on_rank(self, rank: int) -> Run:
        """Return one rank alone: of a folder of many that no one opened yet, only its files are opened.

        Its times are those of this run if that is open, else its own. PerfkitError if no file is of that rank.
        """
        if self._files and "profiles" not in self.__dict__:
            notes: list[str] = []
            files = [
                f
                for f, n in zip(self._files, self.headers()["rank"], strict=True)
                if pd.notna(n) and n == rank
            ]
            part = Run(_opened(files, notes) if files else (), notes, self.job)
        else:
            part = self._part_of(
                [
                    p
                    for p, at in zip(self.profiles, self._placed[0], strict=True)
                    if at.first == rank
                ]
            )
        if not part.profiles:
            raise PerfkitError(
                f"on_rank: the run has no rank {rank}. `headers()` lists the ranks of the files."
            )
        return part

    @cached_property
    def reduced(self) -> Reduction:
        """The figures of all ranks without their events, merged exactly (`perfkit.analysis.ranks`).

        A store has them already; else each file is read once, and released before the next. GPUs are measured over the
        same span as on the page (`Selection.measured`). Of several readers only the first with kernels counts.
        """
        holders = ordered(p.reader for p in self.profiles if "KERNELS" in p.loaders)[:1]
        placed = zip(self.profiles, self._placed[0], strict=True)
        parts = [
            (p, partial(_numbered, at, "KERNELS" in at.ranked))
            for p, at in placed
            if p.reader in holders
        ]
        result = map_reduce(
            parts,
            lambda part: with_ranks(reduction(part[0]), part[1], self._shifts[id(part[0])]),
            lambda made: made,
            ranks.merged,
        )
        if result.refused:
            raise ReadError(result.refused[0].reason)
        return (result.value or Reduction()).over_ranks(is_on_one_clock=self.is_on_one_clock)

    @cached_property
    def recorded(self) -> tuple[Recorded, ...]:
        """From when to when each profile was recorded, on the axis of this run; those without times are left out."""
        return self._spans(events=True)

    @cached_property
    def captured(self) -> tuple[Recorded, ...]:
        """The same as far as CAPTURE tells: no other table is read for it."""
        return self._spans(events=False)

    def _spans(self, *, events: bool) -> tuple[Recorded, ...]:
        spans = (recorded(p, self._shifts[id(p)], events=events) for p in self.profiles)
        return tuple(span for span in spans if span is not None)

    @property
    def is_on_one_clock(self) -> bool:
        """Whether equal times of two of its ranks are the same moment, as far as their files tell."""
        by_reader: dict[str, set[int]] = {}
        for i, zero in zeros(self._clocked).items():
            if "KERNELS" in self._clocked[i].loaders:
                by_reader.setdefault(self._clocked[i].reader, set()).add(zero)
        return all(len(different) == 1 for different in by_reader.values())

    @cached_property
    def _shifts(self) -> dict[int, int]:
        """What brings the times of each profile onto the axis of this run, by the profile's identity."""
        return dict(zip(map(id, self._clocked), shifts(self._clocked), strict=True))

    @property
    def is_simulated(self) -> bool:
        """Whether one of its files says that nobody measured what is in it."""
        return any(profile.is_simulated for profile in self.profiles)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What no profile of this run recorded, each with the option that records it."""
        filled = {name for p in self.profiles for name in p.loaders}
        return tuple(
            dict.fromkeys(m for p in self.profiles for m in p.missing if m.table not in filled)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know about the files; tables that no cache holds yet are read for it."""
        profiles = self.profiles  # opening them adds notes
        of_files = (f"{p.path.name}: {n}" for p in profiles for n in (*p.notes, *p.doubts))
        notes = [*once(self._notes, ALONE), *once(of_files)]
        if len(self.profiles) > 1:
            if not self._whole:
                notes += absent(self.profiles, self._placed[0], self.job)
            notes += [
                *once(self._placed[1]),
                *discovery.unlikely(self.profiles, self._placed[0]),
                *astray(self.profiles),
            ]
            notes += distant(self.profiles)
            readers = [p.reader for p in self.profiles if "SAMPLES" in p.loaders]
            if len(set(readers)) < len(readers):
                notes += self._sampled[1]
            clockless = dict.fromkeys(
                p.path.name for p in self.profiles if TIMED & set(p.loaders) and not p.span
            )
            notes += once(
                f"{name}: no wall clock, taken to start with the earliest profile"
                for name in clockless
            )
        return tuple(notes)

    @cached_property
    def call_graph(self) -> CallGraph:
        """The call paths as a hatchet.GraphFrame, whole: every entry point, rank and metric; made once.

        A node is a calling context; the columns are described by `perfkit.readers.hpctoolkit.graph.graph_frame`.
        Hatchet's own calls work on it; these are the three to start with::

            print(run.call_graph.tree("GPUOP (inc)", depth=8))
            run.call_graph.filter(lambda row: row["type"] != "line", update_inc_cols=False)
            run.call_graph.filter([{"type": "entry"}, "*", {"name": "<gpu kernel>"}], update_inc_cols=False)

        `filter` takes the values of what it leaves out from those above, unless ``update_inc_cols=False`` keeps them as
        measured. PerfkitError if no profile has call paths, or none of their metrics was measured.
        """
        calltree = self.table("CALLTREE")
        if calltree.empty:
            raise PerfkitError(
                "run: no profile has call paths. Record them with `hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM`, "
                "make a database of them with `hpcstruct` and `hpcprof`, and load that."
            )
        from perfkit.readers.hpctoolkit.graph import graph_frame

        return graph_frame(calltree, self.table("CALL_METRICS"))

    @cached_property
    def _placed(self) -> tuple[list[discovery.Place], list[str]]:
        return discovery.places(self.profiles)

    @cached_property
    def _sampled(self) -> tuple[list[pd.DataFrame], list[str]]:
        """SAMPLES of each profile, nothing told twice, and notes on what was left out."""
        frames: list[pd.DataFrame] = []
        notes: list[str] = []
        for name in ordered(p.reader for p in self.profiles):
            placed = zip(self.profiles, self._placed[0], strict=True)
            parts = [
                (p, place) for p, place in placed if p.reader == name and "SAMPLES" in p.loaders
            ]
            samples = [self._part(p, place, "SAMPLES") for p, place in parts]
            before = {str(metric) for frame in frames for metric in frame["metric"].unique()}
            samples = [without(frame, before) for frame in samples]
            first, left_out = distinct(samples, [p.path.name for p, _ in parts])
            frames += first
            notes += left_out
        return frames, notes

    def _joined(self, name: str) -> pd.DataFrame:
        if name == "SAMPLES":
            parts = self._sampled[0]
        else:
            parts = [
                self._part(p, place, name)
                for p, place in zip(self.profiles, self._placed[0], strict=True)
            ]
        parts = [p for p in parts if len(p)]
        if not parts:
            return TABLES[name].empty()
        if len(parts) == 1:
            return parts[0]
        joined = stacked(renumbered(parts) if name == "OPS" else parts)
        for profile in self.profiles:
            profile.release(name)
        return TABLES[name].make(devices(joined) if name == "DEVICES" else joined)

    def _part(self, profile: Profile, place: discovery.Place, name: str) -> pd.DataFrame:
        """Return one profile's table with the run's ranks and clock, empty if an earlier reader has that table."""
        holders = ordered(p.reader for p in self.profiles if name in p.loaders)
        if name not in SHARED and profile.reader not in holders[:1]:
            return TABLES[name].empty()
        return self._on_axis(profile, place, name, profile.table(name))

    def _on_axis(
        self, profile: Profile, place: discovery.Place, name: str, frame: pd.DataFrame
    ) -> pd.DataFrame:
        """Return rows of one profile's table with the run's ranks and clock."""
        shift = 0 if name == "CAPTURE" else self._shifts[id(profile)]
        changes = {c: frame[c] + shift for c in ("start_ns", "time_ns") if shift and c in frame}
        if "rank" in frame and (place.first or place.shift):
            changes["rank"] = place.ranks(name, frame["rank"])
        if "stack" in frame:
            before = stacks_before(self.profiles, [at.first for at in self._placed[0]])[id(profile)]
            changes |= (
                {"stack": frame["stack"].where(frame["stack"] < 0, frame["stack"] + before)}
                if before
                else {}
            )
        if not changes:
            return frame
        changed = frame.copy(deep=False)  # the other columns are shared: 16 ranks are large
        for column, values in changes.items():
            changed[column] = values
        return changed


def _numbered(place: discovery.Place, is_inside: bool, rank: int) -> int:
    """Return the rank of the run for a rank inside a file."""
    return rank + place.shift if is_inside else place.first


_SHARED: dict[str, Run] = {}  # by path and job


def share(path: str, *, job: Mapping[str, Any], run: Run | None = None) -> Run:
    """Let `load` return a run from now on, in this process and in each forked from it; load it if it is not given."""
    return _SHARED.setdefault(repr((path, dict(job))), run or load(path, job=job))


def load(
    path: str | Path | Iterable[str | Path],
    *,
    job: Mapping[str, Any] = MappingProxyType({}),
    rank_regex: str = "",
) -> Run:
    """Load a file, several files, or a folder of profiles as one run.

    `path` is a profile in a format that a reader knows (docs/formats.md), or a folder of profiles: several of one tool
    are ranks, as the files state them, else in the order of their names, numbers in names counted as numbers. Tables of
    the run are read when first asked for, and a second time from the cache. ReadError if a file does not exist, is
    empty, damaged or of no known kind; PerfkitError if files that were named one by one cannot be of one program on one
    machine (`perfkit.joining`). What a folder holds beside the others is left out, with a note. `job` is what only you
    know (`perfkit.job.Job`); it goes before `perfkit.toml` beside the run. `rank_regex` finds the rank in the path of
    a file that states none, as its group: ``r"report\\.(\\d+)\\."``. A store that `perfkit ingest` made is a run too.
    Of a folder of MANY traces or more only headers are read: its files are opened when a table is asked for.

    >>> load("no_such.sqlite")
    Traceback (most recent call last):
    ...
    perfkit.errors.ReadError: no_such.sqlite: no such file or folder. Check the path.
    """
    if (shared := _SHARED.get(repr((path, dict(job))))) and not rank_regex:
        return shared
    beside = Path(path) if isinstance(path, (str, Path)) else None
    if beside and is_store(beside):
        stored, notes = store.opened(beside)
        return Run(stored, notes, known(job, beside))
    ranked = discovery.pattern(rank_regex)
    files, notes = discovery.discovered([beside] if beside else [Path(p) for p in path])  # type: ignore[union-attr]
    given = {file.path for file in files if file.is_given}

    def profiles() -> list[Profile]:
        return members(_opened(files, notes, ranked), given, notes)

    is_many = (
        len(files) >= MANY
        and not given
        and all(hasattr(reader(file.reader), "header") for file in files)
    )
    if is_many:
        return Run(profiles, notes, known(job, beside), files)
    return Run(profiles(), notes, known(job, beside))


def _opened(
    files: list[discovery.Found], notes: list[str], ranked: re.Pattern[str] | None = None
) -> list[Profile]:
    """Open profiles; of one of a folder that cannot be read, or not by every reader that claims it, there is a note."""
    profiles: list[Profile] = []
    refused: dict[Path, tuple[discovery.Found, ReadError]] = {}
    for file in files:
        try:
            profile = opened(file.path, file.reader)
            rank = discovery.rank_in(file.path, ranked) if profile.rank is None else profile.rank
            profiles.append(replace(profile, rank=rank))
        except ReadError as e:
            refused.setdefault(file.path, (file, e))
    read = {profile.path for profile in profiles}
    for path, (file, error) in refused.items():
        if path in read:
            notes.append(str(error))
        elif file.is_given or not read:
            raise error
        else:
            notes.append(discovery.not_read(path, error))
    return profiles


def shifts(profiles: Sequence[Profile]) -> list[int]:
    """Return what brings the times of each profile onto the axis of the run, ns; 0 where no wall clock is known.

    The time between recordings of one rank, in which no file of a timeline was recorded, is left out, for there the GPU
    only seems to be idle. A log of the GPUs knows better: with one the times stay as they are.
    """
    starts_of = zeros(profiles)
    spans = [profile.span or (0, 0) for profile in profiles]
    shifted = [spans[i][0] - starts_of[i] if i in starts_of else 0 for i in range(len(profiles))]
    first_of = discovery.episodes(profiles)
    if not first_of or len({profile.reader for profile in profiles}) > 1:
        return shifted
    of_clock = {i: starts_of[first_of.get(i, i)] for i in starts_of}
    for zero in {of_clock[i] for i in first_of}:
        end = zero
        left_out = 0
        for i in sorted((i for i in of_clock if of_clock[i] == zero), key=spans.__getitem__):
            start, stop = spans[i]
            left_out += max(0, start - end)
            end = max(end, stop)
            shifted[i] = start - zero - left_out
    return shifted


def zeros(profiles: Sequence[Profile]) -> dict[int, int]:
    """Return when time 0 of each profile with a wall clock was, ns since 1970, by the profile's position."""
    spans = {i: p.span for i, p in enumerate(profiles) if p.span}
    timed = sorted(spans, key=spans.__getitem__)
    together: list[list[int]] = []
    end = 0
    for i in timed:
        start, stop = spans[i]
        if together and start <= end + APART_NS:
            together[-1].append(i)
            end = max(end, stop)
        else:
            together.append([i])
            end = stop
    begins = {group[0]: spans[group[0]][0] for group in together}
    traced = [group for group in together if any(TRACED & set(profiles[i].loaders) for i in group)]
    first = (traced or together or [[]])[0]
    return {
        i: begins[group[0] if group in traced else first[0]] for group in together for i in group
    }


def distant(profiles: Sequence[Profile]) -> list[str]:
    """Return notes on captures that have a clock of their own, since they were recorded long before or after others."""
    starts_of = zeros(profiles)
    groups: dict[int, list[str]] = {}
    for i, zero in starts_of.items():
        if TRACED & set(profiles[i].loaders):
            groups.setdefault(zero, []).append(profiles[i].path.name)
    first = min(groups, default=0)
    return [
        f"{', '.join(names[:LISTED])}{' and more' if len(names) > LISTED else ''}: recorded {duration(zero - first)} "
        f"after {groups[first][0]}, so on a clock of its own: equal times are not the same moment"
        for zero, names in groups.items()
        if zero != first
    ]


def recorded(profile: Profile, shift: int, *, events: bool) -> Recorded | None:
    """Return from when to when a profile was recorded; with `events` also those beyond; None without any times."""
    start, end = 0, int(profile.capture["dur_ns"].iloc[0])
    for name in EVENTS if events else ():
        frame = profile.table(name)
        if len(frame):
            start = min(start, int(frame["start_ns"].min()))
            end = max(end, int((frame["start_ns"] + frame["dur_ns"]).max()))
    return Recorded(profile.path.name, start + shift, end + shift) if end > start else None
