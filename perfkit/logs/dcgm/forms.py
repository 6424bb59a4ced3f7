"""The three forms of a log of DCGM: ``dcgmi dmon``, Prometheus text, and a Prometheus server's answer.

dmon prints a table of fields per entity and tick, parsed by the columns' short names. Entities are
two words (``GPU 0``, ``GPU-I 1``); the header comes again every 14 ticks; there are no time stamps.
Prompts, error texts and the line about the signal stand around the rows. dcgm-exporter and
nvidia_gpu_exporter answer a scrape with ``NAME{label="value",...} VALUE [TIMESTAMP]``; the time is
in ms, in OpenMetrics (which ends in ``# EOF``) in seconds. Several scrapes may follow each other in
a file: one begins where a series comes again. A server's answer, as ``perfkit record prometheus``
or ``curl`` stored it, is the JSON of ``/api/v1/query_range`` (a matrix) or ``/api/v1/query`` (a
vector): times in seconds since 1970 with milliseconds, values as text.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.logs.dcgm import fields
from perfkit.logs.dcgm.fields import unknown
from perfkit.logs.text import CUT, LATEST_NS, line_of
from perfkit.readers.text import content

BINARY = re.compile(r"[\x00-\x08\x0e-\x1f]")
EOF = "# EOF"  # OpenMetrics may end in this without an end of line
AGAIN = "The file is damaged: copy or record it again."

DMON_HEADER = re.compile(rb"^[ \t]*#[ \t]*Entity[ \t]+\S.*\r?\n[ \t]*I[Dd]\b", re.MULTILINE)
GPUS = {"GPU": "", "GPU-I": "GI ", "GPU-CI": "CI "}
OTHERS = {"vGPU", "Switch", "Link", "CPU", "Core", "ConnectX", "UNKNOWN"}
TICK_NS = 1_000_000_000
SERVER = "A Prometheus server knows the times (`perfkit record prometheus`)"
UNTIMED = (
    "dcgmi dmon prints no time stamps: its rows are taken to be 1 s apart, which is its default. "
    f"{SERVER}"
)

METRIC_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
PAIR = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\]|\\.)*"'
BRACES = rf"\{{\s*(?P<labels>(?:{PAIR}\s*(?:,\s*{PAIR}\s*)*(?:,\s*)?)?)\}}"
TIME = r"-?\d+(?:\.\d*)?(?:[eE]\+?\d+)?"
SAMPLE = re.compile(
    rf"\s*(?P<name>{METRIC_NAME})(?:\s*{BRACES})?\s+(?P<value>\S+)(?:\s+(?P<time>{TIME}))?\s*$"
)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
FIRST = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:# ?(?:HELP|TYPE|EOF|UNIT)\b|[a-zA-Z_:][\w:]*(?:\s*\{| ))"
)
KNOWN = re.compile(
    rb"^(?:# TYPE )?(?:DCGM_FI_|dcgm_|nvidia_smi_)\w+(?:\s*\{| +[^\s,])", re.MULTILINE
)
MS_NS, S_NS = 1_000_000, 1_000_000_000

ANSWER = re.compile(rb'\s*\{\s*"(?:status|data|warnings|infos)"\s*:')
RESULT_TYPE = re.compile(rb'"resultType"\s*:')
GPU_METRIC = re.compile(rb'"(?:DCGM_FI_|dcgm_|nvidia_smi_)\w+"')
KEY = re.compile(rb'"(data|result|metric|values?)"\s*:')

Point = tuple[float, str]
UNREADABLE = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)  # what decoding damaged JSON raises


def whole_lines(path: Path, notes: list[str]) -> list[str]:
    """Return the whole lines of a text file."""
    data = content(path)
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise ReadError(f"{path}: line {line_of(data, e.start)} is not text. {AGAIN}") from e
    binary = BINARY.search(text)
    if binary:
        raise ReadError(f"{path}: line {line_of(text, binary.start())} is not text. {AGAIN}")
    *whole, last = text.split("\n")
    if last.strip() == EOF:
        return [*whole, last]
    notes += [CUT] * bool(last.strip())
    return whole


@dataclass
class Rows:
    """The rows under one header: per row its line, tick, number of its entity and text."""

    columns: list[str]
    numbers: list[int] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    entities: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


@dataclass
class Dmon:
    """What the lines of a log are; ``entities`` in the order of appearance."""

    tables: dict[tuple[str, ...], Rows] = field(default_factory=dict)
    entities: dict[tuple[str, str], int] = field(default_factory=dict)
    ragged: list[int] = field(default_factory=list)
    others: int = 0
    around: list[int] = field(default_factory=list)
    error: str = ""


def is_dmon(head: bytes) -> bool:
    """Say whether the beginning of a file has the two header lines of ``dcgmi dmon``."""
    return DMON_HEADER.search(head) is not None


def read_dmon(path: Path) -> fields.Reading:
    """Read the log."""
    notes: list[str] = []
    log = _sorted_lines(whole_lines(path, notes))
    tables = [table for table in log.tables.values() if table.numbers]
    if not tables:
        raise ReadError(_without_rows(path, log))
    notes += [UNTIMED, *_dmon_notes(log)]
    series = [one for table in tables for one in _dmon_series(path, table, list(log.entities))]
    return fields.Reading("dcgmi dmon", series, timed=False, notes=notes)


def _sorted_lines(text: Iterable[str]) -> Dmon:
    """Sort the lines; a tick begins where an entity comes again."""
    log = Dmon()
    table: Rows | None = None
    tick = 0
    last: list[int] = []
    for number, line in enumerate(text, 1):
        words = line.split()
        if table and len(words) > 2 and words[0] in GPUS and fields.index(words[1]) is not None:
            entity = log.entities.setdefault((words[0], words[1]), len(last))
            if entity == len(last):
                last.append(-1)
            tick += last[entity] == tick
            last[entity] = tick
            if len(words) - 2 != len(table.columns):
                log.ragged.append(number)
                continue
            table.numbers.append(number)
            table.ticks.append(tick)
            table.entities.append(entity)
            table.text.append(" ".join(words))
        elif words and words[0] not in ("ID", "Id"):
            table = _other(log, table, words, number)
    return log


def _other(log: Dmon, table: Rows | None, words: list[str], number: int) -> Rows | None:
    """Count a line that is no row of a GPU; return the table whose header it is, else the one before."""
    if words[0] == "#Entity" or words[:2] == ["#", "Entity"]:
        columns = words[1:] if words[0] == "#Entity" else words[2:]
        return log.tables.setdefault(tuple(columns), Rows(columns))
    if words[0] in OTHERS:
        log.others += 1
    else:
        log.around.append(number)
        log.error = log.error or (" ".join(words) if "rror" in words[0] else "")
    return table


def _dmon_series(
    path: Path, table: Rows, entities: Sequence[tuple[str, str]]
) -> Iterator[fields.Series]:
    """Yield one series per entity and column that stands for a metric."""
    columns = [i for i, column in enumerate(table.columns) if column in fields.BY_COLUMN]
    if not columns:
        return
    frame = pd.read_csv(
        StringIO("\n".join(table.text)),
        sep=r"\s+",
        header=None,
        usecols=[i + 2 for i in columns],
        na_values=["N/A", "N/W"],
        keep_default_na=False,
        quoting=csv.QUOTE_NONE,
        float_precision="round_trip",
        low_memory=False,
    )
    times = np.array(table.ticks, np.int64) * TICK_NS
    of = np.array(table.entities)
    rows = [np.flatnonzero(of == code) for code in range(len(entities))]
    only = [int(number) for kind, number in entities if kind == "GPU"]
    # Of instances, whose rows do not name their GPU.
    owner = -1 if only else 0
    if len(only) == 1:
        owner = only[0]
    for i in columns:
        column = table.columns[i]
        cells: Iterable[object] = frame[i + 2]
        if (
            frame[i + 2].dtype.kind not in "iuf"
        ):  # something else than numbers is in it: that is missing or an error
            cells = [
                _value(path, n, column, str(cell))
                for n, cell in zip(table.numbers, cells, strict=True)
            ]
        values = np.array(cells, np.float64)
        for (kind, number), own in zip(entities, rows, strict=True):
            gpu, instance = (owner, f"{GPUS[kind]}{number}") if GPUS[kind] else (int(number), "")
            if len(own):
                yield fields.Series(
                    fields.BY_COLUMN[column], "", gpu, times[own], values[own], instance
                )


def _value(path: Path, number: int, column: str, cell: str) -> float:
    if cell.endswith("..."):  # dcgmi shortens what its column cannot hold
        return np.nan
    value = fields.decimal(cell)
    if value is None:
        printed = printable(cell, 30)
        raise ReadError(
            f"{path}: line {number} has {printed!r} in column {column}, which is no number. {AGAIN}"
        )
    return value


def _dmon_notes(log: Dmon) -> list[str]:
    unknown = sorted(
        {column for table in log.tables for column in table if column not in fields.BY_COLUMN}
    )
    notes = (
        [f"columns that no metric is known for are left out ({', '.join(unknown)})"]
        if unknown
        else []
    )
    if log.ragged:
        where = f"{len(log.ragged)}, first in line {log.ragged[0]}"
        notes.append(f"rows with more or fewer cells than their header are left out ({where})")
    if log.others:
        notes.append(f"rows of what is no GPU are left out ({log.others})")
    if log.around:
        where = f"{len(log.around)}, first in line {log.around[0]}"
        notes.append(f"lines that are neither header nor row are left out ({where})")
    return notes + ([f"dcgmi said: {printable(log.error, 200)}"] if log.error else [])


def _without_rows(path: Path, log: Dmon) -> str:
    if log.ragged:
        return (
            f"{path}: no row has as many cells as its header (line {log.ragged[0]}). "
            "Record with `dcgmi dmon -e` and numeric fields such as 1001,1002,1003,1004,1005."
        )
    if log.error:
        return (
            f"{path}: the log has no values; dcgmi said {printable(log.error, 200)!r}. Solve that "
            "and record again."
        )
    return (
        f"{path}: the log has headers and no values. Record again, and let it run for longer than "
        "a second."
    )


class Found(NamedTuple):
    """A line with a value: the labels and the time as written, and the number of its scrape."""

    name: str
    labels: str
    value: float
    time: str
    scrape: int


def is_exposition(head: bytes) -> bool:
    """Say whether the beginning of a file is Prometheus text with metrics of GPUs."""
    return FIRST.match(head) is not None and KNOWN.search(head) is not None


def read_exposition(path: Path) -> fields.Reading:
    """Read the scrapes in a file."""
    notes: list[str] = []
    text = whole_lines(path, notes)
    lines = list(parsed(path, text))
    samples = [
        f for f in lines if f.name in fields.METRICS or f.name in (fields.INFO, fields.INDEX)
    ]
    left_out = unknown(f.name for f in lines)
    if not any(f.name in fields.METRICS for f in samples):
        raise ReadError(
            f"{path}: no metric of a GPU that perfkit knows (found: {left_out or 'no values'}). "
            "Save what dcgm-exporter answers: `curl HOST:9400/metrics`."
        )
    timed = all(f.time for f in samples)
    if not timed and samples[-1].scrape:
        notes.append(
            f"{1 + samples[-1].scrape} scrapes without time stamps: they are taken to be 1 s "
            f"apart. {SERVER}"
        )
    elif not timed:
        notes.append("one scrape without time stamp: its time is 0")
    notes += (
        [f"metrics that none of perfkit's stands for are left out ({left_out})"] if left_out else []
    )
    unit = S_NS if any(line.strip() == EOF for line in text) else MS_NS
    raw = _exposed(samples, unit if timed else 0)
    series, devices = fields.gathered(raw, notes)
    of_dcgm = any(fields.METRICS[f.name].number for f in samples if f.name in fields.METRICS)
    tool = "dcgm-exporter" if of_dcgm else "nvidia_gpu_exporter"
    return fields.Reading(tool, series, timed, fields.driver(raw), devices, notes)


def parsed(path: Path, text: Sequence[str]) -> Iterator[Found]:
    """Yield every line with a value; ReadError at the first line that is none of Prometheus's."""
    heads: dict[str, tuple[str, str]] = {}
    seen: set[tuple[str, str]] = set()
    scrape = 0
    for number, line in enumerate(text, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        split = _split(line, heads)
        value = fields.decimal(split[1]) if split else None
        if split is None or value is None:
            raise ReadError(
                f"{path}: line {number} is not Prometheus text ({printable(line, 40)!r}). "
                "The file is damaged: save what the exporter answers again."
            )
        key, _, time = split
        if key in seen:
            scrape, seen = scrape + 1, set()
        seen.add(key)
        yield Found(*key, value, time, scrape)


def _split(line: str, heads: dict[str, tuple[str, str]]) -> tuple[tuple[str, str], str, str] | None:
    """Return the name and labels, value and time of a line; `heads` holds what came before, as it comes again."""
    end = line.rfind("}") + 1
    before, rest = heads.get(line[:end]), line[end:].split()
    if before and len(rest) == 1:
        return before, rest[0], ""
    sample = SAMPLE.match(line)
    if sample is None:
        return None
    key = sample["name"], sample["labels"] or ""
    if end:
        heads[line[:end]] = key
    return key, sample["value"], sample["time"] or ""


def _exposed(lines: Sequence[Found], unit: int) -> list[fields.Raw]:
    """Return the values by series; the times are those written, in `unit` ns, or 1 s per scrape if `unit` is 0."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for one in lines:
        groups.setdefault((one.name, one.labels), []).append(one)
    return [
        fields.Raw(
            name,
            {
                key: ESCAPED.sub(lambda e: "\n" if e[1] == "n" else e[1], value)
                for key, value in LABEL.findall(labels)
            },
            np.array(
                [_nanoseconds(f.time, unit) if unit else f.scrape * TICK_NS for f in group],
                np.int64,
            ),
            np.array([f.value for f in group]),
        )
        for (name, labels), group in groups.items()
    ]


def _nanoseconds(time: str, unit: int) -> int:
    """Return a time exactly as written, `NEVER` for one that is no wall clock."""
    return int(Decimal(time) * unit) if abs(float(time)) * unit < LATEST_NS else fields.NEVER


class Result(msgspec.Struct, omit_defaults=True):
    """One series of an answer."""

    metric: dict[str, str] = {}
    values: list[Point] = []
    value: Point | None = None


class Data(msgspec.Struct, rename="camel"):
    """What an answer holds."""

    result_type: str
    result: list[Result]


class Answer(msgspec.Struct, rename="camel", omit_defaults=True):
    """An answer of the HTTP API."""

    status: str
    data: Data | None = None
    error: str = ""
    warnings: list[str] = []


class Names(msgspec.Struct):
    """The answer to the question which values a label has."""

    data: list[str]


def is_answer(head: bytes) -> bool:
    """Say whether the beginning of a file is an answer with metrics of GPUs."""
    return (
        ANSWER.match(head) is not None
        and RESULT_TYPE.search(head) is not None
        and GPU_METRIC.search(head) is not None
    )


def read_answer(path: Path) -> fields.Reading:
    """Read the series of an answer."""
    results, warnings = _answer(path)
    series = [_answered(path, result) for result in results if "__name__" in result.metric]
    notes = [f"Prometheus warned: {printable(warning, 200)}" for warning in warnings]
    kept, devices = fields.gathered(series, notes)
    left_out = unknown(one.name for one in series)
    if not kept:
        raise ReadError(
            f"{path}: no metric of a GPU that perfkit knows (found: {left_out or 'none'}). "
            "Ask for them with `perfkit record prometheus URL`."
        )
    notes += (
        [f"metrics that none of perfkit's stands for are left out ({left_out})"] if left_out else []
    )
    return fields.Reading(
        "Prometheus", kept, timed=True, version=fields.driver(series), devices=devices, notes=notes
    )


def _answer(path: Path) -> tuple[list[Result], list[str]]:
    """Return the series of an answer and its warnings; ReadError if it is none."""
    data = content(path)
    try:
        answer = msgspec.json.decode(data, type=Answer)
    except UNREADABLE as e:
        raise ReadError(
            f"{path}: not the whole answer of a Prometheus server ({printable(e, 120)}). Ask the "
            "server for it again."
        ) from e
    if answer.status != "success" or answer.data is None:
        reason = printable(answer.error or answer.status, 200)
        raise ReadError(
            f"{path}: the server answered with an error ({reason}). Correct the query and ask "
            "again."
        )
    if answer.data.result_type not in ("matrix", "vector"):
        raise ReadError(
            f"{path}: the answer is a {printable(answer.data.result_type, 20)}, not time series. "
            "Store the answer to a query of metrics."
        )
    # A key that stands more often in the text than in what was decoded of it; empty if there is
    # none.
    there = Counter(key.decode() for key in KEY.findall(data))
    decoded = Counter({"data": 1, "result": 1, "metric": len(answer.data.result)})
    # A series has one of them, or both without points
    decoded["values"] = decoded["value"] = len(answer.data.result)
    decoded.update(label for one in answer.data.result for label in one.metric if label in there)
    twice = next((key for key in there if there[key] > decoded[key]), "")
    if twice:
        raise ReadError(
            f"{path}: an object has the key {twice!r} twice, and one value is lost. Ask for it "
            "again."
        )
    return answer.data.result, answer.warnings


def _answered(path: Path, result: Result) -> fields.Raw:
    points: Sequence[Point] = result.values or ([result.value] if result.value else [])
    values = [fields.decimal(value) for _, value in points]
    if None in values:
        wrong = printable(points[values.index(None)][1], 30)
        raise ReadError(
            f"{path}: a value of a series is no number ({wrong!r}). Ask the server for it again."
        )
    ms = np.rint(np.array([time for time, _ in points], dtype=np.float64) * 1000)
    dated = np.abs(ms) < LATEST_NS / MS_NS  # False for NaN
    times = np.where(dated, np.where(dated, ms, 0).astype(np.int64) * MS_NS, fields.NEVER)
    return fields.Raw(
        result.metric["__name__"], result.metric, times, np.array(values, dtype=np.float64)
    )
