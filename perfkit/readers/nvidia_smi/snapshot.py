"""What ``nvidia-smi -q`` says of each GPU, text or XML, as rows under the names of ``--query-gpu``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.nvidia_smi import clock
from perfkit.readers.nvidia_smi.fields import is_missing
from perfkit.readers.nvidia_smi.log import Column, Log

MARGIN = "temperature.slowdown.tlimit"
NO_TIME = "no time: the values are of one moment, the wall clock is not known"
AGAIN = "Run `nvidia-smi -q -x -f gpus.xml` again"


@dataclass(frozen=True)
class Inventory:
    """One run of ``nvidia-smi -q``: what it says at first, and of each GPU, by path."""

    head: Mapping[str, str]
    gpus: Sequence[Mapping[str, str]]


def log(path: Path, inventories: Sequence[Inventory], names: Mapping[str, str], notes: Sequence[str]) -> Log:
    """Return inventories as a log; `names` maps their paths to columns, the first that a GPU has wins.

    Raises
    ------
    ReadError
        If no GPU is described whole.
    """
    rows = [(taken, number) for taken in inventories for number in range(len(taken.gpus))]
    if not rows:
        raise ReadError(f"{path}: no GPU is described to its end. {AGAIN}.")
    named = [_named(taken.gpus[number], names) for taken, number in rows]
    columns = {name: Column.of([row.get(name, "N/A") for row in named]) for name in dict.fromkeys(names.values())}
    columns = {name: column for name, column in columns.items() if any(name in row for row in named)}
    columns["driver_version"] = Column.of([_head(taken, "driver version") for taken, _ in rows])
    times = [clock.printed(_head(taken, "timestamp")) for taken, _ in rows]
    gpu = np.array([number for _, number in rows], np.int32)
    known = [time for time in times if time is not None]
    if len(known) == len(rows):
        time_ns, first, said = clock.origin(np.array(known, np.int64))
    else:
        time_ns, first, said = clock.ticks(gpu), None, [NO_TIME]
    return Log(
        path=path,
        tool="nvidia-smi -q",
        columns=columns,
        gpu=gpu,
        time_ns=time_ns,
        t0_unix_ns=first,
        where=lambda row: f"GPU {gpu[row]}",
        names={},
        notes=(*notes, *said, *_numbering(inventories), *_margins(named, gpu)),
    )


def _head(taken: Inventory, words: str) -> str:
    """Return what is said before the GPUs: the XML joins the words of the text."""
    return taken.head.get(words, taken.head.get(words.replace(" ", "_"), ""))


def _named(gpu: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return what is said of a GPU by column; a later path counts only where an earlier one has no value."""
    found: dict[str, str] = {}
    for place, name in names.items():
        if place in gpu and (name not in found or is_missing(found[name])):
            found[name] = gpu[place]
    return found


def _numbering(inventories: Sequence[Inventory]) -> list[str]:
    """Note that fewer GPUs are described than the node has: their numbers are not its indices."""
    for taken in inventories:
        count, attached = len(taken.gpus), _head(taken, "attached gpus")
        if attached.isdecimal() and attached.lstrip("0") != str(count):
            return [f"{count} of {printable(attached, 12)} GPUs are described: they are numbered in their order here"]
    return []


def _margins(named: Sequence[Mapping[str, str]], gpu: NDArray[np.int32]) -> list[str]:
    """Note limits that are margins: they are no temperatures, nor is the sum of margin and temperature a constant."""
    found = {int(gpu[i]): row[MARGIN] for i, row in enumerate(named) if MARGIN in row}
    listed = ", ".join(f"GPU {number} at {value}" for number, value in found.items() if not is_missing(value))
    return [f"limits are given as margins, the slowdown of {listed}: see temperature_margin_c"] if listed else []
