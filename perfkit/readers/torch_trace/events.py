"""One event of a trace, and columns of many: names and places as codes, times as exact nanoseconds."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
Arguments = TypeVar("Arguments")
COMMA, POINT = ord(","), ord(".")
LARGEST = np.iinfo(np.int64).max
TEN_YEARS = 10 * 366 * 86_400 * 10**9  # ns
LATEST = 2**61 - 1  # ns, in the year 2043; sums and differences of such times fit int64
UNKNOWN = np.iinfo(np.int64).min
NUMBERED = re.compile(r"[^\d-]*(-?\d{1,18})\s*")


class Event(msgspec.Struct, gc=False):
    """What is read of an event; times and arguments stay text, because most are not needed or not exact as floats."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"null")


class Spans:
    """Columns that grow by blocks of events: process, thread, start_ns, dur_ns, name, and more of one kind of event."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        # The number of each distinct value of a column, in the order of their first appearance.
        self._codes: defaultdict[str, defaultdict[Hashable, int]] = defaultdict(lambda: defaultdict(count().__next__))
        self.backwards = 0
        self.misdated = 0

    def add(self, events: list[Event], **more: NDArray[Any]) -> None:
        """Append events; events that end before they start are counted and left out."""
        dur = nanoseconds([event.dur for event in events])
        columns: Columns = {
            "process": self.codes("process", [event.pid for event in events]),
            "thread": self.codes("thread", [event.tid for event in events]),
            "start_ns": nanoseconds([event.ts for event in events]),
            "dur_ns": dur,
            "name": self.codes("name", [event.name for event in events]),
            **more,
        }
        if dur.size and dur.min() < 0:
            self.backwards += int((dur < 0).sum())
            columns = {name: values[dur >= 0] for name, values in columns.items()}
        for name, values in columns.items():
            self._parts[name].append(values)

    def codes(self, column: str, values: list[Any]) -> NDArray[np.int32]:
        """Return the code of each value among those of a column, the next free one for a value not seen before."""
        return np.fromiter(map(self._codes[column].__getitem__, values), np.int32, len(values))

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column of codes."""
        return list(self._codes[column])

    def joined(self, zero: int) -> Columns:
        """Return the columns with starts since `zero`; processes and threads are numbers."""
        for parts in self._parts.values():
            parts[:] = [np.concatenate(parts)]
        joined = {name: whole for name, (whole,) in self._parts.items()}
        joined["start_ns"] = joined["start_ns"] - zero
        for column in ("process", "thread"):
            joined[column] = np.array([number(value) for value in self.values(column)], np.int64)[joined[column]]
        return joined

    def __len__(self) -> int:
        return sum(map(len, self._parts["start_ns"]))

    @property
    def starts(self) -> Int:
        """The starts, ns on the trace's own clock."""
        return np.concatenate([np.zeros(0, np.int64), *self._parts["start_ns"]])

    def limit(self, first: int, last: int) -> None:
        """Leave out and count what does not lie between two times, ns on the trace's own clock."""
        pairs = zip(self._parts["start_ns"], self._parts["dur_ns"], strict=True)
        inside = [(start >= first) & (start + dur <= last) for start, dur in pairs]
        self.misdated += sum(int((~part).sum()) for part in inside)
        for name, parts in self._parts.items():
            self._parts[name] = [values[part] for values, part in zip(parts, inside, strict=True)]

    def extent(self) -> tuple[int, int]:
        """Return the first start and the last end, ns on the trace's own clock."""
        pairs = zip(self._parts["start_ns"], self._parts["dur_ns"], strict=True)
        ends = [(int(start.min()), int((start + dur).max())) for start, dur in pairs if start.size]
        return min(first for first, _ in ends), max(last for _, last in ends)


@dataclass(frozen=True)
class Nesting:
    """Spans of threads and their places in each other.

    ``order`` sorts the spans by process, thread, start, the longer first, then as given; ``parent`` is the position
    in that order of the innermost span that encloses one (-1 if none), ``depth`` how many do, and ``crossing`` whether
    a span overlaps another of its thread without one lying in the other.
    """

    order: Int
    parent: Int
    depth: Int
    crossing: NDArray[np.bool_]


def nanoseconds(texts: list[msgspec.Raw]) -> Int:
    """Convert microseconds as written, decimals and all, to nanoseconds: exactly, which a float64 cannot.

    Digits beyond the nanosecond are rounded, halves up.

    >>> nanoseconds([msgspec.Raw(b"1712195495519689.047"), msgspec.Raw(b"12"), msgspec.Raw(b"0.1")]).tolist()
    [1712195495519689047, 12000, 100]
    """
    text = b",".join(texts) + b","
    characters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((characters < ord("0")) | (characters > ord("9")))
    width = np.diff(ends, prepend=-1) - 1
    point = characters[ends] == POINT
    plain = (point | (characters[ends] == COMMA)).all() and width.min(initial=1) > 0 and width.max(initial=1) <= 16
    if not texts or not plain:
        return np.array([_exactly(text) for text in texts], np.int64)
    numbers = np.fromstring(text.replace(b".", b","), np.int64, sep=",")
    first = np.flatnonzero(~np.concatenate([[False], point[:-1]]))
    whole = numbers[first]
    if whole.max() > LATEST // 1000 - 1:
        return np.array([_exactly(text) for text in texts], np.int64)
    result: Int = whole * 1000
    decimals = first[point[first]] + 1
    if decimals.size:
        digits = width[decimals]
        shifted = numbers[decimals] * 10 ** np.maximum(3 - digits, 0)
        below = 10 ** np.maximum(digits - 3, 0)
        result[point[first]] += (shifted + below // 2) // below
    return result


def _exactly(text: msgspec.Raw) -> int:
    written = bytes(text).decode()
    try:
        rounded = int((Decimal(written) * 1000).to_integral_value(rounding="ROUND_HALF_UP"))
    except ArithmeticError:
        raise msgspec.DecodeError(f"a time is {written[:20]!r}, not a number") from None
    if abs(rounded) > LATEST:
        raise msgspec.DecodeError(f"a time is {written[:20]}, which is no time of a recording")
    return rounded


def decoded(events: list[Event], kind: type[Arguments]) -> list[Arguments]:
    """Decode the arguments of events as `kind`; what an event lacks has its default."""
    text = b"[" + b",".join([event.args for event in events]) + b"]"
    nothing = kind()
    arguments = msgspec.json.decode(text, type=list[kind | None])  # type: ignore[valid-type]
    return [nothing if values is None else values for values in arguments]


def number(value: object) -> int:
    """Return a process, thread, stream or device as a number, -1 if it has none.

    >>> [number(value) for value in (25738, "25738", "stream 7", "Spans", None, 2**70)]
    [25738, 25738, 7, -1, -1, -1]
    """
    if isinstance(value, str):
        digits = NUMBERED.fullmatch(value)
        return int(digits[1]) if digits else -1
    return int(value) if isinstance(value, (int, float)) and abs(value) <= LARGEST else -1


def integers(values: Iterable[object]) -> Int:
    """Return ids as int64, -1 for what is not recorded or does not fit."""
    listed: list[Any] = list(values)
    try:
        return np.fromiter(listed, np.int64, len(listed))
    except (TypeError, ValueError, OverflowError):
        return np.array([number(value) for value in listed], np.int64)


def quantities(values: Iterable[int | None]) -> Int:
    """Return quantities as int64, `UNKNOWN` for what is not recorded or does not fit."""
    listed: list[Any] = list(values)
    try:
        return np.fromiter(listed, np.int64, len(listed))
    except (TypeError, OverflowError):
        return np.array([UNKNOWN if v is None or abs(v) > LARGEST else v for v in listed], np.int64)


def nesting(process: Int, thread: Int, start: Int, dur: Int) -> Nesting:
    """Find the enclosing span of each, as PyTorch does; none lies in an empty span, nor in one whose end it crosses."""
    order = np.lexsort((-dur, start, thread, process))
    process, thread, start = process[order], thread[order], start[order]
    last = (start + dur[order]).tolist()
    fresh = np.concatenate([[True], (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])])[: len(order)].tolist()
    parent = [-1] * len(last)
    depth = [0] * len(last)
    crossing = np.zeros(len(last), bool)
    around: list[int] = []
    until: list[int] = []
    for i, (begin, end, new) in enumerate(zip(start.tolist(), last, fresh, strict=True)):
        if new:
            around, until = [], []
        while until and (end > until[-1] or begin >= until[-1]):
            if begin < until.pop():
                crossing[[i, around[-1]]] = True
            around.pop()
        if around:
            parent[i] = around[-1]
            depth[i] = len(around)
        around.append(i)
        until.append(end)
    return Nesting(order, np.array(parent, np.int64), np.array(depth, np.int64), crossing)
