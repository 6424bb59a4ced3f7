"""Answers of a diagnosis in the cache, so that the next report or notebook of a large run need not look at its rows.

An answer that took long and is small lies beside the tables of its run, under the hash of all that it depends on: the
state of each file, the choice, the job, and the code of perfkit. Pickle writes it. Only this user's own files are read,
and only classes of perfkit, pandas and numpy.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from threading import RLock
from time import process_time
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

import perfkit
from perfkit.cache import content, file_name, place
from perfkit.readers.text import put
from perfkit.run import Run
from perfkit.selection import Selection

LONG = 0.2  # s; what is worked out faster is not stored (convention)
LARGE = (
    4 * 2**20
)  # bytes; a larger answer is a table of events, which is faster made than read (convention)
KIND, FOLDER = "pickle", "answers-"
PACKAGES = ("perfkit", "pandas", "numpy")  # whose classes an answer may hold
BUILTINS = ("set", "frozenset", "slice", "range")
DAMAGED = (pickle.UnpicklingError, AttributeError, ImportError, EOFError, ValueError, TypeError)
VIEW, RUN, CHOICE = "view", "run", "choice"


F = TypeVar("F", bound=Callable[..., Any])


class _Answer:
    """What was worked out, once it was; whoever works it out holds the lock."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.is_there = False
        self.made: Any = None


_KEPT: WeakKeyDictionary[Run | Selection, dict[tuple[Any, ...], _Answer]] = WeakKeyDictionary()


def kept(made: F) -> F:
    """Return a function of a selection, or run, that works out its answer once for each and its other arguments.

    Of two threads that ask, the second waits for the first. The answer is shared: callers change
    nothing in it. A selection never changes; a new one is asked anew. What took long is stored in
    the cache (`through_cache`).
    """

    @wraps(made)
    def once(view: Run | Selection, **options: Any) -> Any:
        answer = _KEPT.setdefault(view, {}).setdefault((made, *sorted(options.items())), _Answer())
        with answer.lock:
            if not answer.is_there:
                answer.made = through_cache(made, view, options)
                answer.is_there = True
        return answer.made

    return cast(F, once)


def through_cache(
    made: Callable[..., Any], view: Run | Selection, options: Mapping[str, Any]
) -> Any:
    """Return the answer of `made` to a selection or run: the stored one, else a new one, stored if that pays."""
    folder = _folder(view)
    name = _name(made, view, options) if folder else ""
    if folder is None or not name:
        return made(view, **options)
    for file in sorted(folder.glob(f"{name}.*.{KIND}")):
        with suppress(*DAMAGED):
            return _read(file, name, view)
    started = process_time()
    answer = made(view, **options)
    if process_time() - started >= LONG:
        _store(folder, name, view, answer)
    return answer


def _run(view: Run | Selection) -> Run:
    return view.run if isinstance(view, Selection) else view


def _folder(view: Run | Selection) -> Path | None:
    """Return where answers about a run lie, None where the cache does not hold all of its profiles."""
    profiles = _run(view).profiles
    places = [found for found in map(place, profiles) if found]
    if not places or len(places) < len(profiles):
        return None
    return places[0] / f"{FOLDER}{_code()}"


def _name(made: Callable[..., Any], view: Run | Selection, options: Mapping[str, Any]) -> str:
    """Return a name for all that the answer depends on; "" where an option is a file or another run."""
    if options.get("peaks"):
        return ""
    asked = _pickled(view, sorted(options.items()), by_value=True)
    if asked is None:
        return ""
    run = _run(view)
    files = [str(place(profile)) for part in (run, run.whole) for profile in part.profiles]
    choice: tuple[object, ...] = ()
    if isinstance(view, Selection):
        choice = (*view.choice, view.part, view.traced_window, view.whole is view)
    function = made.__module__, made.__qualname__
    depends = repr((function, asked, choice, run.job, files))
    return hashlib.sha256(depends.encode("utf-8", "backslashreplace")).hexdigest()[:24]


@cache
def _code() -> str:
    """Return a name for this code: of sizes and times of perfkit's files, and of versions."""
    folder = Path(perfkit.__file__).parent
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".toml", ".csv"))
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    depends = repr((pd.__version__, np.__version__, states))
    return hashlib.sha256(depends.encode("utf-8", "backslashreplace")).hexdigest()[:12]


class _Written:
    """The bytes of an answer, which is refused as soon as it is large."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, more: bytes) -> None:
        if len(self.content) + len(more) > LARGE:
            raise pickle.PicklingError(f"the answer has more than {LARGE:,} bytes")
        self.content += more


class _Pickler(pickle.Pickler):
    """Writes the run and the choice as names: they are there when the answer is read."""

    def __init__(self, sink: _Written, view: Run | Selection) -> None:
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self._view = view
        self._run = _run(view)

    def persistent_id(self, obj: Any) -> Any:
        if obj is self._view:
            return (VIEW,)
        if obj is self._run:
            return (RUN,)
        if isinstance(obj, Selection) and obj.run is self._run and obj.whole is obj:
            return CHOICE, obj.choice, obj.part, obj.traced_window
        if isinstance(obj, Run | Selection):
            raise pickle.PicklingError(f"an answer holds {obj!r}, which is another run")
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, view: Run | Selection) -> None:
        super().__init__(source)
        self._view = view
        self._run = _run(view)

    def persistent_load(self, pid: Any) -> Any:
        if pid == (VIEW,):
            return self._view
        if pid == (RUN,):
            return self._run
        _, (ranks, gpus, window, pattern, families), part, traced = pid
        return Selection(
            self._run, ranks, gpus, window, pattern, families, part, traced_window=traced
        )

    def find_class(self, module: str, name: str) -> Any:
        is_known = module.partition(".")[0] in PACKAGES
        if not is_known and not (module == "builtins" and name in BUILTINS):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an answer")
        return super().find_class(module, name)


def _read(file: Path, name: str, view: Run | Selection) -> Any:
    stored = content(file)
    if file.name != file_name(name, stored, KIND):
        raise pickle.UnpicklingError(f"{file.name} is damaged, or belongs to somebody else")
    return _Unpickler(io.BytesIO(stored), view).load()


def _pickled(view: Run | Selection, answer: Any, *, by_value: bool = False) -> bytes | None:
    """Return an answer as bytes, None if it is large or holds another run or a function.

    `by_value`: equal answers as equal bytes.
    """
    sink = _Written()
    pickler = _Pickler(sink, view)
    pickler.fast = by_value
    try:
        pickler.dump(answer)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return bytes(sink.content)


def _store(folder: Path, name: str, view: Run | Selection, answer: Any) -> None:
    """Store an answer if it is small, and remove those of other code; where nothing can be written, do nothing."""
    written = _pickled(view, answer)
    if written is None:
        return
    with suppress(OSError):
        for old in folder.parent.glob(f"{FOLDER}*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        put(folder / file_name(name, written, KIND), written)
