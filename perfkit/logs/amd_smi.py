"""amd-smi: what it says of AMD GPUs as JSON or CSV; `perfkit.logs.rocm_smi` is the reader.

JSON is a list or stands below ``gpu_data``, values are with or without a unit. Without a time in
the file, readings are taken to be 1 s apart. The MB of amd-smi are 1,048,576 bytes.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.logs.text import LATEST_NS, Asked, line_of, lines, unanswered, writable
from perfkit.profile import Profile
from perfkit.readers.text import capture_table, content, csv_rows, head

HEAD = 1 << 16
SECOND = 1_000_000_000
# The first GPU of a document of JSON, in the layouts with and without `gpu_data`.
BEGIN = re.compile(
    r'^[ \t]*(?:\{\s*"gpu_data"\s*:\s*)?\[\s*\{\s*(?:"timestamp"\s*:\s*[^,{}]{1,40},\s*)?"gpu"\s*:',
    re.MULTILINE,
)
GROUPS = ('"usage"', '"power"', '"mem_usage"', '"temperature"', '"clock"', '"asic"')
NUMBER = re.compile(r"(-?\d{1,18}(?:\.\d{1,15})?) ?([%A-Za-z\u00b0]{0,4})", re.ASCII)
# What the number of a unit is multiplied with; one without a unit is in that of its metric.
UNITS = {
    "%": 0.01,
    "MHz": 1e6,
    "B": 1.0,
    "KB": 1024.0,
    "MB": 1024.0**2,
    "GB": 1024.0**3,
    **dict.fromkeys(("W", "J", "C", "\u00b0C"), 1.0),
}
NO_TIMES = "no times: readings are taken to be 1 s apart, the wall clock is not known"
RECORD = "amd-smi metric --csv --watch 1 --file gpus.csv"
AGAIN = f"Run `{RECORD}` again"
ASKED = (
    Asked(("gpu_busy_frac",), "How busy was each GPU?", RECORD),
    Asked(("power_w",), "How much power did each GPU draw?", RECORD),
    Asked(("power_limit_w",), "Which power limit did each GPU have?", "amd-smi static --json"),
    Asked(("memory_used_bytes",), "How much GPU memory was in use?", RECORD),
)


class Field(NamedTuple):
    """A metric: what a number without a unit is multiplied with, and where it stands, the first that has a number."""

    metric: str
    scale: float
    places: list[str]


class Reading(NamedTuple):
    """What was said of one GPU at one time: the values by their place, and when, s since 1970."""

    gpu: int
    tick: int
    seconds: float | None
    values: Mapping[str, str]


def _fields(column: str) -> list[Field]:
    rows = csv_rows(__file__, "amd_smi.csv")
    return [
        Field(row["metric"], float(row["scale"]), row[column].split("; "))
        for row in rows
        if row[column]
    ]


FIELDS = {column: _fields(column) for column in ("json", "metric_csv", "monitor_csv")}


def sniff(path: Path) -> bool:
    """Say whether `path` is JSON or CSV of amd-smi, by the keys of its first GPU, or by its header."""
    return _form(head(path, HEAD).decode(errors="replace")) is not None


def _form(start: str) -> str | None:
    """Return the form of a file by how it begins: a column of FIELDS, None for any other file."""
    if BEGIN.search(start) and any(group in start for group in GROUPS):
        return "json"
    names = _names(start.lstrip().partition("\n")[0])
    if "gpu" not in names or names[0] not in ("gpu", "timestamp"):
        return None
    known = {
        column: {place for field in FIELDS[column] for place in field.places} & {*names}
        for column in ("metric_csv", "monitor_csv")
    }
    metric, monitor = len(known["metric_csv"]), len(known["monitor_csv"])
    form = "metric_csv" if metric >= monitor else "monitor_csv"
    return form if known[form] else None


def _names(line: str) -> list[str]:
    return [name.strip().lower() for name in line.strip().split(",")]


def read(path: Path) -> Profile:
    """Read the readings: SAMPLES, CAPTURE and DEVICES."""
    text = content(path).decode(errors="replace")
    notes: list[str] = []
    form = _form(text[:HEAD])
    found = _documents(path, text) if form == "json" else _rows(path, text, notes)
    readings = list(found)
    times, begin = _times(path, readings, notes)
    rows, absent = _samples(readings, times, FIELDS[form or "metric_csv"])
    if not rows:
        raise ReadError(f"{path}: no GPU has a number that is known. {AGAIN}.")
    samples = tables.SAMPLES.make(
        pd.DataFrame(rows, columns=["gpu", "time_ns", "metric", "value"]).assign(rank=0)
    )
    frames = {"SAMPLES": samples, "DEVICES": _devices(readings, samples)}
    if absent:
        notes.append(f"not available: {', '.join(absent)}")
    metrics = set(samples["metric"].cat.categories)
    return Profile(
        reader="rocm_smi",
        path=path,
        capture=capture_table(path, "amd-smi", "", begin, max(times)),
        loaders={name: partial(frames.__getitem__, name) for name in frames},
        missing=tuple(unanswered(ASKED, metrics)),
        notes=tuple(notes),
    )


def _documents(path: Path, text: str) -> Iterator[Reading]:
    """Yield the GPUs of each document of JSON, wherever it begins."""
    decoder = json.JSONDecoder()
    at = tick = 0
    while begin := BEGIN.search(text, at):
        try:
            document, at = decoder.raw_decode(text, begin.end() - len(begin[0].lstrip()))
        except (ValueError, RecursionError) as e:
            line = line_of(text, begin.start())
            raise ReadError(
                f"{path}: the JSON that begins in line {line} is cut or damaged ({e}). {AGAIN}."
            ) from e
        gpus = document["gpu_data"] if isinstance(document, dict) else document
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, dict) and _is_gpu(gpu.get("gpu")):
                yield Reading(gpu["gpu"], tick, _seconds(gpu.get("timestamp")), dict(_flat(gpu)))
        tick += 1


def _is_gpu(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 31


def _flat(values: Mapping[str, Any], above: str = "", depth: int = 4) -> Iterator[tuple[str, str]]:
    """Yield each value of an object with the keys that lead to it: "usage.gfx_activity" and "37 %"."""
    for key, value in values.items():
        place = f"{above}{key}"
        if isinstance(value, dict) and set(value) == {"value", "unit"}:
            yield place, f"{value['value']} {value['unit']}"
        elif isinstance(value, dict) and depth:
            yield from _flat(value, f"{place}.", depth - 1)
        elif isinstance(value, str | int | float):
            yield place, writable(value)


def _rows(path: Path, text: str, notes: list[str]) -> Iterator[Reading]:
    """Yield the rows of CSV; a header may be there again before each round over the GPUs."""
    whole, said = lines(text, path)
    notes += said
    names: list[str] = []
    tick, last = -1, 1 << 31
    for number, line in enumerate(whole, 1):
        cells = next(csv.reader([line]), [])
        if _names(line)[0] in ("gpu", "timestamp"):
            names = _names(line)
            continue
        if not line.strip():
            continue
        values = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        if len(cells) != len(names) or not re.fullmatch(r"\d{1,9}", values["gpu"], re.ASCII):
            raise ReadError(f"{path}: line {number} is no row of the header. {AGAIN}.")
        gpu = int(values["gpu"])
        tick += gpu <= last
        last = gpu
        yield Reading(gpu, tick, _seconds(values.get("timestamp")), values)


def _seconds(value: object) -> float | None:
    """Return a time in s since 1970, None for what is none."""
    match = NUMBER.fullmatch(str(value))
    seconds = float(match[1]) if match and not match[2] else 0.0
    return seconds if 0 < seconds * SECOND < LATEST_NS else None


def _times(path: Path, readings: list[Reading], notes: list[str]) -> tuple[list[int], int | None]:
    """Return when each reading was made, ns since the first, and when that was, ns since 1970."""
    if not readings:
        raise ReadError(f"{path}: no GPU is in the file. {AGAIN}.")
    known = [round(one.seconds * SECOND) for one in readings if one.seconds is not None]
    if len(known) < len(readings):
        notes.append(NO_TIMES)
        return [one.tick * SECOND for one in readings], None
    return [time - min(known) for time in known], min(known)


def _samples(
    readings: list[Reading], times: list[int], fields: list[Field]
) -> tuple[list[tuple[int, int, str, float]], list[str]]:
    """Return the rows of SAMPLES, and which places have no number in how many readings."""
    rows, absent = [], dict[str, int]()
    for reading, time in zip(readings, times, strict=True):
        for field in fields:
            for place in field.places:
                if place not in reading.values:
                    continue
                value = _number(reading.values[place], field.scale)
                if value is not None:
                    rows.append((reading.gpu, time, field.metric, value))
                    break
                absent[place] = absent.get(place, 0) + 1
    return rows, [f"{place} {lacking} of {len(readings)}" for place, lacking in absent.items()]


def _number(text: str, scale: float) -> float | None:
    """Return a number in the unit of its metric, None for what is none; dividing is exact."""
    match = NUMBER.fullmatch(text.strip())
    if not match or (match[2] and match[2] not in UNITS):
        return None
    factor = UNITS.get(match[2], scale)
    return float(match[1]) / round(1 / factor) if factor < 1 else float(match[1]) * factor


def _devices(readings: list[Reading], samples: pd.DataFrame) -> pd.DataFrame:
    names = {one.gpu: "" for one in readings}
    for one in readings:
        names[one.gpu] = one.values.get("asic.market_name", "") or names[one.gpu]
    totals = samples[samples["metric"].eq("memory_total_bytes")].groupby("gpu")["value"].max()
    sizes = [int(totals[gpu]) if gpu in totals else None for gpu in names]
    columns = {"rank": 0, "gpu": list(names), "name": list(names.values())}
    return tables.DEVICES.make(pd.DataFrame({**columns, "memory_bytes": pd.array(sizes, "Int64")}))
