"""The folders that an agent may ask about: the runs in them, by names, and nothing outside.

A run is named by the last part of a given folder and the path in it: `perfkit mcp /home/ann/runs` knows `runs/mlp` and
`runs/mlp/rank0.json`. Links and `..` are resolved first; what then lies outside is refused as if it were not there.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from perfkit.discovery import LAYOUT
from perfkit.errors import PerfkitError
from perfkit.format import printable
from perfkit.job import FILE as JOB_FILE
from perfkit.readers import claimants, reader
from perfkit.store import is_store

LONGEST = 100  # characters of a name in a refusal
LEVELS = 6  # of folders in which runs are looked for
MOST_FILES = 20_000  # of a run, and of a folder whose runs are listed
NO_RUN = (
    "no run of this name. `list_runs` has the names; runs outside the given folders cannot be read."
)


class Stamp(NamedTuple):
    """A file of a run, and what changes when it does."""

    path: Path
    size: int
    time_ns: int


class Folders:
    """The given folders by the last part of their paths."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots: dict[str, Path] = {}
        for folder in folders:
            root = folder.resolve()
            if not root.is_dir():
                raise PerfkitError(f"{folder}: no such folder. Give a folder that holds runs.")
            if root.name in self._roots:
                raise PerfkitError(
                    f"{folder}: another folder is called {root.name!r} too. Give the folder above."
                )
            self._roots[root.name] = root

    def find(self, name: str) -> Path:
        """Return the path of a run; PerfkitError if none of the folders holds it."""
        label, _, rest = name.partition("/")
        root = self._roots.get(label)
        try:
            path = (root / rest).resolve() if root else None
            if path is None or not self._is_inside(path) or not path.exists():
                raise PerfkitError(f"run: {printable(name, LONGEST)}: {NO_RUN}")
        except (OSError, RuntimeError, ValueError) as error:  # too long, a circle of links, a NUL
            raise PerfkitError(f"run: {printable(name, LONGEST)}: {NO_RUN}") from error
        return path.parent if path.is_file() and _is_one_of_several(path) else path

    def stamps(self, path: Path) -> tuple[Stamp, ...]:
        """Return the files of a run, with the file of its job.

        PerfkitError if a link among them leads out of the folders, or if there are more than MOST_FILES.
        """
        files = _files(path) if path.is_dir() else [path, path.parent / JOB_FILE]
        for file in files:
            if file.is_symlink() and not self._is_inside(file.resolve()):
                raise PerfkitError(
                    f"run: {self.shown(str(file))} is a link that leads out of the given folders. "
                    "Remove the link, or give the folder that it leads to."
                )
        return tuple(_stamp(file) for file in files if file.is_file())

    def runs(self, within: str) -> dict[str, list[str]]:
        """Return the names of the runs in a folder, or in all, each with the names of its profiles."""
        found: dict[str, list[str]] = {}
        for folder in [self.find(within)] if within else self._roots.values():
            _files(folder)  # refuses a folder of too many
            for run, profile in self._profiles(folder, LEVELS):
                while LAYOUT.fullmatch(run.name) and run != folder:
                    run = run.parent
                found.setdefault(self.shown(str(run)), []).append(self.shown(str(profile)))
        return found

    def _profiles(self, folder: Path, levels: int) -> Iterator[tuple[Path, Path]]:
        """Yield each profile in a folder, with the folder that is its run."""
        if is_store(folder) or claimants(folder):
            yield folder, folder
            return
        for item in sorted(folder.iterdir()):
            if item.name.startswith(".") or not self._is_inside(item.resolve()):
                continue
            if item.is_file() and claimants(item):
                yield folder, item
            elif item.is_dir() and not item.is_symlink() and levels:
                yield from self._profiles(item, levels - 1)

    def shown(self, text: str) -> str:
        """Return a text in which the given folders have their names in place of their paths."""
        for name, root in sorted(self._roots.items(), key=lambda item: -len(str(item[1]))):
            text = text.replace(str(root), name)
        return text

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots.values())


def _files(folder: Path) -> list[Path]:
    """Return the files and the links to folders below a folder; PerfkitError if there are more than MOST_FILES."""
    found: list[Path] = []
    for inner, folders, files in os.walk(folder):
        links = [name for name in folders if Path(inner, name).is_symlink()]
        found += [Path(inner, name) for name in (*files, *links)]
        if len(found) > MOST_FILES:
            raise PerfkitError(
                f"{folder} holds more than {MOST_FILES:,} files. Name a folder in it."
            )
    return found


def _stamp(file: Path) -> Stamp:
    about = file.stat()
    return Stamp(file, about.st_size, about.st_mtime_ns)


def _is_one_of_several(file: Path) -> bool:
    """Tell whether a file is one of those of a profile that is a folder."""
    return any(getattr(reader(name), "FOLDER", False) for name in claimants(file))
