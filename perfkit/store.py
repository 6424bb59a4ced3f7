"""A store: what the profiles of many ranks hold, as Parquet by rank and table, so that each is read once.

::

    STORE/perfkit-store.json               marks the folder
    STORE/ranks/KEY/manifest.SUM.json      what was read of one file: its rank, tables, notes, and the state of the file
    STORE/ranks/KEY/reduction.SUM.json     its figures, as `perfkit.analysis.ranks` merges them
    STORE/ranks/KEY/KERNELS.SUM.parquet    its tables, by time, with statistics of each row group
    STORE/refused/KEY.json                 a file that could not be read, and why

SUM is the checksum of the file's content, compared whenever the file is read. A rank with a damaged file is left out
and named; the next `ingest` reads it anew. KEY is made of the path of a file, so the parts of a job array write into
different folders. A folder gets its name when it is whole: a killed worker or a full disk leaves nothing that looks
complete, and the next `ingest` reads what is missing, refused or has changed.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from operator import add
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pandas as pd
import pyarrow as pa

from perfkit import cache
from perfkit.analysis import ranks
from perfkit.analysis.ranks import Reduction
from perfkit.discovery import Found, discovered, pattern, rank_in
from perfkit.errors import PerfkitError, ReadError
from perfkit.parallel import map_reduce, workers_for
from perfkit.profile import Missing, Profile
from perfkit.readers import claimants, reader, unrecognised
from perfkit.readers.text import captures, put
from perfkit.schema import Checked
from perfkit.tables import TABLES

MARK = "perfkit-store.json"
MANIFEST, REDUCTION = "manifest", "reduction"
UNREADABLE = (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError, ReadError)
VERSION = 3  # of the layout; a store of another one is refused
ROWS = 1 << 17  # of a row group
FIXED_BYTES = 250 << 20  # of a worker: Python and its libraries
PER_BYTE, PER_PACKED_BYTE = 2, 40  # memory per byte of a file: measured 1 and 20 on traces
# Tables that `ranks.reduced` takes.
REDUCED = ("KERNELS", "COPIES", "RANGES", "API_CALLS", "OPS", "OS_CALLS", "PYTHON_CALLS")
TIMES = ["rank", "name", "start_ns", "dur_ns"]  # all that it takes of the last two
ASKED = ("traced", "sampled", "platform")  # columns of CAPTURE
TRACES = (".json", ".json.gz", ".sqlite", ".nsys-rep")


Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Manifest(msgspec.Struct):
    """What was read of one file."""

    path: str
    reader: str
    state: str
    rank: Number | None
    node: str
    world_size: Number | None
    tool: str
    tool_version: str
    t0_unix_ns: Time | None
    dur_ns: Time
    tables: dict[str, int]
    doubts: dict[str, list[str]]
    missing: list[Missing]
    notes: list[str]
    asked: dict[str, str] = {}  # columns of CAPTURE
    is_simulated: bool = False
    failure: str = ""


class Refusal(msgspec.Struct):
    """A file that could not be read, and why."""

    path: str
    reason: str


class Ingested(msgspec.Struct):
    """How many files a call of `ingest` read, how many the store had already, and what was refused."""

    read: int
    kept: int
    refused: list[Refusal]


class _Task(msgspec.Struct):
    """One file to read; an empty `reader` is a file that no reader recognises."""

    store: str
    path: str
    reader: str
    rank: int | None = None


def is_store(path: Path) -> bool:
    """Tell whether a folder is a store."""
    try:
        return (path / MARK).is_file()
    except (OSError, ValueError):  # no path that can be; whoever opens it says so
        return False


def ingest(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    workers: int = 0,
    dask: str = "",
    part: tuple[int, int] = (1, 1),
    rank_regex: str = "",
    done: Callable[[int, int], object] = lambda number, of: None,
) -> Ingested:
    """Read profiles into a store, each file in one worker; files that it has, and that did not change, are kept.

    `workers` is at most as many as the memory holds, 0 one a core; `dask` is the address of a scheduler; `part` (2, 8)
    is the second of eight parts of the files, for a job array. `rank_regex` finds the rank in the path of a file, as
    its first group; what a file states itself goes before. PerfkitError if `out` is no store and not empty.
    """
    out = Path(out)
    _prepare(out)
    tasks = _tasks([Path(path) for path in paths], out, rank_regex)[part[0] - 1 :: part[1]]
    need = max((_need_bytes(Path(task.path)) for task in tasks), default=0)
    count = workers if dask and workers else workers_for(need, workers)
    # What killed workers left of these files; other parts of a job array work on other files.
    keys = {_key(task.path) for task in tasks}
    for left in (out / "ranks").glob(".*"):
        if left.stem.removeprefix(".") in keys:
            shutil.rmtree(left, ignore_errors=True)
    result = map_reduce(
        tasks, _written, int, add, workers=count, dask=dask, done=lambda n: done(n, len(tasks))
    )
    refused = [Refusal(r.source.path, r.reason) for r in result.refused]
    for refusal in refused:
        with suppress(OSError):  # a full disk: the caller names them
            put(out / "refused" / f"{_key(refusal.path)}.json", msgspec.json.encode(refusal))
    read = result.value or 0
    return Ingested(read, len(tasks) - read - len(refused), refused)


def _prepare(out: Path) -> None:
    """Make an empty store, or take the one that is there.

    Parts of a job array do this at the same time. The mark comes before all else, and is looked for after the folder
    was listed: what another part made in between is then known as a store's.
    """
    mark = out / MARK
    foreign = out.exists() and (
        not out.is_dir() or any(p.suffix != ".partial" for p in out.iterdir())
    )
    if mark.is_file():
        _check_version(mark)
    elif foreign:
        raise PerfkitError(f"{out}: is no store of perfkit, and not empty. Choose another --out.")
    else:
        out.mkdir(parents=True, exist_ok=True)
        put(mark, msgspec.json.encode({"schema": VERSION}))
    for folder in (out / "ranks", out / "refused"):
        folder.mkdir(exist_ok=True)


def _check_version(mark: Path) -> None:
    try:
        version = msgspec.json.decode(mark.read_bytes())["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise ReadError(
            f"{mark}: damaged ({e}). Remove the store, and run `perfkit ingest` again."
        ) from e
    if version != VERSION:
        raise ReadError(
            f"{mark}: a store of version {version}, not {VERSION}. Run `perfkit ingest` into a new folder."
        )


def _tasks(paths: Sequence[Path], out: Path, rank_regex: str) -> list[_Task]:
    """Return the files to read in a fixed order, also files of a given folder that look like its profiles and are none.

    The folder around a file that was named itself is not searched: what else lies there was not asked for.
    """
    ranked = pattern(rank_regex)
    found, unread = _discovered(paths)
    tasks = [_Task(str(out), str(one.path), one.reader, rank_in(one.path, ranked)) for one in found]
    shapes = {(one.path.parent, _shape(str(one.path))) for one in found if not one.is_given}
    tasks += [_Task(str(out), str(path), "") for path in unread]
    read = {task.path for task in tasks}
    for folder in sorted({folder for folder, _ in shapes}):
        broken = (
            str(p)
            for p in sorted(folder.iterdir())
            if p.name.endswith(TRACES) and str(p) not in read
        )
        tasks += [_Task(str(out), p, "") for p in broken if (folder, _shape(p)) in shapes]
    return tasks


def _discovered(paths: Sequence[Path]) -> tuple[list[Found], list[Path]]:
    """Return the profiles at these paths, and the named files that are none; ReadError if none of them is one."""
    try:
        return discovered(paths, deep=True)[0], []
    except ReadError:
        is_read = [not path.is_file() or bool(claimants(path)) for path in paths]
        if all(is_read) or not any(is_read):
            raise
        known = [path for path, known in zip(paths, is_read, strict=True) if known]
        return discovered(known, deep=True)[0], [path for path in paths if path not in {*known}]


def _shape(path: str) -> str:
    """Return the name of a file without its digits: the files of ranks differ in them only."""
    return re.sub(r"\d+", "#", Path(path).name)


def _need_bytes(path: Path) -> int:
    """Return the memory that a worker needs to read a file."""
    with suppress(OSError):
        size = path.stat().st_size
        return FIXED_BYTES + size * (PER_PACKED_BYTE if path.suffix == ".gz" else PER_BYTE)
    return FIXED_BYTES


def _key(path: str) -> str:
    """Return the name of a file's folder: the end of its own name, and what tells its path from others."""
    stem = re.sub(r"[^\w-]+", "-", Path(path).name.partition(".")[0])[-40:]
    return f"{stem}-{hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()[:12]}"


def _written(task: _Task) -> bool:
    """Read a file into its folder; False if the store has it as it is."""
    path, place = Path(task.path), Path(task.store, "ranks", _key(task.path))
    if not task.reader:
        raise unrecognised(path)
    source = cache.Source(path, task.reader, is_cached=False)
    with suppress(*UNREADABLE):
        if _checked(place).state == source.state:
            return False
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        _write(source, task, partial)
        if place.exists():
            shutil.rmtree(place)
        partial.replace(place)
    except FileExistsError:  # another worker has just written the same file
        shutil.rmtree(partial, ignore_errors=True)
    except OSError as e:
        shutil.rmtree(partial, ignore_errors=True)
        if not place.exists():
            raise PerfkitError(
                f"{task.store}: cannot be written ({e.strerror or e}). Make room, and run again."
            ) from e
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    (Path(task.store) / "refused" / f"{place.name}.json").unlink(missing_ok=True)
    return True


def _write(source: cache.Source, task: _Task, folder: Path) -> None:
    profile = source.profile()
    rows: dict[str, int] = {}
    doubts: dict[str, list[str]] = {}
    tables = {}
    for name in profile.loaders:
        checked = source.table(name)
        content = cache.parquet(checked.frame, row_group_size=ROWS, write_statistics=True)
        _add(folder, name, content)
        rows[name], doubts[name] = len(checked.frame), list(checked.notes)
        if name in REDUCED:
            tables[name] = checked.frame[TIMES] if name in REDUCED[3:] else checked.frame
        profile.forget(name)
    used = (tables.get(name, TABLES[name].empty()) for name in REDUCED)
    _add(folder, REDUCTION, msgspec.json.encode(ranks.reduced(*used)), "json")
    capture = profile.capture.astype(object).where(profile.capture.notna(), None).iloc[0]
    stated: dict[str, Any] = {
        name: capture[name] for name in ("tool", "tool_version", "t0_unix_ns", "dur_ns")
    }
    stated["rank"] = task.rank if profile.rank is None else profile.rank
    stated |= {
        "path": cache.shown(source.path),
        "reader": task.reader,
        "state": source.state,
        "node": profile.node,
    }
    stated["world_size"] = profile.world_size
    stated["is_simulated"] = profile.is_simulated
    stated["failure"] = profile.failure
    stated["asked"] = {name: str(capture[name]) for name in ASKED}
    missing = list(profile.missing)
    manifest = Manifest(
        tables=rows, doubts=doubts, missing=missing, notes=list(profile.notes), **stated
    )
    source.check()
    _add(folder, MANIFEST, msgspec.json.encode(manifest), "json")


def _add(folder: Path, name: str, content: bytes, kind: str = "parquet") -> None:
    """Write a file of a rank; its name holds the checksum of its content."""
    (folder / cache.file_name(name, content, kind)).write_bytes(content)


def _content(folder: Path, name: str, kind: str = "parquet") -> pa.Buffer:
    """Return the content of a file of a rank; ReadError if it is missing, or if its checksum is another."""
    files = sorted(folder.glob(f"{name}.*.{kind}"))
    if len(files) != 1:
        raise ReadError(
            f"{folder}: damaged ({len(files)} files of {name}, not one). Run `perfkit ingest` again."
        )
    try:
        with pa.OSFile(os.fsencode(files[0])) as opened:
            content = opened.read_buffer()
    except OSError as e:
        raise ReadError(f"{files[0]}: cannot be read ({e}). Run `perfkit ingest` again.") from e
    if files[0].name != cache.file_name(name, content, kind):
        raise ReadError(
            f"{files[0]}: damaged (its checksum is another). Run `perfkit ingest` again."
        )
    return content


def _checked(folder: Path) -> Manifest:
    """Return the manifest of a rank; one of UNREADABLE if a file of the rank is missing or damaged."""
    manifest = msgspec.json.decode(_content(folder, MANIFEST, "json"), type=Manifest)
    _reduction(folder).check()
    for table in manifest.tables:
        _content(folder, table)
    return manifest


def _reduction(folder: Path) -> Reduction:
    """Return the figures of a rank; one of UNREADABLE if they are missing or damaged."""
    return msgspec.json.decode(_content(folder, REDUCTION, "json"), type=Reduction)


def _checked_or_why(folder: Path) -> Manifest | str:
    """Return the manifest of a rank, or why the rank cannot be read."""
    try:
        return _checked(folder)
    except UNREADABLE as e:
        reason = (
            str(e)
            if isinstance(e, ReadError)
            else f"damaged ({type(e).__name__}). Run `perfkit ingest` again"
        )
        return reason.removeprefix(f"{folder}{os.sep}").removeprefix(f"{folder}: ")


class _Stored:
    """A table in a store, read when asked for."""

    def __init__(self, folder: Path, table: str, notes: Sequence[str]) -> None:
        self._folder, self._table, self._notes = folder, table, tuple(notes)

    def __call__(self) -> Checked:
        """Read the table; ReadError if it is damaged."""
        content = _content(self._folder, self._table)
        try:
            frame, _ = cache.from_parquet(content, self._table)
        except cache.DAMAGED as e:
            first = str(e).partition("\n")[0]
            raise ReadError(
                f"{self._folder}: damaged {self._table} ({first}). Run `perfkit ingest` again."
            ) from e
        return Checked(frame, self._notes)

    def is_stored(self) -> bool:
        """Say that the table need not stay in memory."""
        return True

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the table, which is not read for them."""
        return self._notes

    def reduction(self) -> Reduction:
        """Return the figures of the file."""
        return _reduction(self._folder)


def opened(path: Path) -> tuple[list[Profile], list[str]]:
    """Return the profiles of a store, none of their tables read, and notes that name what was refused."""
    _check_version(path / MARK)
    profiles, notes = [], []
    folders = [
        folder for folder in sorted((path / "ranks").glob("*")) if not folder.name.startswith(".")
    ]
    with ThreadPoolExecutor() as pool:  # checksums are made without the interpreter's lock
        manifests = list(pool.map(_checked_or_why, folders))
    whole = [manifest for manifest in manifests if isinstance(manifest, Manifest)]
    made = iter(_captures(whole))
    for folder, manifest in zip(folders, manifests, strict=True):
        try:
            if isinstance(manifest, str):
                raise ReadError(manifest)
            capture = next(made)
            if isinstance(capture, str):
                raise ReadError(capture)
            profiles.append(_profile(folder, manifest, capture))
        except UNREADABLE as e:
            notes.append(f"{folder.name}: left out: {e}")
    for file in sorted((path / "refused").glob("*.json")):
        with suppress(*UNREADABLE):
            refusal = msgspec.json.decode(file.read_bytes(), type=Refusal)
            notes.append(f"{Path(refusal.path).name}: refused by ingest: {refusal.reason}")
    if not profiles:
        raise ReadError(
            f"{path}: the store holds no profile. {'; '.join(notes[:3]) or 'Run `perfkit ingest`.'}"
        )
    return sorted(profiles, key=lambda p: (-1 if p.rank is None else p.rank, str(p.path))), notes


def _captures(stored: Sequence[Manifest]) -> list[pd.DataFrame | str]:
    """Return CAPTURE of each rank, or why it cannot be; made at once, for a table costs as much as a thousand rows."""
    rows = [
        {
            "tool": one.tool,
            "tool_version": one.tool_version,
            "path": one.path,
            "t0_unix_ns": one.t0_unix_ns,
            "dur_ns": one.dur_ns,
            **{name: one.asked.get(name, "") for name in ASKED},
        }
        for one in stored
    ]
    try:
        return list(captures(rows))
    except UNREADABLE as e:
        if len(stored) == 1:
            return [str(e)]
        return [capture for one in stored for capture in _captures([one])]


def _profile(folder: Path, stored: Manifest, capture: pd.DataFrame) -> Profile:
    """Return the profile of a rank; LookupError if its reader is not installed any more."""
    reader(stored.reader)
    loaders = {
        table: _Stored(folder, table, stored.doubts.get(table, ()))
        for table in stored.tables
        if table in TABLES
    }
    return Profile(
        stored.reader,
        Path(stored.path),
        capture,
        loaders,
        tuple(stored.missing),
        tuple(stored.notes),
        stored.rank,
        stored.node,
        stored.world_size,
        stored.is_simulated,
        stored.failure,
    )


def is_stored(profile: Profile) -> bool:
    """Tell whether a profile is one of a store, which has its figures without its events."""
    return any(isinstance(loader, _Stored) for loader in profile.loaders.values())


def reduction(profile: Profile) -> Reduction:
    """Return the figures of a profile, from its store or else from its tables."""
    for loader in profile.loaders.values():
        if isinstance(loader, _Stored):
            return loader.reduction()
    made = ranks.reduced(*(profile.table(name) for name in REDUCED))
    for name in profile.loaders:
        profile.release(name)
    return made


def with_ranks(figures: Reduction, number: Callable[[int], int], shift_ns: int) -> Reduction:
    """Return figures whose ranks and times are those of a run."""
    devices = [(number(rank), *rest) for rank, *rest in figures.devices]
    steps = [
        (number(rank), step, start + shift_ns, dur) for rank, step, start, dur in figures.steps
    ]
    extents = [
        (
            number(rank),
            first + shift_ns,
            last + shift_ns,
            seen_first + shift_ns,
            seen_last + shift_ns,
        )
        for rank, first, last, seen_first, seen_last in figures.extents
    ]
    begun = [(number(rank), start + shift_ns) for rank, start in figures.begun]
    return replace(figures, devices=devices, steps=steps, extents=extents, begun=begun)
