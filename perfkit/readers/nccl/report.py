"""What does a report say that nccl-tests wrote with ``-J``, whole or cut off by the end of the run?"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfkit.errors import ReadError
from perfkit.readers.nccl.benchmark import Device, Table
from perfkit.readers.nccl.layout import nanoseconds
from perfkit.readers.nccl.operations import Row, Timing

_AGAIN = "Run the test again, or load what it printed"
_ENDS = 20  # objects at the end of a cut report that are tried for the last whole one: a result has up to five


def is_report(head: str) -> bool:
    """Say whether a text begins as such a report does."""
    return head.lstrip().startswith("{") and all(f'"{key}":' in head for key in ("nccl_version", "version", "args"))


def read(text: str, path: Path) -> tuple[Table, int | None, str, bool]:
    """Return the benchmark of a report, its start in ns since 1970, what went wrong in it, and whether it is whole.

    Raises
    ------
    ReadError
        If it is cut before its results, or is no report.
    """
    told, whole = _parsed(text)
    if not isinstance(told, dict) or not isinstance(told.get("results"), list):
        raise ReadError(f"{path}: the report of nccl-tests ends before its results. {_AGAIN}.")
    try:
        table = _table(told)
        table.rows = [_row(result) for result in told["results"]]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as e:
        raise ReadError(f"{path}: not as nccl-tests writes a report ({type(e).__name__}: {e}). {_AGAIN}.") from e
    errors = [error for error in told.get("errors") or () if isinstance(error, str) and error]
    return table, _start(told.get("start_time")), errors[0] if errors else "", whole


def _parsed(text: str) -> tuple[Any, bool]:
    """Return what a text holds; of one that is cut the results up to the last whole one."""
    try:
        return json.loads(text, parse_float=str), True
    except (ValueError, RecursionError):
        end = len(text)
    for _ in range(_ENDS):
        end = text.rfind("}", 0, end)
        for closing in ("]}", "}", ""):
            try:
                return json.loads(text[: end + 1] + closing, parse_float=str), False
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
        program=re.split(r"[/\\]", str(args[0]))[-1],
        devices=devices,
        ranks=processes * int(config["nthreads"]) * int(config["ngpus"]) if processes else None,
        library=int(told["nccl_version"]),
        cpu_time=any("cpu_time" in (result.get("in_place") or {}) for result in told["results"]),
        out_of_bounds=int((told.get("out_of_bounds") or {}).get("count", 0)),
        ended="average_bus_bandwidth" in told,
        headed=True,
    )


def _device(told: dict[str, Any]) -> Device:
    return Device(
        int(told.get("group", 0)), str(told["hostname"]), _whole(told["device"], 31), str(told["device_info"])
    )


def _whole(value: object, bits: int = 63) -> int:
    """Return a number that is an id or a size."""
    if not isinstance(value, int) or not 0 <= value < 2**bits:
        raise ValueError(f"{value!r} is no number of bytes, elements or device")
    return value


def _row(result: dict[str, Any]) -> Row:
    found = [_timing(at, result[at]) for at in ("out_of_place", "in_place") if result.get(at)]
    redop, root = str(result["redop"] or ""), int(result["root"])
    return Row(_whole(result["size"]), _whole(result["count"]), str(result["type"]), redop, root, tuple(found))


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
