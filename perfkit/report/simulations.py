"""Where do simulated experiments lie?

Conventions
-----------
In perfkit's cache, by the code that simulates them, so that a newer one makes them anew; without a cache in a temporary
folder. They appear there only when they are complete, whoever else makes them at the same time.

Functions
---------
folder     with the runs of an experiment
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from perfkit import cache, simulate
from perfkit.errors import PerfkitError
from perfkit.report import output


def folder(name: str) -> Path:
    """Return the folder with the simulated runs of an experiment, made when it is first asked for.

    Raises
    ------
    ValueError
        If there is no such experiment.
    """
    try:
        return _made(name, _root())
    except PerfkitError:  # a cache that is full or cannot be written is none
        return _made(name, _temporary())


def _made(name: str, top: Path) -> Path:
    """Return the folder of an experiment's runs in `top`, made if it is not there."""
    place = top / name
    if not place.is_dir():
        try:
            with output.replacing(place, None) as made:
                simulate.write(name, made)
        except PerfkitError:
            if not place.is_dir():  # else another process was quicker, and its runs are the same
                raise
    return place


def _root() -> Path:
    """Return where they all lie."""
    top = cache.root()
    if top is not None:
        with suppress(OSError):  # a cache that cannot be written is none
            (place := top / "experiments" / _code()).mkdir(parents=True, exist_ok=True)
            return place
    return _temporary()


@functools.cache
def _temporary() -> Path:
    """Return a folder that is gone when Python ends."""
    folder = tempfile.mkdtemp(prefix="perfkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _code() -> str:
    """Return a digest of the modules that simulate."""
    package = Path(simulate.__file__).parent
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(package.rglob("*.py")))).hexdigest()[:16]
