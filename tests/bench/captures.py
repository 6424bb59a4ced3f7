"""Captures of any size, simulated once and kept in the system's folder for temporary files; and real traces repeated.

Each repetition of a trace starts a second after the one before ended, whole microseconds later, so that no decimal
changes; the numbers that tie events together (correlations, external ids, flows) are new ones. The profiler's steps
stay those of the first: a long recording has more in a step, not hundreds of them. A process of its own writes the
files: a program begins with the peak of the one that starts it.
"""

import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from isal import igzip

import make
from tests.bench import fresh

FOLDER = Path(tempfile.gettempdir(), "perfkit-bench")
FOLDER.mkdir(exist_ok=True)
SHAPES = {
    "plain": make.Shape(),
    "node": make.Shape(gpus=8, processes=8, streams=2, nccl=True),
    "eight": make.Shape(gpus=8, processes=8, streams=5, nccl=True),
    "copies": make.Shape(kernels_per_step=2),
}
SHAPES["shuffled"] = SHAPES["node"]
ONE_RANK = "HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"  # ns as decimals, no base
OF_SIXTEEN = "HTA__negative_queue_length_values_check__rank0.json.gz"  # NCCL, graph launches
NONE = "PERFKIT_PROFILES names no folder of real captures"
EVENT = b'"ph": "'
NUMBER = re.compile(rb'("(?:ts|correlation|External id|id|Ev Idx|Sequence number)": )(\d+)')
TIME = b'"ts": '
SECOND_US = 1_000_000
SKEW_US = 3  # by which a rank starts after the one before it
TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")


def made(kernels: int, shape: str = "plain", seed: int = 0) -> Path:
    """Return a capture of so many kernels, made by an earlier run or now; those of an older simulator go."""
    kept = f"{shape}-{kernels}-{seed}"
    path = FOLDER / f"{kept}.{_simulator()}.sqlite"
    if not path.exists():
        for old in FOLDER.glob(f"{kept}.*.sqlite"):
            old.unlink()
        fresh.call(_simulate, path, kernels, shape, seed)
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


def _simulate(path: str, kernels: str, shape: str, seed: str) -> None:
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
            database.execute(
                f"INSERT INTO {table} SELECT * FROM ordered ORDER BY rowid * 2654435761 % 4294967296"
            )
            database.execute("DROP TABLE ordered")
        database.commit()


def _simulator() -> str:
    """A name for the simulator as it is: a change to it makes new captures."""
    folder = Path(make.__file__).parent
    sources = [*sorted(folder.glob("*.py")), *sorted(folder.glob("*.csv"))]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]


def profiles() -> Path | None:
    """Return the folder that PERFKIT_PROFILES names, None if it names none."""
    folder = os.environ.get("PERFKIT_PROFILES")
    return Path(folder) if folder and Path(folder).is_dir() else None


def repeated(name: str, events: int) -> tuple[Path, int, int]:
    """Return a trace of about so many events, the number of them, and how often it holds the real one of that name."""
    path, many, times = fresh.call(_repeat, _source(name), events).answer
    return Path(path), many, times


def trace_ranks(name: str, count: int) -> tuple[Path, int]:
    """Return a folder in which so many ranks have one trace, each a little later, and the number of its events."""
    folder = FOLDER / f"traces-{count}"
    return folder, fresh.call(_copy, _source(name), folder, count).answer


def _source(name: str) -> Path:
    return (profiles() or Path()) / "torch" / name


def _repeat(source: str, events: str) -> tuple[str, int, int]:
    content = Path(source).read_bytes()
    text = igzip.decompress(content)
    times = max(1, int(events) // text.count(EVENT))
    path = FOLDER / f"trace-{zlib.crc32(content):08x}-{times}.pt.trace.json.gz"
    if not path.exists():
        _write(path, _text(text, times))
    return str(path), times * text.count(EVENT), times


def _copy(source: str, folder: str, count: str) -> int:
    text = igzip.decompress(Path(source).read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    for rank in range(int(count)):
        mine = text.replace(b'"rank": 0', b'"rank": %d' % rank, 1)
        late = NUMBER.sub(lambda found, by=rank * SKEW_US: _moved(found, by, 0), mine)
        _write(Path(folder, f"rank-{rank}.pt.trace.json.gz"), iter([late]))
    return text.count(EVENT)


def _text(text: bytes, times: int) -> Iterator[bytes]:
    """Yield the header, the events so many times, and what follows them."""
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.index(b"\n  ]", begin)
    numbers = [(found[1] == TIME, int(found[2])) for found in NUMBER.finditer(text, begin, end)]
    times_us = [number for is_time, number in numbers if is_time]
    period_us = max(times_us) - min(times_us) + SECOND_US
    largest = max(number for is_time, number in numbers if not is_time) + 1
    yield text[:end]
    again = text[begin:end].replace(b'"ProfilerStep#', b'"repeated step #')
    for i in range(1, times):
        yield b"," + NUMBER.sub(lambda found, i=i: _moved(found, i * period_us, i * largest), again)
    yield text[end:]


def _moved(found: re.Match[bytes], us: int, number: int) -> bytes:
    return found[1] + str(int(found[2]) + (us if found[1] == TIME else number)).encode()


def _write(path: Path, parts: Iterator[bytes]) -> None:
    """Write a compressed file under its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with igzip.open(part, "wb") as file:
        for text in parts:
            file.write(text)
    part.rename(path)
