"""A log of the GPUs that is still being written, read again as it grows."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from perfkit.errors import ReadError
from perfkit.readers import reader, recognise, unrecognised
from perfkit.run import Run
from perfkit.tables import SAMPLES

FRESH = 10.0  # s since a file was changed, in which it counts as being written
REST = 4  # times as long as the last reading took, a file is not read again


def is_growing(path: Path) -> bool:
    """Return whether a file was changed just now, so that more lines are likely to follow."""
    return path.is_file() and time.time() - path.stat().st_mtime < FRESH


class Log:
    """A file that grows; `problem` is why its reader cannot read it, yet.

    The reader is asked directly: the cache would keep a copy of every length of the file.

    Raises
    ------
    ReadError
        If no reader knows the kind of file.
    """

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
            self.samples, self.problem = _read(self._path), ""
        except OSError as e:
            self.problem = f"{self._path}: cannot be read ({e.strerror})."
        except ReadError as e:
            self.problem = str(e)
        now = time.monotonic()
        self._rest_until = now + REST * (now - start)
        return True


def _read(path: Path) -> pd.DataFrame:
    name = recognise(path)
    if name is None:
        raise unrecognised(path)
    return Run([reader(name).read(path)]).samples
