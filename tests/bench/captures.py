"""Captures of any size, simulated once and kept in the system's folder for temporary files.

Functions
---------
made       a capture ranks      a folder of captures, one per rank
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import make
from tests.bench import fresh

FOLDER = Path(tempfile.gettempdir(), "perfkit-bench")
SHAPES = {
    "plain": make.Shape(),
    "node": make.Shape(gpus=8, processes=8, streams=2, nccl=True),
    "eight": make.Shape(gpus=8, processes=8, streams=5, nccl=True),
    "copies": make.Shape(kernels_per_step=2),
}
SHAPES["shuffled"] = SHAPES["node"]
TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")


def made(kernels: int, shape: str = "plain", seed: int = 0) -> Path:
    """Return a capture of so many kernels, made by an earlier run or now; those of an older simulator go."""
    kept = f"{shape}-{kernels}-{seed}"
    path = FOLDER / f"{kept}.{_simulator()}.sqlite"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        for old in FOLDER.glob(f"{kept}.*.sqlite"):
            old.unlink()
        fresh.call(_write, path, kernels, shape, seed)
    return path


def ranks(count: int, kernels: int) -> Path:
    """Return a folder of so many captures of so many kernels each."""
    folder = FOLDER / f"ranks-{count}-{kernels}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for rank in range(count):
        (folder / f"rank_{rank}.sqlite").hardlink_to(made(kernels, seed=rank))
    return folder


def _write(path: str, kernels: str, shape: str, seed: str) -> None:
    make.capture(Path(path), kernels=int(kernels), shape=SHAPES[shape], seed=int(seed))
    if shape == "shuffled":
        _shuffle(path)


def _shuffle(path: str) -> None:
    """Put the rows of the large tables into an order that has nothing to do with time."""
    with closing(sqlite3.connect(path)) as database:
        for table in TABLES:
            ((sql,),) = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,))
            database.execute(f"ALTER TABLE {table} RENAME TO ordered")
            database.execute(sql)
            database.execute(f"INSERT INTO {table} SELECT * FROM ordered ORDER BY rowid * 2654435761 % 4294967296")
            database.execute("DROP TABLE ordered")
        database.commit()


def _simulator() -> str:
    """A name for the simulator as it is: a change to it makes new captures."""
    folder = Path(make.__file__).parent
    sources = [*sorted(folder.glob("*.py")), *sorted(folder.glob("*.csv"))]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
