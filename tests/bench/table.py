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
    """One figure: seconds of perfkit and of a peer, and the most that their ratio or perfkit's seconds may be.

    Of the two bars, the one that is None is not set. Without the peer's seconds its ratio is not measured.
    """

    work: str
    seconds: float
    peer: str
    peer_seconds: float | None
    most_ratio: float | None = None
    most_seconds: float | None = None
    bar: str = ""
    cpu_s: float | None = None
    peak_bytes: int | None = None

    @property
    def ratio(self) -> float | None:
        """Seconds of perfkit over seconds of the peer."""
        return None if self.peer_seconds is None else self.seconds / self.peer_seconds

    @property
    def verdict(self) -> str:
        """Whether the bar is met."""
        value, most = (self.seconds, self.most_seconds) if self.most_ratio is None else (self.ratio, self.most_ratio)
        if value is None or most is None:
            return "not measured"
        return "met" if value <= most else "**missed**"

    def markdown(self) -> str:
        """Return the row of the table."""
        processor = f", {self.cpu_s:.3g} s CPU" if self.cpu_s else ""
        memory = f", {self.peak_bytes / 1e9:.2g} GB" if self.peak_bytes else ""
        peer = self.peer if self.peer_seconds is None else f"{self.peer}: {self.peer_seconds:.3g} s"
        ratio = "" if self.ratio is None else f"{self.ratio:.2g}"
        ours = f"{self.seconds:.3g} s{processor}{memory}"
        return f"| {self.work} | {ours} | {peer} | {ratio} | {self.bar} | {self.verdict} |"


def markdown(rows: Iterable[Row]) -> str:
    """Return the table under a line that says what it was measured with."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pandas", "numpy", "pyarrow", "adbc-driver-sqlite"))
    where = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {versions}"
    lines = "\n".join(row.markdown() for row in rows)
    return f"Measured on {where}; simulated captures in the page cache, a fresh process each.\n\n{HEAD}\n{lines}\n"
