"""A run as tables that a test can change, and the run that the changed tables make.

Nothing here asks the code under test: a change needs the tables alone, and a Run reads them as a reader's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.profile import Profile
from perfkit.run import Run
from perfkit.tables import TABLES

Int = NDArray[np.int64]
Change = Callable[[pd.DataFrame], pd.DataFrame]
ON_GPU = ("KERNELS", "COPIES")
STARTED = {name for name, table in TABLES.items() if "start_ns" in table.column_names}
READ = {name for name, table in TABLES.items() if "time_ns" in table.column_names}


class DoesNotApply(Exception):
    """A recording has nothing that a change could change: one GPU of one, calls of none."""


@dataclass(frozen=True)
class Recording:
    """The tables of a run by reader and name, the run that they come from, and a window to look through."""

    origin: Run
    tables: Mapping[tuple[str, str], pd.DataFrame]
    window: tuple[int, ...] = ()

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of the first reader that has rows of it; empty where none has."""
        filled = (t for (_, of), t in self.tables.items() if of == name and len(t))
        return next(filled, TABLES[name].empty())

    @property
    def names(self) -> set[str]:
        """Return the names of the tables that have rows."""
        return {name for (_, name), table in self.tables.items() if len(table)}

    def changed(self, changes: Mapping[str, Change]) -> "Recording":
        """Return the recording with changed tables, each by its name."""
        tables = dict(self.tables)
        for reader, name in self.tables:
            if name in changes:
                tables[reader, name] = changes[name](self.tables[reader, name])
        return replace(self, tables=tables)

    def with_rows(self, name: str, rows: pd.DataFrame) -> "Recording":
        """Return the recording with further rows of a table."""
        reader = next((r for r, of in self.tables if of == name), self.reader)
        before = self.tables.get((reader, name), TABLES[name].empty())
        return replace(self, tables={**self.tables, (reader, name): stacked(before, rows)})

    @property
    def reader(self) -> str:
        """Return the reader that has the kernels, else the first."""
        first = next(iter(self.tables))[0]
        return next((reader for reader, name in self.tables if name == "KERNELS"), first)

    def lengthened(self, by: int) -> "Recording":
        """Return the recording as one that lasted longer, ns."""
        return self.changed({"CAPTURE": lambda frame: frame.assign(dur_ns=frame["dur_ns"] + by)})

    def run(self) -> Run:
        """Return the run that the tables make: one profile of all ranks for each reader."""
        readers = list(dict.fromkeys(reader for reader, _ in self.tables))
        profiles = [self._profile(reader) for reader in readers]
        return Run(profiles, self.origin.notes, self.origin.job)

    def _profile(self, reader: str) -> Profile:
        mine = {name: table for (of, name), table in self.tables.items() if of == reader}
        made = {name: TABLES[name].make(table) for name, table in mine.items()}
        capture = made.pop("CAPTURE")
        loaders = {name: (lambda frame=frame: frame) for name, frame in made.items()}
        like = next(p for p in self.origin.profiles if p.reader == reader)
        return Profile(
            reader, like.path, capture, loaders, like.missing, world_size=like.world_size
        )


def taken(run: Run) -> Recording:
    """Return the tables of a run on its clock, all ranks of a reader together."""
    tables: dict[tuple[str, str], pd.DataFrame] = {}
    for reader in dict.fromkeys(profile.reader for profile in run.profiles):
        part = run.of(reader)
        named = {"CAPTURE", *(name for p in part.profiles for name in p.loaders)}
        tables |= {(reader, name): part.table(name) for name in sorted(named)}
    capture = run.capture
    earliest = capture["t0_unix_ns"].min()
    ends = capture["dur_ns"] + (capture["t0_unix_ns"] - earliest).fillna(0)
    whole = {"t0_unix_ns": earliest, "dur_ns": int(ends.max())}  # on the one clock of all ranks
    return Recording(run, tables).changed({"CAPTURE": lambda frame: frame.assign(**whole)})


def stacked(*frames: pd.DataFrame) -> pd.DataFrame:
    """Return tables one below the other; categories become plain objects, which `Table.make` casts again."""
    plain = [f.astype({c: object for c in f if str(f[c].dtype) == "category"}) for f in frames]
    filled = [frame for frame in plain if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


def starts(frame: pd.DataFrame) -> Int:
    """Return the starts of rows, ns."""
    return frame["start_ns"].to_numpy(np.int64)


def stops(frame: pd.DataFrame) -> Int:
    """Return the ends of rows, ns."""
    return starts(frame) + frame["dur_ns"].to_numpy(np.int64)


def operations(recording: Recording) -> pd.DataFrame:
    """Return kernels and copies in the order of their starts, with `launched_ns`, when their call began.

    Where the call is not recorded it is the start of the operation.
    """
    columns = ["rank", "gpu", "process", "correlation", "start_ns", "dur_ns"]
    work = pd.concat([recording.table(name)[columns] for name in ON_GPU], ignore_index=True)
    if work.empty:
        raise DoesNotApply("no work of a GPU")
    calls = recording.table("API_CALLS")
    calls = calls[calls["correlation"] >= 0]
    called = calls.groupby(["rank", "process", "correlation"])["start_ns"].min().rename("called_ns")
    work = work.join(called, on=["rank", "process", "correlation"])
    work["launched_ns"] = work[["called_ns", "start_ns"]].min(axis=1).astype(np.int64)
    return work.drop(columns="called_ns").sort_values("start_ns", kind="stable", ignore_index=True)


def gpus(recording: Recording) -> list[tuple[int, int]]:
    """Return rank and number of each GPU that worked."""
    pairs = operations(recording)[["rank", "gpu"]].drop_duplicates().sort_values(["rank", "gpu"])
    return [(int(rank), int(gpu)) for rank, gpu in pairs.itertuples(index=False)]
