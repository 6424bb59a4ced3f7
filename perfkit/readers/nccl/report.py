"""What does a report say that nccl-tests wrote with ``-J``, whole or cut off by the end of the run?"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.nccl.benchmark import Device, Table
from perfkit.readers.nccl.layout import nanoseconds
from perfkit.readers.nccl.operations import Row, Timing

_AGAIN = "Run the test again, or load what it printed"
_ENDS = 20  # objects at the end of a cut report that are tried for the last whole one: a result has up to five


def is_report(head: str) -> bool:
    """Say whether a text begins as such a report does."""
    return head.lstrip().startswith("{") and all(f'"{key}":' in head for key in ("nccl_version", "version", "args"))


@dataclass(frozen=True)
class Report:
    """The benchmark of a report, its start in ns since 1970, and what went wrong in it.

    `whole` says whether the text ends as it should, `repeated` which keys an object has twice.
    """

    table: Table
    t0_unix_ns: int | None
    error: str
    whole: bool
    repeated: list[str]


def read(text: str, path: Path) -> Report:
    """Return what a report says.

    Raises
    ------
    ReadError
        If it is cut before its results, or is no report.
    """
    repeated: list[str] = []
    told, whole = _parsed(text, repeated)
    if not isinstance(told, dict) or not isinstance(told.get("results"), list):
        raise ReadError(f"{path}: the report of nccl-tests ends before its results. {_AGAIN}.")
    try:
        table = _table(told)
        table.rows = [_row(result) for result in told["results"]]
        errors = [_text(error) for error in told.get("errors") or () if isinstance(error, str) and error]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as e:
        why = printable(f"{type(e).__name__}: {e}", 120)
        raise ReadError(f"{path}: not as nccl-tests writes a report ({why}). {_AGAIN}.") from e
    return Report(table, _start(told.get("start_time")), errors[0] if errors else "", whole, repeated)


def _parsed(text: str, repeated: list[str]) -> tuple[Any, bool]:
    """Return what a text holds; of one that is cut the results up to the last whole one."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object with the last value of each key, and note the keys that are there again."""
        made = dict(pairs)
        if len(made) < len(pairs):
            repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return made

    try:
        return json.loads(text, parse_float=str, object_pairs_hook=once), True
    except (ValueError, RecursionError):
        end = len(text)
    for _ in range(_ENDS):
        end = text.rfind("}", 0, end)
        for closing in ("]}", "}", ""):
            try:
                return json.loads(text[: end + 1] + closing, parse_float=str, object_pairs_hook=once), False
            except (ValueError, RecursionError):
                continue
    return None, False


def _table(told: dict[str, Any]) -> Table:
    """Return what a report says beside its rows; of each process it lists the first GPU."""
    config = told.get("config") or {}
    listed = told.get("devices") or config.get("devices") or []
    devices = [_device(told) for told in listed]
    processes = sum(d.group == devices[0].group for d in devices)
    args = told.get("args") or [""]
    return Table(
        program=re.split(r"[/\\]", _text(args[0]))[-1],
        devices=devices,
        ranks=processes * _whole(config["nthreads"], 15) * _whole(config["ngpus"], 15) if processes else None,
        library=int(told["nccl_version"]),
        cpu_time=any("cpu_time" in (result.get("in_place") or {}) for result in told["results"]),
        out_of_bounds=int((told.get("out_of_bounds") or {}).get("count", 0)),
        ended="average_bus_bandwidth" in told,
        headed=True,
    )


def _device(told: dict[str, Any]) -> Device:
    return Device(
        int(told.get("group", 0)), _text(told["hostname"]), _whole(told["device"], 31), _text(told["device_info"])
    )


def _text(value: object) -> str:
    """Return a text that can be written: JSON may hold halves of characters."""
    return str(value).encode(errors="replace").decode()


def _whole(value: object, bits: int = 63) -> int:
    """Return a number that is an id or a size."""
    if not isinstance(value, int) or not 0 <= value < 2**bits:
        raise ValueError(f"{value!r} is no number of bytes, elements or device")
    return value


def _row(result: dict[str, Any]) -> Row:
    found = [_timing(at, result[at]) for at in ("out_of_place", "in_place") if result.get(at) is not None]
    redop, root = str(result["redop"] or ""), int(result["root"])
    return Row(_whole(result["size"]), _whole(result["count"]), _text(result["type"]), redop, root, tuple(found))


def _timing(placement: str, measured: dict[str, Any]) -> Timing:
    wrong = measured["nwrong"]
    return Timing(
        placement,
        nanoseconds(str(measured.get("time", "nan"))),
        float(measured["alg_bw"]),
        float(measured["bus_bw"]),
        None if wrong is None else float(wrong),
    )


def _start(printed: object) -> int | None:
    try:
        start = datetime.strptime(str(printed), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) * 10**9
