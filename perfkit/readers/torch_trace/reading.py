"""One pass over a trace: its events sorted by category into the columns of the tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from perfkit.errors import ReadError
from perfkit.readers.torch_trace import cpu, gpu, memory
from perfkit.readers.torch_trace.blocks import UNREADABLE, Source
from perfkit.readers.torch_trace.events import TEN_YEARS, Columns, Event, Spans, nanoseconds
from perfkit.readers.torch_trace.header import Header, header

# Category of an event, in the spelling of 2021 and in that of today, and the table it belongs to.
CATEGORIES = {
    **dict.fromkeys(("cpu_op", "Operator"), "OPS"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), "API_CALLS"),
    **dict.fromkeys(("kernel", "Kernel"), "KERNELS"),
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"), "COPIES"),
    "user_annotation": "RANGES",
    "python_function": "PYTHON_CALLS",
    "[memory]": "SAMPLES",
}
# The profiler's own window and cost; ranges and waits repeated on the GPU's streams, which are no work.
IGNORED = {"Trace", "overhead", "gpu_user_annotation", "cuda_sync"}


class Reading:
    """What a pass over a trace found: columns by table, the header, and how many events of which category are neither.

    Of Python functions only the extent is kept: they are most of a trace and read when asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = Source(path)
        self.spans: defaultdict[str, Spans] = defaultdict(Spans)
        self.left_out: Counter[str] = Counter()
        self.extents: list[tuple[int, int]] = []
        self.header = Header()
        self.python_calls = 0
        self.misdated = 0
        self.limits: tuple[int, int] | None = None
        with _explained(path):
            for events in self.source.blocks():
                for category, some in _grouped(events).items():
                    self._add(category, some)
            self.header = header(self.source.header)
        self.extents += [spans.extent() for spans in self.spans.values() if len(spans)]
        if not self.extents and not self.source.finished:
            raise ReadError(f"{path}: the file is cut before its first whole event. Copy it again, or record it again.")
        if self.last - self.first > TEN_YEARS:
            self._limit()

    def _add(self, category: str, events: list[Event]) -> None:
        table = CATEGORIES.get(category, "")
        if table == "OPS":
            cpu.add_operators(self.spans["OPS"], self.spans["RANGES"], events)
        elif table == "API_CALLS":
            cpu.add_calls(self.spans["API_CALLS"], events)
        elif table == "KERNELS":
            gpu.add_kernels(self.spans["KERNELS"], self.spans["COLLECTIVES"], events)
        elif table == "COPIES":
            gpu.add_copies(self.spans["COPIES"], events)
        elif table == "RANGES":
            self.spans["RANGES"].add(events)
        elif table == "SAMPLES":
            memory.add_memory(self.spans["SAMPLES"], events)
        elif table == "PYTHON_CALLS":
            self.python_calls += len(events)
            start, dur = (nanoseconds([getattr(event, name) for event in events]) for name in ("ts", "dur"))
            self.extents.append((int(start.min()), int((start + dur).max())))
        elif category not in IGNORED:
            self.left_out[category] += len(events)

    def _limit(self) -> None:
        """Leave out events ten years away from most others, which would make zero and end of the tables theirs."""
        python = python_spans(self.path) if self.python_calls else Spans()
        usual = int(np.median(np.concatenate([python.starts, *(spans.starts for spans in self.spans.values())])))
        self.limits = usual - TEN_YEARS, usual + TEN_YEARS
        for spans in (python, *self.spans.values()):
            spans.limit(*self.limits)
        self.python_calls = len(python)
        self.misdated = sum(spans.misdated for spans in (python, *self.spans.values()))
        self.misdated -= self.spans["COLLECTIVES"].misdated  # which are kernels too
        self.extents = [spans.extent() for spans in (python, *self.spans.values()) if len(spans)]

    @property
    def first(self) -> int:
        """The first start, ns on the trace's own clock: zero of the tables."""
        return min((first for first, _ in self.extents), default=0)

    @property
    def last(self) -> int:
        """The last end, ns on the trace's own clock."""
        return max((last for _, last in self.extents), default=0)

    def columns(self, table: str) -> Columns:
        """Return the columns of a table, with times since the first start."""
        columns = self.spans[table].joined()
        columns["start_ns"] = columns["start_ns"] - self.first
        return columns


def python_spans(path: Path, limits: tuple[int, int] | None = None) -> Spans:
    """Read the Python functions of a trace, in a pass of their own, those between two times if there are limits."""
    spans = Spans()
    with _explained(path):
        for events in Source(path).blocks():
            spans.add(_grouped(events).get("python_function", []))
    if limits:
        spans.limit(*limits)
    return spans


def _grouped(events: list[Event]) -> dict[str, list[Event]]:
    """Return the complete events by category, and the memory events among the instants."""
    groups: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.ph == "X":
            groups[event.cat or ""].append(event)
        elif event.ph == "i" and event.name == "[memory]":
            groups["[memory]"].append(event)
    return groups


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn values of a wrong type into ReadError."""
    try:
        yield
    except UNREADABLE as e:
        raise ReadError(
            f"{path}: the trace holds what no PyTorch profiler writes ({e}). Copy it again, or record it again."
        ) from e
