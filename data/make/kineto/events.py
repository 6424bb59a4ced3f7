"""How does Kineto write one event?

Conventions
-----------
As in `make.kineto`, in the layout of traces of 2022 to 2025. A process or thread is a number, or a text
such as "Spans"; the GPU's rows have its number as process and the stream as thread.

Classes
-------
Span       something that takes time
Instant    something that happens at a moment
Mark       a moment of the recording
Flow       an arrow from one span to another, by their starts
Label      what a viewer shows for a process or thread

Functions
---------
described       the labels of a process and its threads
microseconds    ns as Kineto writes times
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

Place = int | str
GPU_SORT_INDEX = 5_000_000  # viewers show GPUs below the processes


class Span(NamedTuple):
    """Something that takes time: an operator, a call, a kernel, a Python function, an annotation."""

    category: str
    name: str
    process: Place
    thread: Place
    start_ns: int
    dur_ns: int
    args: Mapping[str, Any] = {}

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        return _object(
            f'"ph": "X", "cat": {_json(self.category)}, "name": {_json(self.name)}, {_place(self.process, self.thread)}'
            f',\n    "ts": {microseconds(self.start_ns + shift_ns)}, "dur": {microseconds(self.dur_ns)}',
            self.args,
        )


class Instant(NamedTuple):
    """Something that happens at a moment, such as memory that an allocator gives or takes."""

    category: str
    name: str
    process: Place
    thread: Place
    time_ns: int
    args: Mapping[str, Any]

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        return _object(
            f'"ph": "i", "cat": {_json(self.category)}, "s": "t", "name": {_json(self.name)},\n    '
            f'{_place(self.process, self.thread)},\n    "ts": {microseconds(self.time_ns + shift_ns)}',
            self.args,
        )


class Mark(NamedTuple):
    """A moment of the recording itself: its start, its end."""

    name: str
    process: Place
    thread: Place
    time_ns: int

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        return _object(
            f'"name": {_json(self.name)}, "ph": "i", "s": "g",\n    '
            f'{_place(self.process, self.thread)}, "ts": {microseconds(self.time_ns + shift_ns)}'
        )


class Flow(NamedTuple):
    """One end of an arrow between spans, at the start of its span: a forward operator and its backward, or a launch."""

    category: str
    number: int
    process: Place
    thread: Place
    time_ns: int
    arrives: bool

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, its time later by `shift_ns`."""
        category, bound = _json(self.category), ', "bp": "e"' if self.arrives else ""
        return _object(
            f'"ph": "{"f" if self.arrives else "s"}", "id": {self.number}, {_place(self.process, self.thread)}, '
            f'"ts": {microseconds(self.time_ns + shift_ns)},\n    "cat": {category}, "name": {category}{bound}'
        )


class Label(NamedTuple):
    """What a viewer shows for a process or thread: `name` says which property `args` give."""

    name: str
    process: Place
    thread: Place
    args: Mapping[str, Any]

    def text(self, shift_ns: int) -> str:
        """Return the event as Kineto writes it, at the start of the trace."""
        place = _place(self.process, self.thread)
        return _object(f'"name": {_json(self.name)}, "ph": "M", "ts": {microseconds(shift_ns)}, {place}', self.args)


Event = Span | Instant | Mark | Flow | Label


def described(process: int, threads: Mapping[int, str], *, program: str, gpu: bool = False) -> Iterator[Label]:
    """Yield the labels of a process, or of a GPU and its streams; `threads` are their names by number."""
    yield Label("process_name", process, 0, {"name": program})
    yield Label("process_labels", process, 0, {"labels": f"GPU {process}" if gpu else "CPU"})
    yield Label("process_sort_index", process, 0, {"sort_index": GPU_SORT_INDEX + process if gpu else process})
    for thread, name in threads.items():
        yield Label("thread_name", process, thread, {"name": name})
        yield Label("thread_sort_index", process, thread, {"sort_index": thread})


def microseconds(ns: int) -> str:
    """Return a time, not before 0, in microseconds with three decimals.

    Examples
    --------
    >>> microseconds(4_450_787_616_263_343), microseconds(7)
    ('4450787616263.343', '0.007')
    """
    return f"{ns // 1000}.{ns % 1000:03d}"


def _object(fields: str, args: Mapping[str, Any] | None = None) -> str:
    """Return an event; its arguments have a line of their own."""
    inner = f',\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}' if args else ""
    return f"  {{\n    {fields}{inner}\n  }}"


def _place(process: Place, thread: Place) -> str:
    return f'"pid": {_json(process)}, "tid": {_json(thread)}'


@lru_cache(maxsize=4096)
def _json(value: Place) -> str:
    return json.dumps(value)
