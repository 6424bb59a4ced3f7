"""The longest moment of a kind on the timeline, which a picture of a finding shows."""

import pandas as pd

from perfkit.diagnosis.phases import paused, recorded
from perfkit.diagnosis.repeating import phases
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


def longest_start_up(view: Selection) -> tuple[int, int] | None:
    """Find the longest start-up of a rank; where there is none, the longest step: the first ones are slow."""
    found = phases(recorded(view))
    rows = found[found["phase"].eq("start_up")]
    return _longest(rows, rows["dur_ns"]) or longest_step(view)


def longest_step(view: Selection) -> tuple[int, int] | None:
    """Find the longest step."""
    return _longest(view.repeated, view.repeated["dur_ns"])


def longest_copy(view: Selection) -> tuple[int, int] | None:
    """Find the longest copy."""
    return _longest(view.copies, view.copies["dur_ns"])


def longest_collective(view: Selection) -> tuple[int, int] | None:
    """Find the longest launch of the communication kernel with most time."""
    return _of_kernels(view, view.all_kernels["family"].eq("communication"))


def longest_kernel(view: Selection) -> tuple[int, int] | None:
    """Find the longest launch of the kernel with most time that does not communicate."""
    return _of_kernels(view, view.all_kernels["family"].ne("communication"))


def longest_of(*families: str) -> Moment:
    """Return what finds the longest launch of the kernel with most time of these families, else of all."""

    def moment(view: Selection) -> tuple[int, int] | None:
        return _of_kernels(view, view.all_kernels["family"].isin(families)) or longest_kernel(view)

    return moment


def _of_kernels(view: Selection, is_chosen: pd.Series) -> tuple[int, int] | None:
    rows = view.all_kernels
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
