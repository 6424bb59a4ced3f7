"""``dcgmi dmon``: a table of fields per entity and tick, printed to the terminal.

Parsed by the columns' short names. Entities are two words (``GPU 0``, ``GPU-I 1``); the header comes again every 14
ticks; there are no time stamps. Prompts, error texts and the line about the signal stand around the rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.dcgm.fields import BY_COLUMN
from perfkit.readers.dcgm.series import Reading, Series, index
from perfkit.readers.dcgm.text import lines
from perfkit.readers.dcgm.values import Values, decimal

HEADER = re.compile(rb"^[ \t]*#[ \t]*Entity[ \t]+\S.*\r?\n[ \t]*I[Dd]\b", re.MULTILINE)
GPUS = {"GPU": "", "GPU-I": "GI ", "GPU-CI": "CI "}
OTHERS = {"vGPU", "Switch", "Link", "CPU", "Core", "ConnectX", "UNKNOWN"}
MISSING = ["N/A", "N/W"]
TICK_NS = 1_000_000_000
UNTIMED = (
    "dcgmi dmon prints no time stamps: its rows are taken to be 1 s apart, which is its default. "
    "A Prometheus server knows the times (`perfkit record prometheus`)"
)


@dataclass
class Rows:
    """The rows under one header: per row its line, tick, number of its entity and text."""

    columns: list[str]
    numbers: list[int] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    entities: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


@dataclass
class Log:
    """What the lines of a log are; ``entities`` in the order of appearance."""

    tables: dict[tuple[str, ...], Rows] = field(default_factory=dict)
    entities: dict[tuple[str, str], int] = field(default_factory=dict)
    ragged: list[int] = field(default_factory=list)
    others: int = 0
    around: list[int] = field(default_factory=list)
    error: str = ""


def is_dmon(head: bytes) -> bool:
    """Say whether the beginning of a file has the two header lines of ``dcgmi dmon``."""
    return HEADER.search(head) is not None


def reading(path: Path) -> Reading:
    """Read the log.

    Raises
    ------
    ReadError
        If it holds headers only, or a cell that is no number.
    """
    notes: list[str] = []
    log = _log(lines(path, notes))
    tables = [table for table in log.tables.values() if table.numbers]
    if not tables:
        raise ReadError(_without_rows(path, log))
    notes += [UNTIMED, *_said(log)]
    series = [one for table in tables for one in _series(path, table, list(log.entities))]
    return Reading("dcgmi dmon", series, timed=False, notes=notes)


def _log(text: Iterable[str]) -> Log:
    """Sort the lines; a tick begins where an entity comes again."""
    log = Log()
    table: Rows | None = None
    tick = 0
    last: list[int] = []
    for number, line in enumerate(text, 1):
        words = line.split()
        if table and len(words) > 2 and words[0] in GPUS and index(words[1]) is not None:
            entity = log.entities.setdefault((words[0], words[1]), len(last))
            if entity == len(last):
                last.append(-1)
            tick += last[entity] == tick
            last[entity] = tick
            _add(log, table, (number, tick, entity), len(words) - 2, " ".join(words))
        elif words and words[0] not in ("ID", "Id"):
            table = _other(log, table, words, number)
    return log


def _add(log: Log, table: Rows, row: tuple[int, int, int], cells: int, line: str) -> None:
    number, tick, entity = row
    if cells != len(table.columns):
        log.ragged.append(number)
        return
    table.numbers.append(number)
    table.ticks.append(tick)
    table.entities.append(entity)
    table.text.append(line)


def _other(log: Log, table: Rows | None, words: list[str], number: int) -> Rows | None:
    """Count a line that is no row of a GPU; return the table whose header it is, else the one before."""
    if words[0] == "#Entity" or words[:2] == ["#", "Entity"]:
        columns = words[1:] if words[0] == "#Entity" else words[2:]
        return log.tables.setdefault(tuple(columns), Rows(columns))
    if words[0] in OTHERS:
        log.others += 1
    else:
        log.around.append(number)
        log.error = log.error or (" ".join(words) if "rror" in words[0] else "")
    return table


def _series(path: Path, table: Rows, entities: Sequence[tuple[str, str]]) -> Iterator[Series]:
    """Yield one series per entity and column that stands for a metric."""
    known = [i for i, column in enumerate(table.columns) if column in BY_COLUMN]
    if not known:
        return
    frame = pd.read_csv(
        StringIO("\n".join(table.text)),
        sep=r"\s+",
        header=None,
        usecols=[i + 2 for i in known],
        na_values=MISSING,
        keep_default_na=False,
        quoting=csv.QUOTE_NONE,
        float_precision="round_trip",
        low_memory=False,
    )
    times = np.array(table.ticks, np.int64) * TICK_NS
    of = np.array(table.entities)
    rows = [np.flatnonzero(of == code) for code in range(len(entities))]
    for i in known:
        column = table.columns[i]
        values = _numbers(path, table.numbers, column, frame[i + 2])
        for (kind, number), own in zip(entities, rows, strict=True):
            gpu, instance = (0, f"{GPUS[kind]}{number}") if GPUS[kind] else (int(number), "")
            if len(own):
                yield Series(BY_COLUMN[column], "", gpu, times[own], values[own], instance)


def _numbers(path: Path, lines: Sequence[int], column: str, cells: pd.Series) -> Values:
    """Return a column as numbers; where it holds something else, that is missing or an error."""
    if cells.dtype.kind in "iuf":
        return cells.to_numpy(np.float64)
    return np.array([_value(path, n, column, str(cell)) for n, cell in zip(lines, cells, strict=True)])


def _value(path: Path, number: int, column: str, cell: str) -> float:
    if cell.endswith("..."):  # dcgmi shortens what its column cannot hold
        return np.nan
    value = decimal(cell)
    if value is None:
        found = printable(cell, 30)
        raise ReadError(
            f"{path}: line {number} has {found!r} in column {column}, which is no number. "
            "The file is damaged: copy or record it again."
        )
    return value


def _said(log: Log) -> list[str]:
    unknown = sorted({column for table in log.tables for column in table if column not in BY_COLUMN})
    said = [f"columns that no metric is known for are left out ({', '.join(unknown)})"] if unknown else []
    if log.ragged:
        where = f"{len(log.ragged)}, first in line {log.ragged[0]}"
        said.append(f"rows with more or fewer cells than their header are left out ({where})")
    if log.others:
        said.append(f"rows of what is no GPU are left out ({log.others})")
    if log.around:
        where = f"{len(log.around)}, first in line {log.around[0]}"
        said.append(f"lines that are neither header nor row are left out ({where})")
    return said + ([f"dcgmi said: {printable(log.error, 200)}"] if log.error else [])


def _without_rows(path: Path, log: Log) -> str:
    if log.ragged:
        return (
            f"{path}: no row has as many cells as its header (line {log.ragged[0]}). "
            "Record with `dcgmi dmon -e` and numeric fields such as 1001,1002,1003,1004,1005."
        )
    if log.error:
        return f"{path}: the log has no values; dcgmi said {printable(log.error, 200)!r}. Solve that and record again."
    return f"{path}: the log has headers and no values. Record again, and let it run for longer than a second."
