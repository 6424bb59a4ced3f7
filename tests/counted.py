"""Small tables of counters for tests, written as dicts of what matters; the rest is filled in."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit.tables import COUNTERS, LAUNCHES, STALLS

_LAUNCH = {
    "rank": 0,
    "gpu": 0,
    "launch": 0,
    "name": "work",
    "full_name": None,
    "grid_blocks": 1,
    "block_threads": 128,
}


def launches(*rows: dict[str, Any]) -> pd.DataFrame:
    """LAUNCHES with one row per dict, numbered from 0; what is not named was not measured."""
    unmeasured = dict.fromkeys((c.name for c in LAUNCHES.columns if c.dtype == "float64"), np.nan)
    frame = pd.DataFrame(
        [{**unmeasured, **_LAUNCH, "launch": i, **row} for i, row in enumerate(rows)],
        columns=LAUNCHES.column_names,
    )
    frame["full_name"] = frame["full_name"].fillna(frame["name"])
    return LAUNCHES.make(frame)


def counters(*of_launch: dict[str, float], unit: str = "") -> pd.DataFrame:
    """COUNTERS with one dict of metric to value per launch, numbered from 0."""
    rows = [
        (0, i, metric, unit, value)
        for i, values in enumerate(of_launch)
        for metric, value in values.items()
    ]
    return COUNTERS.make(pd.DataFrame(rows, columns=COUNTERS.column_names))


def stalls(*of_launch: dict[str, float], nodes: bool = False) -> pd.DataFrame:
    """STALLS with one dict of reason to value per launch, or call-tree node, numbered from 0."""
    place = (lambda i: (-1, i)) if nodes else (lambda i: (i, -1))
    rows = [
        (0, *place(i), reason, value)
        for i, values in enumerate(of_launch)
        for reason, value in values.items()
    ]
    return STALLS.make(pd.DataFrame(rows, columns=STALLS.column_names))


def page(path: Path) -> list[list[str]]:
    """Header, units and rows of a page of Nsight Compute as texts, without the log before them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(
        csv.reader(lines[next(i for i, line in enumerate(lines) if line.startswith('"ID",')) :])
    )
