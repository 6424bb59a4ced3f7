"""What views look up in a run while a person moves through it: made once per run, beside all else if that takes long.

Functions
---------
gaps        the idle times of a choice, and whether their causes can be told
operators   the time of its operators
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from perfkit.analysis import operators as of_operators
from perfkit.analysis.causes import Determinable
from perfkit.analysis.gaps import determinable, idle_gaps
from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes import Idle
from perfkit.analysis.operators import Operators
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.later import Later, Pending

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer

T = TypeVar("T")
MANY = 200_000  # kernels up to which a person waits for an index without being told
_IDLE: WeakKeyDictionary[Run, Later[Idle]] = WeakKeyDictionary()
_OPERATORS: WeakKeyDictionary[Run, Later[Operators]] = WeakKeyDictionary()


def gaps(source: Selection | Explorer, view: Selection) -> tuple[pd.DataFrame, Determinable]:
    """Return GAPS of a choice, and whether its causes can be told, as `perfkit.analysis.gaps` does.

    Parameters
    ----------
    source
        What a view was made of: who looks at one choice asks the analysis, who moves from choice to choice an index.
    view
        The choice.

    Raises
    ------
    Pending
        If the index of a large run is not there yet.
    """
    if isinstance(source, Selection):
        tables = (view.all_kernels, view.copies, view.api_calls)
        return idle_gaps(*tables, window=view.window, ranges=view.ranges), determinable(*tables)
    run = view.run
    index = _made(_IDLE, run, lambda: Idle(run.kernels, run.copies, run.api_calls, ranges=run.ranges), "idle times")
    devices = {"ranks": view.ranks, "gpus": view.gpus}
    return index.gaps(window=view.window, **devices), index.determinable(**devices)


def operators(source: Selection | Explorer, view: Selection, *, by: str | Sequence[str]) -> pd.DataFrame:
    """Return what `perfkit.analysis.operators.summary` says of a choice; arguments and Pending as in `gaps`."""
    traced = view.framework
    if isinstance(source, Selection):
        return of_operators.summary(traced.ops, traced.kernels, traced.api_calls, by=by, window=traced.window)
    run = traced.run
    index = _made(_OPERATORS, view.run, lambda: Operators(run.ops, run.kernels, run.api_calls), "operators")
    rows = {"ops": _rows(traced.ops, run.ops), "kernels": _rows(traced.kernels, run.kernels)}
    return index.summary(by=by, window=traced.window, **rows)


def _rows(chosen: pd.DataFrame, every: pd.DataFrame) -> Int | None:
    """Return the positions of chosen rows of a table, None for all of them."""
    return None if chosen is every else np.flatnonzero(every.index.isin(chosen.index))


def _made(kept: WeakKeyDictionary[Run, Later[T]], run: Run, make: Callable[[], T], what: str) -> T:
    """Return the index of a run."""
    later = kept.setdefault(run, Later(make))
    found = later.now() if len(run.kernels) <= MANY else later.soon()
    if later.failed:
        raise later.failed
    if found is None:
        raise Pending(later, f"The {what} of {len(run.kernels):,} kernels are being looked for. They follow here.")
    return found
