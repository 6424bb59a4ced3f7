"""One normal form for what Nsight Compute wrote, whichever page or file it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MOST_BLOCKS = 2**63 - 1
_SIZE = re.compile(r"[0-9]{1,10}")  # a grid has at most 2^31 blocks a side
_EXACT = 2**53  # above, float64 leaves whole numbers out
_WHOLE = {  # metrics that become integers, and the largest that fits
    **dict.fromkeys(("launch__grid_size", "launch__block_size"), _EXACT),
    **dict.fromkeys(("launch__device_id", "device__attribute_device_index"), 2**31 - 1),
    **dict.fromkeys(("device__attribute_multiprocessor_count", "device__attribute_total_memory"), _EXACT),
}


@dataclass(frozen=True)
class Launch:
    """Who was measured: what is not a counter. Unknown is -1 for ids, None for sizes, empty for text."""

    full_name: str
    gpu: int = -1
    grid_blocks: int | None = None
    block_threads: int | None = None
    capability: str = ""
    device_name: str = ""


@dataclass(frozen=True)
class Rule:
    """One message of the guided analysis; `speedup_frac` is NaN and `scope` None when it gives no estimate."""

    launch: int
    rule: str
    message: str
    speedup_frac: float = float("nan")
    scope: str | None = None


@dataclass(frozen=True)
class Report:
    """Launches in the order of the file, and their metrics in base units.

    ``values`` has one row per launch and one float64 column per metric, named as the tool names it; NaN is
    not measured. ``units`` gives the base unit of each column. Launches are numbered by position: the ids
    a page prints start again with every process.
    """

    launches: Sequence[Launch]
    values: pd.DataFrame
    units: dict[str, str]
    rules: Sequence[Rule] = ()
    version: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any launch may have."""
        return [str(metric) for metric in self.values.columns]

    def column(self, *metrics: str) -> NDArray[np.float64]:
        """Return the first of these metrics that a launch has; NaN where it has none."""
        found = np.full(len(self.launches), np.nan)
        for metric in metrics:
            if metric in self.values:
                found = np.where(np.isnan(found), self.values[metric].to_numpy(), found)
        return found


def joined(reports: Sequence[Report]) -> Report:
    """Return the parts of one file as one report, their launches numbered on."""
    if len(reports) == 1:
        return reports[0]
    rules: list[Rule] = []
    before = 0
    for report in reports:
        rules += [Rule(r.launch + before, r.rule, r.message, r.speedup_frac, r.scope) for r in report.rules]
        before += len(report.launches)
    return Report(
        [launch for report in reports for launch in report.launches],
        pd.concat([report.values for report in reports], ignore_index=True),
        {metric: unit for report in reversed(reports) for metric, unit in report.units.items()},
        rules,
        reports[0].version,
        tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def whole(report: Report) -> Report:
    """Return a report without ids and sizes that are no whole numbers or too large for one, counted in notes."""
    values, notes = report.values.copy(deep=False), []
    for metric, most in _WHOLE.items():
        if metric not in values:
            continue
        numbers = values[metric].to_numpy()
        wrong = ~np.isnan(numbers) & ~((numbers >= 0) & (numbers <= most) & (numbers % 1 == 0))
        if wrong.any():
            values[metric] = np.where(wrong, np.nan, numbers)
            notes.append(
                f"values of {metric} that are no whole number from 0 to {most:,} and were left out: "
                f"{np.count_nonzero(wrong):,} (first: {numbers[wrong][0]:g})"
            )
    return replace(report, values=values, notes=(*report.notes, *notes)) if notes else report


def blocks(text: str) -> int | None:
    """Return how many blocks or threads a size such as "(128, 2, 1)" holds; None if it is none.

    Examples
    --------
    >>> blocks("(128, 2, 1)"), blocks("256"), blocks("")
    (256, 256, None)
    """
    sizes = [size.strip() for size in text.strip("() ").split(",")]
    if not all(_SIZE.fullmatch(size) for size in sizes):
        return None
    count = prod(int(size) for size in sizes)
    return count if count <= MOST_BLOCKS else None
