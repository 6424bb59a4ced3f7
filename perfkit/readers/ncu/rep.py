"""What does a .ncu-rep say? Read by NVIDIA's own module `ncu_report` (extra `ncu`).

The module takes what is there of a cut report without a word, so the container is checked first: after the
magic and a header, blocks of a header and a payload, each preceded or announced by its length, to the end.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit.errors import ReadError
from perfkit.readers.ncu.pages import DEVICE_NAME, SCOPES
from perfkit.readers.ncu.report import Launch, Report, Rule
from perfkit.readers.ncu.units import base

MAGIC = b"NVR\0"
PAYLOAD_SIZE = 5  # field of a block's header
_VERSION = re.compile(rb"(20\d\d\.\d+\.\d+\.\d+) \(build \d+\)")
_LINK = re.compile(r"@url:([^:@]*):(.*?)@")
_MARKUP = re.compile(r"@\w+:[^:@]*:(.*?)@")
_TYPES = {1: "local", 2: "global"}


def read(path: Path) -> Report:
    """Return what a report holds.

    Raises
    ------
    ReadError
        If the module is not installed, or the report is cut or holds no launch.
    """
    content = path.read_bytes()
    _check_whole(content, path)
    module = _module(path)
    try:
        context = module.load_report(str(path))
    except RuntimeError as e:
        raise ReadError(
            f"{path}: ncu_report cannot read this report ({e}). Update it: `pip install -U ncu-report`."
        ) from e
    ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
    actions = [part.action_by_idx(i) for part in ranges for i in range(part.num_actions())]
    if not actions:
        raise ReadError(f"{path}: the report holds no kernel launch. Check the kernel filter (`-k`, `-c`) of ncu.")
    version = _VERSION.search(content)
    return _report(actions, version[1].decode() if version else "")


def plain(message: str) -> str:
    """Return the text of a rule as the details page prints it, without the markup of links.

    Examples
    --------
    >>> plain("Look at @section:LaunchStats:Launch Statistics@, see @url:the guide:https://example.com@.")
    'Look at Launch Statistics, see the guide (https://example.com).'
    """
    return _MARKUP.sub(r"\1", _LINK.sub(r"\1 (\2)", message))


def _module(path: Path) -> Any:
    try:
        return importlib.import_module("ncu_report")
    except (ImportError, OSError) as e:
        raise ReadError(
            f"{path}: reading a report needs NVIDIA's module ncu_report, which cannot be loaded ({e}). "
            'Install it with `pip install "perfkit[ncu]"`, or export the report with '
            f"`ncu --import {path.name} --csv --page raw --print-units base > {path.stem}.csv` and read that."
        ) from e


def _report(actions: list[Any], version: str) -> Report:
    rows: list[dict[str, float]] = []
    launches, rules = [], []
    units: dict[str, str] = {}
    for number, action in enumerate(actions):
        row, texts = _metrics(action, units)
        rows.append(row)
        launches.append(_launch(action, row, texts))
        rules += [_rule(number, told) for told in action.rule_results_as_dicts() if told.get("rule_message")]
    values = pd.DataFrame(rows, columns=list(units), dtype=np.float64)
    return Report(launches, values, units, rules, version)


def _metrics(action: Any, units: dict[str, str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the numbers and the texts of a launch; units are added to `units`."""
    row, texts = {}, {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = metric.value()
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, (int, float)):
            unit, factor = base(metric.unit())
            units.setdefault(name, unit)
            row[name] = float(value) * factor if np.isfinite(value) else float("nan")
    return row, texts


def _launch(action: Any, row: dict[str, float], texts: dict[str, str]) -> Launch:
    major, minor = (row.get(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    return Launch(
        action.name(action.NameBase_DEMANGLED),
        int(row.get("launch__device_id", row.get("device__attribute_device_index", -1))),
        capability="" if major is None or minor is None else f"{major:.0f}.{minor:.0f}",
        device_name=texts.get(DEVICE_NAME, ""),
    )


def _rule(launch: int, told: dict[str, Any]) -> Rule:
    gain = told.get("speedup_estimation", {})
    return Rule(
        launch,
        told["rule_identifier"],
        plain(told["rule_message"]["message"]),
        float(gain.get("speedup", np.nan)) / 100,
        SCOPES.get(_TYPES.get(gain.get("type", 0), "")),
    )


def _check_whole(content: bytes, path: Path) -> None:
    """Follow the lengths through the file: they must lead exactly to its end."""
    at = len(MAGIC)
    at += 4 + int.from_bytes(content[at : at + 4], "little")
    while at < len(content):
        start = at + 4
        end = start + int.from_bytes(content[at:start], "little")
        at = end + _field(content[start:end], PAYLOAD_SIZE)
    if at != len(content):
        raise ReadError(
            f"{path}: the report is cut or damaged: it has {len(content)} bytes, its own lengths lead to {at}. "
            "Copy it again from where it was recorded."
        )


def _field(message: bytes, wanted: int) -> int:
    """Return an integer field of a protobuf message; 0 if it is not set."""
    at, found = 0, 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            found = value if key >> 3 == wanted else found
        elif key & 7 == 2:
            length, at = _varint(message, at)
            at += length
        else:
            at += 8 if key & 7 == 1 else 4
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
