"""Finding in a timeline: operations by name, duration and range, what a call launched, and what was clicked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import dossier as dossiers
from perfkit.analysis.causes import where
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Int, Window, cut, union
from perfkit.analysis.lanes import Lanes, Launching
from perfkit.format import duration
from perfkit.names.parsing import base
from perfkit.run import Run
from perfkit.schema import unique
from perfkit.selection import Selection, select
from perfkit.widgets.timeline_data import THREAD, chosen

LAUNCH = [
    "name",
    "gpu",
    "stream",
    "starts_at",
    "dur_ns",
    "grid_blocks",
    "block_threads",
    "registers",
    "shared_bytes",
]
LAUNCH += ["in_graph", "correlation"]
COPY = [
    "direction",
    "gpu",
    "stream",
    "starts_at",
    "dur_ns",
    "bytes",
    "bytes_per_s",
    "src_memory",
    "dst_memory",
]
COPY += ["correlation"]
CALL = ["launched_by", "call_starts_at", "call_dur_ns", "queue_ns", "delay_ns"]
# The tables that are searched, and what their rows are called.
TABLES = {
    "KERNELS": "kernels",
    "COPIES": "copies",
    "RANGES": "ranges",
    "API_CALLS": "CUDA calls",
    "OPS": "operators",
}
LIMIT = re.compile(r"([<>])\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\b")
WITHIN = re.compile(r"(?:^|\s)in\s+(\S.*)$")
TIME = ["start_ns", "dur_ns"]
SIZES = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
FOREVER = 2.0**62
MOST_TICKS = 2000


class Query(NamedTuple):
    """What is searched for: names, longer than `least` and shorter than `most` ns, launched or lying in ranges."""

    name: re.Pattern[str] | None
    least: float
    most: float
    within: re.Pattern[str] | None


def query(text: str) -> Query:
    """Return the meaning of a text: a regular expression, limits such as ``> 1 ms``, and ``in RANGE``, all optional.

    Upper and lower case are alike. Raises re.error if an expression is none.

    >>> asked = query("gemm > 1 ms in forward")
    >>> asked.name.pattern, asked.least, asked.within.pattern
    ('gemm', 1000000.0, 'forward')
    """
    limits = {sign: float(value) * SIZES[unit] for sign, value, unit in LIMIT.findall(text)}
    rest = LIMIT.sub(" ", text)
    within = WITHIN.search(rest)
    name = (rest[: within.start()] if within else rest).strip()
    name_of, range_of = (
        re.compile(one, re.IGNORECASE) if one else None
        for one in (name, within and within[1].strip())
    )
    return Query(name_of, limits.get(">", -1.0), limits.get("<", FOREVER), range_of)


@dataclass(frozen=True)
class Matches:
    """Rows of the tables that match."""

    rows: dict[str, Int]  # per table, ascending
    start: Int  # ns, of all, table by table
    dur: Int

    @cached_property
    def starts(self) -> Int:
        """The starts, ascending."""
        return np.sort(self.start)

    @cached_property
    def _middles(self) -> Int:
        return np.sort(self.start + self.dur // 2)

    def says(self, table: str, rows: Int) -> np.ndarray:
        """Say which of some rows of a table match; -1 is no row."""
        found = self.rows.get(table, np.zeros(0, np.int64))
        place = np.minimum(np.searchsorted(found, rows), max(len(found) - 1, 0))
        return (found[place] == rows) if len(found) else np.zeros(len(rows), bool)

    def step(self, at: int, by: int) -> tuple[int, Window] | None:
        """Return number and window of the match after (before, if `by` is below 0) a time; the first after the last."""
        if not len(self.start):
            return None
        place = int(np.searchsorted(self._middles, at, side="right" if by > 0 else "left")) - (
            0 if by > 0 else 1
        )
        place %= len(self.start)
        equal = np.flatnonzero(self.start + self.dur // 2 == self._middles[place])
        row = equal[place - np.searchsorted(self._middles, self._middles[place])]
        return place, (int(self.start[row]), int(self.start[row] + self.dur[row]))


def matches(run: Run, asked: Query, seen: Selection, launching: Launching | None = None) -> Matches:
    """Return what matches in the tables of a run, on the chosen ranks and GPUs; `launching`: its calls, if sorted."""
    rows = {name: _matching(run, name, asked, seen) for name in TABLES}
    if asked.within:
        within = _Within(run, asked.within, launching)
        rows = {name: found[within.says(run.table(name), found)] for name, found in rows.items()}
    start, dur = (
        np.concatenate(
            [run.table(name)[column].to_numpy(np.int64)[found] for name, found in rows.items()]
        )
        for column in ("start_ns", "dur_ns")
    )
    return Matches(rows, start, dur)


def counted(found: Matches) -> str:
    """Return how many rows of which table match, and how long they take together."""
    parts = [f"{len(rows):,} {TABLES[table]}" for table, rows in found.rows.items() if len(rows)]
    total = duration(float(found.dur.sum()))
    return (
        f"{len(found.start):,} matches ({', '.join(parts)}), {total} added up"
        if parts
        else "no match"
    )


def ticks(found: Matches, window: Window, across: int = MOST_TICKS) -> Int:
    """Return the starts in a window, at most one per bin of it."""
    edges = np.array(
        [window[0] + -(-n * (window[1] - window[0]) // across) for n in range(across + 1)], np.int64
    )
    at = np.searchsorted(found.starts, edges)
    return found.starts[at[:-1][at[:-1] < at[1:]]]


def _matching(run: Run, table: str, asked: Query, seen: Selection) -> Int:
    """Return the rows of a table that match, ascending; each distinct name is looked at once."""
    frame = run.table(table)
    tests = []
    if asked.name:
        texts = [frame["direction" if table == "COPIES" else "name"].cat]
        if table == "KERNELS":
            texts.append(frame["full_name"].cat)
        hits = [
            np.array([*(bool(asked.name.search(str(t))) for t in one.categories), False])
            for one in texts
        ]
        named = [
            hit[one.codes.to_numpy()] for hit, one in zip(hits, texts, strict=True) if hit.any()
        ]
        if not named:
            return np.zeros(0, np.int64)
        tests.append(np.logical_or.reduce(named))
    for column, chosen_ in (("rank", seen.ranks), ("gpu", seen.gpus)):
        if len(chosen_) and column in frame:
            tests.append(frame[column].isin(chosen_).to_numpy())
    dur = frame["dur_ns"].to_numpy()
    if asked.least >= 0:
        tests.append(dur > asked.least)
    if asked.most < FOREVER:
        tests.append(dur < asked.most)
    return np.flatnonzero(np.logical_and.reduce(tests)) if tests else np.arange(len(frame))


class _Within:
    """Which rows begin in a range whose name matches; of operations of a GPU, the call that launched them."""

    def __init__(self, run: Run, name: re.Pattern[str], launching: Launching | None) -> None:
        self._run, self._launching = run, launching or Launching(run.api_calls)
        ranges = run.ranges.loc[where(run.ranges["name"], name.search), [*THREAD, *TIME]]
        threads, group = numbered(ranges, THREAD)
        begin, dur = (ranges[column].to_numpy() for column in TIME)
        merged = union(begin, begin + dur, group)
        at = np.searchsorted(merged.group, np.arange(len(threads) + 1))
        keys = threads[THREAD].itertuples(index=False, name=None)
        self._ranges = {
            key: (merged.start[a:b], merged.end[a:b])
            for key, (a, b) in zip(keys, pairwise(at), strict=True)
        }

    def says(self, frame: pd.DataFrame, rows: Int) -> np.ndarray:
        """Say it of some rows of a table."""
        if not self._ranges or not len(rows):
            return np.zeros(len(rows), bool)
        if "thread" in frame:
            return (self._calls if frame is self._run.api_calls else self._begun(frame))[rows]
        return np.append(self._calls, False)[self._launching.rows_of(frame)[rows]]

    @cached_property
    def _calls(self) -> np.ndarray:
        return self._begun(self._run.api_calls)

    def _begun(self, frame: pd.DataFrame) -> np.ndarray:
        """Say it of all rows of a table, which lies thread by thread, by start: ranges are fewer than rows."""
        columns, at = [frame[column].to_numpy() for column in THREAD], frame["start_ns"].to_numpy()
        changed = (
            np.flatnonzero(np.logical_or.reduce([column[1:] != column[:-1] for column in columns]))
            + 1
        )
        begun = np.zeros(len(frame), bool)
        for a, b in pairwise(np.r_[0, changed, len(frame)]):
            found = self._ranges.get(tuple(int(column[a]) for column in columns)) if b > a else None
            if found is not None:
                edges = np.searchsorted(at[a:b], np.stack(found, axis=1).ravel())
                begun[a:b] = np.repeat(
                    np.arange(len(edges) + 1) % 2, np.diff(edges, prepend=0, append=b - a)
                )
        return begun


def launched_in(run: Run, table: str, row: int, seen: Selection) -> tuple[Int, Int]:
    """Return the rows of KERNELS and COPIES that a call, or the calls of its thread within a range, launched."""
    one, calls = run.table(table).iloc[row], run.api_calls
    of_thread = np.logical_and.reduce(
        [calls[column].to_numpy() == one[column] for column in THREAD]
    )
    start = calls["start_ns"].to_numpy()
    inside = (
        of_thread
        & (start >= one["start_ns"])
        & (start < max(one["start_ns"] + one["dur_ns"], one["start_ns"] + 1))
    )
    ids = unique(calls["correlation"].to_numpy()[inside])
    ids = ids[ids >= 0]
    found = []
    for frame in (run.kernels, run.copies):
        there = (frame["rank"].to_numpy() == one["rank"]) & (
            frame["process"].to_numpy() == one["process"]
        )
        rows = np.flatnonzero(there & frame["correlation"].isin(ids).to_numpy())
        kept = chosen(frame[["rank", "gpu"]].take(rows).reset_index(drop=True), seen).index
        found.append(rows[kept])
    return found[0], found[1]


class Dossiers:
    """The dossiers of a run's kernels, one at a time: of millions of launches those of all kernels take seconds."""

    def __init__(self, run: Run, lanes: Lanes, launching: Launching) -> None:
        self._run, self._lanes, self._launching = run, lanes, launching

    @cached_property
    def _traced(self) -> tuple[Run, Launching]:
        """What the framework's profiler recorded, and its calls."""
        traced = select(self._run).framework.run
        return traced, self._launching if traced is self._run else Launching(traced.api_calls)

    def of(self, name: str, seen: Selection, window: Window) -> pd.DataFrame:
        """Return the dossier of a kernel over its launches in the window, its share that of all kernels' time there."""
        traced, launching = self._traced
        launches = chosen(self._run.launches, seen)
        full_names: list[str] = []
        if len(
            launches
        ):  # what else its counters could belong to: the full names with a function name of the kernel's
            bases = {
                base(full)
                for full in _named(self._run.kernels, name)["full_name"].astype(str).unique()
            }
            full_names = [
                str(full)
                for full in self._run.kernels["full_name"].cat.categories
                if base(str(full)) in bases
            ]
        kernels = cut(chosen(_named(self._run.kernels, name, full_names, window), seen), window)
        is_traced = len(traced.ops) or len(traced.python_calls)  # else no launch leads anywhere
        own = chosen(_named(traced.kernels, name), seen) if is_traced else traced.kernels.iloc[:0]
        calls = unique(
            launching.rows(
                *(own[column].to_numpy() for column in ("rank", "process", "correlation"))
            )
        )
        tables = self._run.stalls, traced.ops, self._run.calltree, self._run.call_metrics
        table = dossiers.kernels(
            *(kernels, launches, *tables),
            devices=self._run.devices.merge(chosen(self._lanes.devices, seen), on=["rank", "gpu"]),
            traced=own,
            api_calls=traced.api_calls.take(calls[calls >= 0]),
            python_calls=traced.python_calls,
        )
        table = table[table["name"] == name]
        every = self._lanes.totals(window=window, ranks=[*seen.ranks], gpus=[*seen.gpus])[
            "total_ns"
        ].sum()
        return table.assign(share_frac=table["total_ns"] / (every or np.nan)).reset_index(drop=True)


def launched(run: Run, row: int, launching: Launching) -> pd.DataFrame:
    """Return a row of KERNELS with the call that launched it, and how long it waited (`perfkit.analysis.host`)."""
    return _with_call(run.kernels.iloc[[row]], launching)[[*LAUNCH, *CALL]]


def copied(run: Run, row: int, launching: Launching) -> pd.DataFrame:
    """Return a row of COPIES with its bandwidth and the call that launched it."""
    copy = _with_call(run.copies.iloc[[row]], launching)
    return copy.assign(
        bytes_per_s=copy["bytes"] / (copy["dur_ns"].where(copy["dur_ns"] > 0) / 1e9)
    )[[*COPY, *CALL]]


def _with_call(operation: pd.DataFrame, launching: Launching) -> pd.DataFrame:
    place = (operation[column].to_numpy() for column in ("rank", "process", "correlation"))
    call = pd.DataFrame(launching.of(*place), operation.index)
    start, called = operation["start_ns"], call["call_start_ns"]
    queue = start - called - call["call_dur_ns"]
    return operation.assign(
        starts_at=start.map(_moment),
        launched_by=call["call"],
        call_starts_at=called.map(_moment, na_action="ignore"),
        call_dur_ns=call["call_dur_ns"],
        queue_ns=queue.where(queue >= 0),
        delay_ns=start - called,
    )


def _moment(ns: int) -> str:
    """A point of time to the nanosecond, as it is found again in the tables."""
    return f"{ns / 1e9:.9f} s"


def _named(
    frame: pd.DataFrame, name: str, full_names: Sequence[str] = (), near: Window | None = None
) -> pd.DataFrame:
    """Return the rows of a name or of full names, that touch the window `near`; each distinct text is compared once."""
    is_named = np.zeros(len(frame), bool)
    for column, texts in (("name", [name]), ("full_name", full_names)):
        values = frame[column].cat
        wanted = np.append(values.categories.isin(texts), False)
        if wanted.any():
            is_named |= wanted[values.codes.to_numpy()]
    if near:
        start, dur = (frame[column].to_numpy() for column in TIME)
        is_named &= (start < near[1]) & (start + dur >= near[0])
    return frame.take(np.flatnonzero(is_named))
