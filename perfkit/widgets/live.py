"""What changes on the page by itself: views that follow the explorer's choice, and a log that is being written.

A view is charts, tables and sentences, put on the page once or whenever the choice changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import ipywidgets
import numpy as np
import pandas as pd
from IPython.core.getipython import get_ipython

from perfkit.analysis import operators as of_operators
from perfkit.analysis.causes import Determinable
from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes import Idle
from perfkit.analysis.monitoring.alignment import bins
from perfkit.analysis.operators.totals import Operators
from perfkit.charts import monitor, monitor_lines, tables
from perfkit.charts.tables import Searchable
from perfkit.charts.theme import MIME, Chart, follow_cells, following
from perfkit.diagnosis.timeline import every_gap, explained
from perfkit.errors import PerfkitError, ReadError
from perfkit.format import Shown as Table
from perfkit.format import coded, duration, printable, verbatim
from perfkit.readers import reader, recognise, unrecognised
from perfkit.run import Run, load
from perfkit.selection import Selection
from perfkit.tables import SAMPLES

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer

T = TypeVar("T")
Heard = Callable[[], None]


class Later(Generic[T]):
    """What `make` returns, made at most once; `made` is None until it is there, `failed` says why it never will be."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._begun, self._over, self._changing = False, Event(), Lock()
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

    def answer(self, why: str, *, at_once: bool = False) -> T:
        """Return it, or raise what it failed with; Pending, which says why, unless it is there or made `at_once`."""
        made = self.now() if at_once else self.soon()
        if self.failed:
            raise self.failed
        if made is None:
            raise Pending(self, why)
        return made

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
UNTIL = "Until then the choice before is shown, paler."
OLD, PALE = "perfkit-old", "<style>.perfkit-old{opacity:.45}</style>"  # the class of what is shown of the choice before
FRESH = 10.0  # s since a file was changed, in which it counts as being written
REST = 4  # times as long as the last reading took, a file is not read again
SECOND = 1_000_000_000
TICK, BINS, STILL_BINS = 1.0, 120, 300  # s of the clock; bins of a log
SPANS = {"all": None, "last hour": 3600 * SECOND, "last 5 min": 300 * SECOND, "last min": 60 * SECOND}
LONGEST_NAME, LONGEST_PROBLEM = 60, 400  # characters


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
            display(bundle(part, scripts=scripts, follow=watched), raw=True)
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
        cell, run = request.get("metadata", {}).get("cellId"), request.get("header", {}).get("msg_id")
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
        self._status.value = f'{PALE}<span role="status">{escape(self._wait)}</span>' if self._wait else ""
        self._status.layout.display = None if self._wait else "none"
        for place in self.view.children[2:]:
            (place.add_class if self._wait else place.remove_class)(OLD)
        if any(isinstance(part, Searchable) for part in self._answer):
            self._scripts.outputs = (_output({"text/html": tables.loader()}),)
        places = list(self.view.children[2 : 2 + len(self._answer)])
        places += [ipywidgets.Output() for _ in self._answer[len(places) :]]
        for place, part in zip(places, self._answer, strict=True):
            place.outputs = (_output(bundle(part, scripts=tables.again(), follow=True)),)
        self.view.children = [self._scripts, self._status, *places]

    def _made(self, selection: Selection | None, problem: str) -> tuple[Part, ...]:
        """Return the parts of a choice; Pending where somebody waits for them and will be called."""
        if selection is None:
            return (problem or "Nothing is chosen.",)
        choice = (selection.ranks, selection.gpus, selection.window, selection.pattern, selection.families)
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
            self._answers[choice] = made
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


def follow(source: Selection | Explorer, make: Callable[[Selection], Part]) -> Shown | Live:
    """Return what a function makes of a choice, such as `perfkit.report.about`: again whenever an Explorer changes."""
    return shown(source, lambda selection: [make(selection)])


def bundle(part: Part, *, scripts: str = "", follow: bool = False) -> dict[str, Any]:
    """Return a part as the page takes it, by MIME type: a table with `scripts`, a chart as wide as its cell."""
    if isinstance(part, str):
        sentence = printable(part, LONGEST)
        part = Table(f'<p class="perfkit-sentence">{coded(sentence)}</p>', sentence)
    if isinstance(part, Table):
        html = verbatim(part.html) + (scripts if isinstance(part, Searchable) else "")
        return {"text/html": html, "text/plain": part.text}
    spec = part.to_dict()
    return {MIME: following(spec) if follow else spec, "text/plain": str(spec.get("description", "a chart"))}


def _output(data: dict[str, Any]) -> dict[str, Any]:
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
    tables = (run.kernels, run.copies, run.api_calls)
    later = _IDLE.setdefault(run, Later(lambda: Idle(*tables, ranges=run.ranges, os_calls=run.os_calls)))
    index = index_of(later, run, "idle times", at_once=len(run.kernels) <= MANY)
    devices = {"ranks": view.ranks, "gpus": view.gpus}
    return index.gaps(window=view.window, **devices), index.determinable(**devices)


def operators(source: Selection | Explorer, view: Selection, *, by: str | Sequence[str]) -> pd.DataFrame:
    """Return what `perfkit.analysis.operators.summary` says of a choice; arguments and Pending as in `gaps`."""
    traced = view.framework
    if isinstance(source, Selection):
        return of_operators.summary(traced.ops, traced.kernels, traced.api_calls, by=by, window=traced.window)
    run = traced.run
    later = _OPERATORS.setdefault(view.run, Later(lambda: Operators(run.ops, run.kernels, run.api_calls)))
    index = index_of(later, view.run, "operators", at_once=len(view.run.kernels) <= MANY)
    rows = {"ops": positions(traced.ops, run.ops), "kernels": positions(traced.kernels, run.kernels)}
    return index.summary(by=by, window=traced.window, **rows)


def positions(chosen: pd.DataFrame, every: pd.DataFrame) -> Int | None:
    """Return the positions of chosen rows of a table, None for all of them."""
    return None if chosen is every else np.flatnonzero(every.index.isin(chosen.index))


def index_of(later: Later[T], run: Run, what: str, *, at_once: bool) -> T:
    """Return the index of a run; Pending where a person waits for it and it is not made `at_once`."""
    why = f"The {what} of {len(run.kernels):,} kernels are being looked for. They follow here."
    return later.answer(why, at_once=at_once)


class Log:
    """A file that grows, read without the cache; `problem` is why not yet; ReadError if no reader knows its kind."""

    def __init__(self, path: Path) -> None:
        if recognise(path) is None:
            raise unrecognised(path)
        self.samples, self.name, self.problem = SAMPLES.empty(), path.name, ""
        self._path, self._seen, self._rest_until = path, (0, 0), 0.0
        self.renew()

    def renew(self) -> bool:
        """Read the file if it has changed, and return whether there is news."""
        start = time.monotonic()
        if start < self._rest_until:
            return False
        try:
            stat = self._path.stat()
            if self._seen == (stat.st_mtime_ns, stat.st_size):
                return False
            self._seen = stat.st_mtime_ns, stat.st_size
            name = recognise(self._path)
            if name is None:
                raise unrecognised(self._path)
            self.samples, self.problem = Run([reader(name).read(self._path)]).samples, ""
        except OSError as e:
            self.problem = f"{self._path}: cannot be read ({e.strerror})."
        except ReadError as e:
            self.problem = str(e)
        now = time.monotonic()
        self._rest_until = now + REST * (now - start)
        return True


class LiveMonitor:
    """A log that grows, shown up to where the slider stands (`slider.value`, s); at its end it moves on with the log.

    The browser counts ticks in ``play.value``, so that nothing runs when the page is closed.
    """

    def __init__(self, log: Log) -> None:
        self.source = log
        self.play = ipywidgets.Play(max=2**31 - 1, interval=round(1000 * TICK), show_repeat=False)
        wide, narrow = {"flex": "1 1 220px"}, {"width": "210px"}
        self.slider = ipywidgets.FloatSlider(layout=wide, description="until (s)", readout_format=".1f")
        self.slider.continuous_update = False
        self.span = ipywidgets.Dropdown(options=list(SPANS), value="last 5 min", description="show", layout=narrow)
        self.status, self.picture = ipywidgets.HTML(), ipywidgets.Output()
        row = ipywidgets.HBox([self.play, self.slider, self.span], layout={"flex_flow": "row wrap"})
        self.view = ipywidgets.VBox([row, self.status, self.picture, ipywidgets.HTML(follow_cells())])
        self._renewed()
        self.slider.value = self.slider.max
        self._draw()
        self.play.observe(self._ticked, "value")
        self.play.observe(self._say, "playing")
        self.slider.observe(self._draw, "value")
        self.span.observe(self._draw, "value")

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def step(self) -> None:
        """Read what was added to the log; a slider at the end moves to the new end."""
        before, follows = self.slider.value, self._follows()
        if not self.source.renew():
            return
        self._renewed()
        if follows:
            self.slider.value = self.slider.max
        if self.slider.value == before:
            self._draw()

    def _follows(self) -> bool:
        return bool(self.slider.value == self.slider.max)

    def _ticked(self, change: Any) -> None:
        """Step; Play's button to stop sets its ticks back to 0, which is no step."""
        if change["new"] > change["old"]:
            self.step()

    def _renewed(self) -> None:
        """Set the ends of the slider, and how high each metric goes."""
        samples = self.source.samples
        self._seen = samples[samples["metric"].isin(list(monitor_lines.NAMES))]
        tops = self._seen.groupby("metric", observed=True)["value"].max()
        self._tops = {str(metric): float(top) for metric, top in tops.items()}
        times = self._seen["time_ns"]
        first, last = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        with self.slider.hold_trait_notifications():
            self.slider.min, self.slider.max = first / SECOND, last / SECOND
            self.slider.step = max((last - first) / SECOND / 1000, 0.001)

    def _draw(self, _: Any = None) -> None:
        first, until = (round(limit * SECOND) for limit in (self.slider.min, self.slider.value))
        span = SPANS[self.span.value]
        window = first if span is None else max(first, until - span), until + 1  # half open
        drawn = monitor_lines.strips(bins(self._seen, bins=BINS, window=window), window=window, tops=self._tops)
        self.picture.outputs = (_output({MIME: following(drawn), "text/plain": str(drawn["description"])}),)
        self._say()

    def _say(self, _: Any = None) -> None:
        """Write how much of the log is shown, and why the reader cannot read more."""
        past, whole = (duration((end - self.slider.min) * SECOND) for end in (self.slider.value, self.slider.max))
        waits = "; press Play to follow it" if self._follows() and not self.play.playing else ""
        lines = [f"{printable(self.source.name, LONGEST_NAME)}: {past} of {whole}{waits}"]
        lines += [printable(self.source.problem, LONGEST_PROBLEM)] if self.source.problem else []
        self.status.value = "<br>".join(escape(line) for line in lines)


def live_monitor(source: str | Path) -> LiveMonitor | monitor_lines.Still:
    """Show a log of the GPUs and follow it while it is being written.

    perfkit follows a file that was changed in the last 10 s, such as the one that ``nvidia-smi ... -l 1 -f gpu.csv``
    is writing. Of any other log, and where nobody can press Play (papermill, nbconvert, a program), it shows a chart.
    `source` is the path of a log, or of a folder. Raises ReadError if nothing is there, or no reader can read it.
    """
    path = Path(source)
    is_growing = path.is_file() and time.time() - path.stat().st_mtime < FRESH
    if is_watched() and is_growing:
        return LiveMonitor(Log(path))
    return monitor.dashboard(bins(load(path).samples, bins=STILL_BINS))
