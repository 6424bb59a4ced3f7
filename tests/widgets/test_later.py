"""What is made beside all else: once, whoever asks, and who waits for it is called."""

from __future__ import annotations

import asyncio
from threading import Event

from perfkit.errors import PerfkitError
from perfkit.widgets.live import Later


def test_it_is_made_once_and_who_waits_is_called_once() -> None:
    """Nothing is there at first; the two who listen are called in their loop, one that asked twice once."""
    begin, made, heard = Event(), [], []

    def make() -> int:
        begin.wait(60)
        made.append(1)
        return 7

    def first() -> None:
        heard.append("first")

    async def asked() -> None:
        later, done = Later(make), asyncio.Event()
        assert later.soon() is None
        for listener in (first, first, done.set):
            later.then(listener)
        begin.set()
        await asyncio.wait_for(done.wait(), 60)
        assert (7, 7, [1]) == (later.soon(), later.now(), made)

    asyncio.run(asked())
    assert ["first"] == heard


def test_a_failure_is_kept() -> None:
    """The reason is there for whoever asks, and nobody waits for ever."""

    def make() -> int:
        raise PerfkitError("calls: cut off. Record them again.")

    later = Later(make)
    assert (None, None) == (later.now(), later.soon())
    assert "calls: cut off. Record them again." == str(later.failed)


def test_without_a_loop_nobody_is_called() -> None:
    """A program that has no loop asks again."""
    heard: list[int] = []
    later = Later(lambda: 3)
    later.then(lambda: heard.append(1))
    assert (3, []) == (later.now(), heard)
