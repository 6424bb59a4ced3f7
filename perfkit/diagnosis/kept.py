"""What was worked out of a selection, kept as long as the selection lives: figures and findings share it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from perfkit.selection import Selection

F = TypeVar("F", bound=Callable[..., Any])

_KEPT: WeakKeyDictionary[Selection, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()


def kept(made: F) -> F:
    """Return a function of a selection that works out its answer once for each selection and its other arguments.

    The answer is shared: callers change nothing in it. A selection never changes; a new one is asked anew.
    """

    @wraps(made)
    def once(view: Selection, **options: Any) -> Any:
        of_view = _KEPT.setdefault(view, {})
        key = (made, *sorted(options.items()))
        if key not in of_view:
            of_view[key] = made(view, **options)
        return of_view[key]

    return cast(F, once)
