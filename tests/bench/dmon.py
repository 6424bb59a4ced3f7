"""Reading a log of ``nvidia-smi dmon`` with every column, time stamps and eight GPUs.

Peer: pandas.read_csv of the same file, which gives the words of each row as they are. The reader also brings them to
the units of their metrics and the log into the order of SAMPLES; its seconds are those from the file to that table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from perfkit.readers import nvidia_smi
from tests.bench import fresh
from tests.bench.captures import FOLDER
from tests.bench.table import Row

TIMES = 3
LINES = 1_000_000
GPUS = 8
SCREEN = 160  # rows after which the header comes again
# Columns of `-s pucvmet`, their units, and below what their values lie.
COLUMNS = {
    "pwr": ("W", 700),
    "gtemp": ("C", 80),
    "mtemp": ("C", 80),
    "sm": ("%", 101),
    "mem": ("%", 101),
    "enc": ("%", 1),
    "dec": ("%", 1),
    "jpg": ("%", 1),
    "ofa": ("%", 1),
    "mclk": ("MHz", 2),
    "pclk": ("MHz", 1980),
    "pviol": ("%", 101),
    "tviol": ("bool", 2),
    "fb": ("MB", 80_000),
    "bar1": ("MB", 4000),
    "ccpm": ("MB", 1),
    "sbecc": ("errs", 1),
    "dbecc": ("errs", 1),
    "pci": ("errs", 1),
    "rxpci": ("MB/s", 50_000),
    "txpci": ("MB/s", 50_000),
}


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the row of the table."""
    lines = min(kernels, LINES)
    path = FOLDER / f"dmon-{lines}.log"
    fresh.call(make, path, lines)
    ours, peer = [], []
    for _ in range(TIMES):
        ours.append(fresh.call(sample_rows, path))
        peer.append(fresh.call(pandas_rows, path))
    measured = len(COLUMNS) - 1  # ccpm is no metric
    if {lines * measured} != {m.answer for m in ours} or {lines} != {m.answer for m in peer}:
        raise RuntimeError(f"{path}: {ours[0].answer} samples of {peer[0].answer} rows were read, not of {lines}")
    yield Row(
        f"nvidia-smi dmon, {lines:,} lines, {len(COLUMNS)} columns",
        median(m.wall_s for m in ours),
        "pandas.read_csv",
        median(m.wall_s for m in peer),
        most_seconds=3.0,
        bar="under 3 s",
        cpu_s=median(m.cpu_s for m in ours),
        peak_bytes=max(m.peak_bytes for m in ours),
    )


def make(path: str, count: str) -> None:
    """Write a log of so many rows."""
    lines = int(count)
    random = np.random.default_rng(0)
    values = [random.integers(0, most, lines).tolist() for _, most in COLUMNS.values()]
    names, units = (" ".join(f"{word:>6}" for word in words) for words in (COLUMNS, [u for u, _ in COLUMNS.values()]))
    header = f"#Date       Time        gpu {names} \n#YYYYMMDD   HH:MM:SS    Idx {units} \n"
    row = " %s   %s   %4d " + "%6d " * len(COLUMNS) + "\n"
    seconds = pd.date_range("2026-01-01", periods=lines // GPUS + 1, freq="s")
    days, clocks = seconds.strftime("%Y%m%d").tolist(), seconds.strftime("%H:%M:%S").tolist()
    Path(path).parent.mkdir(exist_ok=True)
    with Path(path).open("w", encoding="ascii") as file:
        for i, of_row in enumerate(zip(*values, strict=True)):
            file.write(header if i % SCREEN == 0 else "")
            file.write(row % (days[i // GPUS], clocks[i // GPUS], i % GPUS, *of_row))


def sample_rows(path: str) -> int:
    """Read the log."""
    return len(nvidia_smi.read(Path(path)).table("SAMPLES"))


def pandas_rows(path: str) -> int:
    """Read the log with pandas."""
    return len(pd.read_csv(path, sep=r"\s+", comment="#", header=None))
