"""What was worked out of a selection, kept as long as the selection lives: figures and findings share it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from perfkit.selection import Selection

F = TypeVar("F", bound=Callable[..., Any])


class _Answer:
    """What was worked out, once it was; whoever works it out holds the lock."""

    def __init__(self) -> None:
        self.lock, self.is_there = RLock(), False
        self.made: Any = None


_KEPT: WeakKeyDictionary[Selection, dict[tuple[Any, ...], _Answer]] = WeakKeyDictionary()


def kept(made: F) -> F:
    """Return a function of a selection that works out its answer once for each selection and its other arguments.

    Of two threads that ask, the second waits for the first. The answer is shared: callers change nothing in it. A
    selection never changes; a new one is asked anew.
    """

    @wraps(made)
    def once(view: Selection, **options: Any) -> Any:
        answer = _KEPT.setdefault(view, {}).setdefault((made, *sorted(options.items())), _Answer())
        with answer.lock:
            if not answer.is_there:
                answer.made, answer.is_there = made(view, **options), True
        return answer.made

    return cast(F, once)
