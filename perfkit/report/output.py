"""The folder or file that a command writes: what it may replace, and how nothing is lost on the way.

A folder is perfkit's own only by its marker, `.perfkit.json`, which lists the files that perfkit wrote with size and
SHA-256. perfkit replaces these and no others; a listed file that the user changed gets another name
(`3_system.yours.ipynb`).

The new folder is made in a staging folder beside the old one, `.NAME-perfkit-xxxxxxxx`, which holds `staging.json`, its
mark, locked until the process that makes it ends; `new`, the folder that is being made; `old-N`, a folder that `new`
replaces, until its files are deleted. So the old or the new folder is always whole. The next run clears staging folders
of dead processes, and so does any command in the folder where they lie: where no folder of the name is there, it first
puts `old-N` back.
"""

import errno
import hashlib
import itertools
import json
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.format import several

MARKER = ".perfkit.json"
VERSION = version(
    "perfkit"
)  # asked once: a process that gave up its rights later may not see where perfkit lies
STAGING = "staging.json"
NEW, OLD = "new", "old-"
LONGEST_NAME = 200  # bytes of a folder's name in that of its staging folder; a name has 255 at most
ATTEMPTS = 100  # to take the place of a folder that other runs replace at the same time
NAMED = 3  # files that a message names
EARLIER = (
    {"index.html", "summary.json"},
    {"index.html", "comparison.json"},
)  # made before there was a marker

# How text is written: bytes of a file's name that are no UTF-8 become escapes, which JSON reads as what they were.
TEXT = MappingProxyType({"encoding": "utf-8", "errors": "backslashreplace"})

Note = Callable[[str], None]


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


@dataclass(frozen=True)
class Marker:
    """What a folder's marker says: the command that made the folder, and size and SHA-256 of each file by its path."""

    made_by: str
    files: dict[str, tuple[int, str]]

    def is_unchanged(self, file: Path, name: str) -> bool:
        """Return whether a file is listed under this name, and as perfkit wrote it."""
        size, digest = self.files.get(name, (-1, ""))
        about = file.lstat()
        return stat.S_ISREG(about.st_mode) and about.st_size == size and _digest(file) == digest


def check(
    out: str | Path, made_by: str | None, *, inputs: Iterable[Path] = (), note: Note = _warn
) -> Path:
    """Clear what killed runs left beside a folder, refuse the folder if it must not be replaced, and return its path.

    `made_by` is the command whose earlier folder may be replaced, such as "perfkit report"; None for none. Raises
    PerfkitError if the folder holds anything else, or one of `inputs`, or cannot be made.
    """
    target = Path(os.path.realpath(out))
    try:
        _check_place(target, Path(out))
        _sweep(target, note)
        with _alone(target):
            _check_content(target, Path(out), made_by)
    except OSError as e:
        raise _unwritable(Path(out), e) from e
    for path in inputs:
        if _holds(target, path):
            raise PerfkitError(
                f"{out}: the input {path} lies there and would be replaced. Choose another --out."
            )
    return target


@contextmanager
def replacing(
    out: str | Path, made_by: str | None, *, inputs: Iterable[Path] = (), note: Note = _warn
) -> Iterator[Path]:
    """Yield a folder to write to, which takes the place of `out` at the block's end, whole or not at all."""
    target = check(out, made_by, inputs=inputs, note=note)
    missing = list(itertools.takewhile(lambda folder: not os.path.lexists(folder), target.parents))
    renamed: dict[str, str] = {}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _staging(target) as staging:
            try:
                new = staging / NEW
                new.mkdir()
                yield new
                if made_by:
                    files = {
                        name: {"bytes": (new / name).stat().st_size, "sha256": _digest(new / name)}
                        for name in _names(new)
                        if (new / name).is_file()
                    }
                    content = {"made_by": made_by, "perfkit_version": VERSION, "files": files}
                    (new / MARKER).write_text(
                        json.dumps(content, indent=1) + "\n", encoding="utf-8"
                    )
                renamed = _exchange(staging, target, Path(out), made_by)
            finally:
                _clear(staging, target, note)
    except OSError as e:
        if e.filename is not None and not _is_part(target, e.filename):
            raise  # the problem is a file elsewhere, which cannot be read
        raise _unwritable(Path(out), e) from e
    finally:
        for folder in missing:
            with suppress(OSError):  # nothing was made in it
                folder.rmdir()
    for name, other in renamed.items():
        note(f"{out}: {name} is not as perfkit wrote it. Your version is now {other}.")


def write_file(path: Path, text: str, *, first: str) -> None:
    """Write a text file, whole or not at all, and replace nothing but an empty file or one that begins with `first`."""
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{_short(target.name)}-{token_hex(4)}")
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        if target.exists():
            with target.open("rb") as file:
                begin = file.read(len(first.encode()))
            if begin not in (b"", first.encode()):
                raise PerfkitError(
                    f"{path}: holds something that this command did not write. Choose another file, or remove it."
                )
        try:
            with part.open("x", encoding="utf-8", newline="\n") as made:
                made.write(text)
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as e:
        raise PerfkitError(f"{path}: cannot be written: {_reason(e)}. Choose another file.") from e


def _unwritable(out: Path, error: OSError) -> PerfkitError:
    return PerfkitError(
        f"{out}: cannot be written: {_reason(error)}. Choose another --out, or mend that."
    )


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _check_place(target: Path, out: Path) -> None:
    """Refuse a place where no folder can be made or replaced."""
    above = next((folder for folder in target.parents if os.path.lexists(folder)), target)
    if not above.is_dir():
        raise PerfkitError(
            f"{out}: {above} is no folder, so nothing can be made in it. Choose another --out."
        )
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(target.lstat().st_mode):
            raise PerfkitError(f"{out}: is no folder. Choose another --out.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PerfkitError(f"{out}: nothing may be written in {above}. Choose another --out.")
    if os.path.ismount(target):
        raise PerfkitError(
            f"{out}: is where a disk is mounted, so it cannot be replaced as a whole. Choose a folder in it."
        )
    if _holds(target, Path.cwd()):
        raise PerfkitError(
            f"{out}: is the folder you work in. Choose another --out, or work elsewhere."
        )


def _check_content(target: Path, out: Path, made_by: str | None) -> None:
    """Refuse a folder that holds anything, unless its marker says that this command made it."""
    names = set(os.listdir(target)) if target.exists() else set()
    if not names:
        return
    marker = _marker(target)
    if marker is not None and marker.made_by == made_by:
        return
    if made_by is None:
        what = "is not empty"
    elif marker is not None:
        what = f"holds what `{marker.made_by}` made"
    elif MARKER in names:
        what = f"its list of perfkit's files, {MARKER}, is damaged"
    elif any(earlier <= names for earlier in EARLIER):
        what = f"looks like a report of an earlier perfkit, but holds no list of perfkit's files ({MARKER})"
    else:
        what = f"holds files that perfkit did not write ({several(sorted(names), NAMED)})"
    raise PerfkitError(f"{out}: {what}. Choose another --out, or remove it.")


def _holds(folder: Path, path: Path) -> bool:
    """Return whether a path is a folder, or lies in it: as it is written, or where its links lead."""
    if not folder.exists():
        return False
    places = {Path(os.path.abspath(path)), Path(os.path.realpath(path))}
    return any(is_same(folder, each) for place in places for each in (place, *place.parents))


def _is_part(target: Path, path: str | bytes | int) -> bool:
    """Return whether a path leads to `target` or its staging folder, or lies in one of them."""
    if isinstance(path, int):
        return False
    place = Path(os.path.abspath(os.fsdecode(path)))
    below = next((each for each in (place, *place.parents) if each.parent == target.parent), None)
    return place in target.parents or (
        below is not None and (below == target or below.name.startswith(_prefix(target)))
    )


def is_same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file or folder."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there, or no path
        return one == other


def _marker(folder: Path) -> Marker | None:
    """Return a folder's marker; None if there is none, or it is damaged."""
    content = _content(folder / MARKER)
    made_by, files = content.get("made_by"), content.get("files")
    if not isinstance(made_by, str) or not isinstance(files, dict):
        return None
    entries = ((name, each) for name, each in files.items() if isinstance(each, dict))
    return Marker(
        made_by, {name: (each.get("bytes", -1), each.get("sha256", "")) for name, each in entries}
    )


def _content(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is none."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return {}
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _names(folder: Path, inside: str = "") -> Iterator[str]:
    """Yield the paths of all that a folder holds, but of folders only the empty ones; links are not followed."""
    with os.scandir(folder / inside) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = f"{inside}{entry.name}"
            if entry.is_dir(follow_symlinks=False) and os.listdir(entry):
                yield from _names(folder, f"{name}/")
            else:
                yield name


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Yield a new staging folder of `target`, whose mark is locked until the block ends."""
    with ExitStack() as opened:
        mark = None
        while mark is None:
            staging = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
            with suppress(FileNotFoundError):  # another run swept the folder, which was empty
                mark = opened.enter_context((staging / STAGING).open("x", encoding="utf-8"))
        try:
            _lock(mark.fileno())  # before it says whose it is
            mark.write(json.dumps(_staging_mark(target)))
            mark.flush()
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        yield staging


def _prefix(target: Path) -> str:
    return f".{_short(target.name)}-perfkit-"


def _short(name: str) -> str:
    """Return the beginning of a name that leaves room for more."""
    while len(os.fsencode(name)) > LONGEST_NAME:
        name = name[:-1]
    return name


def _lock(descriptor: int) -> bool:
    """Lock an open file and say whether nobody else had; False where the system knows no locks: nothing is cleared."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(folder: Path, note: Note) -> None:
    """Clear the staging folders that dead processes left in a folder, whatever their target."""
    with suppress(OSError), os.scandir(folder) as entries:
        left = [Path(entry) for entry in entries if "-perfkit-" in entry.name]
        for name in {str(_content(staging / STAGING).get("target", "")) for staging in left}:
            if name and Path(name).name == name:
                _sweep(folder / name, note)


def _sweep(target: Path, note: Note) -> None:
    """Clear the staging folders of `target` whose processes are dead."""
    folders: list[Path] = []
    with suppress(FileNotFoundError, PermissionError), os.scandir(target.parent) as entries:
        folders = [Path(entry) for entry in entries if entry.name.startswith(_prefix(target))]
    for folder in folders:
        with suppress(OSError):  # a folder that holds anything stays
            folder.rmdir()
        mark = folder / STAGING
        if _content(mark) != _staging_mark(target):
            continue
        with (
            suppress(FileNotFoundError, PermissionError),
            mark.open("r+b") as file,
        ):  # another run may clear it first
            about = os.fstat(file.fileno())
            if (
                about.st_uid == os.getuid()
                and _lock(file.fileno())
                and os.fstat(file.fileno()).st_nlink
            ):
                _clear(folder, target, note)


def _staging_mark(target: Path) -> dict[str, str]:
    return {"made_by": "perfkit", "target": target.name}


def _exchange(staging: Path, target: Path, out: Path, made_by: str | None) -> dict[str, str]:
    """Put the new folder in the place of the old one, with the user's files; return the names of files that moved."""
    new, renamed = staging / NEW, dict[str, str]()
    with _alone(target):
        for number in range(ATTEMPTS):
            _check_content(target, out, made_by)  # another program may have made it in the meantime
            with suppress(FileNotFoundError):  # another run may have renamed it away
                if target.exists():
                    renamed |= _keep(target, new)
                    shutil.copymode(target, new)
                    os.rename(target, staging / f"{OLD}{number:02}")
            try:
                os.rename(new, target)
            except OSError as e:
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                return renamed
    raise PerfkitError(f"{out}: other runs replace it all the time. Choose another --out.")


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let other runs wait that would replace the folder meanwhile; where the system locks no folders, nobody waits.

    A run that read the list of files of one folder and the files of the next took all of them for a user's.
    """
    with ExitStack() as opened:
        if sys.platform != "win32":
            import fcntl

            with suppress(OSError):
                above = os.open(target.parent, os.O_RDONLY)
                opened.callback(os.close, above)
                opened.callback(
                    fcntl.flock, above, fcntl.LOCK_UN
                )  # before: a child process may hold it open
                fcntl.flock(above, fcntl.LOCK_EX)
        yield


def _keep(old: Path, new: Path) -> dict[str, str]:
    """Give the files in `old` that are not perfkit's a second name in `new`; return their names where these differ."""
    renamed = {}
    for name in _own_names_first(_foreign(old), new):
        about = (old / name).lstat()
        other = _free(new, name, about)
        if other is None:
            continue
        (new / other).parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(about.st_mode):
            (new / other).mkdir(mode=stat.S_IMODE(about.st_mode) | stat.S_IRWXU, exist_ok=True)
        else:
            with suppress(
                OSError, NotImplementedError
            ):  # without second names the file is moved at the end
                os.link(old / name, new / other, follow_symlinks=False)
        if other != name:
            renamed[name] = other
    return renamed


def _foreign(folder: Path) -> Iterator[str]:
    """Yield the names of what is not perfkit's, or no longer as perfkit wrote it."""
    marker = _marker(folder) or Marker("", {})
    return (n for n in _names(folder) if n != MARKER and not marker.is_unchanged(folder / n, n))


def _own_names_first(names: Iterable[str], folder: Path) -> list[str]:
    """Order names so that no file gets a name that another one brings."""
    return sorted(names, key=lambda name: (os.path.lexists(folder / name), name))


def _free(folder: Path, name: str, about: os.stat_result) -> str | None:
    """Return a name in `folder` for a user's file, its own if that is free; None if the file is there already."""
    path = Path(name)
    for above in reversed(path.parents[:-1]):  # where a file stands in the place of a folder
        if os.path.lexists(folder / above) and (
            (folder / above).is_symlink() or not (folder / above).is_dir()
        ):
            return _free(folder, f"{above}.yours/{path.relative_to(above)}", about)
    for number in itertools.count():
        suffix = ("", ".yours")[number] if number < 2 else f".yours-{number}"
        other = path.with_name(f"{path.stem}{suffix}{path.suffix}")
        try:
            present = (folder / other).lstat()
        except FileNotFoundError:
            break
        is_folder = stat.S_ISDIR(present.st_mode) and stat.S_ISDIR(about.st_mode)
        if is_folder or (present.st_dev, present.st_ino) == (about.st_dev, about.st_ino):
            return None
    return other.as_posix()


def _clear(staging: Path, target: Path, note: Note) -> None:
    """Remove a staging folder: an old folder in it goes back to its place, or its user's files to the new one."""
    try:
        with _alone(target):
            for old in sorted(staging.glob(f"{OLD}*"), reverse=True):  # the latest goes back
                if os.path.lexists(target):
                    _merge(old, target)
                else:
                    os.rename(old, target)
                    note(
                        f"{target}: put back as it was: the run that was to replace it did not end."
                    )
        if (staging / NEW).exists():
            shutil.rmtree(staging / NEW)
        (staging / STAGING).unlink(missing_ok=True)
        staging.rmdir()
    except OSError as e:
        what = _reason(e) + (
            f" ({os.fsdecode(e.filename)})" if isinstance(e.filename, str | bytes) else ""
        )
        note(
            f"{staging}: cannot be removed: {what}. It holds an earlier or unfinished report; remove it yourself."
        )


def _merge(old: Path, target: Path) -> None:
    """Delete an old folder, after what is neither perfkit's nor in `target` moved there; OSError if a file resists."""
    present = {
        (about.st_dev, about.st_ino)
        for about in ((target / name).lstat() for name in _names(target))
    }
    names, foreign = list(_names(old)), set(_foreign(old))
    for name in _own_names_first(foreign, target):
        about = (old / name).lstat()
        other = _free(target, name, about)
        if (
            other
            and (about.st_dev, about.st_ino) not in present
            and not stat.S_ISDIR(about.st_mode)
        ):
            (target / other).parent.mkdir(parents=True, exist_ok=True)
            os.rename(old / name, target / other)
    problems = []
    for file in (old / name for name in names if name != MARKER):
        try:
            if not stat.S_ISDIR(file.lstat().st_mode):
                file.unlink()
        except FileNotFoundError:
            continue
        except OSError as e:
            problems.append(e)
    if problems:
        raise problems[0]
    for folder, _, _ in os.walk(old, topdown=False):
        if Path(folder) == old:  # last: what a failure leaves is still known as perfkit's
            (old / MARKER).unlink(missing_ok=True)
        os.rmdir(folder)
