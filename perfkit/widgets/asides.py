"""What takes long to answer: an explorer says so at once, and the answer follows beside all else."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from perfkit.errors import PerfkitError
from perfkit.selection import Selection
from perfkit.widgets.live import Later, Live, Part, Shown, shown

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer

LOOKING = "perfkit is looking at the new choice. The answer follows here."
MOVED_ON = "Another choice was made before this one was answered."
_ONE = Lock()
_LATER: WeakKeyDictionary[Selection, dict[Hashable, Later[Any]]] = WeakKeyDictionary()
T = TypeVar("T")
P = ParamSpec("P")


def aside(
    source: Selection | Explorer,
    view: Selection,
    key: Hashable,
    make: Callable[[Selection], T],
    why: str,
) -> T:
    """Return what `make` makes of a choice; in an explorer it is made beside all else, and Pending says so meanwhile.

    One choice is answered at a time, and none that was left before its turn. Equal `key` share an answer.
    """
    if isinstance(source, Selection):
        return make(view)
    later: Later[T] = _LATER.setdefault(view, {}).setdefault(
        key, Later(partial(_in_turn, source, view, make))
    )
    return later.answer(why)


def _in_turn(source: Explorer, view: Selection, make: Callable[[Selection], T]) -> T:
    with _ONE:
        if source.selection is not view:
            raise PerfkitError(MOVED_ON)
        return make(view)


def after(
    source: Selection | Explorer,
    make: Callable[Concatenate[Selection, P], Part | None],
    *args: P.args,
    **options: P.kwargs,
) -> Shown | Live:
    """Show what takes long to make of a choice, such as its findings: an explorer says so, and the answer follows.

    What `make` returns is shown, nothing of None.
    """
    key = make, repr(args), repr(options)

    def parts(view: Selection) -> list[Part]:
        answer = aside(source, view, key, lambda seen: make(seen, *args, **options), LOOKING)
        return [] if answer is None else [answer]

    return shown(source, parts)


def follows_later(
    make: Callable[Concatenate[Selection, P], Part | None],
) -> Callable[Concatenate[Selection | Explorer, P], Shown | Live]:
    """Return a view as `follows` does, of what takes long to make."""

    @wraps(make)
    def view(source: Selection | Explorer, *args: P.args, **options: P.kwargs) -> Shown | Live:
        return after(source, make, *args, **options)

    return view  # type: ignore[return-value]  # as in `follows`
