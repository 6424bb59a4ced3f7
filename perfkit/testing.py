"""The contract of a reader, as a test that the author of a reader from outside runs.

    from perfkit.testing import check_reader

    def test_contract():
        check_reader(my_package.reader, ["tests/a_small_capture.log"])

Give small captures, one of each form that the reader reads, in which every value is right: the files are copied, cut
and damaged, and read again each time.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd

from perfkit.errors import ReadError, SchemaError
from perfkit.names.families import FAMILIES
from perfkit.profile import Missing, Profile
from perfkit.readers import claimants, lacks, reader
from perfkit.tables import METRICS, TABLES

UNITS = ("_ns", "_bytes", "_hz", "_w", "_c", "_j", "_frac", "_flops", "_per_s", "_count")
FOREIGN = {
    "an empty file": b"",
    "text": b"hello\nworld\n",
    "zero bytes": bytes(4096),
    "bytes that are no text": bytes(range(128, 256)) * 8,
    "the magic of SQLite alone": b"SQLite format 3\0"[:15],
    "the start of JSON": b'{"a": [',
    "the magic of gzip": b"\x1f\x8b\x08\x00",
    "the magic of zip": b"PK\x03\x04",
    "HTML": b"<!DOCTYPE html><html><head></head></html>",
}
SUFFIXES = ("", ".json", ".csv", ".sqlite")
LARGE = 256 * 2**20  # bytes of a file at which sniff may look
LOOKED_AT = 16 * 2**20  # bytes of it that sniff may read
CUTS = (
    0.0,
    0.1,
    0.25,
    0.5,
    0.75,
    0.9,
)  # parts of a file that are left; also its first 64 bytes, and all but the last
DAMAGED = 8  # files of a folder that are cut, spread over its list
REFERENCES = (  # the column of a table, and the table and column that it refers to
    ("CALLTREE", "parent", "CALLTREE", "node"),
    ("CALL_METRICS", "node", "CALLTREE", "node"),
    ("COUNTERS", "launch", "LAUNCHES", "launch"),
    ("RULES", "launch", "LAUNCHES", "launch"),
)


def check_reader(module: ModuleType, files: Iterable[str | Path]) -> None:
    """Check a reader's `module` against the contract, with captures of it; AssertionError lists all broken rules.

    `files` are small captures (files or folders), one of each form, without damage and without values that cannot be.

    - `sniff` claims these files and no others, whatever their suffix; it reads little and never raises.
    - No reader of perfkit claims them: on equal claim perfkit's own reader would read the file.
    - Every table has the columns, dtypes and order of `perfkit.tables`, has rows, and holds no value outside the
      ranges there. Metrics have a name of `perfkit.tables`, or a unit at the end of their name.
    - What is missing is named with the option that records it; it is not among the tables.
    - Two readings are equal. The files are as before, and none is left beside them.
    - A file that is cut is read with a note on the rows that are gone, or refused by a ReadError:
      ``<path>: <what was found>. <what to do>.`` Nothing else is ever raised, whatever bytes are wrong.

    >>> import perfkit.readers.torch_trace
    >>> check_reader(perfkit.readers.torch_trace, [])
    Traceback (most recent call last):
    ...
    AssertionError: perfkit.readers.torch_trace breaks 1 rule of a reader:
      - check_reader: no file was given
    """
    paths = [Path(file) for file in files]
    lacking = [f"the module lacks {part}" for part in lacks(module)]
    broken = lacking or list(_broken(module, paths))
    if broken:
        name = getattr(module, "__name__", repr(module))
        rules = "rule" if len(broken) == 1 else "rules"
        raise AssertionError(
            "\n  - ".join([f"{name} breaks {len(broken)} {rules} of a reader:", *broken])
        )


def _broken(module: ModuleType, paths: list[Path]) -> Iterator[str]:
    """Yield every rule that a reader breaks."""
    absent = [path for path in paths if not path.exists()]
    if not paths or absent:
        yield (
            f"check_reader: {absent[0]} does not exist"
            if absent
            else "check_reader: no file was given"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        yield from _claims(module, place, sorted({*SUFFIXES, *(path.suffix for path in paths)}))
        for number, path in enumerate(paths):
            (own := place / f"copy {number}").mkdir()
            copy = Path((shutil.copytree if path.is_dir() else shutil.copy2)(path, own / path.name))
            for rule in (_sniffs, _reads, _again, _damages):
                yield from (f"{path.name}: {problem}" for problem in rule(module, copy))


# What sniff claims


def _claims(module: ModuleType, place: Path, suffixes: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with `sniff` of things that are not of this format, under these suffixes."""
    (place / "folder" / "inner").mkdir(parents=True)
    (place / "folder" / "readme.md").write_text("hello")
    (place / "link").symlink_to(place / "nothing")
    others = {
        "a folder of text": "folder",
        "an empty folder": "folder/inner",
        "a path to nothing": "nothing",
    }
    for what, name in {**others, "a link to nothing": "link"}.items():
        yield from _not_claimed(module, place / name, what)
    for what, content in FOREIGN.items():
        for suffix in suffixes:
            path = place / f"foreign{suffix}"
            path.write_bytes(content)
            yield from _not_claimed(module, path, f"{what} ({path.name})")
    yield from _reads_little(module, place / "large", b"")


def _not_claimed(module: ModuleType, path: Path, what: str) -> Iterator[str]:
    answer = _attempt(lambda: module.sniff(path))
    if isinstance(answer, Exception):
        yield f"sniff raises {_named(answer)} for {what}; it must return False"
    elif answer is not False:
        yield f"sniff returns {answer!r} for {what}; it must return False"


def _sniffs(module: ModuleType, path: Path) -> Iterator[str]:
    """Yield what is wrong with `sniff` of a file of the reader's own."""
    answer = _attempt(lambda: module.sniff(path))
    if answer is not True:
        problem = (
            f"raises {_named(answer)}" if isinstance(answer, Exception) else f"returns {answer!r}"
        )
        yield f"sniff {problem}; it must return True for a file of its format"
    own = claimants(path)
    sniffs = [reader(name).sniff for name in own]
    outside = [
        getattr(claim, "args", (None,))[0] for claim in sniffs
    ]  # called through perfkit's own
    if own and module.sniff not in sniffs and module not in outside:
        yield f"the installed reader {own[0]} claims this file, and would read it instead of yours"
    if path.is_file():
        yield from _reads_little(module, path.with_name("large"), path.read_bytes()[:LOOKED_AT])
        path.with_name("large").unlink()


def _reads_little(module: ModuleType, path: Path, head: bytes) -> Iterator[str]:
    """Yield that `sniff` reads too much of a large file; Linux counts what a process reads, other systems do not."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(LARGE)
    before = _bytes_read()
    answer = _attempt(lambda: module.sniff(path))
    read = _bytes_read() - before
    if isinstance(answer, Exception):
        yield f"sniff raises {_named(answer)} for a large file; it must return True or False"
    if read > LOOKED_AT:
        yield f"sniff reads {read:,} bytes of a file of {LARGE:,}; it must read the first {LOOKED_AT:,} at most"


def _bytes_read() -> int:
    counts = Path("/proc/self/io")
    return int(counts.read_text().split()[1]) if counts.exists() else 0


# What read returns


def _reads(module: ModuleType, path: Path) -> Iterator[str]:
    """Yield what is wrong with the profile of a whole file."""
    profile = _attempt(lambda: module.read(path))
    if not isinstance(profile, Profile):
        problem = (
            f"raises {_named(profile)}"
            if isinstance(profile, Exception)
            else f"returns {type(profile).__name__}"
        )
        yield f"read {problem}; it must return a perfkit.profile.Profile"
        return
    yield from _capture(profile, path)
    yield from _words(profile)
    frames: dict[str, pd.DataFrame] = {}
    for name in profile.loaders:
        if name not in TABLES or name == "CAPTURE":
            yield f"loaders has {name!r}, which is none of the tables {', '.join(TABLES)}, or CAPTURE"
            continue
        frame = _attempt(lambda name=name: _made(profile, name))  # type: ignore[misc]  # mypy sees no default here
        if isinstance(frame, pd.DataFrame):
            frames[name] = frame
            yield from _table(name, frame, getattr(module, "RANKED", ()))
        else:
            yield f"{name} cannot be read: {_named(frame)}"
    notes = (note for name in frames for note in profile.checked(name).notes if "cannot be" in note)
    yield from (f"{note}; a unit may be wrong" for note in notes)
    for name, column, other, key in REFERENCES:
        if name in frames and other in frames:
            lost = set(frames[name][column].dropna()) - set(frames[other][key]) - {-1}
            if lost:
                yield f"{name}.{column} refers to rows that {other} does not have, such as {min(lost)}"


def _made(profile: Profile, name: str) -> pd.DataFrame:
    loaded = profile.loaders[name]()
    return loaded if isinstance(loaded, pd.DataFrame) else loaded.frame


def _capture(profile: Profile, path: Path) -> Iterator[str]:
    capture = _attempt(lambda: TABLES["CAPTURE"].check(profile.capture))
    if not isinstance(capture, pd.DataFrame):
        yield f"capture: {_named(capture)}"
        return
    if len(capture) != 1:
        yield f"capture has {len(capture)} rows; it must have one"
    elif not str(capture["tool"].iloc[0]):
        yield "capture does not name the tool that wrote the file"
    if profile.path != path:
        yield f"path is {profile.path}; it must be the path that was given"
    if not profile.loaders and not profile.notes:
        yield "it has neither tables nor a note that says why"


def _words(profile: Profile) -> Iterator[str]:
    """Yield what is wrong with the notes and with what is missing."""
    if not isinstance(profile.notes, tuple) or not all(
        isinstance(note, str) and note for note in profile.notes
    ):
        yield f"notes is {profile.notes!r}; it must be a tuple of sentences"
    if not isinstance(profile.missing, tuple) or not all(
        isinstance(one, Missing) for one in profile.missing
    ):
        yield f"missing is {profile.missing!r}; it must be a tuple of perfkit.profile.Missing"
        return
    for one in profile.missing:
        table, _, column = one.table.partition(".")
        if table not in TABLES:
            yield f"missing names {one.table!r}, which is no table"
        elif not column and table in profile.loaders:
            yield f"{table} is missing, and is among the tables"
        if not one.what or not one.record:
            yield f"what is missing of {one.table} must say what it is, and the option that records it"


def _table(name: str, frame: pd.DataFrame, ranked: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with the shape, the order and the words of a table."""
    table = TABLES[name]
    made = _attempt(lambda: table.make(table.check(frame)))
    if not isinstance(made, pd.DataFrame):
        yield _named(made)
        return
    if list(frame.columns) != table.column_names or not frame.reset_index(drop=True).equals(made):
        yield f"{name} is not in the order of its columns and rows; return what TABLES[{name!r}].make returns"
    if frame.empty:
        yield f"{name} has no rows; leave it out of loaders and say in missing what records it"
        return
    if "rank" in frame and name not in ranked and (frame["rank"] != 0).any():
        yield f"{name} has ranks other than 0; state the rank in Profile.rank, or name the table in RANKED"
    if "family" in frame and not set(frame["family"].cat.categories) <= set(FAMILIES):
        yield f"{name} has families of kernels that are none of perfkit.names.FAMILIES"
    metrics = frame["metric"].unique() if name == "SAMPLES" else ()
    bare = sorted(
        str(metric)
        for metric in metrics
        if metric not in METRICS and not str(metric).endswith(UNITS)
    )
    if bare:
        yield f"{name} has metrics without a unit at the end of their name: {', '.join(bare[:3])}"


# Reading again, and reading what is damaged


def _again(module: ModuleType, path: Path) -> Iterator[str]:
    """Yield what differs in a second reading, and what reading changed."""
    before = _contents(path.parent)
    first, second = (_attempt(lambda: _frames(module.read(path))) for _ in range(2))
    if isinstance(first, dict) and isinstance(second, dict):
        differing = (name for name, frame in first.items() if not frame.equals(second.get(name)))
        yield from (f"{name} differs when it is read again" for name in differing)
    if before != _contents(path.parent):
        yield "reading changes the file, its time stamp, or leaves a file next to it"


def _frames(profile: Profile) -> dict[str, pd.DataFrame]:
    return {"CAPTURE": profile.capture, **{name: profile.table(name) for name in profile.loaders}}


def _told(profile: Profile) -> tuple[dict[str, pd.DataFrame], set[str]]:
    return _frames(profile), {*profile.notes, *profile.doubts}


def _contents(folder: Path) -> dict[str, tuple[int, str]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    }


def _damages(module: ModuleType, path: Path) -> Iterator[str]:
    """Yield what is wrong with reading a profile of which a file is cut or damaged."""
    whole = _attempt(lambda: module.read(path))
    if not isinstance(whole, Profile):
        return
    expected = _attempt(lambda: _told(whole))
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files[:: max(1, len(files) // DAMAGED)]:
        content = file.read_bytes()
        about = file.stat()
        # Cut at several places, but never after a line, where a log may be whole; and wrong bytes in the middle.
        parts = [content[: round(len(content) * part)].rstrip(b"\r\n") for part in CUTS]
        cut = {f"cut to {len(part):,} of {len(content):,} bytes": part for part in parts}
        cut |= {"cut to its first 64 bytes": content[:64], "cut by its last byte": content[:-1]}
        half = len(content) // 2
        before, middle, after = content[:half], content[half : half + 64], content[half + 64 :]
        wrong = {"zero": bytes(len(middle)), "wrong": bytes(byte ^ 0xFF for byte in middle)}
        wrong = {
            f"with 64 {kind} bytes in its middle": before + new + after
            for kind, new in wrong.items()
        }
        for what, damaged in {**cut, **wrong}.items():
            file.write_bytes(damaged)
            where = f"{file.name} {what}" if path.is_dir() else what
            right = (
                expected if what in cut else None
            )  # wrong bytes can be right ones of another capture
            yield from (f"{where}: {problem}" for problem in _damaged(module, path, right))
        file.write_bytes(content)
        os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def _damaged(module: ModuleType, path: Path, expected: object) -> Iterator[str]:
    """Yield what is wrong with reading a damaged profile that `sniff` still claims; `expected` is of the whole one."""
    claimed = _attempt(lambda: module.sniff(path))
    if isinstance(claimed, Exception):
        yield f"sniff raises {_named(claimed)}"
    if claimed is not True:
        return
    content = _attempt(lambda: _told(module.read(path)))
    if isinstance(content, ReadError):
        yield from _message(str(content), path)
    elif isinstance(content, Exception):
        yield f"read raises {_named(content)}; it must raise ReadError or nothing"
    elif isinstance(content, tuple) and isinstance(expected, tuple):
        (frames, notes), (right, before) = content, expected
        lost = [name for name in right if len(frames.get(name, ())) < len(right[name])]
        if lost and not notes - before:
            yield f"rows of {', '.join(lost)} are gone, and no note says so"


def _message(message: str, path: Path) -> Iterator[str]:
    """Yield what is wrong with the message of a ReadError."""
    finding = message.removeprefix(str(path))
    if finding == message:
        yield f"the message must begin with the path: {message!r}"
    elif (
        ": " not in finding
        or not finding.endswith((".", ".)", "`"))
        or ". " not in finding.rstrip(".")
    ):
        yield f"the message must say what was found, and then what to do: {message!r}"


def _attempt(call: Callable[[], object]) -> object:
    """Return what a call returns, or what it raises: whatever that is, the other rules are checked too."""
    try:
        return call()
    except Exception as e:  # noqa: BLE001  the rule is that nothing of all this is raised
        return e


def _named(error: object) -> str:
    return str(error) if isinstance(error, SchemaError) else f"{type(error).__name__} ({error})"
