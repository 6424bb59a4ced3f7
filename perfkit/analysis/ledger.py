"""Where did each nanosecond of each GPU go?

The ledger books every nanosecond of every GPU in exactly one line: a kind, a cause and an owner.
Where several things happen at once, the first of these layers counts: an unknown stretch,
computation, a collective, a copy, and what is left is idle. Of operations of one layer that run at
once, the one that began first counts until it ends. So the lines of a GPU add up to its span
exactly, in int64 nanoseconds.

A layer is a frame of intervals with rank, gpu, start_ns, dur_ns and the columns of LINE;
`computation`, `collectives` and `copies` make those of the tables, other modules those of idle
time, of waits and of unknown stretches.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import intervals
from perfkit.analysis.intervals import Axis, Int, Intervals, Windows
from perfkit.schema import Column, Table
from perfkit.tables import COPIES, DUR, GPU, KERNELS, RANK, START

KINDS = ("computation", "collective", "other_kernels", "copy", "idle", "collector", "unknown")
LINE = ("kind", "cause", "owner")
_LINE = (
    Column("kind", "category", f"one of {', '.join(KINDS)}"),
    Column(
        "cause",
        "category",
        "family of kernels, operation, direction of a copy, or why the GPU is idle",
    ),
    Column(
        "owner",
        "category",
        "who takes the time: a kernel, call, range, function or rank; missing if unknown",
    ),
)
BOOKED = Table(
    "BOOKED",
    "a stretch of a GPU's time with the line that it belongs to",
    (RANK, GPU, START, DUR, *_LINE),
    ("rank", "gpu", "start_ns"),
)
LEDGER = Table(
    "LEDGER",
    "the time of a GPU that one line takes in one phase",
    (
        *(RANK, GPU),
        Column("phase", "category", "part of the recording, as in PHASES"),
        *_LINE,
        Column("ns", "int64", "time of this line, ns", least=0),
    ),
    ("rank", "gpu", "phase", "kind", "cause", "owner"),
)


OUTSIDE = "outside"
_NOTHING = Intervals(*(np.zeros(0, np.int64) for _ in range(3)))


class _Pieces(NamedTuple):
    """Intervals of devices, with the number of the line that each belongs to."""

    start: Int
    end: Int
    group: Int
    line: Int


def computation(kernels: pd.DataFrame, copies: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the layers of kernels that compute and of memsets, named by family and kernel."""
    computing = KERNELS.check(kernels)[kernels["family"] != "communication"]
    memsets = COPIES.check(copies)[copies["direction"] == "memset"]
    return [
        layer(computing, "computation", computing["family"], computing["name"]),
        layer(memsets, "computation", memsets["direction"], memsets["dst_memory"]),
    ]


def others(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the layer of kernels that the user has not chosen, which keep the GPU busy all the same."""
    return layer(KERNELS.check(kernels), "other_kernels", kernels["family"], kernels["name"])


def collectives(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the layer of kernels that communicate, named by family and kernel."""
    communicating = KERNELS.check(kernels)[kernels["family"] == "communication"]
    return layer(communicating, "collective", communicating["family"], communicating["name"])


def moved(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the layer of copies, named by direction and by the kind of memory on the CPU's side."""
    copied = COPIES.check(copies)[copies["direction"] != "memset"]
    to_cpu = copied["direction"].isin(["D2H", "UM_D2H"])
    memory = copied["src_memory"].astype(object).where(~to_cpu, copied["dst_memory"].astype(object))
    return layer(copied, "copy", copied["direction"], memory)


def layer(rows: pd.DataFrame, kind: str, cause: object, owner: object) -> pd.DataFrame:
    """Return a layer of intervals (rank, gpu, start_ns, dur_ns) whose lines have these causes and owners."""
    place = rows[["rank", "gpu", "start_ns", "dur_ns"]].reset_index(drop=True)
    columns = {"kind": kind, "cause": _plain(cause), "owner": _plain(owner)}
    return place.assign(
        **{name: pd.Series(values, place.index) for name, values in columns.items()}
    )


def _plain(values: object) -> object:
    """Return a column without its index, so that it is not aligned by it."""
    return values.array if isinstance(values, pd.Series) else values


def spans(
    kernels: pd.DataFrame, copies: pd.DataFrame, *, window: Windows | None = None
) -> pd.DataFrame:
    """Return rank, gpu, start_ns and span_ns of each device: what `timeline.busy` looks at."""
    frames = [KERNELS.check(kernels), COPIES.check(copies)]
    index, groups = intervals.devices(*frames)
    start, end = intervals.spans(frames, groups, len(index), window)
    return index.assign(start_ns=start, span_ns=end - start)


def booked(
    layers: Iterable[pd.DataFrame | Sequence[pd.DataFrame]], devices: pd.DataFrame
) -> pd.DataFrame:
    """Return BOOKED: the time of each device, each nanosecond in one line.

    `layers` come in the order in which they count; several frames in a list are one layer.
    `devices` are those of `spans`; what lies outside of their spans is cut off. Time that no layer
    covers is idle without a cause.
    """
    numbered = devices[["rank", "gpu"]].reset_index(drop=True)
    lines: list[pd.DataFrame] = []
    every = _window(devices)
    covered = _NOTHING
    parts: list[_Pieces] = []
    for frames in layers:
        together = [frames] if isinstance(frames, pd.DataFrame) else frames
        one = _numbered(together, numbered, lines)
        one = _first_come(one)
        one = _only(one, every)
        one = _without(one, covered)
        covered = intervals.merge(covered, intervals.union(one.start, one.end, one.group))
        parts.append(one)
    rest = intervals.subtract(every, covered)
    lines.append(pd.DataFrame({"kind": ["idle"], "cause": ["unattributed"], "owner": [None]}))
    last = sum(map(len, lines)) - 1
    parts.append(_Pieces(*rest, np.full(len(rest.start), last)))
    return _frame(parts, numbered, pd.concat(lines, ignore_index=True))


def _window(devices: pd.DataFrame) -> Intervals:
    """Return the span of each device, numbered by its row."""
    start = devices["start_ns"].to_numpy(np.int64)
    return intervals.union(
        start, start + devices["span_ns"].to_numpy(np.int64), np.arange(len(devices))
    )


def _numbered(
    frames: Sequence[pd.DataFrame], devices: pd.DataFrame, lines: list[pd.DataFrame]
) -> _Pieces:
    """Return the intervals of frames with numbers of their device and line; adds the lines that are new."""
    columns: list[list[Int]] = [[], [], [], []]
    for frame in frames:
        device = _numbers(frame, devices)
        before = sum(map(len, lines))
        distinct, line = _distinct(frame)
        lines.append(distinct)
        start, end = intervals.ends(frame)
        known = device >= 0
        for column, values in zip(columns, (start, end, device, line + before), strict=True):
            column.append(np.asarray(values[known], np.int64))
    return _Pieces(*(np.concatenate(column) for column in columns))


def _distinct(frame: pd.DataFrame) -> tuple[pd.DataFrame, Int]:
    """Return the distinct lines of a frame, and the number of the line of each row."""
    number = np.zeros(len(frame), np.int64)
    for name in LINE:
        codes, labels = pd.factorize(frame[name], use_na_sentinel=False)
        number = number * max(len(labels), 1) + codes
    _, first, line = np.unique(number, return_index=True, return_inverse=True)
    return frame[list(LINE)].take(first).astype(object), line


def _first_come(one: _Pieces) -> _Pieces:
    """Return pieces that do not overlap: of intervals of a device, the one that began first counts until it ends."""
    count = 1 + int(one.group.max(initial=0))
    axis = Axis.over(count, one.start, one.end)
    begin = axis.at(one.group, one.start)
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    finish = axis.at(one.group, one.end)[order]
    reached = np.maximum.accumulate(finish)
    begin[1:] = np.maximum(begin[1:], reached[:-1])
    keep = finish > begin
    pieces = axis.intervals(begin[keep], finish[keep])
    return _Pieces(*pieces, one.line[order[keep]])


def _only(one: _Pieces, inside: Intervals) -> _Pieces:
    """Return the parts of disjoint pieces, in their order, that lie inside a set."""
    return _traced(one, intervals.intersect(Intervals(*one[:3]), inside))


def _without(one: _Pieces, outside: Intervals) -> _Pieces:
    """Return the parts of disjoint pieces, in their order, that lie outside a set."""
    return _traced(one, intervals.subtract(Intervals(*one[:3]), outside))


def _traced(one: _Pieces, parts: Intervals) -> _Pieces:
    """Return parts of pieces with the line of the piece that each lies in."""
    count = 1 + int(max(one.group.max(initial=0), parts.group.max(initial=0)))
    axis = Axis.over(count, one.start, one.end)
    piece = (
        np.searchsorted(
            axis.at(one.group, one.start), axis.at(parts.group, parts.start), side="right"
        )
        - 1
    )
    return _Pieces(*parts, one.line[piece])


def _frame(parts: list[_Pieces], devices: pd.DataFrame, lines: pd.DataFrame) -> pd.DataFrame:
    start, end, group, line = (np.concatenate(column) for column in zip(*parts, strict=True))
    frame = devices.take(group).reset_index(drop=True).assign(start_ns=start, dur_ns=end - start)
    for name in LINE:
        codes, labels = pd.factorize(lines[name])
        frame[name] = pd.Categorical.from_codes(codes[line], pd.Index(labels, dtype=object))
    return BOOKED.make(frame)


def ledger(booked: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return LEDGER: the time of each line of each device in each phase.

    `phases` has rank, phase, start_ns and dur_ns; the phases of a rank do not overlap. Time that
    lies in none of them is in phase "outside": a GPU is looked at before or after the work of its
    rank.
    """
    BOOKED.check(booked)
    devices = booked[["rank", "gpu"]].drop_duplicates().reset_index(drop=True)
    pieces = _Pieces(*intervals.ends(booked), _numbers(booked, devices), np.arange(len(booked)))
    names = phases["phase"].astype("string").unique().tolist()
    parts = [(name, _only(pieces, _stretches(phases, name, devices))) for name in names]
    every = [_stretches(phases, name, devices) for name in names]
    covered = intervals.merge(_NOTHING, *every)
    parts.append((OUTSIDE, _without(pieces, covered)))
    frame = pd.concat([_cut(booked, part, name) for name, part in parts], ignore_index=True)
    frame["phase"] = frame["phase"].astype("category")
    keys = ["rank", "gpu", "phase", *LINE]
    summed = frame.groupby(keys, observed=True, dropna=False)["dur_ns"].sum().reset_index(name="ns")
    return LEDGER.make(summed)


def _numbers(rows: pd.DataFrame, devices: pd.DataFrame) -> Int:
    """Return the number of the device of each row, -1 of one that is not listed."""
    wanted = pd.MultiIndex.from_frame(rows[["rank", "gpu"]])
    return np.asarray(pd.MultiIndex.from_frame(devices).get_indexer(wanted), np.int64)


def _stretches(phases: pd.DataFrame, phase: str, devices: pd.DataFrame) -> Intervals:
    """Return when each device's rank is in a phase."""
    of_phase = phases[phases["phase"].eq(phase)][["rank", "start_ns", "dur_ns"]]
    of_device = devices.reset_index(names="group").merge(of_phase, on="rank")
    return intervals.union(*intervals.ends(of_device), of_device["group"].to_numpy(np.int64))


def _cut(booked: pd.DataFrame, part: _Pieces, phase: str) -> pd.DataFrame:
    """Return parts of stretches of BOOKED with their lines, in a phase."""
    lines = booked[["rank", "gpu", *LINE]].take(part.line)
    return lines.assign(dur_ns=part.end - part.start, phase=phase)
