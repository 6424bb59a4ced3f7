"""What one reader returned: tables that are read when first asked for, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from perfkit.tables import TABLES


@dataclass(frozen=True)
class Missing:
    """Something a capture cannot answer, and the command or option that would have recorded it."""

    table: str
    what: str
    record: str


@dataclass(frozen=True)
class Profile:
    """One file or folder as a reader understood it.

    ``loaders`` holds one function per table the capture has; `table` runs it once. Ranks and clocks
    are the reader's own (rank 0, time 0 at the start of this capture): `perfkit.load` sets them. ``rank`` is
    the rank that the file itself states, None where it does not.
    """

    reader: str
    path: Path
    capture: pd.DataFrame
    loaders: Mapping[str, Callable[[], pd.DataFrame]]
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int | None = None
    _read: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str) -> pd.DataFrame:
        """Return the table `name` (as in `perfkit.tables`); empty if the capture has none."""
        if name == "CAPTURE":
            return self.capture
        if name not in self._read:
            loader = self.loaders.get(name)
            self._read[name] = loader() if loader else TABLES[name].empty()
        return self._read[name]
