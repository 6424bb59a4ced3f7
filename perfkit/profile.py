"""What one reader returned: tables that are read when first asked for, and what is missing."""

from __future__ import annotations

import hashlib
import re
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
    the rank that the file itself states, None where it does not, and ``node`` what `node_of` returns for the host on
    which it was recorded, empty where the file states none or several.
    """

    reader: str
    path: Path
    capture: pd.DataFrame
    loaders: Mapping[str, Callable[[], pd.DataFrame]]
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int | None = None
    node: str = ""
    _read: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str) -> pd.DataFrame:
        """Return the table `name` (as in `perfkit.tables`); empty if the capture has none."""
        if name == "CAPTURE":
            return self.capture
        if name not in self._read:
            loader = self.loaders.get(name)
            self._read[name] = loader() if loader else TABLES[name].empty()
        return self._read[name]


# Addresses, names that every machine has, and those that container engines make up: they tell no node apart.
_NO_NODE = re.compile(r"[\d.:]*|[0-9a-f:]*:[0-9a-f:]*|localhost.*|[0-9a-f]{12}|dcgm-exporter-.*|ip6-.*", re.IGNORECASE)


def node_of(host: str) -> str:
    """Return what tells a host from others, without its name or domain; empty for a name that tells none.

    Examples
    --------
    >>> node_of("node1.example.org") == node_of("NODE1"), node_of("node1") == node_of("node2"), node_of("127.0.0.1")
    (True, False, '')
    """
    if _NO_NODE.fullmatch(host.strip()):
        return ""
    return hashlib.sha256(host.strip().partition(".")[0].lower().encode()).hexdigest()[:16]
