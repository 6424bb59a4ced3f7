"""What is worked out of a selection: once, also where two threads ask for it at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

import perfkit
from perfkit.diagnosis.finding import kept
from perfkit.run import Run


def test_two_threads_work_it_out_once() -> None:
    """The second waits for the first and has the same object; another argument is another answer."""
    asked, begun, go = [], Event(), Event()

    @kept
    def slow(view: perfkit.Selection, *, name: str = "") -> list[str]:
        asked.append(name)
        begun.set()
        assert go.wait(60)
        return [name]

    view = perfkit.select(Run([]))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow, view, name="a")
        assert begun.wait(60)
        second = pool.submit(slow, view, name="a")
        go.set()
        assert first.result(60) is second.result(60)
    assert (["b"], ["a", "b"]) == (slow(view, name="b"), asked)


def test_what_failed_is_tried_again() -> None:
    """An error is nobody's answer."""
    asked = []

    @kept
    def fails_once(view: perfkit.Selection) -> int:
        asked.append(view)
        if len(asked) == 1:
            raise ValueError("the first time")
        return 7

    view = perfkit.select(Run([]))
    with pytest.raises(ValueError, match="the first time"):
        fails_once(view)
    assert (7, 7, 2) == (fails_once(view), fails_once(view), len(asked))
