"""The three errors perfkit raises on purpose, and the signals that end it.

A message reads ``<path or argument>: <what is wrong, with the value found>. <what to do>.``
A wrong argument of a function is a ``ValueError`` that lists the legal values.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class PerfkitError(Exception):
    """perfkit cannot answer; the message says why and what to do."""


class ReadError(PerfkitError):
    """A file is damaged, foreign or empty; the message names it and the remedy."""


class SchemaError(PerfkitError):
    """A frame does not match its table; the message lists every mismatch at once."""


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let a function handle each signal that would end this process; signals that are ignored stay so."""
    numbers = [
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    ]
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
