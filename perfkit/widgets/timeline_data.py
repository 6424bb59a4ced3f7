"""What a timeline shows besides its streams: lanes of copies, calls, ranges and steps, and what was clicked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import dossier as dossiers
from perfkit.analysis.causes import is_launch, is_memory, is_sync, numbered_together
from perfkit.analysis.intervals import Int, Window, cut
from perfkit.analysis.lanes import Lanes, Launching, Spans
from perfkit.charts.detail import BINS, SPANS
from perfkit.charts.theme import devices
from perfkit.format import size
from perfkit.names.parsing import base
from perfkit.run import Run
from perfkit.selection import Selection, select

CALLS = ("launch", "sync", "memory", "call")
DIRECTIONS = ("H2D", "D2H", "D2D", "P2P", "H2H", "memset", "unknown")
THREAD = ["rank", "process", "thread"]


@dataclass(frozen=True)
class Source:
    """Rows of a table in groups; a lane holds one group for each kind that it has."""

    nouns: tuple[str, str]  # one row, several
    frame: pd.DataFrame
    spans: Spans
    lanes: pd.DataFrame  # label, and the columns by which lanes are chosen: rank, and gpu if there
    kinds: tuple[str, ...]  # of the groups of each lane, in their order
    is_sparse: bool = False  # whether the longest rows tell more than how much of the time any row runs


BINS_ACROSS, PIXELS = 320, 640
MOST = 500  # intervals of a source drawn one by one
MOST_LANES = 12
DEEPEST = 5  # levels of nested ranges that a lane has room for
TEXTS = ("kind", "name", "call")
MISSING = ("call_start_ns", "call_dur_ns", "id")  # what has no launching call, and reports no click


class Part(NamedTuple):
    """Lanes from the top down, and what `perfkit.charts.detail` draws in them; of how many intervals, in words too."""

    labels: list[str]
    bins: pd.DataFrame
    spans: pd.DataFrame
    amount: int
    counted: str
    said: str = ""


LAUNCH = ["name", "gpu", "stream", "starts_at", "dur_ns", "grid_blocks", "block_threads", "registers", "shared_bytes"]
LAUNCH += ["in_graph", "correlation"]
COPY = ["direction", "gpu", "stream", "starts_at", "dur_ns", "bytes", "bytes_per_s", "src_memory", "dst_memory"]
COPY += ["correlation"]
CALL = ["launched_by", "call_starts_at", "call_dur_ns", "queue_ns", "delay_ns"]


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
        if len(launches):  # what else its counters could belong to: the full names with a function name of the kernel's
            bases = {base(full) for full in _named(self._run.kernels, name)["full_name"].astype(str).unique()}
            full_names = [
                str(full) for full in self._run.kernels["full_name"].cat.categories if base(str(full)) in bases
            ]
        kernels = cut(chosen(_named(self._run.kernels, name, full_names), seen), window)
        own = chosen(_named(traced.kernels, name), seen)
        calls = np.unique(launching.rows(*(own[column].to_numpy() for column in ("rank", "process", "correlation"))))
        tables = self._run.stalls, traced.ops, self._run.calltree, self._run.call_metrics
        table = dossiers.kernels(
            *(kernels, launches, *tables),
            devices=self._run.devices.merge(chosen(self._lanes.devices, seen), on=["rank", "gpu"]),
            traced=own,
            api_calls=traced.api_calls.take(calls[calls >= 0]),
            python_calls=traced.python_calls,
        )
        table = table[table["name"] == name]
        every = self._lanes.totals(window=window, ranks=[*seen.ranks], gpus=[*seen.gpus])["total_ns"].sum()
        return table.assign(share_frac=table["total_ns"] / (every or np.nan)).reset_index(drop=True)


@cache
def empty(columns: tuple[str, ...]) -> pd.DataFrame:
    """Return the frame without rows, which nobody changes."""
    return pd.DataFrame({c: pd.Series(dtype=object if c in TEXTS else "int64") for c in columns})


def part(source: Source, seen: Selection, window: Window) -> Part:
    """Return the lanes of the chosen ranks and GPUs with the most time, and what is in the window."""
    lanes = _busiest(source, seen)
    drawn = np.isin(np.repeat(np.arange(len(source.lanes)), len(source.kinds)), lanes)
    count = int(source.spans.count(window)[drawn].sum())
    counted = f"{count:,} {source.nouns[count != 1]}" if count else ""
    place = np.searchsorted(lanes, np.arange(len(source.lanes)))  # of those drawn
    labels = source.lanes["label"].take(lanes).tolist()
    spans = empty(SPANS) if count > MOST and not source.is_sparse else _one_by_one(source, window, drawn, count)
    if count and spans.empty:
        bins = _binned(source, window, drawn)
        return Part(labels, bins.assign(lane=place[bins["lane"]]), spans, count, counted)
    longest = "only the longest is" if len(spans) == 1 else f"the {len(spans):,} longest are"
    note = "" if len(spans) == count else f"Of {counted}, {longest} drawn."
    return Part(labels, empty(BINS), spans.assign(lane=place[spans["lane"]]), count, counted, note)


def _busiest(source: Source, seen: Selection) -> Int:
    """Return the lanes of the chosen ranks and GPUs with the most time, ascending."""
    is_chosen = np.ones(len(source.lanes), bool)
    for column, chosen in (("rank", seen.ranks), ("gpu", seen.gpus)):
        if len(chosen) and column in source.lanes:
            is_chosen &= source.lanes[column].isin(chosen).to_numpy()
    time = source.spans.total.reshape(len(is_chosen), len(source.kinds)).sum(axis=1)
    order = np.argsort(-time, kind="stable")
    return np.sort(order[is_chosen[order]][:MOST_LANES])


def _one_by_one(source: Source, window: Window, drawn: NDArray[np.bool_], count: int) -> pd.DataFrame:
    """Return the intervals of the groups drawn; of many the longest ones that fill a pixel."""
    at_least = 0 if count <= MOST else (window[1] - window[0]) // PIXELS + 1
    rows, group = source.spans.rows(window, drawn, at_least=at_least)
    if len(rows) > MOST:
        longest = np.sort(np.argsort(-source.frame["dur_ns"].to_numpy()[rows], kind="stable")[:MOST])
        rows, group = rows[longest], group[longest]
    intervals = source.frame.take(rows).reset_index(drop=True)
    lane, number = np.divmod(group, len(source.kinds))
    columns: dict[str, Any] = {"lane": lane, "kind": np.array(source.kinds, object)[number], "name": _names(intervals)}
    columns |= {column: intervals[column].to_numpy() for column in ("start_ns", "dur_ns")} | _nested(intervals, lane)
    nothing = pd.arrays.IntegerArray(np.zeros(len(rows), np.int64), np.ones(len(rows), bool))
    return pd.DataFrame({**columns, "correlation": -1, "call": None, **dict.fromkeys(MISSING, nothing)})


def _names(intervals: pd.DataFrame) -> NDArray[np.object_]:
    """Return the name of each row; of copies their direction and size."""
    if "name" in intervals:
        return intervals["name"].to_numpy(object)
    sizes = [f"{way} {size(count)}" for way, count in zip(intervals["direction"], intervals["bytes"], strict=True)]
    return np.array(sizes, object)


def _nested(intervals: pd.DataFrame, lane: Int) -> dict[str, Any]:
    """Return the level of each row below the outermost that is seen, and how many levels its lane has."""
    if "depth" not in intervals or intervals.empty:
        return {"level": 0, "levels": 1}
    depth, count = intervals["depth"].to_numpy(np.int64), int(lane.max()) + 1
    outermost, levels = np.full(count, depth.max()), np.zeros(count, np.int64)
    np.minimum.at(outermost, lane, depth)
    level = np.minimum(depth - outermost[lane], DEEPEST - 1)
    np.maximum.at(levels, lane, level + 1)
    return {"level": level, "levels": levels[lane]}


def _binned(source: Source, window: Window, drawn: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the busy time of each lane and kind of the groups drawn in bins; kinds that overlap count for each."""
    edges = np.linspace(*window, min(BINS_ACROSS, window[1] - window[0]) + 1).astype(np.int64)
    busy = source.spans.busy(edges) * drawn[:, None]
    group, at = np.nonzero(busy)
    lane, number = np.divmod(group, len(source.kinds))
    kind, dur = np.array(source.kinds, object)[number], np.diff(edges)
    columns = {"start_ns": edges[at], "dur_ns": dur[at], "busy_frac": busy[group, at] / dur[at]}
    return pd.DataFrame({"lane": lane, "kind": kind, **columns})


def launched(run: Run, row: int, launching: Launching) -> pd.DataFrame:
    """Return a row of KERNELS with the call that launched it, and how long it waited (`perfkit.analysis.launches`)."""
    return _with_call(run.kernels.iloc[[row]], launching)[[*LAUNCH, *CALL]]


def copied(run: Run, row: int, launching: Launching) -> pd.DataFrame:
    """Return a row of COPIES with its bandwidth and the call that launched it."""
    copy = _with_call(run.copies.iloc[[row]], launching)
    return copy.assign(bytes_per_s=copy["bytes"] / (copy["dur_ns"].where(copy["dur_ns"] > 0) / 1e9))[[*COPY, *CALL]]


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


def chosen(frame: pd.DataFrame, seen: Selection) -> pd.DataFrame:
    """Return the rows of the chosen ranks and GPUs."""
    for column, chosen in (("rank", seen.ranks), ("gpu", seen.gpus)):
        frame = frame[frame[column].isin(chosen)] if len(chosen) else frame
    return frame


def _named(kernels: pd.DataFrame, name: str, full_names: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of a name or of full names; each distinct text is compared once."""
    is_named = np.zeros(len(kernels), bool)
    for column, texts in (("name", [name]), ("full_name", full_names)):
        values = kernels[column].cat
        wanted = np.append(values.categories.isin(texts), False)
        if wanted.any():
            is_named |= wanted[values.codes.to_numpy()]
    return kernels.take(np.flatnonzero(is_named))


def copies(frame: pd.DataFrame) -> Source:
    """Return a lane of COPIES per GPU and direction; what a profile calls otherwise is an unknown direction."""
    codes = pd.Categorical(frame["direction"].astype(object), DIRECTIONS).codes.astype(np.int64)
    keyed = frame[["rank", "gpu"]].assign(way=np.where(codes < 0, len(DIRECTIONS) - 1, codes))
    lanes, lane = _numbered(keyed, ["rank", "gpu", "way"])
    lanes["label"] = devices(lanes[["rank", "gpu"]]) + " · " + lanes["way"].map(dict(enumerate(DIRECTIONS)))
    return Source(("copy or memset", "copies and memsets"), frame, Spans(frame, lane, len(lanes)), lanes, ("copied",))


def calls(frame: pd.DataFrame) -> Source:
    """Return a lane of API_CALLS per thread, with a group per kind of call."""
    lanes, lane = _numbered(frame, THREAD)
    # A copy that waits is a launch as well: what it waits for is the longer part.
    rules = [(is_sync(name), is_launch(name), is_memory(name), True) for name in map(str, frame["name"].cat.categories)]
    kinds = [CALLS.index(("sync", "launch", "memory", "call")[rule.index(True)]) for rule in rules]
    group = lane * len(CALLS) + np.array([*kinds, len(CALLS) - 1])[frame["name"].cat.codes.to_numpy()]
    lanes["label"] = "CUDA calls · " + _threads(lanes)
    return Source(("CUDA call", "CUDA calls"), frame, Spans(frame, group, len(lanes) * len(CALLS)), lanes, CALLS)


def ranges(frame: pd.DataFrame) -> Source:
    """Return a lane of RANGES per thread."""
    lanes, lane = _numbered(frame, THREAD)
    lanes["label"] = "NVTX · " + _threads(lanes)
    nouns, spans = ("NVTX range", "NVTX ranges"), Spans(frame, lane, len(lanes))
    return Source(nouns, frame, spans, lanes, ("range",), is_sparse=True)


def steps(frame: pd.DataFrame) -> Source:
    """Return a lane per rank of what `perfkit.analysis.steps.detect` found."""
    frame = frame.assign(name="step " + frame["step"].astype(str))
    lanes, lane = _numbered(frame, ["rank"])
    several = "rank " + lanes["rank"].astype(str) + " · steps"
    lanes["label"] = several if len(lanes) > 1 else "steps"
    return Source(("step", "steps"), frame, Spans(frame, lane, len(lanes)), lanes, ("step",), is_sparse=True)


def _numbered(frame: pd.DataFrame, columns: list[str]) -> tuple[pd.DataFrame, Int]:
    """Return the distinct combinations of integer columns, ascending, and the number of that of each row."""
    (number,) = numbered_together([frame], columns)
    first = np.full(int(number.max(initial=-1)) + 1, len(frame))
    np.minimum.at(first, number, np.arange(len(frame)))
    return frame[columns].take(first).reset_index(drop=True), number


def _threads(lanes: pd.DataFrame) -> pd.Series:
    """Return a label per thread; process and rank only where there are several."""
    label = "thread " + lanes["thread"].astype(str)
    for column in ("process", "rank"):
        if len(lanes[column].unique()) > 1:
            label = f"{column} " + lanes[column].astype(str) + " · " + label
    return label
