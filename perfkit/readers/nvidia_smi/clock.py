"""When was a row recorded: the times that nvidia-smi prints as ns since 1970, its local time taken as UTC.

Functions
---------
logged   of a query: 2026/01/03 15:36:53.507
dated    of dmon: 20210102 and 19:12:31, or the time alone
printed  of -q: Fri Aug  4 11:44:30 2023
ticks    without times: one second from row to row of a GPU
origin   times since the first, and when that was
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.nvidia_smi.log import Column, Unreadable

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
EPOCH = date(1970, 1, 1).toordinal()
MOST_DAYS = 53_000  # from 1970, to the years 1824 and 2115: differences of such times fit int64 ns
LOGGED = "%Y/%m/%d %H:%M:%S.%f"
PRINTED = re.compile(r"\w{3} (\w{3}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", re.ASCII)
LOCAL = "the times are local ones without a zone, taken as UTC"
BACKWARDS = "the clock was set back while the log was written"

Times = NDArray[np.int64]


def logged(values: Any, name: str) -> Times:
    """Return the times of a query's column ``timestamp``, an Arrow array of text.

    Raises
    ------
    Unreadable
        At the first that is no time.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        text = pc.utf8_trim_whitespace(values.cast(pa.string()))
        iso = pc.replace_substring(text, "/", "-", max_replacements=2)
        times = np.asarray(iso.cast(pa.timestamp("ns")).to_numpy()).astype(np.int64)
    except pa.ArrowInvalid as e:
        raise _unlogged(values, name) from e
    if (np.abs(times) > MOST_DAYS * DAY).any():
        raise _unlogged(values, name)
    return times


def _unlogged(values: Any, name: str) -> Unreadable:
    """Return the error at the first text that is no time."""
    column = Column.of([value.decode(errors="replace").strip() for value in values.to_pylist()])
    return Unreadable(name, column, next((i for i, text in enumerate(column.texts) if not _is_logged(text)), 0))


def _is_logged(text: str) -> bool:
    try:
        return abs(datetime.strptime(text, LOGGED).toordinal() - EPOCH) < MOST_DAYS
    except ValueError:
        return False


def dated(day: Column | None, clock: Column) -> Times:
    """Return the times of dmon's columns; without a date those of day 0, a day later after midnight.

    Raises
    ------
    Unreadable
        At the first that is no date or no time.
    """
    seconds = _clocks(clock)
    if day is not None:
        return _each("Date", day, _days) + seconds
    midnights = np.diff(seconds, prepend=seconds[:1]) < -DAY // 2
    return seconds + np.cumsum(midnights) * DAY


def printed(text: str) -> int | None:
    """Return the time that ``-q`` prints, None if it is none.

    Examples
    --------
    >>> printed("Thu Jan  1 00:00:02 1970")
    2000000000
    """
    found = PRINTED.fullmatch(text)
    if not found or found[1] not in MONTHS:
        return None
    try:
        days = date(int(found[6]), MONTHS.index(found[1]) + 1, int(found[2])).toordinal() - EPOCH
    except ValueError:
        return None
    if abs(days) > MOST_DAYS:
        return None
    hours, minutes, seconds = (int(found[i]) for i in (3, 4, 5))
    return days * DAY + (hours * 3600 + minutes * 60 + seconds) * SECOND


def ticks(gpu: NDArray[np.int32]) -> Times:
    """Return times for rows without any: the n-th row of each GPU at second n."""
    order = np.argsort(gpu, kind="stable")
    grouped = gpu[order]
    starts = np.flatnonzero(np.diff(grouped, prepend=grouped[:1] - 1))
    counts = np.diff(np.append(starts, len(gpu)))
    ordinal = np.empty(len(gpu), np.int64)
    ordinal[order] = np.arange(len(gpu)) - np.repeat(starts, counts)
    return ordinal * SECOND


def origin(times: Times) -> tuple[Times, int, list[str]]:
    """Return the times since the earliest, the earliest, and what to note."""
    first = int(times.min())
    return times - first, first, [LOCAL] + [BACKWARDS] * bool((np.diff(times) < 0).any())


def _each(name: str, column: Column, value: Any) -> Times:
    made = np.empty(len(column.texts), np.int64)
    for i, text in enumerate(column.texts):
        try:
            made[i] = value(text)
        except ValueError:
            raise Unreadable(name, column, i) from None
    return made[column.codes]


def _clocks(column: Column) -> Times:
    """Return the times of day; a long log has one text per second of a day."""
    together = "".join(column.texts)
    if {len(text) for text in column.texts} != {len("HH:MM:SS")} or not together.isascii():
        return _each("Time", column, _seconds)
    digits = np.frombuffer(together.encode(), np.uint8).reshape(len(column.texts), -1).astype(np.int64) - ord("0")
    hour, minute, second = (10 * digits[:, i] + digits[:, i + 1] for i in (0, 3, 6))
    colons, numbers = digits[:, [2, 5]], digits[:, [0, 1, 3, 4, 6, 7]]
    plain = (colons == ord(":") - ord("0")).all() and ((numbers >= 0) & (numbers <= 9)).all()
    if not plain or (hour > 23).any() or (minute > 59).any() or (second > 60).any():
        return _each("Time", column, _seconds)
    times: Times = (hour * 3600 + minute * 60 + second) * SECOND
    return times[column.codes]


def _seconds(text: str) -> int:
    hours, minutes, seconds = (int(part) for part in text.split(":"))
    if not (0 <= hours < 24 and 0 <= minutes < 60 and 0 <= seconds <= 60):
        raise ValueError(text)
    return (hours * 3600 + minutes * 60 + seconds) * SECOND


def _days(text: str) -> int:
    if len(text) != 8:
        raise ValueError(text)
    days = date(int(text[:4]), int(text[4:6]), int(text[6:])).toordinal() - EPOCH
    if abs(days) > MOST_DAYS:
        raise ValueError(text)
    return days * DAY
