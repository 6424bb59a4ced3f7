"""``nvidia-smi --query-gpu --format=csv``: any columns in any order, with units in the values or only in the header."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.nvidia_smi import clock, gpus
from perfkit.readers.nvidia_smi.fields import FIELDS
from perfkit.readers.nvidia_smi.filling import unreadable
from perfkit.readers.nvidia_smi.forms import QUERY, SEPARATORS, fields
from perfkit.readers.nvidia_smi.lines import Lines, lines
from perfkit.readers.nvidia_smi.log import Column, Log, Unreadable
from perfkit.readers.nvidia_smi.reasons import PREFIXES

UNIT = re.compile(r"\[([^\[\]]*)\]\s*$")
DESCRIBING = ("driver_version", "compute_cap")
KNOWN = {"index", *gpus.IDENTITY, *gpus.NAMES, *DESCRIBING, *(name for names in FIELDS.values() for name in names)}
PLACE = ("timestamp", "count", "serial")
NO_TIMES = "no times: rows of a GPU are taken to be 1 s apart; add `timestamp` to --query-gpu"


def log(path: Path) -> Log:
    """Read a log of a query.

    Raises
    ------
    ReadError
        If it has no rows, a row is damaged, or rows of several GPUs cannot be told apart.
    """
    found = lines(path)
    names, units = _header(found)
    wanted = [name for name in names if name in KNOWN or name.startswith(PREFIXES)]
    read = found.columns(names, wanted, [name for name in names if name == "timestamp"])
    stamps = read.pop("timestamp", None)
    columns = {name: Column(column.codes, column.texts, units[name]) for name, column in read.items()}
    try:
        times, first, gpu, notes = _placed(columns, stamps, found.count)
    except Unreadable as e:
        raise unreadable(path, found.where, e.name, e) from e
    except gpus.Mixed as e:
        raise ReadError(f"{path}: rows of several GPUs, which nothing tells apart. Record `{QUERY}`.") from e
    return Log(
        path=path,
        tool="nvidia-smi --query-gpu",
        columns=columns,
        gpu=gpu,
        time_ns=times,
        t0_unix_ns=first,
        where=found.where,
        names={},
        unread=tuple(name for name in names if name not in (*wanted, *PLACE)),
        notes=(*found.notes, *notes),
    )


def _header(found: Lines) -> tuple[list[str], dict[str, str]]:
    """Return the names of the columns and the units that stand behind them."""
    header = found.headers[0].decode(errors="replace")
    names = fields(header)
    if not all(names):
        other = next((s for s in SEPARATORS[1:] if s in header), " ")
        raise ReadError(
            f"{found.path}: the columns are separated by {other!r}, not by commas. "
            "Keep the log as nvidia-smi wrote it (`--format=csv`)."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ReadError(
            f"{found.path}: the column {printable(twice[0], 80)} is there more than once. Leave one of them."
        )
    units = [match[1] if (match := UNIT.search(part)) else "" for part in header.split(",")]
    return names, dict(zip(names, units, strict=True))


def _placed(
    columns: dict[str, Column], stamps: Any, rows: int
) -> tuple[NDArray[np.int64], int | None, NDArray[np.int32], list[str]]:
    """Return time and GPU of each row, the wall clock of the first, and notes."""
    if stamps is None:
        gpu, notes = gpus.numbered(columns, None)
        return clock.ticks(gpu), None, gpu, [*notes, NO_TIMES]
    times, first, said = clock.origin(clock.logged(stamps, "timestamp"))
    gpu, notes = gpus.numbered(columns, times) if columns else (np.zeros(rows, np.int32), [])
    return times, first, gpu, [*notes, *said]
