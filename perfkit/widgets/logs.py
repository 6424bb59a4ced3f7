"""Logs of the GPUs as a view reads them: one that was recorded, or one that is still being written."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from perfkit.errors import ReadError
from perfkit.readers import reader, recognise, unrecognised
from perfkit.run import Run, load
from perfkit.tables import SAMPLES

FRESH = 10.0  # s since a file was changed, in which it counts as being written
REST = 4  # times as long as the last reading took, a file is not read again


class Recorded:
    """SAMPLES that do not change."""

    is_written = False
    problem = ""

    def __init__(self, samples: pd.DataFrame, name: str) -> None:
        self.samples, self.name = SAMPLES.check(samples), name

    def renew(self) -> bool:
        """Return False: there is nothing new."""
        return False


class Written:
    """A file that grows; `problem` is what its reader says where it cannot be read, yet.

    The reader is asked directly: the cache would keep a copy of every length of the file.
    """

    is_written = True

    def __init__(self, path: Path) -> None:
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
            self.samples, self.problem = _read(self._path), ""
        except OSError as e:
            self.problem = f"{self._path}: cannot be read ({e.strerror})."
        except ReadError as e:
            self.problem = str(e)
        now = time.monotonic()
        self._rest_until = now + REST * (now - start)
        return True


Log = Recorded | Written


def opened(source: Run | pd.DataFrame | str | Path) -> Log:
    """Return the log of a run, of SAMPLES, or at a path; a file that was changed just now is one that grows.

    Raises
    ------
    ReadError
        If nothing is at the path, or what is there cannot be read; of a file that grows, if no reader knows its kind.
    SchemaError
        If the frame is not a SAMPLES table.
    """
    if isinstance(source, pd.DataFrame):
        return Recorded(source, "samples")
    if isinstance(source, Run):
        return Recorded(source.samples, ", ".join(profile.path.name for profile in source.profiles))
    path = Path(source)
    if path.is_file() and time.time() - path.stat().st_mtime < FRESH:
        if recognise(path) is None:
            raise unrecognised(path)
        return Written(path)
    return Recorded(load(path).samples, path.name)


def _read(path: Path) -> pd.DataFrame:
    name = recognise(path)
    if name is None:
        raise unrecognised(path)
    return Run([reader(name).read(path)]).samples
