"""What should a reader of the figures know about a benchmark, and about what NCCL said?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfkit.readers.nccl.benchmark import Table
from perfkit.readers.nccl.fill import which
from perfkit.readers.nccl.lines import Line, Log
from perfkit.readers.nccl.log import Facts
from perfkit.readers.nccl.report import Report

_FAILURE = re.compile(
    r"Test (?:NCCL|CUDA) failure .*|Test failure .*|Watchdog caught collective operation timeout.*|died from signal .*"
    r"|launch failed .*|ncclUnhandledCudaError.*|ncclSystemError.*|ncclRemoteError.*"
)
_HINTS = ("fail", "timeout", "died", "nccl")  # words of these, found faster
SHOWN = 3  # warnings that are quoted
LENGTH = 200  # characters of a line that are quoted


def failure(lines: Iterable[Line]) -> str:
    """Return the first line that says that the run failed, from where it says so; empty if none does."""
    hinted = (line.text for line in lines if any(hint in line.text for hint in _HINTS))
    return next((quoted(found[0]) for text in hinted if (found := _FAILURE.search(text))), "")


def failed(said: str) -> list[str]:
    """Return the remark that the run failed, if something said so."""
    return [f"the run failed: {quoted(said)}"] if said else []


def report(found: Report) -> list[str]:
    """Return remarks on a report as a file."""
    said = [] if found.whole else ["the file ends in the middle of a result, which is left out"]
    if found.repeated:
        where = f"{len(found.repeated)}, such as {quoted(found.repeated[0])}"
        said.append(f"keys are there twice in one object, the last value of each is read ({where})")
    if found.t0_unix_ns is not None:
        said.append("its start is local time without a zone, taken as UTC")
    return said


def left_out(unsized: int, damaged: int, log: Log) -> list[str]:
    """Return remarks on what of a log could not be read."""
    said = []
    if unsized:
        said.append(f"{unsized} calls or choices of unknown message size are left out")
    if damaged:
        said.append(f"{damaged} lines of NCCL that are not whole are left out")
    return [*said, *log.notes]


def quoted(text: str) -> str:
    """Return a text from outside as it can stand in a note: printable, not too long."""
    clean = "".join(c if c.isprintable() else "?" for c in text.strip())
    return clean if len(clean) <= LENGTH else f"{clean[: LENGTH - 3]}..."


def benchmarks(tables: Sequence[Table], path: Path) -> list[str]:
    """Return remarks on tables, each once with the tables it is about."""
    about: dict[str, dict[str, None]] = {}
    for table in tables:
        for said in _of(table, which(table, path)):
            about.setdefault(said, {})[quoted(_title(table, path))] = None
    return [f"{', '.join(titles)}: {said}" for said, titles in about.items()]


def _title(table: Table, path: Path) -> str:
    return table.program or which(table, path) or "a table of an unknown collective"


def _of(table: Table, collective: str | None) -> list[str]:
    timings = [timing for row in table.rows for timing in row.timings]
    wrong = sum(any(timing.wrong for timing in row.timings) for row in table.rows)
    said = []
    if not table.rows and not table.damaged:
        said.append("no rows: the run ended before its first result")
    elif table.rows and not table.ended:
        said.append(f"ends after {len(table.rows)} rows without a summary: the run or the log was cut off")
    if table.rows and collective is None and not table.program:
        said.append("the log does not say which collective it is; run a later nccl-tests, or name the file after it")
    if table.rows and table.ranks is None:
        said.append("without its list of devices the number of ranks is unknown, and so is the bus bandwidth")
    if wrong or table.out_of_bounds:
        said.append(f"data corrupt in {wrong} rows ({table.out_of_bounds} values out of bounds): its times say nothing")
    if timings and all(timing.wrong is None for timing in timings):
        said.append("the results were not checked (validation off)")
    if table.cpu_time:
        said.append("times of the CPU (-C 1) are no durations: left out")
    if table.reduced_to is not None:
        said.append(f"sizes end below {table.reduced_to} bytes, for lack of memory")
    if table.damaged:
        what = "that are not whole" if table.headed else "without a header"
        said.append(f"{len(table.damaged)} rows {what} are left out (line {table.damaged[0]} first)")
    return said


def setup(tables: Sequence[Table], facts: Facts) -> list[str]:
    """Return what ran: versions, ranks, nodes, network."""
    said = []
    libraries = {_library(table.library): None for table in tables if table.library}
    versions = list(dict.fromkeys([*facts.versions, *libraries]))
    if versions:
        said.append(f"NCCL {', '.join(versions[:SHOWN])}")
    listed = next((table for table in tables if table.devices), Table())
    if listed.devices:
        gpus = max(len(listed.devices), listed.ranks or 0)  # a report lists one GPU per process
        said.append(f"{_counted(gpus, 'GPU')} on {_counted(len({d.host for d in listed.devices}), 'node')}")
    if facts.sizes:
        nodes = f" on {_counted(max(facts.nodes), 'node')}" if facts.nodes else ""
        local = f" ({max(facts.local_ranks)} per node)" if facts.local_ranks else ""
        said.append(f"{_counted(facts.sizes[0], 'rank')}{nodes}{local}")
    if facts.networks:
        said.append(f"network {quoted(', '.join(facts.networks))}")
    if facts.paths:
        inside, outside = next(iter(facts.paths))
        said.append(f"paths {inside} between GPUs and {outside} to the network")
    return ["; ".join(said)] if said else []


def warnings(facts: Facts) -> list[str]:
    """Return the first warnings of NCCL, each once."""
    shown = [f"NCCL warned: {quoted(text)}" for text in list(facts.warnings)[:SHOWN]]
    more = len(facts.warnings) - SHOWN
    return [*shown, f"and {more} more warnings of NCCL"] if more > 0 else shown


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _library(code: int) -> str:
    """Return the version that NCCL_VERSION_CODE stands for (nccl.h: X * 10000 + Y * 100 + Z, until 2.8 X * 1000)."""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
