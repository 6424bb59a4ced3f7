"""The figures of a run as a table of ratios, each beside its bar.

Functions
---------
markdown    the table, with the machine and the versions it was measured with
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

HEAD = "| work | perfkit | peer | ratio | bar | |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Row:
    """Seconds of perfkit and of a peer, and the most that their ratio and perfkit's seconds and bytes may be.

    A bar that is None is not set; all others are to be met. Where seconds are None, the text of the peer says why.
    """

    work: str
    seconds: float | None
    peer: str
    peer_seconds: float | None
    most_ratio: float | None = None
    most_seconds: float | None = None
    most_bytes: float | None = None
    bar: str = ""
    cpu_s: float | None = None
    peak_bytes: int | None = None

    @property
    def ratio(self) -> float | None:
        """Seconds of perfkit over seconds of the peer."""
        return self.seconds / self.peer_seconds if self.seconds is not None and self.peer_seconds is not None else None

    @property
    def verdict(self) -> str:
        """Whether the bars are met."""
        against = [(self.ratio, self.most_ratio), (self.seconds, self.most_seconds), (self.peak_bytes, self.most_bytes)]
        bars = [(value, most) for value, most in against if most is not None]
        if any(value is not None and value > most for value, most in bars):
            return "**missed**"
        return "met" if bars and all(value is not None for value, _ in bars) else "not measured"

    def markdown(self) -> str:
        """Return the row of the table."""
        processor = f", {self.cpu_s:.3g} s CPU" if self.cpu_s else ""
        memory = f", {self.peak_bytes / 1e9:.2g} GB" if self.peak_bytes else ""
        peer = self.peer if self.peer_seconds is None else f"{self.peer}: {self.peer_seconds:.3g} s"
        ratio = "" if self.ratio is None else f"{self.ratio:.2g}"
        ours = "" if self.seconds is None else f"{self.seconds:.3g} s{processor}{memory}"
        return f"| {self.work} | {ours} | {peer} | {ratio} | {self.bar} | {self.verdict} |"


def markdown(rows: Iterable[Row]) -> str:
    """Return the table under a line that says what it was measured with."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pandas", "numpy", "pyarrow", "adbc-driver-sqlite"))
    where = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {versions}"
    lines = "\n".join(row.markdown() for row in rows)
    return f"Measured on {where}; captures in the page cache, a fresh process each.\n\n{HEAD}\n{lines}\n"
