"""What changes on the page by itself: views that follow the explorer's choice.

A view is charts, tables and sentences, put on the page once or whenever the choice changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from html import escape
from inspect import signature
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import ipywidgets
import numpy as np
import pandas as pd
from IPython.core.getipython import get_ipython

from perfkit.analysis import completeness
from perfkit.analysis import operators as of_operators
from perfkit.analysis.causes import Determinable
from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes.idle import Idle
from perfkit.analysis.operators.totals import Operators
from perfkit.charts import tables
from perfkit.charts.tables import Searchable
from perfkit.charts.theme import Chart, following
from perfkit.charts.vega import MIME
from perfkit.diagnosis.timeline import every_gap, explained, left_out, named_work
from perfkit.errors import PerfkitError
from perfkit.format import EMPTY, coded, printable, verbatim
from perfkit.format import Shown as Table
from perfkit.run import Run
from perfkit.selection import Selection, select

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer

T = TypeVar("T")
P = ParamSpec("P")
Heard = Callable[[], None]


class Later(Generic[T]):
    """What `make` returns, made at most once; `made` is None until it is there, `failed` says why it never will be."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._begun, self._over, self._changing = False, Event(), Lock()
        self._listeners: list[tuple[Heard, asyncio.AbstractEventLoop]] = []
        self.made: T | None = None
        self.failed: Exception | None = None

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

    def answer(self, why: str, *, at_once: bool = False) -> T:
        """Return it, or raise what it failed with; Pending, which says why, unless it is there or made `at_once`."""
        if at_once:
            self.now()
        else:
            self.soon()
        if self.failed:
            raise self.failed
        if not self._over.is_set():
            raise Pending(self, why)
        return cast(T, self.made)  # None may be what `make` returns

    def then(self, heard: Heard) -> bool:
        """Call `heard` once in the loop that runs now, when it is there or failed; say whether that will be."""
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
        except Exception as e:  # noqa: BLE001 whoever asks for it gets the error
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

    def __init__(self, later: Later[Any], why: str) -> None:
        super().__init__(why)
        self.later = later


MANY = 200_000  # kernels up to which a person waits for an index without being told
_IDLE: WeakKeyDictionary[Run, Later[Idle]] = WeakKeyDictionary()
_OPERATORS: WeakKeyDictionary[Run, Later[Operators]] = WeakKeyDictionary()
PAUSE = 0.1  # s without a change of the choice before a live view draws it
KEPT = 8  # answers of a live view: who returns to a choice does not wait again
LONGEST = 600  # characters of a sentence
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNgYAAAAAMAASsJTYQAAAAASUVORK5CYII="  # a PNG
NOTHING = "There is nothing of this kind in what is chosen."
UNTIL = "Until then the choice before is shown, paler."
OLD, PALE = (
    "perfkit-old",
    "<style>.perfkit-old{opacity:.45}</style>",
)  # the class of what is shown of the choice before


Part = Chart | Table | str
Make = Callable[[Selection], Sequence[Part]]


def _data(view: Shown | Live) -> pd.DataFrame | None:
    """The frame of the first table that can be searched; None without one."""
    return next((part.data for part in view.parts if isinstance(part, Searchable)), None)


class Shown:
    """Parts in their order, as a notebook and the report show them."""

    data = property(_data)

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)

    def __repr__(self) -> str:
        return "\n".join(str(bundle(part)["text/plain"]) for part in self.parts)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        scripts = tables.loader() if (watched := is_watched()) else ""
        for part in self.parts:
            about = {EMPTY: True} if _is_empty(part) else {}
            display(bundle(part, scripts=scripts, follow=watched), metadata=about, raw=True)
            if scripts and isinstance(part, Searchable):
                scripts = tables.again()


class Live:
    """Parts that follow a choice; `view` is the widget, `parts` what it shows, `row` the row clicked last, as JSON."""

    data = property(_data)

    def __init__(self, explorer: Explorer, make: Make) -> None:
        self.explorer, self._make = explorer, make
        self._answer: tuple[Part, ...] = ()
        self._wait = ""
        self._answers: dict[tuple[object, ...], tuple[Part, ...]] = {}
        self.view = ipywidgets.VBox()
        self.row = ipywidgets.Text(layout={"display": "none"})
        self.row.add_class("perfkit-leads-to")
        self.row.observe(lambda change: explorer.lead(change["new"]), "value")
        self.box = ipywidgets.VBox([self.view, self.row])
        self.box.add_class("perfkit-leads")
        self._scripts = ipywidgets.Output(layout={"display": "none"})
        self._status = ipywidgets.HTML()
        self._drawn: tuple[object, ...] = ()
        self._waiting: asyncio.TimerHandle | None = None
        self._draw()
        explorer.observe(self._changed, ["selection", "problem"])
        self._replace()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.box._repr_mimebundle_(**options)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is shown: the answer to the choice, or the sentence that it is awaited and the answer before it."""
        return (self._wait, *self._answer) if self._wait else self._answer

    def close(self) -> None:
        """Stop following the explorer."""
        self.explorer.unobserve(self._changed, ["selection", "problem"])
        if self._waiting:
            self._waiting.cancel()

    def _replace(self) -> None:
        """Close what an earlier run of the same cell made: it is seen no more, yet would still be drawn."""
        request = _request()
        cell, run = (
            request.get("metadata", {}).get("cellId"),
            request.get("header", {}).get("msg_id"),
        )
        if not cell:
            return
        before, made = _MADE.get(cell, (run, []))
        for view in made if before != run else []:
            view.close()
        _MADE[cell] = run, [*(made if before == run else []), self]

    def _changed(self, _: Any) -> None:
        """Draw when the choice has rested; at once where there is no loop to wait in."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._draw()
            return
        if self._waiting:
            self._waiting.cancel()
        self._waiting = loop.call_later(PAUSE, self._draw)

    def _draw(self) -> None:
        """Make the parts of the present choice; parts that did not change are not sent to the page again."""
        chosen = self.explorer.selection, self.explorer.problem
        if self._drawn == chosen:
            return
        self._drawn, self._wait = chosen, ""
        try:
            self._answer = self._made(*chosen)
        except Pending as pending:
            self._wait = f"{pending} {UNTIL}" if self._answer else str(pending)
        self._status.value = (
            f'{PALE}<span role="status">{escape(self._wait)}</span>' if self._wait else ""
        )
        self._status.layout.display = None if self._wait else "none"
        for place in self.view.children[2:]:
            (place.add_class if self._wait else place.remove_class)(OLD)
        if any(isinstance(part, Searchable) for part in self._answer):
            self._scripts.outputs = (output({"text/html": tables.loader()}),)
        places = list(self.view.children[2 : 2 + len(self._answer)])
        places += [ipywidgets.Output() for _ in self._answer[len(places) :]]
        for place, part in zip(places, self._answer, strict=True):
            place.outputs = (output(bundle(part, scripts=tables.again(), follow=True)),)
        self.view.children = [self._scripts, self._status, *places]

    def _made(self, selection: Selection | None, problem: str) -> tuple[Part, ...]:
        """Return the parts of a choice; Pending where somebody waits for them and will be called."""
        if selection is None:
            return (problem or "Nothing is chosen.",)
        choice = selection.choice
        if choice not in self._answers:
            try:
                made = _made(selection, self._make)
            except Pending as pending:
                if pending.later.then(partial(self._again, selection)):
                    raise
                made = _waited(selection, self._make)
            except ValueError as e:
                return (str(e),)
            if len(self._answers) == KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[choice] = made or (NOTHING,)
        return self._answers[choice]

    def _again(self, selection: Selection) -> None:
        """Draw a choice that had to wait, unless another one is seen by now."""
        if self._drawn[:1] == (selection,):
            self._drawn = ()
            self._draw()


_MADE: dict[str, tuple[str, list[Live]]] = {}  # by cell: which run of it made these views


def is_watched() -> bool:
    """Return whether a person watches: a program that runs a notebook (papermill, nbconvert) answers no questions."""
    return bool(_request().get("content", {}).get("allow_stdin"))


def shown(source: Selection | Explorer, make: Make) -> Shown | Live:
    """Return the parts that `make` makes of a choice: still of a Selection, live of an Explorer.

    A PerfkitError of `make` is shown; Pending is waited for, or drawn again.
    """
    return Shown(_waited(source, make)) if isinstance(source, Selection) else Live(source, make)


def follow(
    source: Selection | Explorer,
    make: Callable[Concatenate[Selection, P], Part],
    *args: P.args,
    **options: P.kwargs,
) -> Shown | Live:
    """Return what a function makes of a choice, such as `perfkit.report.about`: again whenever an Explorer changes."""
    return shown(source, lambda selection: [make(selection, *args, **options)])


def follows(
    make: Callable[Concatenate[Selection, P], list[Part]],
) -> Callable[Concatenate[Selection | Explorer, P], Shown | Live]:
    """Return a view: what `make` makes of a Selection, or again at each choice of an explorer."""

    @wraps(make)
    def view(source: Selection | Explorer, *args: P.args, **options: P.kwargs) -> Shown | Live:
        return shown(source, lambda chosen: make(chosen, *args, **options))

    first, *others = signature(make).parameters.values()
    of_source = first.replace(name="source", annotation="Selection | Explorer")
    told = signature(make).replace(
        parameters=[of_source, *others], return_annotation="Shown | Live"
    )
    view.__signature__ = told  # type: ignore[attr-defined]  # what help() shows
    return view  # type: ignore[return-value]  # mypy allows no named argument before those of P


def _is_empty(part: Part) -> bool:
    """Return whether a part is a table without rows, or a chart without marks."""
    if isinstance(part, Table):
        return part.is_empty
    return getattr(part, "name", "") == EMPTY


def bundle(part: Part, *, scripts: str = "", follow: bool = False) -> dict[str, Any]:
    """Return a part as the page takes it, by MIME type: a table with `scripts`, a chart as wide as its cell."""
    if isinstance(part, str):
        sentence = printable(part, LONGEST)
        part = Table(f'<p class="perfkit-sentence">{coded(sentence)}</p>', sentence)
    if isinstance(part, Table):
        html = verbatim(part.html) + (scripts if isinstance(part, Searchable) else "")
        return {"text/html": html, "text/plain": part.text}
    spec = part.to_dict()
    return {
        MIME: following(spec) if follow else spec,
        "text/plain": str(spec.get("description", "a chart")),
    }


def output(data: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a cell that shows a bundle of MIME types."""
    # JupyterLab makes a PNG of a chart without one, draws the chart twice more, and never lets go of one of the three.
    png = {"image/png": PIXEL} if MIME in data else {}
    return {"output_type": "display_data", "data": data | png, "metadata": {}}


def _request() -> dict[str, Any]:
    """Return the message that the kernel is answering; empty outside a kernel."""
    asked: dict[str, Any] = getattr(get_ipython(), "get_parent", dict)()
    return asked


def _waited(selection: Selection, make: Make) -> tuple[Part, ...]:
    """Make the parts, however long what they need takes."""
    while True:
        try:
            return _made(selection, make)
        except Pending as pending:
            pending.later.now()


def _made(selection: Selection, make: Make) -> tuple[Part, ...]:
    try:
        return tuple(make(selection))
    except PerfkitError as e:
        return (str(e),)


def gaps(source: Selection | Explorer, view: Selection) -> tuple[pd.DataFrame, Determinable]:
    """Return GAPS of the choice `view`, and whether their causes are known; Pending without a large run's index."""
    if isinstance(source, Selection):
        return every_gap(view), explained(view)  # which the diagnosis has kept
    run = view.run
    later = _IDLE.setdefault(run, Later(lambda: _idle(run)))
    index = index_of(later, run, "idle times", at_once=len(run.kernels) <= MANY)
    devices = {"ranks": view.ranks, "gpus": view.gpus}
    found = completeness.cut_gaps(index.gaps(window=view.measured, **devices), left_out(view))
    return found, index.determinable(**devices)


def _idle(run: Run) -> Idle:
    """Return the index of the gaps of a run, which `every_gap` finds in one choice of it."""
    whole = select(run)
    tables = run.kernels, run.copies, run.api_calls
    return Idle(*tables, ranges=named_work(whole), os_calls=run.os_calls, stepped=whole.stepped)


def operators(
    source: Selection | Explorer, view: Selection, *, by: str | Sequence[str]
) -> pd.DataFrame:
    """Return what `perfkit.analysis.operators.summary` says of a choice; arguments and Pending as in `gaps`."""
    traced = view.framework
    if isinstance(source, Selection):
        return of_operators.summary(
            traced.ops, traced.kernels, traced.api_calls, by=by, window=traced.window
        )
    run = traced.run
    later = _OPERATORS.setdefault(
        view.run, Later(lambda: Operators(run.ops, run.kernels, run.api_calls))
    )
    index = index_of(later, view.run, "operators", at_once=len(view.run.kernels) <= MANY)
    rows = {
        "ops": positions(traced.ops, run.ops),
        "kernels": positions(traced.kernels, run.kernels),
    }
    return index.summary(by=by, window=traced.window, **rows)


def positions(chosen: pd.DataFrame, every: pd.DataFrame) -> Int | None:
    """Return the positions of chosen rows of a table, None for all of them."""
    return None if chosen is every else np.flatnonzero(every.index.isin(chosen.index))


def index_of(later: Later[T], run: Run, what: str, *, at_once: bool) -> T:
    """Return the index of a run; Pending where a person waits for it and it is not made `at_once`."""
    why = f"The {what} of {len(run.kernels):,} kernels are being looked for. They follow here."
    return later.answer(why, at_once=at_once)
