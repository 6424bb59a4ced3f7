"""Recordings of programs that a model of a machine runs with a cause of lost time built in, or without it.

The machine is that of `adversary.machine`. How much faster it runs the same program without the cause is the truth of
the gain. The innocent twin of a situation is the program without the cause, recorded in the same way.
"""

import datetime
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from adversary import writing
from adversary.machine import Machine
from readers import nsys_files

from perfkit.run import Run

Program = Callable[[bool], Machine]  # run with its cause, or without
Write = Callable[[Machine, Path], Path]


@dataclass(frozen=True)
class Recording:
    """A recording, as a file or as tables, and how many times as fast the program is without its cause."""

    source: Path | Run
    truth: float = math.nan


@dataclass(frozen=True)
class Situation:
    """A program, whether it has its cause, and how it is recorded."""

    program: Program
    write: Write
    has_cause: bool = True

    @property
    def twin(self) -> "Situation":
        """The program without the cause."""
        return replace(self, has_cause=False)

    def recorded(self, folder: Path) -> Recording:
        """Run the program, and write what a profiler would have recorded of it."""
        machine = self.program(self.has_cause)
        innocent = self.program(False) if self.has_cause else machine
        return Recording(self.write(machine, folder), machine.span() / innocent.span())


@dataclass(frozen=True)
class Tables:
    """A situation whose recording is made of tables alone: with the cause, or without."""

    make: Callable[[bool], Run]
    has_cause: bool = True

    @property
    def twin(self) -> "Tables":
        """The tables without the cause."""
        return replace(self, has_cause=False)

    def recorded(self, folder: Path) -> Recording:
        """Make the tables; the truth of a gain is not known."""
        return Recording(self.make(self.has_cause))


def by_nsys(machine: Machine, folder: Path) -> Path:
    """One export of Nsight Systems of all processes."""
    return writing.nsys(machine, folder / "run.sqlite")


def without_ranges(machine: Machine, folder: Path) -> Path:
    """One export of Nsight Systems of a program that marks nothing."""
    return writing.nsys(machine, folder / "run.sqlite", without=("nvtx",))


def by_ranks(machine: Machine, folder: Path) -> Path:
    """An export of Nsight Systems of each process."""
    for rank, pid in enumerate(_processes(machine)):
        writing.nsys(machine, folder / f"rank{rank}.sqlite", pids={pid})
    return folder


def by_torch(machine: Machine, folder: Path) -> Path:
    """A trace of PyTorch's profiler of each process; of a single one the file."""
    pids = _processes(machine)
    for rank, pid in enumerate(pids):
        path = folder / f"rank{rank}.pt.trace.json"
        writing.kineto(machine, path, pid=pid, rank=rank, ranks=len(pids))
    return folder if len(pids) > 1 else path


def with_scheduling(machine: Machine, folder: Path) -> Path:
    """One export with the times at which each thread had a core."""
    path = writing.nsys(machine, folder / "run.sqlite")
    rows = list(_switches(machine))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE SCHED_EVENTS (start INT, cpu INT, isSchedIn INT, globalTid INT)"
        )
        database.executemany("INSERT INTO SCHED_EVENTS VALUES (?, ?, ?, ?)", sorted(rows))
    return path


def _switches(machine: Machine) -> Iterator[tuple[int, int, int, int]]:
    """Yield when the first thread comes to its core and leaves it, and six others that have it in the meantime."""
    main = machine.threads[0]
    process = nsys_files.process(main.pid)
    others = cycle(range(main.tid + 1, main.tid + 7))
    yield 0, 0, 1, process | main.tid
    for row in machine.rows["scheduled"]:
        if row["name"] != "off its core":
            continue
        yield row["start"], 0, 0, process | main.tid
        for cpu in (0, 1):
            other = process | next(others)
            yield row["start"] + 1, cpu, 1, other
            yield row["end"] - 1, cpu, 0, other
        yield row["end"], 0, 1, process | main.tid
    yield machine.now, 0, 0, process | main.tid


def _processes(machine: Machine) -> list[int]:
    return sorted({thread.pid for thread in machine.threads})


@dataclass(frozen=True)
class Logged:
    """A writer of a timeline and a log of nvidia-smi beside it.

    The log has a reading each `every_ns`, from `before_ns` before the program on. `reading` returns utilisation (%),
    SM clock (MHz) and the bits of the reasons for lowering it, at a time of the program in ns.
    """

    reading: Callable[[Machine, int], tuple[int, int, int]]
    before_ns: int = 0
    every_ns: int = 100_000_000

    def __call__(self, machine: Machine, folder: Path) -> Path:
        by_nsys(machine, folder)
        rows = [self._row(machine, at) for at in range(-self.before_ns, machine.now, self.every_ns)]
        columns = ["timestamp", "index", "name", "utilization.gpu [%]", "clocks.current.sm [MHz]"]
        columns += ["clocks.max.sm [MHz]", "clocks_event_reasons.active"]
        lines = [", ".join(columns), *rows]
        (folder / "gpu.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return folder

    def _row(self, machine: Machine, at: int) -> str:
        busy, clock, reasons = self.reading(machine, at)
        name = writing.GPU["name"]
        return f"{_stamp(writing.T0 + at)}, 0, {name}, {busy} %, {clock} MHz, 1410 MHz, 0x{reasons:016x}"


def _stamp(unix_ns: int) -> str:
    """A time as nvidia-smi writes it."""
    moment = datetime.datetime.fromtimestamp(unix_ns / 1e9, datetime.UTC)
    return f"{moment:%Y/%m/%d %H:%M:%S}.{unix_ns // 1_000_000 % 1000:03d}"
