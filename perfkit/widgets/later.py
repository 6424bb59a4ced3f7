"""What takes seconds to make is made beside all else: who asks for it goes on without, and is called when it is there.

Classes
-------
Later      one thing that is made once
Pending    raised by who needs it and does not want to wait
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

from perfkit.errors import PerfkitError

T = TypeVar("T")
Heard = Callable[[], None]


class Later(Generic[T]):
    """What `make` returns, made at most once; `made` is None until it is there, `failed` says why it never will be."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._begun, self._over = False, Event()
        self._changing = Lock()
        self._listeners: list[tuple[Heard, asyncio.AbstractEventLoop]] = []
        self.made: T | None = None
        self.failed: PerfkitError | None = None

    def now(self) -> T | None:
        """Make it, or wait for it; None if it failed."""
        if self._is_mine():
            self._work()
        self._over.wait()
        return self.made

    def soon(self) -> T | None:
        """Begin to make it; return it if it is there."""
        if self._is_mine():
            Thread(target=self._work, daemon=True).start()
        return self.made

    def then(self, heard: Heard) -> bool:
        """Call `heard` once, when it is there or failed, in the loop that runs now; say whether that will be.

        Without a loop nobody is called, nor is who asks when it is over.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        with self._changing:
            if self._over.is_set():
                return False
            if (heard, loop) not in self._listeners:
                self._listeners.append((heard, loop))
            return True

    def _is_mine(self) -> bool:
        """Say whether nobody makes it yet: then the one who asked does."""
        with self._changing:
            begun, self._begun = self._begun, True
        return not begun

    def _work(self) -> None:
        try:
            self.made = self._make() if self._make else None
        except PerfkitError as e:
            self.failed = e
        finally:
            self._make = None  # and with it what it was made of
            with self._changing:
                self._over.set()
            for heard, loop in self._listeners:
                with suppress(RuntimeError):  # the loop is closed: nobody is there any more
                    loop.call_soon_threadsafe(heard)


class Pending(Exception):
    """`later` is not there yet; the message says so to people."""

    def __init__(self, later: Later[Any], said: str) -> None:
        super().__init__(said)
        self.later = later
