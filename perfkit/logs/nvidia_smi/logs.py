"""The logs of nvidia-smi: ``dmon``, rows of words under a header that comes again every screen, and ``--query-gpu``.

A query has any columns in any order, with units in the values or only in the header. nvidia-smi
prints local times, which are taken as UTC; a log without times has one second from row to row of a
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.logs.nvidia_smi import fields
from perfkit.logs.nvidia_smi.fields import Column, Log
from perfkit.logs.text import CUT, CUT_CELL, line_of
from perfkit.profile import QUERY
from perfkit.readers.text import content

DOTTED = {name for names in fields.FIELDS.values() for name in names if "." in name}
FIELD = re.compile(r"([\w.]+)(?: \[[^\[\]]*\])?")
SEPARATORS = ",;\t|"
FAILED = ("NVIDIA-SMI has failed", "Failed to", "Unable to determine", "No devices were found")

DMON_PLACE = ("Date", "Time", "gpu")
DMON_NO_TIMES = (
    "no times: rows of a GPU are taken to be 1 s apart, as dmon prints them; record with `-o DT`"
)
NO_DATE = "no date: the wall clock is not known; record with `-o DT`"

UNIT = re.compile(r"\[([^\[\]]*)\]\s*$")
KNOWN = {
    "index",
    *fields.IDENTITY,
    *fields.NAMED,
    "driver_version",
    "compute_cap",
    *(name for names in fields.FIELDS.values() for name in names),
}
QUERY_NO_TIMES = "no times: rows of a GPU are taken to be 1 s apart; add `timestamp` to --query-gpu"

BINARY = re.compile(rb"[^\t\r\n\x20-\x7e\x80-\xff]")
MESSAGES = tuple(message.encode() for message in FAILED)
DMON_HEADERS = (
    b"#",
    b"gpu ",
    b"Idx ",
    b"Date ",
    b"Time ",
    b"YYYYMMDD ",
    b"HH:MM:SS ",
)  # some logs lost their "#"
BLOCK = 1 << 22  # bytes; larger ones are slower, smaller ones have more dictionaries to unite
AGAIN = "Take it out of the log, or record the log again"

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
EPOCH = date(1970, 1, 1).toordinal()
MOST_DAYS = 53_000  # from 1970, to the years 1824 and 2115: differences of such times fit int64 ns
LOGGED = "%Y/%m/%d %H:%M:%S.%f"
PRINTED = re.compile(r"\w{3} (\w{3}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", re.ASCII)
LOCAL = "the times are local ones without a zone, taken as UTC"
BACKWARDS = "the clock was set back while the log was written"

Times = Int


def is_dmon(line: str) -> bool:
    """Say whether a line is dmon's header, with or without its ``#``, the date before it, or commas."""
    words = re.split(r"[\s,;]+", line.removeprefix("#").strip())
    while words and words[0] in ("Date", "Time"):
        words.pop(0)
    return len(words) > 1 and words[0] == "gpu" and words[1] in fields.DMON and "pid" not in words


def is_query(line: str) -> bool:
    """Say whether a line is the header of a ``--query-gpu`` log, whatever separates its columns."""
    names = header_names(line, SEPARATORS)
    return all(names) and any(name in DOTTED or name.startswith(fields.PREFIXES) for name in names)


def header_names(line: str, separators: str = ",") -> list[str]:
    """Return the names of the columns in a header, empty where one is none."""
    matches = [
        FIELD.fullmatch(part.strip()) for part in re.split(f"[{re.escape(separators)}]", line)
    ]
    return [match[1] if match else "" for match in matches]


def dmon_log(path: Path) -> Log:
    """Read a log of dmon."""
    lines = _lines(path, spaced=True)
    # The names of the columns and their units, which every screen repeats.
    screens = dict.fromkeys(
        tuple(line.decode(errors="replace").removeprefix("#").split()) for line in lines.headers
    )
    headers = [list(words) for words in screens if "gpu" in words]
    if len(headers) != 1 or len(set(headers[0])) != len(headers[0]):
        raise ReadError(f"{lines.path}: {_trouble(headers)}")
    names = headers[0]
    usual = tuple(fields.DMON[name][1] if name in fields.DMON else "" for name in names)
    listed = next(
        (words for words in screens if "Idx" in words and len(words) == len(usual)), usual
    )
    units = dict(zip(names, listed, strict=True))
    metric_names = [
        name
        for name in names
        if name in fields.DMON and fields.scale(units[name], fields.METRICS[fields.DMON[name][0]])
    ]
    read: dict[str, Column] = lines.columns(
        names, [name for name in names if name in (*DMON_PLACE, *metric_names)]
    )
    try:
        gpu = fields.indices("gpu", read["gpu"])
        if "Time" in read:
            times, start, notes = origin(dated(read.get("Date"), read["Time"]))
            first, notes = (start, notes) if "Date" in read else (None, [NO_DATE])
        else:
            times, first, notes = ticks(gpu), None, [DMON_NO_TIMES]
    except fields.Unreadable as e:
        raise fields.unreadable(path, lines.where, e.name, e) from e
    return Log(
        path=path,
        tool="nvidia-smi dmon",
        columns={
            fields.DMON[name][0]: Column(read[name].codes, read[name].texts, units[name])
            for name in metric_names
        },
        gpu=gpu,
        time_ns=times,
        t0_unix_ns=first,
        where=lines.where,
        names={fields.DMON[name][0]: name for name in metric_names},
        notes=(*lines.notes, *notes),
        unread=tuple(name for name in names if name not in (*metric_names, *DMON_PLACE)),
    )


def _trouble(names: list[list[str]]) -> str:
    if len(names) > 1:
        before, after = (printable(" ".join(words), 200) for words in names[:2])
        return f"the columns change within the log ({before}, later {after}). Split it there."
    if names:
        return (
            f"a column is there twice ({printable(' '.join(names[0]), 200)}). Record the log again."
        )
    return (
        "the words of the header are not separated by spaces or commas. Keep the log as dmon wrote "
        "it."
    )


def query_log(path: Path) -> Log:
    """Read a log of a query."""
    lines = _lines(path)
    names, units = _query_header(lines)
    wanted = [name for name in names if name in KNOWN or name.startswith(fields.PREFIXES)]
    read = lines.columns(names, [name for name in names if name in (*wanted, "timestamp")])
    stamps = read.pop("timestamp", None)
    columns = {
        name: Column(column.codes, column.texts, units[name]) for name, column in read.items()
    }
    try:
        times, first, gpu, notes = _placed(columns, stamps, len(lines.numbers))
    except fields.Unreadable as e:
        raise fields.unreadable(path, lines.where, e.name, e) from e
    except fields.Mixed as e:
        raise ReadError(
            f"{path}: rows of several GPUs, which nothing tells apart. Record `{QUERY}`."
        ) from e
    return Log(
        path=path,
        tool="nvidia-smi --query-gpu",
        columns=columns,
        gpu=gpu,
        time_ns=times,
        t0_unix_ns=first,
        where=lines.where,
        names={},
        unread=tuple(
            name for name in names if name not in (*wanted, "timestamp", "count", "serial")
        ),
        notes=(*lines.notes, *notes),
    )


def _query_header(lines: Lines) -> tuple[list[str], dict[str, str]]:
    """Return the names of the columns and the units that stand behind them."""
    header = lines.headers[0].decode(errors="replace")
    names = header_names(header)
    if not all(names):
        other = next((s for s in SEPARATORS[1:] if s in header), " ")
        raise ReadError(
            f"{lines.path}: the columns are separated by {other!r}, not by commas. "
            "Keep the log as nvidia-smi wrote it (`--format=csv`)."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ReadError(
            f"{lines.path}: the column {printable(twice[0], 80)} is there more than once. Keep "
            "only one."
        )
    units = [match[1] if (match := UNIT.search(part)) else "" for part in header.split(",")]
    return names, dict(zip(names, units, strict=True))


def _placed(
    columns: dict[str, Column], stamps: Column | None, rows: int
) -> tuple[Int, int | None, NDArray[np.int32], list[str]]:
    """Return time and GPU of each row, the wall clock of the first, and notes."""
    if stamps is None:
        gpu, notes = fields.numbered(columns, None)
        return ticks(gpu), None, gpu, [*notes, QUERY_NO_TIMES]
    times, first, more = origin(logged(stamps, "timestamp"))
    gpu, notes = fields.numbered(columns, times) if columns else (np.zeros(rows, np.int32), [])
    return times, first, gpu, [*notes, *more]


@dataclass(frozen=True)
class Lines:
    """The whole lines of a log: its headers, and its rows one after the other, with the numbers of their lines."""

    path: Path
    headers: tuple[bytes, ...]
    numbers: Sequence[int]
    rows: bytes
    separator: str
    notes: tuple[str, ...]

    def where(self, row: int) -> str:
        """Return where a row stands, for a message."""
        return f"line {self.numbers[row]}"

    def columns(self, names: Sequence[str], wanted: Sequence[str]) -> dict[str, Column]:
        """Return the columns `wanted` of `names`."""
        import pyarrow as pa
        from pyarrow import csv

        kinds = dict.fromkeys(wanted, pa.dictionary(pa.int32(), pa.binary()))
        # Not Python's: a thread of pyarrow that frees that at exit aborts
        memory = pa.BufferOutputStream()
        memory.write(self.rows)
        try:
            table = csv.read_csv(
                pa.BufferReader(memory.getvalue()),
                csv.ReadOptions(column_names=list(names), block_size=BLOCK),
                csv.ParseOptions(delimiter=self.separator, quote_char=False),
                csv.ConvertOptions(column_types=kinds, include_columns=list(kinds)),
            )
        except pa.ArrowInvalid as e:
            raise self._ragged(len(names), e) from e
        read = {}
        for name in kinds:
            # However many chunks it came in
            whole = table[name].unify_dictionaries().combine_chunks()
            texts = [text.decode(errors="replace").strip() for text in whole.dictionary.to_pylist()]
            read[name] = Column(
                whole.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False), texts
            )
        return read

    def _ragged(self, width: int, e: Exception) -> ReadError:
        """Return the error at the first line with more or fewer fields than the header."""
        for row, line in enumerate(self.rows.splitlines()):
            count = line.count(self.separator.encode()) + 1
            if count != width:
                return ReadError(
                    f"{self.path}: {self.where(row)} has {count} fields, the header has {width}. "
                    f"{AGAIN}."
                )
        return ReadError(f"{self.path}: a line is damaged ({e}). {AGAIN}.")


def _lines(path: Path, spaced: bool = False) -> Lines:
    """Return the lines of a log; with `spaced` those of dmon, words between spaces, else those of a query."""
    data = content(path)
    binary = BINARY.search(data)
    if binary:
        at = binary.start()
        where = f"line {line_of(data, at)}"
        raise ReadError(
            f"{path}: {where} holds bytes that are no text ({data[at : at + 8]!r}). {AGAIN}."
        )
    data = data.replace(b",", b" ").replace(b"\r", b" ") if spaced else data.replace(b"\r", b"")
    *whole, rest = data.split(b"\n")
    first = next((line.strip() for line in whole if line.strip()), b"")
    last, told = _last_line(rest, first, spaced)
    whole.append(last)
    beginnings = DMON_HEADERS if spaced else (first,)
    rows: list[bytes] = []
    numbers: list[int] = []
    others: dict[bytes, None] = {}
    for number, text in enumerate(whole, 1):
        line = text.strip()
        if not line or line.startswith((*beginnings, *MESSAGES)):
            others[line] = None
        else:
            rows.append(b" ".join(line.split()) if spaced else line)
            numbers.append(number)
    if not rows:
        raise ReadError(
            f"{path}: the log has a header and no whole row. Let nvidia-smi run while the program "
            "does."
        )
    messages = [line.decode(errors="replace")[:200] for line in others if line.startswith(MESSAGES)]
    notes = [*told, *(f"nvidia-smi said {message!r}" for message in messages)]
    headers = tuple(line for line in others if line.startswith(beginnings))
    return Lines(
        path, headers, numbers, b"\n".join(rows) + b"\n", " " if spaced else ",", tuple(notes)
    )


def _last_line(rest: bytes, header: bytes, spaced: bool) -> tuple[bytes, list[str]]:
    """Return what is certain of what follows the last line break, and what to note; nothing of a cut row.

    The last cell may be cut, unless it ends with the unit that its header states or with a bracket,
    in dmon's log before a space.
    """
    if not rest.strip():
        return b"", []
    separator = None if spaced else b","
    cells = rest.split(separator)
    names = header.removeprefix(b"#").split(separator) if spaced else header.split(separator)
    if len(cells) != len(names):
        return b"", [CUT]
    unit = UNIT.search(names[-1].decode(errors="replace"))
    ends = (b"]", f" {unit[1]}".encode()) if unit else (b"]",)
    if cells[-1].endswith(ends) or (spaced and rest[-1:].isspace()):
        return rest, []
    cells[-1] = b"-" if spaced else b" [N/A]"
    return (separator or b" ").join(cells), [CUT_CELL]


def logged(column: Column, name: str) -> Times:
    """Return the times of a query's column ``timestamp``; Unreadable at the first that is none."""
    import pyarrow as pa

    try:
        iso = pa.array([text.replace("/", "-", 2) for text in column.texts], pa.string())
        times = np.asarray(iso.cast(pa.timestamp("ns")).to_numpy()).astype(np.int64)
    except pa.ArrowInvalid:
        times = None
    if times is None or (np.abs(times) > MOST_DAYS * DAY).any():
        raise fields.Unreadable(
            name,
            column,
            next((i for i, text in enumerate(column.texts) if not _is_logged(text)), 0),
        )
    stamps: Times = times[column.codes]
    return stamps


def _is_logged(text: str) -> bool:
    try:
        return abs(datetime.strptime(text, LOGGED).toordinal() - EPOCH) < MOST_DAYS
    except ValueError:
        return False


def dated(day: Column | None, clock: Column) -> Times:
    """Return the times of dmon's columns, without a date those from day 0 on; Unreadable at the first that is none."""
    seconds = _each("Time", clock, _seconds)
    if day is not None:
        return _each("Date", day, _days) + seconds
    midnights = np.diff(seconds, prepend=seconds[:1]) < -DAY // 2
    return seconds + np.cumsum(midnights) * DAY


def printed(text: str) -> int | None:
    """Return the time that ``-q`` prints, such as "Thu Jan  1 00:00:02 1970", in ns; None if it is none."""
    match = PRINTED.fullmatch(text)
    if not match or match[1] not in MONTHS:
        return None
    try:
        days = date(int(match[6]), MONTHS.index(match[1]) + 1, int(match[2])).toordinal() - EPOCH
    except ValueError:
        return None
    if abs(days) > MOST_DAYS:
        return None
    hours, minutes, seconds = (int(match[i]) for i in (3, 4, 5))
    return days * DAY + (hours * 3600 + minutes * 60 + seconds) * SECOND


def ticks(gpu: NDArray[np.int32]) -> Times:
    """Return times for rows without any: the n-th row of each GPU at second n."""
    return np.asarray(pd.Series(gpu).groupby(gpu).cumcount(), np.int64) * SECOND


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
            raise fields.Unreadable(name, column, i) from None
    return made[column.codes]


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
