"""One event of a trace, and columns of many: names and places as codes, times as exact nanoseconds."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, pairwise
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.schema import order_of

Int = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
Arguments = TypeVar("Arguments")
COMMA, POINT = ord(","), ord(".")
NANOSECOND = 3  # decimals of a microsecond
LARGEST = np.iinfo(np.int64).max
TEN_YEARS = 10 * 366 * 86_400 * 10**9  # ns
LATEST = 2**61 - 1  # ns, in the year 2043; sums and differences of such times fit int64
UNKNOWN = np.iinfo(np.int64).min
ABSENT = msgspec.Raw(b"")
PID, TID, TIME, DURATION, NAME, ARGUMENTS = map(
    attrgetter, ("pid", "tid", "ts", "dur", "name", "args")
)
Small = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
NUMBERED = re.compile(r"[^\d-]*(-?\d{1,18})\s*")


class Event(msgspec.Struct, gc=False):
    """What is read of a complete event; times stay text, because floats are not exact."""

    ph: Literal["X"]
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class Collective(msgspec.Struct, gc=False):
    """What a kernel of NCCL or RCCL says about its message, since PyTorch 2.4."""

    collective: str | None = msgspec.field(default=None, name="Collective name")
    sent: int | None = msgspec.field(default=None, name="In msg nelems")
    received: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    ranks: int | None = msgspec.field(default=None, name="Group size")
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")


class OperatorArguments(msgspec.Struct, gc=False):
    """What is read of an operator's arguments; lists stay text."""

    shapes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    old_shapes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input dims")
    dtypes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    sequence: int | None = msgspec.field(default=-1, name="Sequence number")


class CallArguments(msgspec.Struct, gc=False):
    """What is read of a call's arguments."""

    correlation: int | None = -1


class KernelArguments(Collective, gc=False):
    """What is read of a kernel's arguments."""

    device: int | None = None
    stream: int | None = None
    correlation: int | None = -1
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers: int | None = msgspec.field(default=None, name="registers per thread")
    shared: int | None = msgspec.field(default=None, name="shared memory")
    graph: int | None = msgspec.field(default=None, name="graph id")


class CopyArguments(msgspec.Struct, gc=False):
    """What is read of a copy's or memset's arguments."""

    device: int | None = None
    stream: int | None = None
    correlation: int | None = -1
    bytes: int | None = None
    kind: str | None = None
    source: int | None = msgspec.field(default=None, name="fromDevice")
    target: int | None = msgspec.field(default=None, name="toDevice")
    within: int | None = msgspec.field(default=None, name="inDevice")


class MemoryArguments(msgspec.Struct, gc=False):
    """What is read of a memory event's arguments."""

    device: Small | None = msgspec.field(default=None, name="Device Id")
    kind: int | None = msgspec.field(default=None, name="Device Type")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


class Other(msgspec.Struct, gc=False):
    """An event that no table holds, of whatever form."""

    ph: str = ""
    cat: str | None = None
    name: str = ""


class Half(msgspec.Struct, gc=False):
    """The begin (B) or end (E) of an event: its fields as they are written."""

    ph: str
    fields: dict[str, msgspec.Raw]

    def text(self, name: str) -> bytes:
        """Return a field as it is written, empty if there is none."""
        return bytes(self.fields.get(name, ABSENT))


class Operator(Event, gc=False):
    """An operator of PyTorch."""

    args: OperatorArguments | None = None


class Call(Event, gc=False):
    """A call of the runtime or driver."""

    args: CallArguments | None = None


class Kernel(Event, gc=False):
    """A kernel."""

    args: KernelArguments | None = None


class Copy(Event, gc=False):
    """A copy or memset."""

    args: CopyArguments | None = None


class Memory(Event, gc=False):
    """An instant at which the memory of an allocator changed, or another instant."""

    ph: Literal["i"]  # type: ignore[assignment]
    args: MemoryArguments | None = None


class Ignored(msgspec.Struct, gc=False):
    """An event of which nothing is read."""


# The table of a category's events, in the spelling of 2021 and in that of today, and their form.
FORMS: dict[str, tuple[str, type]] = {
    **dict.fromkeys(("cpu_op", "Operator"), ("OPS", Operator)),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), ("API_CALLS", Call)),
    **dict.fromkeys(("kernel", "Kernel"), ("KERNELS", Kernel)),
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"), ("COPIES", Copy)),
    "user_annotation": ("RANGES", Event),
    "python_function": ("PYTHON_CALLS", Event),
    **dict.fromkeys(("overhead", "Overhead"), ("OVERHEAD", Event)),
}
# Links between events, the profiler's own window, and what is repeated on the GPU's streams and is
# no work.
IGNORED = ("ac2g", "fwdbwd", "async", "async_gpu", "Trace", "gpu_user_annotation", "cuda_sync")
MEMORY = "[memory]"
KINDS = FORMS | {"cpu_instant_event": ("SAMPLES", Memory)} | dict.fromkeys(IGNORED, ("", Ignored))
# A decoder chooses the form of an event by its category.
TAGGED = {
    msgspec.defstruct(
        form.__name__, [], bases=(form,), tag_field="cat", tag=category, gc=False
    ): table
    for category, (table, form) in KINDS.items()
}
TABLES = TAGGED | {Memory: "SAMPLES"}
ANY: Any = Union[tuple(TAGGED)]  # noqa: UP007
FEW = 50  # events that are decoded one by one where one of them has no form
EVENT, EVENTS, TEXTS = (msgspec.json.Decoder(form) for form in (ANY, list[ANY], list[msgspec.Raw]))


def decoded(text: memoryview) -> list[Any]:
    """Decode an array of events, each in the form of its category, of those without a form as `Other`.

    Raises msgspec.ValidationError for an event whose form does not allow its values.
    """
    try:
        events: list[Any] = EVENTS.decode(text)
    except msgspec.ValidationError:
        texts, events = TEXTS.decode(text), []
        for first in range(0, len(texts), FEW):
            some = texts[first : first + FEW]
            try:
                events += EVENTS.decode(b"[" + b",".join(some) + b"]")
            except msgspec.ValidationError:
                events += map(event_of, some)
    return events


def event_of(text: msgspec.Raw) -> Any:
    """Decode one event, in the form of its category if it has one."""
    try:
        return EVENT.decode(text)
    except msgspec.ValidationError:
        other = msgspec.json.decode(text, type=Other)
        if other.ph == "i" and other.name == MEMORY:
            return msgspec.json.decode(text, type=Memory)  # in 2021 without a category
        if other.ph in ("B", "E"):
            return Half(other.ph, msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
        if other.ph == "X" and other.cat in FORMS:
            raise
        return other


class Spans:
    """Columns that grow by blocks of events: process, thread, start_ns, dur_ns, name, and more of one kind of event."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        # The number of each distinct value of a column, in the order of their first appearance.
        self._codes: defaultdict[str, defaultdict[Hashable, int]] = defaultdict(
            lambda: defaultdict(count().__next__)
        )
        self.backwards = 0
        self.misdated = 0

    def add(self, events: Sequence[Event], **more: NDArray[Any]) -> None:
        """Append events; events that end before they start are counted and left out."""
        dur = nanoseconds(list(map(DURATION, events)))
        columns: Columns = {
            "process": ids(PID, events),
            "thread": ids(TID, events),
            "start_ns": nanoseconds(list(map(TIME, events))),
            "dur_ns": dur,
            "name": self.codes("name", list(map(NAME, events))),
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
        """Return the columns with starts since `zero`."""
        for parts in self._parts.values():
            parts[:] = [np.concatenate(parts)]
        joined = {name: whole for name, (whole,) in self._parts.items()}
        joined["start_ns"] = joined["start_ns"] - zero
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
        self._keep(inside)

    def _keep(self, chosen: Sequence[NDArray[np.bool_]]) -> None:
        for name, parts in self._parts.items():
            self._parts[name] = [values[some] for values, some in zip(parts, chosen, strict=True)]

    def repeats(self) -> NDArray[np.bool_]:
        """Return which spans are equal in every column to one before them."""
        columns = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        alike = pd.Series(columns["start_ns"]).duplicated(keep=False).to_numpy()
        repeated = np.zeros(len(alike), bool)
        some = {name: values[alike] for name, values in columns.items()}
        repeated[alike] = pd.DataFrame(some).duplicated().to_numpy()
        return repeated

    def leave_out(self, repeated: NDArray[np.bool_]) -> None:
        """Leave out spans."""
        ends = np.cumsum([len(part) for part in self._parts["start_ns"]])[:-1]
        self._keep(np.split(~repeated, ends))

    def extent(self) -> tuple[int, int]:
        """Return the first start and the last end, ns on the trace's own clock."""
        pairs = zip(self._parts["start_ns"], self._parts["dur_ns"], strict=True)
        ends = [(int(start.min()), int((start + dur).max())) for start, dur in pairs if start.size]
        return min(first for first, _ in ends), max(last for _, last in ends)


@dataclass(frozen=True)
class Nesting:
    """Spans of threads and their places in each other.

    ``order`` sorts the spans by process, thread, start, the longer first, then as given; ``parent``
    is the position in that order of the innermost span that encloses one (-1 if none), ``depth``
    how many do, and ``crossing`` whether a span overlaps another of its thread without one lying in
    the other.
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
    ends = np.flatnonzero(characters - ord("0") > 9)  # unsigned: what is no digit
    width = np.diff(ends, prepend=-1) - 1
    point = characters[ends] == POINT
    plain = (
        (point | (characters[ends] == COMMA)).all()
        and width.min(initial=1) > 0
        and width.max(initial=1) <= 16
    )
    if not texts or not plain:
        return np.array([_exactly(text) for text in texts], np.int64)
    if (
        len(ends) == 2 * len(texts)
        and (point[::2] & ~point[1::2] & (width[1::2] == NANOSECOND)).all()
    ):
        result: Int = np.fromstring(text.replace(b".", b""), np.int64, sep=",")
        if result.max() <= LATEST:
            return result
    numbers = np.fromstring(text.replace(b".", b","), np.int64, sep=",")
    first = np.flatnonzero(~np.concatenate([[False], point[:-1]]))
    whole = numbers[first]
    if whole.max() > LATEST // 1000 - 1:
        return np.array([_exactly(text) for text in texts], np.int64)
    result = whole * 1000
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


def arguments(events: Sequence[Any], kind: type[Arguments]) -> list[Arguments]:
    """Return the arguments of events; what an event lacks has its default."""
    given, nothing = list(map(ARGUMENTS, events)), kind()
    return given if all(given) else [each or nothing for each in given]


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


def ids(of: Callable[[Any], Any], given: Sequence[Any]) -> Int:
    """Return what `integers` does, of one attribute of many."""
    try:
        return np.fromiter(map(of, given), np.int64, len(given))
    except (TypeError, ValueError, OverflowError):
        return integers(map(of, given))


def quantities(values: Iterable[int | None]) -> Int:
    """Return quantities as int64, `UNKNOWN` for what is not recorded or does not fit."""
    listed: list[Any] = list(values)
    try:
        return np.fromiter(listed, np.int64, len(listed))
    except (TypeError, OverflowError):
        return np.array([UNKNOWN if v is None or abs(v) > LARGEST else v for v in listed], np.int64)


def nesting(process: Int, thread: Int, start: Int, dur: Int) -> Nesting:
    """Find the enclosing span of each, as PyTorch does; none lies in an empty span, nor in one whose end it crosses."""
    order = order_of([process, thread, start, -dur])
    process, thread, start, end = process[order], thread[order], start[order], (start + dur)[order]
    fresh = np.concatenate([[True], (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])])[
        : len(order)
    ]
    # How many open spans precede each: those of its thread so far, less the empty ones and those
    # that ended.
    bounds = [*np.flatnonzero(fresh).tolist(), len(order)]
    depth = np.arange(len(order))
    for first, last in pairwise(bounds):
        begins, ends = start[first:last], end[first:last]
        empty = begins == ends
        ended = np.sort(ends[~empty]).searchsorted(begins, "right")
        depth[first:last] -= first + ended + np.cumsum(empty) - empty
    by_depth = np.argsort(
        depth.astype(np.uint16) if len(order) and depth.max() < 2**16 else depth, kind="stable"
    )
    levels = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])
    parent = np.full(len(order), -1)
    for above, here in pairwise(levels):
        parent[here] = above[above.searchsorted(here) - 1]
    if (end <= np.where(parent < 0, end, end[parent])).all():
        return Nesting(order, parent, depth, np.zeros(len(order), bool))
    return _crossing(order, start, end, fresh)


def _crossing(order: Int, start: Int, last: Int, fresh: NDArray[np.bool_]) -> Nesting:
    """Find the enclosing span of each where some spans overlap others without lying in them."""
    parent = [-1] * len(last)
    depth = [0] * len(last)
    crossing = np.zeros(len(last), bool)
    around: list[int] = []
    until: list[int] = []
    for i, (begin, end, new) in enumerate(
        zip(start.tolist(), last.tolist(), fresh.tolist(), strict=True)
    ):
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
