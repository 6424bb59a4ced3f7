"""Readers: one module per format, each with `sniff(path)`, `read(path)`, a VERSION and a KIND.

`READERS` is the list of those of profilers; its order is the precedence when several claim a file
and when two profiles of one run hold the same table. Nothing outside of readers knows a reader by
its name: it asks for a KIND of `profile.KINDS`. What cannot be read is a ReadError: a file that is
damaged, cut, contradicts itself or holds no value of a table. Of a log that was still written only
the last line is left out, with a note.

A reader of READERS may have `stands_for(path)`, the file that stands for a profile of several
files, and NAMED_FORMS, the ends of names of one capture in several forms, the one that is read
first.

All other readers are registered by installed packages in their pyproject.toml; perfkit registers
those of logs so (`perfkit.logs`). The name is what `Profile.reader` and the cache call it::

    [project.entry-points."perfkit.readers"] my_format = "my_package.reader"

They come after READERS, first perfkit's own: on equal claim perfkit's reader reads the file, and a
note says so. The module is imported when perfkit first looks at a file, never by `import perfkit`.
A reader that cannot be imported or lacks a part of the contract is left out, and a note names its
distribution. Whatever a reader raises becomes a ReadError that names it too: other readers and
other files of the run are not affected.

A registered reader may have more parts:

- LARGEST: up to which size, bytes, a file is read by a reader that holds it whole.
- READS: what it reads, in words, for the error about a file that no reader claims.
- SHARES = True: the file is what a program printed, and may hold something for other such readers too.
- ALIKE = True: files of several ranks may be equal, such as dumps without an entry; else perfkit leaves copies out.
- `refused(path)`: what a file is that it knows and cannot read, and what to record instead; None for any other.
- DIAGNOSIS: the module that judges what it reads (`perfkit.diagnosis.extensions`).
- RECORDER: a name and a module: `perfkit record NAME` runs the module's `command`, which is one of click.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pandas as pd

from perfkit.errors import PerfkitError, ReadError
from perfkit.format import elided, printable, several
from perfkit.profile import KINDS, Loader, Profile
from perfkit.readers import foreign
from perfkit.schema import Checked
from perfkit.tables import TABLES

READERS = ("nsys", "ncu", "hpctoolkit", "torch_trace", "rocpd")
SUFFIXES = (
    ".sqlite",
    ".nsys-rep",
    ".qdrep",
    ".ncu-rep",
)  # what a profiler is expected to have written something into

READABLE = (
    "an Nsight Systems export (.sqlite, parquetdir, arrowdir)",
    "an Nsight Compute report (.ncu-rep) or its page (`ncu --import REPORT --csv --page raw`)",
    "an HPCToolkit database (the folder that `hpcprof` writes)",
    "what `rocprofv3 --sys-trace --output-format rocpd` wrote, or its formats json and csv",
    "a PyTorch profiler trace (.json or .json.gz that `export_chrome_trace` wrote)",
)

LOOKED_AT = 20  # files of a folder without a profile: is one of them of another tool?

# Readers from outside
GROUP = "perfkit.readers"
OWN = "perfkit"  # the distribution whose readers come first
NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")  # a name is part of the names of folders in the cache
LONGEST = 200  # characters of an error's message
T = TypeVar("T")


def reader(name: str) -> ModuleType:
    """Return the reader module called `name`, perfkit's own or one from outside; LookupError if there is none."""
    if name in READERS:
        return import_module(f"perfkit.readers.{name}")
    loaded = _guarded(name)
    if isinstance(loaded, str):
        raise LookupError(f"reader {name!r}: {loaded}")
    return loaded


def every_name() -> tuple[str, ...]:
    """Return the names of all readers that work, in the order of precedence."""
    return (*READERS, *outside_names())


def kind(name: str) -> str:
    """Return the kind of captures that a reader reads, one of `perfkit.profile.KINDS`."""
    return str(reader(name).KIND)


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of readers in the order of precedence: as in READERS, then perfkit's own by name, then others."""
    order = [*READERS, *_registered()]
    place = {name: number for number, name in enumerate(order)}
    return sorted(set(names), key=lambda name: (place.get(name, len(order)), name))


def recognise(path: Path) -> str | None:
    """Return the name of the reader that claims `path` by its content, or None."""
    profilers = next((name for name in READERS if reader(name).sniff(path)), None)
    return profilers or next((name for name in outside_names() if reader(name).sniff(path)), None)


def claimants(path: Path) -> tuple[str, ...]:
    """Return the names of the readers of `path`: the first that claims it, of a program's log all that claim it."""
    first = recognise(path)
    if first is None:
        return ()
    others = (
        [name for name in outside_names() if name != first and _shares(name)]
        if _shares(first)
        else []
    )
    return (first, *(name for name in others if reader(name).sniff(path)))


def _shares(name: str) -> bool:
    return getattr(reader(name), "SHARES", False) is True


def offered(part: str) -> tuple[object, ...]:
    """Return what registered readers have as an optional part of the contract, in their order, each value once."""
    values = [getattr(reader(name), part, None) for name in outside_names()]
    return tuple(dict.fromkeys(value for value in values if value is not None))


def readable() -> str:
    """Return what perfkit reads, in words."""
    formats = [*READABLE, *map(str, offered("READS"))]
    return f"{', '.join(formats)}, or a folder that holds one of these"


def rivals(path: Path, claimed: Sequence[str]) -> list[str]:
    """Return notes on readers of other packages that claim a file too, which another reader reads."""
    foreign = [name for name in outside_names() if not is_from_perfkit(name)]
    others = (name for name in foreign if name not in claimed and reader(name).sniff(path))
    whose = "perfkit's own reader" if is_from_perfkit(claimed[0]) else "the reader"
    return [
        f"{path.name}: {origin(name)} claims this file too; {whose} {claimed[0]} reads it"
        for name in others
    ]


def broken() -> tuple[str, ...]:
    """Return a note on each reader from outside that does not work."""
    notes = ((point, _problem(name, point)) for name, point in _registered().items())
    second = (point for point in _points() if _registered()[point.name] is not point)
    clashes = (
        f"{_spoken(point)}: left out, for {_holder(point)} has a reader of this name"
        for point in second
    )
    return (
        *(f"{_spoken(point)}: left out, for {problem}" for point, problem in notes if problem),
        *clashes,
    )


def _holder(second: EntryPoint) -> str:
    return "perfkit" if is_from_perfkit(second.name) else "another package"


@cache
def is_from_perfkit(name: str) -> bool:
    """Say whether a reader is perfkit's own."""
    return name in READERS or (name in _registered() and _is_own(_registered()[name]))


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == OWN


def unrecognised(path: Path) -> ReadError:
    """Return the error that says what a file is that no reader claims, and what to do about it."""
    unable = broken()
    return ReadError(
        f"{_unrecognised(path)}{' Note: ' + '; '.join(unable) + '.' if unable else ''}"
    )


def _unrecognised(path: Path) -> str:
    if path.is_dir():
        return _unrecognised_folder(path)
    try:
        with path.open("rb") as file:
            head = file.read(200)
            size = path.stat().st_size
    except OSError as e:
        return f"{path}: the file cannot be opened ({e.strerror}). Check its permissions."
    if size == 0:
        return f"{path}: the file is empty (0 bytes). Export or copy it again."
    if head.startswith(b"version https://git-lfs"):
        return f"{path}: this is a git-LFS pointer, not the capture. Fetch it with `git lfs pull`."
    if head.startswith(b"HPCTOOLKIT"):
        return (
            f"{path}: this is one of the files of an HPCToolkit database. Load its folder, "
            f"{path.parent}."
        )
    known = foreign.described(path)
    if known:
        return f"{path}: {known}"
    if head.startswith(b"SQLite format 3\0"):
        return (
            f"{path}: an SQLite database that is not an Nsight Systems export (tables: "
            f"{_tables(path)}). Export the report with `nsys export -t sqlite REPORT.nsys-rep`."
        )
    for refused in offered("refused"):
        why = refused(path) if callable(refused) else None
        if why:
            return f"{path}: {why}"
    keys = reader("torch_trace").outermost_keys(path)
    if keys:
        found = (
            "a JSON object that is not a PyTorch profiler trace (keys: "
            f"{several((repr(k[:40]) for k in keys), 5)})"
        )
        if "nodes" in keys and "traceEvents" not in keys:
            found = (
                "a PyTorch execution trace (it has nodes, no traceEvents), which holds no times of "
                "the GPU's work"
            )
        return f"{path}: {found}. Load what torch.profiler.profile wrote with export_chrome_trace."
    start = foreign.unpacked(path)
    inside = "unpacked it starts" if head.startswith(foreign.GZIP) and start else "starts"
    begin = (start or head)[:16]
    return (
        f"{path}: no reader recognises this file ({size} bytes, {inside} with {begin!r}). Point at "
        f"{readable()}."
    )


def _unrecognised_folder(path: Path) -> str:
    inside = sorted(path.iterdir())
    measured = next((f for f in (path, *inside) if any(f.glob("*.hpcrun"))), None)
    if measured:
        return (
            f"{measured}: these are HPCToolkit's measurements, not yet a database. "
            f"Make one with `hpcprof -o DATABASE {measured}` and load that."
        )
    for inner in inside[:LOOKED_AT]:
        told = foreign.described(inner)
        if told:
            return f"{inner}: {told}"
    return f"{path}: nothing in this folder is a profile perfkit reads. Point at {readable()}."


def _tables(path: Path) -> str:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            names = [
                name
                for (name,) in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            ]
    except sqlite3.Error as e:
        return str(e)
    return several(sorted(names), 5) or "none"


def outside_names() -> tuple[str, ...]:
    """Return the names of the registered readers that work; they cannot have those of READERS."""
    return tuple(name for name, point in _registered().items() if not _problem(name, point))


def origin(name: str) -> str:
    """Return a reader in words, with the distribution that it is from."""
    return _spoken(_registered()[name])


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Return what is registered: perfkit's own first, then in the order of names, then of distributions."""
    points = entry_points(group=GROUP)
    return tuple(
        sorted(points, key=lambda point: (not _is_own(point), point.name, _distribution(point)))
    )


def _registered() -> dict[str, EntryPoint]:
    """Return the entry points by their names; of two with one name the first."""
    points: dict[str, EntryPoint] = {}
    for point in _points():
        points.setdefault(point.name, point)
    return points


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _spoken(point: EntryPoint) -> str:
    return f"the reader {printable(point.name, 60)} of {printable(_distribution(point), 100)}"


@cache
def _problem(name: str, point: EntryPoint) -> str:
    """Return why a reader does not work; empty if it does."""
    if name in READERS:
        return "perfkit has a reader of this name"
    if not NAME.fullmatch(name) or name in KINDS:
        return "its name must be small letters, digits and _, and no kind of a capture"
    loaded = _guarded(name)
    return loaded if isinstance(loaded, str) else ""


@cache
def _guarded(name: str) -> ModuleType | str:
    """Return a module that has all of a reader's parts, imported once, or why there is none."""
    point = _registered().get(name)
    if point is None:
        return "no installed package has it"
    try:
        loaded = point.load()
    # Whatever code from outside raises, the other readers go on.
    except Exception as e:  # noqa: BLE001
        return f"it cannot be imported ({_error(e)})"
    lacking = lacks(loaded)
    if lacking:
        return f"its module lacks {', '.join(lacking)}"
    guarded = ModuleType(
        loaded.__name__ if isinstance(loaded, ModuleType) else name, loaded.__doc__
    )
    guarded.__dict__.update({part: getattr(loaded, part) for part in dir(loaded) if part.isupper()})
    guarded.__dict__.update(sniff=partial(_sniff, loaded), read=partial(_read, loaded, name))
    if callable(refused := getattr(loaded, "refused", None)):
        guarded.__dict__["refused"] = partial(_refused, refused)
    return guarded


def lacks(reader: object) -> list[str]:
    """Return the parts of the contract that a module lacks, each in words."""
    version, kind = getattr(reader, "VERSION", None), getattr(reader, "KIND", None)
    whole = isinstance(version, int) and not isinstance(version, bool) and version > 0
    return [
        *(
            f"a function {part}(path)"
            for part in ("sniff", "read")
            if not callable(getattr(reader, part, None))
        ),
        *([] if whole else ["VERSION (a whole number above 0)"]),
        *([] if kind in tuple(KINDS) else [f"KIND (one of {', '.join(KINDS)})"]),
    ]


def _sniff(reader: ModuleType, path: Path) -> bool:
    """Say whether a reader from outside claims a file; one that fails claims nothing."""
    try:
        return reader.sniff(path) is True
    except Exception:  # noqa: BLE001  as in _guarded; check_reader tells the author
        return False


def _refused(refused: Callable[[Path], str | None], path: Path) -> str | None:
    """Return what a reader from outside says of a file that it cannot read; one that fails says nothing."""
    try:
        said = refused(path)
    except Exception:  # noqa: BLE001  as in _guarded
        return None
    return said if isinstance(said, str) else None


def _read(reader: ModuleType, name: str, path: Path) -> Profile:
    """Read a file by a reader from outside, under the name by which it is registered."""
    profile = _safely(name, path, lambda: reader.read(path))
    if not isinstance(profile, Profile):
        raise _failure(
            name, path, f"returned {type(profile).__name__}, not a perfkit.profile.Profile"
        )
    foreign = sorted(set(profile.loaders) - set(TABLES))
    if foreign:
        raise _failure(
            name, path, f"returned tables that perfkit does not have: {', '.join(foreign)}"
        )
    _safely(name, path, lambda: TABLES["CAPTURE"].check(profile.capture))
    loaders: dict[str, Loader] = {
        t: partial(_table, name, path, t, load) for t, load in profile.loaders.items()
    }
    return replace(profile, reader=name, path=path, loaders=loaders)


def _table(name: str, path: Path, table: str, load: Loader) -> pd.DataFrame | Checked:
    """Return a table of a reader from outside, which must have the shape that it promises."""

    def checked() -> pd.DataFrame | Checked:
        made = load()
        TABLES[table].check(made.frame if isinstance(made, Checked) else made)
        return made

    return _safely(name, path, checked)


def _safely(name: str, path: Path, call: Callable[[], T]) -> T:
    """Return what a call returns; whatever else than a ReadError it raises becomes one that names the reader."""
    try:
        return call()
    except ReadError:
        raise
    except Exception as e:
        raise _failure(name, path, f"failed ({_error(e)})") from e


def _failure(name: str, path: Path, what: str) -> ReadError:
    return ReadError(
        f"{path}: {origin(name)} {what}. Report this to the authors of that package, or uninstall "
        "it and load again."
    )


def _error(error: Exception) -> str:
    message = str(error) if isinstance(error, PerfkitError) else f"{type(error).__name__}: {error}"
    return elided(printable(message.removesuffix(": "), 1000), LONGEST)
