"""The longest moment of a kind on the timeline, which a picture of a finding shows."""

import pandas as pd

from perfkit.diagnosis.phases import paused
from perfkit.diagnosis.rules.rule import Moment
from perfkit.diagnosis.timeline import idle_gaps, idle_parts
from perfkit.selection import Selection


def longest_gap(cause: str = "") -> Moment:
    """Return what finds the gap with most time of a cause of idle time, of any for none."""

    def moment(view: Selection) -> tuple[int, int] | None:
        gaps = idle_gaps(view)
        if gaps is None:
            return None
        parts = idle_parts(gaps)
        return _longest(gaps, parts[cause] if cause in parts else gaps["dur_ns"])

    return moment


def longest_pause(view: Selection) -> tuple[int, int] | None:
    """Find the longest pause that is not judged."""
    rows = paused(view)
    return _longest(rows, rows["dur_ns"])


def longest_copy(view: Selection) -> tuple[int, int] | None:
    """Find the longest copy."""
    return _longest(view.copies, view.copies["dur_ns"])


def longest_collective(view: Selection) -> tuple[int, int] | None:
    """Find the longest launch of the communication kernel with most time."""
    return _of_kernels(view, communicates=True)


def longest_kernel(view: Selection) -> tuple[int, int] | None:
    """Find the longest launch of the kernel with most time that does not communicate."""
    return _of_kernels(view, communicates=False)


def _of_kernels(view: Selection, *, communicates: bool) -> tuple[int, int] | None:
    rows = view.all_kernels
    is_chosen = (rows["family"] == "communication") == communicates
    length = rows["dur_ns"].where(is_chosen, 0)
    time = length.groupby(rows["name"], observed=True).sum()
    if len(time):
        length = length.where(rows["name"] == time.idxmax(), 0)
    return _longest(rows, length)


def _longest(rows: pd.DataFrame, length: pd.Series) -> tuple[int, int] | None:
    if not len(length) or length.max() <= 0:
        return None
    row = rows.iloc[int(length.to_numpy().argmax())]
    return int(row["start_ns"]), int(row["dur_ns"])
