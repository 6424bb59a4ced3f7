"""Finding in a timeline: operations by name, duration and range, and the operations that a call or range launched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import numbered_together, started_by
from perfkit.analysis.intervals import Int, Window, union
from perfkit.format import duration
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.timeline_data import THREAD, chosen

TABLES = ("KERNELS", "COPIES", "RANGES", "API_CALLS", "OPS")  # that are searched
LIMIT = re.compile(r"([<>])\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\b")
WITHIN = re.compile(r"(?:^|\s)in\s+(\S.*)$")
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
        re.compile(one, re.IGNORECASE) if one else None for one in (name, within and within[1].strip())
    )
    return Query(name_of, limits.get(">", -1.0), limits.get("<", FOREVER), range_of)


@dataclass(frozen=True)
class Matches:
    """Rows of the tables that match, in order of their start."""

    rows: dict[str, Int]  # per table, ascending
    start: Int  # ns, of all, ascending
    dur: Int

    def says(self, table: str, rows: Int) -> np.ndarray:
        """Say which of some rows of a table match; -1 is no row."""
        found = self.rows.get(table, np.zeros(0, np.int64))
        place = np.minimum(np.searchsorted(found, rows), max(len(found) - 1, 0))
        return (found[place] == rows) if len(found) else np.zeros(len(rows), bool)

    def step(self, at: int, by: int) -> tuple[int, Window] | None:
        """Return number and window of the match after (before, if `by` is below 0) a time; the first after the last."""
        if not len(self.start):
            return None
        middle = self.start + self.dur // 2
        place = int(np.searchsorted(middle, at, side="right" if by > 0 else "left")) - (0 if by > 0 else 1)
        place %= len(self.start)
        return place, (int(self.start[place]), int(self.start[place] + self.dur[place]))


def matches(run: Run, asked: Query, seen: Selection) -> Matches:
    """Return what matches in the tables of a run, on the chosen ranks and GPUs."""
    rows = {name: _matching(run, name, asked, seen) for name in TABLES}
    frames = [run.table(name).take(found) for name, found in rows.items()]
    start, dur = (np.concatenate([f[c].to_numpy(np.int64) for f in frames]) for c in ("start_ns", "dur_ns"))
    order = np.argsort(start + dur // 2, kind="stable")
    return Matches(rows, start[order], dur[order])


def counted(found: Matches) -> str:
    """Return how many rows of which table match, and how long they take together."""
    names = {
        "KERNELS": "kernels",
        "COPIES": "copies",
        "RANGES": "ranges",
        "API_CALLS": "CUDA calls",
        "OPS": "operators",
    }
    parts = [f"{len(rows):,} {names[table]}" for table, rows in found.rows.items() if len(rows)]
    total = duration(float(found.dur.sum()))
    return f"{len(found.start):,} matches ({', '.join(parts)}), {total} added up" if parts else "no match"


def ticks(found: Matches, window: Window, across: int = MOST_TICKS) -> Int:
    """Return the starts in a window, at most one per bin of it."""
    first, last = np.searchsorted(np.sort(found.start), window)
    start = np.sort(found.start)[first:last]
    bins = (start - window[0]) * across // max(window[1] - window[0], 1)
    return np.asarray(start[np.append(True, np.diff(bins) > 0)[: len(start)]], np.int64)


def _matching(run: Run, table: str, asked: Query, seen: Selection) -> Int:
    """Return the rows of a table that match, ascending."""
    frame = run.table(table)
    found = np.ones(len(frame), bool)
    if asked.name:
        texts = [frame["direction" if table == "COPIES" else "name"].cat]
        texts += [frame["full_name"].cat] if table == "KERNELS" else []
        found &= np.logical_or.reduce(
            [np.append([bool(asked.name.search(str(t))) for t in one.categories], False)[one.codes] for one in texts]
        ).astype(bool)
    dur = frame["dur_ns"].to_numpy()
    found &= (dur > asked.least) & (dur < asked.most)
    if len(seen.ranks):
        found &= frame["rank"].isin(seen.ranks).to_numpy()
    if len(seen.gpus) and "gpu" in frame:
        found &= frame["gpu"].isin(seen.gpus).to_numpy()
    rows = np.flatnonzero(found)
    return rows[_inside(run, frame.take(rows), asked.within)] if asked.within else rows


def _inside(run: Run, frame: pd.DataFrame, within: re.Pattern[str]) -> np.ndarray:
    """Say which rows begin in a range whose name matches; of operations of a GPU, the call that launched them."""
    texts = run.ranges["name"].cat
    ranges = run.ranges[
        np.append([bool(within.search(str(t))) for t in texts.categories], False)[texts.codes].astype(bool)
    ]
    is_there = np.ones(len(frame), bool)
    if "thread" not in frame:
        call = started_by(frame, run.api_calls)
        is_there = call >= 0
        frame = run.api_calls.take(call[is_there])
    places, of_range = numbered_together([frame, ranges], THREAD)
    begin = ranges["start_ns"].to_numpy(np.int64)
    merged = union(begin, begin + ranges["dur_ns"].to_numpy(np.int64), of_range)
    found = np.zeros(len(is_there), bool)
    at, inside = frame["start_ns"].to_numpy(np.int64), np.zeros(len(frame), bool)
    for group in np.unique(merged.group).tolist():
        mine, own = places == group, merged.group == group
        place = np.searchsorted(merged.start[own], at[mine], side="right") - 1
        inside[mine] = (place >= 0) & (at[mine] < merged.end[own][place])
    found[is_there] = inside
    return found


def launched_in(run: Run, table: str, row: int, seen: Selection) -> tuple[Int, Int]:
    """Return the rows of KERNELS and COPIES that a call, or the calls of its thread within a range, launched."""
    one, calls = run.table(table).iloc[row], run.api_calls
    of_thread = np.logical_and.reduce([calls[column].to_numpy() == one[column] for column in THREAD])
    start = calls["start_ns"].to_numpy()
    inside = (
        of_thread & (start >= one["start_ns"]) & (start < max(one["start_ns"] + one["dur_ns"], one["start_ns"] + 1))
    )
    ids = np.unique(calls["correlation"].to_numpy()[inside])
    ids = ids[ids >= 0]
    found = []
    for frame in (run.kernels, run.copies):
        there = (frame["rank"].to_numpy() == one["rank"]) & (frame["process"].to_numpy() == one["process"])
        rows = np.flatnonzero(there & np.isin(frame["correlation"].to_numpy(), ids))
        kept = chosen(frame[["rank", "gpu"]].take(rows).reset_index(drop=True), seen).index
        found.append(rows[kept])
    return found[0], found[1]
