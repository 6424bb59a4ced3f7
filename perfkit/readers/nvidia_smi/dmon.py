"""``nvidia-smi dmon``: rows of words under a header that comes again every screen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.nvidia_smi import clock
from perfkit.readers.nvidia_smi.fields import DMON, METRICS, scale
from perfkit.readers.nvidia_smi.filling import unreadable
from perfkit.readers.nvidia_smi.gpus import indices
from perfkit.readers.nvidia_smi.lines import Lines, lines
from perfkit.readers.nvidia_smi.log import Column, Log, Unreadable

PLACE = ("Date", "Time", "gpu")
NO_TIMES = "no times: rows of a GPU are taken to be 1 s apart, as dmon prints them; record with `-o DT`"
NO_DATE = "no date: the wall clock is not known; record with `-o DT`"


def log(path: Path) -> Log:
    """Read a log of dmon.

    Raises
    ------
    ReadError
        If it has no rows, a row is damaged, or the columns change within it.
    """
    found = lines(path, spaced=True)
    names, units = _header(found)
    known = [name for name in names if name in DMON and scale(units[name], METRICS[DMON[name][0]])]
    read: dict[str, Column] = found.columns(names, [name for name in names if name in (*PLACE, *known)])
    try:
        gpu = indices("gpu", read["gpu"])
        times, first, notes = _times(read, gpu)
    except Unreadable as e:
        raise unreadable(path, found.where, e.name, e) from e
    return Log(
        path=path,
        tool="nvidia-smi dmon",
        columns={DMON[name][0]: Column(read[name].codes, read[name].texts, units[name]) for name in known},
        gpu=gpu,
        time_ns=times,
        t0_unix_ns=first,
        where=found.where,
        names={DMON[name][0]: name for name in known},
        notes=(*found.notes, *notes),
        unread=tuple(name for name in names if name not in (*known, *PLACE)),
    )


def _header(found: Lines) -> tuple[list[str], dict[str, str]]:
    """Return the names of the columns and their units, which every screen repeats."""
    said = dict.fromkeys(tuple(line.decode(errors="replace").removeprefix("#").split()) for line in found.headers)
    names = [list(words) for words in said if "gpu" in words]
    if len(names) != 1 or len(set(names[0])) != len(names[0]):
        raise ReadError(f"{found.path}: {_trouble(names)}")
    usual = [DMON[name][1] if name in DMON else "" for name in names[0]]
    units = next((words for words in said if "Idx" in words and len(words) == len(usual)), usual)
    return names[0], dict(zip(names[0], units, strict=True))


def _trouble(names: list[list[str]]) -> str:
    if len(names) > 1:
        before, after = (printable(" ".join(words), 200) for words in names[:2])
        return f"the columns change within the log ({before}, later {after}). Split it there."
    if names:
        return f"a column is there twice ({printable(' '.join(names[0]), 200)}). Record the log again."
    return "the words of the header are not separated by spaces or commas. Keep the log as dmon wrote it."


def _times(columns: dict[str, Column], gpu: NDArray[np.int32]) -> tuple[NDArray[np.int64], int | None, list[str]]:
    if "Time" not in columns:
        return clock.ticks(gpu), None, [NO_TIMES]
    times, first, notes = clock.origin(clock.dated(columns.get("Date"), columns["Time"]))
    return (times, first, notes) if "Date" in columns else (times, None, [NO_DATE])
