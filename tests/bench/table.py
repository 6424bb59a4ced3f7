"""The figures of a run as a table of ratios, each beside its bar, in Markdown and JSON."""

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.fresh import Measured


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
        return (
            self.seconds / self.peer_seconds
            if self.seconds is not None and self.peer_seconds is not None
            else None
        )

    @property
    def verdict(self) -> str:
        """Whether the bars are met."""
        against = [
            (self.ratio, self.most_ratio),
            (self.seconds, self.most_seconds),
            (self.peak_bytes, self.most_bytes),
        ]
        bars = [(value, most) for value, most in against if most is not None]
        if any(value is not None and value > most for value, most in bars):
            return "missed"
        return "met" if bars and all(value is not None for value, _ in bars) else "not measured"

    def line(self, about: str = "now") -> str:
        """Return the row of the table; `about` says when and of which commit it was measured."""
        ratio = (
            ""
            if self.ratio is None
            else f"{self.ratio:.2g}"
            if self.ratio < 10
            else f"{self.ratio:.0f}"
        )
        peak = "" if self.peak_bytes is None else f"{self.peak_bytes / 1e9:.2g} GB"
        ours, peer = (
            f"{s:.3g} s" if s is not None else "" for s in (self.seconds, self.peer_seconds)
        )
        bar = f"{self.bar}: missed" if self.verdict == "missed" else self.bar
        against = f"{self.peer}, {peer}" if peer else self.peer
        return f"| {self.work} | {ours} | {against} | {ratio} | {peak} | {bar} | {about} |"


def median_row(
    work: str, ours: Iterable[Measured], peer: str = "none", *, by: str = "wall_s", **also: Any
) -> Row:
    """Return the row of the medians of several runs, with the largest of their peaks; `also` are fields of Row."""
    runs = list(ours)
    cpu_s, peak = median(run.cpu_s for run in runs), max(run.peak_bytes for run in runs)
    also = {
        "peer_seconds": None,
        "cpu_s": None if by == "cpu_s" else cpu_s,
        "peak_bytes": peak,
        **also,
    }
    return Row(work, median(getattr(run, by) for run in runs), peer, **also)


def markdown(rows: Iterable[Row]) -> str:
    """Return the table under a line that says what it was measured with."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pandas", "numpy", "pyarrow"))
    where = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {versions}"
    lines = "\n".join([HEAD, *(row.line() for row in rows)])
    return f"Measured on {where}; captures in the page cache, a fresh process each.\n\n{lines}\n"


JSON = Path(__file__).with_name("speed.json")
HEAD = "| work | perfkit | peer | ratio | peak | bar | measured |\n|---|---|---|---|---|---|---|"


def kept(rows: Iterable[Row]) -> None:
    """Write rows into the JSON with date and commit, in place of those of the same work and peer."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True
    )
    about = {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
    }
    old = json.loads(JSON.read_text()) if JSON.exists() else []
    stored = {(row["work"], row["peer"]): row for row in old}
    stored |= {(row.work, row.peer): {**asdict(row), **about} for row in rows}
    JSON.write_text(json.dumps([*stored.values()], indent=1) + "\n")


NUMBER = re.compile(r"\d[\d,]*")
SMALLER = re.compile(
    r"explorer, (?!.*x 5 streams.* drawn)|.* shuffled kernels: (?!kernels)"
)  # not in docs/speed.md


def shown() -> str:
    """Return the table of docs/speed.md: of what the JSON has of one work at several sizes, that of the largest."""
    largest: dict[str, tuple[int, str]] = {}
    for stored in json.loads(JSON.read_text()):
        about = f"{stored.pop('date')}, {stored.pop('commit')}"
        stored.pop("cores")
        row = Row(**stored)
        if SMALLER.match(row.work):
            continue
        size = max((int(number.replace(",", "")) for number in NUMBER.findall(row.work)), default=0)
        work = re.sub(r"\d[\d,]{6,}", "N", row.work)
        largest[work] = max(largest.get(work, (-1, "")), (size, row.line(about)))
    return "\n".join([HEAD, *(line for _, line in largest.values())])
