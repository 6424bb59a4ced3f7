"""A Prometheus server's answer to a query, as ``perfkit record prometheus`` or ``curl`` stored it.

The JSON of ``/api/v1/query_range`` (a matrix) and of ``/api/v1/query`` (a vector): times in seconds since 1970 with
milliseconds, values as text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.dcgm.labels import Raw, driver, gathered, unknown
from perfkit.readers.dcgm.series import LATEST_NS, NEVER, Reading
from perfkit.readers.dcgm.values import decimal
from perfkit.readers.text import content

BEGIN = re.compile(rb'\s*\{\s*"(?:status|data|warnings|infos)"\s*:')
TYPE = re.compile(rb'"resultType"\s*:')
NAME = re.compile(rb'"(?:DCGM_FI_|dcgm_|nvidia_smi_)\w+"')
KEY = re.compile(rb'"(data|result|metric|values?)"\s*:')
MS_NS = 1_000_000

Point = tuple[float, str]
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what decoding damaged JSON raises


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
    return BEGIN.match(head) is not None and TYPE.search(head) is not None and NAME.search(head) is not None


def reading(path: Path) -> Reading:
    """Read the series of an answer.

    Raises
    ------
    ReadError
        If the file is cut, is no answer with time series, or has no metric of a GPU.
    """
    answer = _answer(path)
    series = [_raw(path, result) for result in answer.data.result if "__name__" in result.metric] if answer.data else []
    notes = [f"Prometheus warned: {printable(warning, 200)}" for warning in answer.warnings]
    known, devices = gathered(series, notes)
    left_out = unknown(one.name for one in series)
    if not known:
        raise ReadError(
            f"{path}: no metric of a GPU that perfkit knows (found: {left_out or 'none'}). "
            "Ask for them with `perfkit record prometheus URL`."
        )
    notes += [f"metrics that none of perfkit's stands for are left out ({left_out})"] if left_out else []
    return Reading("Prometheus", known, timed=True, version=driver(series), devices=devices, notes=notes)


def _answer(path: Path) -> Answer:
    data = content(path)
    try:
        answer = msgspec.json.decode(data, type=Answer)
    except UNREADABLE as e:
        raise ReadError(
            f"{path}: not the whole answer of a Prometheus server ({printable(e, 120)}). Ask the server for it again."
        ) from e
    if answer.status != "success" or answer.data is None:
        said = printable(answer.error or answer.status, 200)
        raise ReadError(f"{path}: the server answered with an error ({said}). Correct the query and ask again.")
    if answer.data.result_type not in ("matrix", "vector"):
        raise ReadError(
            f"{path}: the answer is a {printable(answer.data.result_type, 20)}, not time series. "
            "Store the answer to a query of metrics."
        )
    twice = _repeated(data, answer.data.result)
    if twice:
        raise ReadError(
            f"{path}: an object has the key {twice!r} twice, and one of both values is lost. Ask for it again."
        )
    return answer


def _repeated(data: bytes, results: Sequence[Result]) -> str:
    """Return a key that stands more often in the text than in what was decoded of it; empty if there is none."""
    there = Counter(key.decode() for key in KEY.findall(data))
    decoded = Counter({"data": 1, "result": 1, "metric": len(results)})
    decoded["values"] = decoded["value"] = len(results)  # a series has one of them, or both without points
    decoded.update(label for one in results for label in one.metric if label in there)
    return next((key for key in there if there[key] > decoded[key]), "")


def _raw(path: Path, result: Result) -> Raw:
    points: Sequence[Point] = result.values or ([result.value] if result.value else [])
    values = [decimal(value) for _, value in points]
    if None in values:
        wrong = printable(points[values.index(None)][1], 30)
        raise ReadError(f"{path}: a value of a series is no number ({wrong!r}). Ask the server for it again.")
    ms = np.rint(np.array([time for time, _ in points], dtype=np.float64) * 1000)
    dated = np.abs(ms) < LATEST_NS / MS_NS  # False for NaN
    times = np.where(dated, np.where(dated, ms, 0).astype(np.int64) * MS_NS, NEVER)
    return Raw(result.metric["__name__"], result.metric, times, np.array(values, dtype=np.float64))
