"""Nsight Compute: the CSV pages raw and details, or a report when NVIDIA's module `ncu_report` is installed.

Export with ``ncu --import REPORT.ncu-rep --csv --page raw --print-units base > REPORT.csv`` (or ``--page details``,
which has the rules but not the attributes of the GPU, rounds, and leaves counters out), or install
``perfkit[ncu]`` and read the .ncu-rep. Tried with 2020.3 to 2026.2: what ncu and the program print
around and between the rows is skipped, and every unit is brought to its base unit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit.profile import Profile
from perfkit.readers.ncu import log, pages, rep, tables
from perfkit.readers.ncu.report import Report, whole
from perfkit.readers.ncu.tables import sparse

__all__ = ["KIND", "VERSION", "read", "sniff"]

VERSION = 2
KIND = "counters"
LARGEST = 4 * 10**9
LOOKED_AT = 200_000  # bytes; before its page a log holds what the program prints


def sniff(path: Path) -> bool:
    """Say whether `path` is a report or a log of Nsight Compute, by its magic, a page's header or ncu's own lines."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(LOOKED_AT)
    except OSError:
        return False
    return head.startswith(rep.MAGIC) or log.is_log(log.decode(head))


def read(path: Path) -> Profile:
    """Open a report or a page; launches are numbered by position, also where ids start again.

    LAUNCHES and COUNTERS; STALLS, RULES and DEVICES as far as the report holds them. What is not recorded is in
    ``missing`` with the option of ``ncu`` that records it.
    """
    with path.open("rb") as file:
        is_report = file.read(len(rep.MAGIC)) == rep.MAGIC
    # A number that is too large becomes infinite, which the schema's ranges find.
    with np.errstate(over="ignore", invalid="ignore"):
        report = whole(rep.read(path) if is_report else pages.read(path))
        rows = tables.table(report)
    made: dict[str, Callable[[], pd.DataFrame]] = {
        "LAUNCHES": partial(_same, rows),
        **({"COUNTERS": partial(tables.counters, report)} if tables.has_counters(report) else {}),
    }
    for name, make in (("STALLS", tables.stalls), ("RULES", tables.rules), ("DEVICES", tables.devices)):
        frame = make(report)
        if len(frame):
            made[name] = partial(_same, frame)
    return Profile(
        reader="ncu",
        path=path,
        capture=tables.capture(report, path),
        loaders=made,
        missing=tables.missing(rows, set(made)),
        notes=(*report.notes, *_sparse(report)),
    )


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _sparse(report: Report) -> tuple[str, ...]:
    found = sparse(report)
    if not found:
        return ()
    listed = ", ".join(map(str, found[:10])) + (" and more" if len(found) > 10 else "")
    return (
        f"launches {listed} ran structured-sparse tensor operations, which tensor_flops counts too: "
        "compare them with the sparse peak",
    )
